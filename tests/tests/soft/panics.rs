//! Programs' functions that panic at any of their calls: each request is reported once, all blocks come
//! back, and what it was called from goes on as if nothing had been.

use bellwire::soft::Mode;
use bellwire::wqe::{NoPayload, Nop, RdmaRead, Send};
use bellwire::wr::Remote;
use bellwire::{Block, ClassLayout, ConnectAttr, Cqs, Qp, QpInit, SrqInit};
use bellwire_tests::fixture::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const BLOCK: u32 = 64;
const BLOCKS: u32 = 16;

const LAYOUT: [ClassLayout; 1] = [ClassLayout {
    size: BLOCK,
    count: BLOCKS,
}];

/// What was reported to a function that panics at one of its calls, or at each.
struct Callback {
    reported: Vec<u64>,
    panics: fn(usize, usize) -> bool,
    at: usize,
}

impl Callback {
    fn call(&mut self, wr_id: u64, block: Option<Block<'static>>) {
        // It goes with the panic.
        let _block = block;
        let calls = self.reported.len();
        self.reported.push(wr_id);
        assert!(!(self.panics)(calls, self.at), "a panic that is caught");
    }

    fn all_once(mut self, expected: impl IntoIterator<Item = u64>) {
        self.reported.sort_unstable();
        assert_eq!(self.reported, Vec::from_iter(expected));
    }
}

/// Each of so many calls panics in its turn, then none, then all of them do.
fn every_call(calls: usize, each: impl Fn(Callback, bool)) {
    let callback = |panics, at| Callback {
        reported: Vec::new(),
        panics,
        at,
    };
    for at in 0..=calls {
        each(callback(|call, at| call == at, at), at < calls);
    }
    each(callback(|_, _| true, 0), true);
}

/// A SEND that waits for a receive, READs behind it, one of which was not rung, and receives: all into
/// blocks. None of it is executed once the queue pair is connected again.
#[test]
fn a_queue_pair_is_reset_whatever_the_program_does_meanwhile() {
    every_call(6, |mut callback, panics| {
        let patient = ConnectAttr {
            rnr_retry: 7,
            ..ConnectAttr::default()
        };
        let (device, mut a, mut b) = virtual_pair(&patient);
        let slab = slab(a.qp.pd(), &LAYOUT);
        let mr = b.region.mr();
        let remote = Remote {
            addr: mr.addr(),
            rkey: mr.rkey(),
        };
        let block = || slab.take(BLOCK).expect("enough");
        a.qp.sq()
            .post_block(0, (), Send {}, block(), BLOCK, SIGNALED)
            .expect("room");
        a.qp.sq()
            .post_block(1, (), RdmaRead { remote }, block(), BLOCK, SIGNALED)
            .expect("room");
        a.qp.sq().ring();
        a.qp.sq()
            .post_block(2, (), RdmaRead { remote }, block(), BLOCK, SIGNALED)
            .expect("room");
        a.qp.rq().post_block(10, block()).expect("room");
        a.qp.rq().post_block(11, block()).expect("room");
        a.qp.rq().ring();
        a.qp.rq().post_block(12, block()).expect("room");

        let reset = AssertUnwindSafe(|| {
            let answer =
                a.qp.reset(&mut a.cq, |wr_id, block| callback.call(wr_id, block));
            answer.expect("RESET");
        });
        assert_eq!(catch_unwind(reset).is_err(), panics);
        callback.all_once([0, 1, 2, 10, 11, 12]);
        assert_eq!(slab.outstanding(), 0);

        // The program has the blocks for itself.
        let mut blocks: Vec<_> = (0..BLOCKS).map(|_| block()).collect();
        for block in &mut blocks {
            block.as_mut_slice().fill(0x11);
        }
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &patient);
        device.as_soft().unwrap().advance(Duration::from_secs(1));
        a.nothing();
        b.receive(20, &[]);
        a.go(21, Send {}, NoPayload);
        a.go(22, Nop {}, NoPayload);
        device.as_soft().unwrap().advance(Duration::from_secs(1));
        assert_eq!(
            (a.wait().wr_id, a.wait().wr_id, b.wait().wr_id),
            (21, 22, 20)
        );
        a.nothing();
        b.nothing();
        assert!(
            blocks
                .iter()
                .all(|block| block.as_slice().iter().all(|&byte| byte == 0x11))
        );
        assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
        assert_eq!((a.qp.sq().in_flight(), a.qp.rq().in_flight()), (0, 0));
    });
}

