//! A shared receive queue: one owner posts to it, many queue pairs consume from it, and their
//! completion queues report its completions.
//!
//! Entries are linked by index. The device consumes along the links, and entries complete in any
//! order. Any poller pushes the slot of a completed receive onto a stack; the poster takes the
//! whole stack and links its slots behind the tail:
//!
//! ```text
//! head ─► free ─► free ─► tail      (the poster's; the tail is never posted)
//! returned ─► slot ─► slot          (pushed by pollers, taken whole by the poster)
//! ```

use super::error::{BadRequest, Rejected};
use crate::port::DoorbellRecord;
use crate::slab::Block;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicU32, Ordering},
};
use crate::wqe::PostError;
use crate::wqe::SrqRing;
use crate::wr::Sge;
use crossbeam_utils::CachePadded;

const NONE: u32 = u32::MAX;
const FREE: u32 = 0;
const POSTED: u32 = 1;

/// One slot of the ledger. Created by [`Default`] in memory that the caller provides.
#[derive(Debug)]
pub struct SrqSlot<'m> {
    state: AtomicU32,
    /// The next slot down in the stack of returned slots.
    below: AtomicU32,
    record: UnsafeCell<(u64, Option<Block<'m>>)>,
}

impl Default for SrqSlot<'_> {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            below: AtomicU32::new(NONE),
            record: UnsafeCell::new((0, None)),
        }
    }
}

/// The requests in flight on a shared receive queue.
#[derive(Debug)]
pub struct SrqLedger<'m> {
    ring: SrqRing<'m>,
    slots: &'m [SrqSlot<'m>],
    returned: CachePadded<AtomicU32>,
}

// SAFETY: a slot's record belongs to the poster while FREE, and to the one poller that changed it
// from POSTED to FREE; both changes hand it over with Release and Acquire.
unsafe impl Sync for SrqLedger<'_> {}
// SAFETY: blocks are `Send`.
unsafe impl Send for SrqLedger<'_> {}

impl<'m> SrqLedger<'m> {
    /// Creates a ledger over `slots`, one for each entry of `ring`. `None` when their numbers
    /// differ.
    pub fn new(ring: SrqRing<'m>, slots: &'m mut [SrqSlot<'m>]) -> Option<Self> {
        (slots.len() == ring.count() as usize).then_some(Self {
            ring,
            slots,
            returned: CachePadded::new(AtomicU32::new(NONE)),
        })
    }

    pub(super) fn ring(&self) -> &SrqRing<'m> {
        &self.ring
    }

    /// Takes back the request in an entry that the device consumed and will not complete: its
    /// identifier and its buffer. `None`: nothing is posted there. Any thread may call this.
    ///
    /// # Safety
    /// The device no longer writes to the request's memory.
    pub unsafe fn take_back(&self, slot: u16) -> Option<(u64, Option<Block<'m>>)> {
        self.locate(slot).map(Consumed::release)
    }

    /// Ends the queue: passes every request not yet reported to `each` with its buffer, rung or
    /// not, in no particular order. CQEs of these requests that are still in completion queues are
    /// dropped as stale.
    ///
    /// # Panics
    /// When `each` panics: call this again for the remaining requests.
    ///
    /// # Safety
    /// The device has stopped consuming from the queue, and writing to the memory of what it
    /// consumed.
    pub unsafe fn clear(&self, mut each: impl FnMut(u64, Option<Block<'m>>)) {
        for slot in 0..self.slots.len() {
            // SAFETY: the caller guarantees that the device has stopped.
            if let Some((wr_id, block)) = unsafe { self.take_back(slot as u16) } {
                each(wr_id, block);
            }
        }
    }

    /// The posted request in `slot`, which no other poller can complete from here on. `None`:
    /// nothing is posted there; the CQE is stale or the device faulty. Any poller may call this.
    #[inline(always)]
    pub(super) fn locate<'l>(&'l self, slot: u16) -> Option<Consumed<'l, 'm>> {
        let entry = self.slots.get(usize::from(slot))?;
        // AcqRel: acquires the record from the poster's Release in `take`; of two pollers only one
        // sees POSTED.
        let posted = entry.state.swap(FREE, Ordering::AcqRel) == POSTED;
        posted.then_some(Consumed {
            ledger: self,
            entry,
            index: slot.into(),
        })
    }
}

/// A request that a poller has located, whose slot it has not returned to the poster yet.
#[derive(Debug)]
pub(super) struct Consumed<'l, 'm> {
    ledger: &'l SrqLedger<'m>,
    entry: &'l SrqSlot<'m>,
    index: u32,
}

impl<'m> Consumed<'_, 'm> {
    /// Its slot, which is the index of its entry.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Takes the request, its identifier and its buffer, and returns the slot to the poster.
    #[inline(always)]
    pub fn release(self) -> (u64, Option<Block<'m>>) {
        let (wr_id, block) = self
            .entry
            .record
            // SAFETY: the poller that located the request changed the state, so the record belongs
            // to it until the slot is returned below; the block moves out.
            .with_mut(|record| unsafe { ((*record).0, (*record).1.take()) });
        let returned = &self.ledger.returned;
        // Relaxed: only a guess for the exchange below.
        let mut top = returned.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange below.
            self.entry.below.store(top, Ordering::Relaxed);
            // Release: pairs with the Acquire in `collect`. Slots are only pushed here and taken
            // all at once, so the same top means the same stack.
            match returned.compare_exchange_weak(
                top,
                self.index,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return (wr_id, block),
                Err(now) => top = now,
            }
        }
    }
}

