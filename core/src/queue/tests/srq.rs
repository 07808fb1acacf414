//! The shared receive queue: each posted request completes once, in any order.

use super::{keep, keep_all, memory};
use crate::port::DoorbellRecord;
use crate::queue::{BadRequest, PostError, SharedRecvQueue, SrqLedger, SrqSlot};
use crate::random::Random;
use crate::wqe::SrqRing;
use crate::wr::Sge;
use std::collections::BTreeMap;
use std::vec::Vec;

pub(super) struct Fixture {
    pub ring: SrqRing<'static>,
    pub ledger: &'static SrqLedger<'static>,
    pub queue: SharedRecvQueue<'static>,
    pub record: &'static DoorbellRecord,
}

pub(super) fn fixture(count: u32) -> Fixture {
    // SAFETY: kept, and used only by this queue.
    let ring = unsafe { SrqRing::new(memory(count as usize * 32), count, 32) }.expect("sizes");
    let slots = keep_all(count as usize, SrqSlot::default);
    let ledger = keep(SrqLedger::new(ring, slots).expect("as many slots"));
    let record = keep(DoorbellRecord::default());
    // SAFETY: the only queue on ring and ledger.
    let queue = unsafe { SharedRecvQueue::new(ledger, record) }.expect("two entries");
    Fixture {
        ring,
        ledger,
        queue,
        record,
    }
}

impl Fixture {
    pub fn post(&mut self, wr_id: u64) -> Result<(), PostError> {
        let sge = Sge {
            addr: wr_id,
            length: 1,
            lkey: 1,
        };
        // SAFETY: no device writes to this memory.
        unsafe { self.queue.post(wr_id, &[sge]) }
    }

    pub fn retire(&self, slot: u16) -> Option<u64> {
        let located = self.ledger.locate(slot)?;
        assert_eq!(located.index(), u32::from(slot));
        let (wr_id, block) = located.release();
        assert!(block.is_none());
        Some(wr_id)
    }

    /// The slots of the posted requests, in the order of the links that a device follows.
    fn walk(&self, mut slot: u32, count: usize) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        for _ in 0..count {
            // SAFETY: posted, and not written meanwhile.
            let sge = unsafe { self.ring.read(slot).next() };
            found.push((slot, sge.expect("an element").addr));
            slot = self.ring.next(slot);
        }
        found
    }
}

#[test]
fn one_entry_is_never_posted() {
    let mut f = fixture(4);
    assert_eq!(f.queue.capacity(), 3);
    for wr_id in 0..3 {
        f.post(wr_id).expect("room");
    }
    assert_eq!(f.post(3), Err(PostError::QueueFull));
    assert_eq!(f.record.load(), 0, "not rung");
    f.queue.ring();
    assert_eq!(f.record.load(), 3);
    assert_eq!(f.walk(0, 3), [(0, 0), (1, 1), (2, 2)]);
    // SAFETY: the queue is not used.
    assert!(unsafe { SharedRecvQueue::new(fixture(1 << 4).ledger, f.record) }.is_some());
    // SAFETY: kept, and not used.
    let ring = unsafe { SrqRing::new(memory(32), 1, 32) }.expect("sizes");
    let ledger = keep(SrqLedger::new(ring, keep_all(1, SrqSlot::default)).expect("one slot"));
    // SAFETY: the only queue on this ledger.
    assert!(unsafe { SharedRecvQueue::new(ledger, f.record) }.is_none());
    assert!(SrqLedger::new(ring, keep_all(2, SrqSlot::default)).is_none());
}

#[test]
fn a_receive_is_reported_once() {
    let mut f = fixture(4);
    assert_eq!(f.retire(0), None, "never posted");
    f.post(10).expect("room");
    f.post(11).expect("room");
    assert_eq!((f.retire(2), f.retire(3), f.retire(4)), (None, None, None));
    assert_eq!(f.retire(u16::MAX), None, "no such slot");
    assert_eq!((f.retire(1), f.retire(1)), (Some(11), None));
    assert_eq!((f.retire(0), f.retire(0)), (Some(10), None));
    // Entries that were never posted come first, then returned ones, the last returned first.
    for wr_id in 12..15 {
        f.post(wr_id).expect("room");
    }
    assert_eq!(f.post(15), Err(PostError::QueueFull));
    assert_eq!(f.walk(2, 3), [(2, 12), (3, 13), (0, 14)]);
}

