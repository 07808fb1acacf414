//! The requests in flight: one record per ring slot, written by the poster, taken by the poller.
//!
//! ```text
//!            retired                posted        head (the poster's own)
//!   free      │ in flight            │ staged      │ free
//!  ───────────┴──────────────────────┴─────────────┴──────
//! ```
//!
//! Counters are free-running, 32 bits wide; the device sees their low 16. A record carries the full
//! counter behind its request, which distinguishes it from one left over from an earlier lap or an
//! earlier life of the queue: that one ends where this one begins, or before. A queue that starts a new
//! life moves on to the next multiple of 65536: the device starts from zero again, and the upper half is
//! the generation.
//!
//! The unsignalled requests that a completion retires are counted from the numbers in two records.
//! The records between the two are visited only where one of them may hold a block.

mod flight;
mod record;

pub use record::LedgerSlot;
pub(super) use {
    flight::{Flight, Located, Taken},
    record::{MOST_SLOTS, Place, Record, Records},
};

use super::completion::Unfinished;
use super::history::{Past, Standing};
use super::tally::Tally;
use crate::slab::Block;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicU32, Ordering},
};
use crossbeam_utils::CachePadded;
use record::{MAX_SLOTS, Slots};

/// The records of one queue.
#[derive(Debug)]
pub struct Ledger<'m> {
    poster: CachePadded<Poster<'m>>,
    poller: CachePadded<Poller<'m>>,
}

#[derive(Debug)]
struct Poster<'m> {
    side: Side<'m>,
    /// Counter of the last request that has a block, plus one. Retired requests behind it have no
    /// block to return and are not looked at.
    behind_block: AtomicU32,
    capacity: u32,
    /// Only the poster uses it.
    counting: UnsafeCell<Counting<'m>>,
}

/// Where the poster counts requests, and the counter behind the last that it counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counting<'m> {
    pub tally: Option<&'m Tally>,
    pub counted: u32,
}

#[derive(Debug)]
struct Poller<'m> {
    side: Side<'m>,
    /// Goes into each completion. Changes only in [`record_one`](Ledger::record_one). No atomic:
    /// the compiler loads it where that costs nothing.
    qp_num: UnsafeCell<u32>,
}

/// One side's own counter, with a copy of what both sides read.
#[derive(Debug)]
struct Side<'m> {
    /// On the poster's side: behind the last request that was rung. On the poller's side: the
    /// oldest request not yet reported.
    counter: AtomicU32,
    slots: Slots<'m>,
}

impl<'m> Side<'m> {
    fn new(slots: Slots<'m>) -> Self {
        Self {
            counter: AtomicU32::new(0),
            slots,
        }
    }

    #[inline(always)]
    fn slot(&self, counter: u32) -> &'m UnsafeCell<Record<'m>> {
        self.slots.at(counter)
    }
}

// SAFETY: the poster alone writes a record while its counter is not below `posted`; the poller
// alone reads it after that. The release store and acquire load of `posted` hand the record over,
// those of `retired` hand it back. The contract of the queues guarantees one poster and one poller.
unsafe impl Sync for Ledger<'_> {}
// SAFETY: blocks are `Send`.
unsafe impl Send for Ledger<'_> {}