/// The posting side of a shared receive queue.
#[derive(Debug)]
pub struct SharedRecvQueue<'m> {
    ledger: &'m SrqLedger<'m>,
    record: &'m DoorbellRecord,
    head: u32,
    tail: u32,
    posted: u32,
    rung: u32,
    /// `head` reaches the tail when `posted` reaches this.
    limit: u32,
}

impl<'m> SharedRecvQueue<'m> {
    /// Creates a queue with all its entries free; one of them is never posted. `None` when there
    /// are fewer than two.
    ///
    /// # Safety
    /// This is the only queue on the ledger's ring, and the only poster of the ledger and the
    /// doorbell record. The device reads only posted entries, and writes one CQE for each.
    pub unsafe fn new(ledger: &'m SrqLedger<'m>, record: &'m DoorbellRecord) -> Option<Self> {
        let count = ledger.ring.count();
        for index in 0..count {
            // SAFETY: the caller guarantees that this is the only poster; nothing is posted yet.
            unsafe { ledger.ring.link(index, (index + 1) & (count - 1)) };
        }
        (count >= 2).then_some(Self {
            ledger,
            record,
            head: 0,
            tail: count - 1,
            posted: 0,
            rung: 0,
            limit: count - 1,
        })
    }

    /// Most requests that can be posted at a time.
    pub fn capacity(&self) -> u32 {
        self.ledger.ring.count() - 1
    }

    /// Most scatter/gather elements in one request.
    pub fn max_sge(&self) -> u32 {
        self.ledger.ring.max_sge()
    }

    /// Requests that can be staged before one has to complete.
    pub fn free(&mut self) -> u32 {
        // It is no error here if no slot was returned.
        let _ = self.collect();
        self.limit.wrapping_sub(self.posted)
    }

    /// Stages a receive into a whole block, which the completion returns.
    ///
    /// # Errors
    /// [`Rejected`], which returns the block.
    #[inline(always)]
    pub fn post_block(&mut self, wr_id: u64, block: Block<'m>) -> Result<(), Rejected<Block<'m>>> {
        let sge = Sge {
            addr: block.addr(),
            length: block.capacity(),
            lkey: block.lkey(),
        };
        // SAFETY: the ledger holds the block while the device may write to it.
        match unsafe { self.write(&[sge]) } {
            Ok(()) => {
                self.take(wr_id, Some(block));
                Ok(())
            }
            Err(error) => Err(Rejected { error, block }),
        }
    }

    /// Stages a receive. The memory is the caller's responsibility;
    /// [`post_block`](Self::post_block) is the safe variant.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged then.
    ///
    /// # Safety
    /// The requirements of [`RecvQueue::post`](super::RecvQueue::post).
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller guarantees that the memory stays valid until the request is reported.
        unsafe { self.write(sges)? };
        self.take(wr_id, None);
        Ok(())
    }

    /// Stages a list of receives, up to the first one that is refused. Those behind it are left in
    /// the iterator.
    ///
    /// # Errors
    /// [`BadRequest`] says which request was refused and why; those before it are staged.
    ///
    /// # Safety
    /// The requirements of [`post`](Self::post) hold for each request.
    #[inline]
    pub unsafe fn post_list<'s>(
        &mut self,
        requests: impl IntoIterator<Item = (u64, &'s [Sge])>,
    ) -> Result<(), BadRequest> {
        for (index, (wr_id, sges)) in requests.into_iter().enumerate() {
            // SAFETY: the caller guarantees that the memory of each request stays valid until it is
            // reported.
            unsafe { self.post(wr_id, sges) }.map_err(|error| BadRequest { index, error })?;
        }
        Ok(())
    }

    /// # Safety
    /// The requirements of [`Self::post`].
    #[inline(always)]
    unsafe fn write(&mut self, sges: &[Sge]) -> Result<(), PostError> {
        if self.head == self.tail {
            self.collect()?;
        }
        // SAFETY: the head is free, and `&mut self` makes this the only poster.
        unsafe { self.ledger.ring.write(self.head, sges) }
    }

    /// Links the slots that pollers returned behind the tail.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) -> Result<(), PostError> {
        // Acquire: pairs with the Release in `retire`.
        let mut index = self.ledger.returned.swap(NONE, Ordering::Acquire);
        if index == NONE {
            return Err(PostError::QueueFull);
        }
        while index != NONE {
            // SAFETY: only poster; the device does not pass the tail before it is linked and
            // posted.
            unsafe { self.ledger.ring.link(self.tail, index) };
            self.tail = index;
            self.limit = self.limit.wrapping_add(1);
            // Relaxed: ordered by the swap above.
            index = self.ledger.slots[index as usize]
                .below
                .load(Ordering::Relaxed);
        }
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, wr_id: u64, block: Option<Block<'m>>) {
        let slot = &self.ledger.slots[self.head as usize];
        // SAFETY: the record of a free slot belongs to the poster; its block was taken when it was
        // retired.
        slot.record
            .with_mut(|record| unsafe { record.write((wr_id, block)) });
        // Release: pairs with the pollers' swap in `retire`.
        slot.state.store(POSTED, Ordering::Release);
        // The link was written when the slot was returned, or by `new`.
        self.head = self.ledger.ring.next(self.head);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Rings the doorbell for everything staged.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung != self.posted {
            self.rung = self.posted;
            self.record.store(self.posted & 0xffff);
        }
    }
}
