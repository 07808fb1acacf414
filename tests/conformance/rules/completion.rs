//! What completes, and in which order.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::queue::{Completion, PostError, SendRequest};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{ConnectAttr, QpInit, QpSendQueue};
use bellwire_tests::fixture::*;

rules! {
    "completion", "What completes, and in which order.", needs [Rc];
    sends_complete_in_the_order_they_were_posted: "IBTA vol. 1, 10.8.3",
        "Completions of one send queue come in the order of its requests, whatever they are.";
    receives_complete_in_the_order_they_were_posted: "IBTA vol. 1, 10.8.3",
        "Completions of one receive queue come in the order of its receives.";
    unsignalled_requests_complete_with_the_next_signalled: "ibv_post_send(3), IBV_SEND_SIGNALED",
        "An unsignalled request has no entry; the next signalled one says how many it retires.";
    unsignalled_requests_alone_write_no_completion: "ibv_post_send(3), IBV_SEND_SIGNALED",
        "Unsignalled requests that succeed write no completion.";
    slots_come_back_with_the_signalled: "ibv_post_send(3)",
        "A completion gives the room of the unsignalled requests before it back.";
    every_request_of_sq_sig_all_has_an_entry: "ibv_create_qp(3), sq_sig_all",
        "With `sq_sig_all` every send request completes with an entry of its own.";
    errors_complete_though_unsignalled: "IBTA vol. 1, 10.7.3.1",
        "A request that fails completes, signalled or not.";
    flushed_requests_complete_though_unsignalled: "IBTA vol. 1, 10.3.1.7",
        "A request that is flushed completes, signalled or not.";
    flushed_requests_without_entries [SuppressedFlush]: "bellwire, QpInit::suppress_flush",
        "With `suppress_flush` no unsignalled request that is flushed has an entry, but the last that was \
         rung; each retires those before it, so that every request is reported once.";
    receives_always_complete: "IBTA vol. 1, 10.7.3.1",
        "Every receive that is consumed completes: there are no unsignalled ones.";
    the_failed_comes_first_then_the_flushed: "IBTA vol. 1, 10.3.1.7",
        "The request that fails completes with its error, those behind it as flushed, in order.";
    those_before_the_failed_succeed: "IBTA vol. 1, 10.3.1.7",
        "Requests before the one that fails are reported as executed.";
    a_batch_leaves_room_for_what_is_posted_meanwhile: "bellwire, Cq::poll",
        "Requests posted while a batch is reported find its room, in the queue and at the completion queue, \
         which does not overrun.";
    a_list_is_posted_up_to_what_is_refused: "ibv_post_send(3), bad_wr",
        "Of a list the requests before the one that is refused are executed, the others left alone.";
    nothing_comes_after_the_last: "ibv_poll_cq(3)",
        "When everything was reported a poll gives nothing, and goes on giving nothing.";
}

const SILENT: SendFlags = SendFlags::empty();
/// A key that belongs to no region.
const BAD: Remote = Remote { addr: 0, rkey: 1 };

fn sends_complete_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    for round in 0..20 {
        b.receive(70, &[]);
        let here = a.region.sge(0, 8);
        let long = a.region.sge(0, 60_000);
        a.post(round * 5, RdmaRead { remote }, long, SIGNALED)
            .unwrap();
        a.post(
            round * 5 + 1,
            RdmaWrite { remote },
            Inline(&[1; 8]),
            SIGNALED,
        )
        .unwrap();
        a.post(
            round * 5 + 2,
            AtomicFetchAndAdd { remote, add: 1 },
            here,
            SIGNALED,
        )
        .unwrap();
        a.post(round * 5 + 3, Send {}, NoPayload, SIGNALED).unwrap();
        a.post(round * 5 + 4, RdmaWrite { remote }, NoPayload, SIGNALED)
            .unwrap();
        a.qp.sq().ring();
        for at in 0..5 {
            completes(&mut a, round * 5 + at, WcStatus::Success);
        }
        completes(&mut b, 70, WcStatus::Success);
    }
}

fn receives_complete_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let (remote, imm) = (b.region.remote(0), Be32::new(1));
    for wr_id in 0..40 {
        b.receive(wr_id, &[b.region.sge(0, 100)]);
    }
    for wr_id in 0..20 {
        a.go(wr_id, RdmaWriteWithImm { remote, imm }, NoPayload);
        a.go(wr_id, Send {}, Inline(&[1; 100][..wr_id as usize * 5]));
    }
    for wr_id in 0..40 {
        completes(&mut b, wr_id, WcStatus::Success);
    }
}

