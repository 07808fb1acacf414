//! A shared receive queue: posted by one owner, consumed by many queue pairs, told by the completion
//! queues of these.
//!
//! Entries are linked by index; the device consumes along the links, and entries complete in any
//! order. A slot that completed goes onto a stack, from any poller; the poster takes the whole stack
//! and links its slots behind the tail:
//!
//! ```text
//! head ─► free ─► free ─► tail      (the poster's; the tail is never posted)
//! returned ─► slot ─► slot          (pushed by pollers, taken whole by the poster)
//! ```

use super::error::{BadRequest, PostError, Rejected};
use crate::port::DoorbellRecord;
use crate::slab::Block;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicU32, Ordering},
};
use crate::wqe::SrqRing;
use crate::wr::Sge;
use crossbeam_utils::CachePadded;

const NONE: u32 = u32::MAX;
const FREE: u32 = 0;
const POSTED: u32 = 1;

/// One slot of the ledger. Created by [`Default`] in memory that the caller gives.
#[derive(Debug)]
pub struct SrqSlot<'m> {
    state: AtomicU32,
    /// The slot below in the stack of returned ones.
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

/// What is in flight on a shared receive queue.
#[derive(Debug)]
pub struct SrqLedger<'m> {
    ring: SrqRing<'m>,
    slots: &'m [SrqSlot<'m>],
    returned: CachePadded<AtomicU32>,
}

// SAFETY: a slot's record belongs to the poster while FREE and to the one poller that turned it from
// POSTED to FREE; both turns hand it over with release and acquire.
unsafe impl Sync for SrqLedger<'_> {}
// SAFETY: blocks may be sent.
unsafe impl Send for SrqLedger<'_> {}

impl<'m> SrqLedger<'m> {
    /// A ledger over `slots`, one for each entry of `ring`; `None` when their numbers differ.
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

    /// Takes back the request in the entry that a device took and will not complete: its identifier
    /// and its buffer. `None`: nothing is posted there. From any thread.
    ///
    /// # Safety
    /// The device does not write to the request's memory any more.
    pub unsafe fn take_back(&self, slot: u16) -> Option<(u64, Option<Block<'m>>)> {
        self.retire(slot, |_| ())
            .map(|(wr_id, block, ())| (wr_id, block))
    }

    /// Ends the queue: every request not yet told goes to `each` with its buffer, rung or not, in no
    /// order. Entries that completion queues still have of them are dropped as stale.
    ///
    /// # Safety
    /// The device has stopped taking from the queue, and writing to what it took.
    pub unsafe fn clear(&self, mut each: impl FnMut(u64, Option<Block<'m>>)) {
        for slot in 0..self.slots.len() {
            // SAFETY: the caller's promise.
            if let Some((wr_id, block)) = unsafe { self.take_back(slot as u16) } {
                each(wr_id, block);
            }
        }
    }

    /// Takes the posted request in `slot`, asks `result` while its memory is still the device's, and
    /// gives the slot back to the poster. `None`: nothing is posted there, the entry is stale or the
    /// device wrong. From any poller.
    #[inline(always)]
    pub(super) fn retire<R>(
        &self,
        slot: u16,
        result: impl FnOnce(u32) -> R,
    ) -> Option<(u64, Option<Block<'m>>, R)> {
        let index = u32::from(slot);
        let entry = self.slots.get(usize::from(slot))?;
        // AcqRel: acquires the record from the poster's release in `post`; of two pollers one sees
        // POSTED.
        if entry.state.swap(FREE, Ordering::AcqRel) != POSTED {
            return None;
        }
        let result = result(index);
        let (wr_id, block) = entry
            .record
            // SAFETY: this poller turned the slot, so the record is its own; the block moves out.
            .with_mut(|record| unsafe { ((*record).0, (*record).1.take()) });
        // Relaxed: only a guess for the exchange below.
        let mut top = self.returned.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange below.
            entry.below.store(top, Ordering::Relaxed);
            // Release: partner of the poster's acquire in `collect`. Slots are only ever pushed
            // here and taken all at once, so the same top means the same stack.
            match self.returned.compare_exchange_weak(
                top,
                index,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((wr_id, block, result)),
                Err(now) => top = now,
            }
        }
    }
}

