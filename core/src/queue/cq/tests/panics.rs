//! Functions of the program that panic, at each of their calls: a request that was passed to them
//! is reported, the others are reported later, once, and no CQE reports a request again.

use super::*;
use crate::slab::{ClassLayout, Slab, SlabRegion};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCKS: u32 = 64;

pub(super) fn slab() -> &'static Slab<'static> {
    const LAYOUT: &[ClassLayout] = &[ClassLayout {
        size: 64,
        count: BLOCKS,
    }];
    let start = memory(8192);
    let region = SlabRegion {
        // SAFETY: the aligned page lies within the memory.
        start: unsafe { start.add(start.as_ptr().align_offset(4096)) },
        length: 4096,
        lkey: 1,
        rkey: 2,
    };
    let metas = keep_all(BLOCKS as usize, Default::default);
    let classes = keep_all(1, Default::default);
    // SAFETY: kept, and used only by this slab.
    keep(unsafe { Slab::new(metas, classes, region, LAYOUT) }.expect("fits"))
}

/// The requests that were reported, in a function that panics once, at one of its calls.
#[derive(Default)]
struct Reports {
    counts: BTreeMap<u64, u32>,
    calls: u32,
    panics_at: Option<u32>,
}

impl Reports {
    fn panicking_at(at: u32) -> Self {
        Self {
            panics_at: Some(at),
            ..Self::default()
        }
    }

    fn report(&mut self, wr_id: u64, block: Option<Block<'static>>) {
        // Dropped by the panic, if there is one.
        let _block = block;
        *self.counts.entry(wr_id).or_default() += 1;
        let at = self.calls;
        self.calls += 1;
        assert!(self.panics_at != Some(at), "a panic that is caught");
    }

    /// Asserts that all of these, and no others, were reported once.
    fn all_once(&self, expected: impl IntoIterator<Item = u64>) {
        let expected: BTreeMap<_, _> = expected.into_iter().map(|wr_id| (wr_id, 1)).collect();
        assert_eq!(self.counts, expected);
    }
}

/// Calls until it no longer panics; returns how often it did.
fn caught(mut call: impl FnMut()) -> u32 {
    (0..)
        .find(|_| catch_unwind(AssertUnwindSafe(&mut call)).is_ok())
        .expect("it ends")
}

/// Runs with a panic at each of the calls in turn, and at one that is not reached.
fn every_call(calls: u32, each: impl Fn(u32, bool)) {
    (0..=calls).for_each(|at| each(at, at < calls));
}

impl Qp {
    /// Posts sends and receives with blocks, three of each, and rings two.
    fn fill(&mut self, slab: &'static Slab<'static>) {
        for wr_id in 0..3 {
            let block = slab.take(64).expect("enough");
            let flags = SendFlags::SIGNALED;
            (self.send.post_block(wr_id, (), Send {}, block, 64, flags)).expect("room");
            let block = slab.take(64).expect("enough");
            self.recv.post_block(10 + wr_id, block).expect("room");
            if wr_id == 1 {
                self.send.ring();
                self.recv.ring();
            }
        }
    }

    /// Ends the life of the queues as a reset does.
    fn end_life(&mut self, reports: &mut Reports) -> u32 {
        // SAFETY: there is no device, and nobody polls.
        let sends = caught(|| unsafe {
            (self.send).clear(|request| reports.report(request.wr_id, request.block));
        });
        // SAFETY: there is no device, and nobody polls.
        let receives = caught(|| unsafe {
            (self.recv).clear(|request| reports.report(request.wr_id, request.block));
        });
        sends + receives
    }
}

