//! The posting side of a receive queue.

use super::completion::Unfinished;
use super::error::Rejected;
use super::ledger::{Counting, Ledger, Record};
use super::life::Lives;
use super::tally::Tally;
use crate::port::{RecvDoorbell, StagedReceives};
use crate::slab::Block;
use crate::wqe::PostError;
use crate::wqe::RecvRing;
use crate::wr::Sge;

/// The posting side of a queue pair's own receive queue.
///
/// Posts are refused until [`set_postable`](Self::set_postable) is called with `true`, once the
/// state of the queue pair allows them.
#[derive(Debug)]
pub struct RecvQueue<'m, D: RecvDoorbell> {
    ring: RecvRing<'m>,
    ledger: &'m Ledger<'m>,
    doorbell: D,
    head: u32,
    rung: u32,
    /// Scatter/gather elements of the last entry.
    last_sges: u32,
    limit: u32,
    refusal: Option<PostError>,
    /// A reload of `limit` has more to do: posts are refused, or receives are counted.
    reloads_slowly: bool,
    lives: Lives,
}

impl<'m, D: RecvDoorbell> RecvQueue<'m, D> {
    /// Creates a queue with all counters at zero. `None` when the ledger's size differs from the
    /// ring's.
    ///
    /// # Safety
    /// This is the only queue on the ring and the only poster of the ledger; nothing else rings
    /// this doorbell or writes its doorbell record. The device reads only posted entries, in order,
    /// and writes one CQE for each.
    pub unsafe fn new(ring: RecvRing<'m>, ledger: &'m Ledger<'m>, doorbell: D) -> Option<Self> {
        (ledger.slots() == ring.count()).then_some(Self {
            ring,
            ledger,
            doorbell,
            head: 0,
            rung: 0,
            last_sges: 0,
            limit: 0,
            refusal: Some(PostError::WrongState),
            reloads_slowly: true,
            lives: Lives::default(),
        })
    }

    /// Most scatter/gather elements in one request.
    #[inline(always)]
    pub fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    /// Most requests that can be in flight.
    pub fn slots(&self) -> u32 {
        self.ledger.capacity()
    }

    /// Requests that were rung and are not reported yet.
    pub fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    /// Counter of the next request.
    pub fn counter(&self) -> u32 {
        self.head
    }

    /// Requests that can be staged before one has to complete.
    pub fn free(&self) -> u32 {
        self.ledger.capacity() - self.head.wrapping_sub(self.ledger.retired())
    }

    /// The ledger and the ring of its requests.
    pub(super) fn recorded(&self) -> (&'m Ledger<'m>, RecvRing<'m>) {
        (self.ledger, self.ring)
    }

    /// Allows or forbids posting. Call it at each change of the queue pair's state.
    pub fn set_postable(&mut self, postable: bool) {
        if self.refusal != Some(PostError::NoRecvQueue) {
            self.refusal = (!postable).then_some(PostError::WrongState);
        }
        self.reloads_slowly = self.refusal.is_some() || self.counting().tally.is_some();
        self.limit = self.head;
    }

    /// Refuses every post from here on: the queue pair has no receive queue of its own.
    pub fn set_absent(&mut self) {
        self.refusal = Some(PostError::NoRecvQueue);
        self.reloads_slowly = true;
        self.limit = self.head;
    }