#[test]
fn a_refused_receive_takes_no_entry() {
    let mut f = fixture(2);
    let sges = [Sge::default(); 2];
    let given = sges.len();
    // SAFETY: the post is refused.
    let result = unsafe { f.queue.post(1, &sges) };
    assert_eq!(result, Err(PostError::TooManySges { given, max: 1 }));
    f.queue.ring();
    assert_eq!(f.record.load(), 0);
    f.post(2).expect("room");
    assert_eq!((f.retire(0), f.retire(1)), (Some(2), None));
}

#[test]
fn a_list_is_posted_up_to_the_first_that_is_refused() {
    let mut f = fixture(8);
    let (good, bad) = ([Sge::default(); 1], [Sge::default(); 2]);
    let lists: [&[Sge]; 4] = [&good, &[], &bad, &good];
    let mut requests = (10..).zip(lists);
    // SAFETY: no device writes to this memory.
    let result = unsafe { f.queue.post_list(&mut requests) };
    let error = PostError::TooManySges { given: 2, max: 1 };
    assert_eq!(result, Err(BadRequest { index: 2, error }));
    assert_eq!(requests.next(), Some((13, &good[..])), "left alone");
    f.queue.ring();
    assert_eq!((f.record.load(), f.queue.free()), (2, 5));
    assert_eq!((f.retire(0), f.retire(1)), (Some(10), Some(11)));
    assert_eq!(f.queue.free(), 7);
    // SAFETY: no device writes to this memory.
    let result = unsafe { f.queue.post_list((0..9).map(|wr_id| (wr_id, &good[..]))) };
    let error = PostError::QueueFull;
    assert_eq!(result, Err(BadRequest { index: 7, error }));
    assert_eq!(f.queue.free(), 0);
}

#[test]
fn clearing_reports_what_was_not_reported() {
    let mut f = fixture(8);
    for wr_id in 0..5 {
        f.post(wr_id).expect("room");
    }
    f.queue.ring();
    f.post(5).expect("room");
    assert_eq!(f.retire(3), Some(3));
    let mut reported = Vec::new();
    // SAFETY: there is no device.
    unsafe {
        f.ledger.clear(|wr_id, block| {
            assert!(block.is_none());
            reported.push(wr_id);
        });
    }
    reported.sort_unstable();
    assert_eq!(reported, [0, 1, 2, 4, 5]);
    for slot in 0..8 {
        assert!(f.ledger.locate(slot).is_none());
    }
}

/// Compares with a map of the requests in flight, which the device finds along the links and
/// completes in any order.
#[test]
fn what_is_posted_comes_back_in_any_order() {
    let mut random = Random(6);
    for log in 1..5 {
        let count = 1 << log;
        let mut f = fixture(count);
        let mut flying = BTreeMap::new();
        let (mut next_id, mut at) = (0, 0);
        for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
            if random.below(2) == 0 {
                let full = flying.len() == count as usize - 1;
                let result = f.post(next_id);
                assert_eq!(result.is_err(), full);
                if !full {
                    let [(slot, wr_id)] = f.walk(at, 1)[..] else {
                        panic!("one was asked for")
                    };
                    assert_eq!(wr_id, next_id);
                    assert_eq!(flying.insert(slot, wr_id), None, "in flight");
                    at = f.ring.next(slot);
                    next_id += 1;
                    f.queue.ring();
                    assert_eq!(f.record.load(), next_id as u32 & 0xffff);
                }
            } else {
                let slot = random.below(count as usize + 2) as u16;
                assert_eq!(f.retire(slot), flying.remove(&u32::from(slot)));
            }
        }
    }
}