fn unsignalled_requests_complete_with_the_next_signalled(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let mut random = Random::new(6);
    for round in 0..200 {
        let silent = random.below(40) as u32;
        for at in 0..silent {
            let flags = if at % 3 == 0 {
                SendFlags::FENCE
            } else {
                SILENT
            };
            let length = random.below(150) as usize;
            let bytes = [1; 150];
            a.post(
                u64::MAX,
                RdmaWrite { remote },
                Inline(&bytes[..length]),
                flags,
            )
            .unwrap();
            if random.below(4) == 0 {
                a.qp.sq().ring();
            }
        }
        a.go(round, RdmaWrite { remote }, Inline(&[2; 8]));
        let done = a.wait();
        assert_eq!((done.wr_id, done.status()), (round, WcStatus::Success));
        assert_eq!(done.retired, silent + 1);
    }
    a.nothing();
}

fn unsignalled_requests_alone_write_no_completion(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..20 {
        b.receive(wr_id, &[]);
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..20 {
        completes(&mut b, wr_id, WcStatus::Success);
    }
    a.nothing();
}

fn slots_come_back_with_the_signalled(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let free = a.qp.sq().free_blocks();
    for round in 0..200u64 {
        for _ in 0..round % 50 {
            a.post(0, RdmaWrite { remote }, Inline(&[1; 100]), SILENT)
                .unwrap();
        }
        a.go(round, RdmaWrite { remote }, NoPayload);
        assert!(a.qp.sq().free_blocks() < free);
        completes(&mut a, round, WcStatus::Success);
        assert_eq!(a.qp.sq().free_blocks(), free);
    }
}

fn every_request_of_sq_sig_all_has_an_entry(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let init = QpInit {
        sq_sig_all: true,
        ..init()
    };
    let (mut a, mut b) = (End::new(&pd, p.quiet, &init), End::new(&pd, p.quiet, &init));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let remote = b.region.remote(0);
    for wr_id in 0..20 {
        a.post(wr_id, RdmaWrite { remote }, NoPayload, SILENT)
            .unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..20 {
        let done = a.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    a.nothing();
}

fn errors_complete_though_unsignalled(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.post(1, RdmaWrite { remote: BAD }, Inline(&[1]), SILENT)
        .unwrap();
    a.qp.sq().ring();
    completes(&mut a, 1, WcStatus::RemAccessErr);
}

fn flushed_requests_complete_though_unsignalled(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.qp.to_error().unwrap();
    for wr_id in 0..10 {
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..10 {
        completes(&mut a, wr_id, WcStatus::WrFlushErr);
    }
}

fn flushed_requests_without_entries(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let init = QpInit {
        suppress_flush: true,
        ..init()
    };
    let (mut a, mut b) = (End::new(&pd, p.quiet, &init), End::new(&pd, p.quiet, &init));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let good = b.region.remote(0);
    let post = |a: &mut End, wr_id, remote, flags| {
        a.post(wr_id, RdmaWrite { remote }, Inline(&[1]), flags)
            .unwrap();
    };
    let free = a.qp.sq().free_blocks();
    // What succeeds is reported as ever.
    post(&mut a, 0, good, SILENT);
    post(&mut a, 1, good, SIGNALED);
    a.qp.sq().ring();
    // The third fails; all that goes before was executed.
    let plan = [
        (2, good, SILENT),
        (3, good, SILENT),
        (4, BAD, SILENT),
        (5, good, SILENT),
        (6, good, SILENT),
        (7, good, SIGNALED),
        (8, good, SIGNALED),
        (9, good, SILENT),
        (10, good, SILENT),
    ];
    for (wr_id, remote, flags) in plan {
        post(&mut a, wr_id, remote, flags);
    }
    a.qp.sq().ring();
    let next = |a: &mut End| {
        let done = a.wait();
        (done.wr_id, done.status(), done.retired)
    };
    assert_eq!(next(&mut a), (1, WcStatus::Success, 2));
    assert_eq!(next(&mut a), (4, WcStatus::RemAccessErr, 3));
    assert_eq!(next(&mut a), (7, WcStatus::WrFlushErr, 3));
    assert_eq!(next(&mut a), (8, WcStatus::WrFlushErr, 1));
    assert_eq!(next(&mut a), (10, WcStatus::WrFlushErr, 2));
    // Posted in ERR: one entry for all that are rung together.
    for wr_id in 11..16 {
        post(&mut a, wr_id, good, SILENT);
    }
    a.qp.sq().ring();
    assert_eq!(next(&mut a), (15, WcStatus::WrFlushErr, 5));
    a.nothing();
    assert_eq!(a.qp.sq().free_blocks(), free);
    assert!(a.reset().is_empty(), "reported twice");
    assert_eq!(a.cq.stale(), 0);
}

fn receives_always_complete(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..20 {
        b.receive(wr_id, &[]);
    }
    for wr_id in 0..20 {
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
        a.qp.sq().ring();
        let done = b.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    b.nothing();
}

/// Ten requests, signalled every other time, of which number four fails.
fn four_fails(p: &Provider) -> (End, End) {
    let (mut a, b) = p.pair();
    let good = b.region.remote(0);
    for wr_id in 0..10 {
        let remote = if wr_id == 4 { BAD } else { good };
        let flags = if wr_id % 2 == 1 { SIGNALED } else { SILENT };
        a.post(wr_id, RdmaWrite { remote }, Inline(&[1]), flags)
            .unwrap();
    }
    a.qp.sq().ring();
    (a, b)
}

fn the_failed_comes_first_then_the_flushed(p: &Provider) {
    let (mut a, _b) = four_fails(p);
    completes(&mut a, 1, WcStatus::Success);
    completes(&mut a, 3, WcStatus::Success);
    completes(&mut a, 4, WcStatus::RemAccessErr);
    for wr_id in 5..10 {
        completes(&mut a, wr_id, WcStatus::WrFlushErr);
    }
}

fn those_before_the_failed_succeed(p: &Provider) {
    let (mut a, _b) = four_fails(p);
    let all: Vec<Completion<'_>> = (0..8).map(|_| a.wait()).collect();
    let retired: Vec<u32> = all.iter().map(|done| done.retired).collect();
    assert_eq!(retired, [2, 2, 1, 1, 1, 1, 1, 1], "each request once");
    assert!(all[..2].iter().all(|done| done.result.is_ok()));
    assert!(all[2..].iter().all(|done| done.result.is_err()));
}

fn a_batch_leaves_room_for_what_is_posted_meanwhile(p: &Provider) {
    const ALL: u64 = 2000;
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let (mut posted, mut reported) = (0, 0);
    let mut post = |sq: &mut QpSendQueue<'_, Rc>| {
        let bytes = Inline(&[1; 8]);
        // SAFETY: inline.
        let result = unsafe { sq.post(posted, (), RdmaWrite { remote }, bytes, SIGNALED) };
        posted += u64::from(result.is_ok());
        result
    };
    while post(&mut a.qp.sq()).is_ok() {}
    a.qp.sq().ring();
    until("everything to be reported", || {
        let mut sq = a.qp.sq();
        a.cq.poll(100, |completion| {
            assert!(completion.result.is_ok(), "{completion:?}");
            assert_eq!(completion.wr_id, reported);
            reported += 1;
            if reported <= ALL {
                post(&mut sq).expect("the room of what is reported");
                sq.ring();
            }
        });
        reported >= ALL
    });
    until("the last", || {
        a.cq.poll(100, |completion| {
            assert!(completion.result.is_ok(), "{completion:?}");
            reported += 1;
        });
        reported >= posted
    });
    a.nothing();
    assert_eq!((reported, a.cq.overrun(), a.cq.stale()), (posted, false, 0));
}

fn a_list_is_posted_up_to_what_is_refused(p: &Provider) {
    let (mut a, b) = p.pair();
    let long = vec![7; a.qp.sq().limits().max_inline as usize + 1];
    let list = [1_u64, 2, 3, 4, 5];
    let request = |&wr_id: &u64| {
        let remote = b.region.remote(wr_id as usize);
        Some(SendRequest {
            wr_id,
            address: (),
            operation: RdmaWrite { remote },
            payload: Inline(if wr_id == 4 { &long } else { &long[..1] }),
            flags: SIGNALED,
        })
    };
    // SAFETY: inline.
    let error = unsafe { a.qp.sq().post_list(&list, request) }.expect_err("the fourth is too long");
    assert_eq!(error.index, 3);
    assert!(matches!(error.error, PostError::InlineTooLong { .. }));
    a.qp.sq().ring();
    for wr_id in 1..=3 {
        completes(&mut a, wr_id, WcStatus::Success);
    }
    a.nothing();
    let mut written = [0; 6];
    b.region.read(0, &mut written);
    assert_eq!(written, [0, 7, 7, 7, 0, 0]);
    // Shorter, without that one: as many as are asked for.
    // SAFETY: inline.
    let posted = unsafe { a.qp.sq().post_list(&list[..2], request) };
    assert_eq!(posted, Ok(2));
    a.qp.sq().ring();
    for wr_id in 1..=2 {
        completes(&mut a, wr_id, WcStatus::Success);
    }
}

fn nothing_comes_after_the_last(p: &Provider) {
    let (mut a, mut b) = four_fails(p);
    for _ in 0..8 {
        let _completion = a.wait();
    }
    for _ in 0..3 {
        a.nothing();
        b.nothing();
    }
    assert!(a.reset().is_empty());
    assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
}