impl<'m> Ledger<'m> {
    /// Creates a ledger over `slots`, one for each slot of the ring. `None` unless their number is
    /// a power of two and at most 32768.
    pub fn new(slots: &'m mut [LedgerSlot<'m>], qp_num: u32) -> Option<Self> {
        let capacity = u32::try_from(slots.len()).ok()?;
        Self::with_capacity(slots, capacity, qp_num)
    }

    /// Creates a ledger like [`new`](Self::new) for a ring of which at most `capacity` slots may be
    /// in flight: a device's ring may be larger than requested. `None` also when `capacity` is zero
    /// or larger than the number of slots.
    pub fn with_capacity(
        slots: &'m mut [LedgerSlot<'m>],
        capacity: u32,
        qp_num: u32,
    ) -> Option<Self> {
        let slots = Slots::new(slots)?;
        let fits = (1..=slots.count()).contains(&capacity);
        fits.then(|| Self {
            poster: CachePadded::new(Poster {
                side: Side::new(slots),
                behind_block: AtomicU32::new(0),
                capacity,
                counting: UnsafeCell::new(Counting::default()),
            }),
            poller: CachePadded::new(Poller {
                side: Side::new(slots),
                qp_num: UnsafeCell::new(qp_num),
            }),
        })
    }

    /// Most slots that can be in flight.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.poster.capacity
    }

    /// Ring slots: at least `capacity`.
    #[inline(always)]
    pub fn slots(&self) -> u32 {
        self.poster.side.slots.count()
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        // SAFETY: where it changes, nobody else uses the ledger.
        self.poller.qp_num.with(|qp_num| unsafe { *qp_num })
    }

    /// The records.
    pub(super) fn records(&self) -> Records<'m> {
        self.poster.side.slots.records()
    }

    /// Where a request at `counter` is recorded.
    #[inline(always)]
    pub(super) fn slot(&self, counter: u32) -> Place<'m> {
        Place(self.poster.side.slot(counter))
    }

    /// How the poster counts requests.
    ///
    /// # Safety
    /// The caller is the poster.
    pub(super) unsafe fn counting(&self) -> Counting<'m> {
        // SAFETY: the caller is the poster, and nobody else uses it.
        self.poster.counting.with(|counting| unsafe { *counting })
    }

    /// Changes how the poster counts requests.
    ///
    /// # Safety
    /// The caller is the poster.
    pub(super) unsafe fn set_counting(&self, to: Counting<'m>) {
        // SAFETY: the caller is the poster, and nobody else uses it.
        (self.poster.counting).with_mut(|counting| unsafe { *counting = to });
    }

    /// Records a request that is staged at `counter`, at its place.
    ///
    /// # Safety
    /// The caller is the poster. `counter` is its head, and `record.end`, which is behind it, is at
    /// most `retired` + capacity.
    #[inline(always)]
    pub(super) unsafe fn record(&self, place: Place<'m>, counter: u32, record: Record<'m>) {
        if record.block.is_some() {
            // Relaxed: the Release in `publish` makes it visible together with the record.
            let behind = counter.wrapping_add(1);
            self.poster.behind_block.store(behind, Ordering::Relaxed);
        }
        place.0.with_mut(
            // Inlined: as a function of its own, which it was in the C library, it took 36 more
            // instructions.
            #[inline(always)]
            |slot| {
                // SAFETY: the caller guarantees that it is the poster and that the slot is free.
                let slot = unsafe { &mut *slot };
                // The old record has no block: the poller took it when it retired the slot.
                if record.block.is_some() {
                    slot.block = record.block;
                }
                slot.wr_id = record.wr_id;
                slot.end = record.end;
                slot.number = record.number;
                slot.opcode = record.opcode;
            },
        );
    }

    /// Records a receive of this queue pair, and hands it to the poller: the only one in flight.
    ///
    /// # Safety
    /// The caller is both poster and poller, nobody else uses the ledger, and nothing is in flight.
    pub(super) unsafe fn record_one(&self, qp_num: u32, wr_id: u64, block: Option<Block<'m>>) {
        // Relaxed: the caller alone writes it.
        let counter = self.poller.side.counter.load(Ordering::Relaxed);
        // SAFETY: the caller guarantees that nobody else uses the ledger.
        self.poller.qp_num.with_mut(|at| unsafe { *at = qp_num });
        let end = counter.wrapping_add(1);
        let record = Record::of_receive(wr_id, block, end);
        // SAFETY: the caller is the poster, and nothing is in flight.
        unsafe { self.record(self.slot(counter), counter, record) };
        self.publish(end);
    }

    /// Hands every request below `counter` to the poller.
    #[inline(always)]
    pub(super) fn publish(&self, counter: u32) {
        // Release: pairs with the Acquire in `locate`, so that the poller sees the records.
        self.poster.side.counter.store(counter, Ordering::Release);
    }

    /// Counter of the oldest request not yet reported.
    #[inline(always)]
    pub(super) fn retired(&self) -> u32 {
        // Acquire: pairs with the Release in `release`, so that the poller's reads of the slots
        // come before the poster overwrites them.
        self.poller.side.counter.load(Ordering::Acquire)
    }

    /// Slots of the requests posted and not yet reported.
    pub fn in_flight(&self) -> u32 {
        let retired = self.retired();
        // Acquire: so that the value is not older than the load of `retired`.
        self.poster
            .side
            .counter
            .load(Ordering::Acquire)
            .wrapping_sub(retired)
    }

    /// The requests in flight, as they are now: the poster may add more behind them.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn flight(&self) -> Flight<'m> {
        Flight {
            // Relaxed: only the poller writes it.
            retired: self.poller.side.counter.load(Ordering::Relaxed),
            // Acquire: pairs with the Release in `publish`.
            posted: self.poster.side.counter.load(Ordering::Acquire),
            slots: self.poller.side.slots,
        }
    }

    /// The request in flight whose counter has these low 16 bits. `None`: there is none; the CQE is
    /// stale or the device faulty.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn locate(&self, counter: u16) -> Option<Located<'m>> {
        // SAFETY: the caller guarantees that it is the poller.
        unsafe { self.flight().locate(counter) }
    }

    /// The oldest request in flight, if it was posted at `counter`.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn oldest_is(&self, counter: u32) -> Option<Located<'m>> {
        // SAFETY: the caller guarantees that it is the poller.
        unsafe { self.next() }.filter(|oldest| oldest.counter == counter)
    }

    /// The oldest request in flight.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn next(&self) -> Option<Located<'m>> {
        // SAFETY: the caller guarantees that it is the poller.
        unsafe { self.flight().next() }
    }

    /// The record of a located request, which stays in flight.
    ///
    /// # Safety
    /// The caller is the poller, and releases nothing while the record is borrowed.
    #[inline(always)]
    pub(super) unsafe fn recorded(&self, located: Located<'m>) -> &Record<'m> {
        // SAFETY: in flight, so the poster does not write it until it is released.
        located.slot.with(|slot| unsafe { &*slot })
    }

    /// Takes a located request and retires all requests before it, whose buffers go back to their
    /// slabs. Their slots, and its own buffer, stay with the poller until
    /// [`release`](Self::release).
    ///
    /// # Safety
    /// The caller is the poller, and has taken nothing since it located the request.
    #[inline(always)]
    pub(super) unsafe fn take(&self, located: Located<'m>) -> Taken<'m> {
        let Located {
            counter,
            retired,
            slot,
        } = located;
        let (wr_id, end, number, opcode) = slot.with(|slot| {
            // SAFETY: in flight, so the poster does not write the slot.
            let record = unsafe { &*slot };
            // SAFETY: it was located, so it is recorded.
            let opcode = unsafe { record.opcode.unwrap_unchecked() };
            (record.wr_id, record.end, record.number, opcode)
        });
        let mut count = 1;
        if counter != retired {
            let oldest = self.poller.side.slot(retired);
            // SAFETY: the slot is the first one of the oldest request in flight, so the poster does
            // not write it.
            count += oldest.with(|slot| unsafe { number.wrapping_sub((*slot).number) });
            // Relaxed: the Acquire that located the request has made it visible.
            let behind_block = self.poster.behind_block.load(Ordering::Relaxed);
            if behind_block.wrapping_sub(retired).wrapping_sub(1) < MAX_SLOTS {
                // SAFETY: all of these are in flight, since the located request behind them is.
                unsafe { self.give_back(retired, counter) };
            }
        }
        Taken {
            wr_id,
            counter,
            opcode,
            retired: count,
            end,
            slot,
        }
    }

    /// Counters of the requests in flight before a located one, oldest first.
    ///
    /// # Safety
    /// The caller is the poller, and takes nothing meanwhile.
    pub(super) unsafe fn before(&self, located: Located<'m>) -> impl Iterator<Item = u32> {
        let mut at = located.retired;
        core::iter::from_fn(move || {
            let counter = at;
            // SAFETY: in flight, since the located request behind it is.
            let slots =
                (self.poller.side.slot(counter)).with(|slot| unsafe { (*slot).slots_at(counter) });
            let is_before = located.counter.wrapping_sub(counter) as i32 > 0;
            at = counter.wrapping_add(slots.unwrap_or(1));
            is_before.then_some(counter)
        })
    }

    /// Returns the slots of a taken request, and of all before it, to the poster; and its buffer to
    /// the caller. `ALONE`: no others follow at once. Then asking whether there is a buffer would take
    /// more instructions than writing that there is none.
    ///
    /// # Safety
    /// The caller is the poller, and this request is the last one that it took.
    #[inline(always)]
    pub(super) unsafe fn release<const ALONE: bool>(&self, taken: &Taken<'m>) -> Option<Block<'m>> {
        let block = taken.slot.with_mut(
            #[inline(always)]
            |slot| {
                // SAFETY: in flight, so the poster does not write the slot. The block is taken once,
                // because `retired` moves past it.
                let slot = unsafe { &mut *slot };
                match slot.block {
                    None if !ALONE => None,
                    _ => slot.block.take(),
                }
            },
        );
        // SAFETY: the caller guarantees that it is the poller, and the buffer is taken.
        unsafe { self.retire(taken.end) };
        block
    }

    /// Returns the slots below `end` to the poster.
    ///
    /// # Safety
    /// The caller is the poller. `end` is the counter behind a request in flight; neither it nor those
    /// before it have a buffer.
    #[inline(always)]
    pub(super) unsafe fn retire(&self, end: u32) {
        // Release: pairs with the Acquire in `retired`.
        self.poller.side.counter.store(end, Ordering::Release);
    }

    /// Returns the blocks of the unsignalled requests from `from` up to `to` to their slabs.
    ///
    /// # Safety
    /// The caller is the poller, and all of these requests are in flight.
    #[inline(never)]
    unsafe fn give_back(&self, mut from: u32, to: u32) {
        // A record has at least one slot, and at most as many as the poster staged.
        while to.wrapping_sub(from) as i32 > 0 {
            let slots = self.poller.side.slot(from).with_mut(|slot| {
                // SAFETY: the caller is the poller and the request is in flight; the block is
                // dropped once and `None` stored in its place.
                unsafe {
                    drop((*slot).block.take());
                    (*slot).slots_at(from)
                }
            });
            from = from.wrapping_add(slots.unwrap_or(1));
        }
    }

    /// Counter behind the last request that was rung.
    pub(super) fn posted(&self) -> u32 {
        // Acquire: pairs with the Release in `publish`.
        self.poster.side.counter.load(Ordering::Acquire)
    }

    /// The request recorded at this counter, unless another was recorded over it.
    ///
    /// # Safety
    /// The caller is both poster and poller.
    pub(super) unsafe fn past(&self, counter: u32, standing: Standing) -> Option<Past> {
        self.poller.side.slot(counter).with(|slot| {
            // SAFETY: the caller is both poster and poller, so nobody writes the slot.
            let record = unsafe { &*slot };
            Some(Past {
                wr_id: record.wr_id,
                counter,
                slots: record.slots_at(counter)? as u16,
                opcode: record.opcode?,
                standing,
            })
        })
    }

    /// Ends this life of the queue: passes every request not yet reported to `each`, oldest first,
    /// and returns the counter at which the next life starts. If `each` panics, the requests that
    /// it was not passed are in flight, those only staged included.
    ///
    /// # Safety
    /// The caller is both poster and poller, and the device has stopped.
    pub(super) unsafe fn clear(&self, head: u32, mut each: impl FnMut(Unfinished<'m>)) -> u32 {
        let mut at = self.poller.side.counter.load(Ordering::Relaxed);
        // Relaxed would suffice here and below: no other thread uses the ledger.
        self.poster.side.counter.store(head, Ordering::Release);
        while at != head {
            // SAFETY: the caller is both poster and poller; each record is read once and its block
            // taken.
            let (wr_id, block, slots) = self.poller.side.slot(at).with_mut(|slot| unsafe {
                ((*slot).wr_id, (*slot).block.take(), (*slot).slots_at(at))
            });
            let counter = at;
            at = at.wrapping_add(slots.unwrap_or(1));
            // Before the call, which may panic: the request must be reported only once.
            self.poller.side.counter.store(at, Ordering::Release);
            each(Unfinished {
                wr_id,
                counter,
                block,
            });
        }
        let next = (head | 0xffff).wrapping_add(1);
        self.poller.side.counter.store(next, Ordering::Release);
        self.poster.side.counter.store(next, Ordering::Release);
        next
    }
}