/// The posting half of a shared receive queue.
#[derive(Debug)]
pub struct SharedRecvQueue<'m> {
    ledger: &'m SrqLedger<'m>,
    record: &'m DoorbellRecord,
    head: u32,
    tail: u32,
    posted: u32,
    rung: u32,
    /// `head` is at the tail when as many are posted.
    limit: u32,
}

impl<'m> SharedRecvQueue<'m> {
    /// A queue with all its entries free; one of them is never posted. `None` when it has fewer than
    /// two.
    ///
    /// # Safety
    /// This is the only queue on the ledger's ring, and the only poster of the ledger and the
    /// record. The device reads posted entries only, and writes a completion entry for each.
    pub unsafe fn new(ledger: &'m SrqLedger<'m>, record: &'m DoorbellRecord) -> Option<Self> {
        let count = ledger.ring.count();
        for index in 0..count {
            // SAFETY: only poster by the caller's promise; nothing is posted yet.
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

    /// Requests that fit in all.
    pub fn capacity(&self) -> u32 {
        self.ledger.ring.count() - 1
    }

    /// Scatter/gather elements of one request.
    pub fn max_sge(&self) -> u32 {
        self.ledger.ring.max_sge()
    }

    /// Requests that can be staged before something has to complete.
    pub fn free(&mut self) -> u32 {
        // Nothing returned is no error here.
        let _ = self.collect();
        self.limit.wrapping_sub(self.posted)
    }

    /// Stages a receive into a whole block, which comes back with the completion.
    ///
    /// # Errors
    /// [`Rejected`], with the block.
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

    /// Stages a receive. This is the raw path, [`post_block`](Self::post_block) the safe one.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// As [`RecvQueue::post`](super::RecvQueue::post).
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.write(sges)? };
        self.take(wr_id, None);
        Ok(())
    }

    /// Stages the receives of a list, up to the first that is refused. What comes behind that one is
    /// left in the iterator.
    ///
    /// # Errors
    /// [`BadRequest`] says which was refused and why; those before it are staged.
    ///
    /// # Safety
    /// As [`post`](Self::post), for each.
    #[inline]
    pub unsafe fn post_list<'s>(
        &mut self,
        requests: impl IntoIterator<Item = (u64, &'s [Sge])>,
    ) -> Result<(), BadRequest> {
        for (index, (wr_id, sges)) in requests.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.post(wr_id, sges) }.map_err(|error| BadRequest { index, error })?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::post`].
    #[inline(always)]
    unsafe fn write(&mut self, sges: &[Sge]) -> Result<(), PostError> {
        if self.head == self.tail {
            self.collect()?;
        }
        // SAFETY: the head is free, and ours by `&mut self`.
        unsafe { self.ledger.ring.write(self.head, sges) }
    }

    /// Links what the pollers gave back behind the tail.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) -> Result<(), PostError> {
        // Acquire: partner of the release in `retire`.
        let mut index = self.ledger.returned.swap(NONE, Ordering::Acquire);
        if index == NONE {
            return Err(PostError::QueueFull);
        }
        while index != NONE {
            // SAFETY: only poster; the device does not go past the tail before it is linked and
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
        // SAFETY: a free slot's record is the poster's; its block was taken when it was retired.
        slot.record
            .with_mut(|record| unsafe { record.write((wr_id, block)) });
        // Release: partner of the pollers' swap in `retire`.
        slot.state.store(POSTED, Ordering::Release);
        // Linked when it was freed, or at the start.
        self.head = self.ledger.ring.next(self.head);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Makes everything staged known to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung != self.posted {
            self.rung = self.posted;
            self.record.store(self.posted & 0xffff);
        }
    }
}