/// On two completion queues without a reservation, many times over: neither loses its place.
#[test]
fn a_queue_pair_that_reserves_nothing_keeps_its_places() {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let init = QpInit {
        reserve_cq: false,
        ..init()
    };
    let mut cqs = [(); 2].map(|()| device.create_cq_for(128, 1).expect("queues"));
    let [send, recv] = &mut cqs;
    let mut qp = (pd.create_qp((&mut *send, &mut *recv), &init)).expect("a queue pair");
    for round in 0..600 {
        qp.init(&ConnectAttr::default()).expect("INIT");
        post_recv(&mut qp, round, &[]).expect("room");
        let reset = AssertUnwindSafe(|| {
            let cqs = Cqs::Split(&mut *send, &mut *recv);
            let answer = qp.reset(cqs, |wr_id, _| panic!("a panic that is caught: {wr_id}"));
            answer.expect("RESET");
        });
        assert!(catch_unwind(reset).is_err());
    }
    assert_eq!(
        (send.poll_one().is_none(), recv.poll_one().is_none()),
        (true, true)
    );
}

/// A shared receive queue: what one of its queue pairs has received and nobody polled, then all the rest.
#[test]
fn a_shared_queue_ends_whatever_the_program_does_meanwhile() {
    every_call(2, |mut received, panics| {
        let device = virtual_device(1);
        let pd = device.alloc_pd();
        let slab = slab(&pd, &LAYOUT);
        let mut srq = pd.create_srq(&SrqInit::default()).expect("a queue");
        let mut cq = device.create_cq(512).expect("a queue");
        let mut a = End::new(&pd, Mode::Inline, &init());
        let mut b: Qp = pd
            .create_qp_on_srq(&mut cq, &srq, &init())
            .expect("a queue pair");
        connect_with(&mut a.qp, &mut b, &ConnectAttr::default());
        for wr_id in 0..5 {
            let block = slab.take(BLOCK).expect("enough");
            srq.post_block(wr_id, block).expect("room");
        }
        srq.ring();
        for wr_id in 0..2 {
            a.go(wr_id, Send {}, NoPayload);
            assert_eq!(a.wait().wr_id, wr_id);
        }
        let reset = AssertUnwindSafe(|| {
            let answer = b.reset(&mut cq, |wr_id, block| received.call(wr_id, block));
            answer.expect("RESET");
        });
        assert_eq!(catch_unwind(reset).is_err(), panics);
        received.all_once([0, 1]);
        assert_eq!((slab.outstanding(), cq.stale()), (3, 0));
        // It goes on, with another life of the queue pair.
        a.reset();
        connect_with(&mut a.qp, &mut b, &ConnectAttr::default());
        a.go(7, Send {}, NoPayload);
        assert_eq!((a.wait().wr_id, wait(&mut cq).wr_id), (7, 2));
    });
}

#[test]
fn a_shared_queue_is_destroyed_whatever_the_program_does_meanwhile() {
    every_call(3, |mut callback, panics| {
        let pd = virtual_device(1).alloc_pd();
        let slab = slab(&pd, &LAYOUT);
        let mut srq = pd.create_srq(&SrqInit::default()).expect("a queue");
        for wr_id in 0..3 {
            let block = slab.take(BLOCK).expect("enough");
            srq.post_block(wr_id, block).expect("room");
        }
        let destroy = AssertUnwindSafe(|| {
            let answer = srq.destroy(|wr_id, block| callback.call(wr_id, block));
            answer.map_err(|(_, error)| error).expect("no users");
        });
        assert_eq!(catch_unwind(destroy).is_err(), panics);
        callback.all_once(0..3);
        assert_eq!(slab.outstanding(), 0);
    });
}
