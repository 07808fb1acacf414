//! The ledger: which requests are in flight, and which counters only look like one.

use super::{keep, keep_all, memory};
use crate::queue::ledger::{Ledger, LedgerSlot, Record};
use crate::random::Random;
use crate::slab::{Block, ClassLayout, Slab, SlabRegion};
use crate::wr::WcOpcode;
use std::collections::VecDeque;
use std::vec::Vec;

/// A ledger, and its poster.
struct Poster {
    ledger: &'static Ledger<'static>,
    head: u32,
    number: u32,
}

impl Poster {
    fn new(slots: usize) -> Self {
        let slots = keep_all(slots, LedgerSlot::default);
        let ledger = keep(Ledger::new(slots, 7).expect("a power of two"));
        // This count wraps in the test, too.
        let number = u32::MAX - 2;
        Self {
            ledger,
            head: 0,
            number,
        }
    }

    /// Posts a request of `slots` slots, and returns its counter.
    fn post(&mut self, slots: u8) -> u32 {
        self.post_with(slots, None)
    }

    fn post_with(&mut self, slots: u8, block: Option<Block<'static>>) -> u32 {
        let counter = self.head;
        // SAFETY: this is the only poster; the tests leave room.
        unsafe {
            let record = Record {
                wr_id: u64::from(counter) + 1000,
                block,
                end: counter.wrapping_add(u32::from(slots)),
                number: self.number,
                opcode: Some(WcOpcode::Send),
            };
            self.ledger
                .record(self.ledger.slot(counter), counter, record);
        }
        self.number = self.number.wrapping_add(1);
        self.head = counter.wrapping_add(u32::from(slots));
        self.ledger.publish(self.head);
        counter
    }

    fn locate(&self, counter: u16) -> Option<u32> {
        // SAFETY: this is the only poller.
        unsafe { self.ledger.locate(counter) }.map(|located| located.counter)
    }

    /// Retires the request in flight at `counter`; returns its `wr_id`, and how many were retired.
    fn retire(&self, counter: u32) -> (u64, u32) {
        assert_eq!(self.locate(counter as u16), Some(counter));
        // SAFETY: this is the only poller; the request was just located.
        let taken = unsafe {
            let located = self.ledger.locate(counter as u16).expect("in flight");
            let taken = self.ledger.take(located);
            drop(self.ledger.release::<true>(&taken));
            taken
        };
        (taken.wr_id, taken.retired)
    }

    /// Ends this life of the queue.
    fn clear(&mut self) -> Vec<u64> {
        let mut reported = Vec::new();
        // SAFETY: this is the only poster and the only poller.
        self.head = unsafe {
            self.ledger
                .clear(self.head, |request| reported.push(request.wr_id))
        };
        reported
    }
}

#[test]
fn nothing_is_in_flight_before_the_first_post() {
    let poster = Poster::new(8);
    for counter in (0..=u16::MAX).step_by(if cfg!(miri) { 499 } else { 1 }) {
        assert_eq!(poster.locate(counter), None);
    }
    // SAFETY: this is the only poller.
    assert!(unsafe { poster.ledger.next() }.is_none());
}

#[test]
fn an_entry_of_an_earlier_lap_is_stale() {
    let mut poster = Poster::new(8);
    for _ in 0..8 {
        let counter = poster.post(1);
        assert_eq!(poster.retire(counter), (u64::from(counter) + 1000, 1));
        assert_eq!(poster.locate(counter as u16), None, "reported twice");
    }
    assert_eq!(poster.post(1), 8);
    assert_eq!((poster.locate(0), poster.locate(8)), (None, Some(8)));
    assert_eq!(poster.locate(16), None, "a lap ahead");
}

#[test]
fn what_was_staged_and_not_published_is_not_in_flight() {
    let mut poster = Poster::new(8);
    poster.post(1);
    // SAFETY: this is the only poster.
    unsafe {
        let record = Record {
            wr_id: 1,
            block: None,
            end: 2,
            number: poster.number,
            opcode: Some(WcOpcode::Send),
        };
        poster.ledger.record(poster.ledger.slot(1), 1, record);
    }
    assert_eq!((poster.locate(0), poster.locate(1)), (Some(0), None));
    assert_eq!(poster.ledger.in_flight(), 1);
}

#[test]
fn the_middle_of_an_entry_of_several_blocks_is_no_request() {
    let mut poster = Poster::new(8);
    // On the first lap these slots were unused, on the second they held other requests.
    for lap in 0..3 {
        let counter = poster.post(4);
        for middle in 1..4 {
            assert_eq!(poster.locate((counter + middle) as u16), None, "lap {lap}");
        }
        poster.retire(counter);
        for _ in 0..4 {
            let counter = poster.post(1);
            poster.retire(counter);
        }
        // The next lap starts one slot further.
        let counter = poster.post(1);
        poster.retire(counter);
    }
}

#[test]
fn an_entry_of_an_earlier_life_is_stale() {
    let mut poster = Poster::new(8);
    for _ in 0..5 {
        poster.post(1);
    }
    poster.retire(0);
    assert_eq!(poster.clear(), [1001, 1002, 1003, 1004]);
    assert_eq!((poster.head, poster.ledger.in_flight()), (1 << 16, 0));
    for counter in 0..8 {
        assert_eq!(poster.locate(counter), None);
    }
    // The device starts from zero; the slots of a request of four slots still hold 1 to 3.
    assert_eq!(poster.post(4), 1 << 16);
    assert_eq!(poster.locate(0), Some(1 << 16));
    for counter in 1..8 {
        assert_eq!(poster.locate(counter), None);
    }
    assert_eq!(poster.retire(1 << 16), ((1 << 16) + 1000, 1));
    assert_eq!(poster.clear(), []);
    assert_eq!(poster.head, 2 << 16);
}

