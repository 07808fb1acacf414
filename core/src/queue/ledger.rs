//! What is in flight: one record per ring slot, written by the poster, taken by the poller.
//!
//! ```text
//!            retired                posted        head (the poster's own)
//!   free      │ in flight            │ staged      │ free
//!  ───────────┴──────────────────────┴─────────────┴──────
//! ```
//!
//! Counters run freely over 32 bits; the device sees their low 16. A record carries its whole
//! counter, so that one left from an earlier lap or an earlier life of the queue is told from a live
//! one. A queue that starts a new life moves on to the next multiple of 65536: the device starts
//! from zero again, and the upper half is the generation.

use super::completion::{Completion, Failure, Success, Unfinished};
use super::history::{Past, Standing};
use crate::slab::Block;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicU32, Ordering},
};
use crate::wr::WcOpcode;
use crossbeam_utils::CachePadded;

/// One request in flight. Created by [`Default`] in memory that the caller gives to [`Ledger::new`].
#[derive(Debug)]
#[repr(align(32))]
pub struct LedgerSlot<'m>(UnsafeCell<Record<'m>>);

/// What is known of a request in flight.
#[derive(Debug)]
pub(super) struct Record<'m> {
    /// The caller's.
    pub wr_id: u64,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
    /// The counter at which it was posted.
    pub counter: u32,
    /// How many slots the requests before it took beside the first one of each: what a completion passes
    /// over is counted by it, without looking at each.
    pub extra: u32,
    /// Ring slots that it takes: no entry has more than 16.
    pub slots: u8,
    /// What its completion is called.
    pub opcode: WcOpcode,
}

impl<'m> Record<'m> {
    /// What the request is told as.
    #[inline(always)]
    pub fn told(
        self,
        ledger: &Ledger<'m>,
        retired: u32,
        result: Result<Success, Failure>,
    ) -> Completion<'m> {
        Completion {
            wr_id: self.wr_id,
            qp_num: ledger.qp_num(),
            retired,
            result,
            block: self.block,
        }
    }
}

static_assertions::const_assert!(cfg!(loom) || size_of::<LedgerSlot<'static>>() == 32);

impl Default for LedgerSlot<'_> {
    fn default() -> Self {
        Self(UnsafeCell::new(Record {
            wr_id: 0,
            block: None,
            // No counter of a first lap falls on a slot with this value but the last one of all.
            counter: u32::MAX,
            extra: 0,
            slots: 0,
            opcode: WcOpcode::Nop,
        }))
    }
}

/// A request that the poller has found in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<'m> {
    pub counter: u32,
    pub retired: u32,
    slot: &'m UnsafeCell<Record<'m>>,
}

/// The records of one queue.
#[derive(Debug)]
pub struct Ledger<'m> {
    poster: CachePadded<Poster<'m>>,
    poller: CachePadded<Side<'m>>,
    qp_num: u32,
    capacity: u32,
}

#[derive(Debug)]
struct Poster<'m> {
    side: Side<'m>,
    /// Counter behind the first slot of the last request that has a block. What is passed over and lies
    /// behind it has nothing to give back, and is not looked at.
    behind_block: AtomicU32,
}

/// Slots that a ring has at the most.
const MAX_SLOTS: u32 = 1 << 15;

/// What one side writes, and what both read: each side has the latter beside its own counter.
#[derive(Debug)]
struct Side<'m> {
    /// The poster's: behind the last request that the device was told of. The poller's: the oldest
    /// request not yet told.
    counter: AtomicU32,
    mask: u32,
    slots: &'m [LedgerSlot<'m>],
}

impl<'m> Side<'m> {
    fn new(slots: &'m [LedgerSlot<'m>]) -> Self {
        Self {
            counter: AtomicU32::new(0),
            mask: slots.len() as u32 - 1,
            slots,
        }
    }

    #[inline(always)]
    fn slot(&self, counter: u32) -> &'m UnsafeCell<Record<'m>> {
        // SAFETY: `Ledger::new` took a power of two of slots, so that the mask keeps within them.
        unsafe { &self.slots.get_unchecked((counter & self.mask) as usize).0 }
    }
}