/// `clear` reports the requests of a queue pair, with a panic at each call in turn: all are
/// reported once, and the queues begin their next life normally.
#[test]
fn queues_are_cleared_whatever_the_program_does_meanwhile() {
    every_call(6, |at, panics| {
        let (slab, mut reports) = (slab(), Reports::panicking_at(at));
        let mut pair = qp(1);
        let mut cq = Cq::new(16, 64, 1);
        // SAFETY: the only poller.
        let index = unsafe { cq.queue.attach(pair.attach) }.expect("room");
        pair.fill(slab);
        // The first is executed, and its completion not polled.
        cq.sent(index, 0, 0);

        // SAFETY: there is no device.
        let next = unsafe { cq.queue.renew(index, nothing) }.expect("attached");
        assert_ne!(next, index);
        assert_eq!(pair.end_life(&mut reports), u32::from(panics));
        reports.all_once([0, 1, 2, 10, 11, 12]);
        assert_eq!(slab.outstanding(), 0);

        assert_eq!((pair.send.in_flight(), pair.recv.in_flight()), (0, 0));
        assert_eq!((pair.send.free_blocks(), pair.recv.free()), (8, 8));
        assert_eq!(
            (pair.send.counter() & 0xffff, pair.recv.counter() & 0xffff),
            (0, 0)
        );
        let refused = pair.send.post_empty(0, (), Send {}, SendFlags::empty());
        assert!(refused.is_err(), "in RESET");

        // The next life, and a late CQE of the previous one.
        pair.send.set_postable(true);
        let counter = pair.post();
        cq.sent(index, counter, 0);
        assert_eq!((cq.poll(), cq.queue.stale()), (None, 1));
        cq.sent(next, counter, 0);
        assert_eq!(cq.poll(), Some((1, counter.into())));
    });
}

/// Between the panic and the next call the counts of the queues are right.
#[test]
fn what_a_panic_leaves_is_in_flight() {
    let (slab, mut reports) = (slab(), Reports::panicking_at(1));
    let mut pair = qp(1);
    pair.fill(slab);
    let mut clear = || {
        // SAFETY: there is no device.
        let cleared = catch_unwind(AssertUnwindSafe(|| unsafe {
            (pair.send).clear(|request| reports.report(request.wr_id, request.block));
        }));
        (
            cleared.is_ok(),
            pair.send.in_flight(),
            pair.send.staged(),
            slab.outstanding(),
        )
    };
    // The third request, which was not rung, is not passed to the device by a later ring either.
    assert_eq!(clear(), (false, 1, 0, 4));
    assert_eq!(clear(), (true, 0, 0, 3));
    reports.all_once([0, 1, 2]);
}

struct Shared {
    cq: Cq,
    srq: SharedRecvQueue<'static>,
    ledger: &'static SrqLedger<'static>,
    pairs: [Qp; 2],
    indices: [UserIndex; 2],
}

/// Two queue pairs that receive from one shared receive queue, with completions of both that were
/// not polled.
fn shared(slab: &'static Slab<'static>) -> Shared {
    let mut cq = Cq::new(16, 64, 2);
    let (ledger, mut srq) = shared_queue(8);
    for wr_id in 10..17 {
        let block = slab.take(64).expect("enough");
        srq.post_block(wr_id, block).expect("room");
    }
    let (pairs, indices) = sharing(&mut cq, ledger);
    for (slot, of) in [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)] {
        let entry = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[of], slot), 0);
        cq.write(&[0; 64], &entry);
    }
    Shared {
        cq,
        srq,
        ledger,
        pairs,
        indices,
    }
}

/// Receives of a shared receive queue are reported once when one of its queue pairs is detached,
/// and the CQE of a reported receive does not report the next one in its slot.
#[test]
fn queues_are_detached_whatever_the_program_does_meanwhile() {
    for renews in [false, true] {
        every_call(3, |at, panics| {
            let (slab, mut reports) = (slab(), Reports::panicking_at(at));
            let mut world = shared(slab);
            let (queue, index) = (&mut world.cq.queue, world.indices[0]);
            let call = AssertUnwindSafe(|| {
                let each = |wr_id, block| reports.report(wr_id, block);
                match renews {
                    // SAFETY: there is no device.
                    true => drop(unsafe { queue.renew(index, each) }),
                    // SAFETY: there is no device.
                    false => unsafe { queue.detach(index, each) },
                }
            });
            assert_eq!(catch_unwind(call).is_err(), panics);
            // Reported requests are posted again, in the same slots, before anything else is done.
            let reported = reports.counts.len() as u64;
            for wr_id in 20..20 + reported {
                (world.srq)
                    .post_block(wr_id, slab.take(64).expect("enough"))
                    .expect("room");
            }
            // The other CQEs can still be polled, and so can those of the other queue pair.
            let mut polled = Reports::default();
            while let Some(completion) = world.cq.queue.poll_one() {
                polled.report(completion.wr_id, completion.block);
            }
            reports.counts.append(&mut polled.counts);
            reports.all_once([10, 11, 12, 13, 14]);
            assert_eq!(world.cq.queue.stale(), if panics { reported } else { 0 });
            // Two receives that no message consumed, and those that were posted again.
            assert_eq!(slab.outstanding() as u64, 2 + reported);

            // A second call completes the detachment, after which another one can be attached.
            // SAFETY: no device writes CQEs.
            unsafe { world.cq.queue.detach(index, nothing) };
            if renews && !panics {
                return;
            }
            // SAFETY: the pollers of the ledgers are the same as before.
            let again = unsafe { world.cq.queue.attach_unreserved(world.pairs[0].attach) };
            assert!(again.is_ok_and(|again| again != index));
        });
    }
}