#[test]
fn a_completion_retires_the_unsignalled_ones_before_it() {
    let mut poster = Poster::new(16);
    let counters: Vec<u32> = [1, 2, 3, 1, 4].map(|slots| poster.post(slots)).into();
    assert_eq!(counters, [0, 1, 3, 6, 7]);
    assert_eq!(poster.ledger.in_flight(), 11);
    assert_eq!(poster.retire(3), (1003, 3));
    assert_eq!(poster.ledger.retired(), 6);
    assert_eq!((poster.locate(0), poster.locate(1)), (None, None));
    assert_eq!(poster.retire(7), (1007, 2));
    assert_eq!(
        (poster.ledger.in_flight(), poster.ledger.retired()),
        (0, 11)
    );
}

/// The blocks of retired requests go back to the slab, whether few requests have one or most, and
/// in every life of the queue: as many blocks are taken as are in flight.
#[test]
fn blocks_that_are_passed_over_come_back() {
    const LAYOUT: &[ClassLayout] = &[ClassLayout {
        size: 64,
        count: 40,
    }];
    let start = memory(8192);
    let region = SlabRegion {
        // SAFETY: the aligned page lies within the memory.
        start: unsafe { start.add(start.as_ptr().align_offset(4096)) },
        length: 4096,
        lkey: 1,
        rkey: 1,
    };
    let (metas, classes) = (
        keep_all(40, Default::default),
        keep_all(1, Default::default),
    );
    // SAFETY: kept, and used only by the slab.
    let slab = keep(unsafe { Slab::new(metas, classes, region, LAYOUT) }.expect("fits"));
    let mut random = Random(11);
    for one_in in [1, 2, 40] {
        let mut poster = Poster::new(32);
        // The flag says whether the request has a block.
        let mut flying: VecDeque<(u32, u8, bool)> = VecDeque::new();
        for _ in 0..if cfg!(miri) { 20 } else { 3000 } {
            let slots = 1 + random.below(4) as u8;
            let used: u8 = flying.iter().map(|(_, slots, _)| slots).sum();
            if used + slots <= 32 {
                let block = (random.below(one_in) == 0).then(|| slab.take(64).expect("enough"));
                let has = block.is_some();
                flying.push_back((poster.post_with(slots, block), slots, has));
            }
            if random.below(6) == 0 && !flying.is_empty() {
                let last = random.below(flying.len());
                let (_, count) = poster.retire(flying[last].0);
                assert_eq!(count as usize, last + 1);
                flying.drain(..=last);
            }
            if random.below(100) == 0 {
                assert_eq!(poster.clear().len(), flying.len());
                flying.clear();
            }
            let held = flying.iter().filter(|(.., has)| *has).count();
            assert_eq!(slab.outstanding(), held);
        }
        poster.clear();
    }
    assert_eq!(slab.outstanding(), 0);
}

/// Compares with a queue of the requests in flight, with counters that wrap at 16 and at 32 bits.
#[test]
fn exactly_what_is_in_flight_is_found() {
    let mut random = Random(5);
    for start in [0, 0xfff0, 0xffff_fff0] {
        let mut poster = Poster::new(32);
        // Moves both sides to `start`.
        poster.head = start;
        poster.ledger.publish(start);
        // SAFETY: this is the only poller, and nothing is in flight.
        unsafe { poster.ledger.retire(start) };
        assert_eq!(poster.ledger.in_flight(), 0);
        let mut flying: VecDeque<(u32, u8)> = VecDeque::new();
        let mut used = 0;
        for _ in 0..if cfg!(miri) { 6 } else { 3000 } {
            let slots = 1 + random.below(4) as u8;
            if random.below(2) == 0 && used + slots <= 32 {
                flying.push_back((poster.post(slots), slots));
                used += slots;
            }
            for counter in (0..80).map(|ahead| poster.head.wrapping_sub(40).wrapping_add(ahead)) {
                let live = flying.iter().any(|(at, _)| *at as u16 == counter as u16);
                assert_eq!(poster.locate(counter as u16).is_some(), live);
            }
            if random.below(3) == 0 && !flying.is_empty() {
                let last = random.below(flying.len());
                let (counter, _) = flying[last];
                let (wr_id, count) = poster.retire(counter);
                assert_eq!(
                    (wr_id, count as usize),
                    (u64::from(counter) + 1000, last + 1)
                );
                used -= flying.drain(..=last).map(|(_, slots)| slots).sum::<u8>();
            }
            assert_eq!(poster.ledger.in_flight(), u32::from(used));
            // SAFETY: this is the only poller.
            let next = unsafe { poster.ledger.next() }.map(|next| next.counter);
            assert_eq!(next, flying.front().map(|(counter, _)| *counter));
        }
    }
}

#[test]
fn a_ledger_has_a_power_of_two_of_slots() {
    let ledger = |count| Ledger::new(keep_all(count, LedgerSlot::default), 1);
    assert!(ledger(0).is_none() && ledger(3).is_none());
    // Miri takes long to make so many.
    assert!(cfg!(miri) || ledger(1 << 16).is_none());
    assert_eq!(ledger(1).expect("a power of two").capacity(), 1);
}