// SAFETY: a record is written by the poster alone while its counter is not below `posted`, and read
// by the poller alone once it is; the release store and acquire load of `posted` hand it over, those
// of `retired` hand it back. Who poster and poller are is the queues' contract: one of each.
unsafe impl Sync for Ledger<'_> {}
// SAFETY: blocks may be sent.
unsafe impl Send for Ledger<'_> {}

impl<'m> Ledger<'m> {
    /// A ledger over `slots`, one for each slot of the ring; `None` unless they are a power of two
    /// and at most 32768.
    pub fn new(slots: &'m mut [LedgerSlot<'m>], qp_num: u32) -> Option<Self> {
        let capacity = u32::try_from(slots.len()).ok()?;
        Self::with_capacity(slots, capacity, qp_num)
    }

    /// As [`new`](Self::new), for a ring of which no more than `capacity` slots are to be in flight:
    /// devices' own rings may be larger than what was asked for. `None` also when it is more than
    /// there are, or zero.
    pub fn with_capacity(
        slots: &'m mut [LedgerSlot<'m>],
        capacity: u32,
        qp_num: u32,
    ) -> Option<Self> {
        let fits = slots.len().is_power_of_two()
            && slots.len() <= MAX_SLOTS as usize
            && (1..=slots.len() as u32).contains(&capacity);
        let slots: &'m [LedgerSlot<'m>] = slots;
        fits.then(|| Self {
            poster: CachePadded::new(Poster {
                side: Side::new(slots),
                behind_block: AtomicU32::new(0),
            }),
            poller: CachePadded::new(Side::new(slots)),
            qp_num,
            capacity,
        })
    }

    /// Slots that can be in flight.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Ring slots: at least as many.
    #[inline(always)]
    pub fn slots(&self) -> u32 {
        self.poster.side.slots.len() as u32
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Records a staged request.
    ///
    /// # Safety
    /// The caller is the poster, and `record.counter` lies between its head and `retired` +
    /// capacity.
    #[inline(always)]
    pub(super) unsafe fn record(&self, record: Record<'m>) {
        if record.block.is_some() {
            // Relaxed: `publish` makes it known with the record.
            let behind = record.counter.wrapping_add(1);
            self.poster.behind_block.store(behind, Ordering::Relaxed);
        }
        self.poster.side.slot(record.counter).with_mut(|slot| {
            // SAFETY: the slot is the poster's by the caller's promise.
            let slot = unsafe { &mut *slot };
            // The old record has no block: the poller took it when it retired the slot.
            if record.block.is_some() {
                slot.block = record.block;
            }
            slot.wr_id = record.wr_id;
            slot.counter = record.counter;
            slot.extra = record.extra;
            slot.slots = record.slots;
            slot.opcode = record.opcode;
        });
    }

    /// Hands everything below `counter` to the poller.
    #[inline(always)]
    pub(super) fn publish(&self, counter: u32) {
        // Release: the poller's acquire in `locate` sees the records.
        self.poster.side.counter.store(counter, Ordering::Release);
    }

    /// Counter of the oldest request not yet told.
    #[inline(always)]
    pub(super) fn retired(&self) -> u32 {
        // Acquire: partner of the poller's release in `release`; its reads of the slots that are
        // written again come before.
        self.poller.counter.load(Ordering::Acquire)
    }

    /// Requests posted and not yet told, in slots.
    pub fn in_flight(&self) -> u32 {
        let retired = self.retired();
        // Acquire: not older than what `retired` was loaded from.
        self.poster
            .side
            .counter
            .load(Ordering::Acquire)
            .wrapping_sub(retired)
    }

    /// What begins at `counter`, and the oldest in flight.
    #[inline(always)]
    pub(super) fn at(&self, counter: u32, retired: u32) -> Located<'m> {
        Located {
            counter,
            retired,
            slot: self.poller.slot(counter),
        }
    }

    /// The request in flight whose counter has these low 16 bits. `None`: there is no such request, the
    /// entry is stale or the device wrong.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn locate(&self, counter: u16) -> Option<Located<'m>> {
        // Relaxed: only the poller writes it.
        let retired = self.poller.counter.load(Ordering::Relaxed);
        // Acquire: partner of the poster's release in `publish`.
        let posted = self.poster.side.counter.load(Ordering::Acquire);
        let ahead = u32::from(counter.wrapping_sub(retired as u16));
        let located = self.at(retired.wrapping_add(ahead), retired);
        let live = ahead < posted.wrapping_sub(retired)
            && located
                .slot
                // SAFETY: below `posted`, so the poster does not write it until it is released.
                .with(|slot| unsafe { (*slot).counter == located.counter });
        live.then_some(located)
    }

    /// The oldest request in flight, if it was posted at `counter`.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn oldest_is(&self, counter: u32) -> Option<Located<'m>> {
        // SAFETY: the caller's promise.
        let oldest = unsafe { self.next()? };
        // The same, so that nothing is passed over.
        (oldest.counter == counter).then(|| self.at(counter, counter))
    }

    /// The oldest request in flight.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn next(&self) -> Option<Located<'m>> {
        // Relaxed: only the poller writes it.
        let retired = self.poller.counter.load(Ordering::Relaxed);
        // Acquire: partner of the poster's release in `publish`.
        let posted = self.poster.side.counter.load(Ordering::Acquire);
        (posted != retired).then(|| self.at(retired, retired))
    }

    /// The oldest request in flight, if its counter has these low 16 bits.
    ///
    /// # Safety
    /// The caller is the poller.
    #[inline(always)]
    pub(super) unsafe fn oldest_called(&self, counter: u16) -> Option<Located<'m>> {
        // SAFETY: the caller's promise.
        let oldest = unsafe { self.next()? };
        (oldest.counter as u16 == counter).then_some(oldest)
    }

    /// Takes one request, the oldest, or one whose elders are taken care of. Its slots stay the poller's
    /// until [`release`](Self::release).
    ///
    /// # Safety
    /// The caller is the poller, and has taken nothing since it located the request.
    #[inline(always)]
    pub(super) unsafe fn take_one(&self, oldest: Located<'m>) -> Record<'m> {
        oldest.slot.with_mut(|slot| {
            // SAFETY: in flight, so the poster does not write it. The block is taken out once: `retired`
            // moves past it.
            let slot = unsafe { &mut *slot };
            // Field by field, so that the compiler knows what an opcode can be.
            Record {
                wr_id: slot.wr_id,
                block: slot.block.take(),
                counter: oldest.counter,
                extra: slot.extra,
                slots: slot.slots,
                opcode: slot.opcode,
            }
        })
    }

    /// What is known of the oldest request in flight, which stays there.
    ///
    /// # Safety
    /// The caller is the poller, and releases nothing while it looks.
    #[inline(always)]
    pub(super) unsafe fn oldest(&self) -> Option<&Record<'m>> {
        // SAFETY: the caller's promise.
        let oldest = unsafe { self.next()? };
        // SAFETY: in flight, so the poster does not write it until it is released.
        (self.poller.slot(oldest.counter)).with(|slot| Some(unsafe { &*slot }))
    }

    /// Takes a located request, and passes over all before it, whose buffers go back to their slabs;
    /// gives how many they are in all. Their slots stay the poller's until
    /// [`release`](Self::release).
    ///
    /// # Safety
    /// The caller is the poller, and has taken nothing since it located the request.
    #[inline(always)]
    pub(super) unsafe fn take(&self, located: Located<'m>) -> (Record<'m>, u32) {
        let Located {
            counter, retired, ..
        } = located;
        // SAFETY: the caller's promise; what is older is taken care of below.
        let record = unsafe { self.take_one(located) };
        let mut count = 1;
        if counter != retired {
            let slot = self.poller.slot(retired);
            // SAFETY: the oldest in flight is a record's first slot, and the poster does not write it.
            let extra = slot.with(|slot| unsafe { record.extra.wrapping_sub((*slot).extra) });
            count += counter.wrapping_sub(retired).wrapping_sub(extra);
            // Relaxed: the acquire by which the request was located has made it known.
            let behind_block = self.poster.behind_block.load(Ordering::Relaxed);
            if behind_block.wrapping_sub(retired).wrapping_sub(1) < MAX_SLOTS {
                // SAFETY: all these are in flight, as the one behind them is.
                unsafe { self.give_back(retired, counter) };
            }
        }
        (record, count)
    }

    /// Gives the slots of a taken request, and of all before it, back to the poster.
    ///
    /// # Safety
    /// The caller is the poller, and `record` is what it took last.
    #[inline(always)]
    pub(super) unsafe fn release(&self, record: &Record<'m>) {
        let end = record.counter.wrapping_add(u32::from(record.slots));
        // Release: partner of the poster's acquire in `retired`.
        self.poller.counter.store(end, Ordering::Release);
    }

    /// Gives the blocks of the unsignalled requests from `from` up to `to` back to their slabs.
    ///
    /// # Safety
    /// The caller is the poller, and all of them are in flight.
    #[inline(never)]
    unsafe fn give_back(&self, mut from: u32, to: u32) {
        // Slots of a record are at least one, and at most what the poster staged.
        while to.wrapping_sub(from) as i32 > 0 {
            let slots = self.poller.slot(from).with_mut(|slot| {
                // SAFETY: the caller's promise; the block is dropped once, and None left behind.
                unsafe {
                    drop((*slot).block.take());
                    (*slot).slots
                }
            });
            from = from.wrapping_add(u32::from(slots.max(1)));
        }
    }

    /// Behind the last request that the device was told of.
    pub(super) fn posted(&self) -> u32 {
        // Acquire: partner of the poster's release in `publish`.
        self.poster.side.counter.load(Ordering::Acquire)
    }

    /// What was recorded at this counter, if nothing was recorded over it.
    ///
    /// # Safety
    /// The caller is poster and poller at once.
    pub(super) unsafe fn past(&self, counter: u32, standing: Standing) -> Option<Past> {
        self.poller.slot(counter).with(|slot| {
            // SAFETY: the caller's promise.
            let record = unsafe { &*slot };
            // A slot in which nothing was ever recorded counts none.
            (record.counter == counter && record.slots != 0).then_some(Past {
                wr_id: record.wr_id,
                counter,
                slots: record.slots.into(),
                opcode: record.opcode,
                standing,
            })
        })
    }

    /// Ends this life of the queue: hands every request not yet told to `each`, oldest first, and
    /// gives the counter at which the next life starts.
    ///
    /// # Safety
    /// The caller is poster and poller at once, and the device has stopped.
    pub(super) unsafe fn clear(&self, head: u32, mut each: impl FnMut(Unfinished<'m>)) -> u32 {
        let mut at = self.poller.counter.load(Ordering::Relaxed);
        while at != head {
            // SAFETY: the caller's promise; each record is read once, and its block taken.
            let (wr_id, block, slots) = self
                .poller
                .slot(at)
                .with_mut(|slot| unsafe { ((*slot).wr_id, (*slot).block.take(), (*slot).slots) });
            each(Unfinished {
                wr_id,
                counter: at,
                block,
            });
            at = at.wrapping_add(u32::from(slots.max(1)));
        }
        let next = (head | 0xffff).wrapping_add(1);
        // Relaxed would do: nobody else is there.
        self.poller.counter.store(next, Ordering::Release);
        self.poster.side.counter.store(next, Ordering::Release);
        next
    }
}
