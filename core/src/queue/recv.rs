//! The posting half of a receive queue.

use super::completion::Unfinished;
use super::error::{PostError, Rejected};
use super::ledger::{Ledger, Record};
use super::life::Lives;
use crate::port::{RecvDoorbell, StagedReceives};
use crate::slab::Block;
use crate::wqe::RecvRing;
use crate::wr::{Sge, WcOpcode};

/// The posting half of a queue pair's own receive queue.
///
/// Posting is refused until [`set_postable`](Self::set_postable) says that the queue pair's state
/// allows it.
#[derive(Debug)]
pub struct RecvQueue<'m, D: RecvDoorbell> {
    ring: RecvRing<'m>,
    ledger: &'m Ledger<'m>,
    doorbell: D,
    head: u32,
    rung: u32,
    /// Elements of the last entry.
    last_sges: u32,
    limit: u32,
    refusal: Option<PostError>,
    lives: Lives,
}

impl<'m, D: RecvDoorbell> RecvQueue<'m, D> {
    /// A queue in its first life; `None` when the ledger's size differs from the ring's.
    ///
    /// # Safety
    /// This is the only queue on the ring, and the only poster of the ledger. The
    /// device reads posted entries only, in order, and writes a completion entry for each.
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
            lives: Lives::default(),
        })
    }

    /// Scatter/gather elements of one request.
    #[inline(always)]
    pub fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    /// Requests that can be in flight.
    pub fn slots(&self) -> u32 {
        self.ledger.capacity()
    }

    /// Requests that were rung and not told yet.
    pub fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    /// Counter of the next request.
    pub fn counter(&self) -> u32 {
        self.head
    }

    /// Requests that can be staged before something has to complete.
    pub fn free(&self) -> u32 {
        self.ledger.capacity() - self.head.wrapping_sub(self.ledger.retired())
    }

    /// What is known of its requests.
    pub(super) fn recorded(&self) -> (&'m Ledger<'m>, RecvRing<'m>) {
        (self.ledger, self.ring)
    }

    /// Allows or forbids posting: to be called at each change of the queue pair's state.
    pub fn set_postable(&mut self, postable: bool) {
        if self.refusal != Some(PostError::NoRecvQueue) {
            self.refusal = (!postable).then_some(PostError::WrongState);
        }
        self.limit = self.head;
    }

    /// Refuses every post from here on: the queue pair does not receive by a queue of its own.
    pub fn set_absent(&mut self) {
        self.refusal = Some(PostError::NoRecvQueue);
        self.limit = self.head;
    }

    /// Ends this life of the queue, as [`SendQueue::clear`](super::SendQueue::clear).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn clear(&mut self, each: impl FnMut(Unfinished<'m>)) {
        // SAFETY: the caller's promise.
        unsafe { self.abandon(each) };
        self.doorbell.ring(&StagedReceives {
            counter: self.head,
            count: 0,
            sges: 0,
        });
    }

    /// As [`clear`](Self::clear), of a queue pair that is destroyed: there is no life to come, and
    /// nobody to tell of it.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn abandon(&mut self, each: impl FnMut(Unfinished<'m>)) {
        let end = self.head;
        // SAFETY: poster by `&mut self`, poller by the caller's promise.
        self.head = unsafe { self.ledger.clear(end, each) };
        self.lives.renew(end, self.head);
        self.rung = self.head;
        self.set_postable(false);
    }

    /// The memory of a receive that was posted earlier, by its counter
    /// ([`Failure::counter`](super::Failure), [`Unfinished`]), to post it again. An entry stays in the
    /// ring until it is overwritten: as long as nothing is posted every receive that was in flight can
    /// be read, before [`clear`](Self::clear) and after it. `None`: it is not there any more.
    pub fn entry(&self, counter: u32) -> Option<impl Iterator<Item = Sge>> {
        self.lives.left(counter, self.head, self.ring.count())?;
        // SAFETY: posted, as its life has it; `&self` keeps the poster from writing while the ring is
        // read, and the elements are copied.
        Some(unsafe { self.ring.read(counter) })
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
        match self.reserve() {
            // SAFETY: reserved; the ledger holds the block while the device may write to it. One
            // element of a block's size always fits.
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

    /// Stages a receive. This is the raw path, [`post_block`](Self::post_block) the safe one.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// The memory that `sges` point to stays valid, and is not touched by the program until the
    /// request is told.
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.reserve()?;
        // SAFETY: reserved; the memory is the caller's promise.
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
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        self.limit = self.ledger.retired().wrapping_add(self.ledger.capacity());
        if self.limit == self.head {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// # Safety
    /// `reserve` has said yes and the entry is written, at `head`, with so many elements.
    #[inline(always)]
    unsafe fn record(&mut self, head: u32, wr_id: u64, block: Option<Block<'m>>, sges: u32) {
        // SAFETY: only poster by `&mut self`; the slot is free.
        unsafe {
            self.ledger.record(Record {
                wr_id,
                block,
                counter: head,
                extra: 0,
                slots: 1,
                opcode: WcOpcode::Recv,
            });
        }
        self.head = head.wrapping_add(1);
        self.last_sges = sges;
    }

    /// Makes everything staged known to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        // As the send queue: looked at before others can see the receives.
        let staged = StagedReceives {
            counter: self.head,
            count: self.head.wrapping_sub(self.rung),
            sges: self.last_sges,
        };
        if staged.count != 0 {
            self.rung = staged.counter;
            self.ledger.publish(staged.counter);
            self.doorbell.ring(&staged);
        }
    }
}