    /// Ends this life of the queue, like [`SendQueue::clear`](super::SendQueue::clear).
    ///
    /// # Panics
    /// When `each` panics, with the state that [`SendQueue::clear`](super::SendQueue::clear)
    /// describes.
    ///
    /// # Safety
    /// The requirements of [`SendQueue::clear`](super::SendQueue::clear).
    pub unsafe fn clear(&mut self, each: impl FnMut(Unfinished<'m>)) {
        // SAFETY: the caller guarantees that the device has stopped and that nobody polls.
        unsafe { self.abandon(each) };
        let none = StagedReceives {
            counter: self.head,
            count: 0,
            sges: 0,
        };
        // SAFETY: nothing is in flight, and the device has stopped.
        unsafe { self.doorbell.ring(&none) };
    }

    /// Ends the queue like [`clear`](Self::clear), for a queue pair that is destroyed: does not
    /// ring the doorbell, because no new life follows.
    ///
    /// # Panics
    /// When `each` panics, like [`clear`](Self::clear).
    ///
    /// # Safety
    /// The requirements of [`clear`](Self::clear).
    pub unsafe fn abandon(&mut self, each: impl FnMut(Unfinished<'m>)) {
        self.count();
        let end = self.head;
        // Nothing is left to ring.
        self.rung = end;
        self.set_postable(false);
        // SAFETY: `&mut self` makes this the poster; the caller guarantees that nobody polls.
        self.head = unsafe { self.ledger.clear(end, each) };
        self.set_counting(Counting {
            counted: self.head,
            ..self.counting()
        });
        self.lives.renew(end, self.head);
        self.rung = self.head;
        // Again, so that `limit` equals the new `head`.
        self.set_postable(false);
    }

    /// Counts receives in `tally` from the next post on, as [`SendQueue::count_into`](super::SendQueue::count_into)
    /// counts requests.
    pub fn count_into(&mut self, tally: &'m Tally) {
        self.count();
        self.set_counting(Counting {
            tally: Some(tally),
            counted: self.head,
        });
        self.reloads_slowly = true;
    }

    fn counting(&self) -> Counting<'m> {
        // SAFETY: this is the only poster.
        unsafe { self.ledger.counting() }
    }

    fn set_counting(&mut self, counting: Counting<'m>) {
        // SAFETY: `&mut self` makes this the poster.
        unsafe { self.ledger.set_counting(counting) };
    }

    /// Counts the receives that were posted since the last count, if receives are counted.
    pub fn count(&mut self) {
        let Counting { tally, counted } = self.counting();
        if let Some(tally) = tally {
            tally.receive(self.head.wrapping_sub(counted));
            self.set_counting(Counting {
                tally: Some(tally),
                counted: self.head,
            });
        }
    }

    /// Returns the scatter/gather elements of a receive that was posted earlier, by its counter
    /// ([`Failure::counter`](super::Failure), [`Unfinished`]), so that it can be posted again. An
    /// entry stays in the ring until it is overwritten: as long as nothing is posted, every receive
    /// that was in flight can be read, before [`clear`](Self::clear) and after it. `None`: the
    /// entry is overwritten.
    pub fn entry(&self, counter: u32) -> Option<impl Iterator<Item = Sge>> {
        self.lives.left(counter, self.head, self.ring.count())?;
        // SAFETY: `lives` says that this counter was posted; `&self` keeps the poster from writing
        // while the ring is read, and the elements are copied.
        Some(unsafe { self.ring.read(counter) })
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
        match self.reserve() {
            // SAFETY: `reserve` found room; the ledger holds the block while the device may write
            // to it. One element of a block's size always fits.
            Ok(()) => unsafe {
                let head = self.head;
                let written = self.ring.write(head, &[sge]);
                debug_assert!(written.is_ok());
                self.record(head, wr_id, Some(block), written.unwrap_or(0));
                Ok(())
            },
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
    /// The memory that `sges` refer to stays valid, and the program does not touch it until the
    /// request is reported.
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.reserve()?;
        // SAFETY: `reserve` found room; the caller guarantees that the memory stays valid until the
        // request is reported.
        unsafe {
            let head = self.head;
            let sges = self.ring.write(head, sges)?;
            self.record(head, wr_id, None, sges);
        }
        Ok(())
    }

    #[inline(always)]
    fn reserve(&mut self) -> Result<(), PostError> {
        if self.limit == self.head {
            return self.refresh();
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn refresh(&mut self) -> Result<(), PostError> {
        if self.reloads_slowly {
            return self.refresh_slowly();
        }
        self.reload()
    }

    /// Checks again in a queue that refuses posts, or counts receives.
    #[cold]
    #[inline(never)]
    fn refresh_slowly(&mut self) -> Result<(), PostError> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        self.count();
        self.reload()
    }

    #[inline(always)]
    fn reload(&mut self) -> Result<(), PostError> {
        self.limit = self.ledger.retired().wrapping_add(self.ledger.capacity());
        if self.limit == self.head {
            return Err(match self.doorbell.cq_failed() {
                true => PostError::CqFailed,
                false => PostError::QueueFull,
            });
        }
        Ok(())
    }

    /// # Safety
    /// `reserve` has succeeded, and the entry at `head` is written with `sges` elements.
    #[inline(always)]
    unsafe fn record(&mut self, head: u32, wr_id: u64, block: Option<Block<'m>>, sges: u32) {
        // SAFETY: `&mut self` makes this the only poster; the slot is free.
        unsafe {
            let end = head.wrapping_add(1);
            let record = Record::of_receive(wr_id, block, end);
            self.ledger.record(self.ledger.slot(head), head, record);
            self.head = end;
        }
        self.last_sges = sges;
    }

    /// Rings the doorbell for everything staged.
    #[inline(always)]
    pub fn ring(&mut self) {
        // Read before the receives are published, like in the send queue.
        let staged = StagedReceives {
            counter: self.head,
            count: self.head.wrapping_sub(self.rung),
            sges: self.last_sges,
        };
        if staged.count != 0 {
            self.rung = staged.counter;
            self.ledger.publish(staged.counter);
            // SAFETY: these receives are staged and in the ledger.
            unsafe { self.doorbell.ring(&staged) };
        }
    }
}