#[test]
fn a_shared_queue_is_cleared_whatever_the_program_does_meanwhile() {
    every_call(7, |at, panics| {
        let (slab, mut reports) = (slab(), Reports::panicking_at(at));
        let mut world = shared(slab);
        // SAFETY: there is no device.
        let panicked = caught(|| unsafe {
            world
                .ledger
                .clear(|wr_id, block| reports.report(wr_id, block));
        });
        assert_eq!(panicked, u32::from(panics));
        reports.all_once(10..17);
        assert_eq!((slab.outstanding(), world.srq.free()), (0, 7));
        assert_eq!((world.cq.poll(), world.cq.queue.stale()), (None, 5));
    });
}

/// Sends, receives, shared receives and a failure, polled in one batch, in parts, and one by one.
#[test]
fn polls_go_on_whatever_the_program_does_meanwhile() {
    for (limit, reserve) in [
        (usize::MAX, true),
        (3, true),
        (usize::MAX, false),
        (1, false),
    ] {
        every_call(6, |at, panics| {
            let (slab, mut reports) = (slab(), Reports::panicking_at(at));
            let mut pair = qp(1);
            let mut cq = Cq::new(32, 64, 1);
            // SAFETY: the only poller.
            let index = unsafe {
                match reserve {
                    true => cq.queue.attach(pair.attach),
                    false => cq.queue.attach_unreserved(pair.attach),
                }
            };
            let index = index.expect("room");
            pair.fill(slab);
            pair.send.ring();
            pair.recv.ring();
            for counter in 0..3 {
                let receive = Cqe64::responder(CqeOpcode::RespSend, wqe(index, 0), 0);
                cq.write(&[0; 64], &receive);
                match counter {
                    2 => {
                        let of = wqe(index, counter);
                        let syndrome = Syndrome::LOCAL_PROT;
                        let failed = Cqe64::error(CqeOpcode::ReqErr, of, 0, syndrome, 0);
                        cq.write(&[0; 64], &failed);
                    }
                    _ => cq.sent(index, counter, 0),
                }
            }
            let mut polled = 0;
            let panicked = caught(|| {
                while 0
                    != (cq.queue).poll(limit, |completion| {
                        polled += 1;
                        reports.report(completion.wr_id, completion.block);
                    })
                {}
            });
            assert_eq!((panicked, polled), (u32::from(panics), 6));
            reports.all_once([0, 1, 2, 10, 11, 12]);
            assert_eq!((slab.outstanding(), cq.queue.stale()), (0, 0));
            assert_eq!(cq.records[0].load(), 6, "the device has all entries back");
            assert_eq!((pair.send.in_flight(), pair.recv.in_flight()), (0, 0));
        });
    }
}

/// A panic in `history` changes nothing.
#[test]
fn history_is_there_again_whatever_the_program_does_meanwhile() {
    every_call(2, |at, panics| {
        let mut pair = qp(1);
        let mut cq = Cq::new(16, 64, 1);
        // SAFETY: the only poller.
        let index = unsafe { cq.queue.attach(pair.attach) }.expect("room");
        for _ in 0..2 {
            let counter = pair.post();
            cq.sent(index, counter, 0);
            // SAFETY: the request refers to no memory.
            unsafe { pair.recv.post(7, &[]) }.expect("room");
        }
        let mut reports = [(); 3].map(|()| Reports::panicking_at(at));
        let [sends, receives, entries] = &mut reports;
        // SAFETY: nobody polls meanwhile, and there is no device.
        let panicked = unsafe {
            [
                caught(|| (pair.send).history(|past, _| sends.report(past.wr_id, None))),
                caught(|| (pair.recv).history(|past, _| receives.report(past.wr_id, None))),
                caught(|| (cq.queue).history(|past| entries.report(past.index.into(), None))),
            ]
        };
        assert_eq!(panicked, [u32::from(panics); 3]);
        assert_eq!(cq.poll(), Some((1, 0)));
        assert_eq!((pair.send.in_flight(), pair.recv.free()), (1, 6));
    });
}
