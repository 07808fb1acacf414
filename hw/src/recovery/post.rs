//! Posting to a link: as to its queues, with what is to become of a request should the connection fail.

use super::link::{Link, LinkState};
use super::told::{LinkError, Refused};
use crate::mw::Mw;
use bellwire_core::fault::outcome::Replay;
use bellwire_core::queue::PostError;
use bellwire_core::slab::Block;
use bellwire_core::wqe::{BindMw, BindMwInfo, Inline, NoPayload, Operation, Payload, Rc, Supports};
use bellwire_core::wr::{SendFlags, Sge};

/// Posting. `replay` is what becomes of a request that the connection's failure leaves undone.
impl Link {
    /// Stages a request that carries its bytes, or has none.
    ///
    /// # Errors
    /// [`LinkError`]; nothing was staged.
    #[inline(always)]
    pub fn post_inline<O: Operation>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: &[u8],
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError>
    where
        Rc: Supports<O>,
    {
        let payload = Inline(payload);
        // SAFETY: an inline entry names no local memory.
        unsafe { self.post(wr_id, operation, payload, flags, replay) }
    }

    /// Stages a request without data.
    ///
    /// # Errors
    /// [`LinkError`]; nothing was staged.
    #[inline(always)]
    pub fn post_empty<O: Operation>(
        &mut self,
        wr_id: u64,
        operation: O,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError>
    where
        Rc: Supports<O>,
    {
        // SAFETY: the entry names no local memory.
        unsafe { self.post(wr_id, operation, NoPayload, flags, replay) }
    }

    /// Stages a request on the first `length` bytes of a block, which comes back with what is told of
    /// it, or goes back to its slab where a later request tells of this one.
    ///
    /// # Errors
    /// [`Refused`], with the block.
    #[inline(always)]
    pub fn post_block<O: Operation>(
        &mut self,
        wr_id: u64,
        operation: O,
        block: Block<'static>,
        length: u32,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), Refused>
    where
        Rc: Supports<O>,
    {
        let Some(live) = &mut self.live else {
            let error = self.refusal();
            return Err(Refused { error, block });
        };
        let sq = live.qp.sq();
        let counter = sq.counter();
        match sq.post_block(wr_id, (), operation, block, length, flags) {
            Ok(()) => {
                live.note::<O>(counter, replay);
                Ok(())
            }
            Err(rejected) => Err(Refused {
                error: self.refused(rejected.error),
                block: rejected.block,
            }),
        }
    }

    /// Stages a request. This is the raw path; [`post_inline`](Self::post_inline),
    /// [`post_block`](Self::post_block) and [`post_empty`](Self::post_empty) are the safe ones.
    ///
    /// # Errors
    /// [`LinkError`]; nothing was staged.
    ///
    /// # Safety
    /// The local memory that `payload` points to stays valid, and is not written (for a READ or
    /// atomic: not touched) by the program until the request is told: also while the link recovers,
    /// for it may be posted again.
    #[inline(always)]
    pub unsafe fn post<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError>
    where
        Rc: Supports<O>,
    {
        let Some(live) = &mut self.live else {
            return Err(self.refusal());
        };
        let sq = live.qp.sq();
        let counter = sq.counter();
        // SAFETY: the caller's promise.
        match unsafe { sq.post(wr_id, (), operation, payload, flags) } {
            Ok(()) => {
                live.note::<O>(counter, replay);
                Ok(())
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Stages what binds a memory window of either type, or what takes its key away for a length of zero;
    /// [`Mw::rkey`] is the new key at once. A window of type 1 stays bound when the link recovers. One of
    /// type 2 belongs to the queue pair, which a recovery resets or replaces: allocate another one then,
    /// bind it, and tell the peer its key. So after a bind that is told as anything but `Done`, which
    /// leaves it open which key the window has.
    ///
    /// # Errors
    /// [`LinkError`]; nothing was staged, and the key is as it was.
    #[inline]
    pub fn post_bind(
        &mut self,
        wr_id: u64,
        window: &mut Mw,
        info: &BindMwInfo,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError> {
        let Some(live) = &mut self.live else {
            return Err(self.refusal());
        };
        let sq = live.qp.sq();
        let counter = sq.counter();
        match window.post_bind(sq, wr_id, (), info, flags) {
            Ok(()) => {
                live.note::<BindMw>(counter, replay);
                Ok(())
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Tells the device of all sends that are staged. Does nothing while it recovers: what was staged
    /// before is told.
    #[inline(always)]
    pub fn ring(&mut self) {
        if let Some(live) = &mut self.live {
            live.qp.sq().ring();
        }
    }

    /// Stages a receive into a whole block, which comes back when the receive is told.
    ///
    /// # Errors
    /// [`Refused`], with the block.
    #[inline(always)]
    pub fn post_recv_block(&mut self, wr_id: u64, block: Block<'static>) -> Result<(), Refused> {
        let Some(live) = &mut self.live else {
            let error = self.refusal();
            return Err(Refused { error, block });
        };
        live.qp.rq().post_block(wr_id, block).map_err(Refused::from)
    }

    /// Stages a receive. This is the raw path, [`post_recv_block`](Self::post_recv_block) the safe
    /// one.
    ///
    /// # Errors
    /// [`LinkError`]; nothing was staged.
    ///
    /// # Safety
    /// The memory that `sges` point to stays valid, and is not touched by the program until the
    /// request is told; also while the link recovers.
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), LinkError> {
        let Some(live) = &mut self.live else {
            return Err(self.refusal());
        };
        // SAFETY: the caller's promise.
        unsafe { live.qp.rq().post(wr_id, sges).map_err(LinkError::from) }
    }

    /// Tells the device of all receives that are staged.
    #[inline(always)]
    pub fn ring_recv(&mut self) {
        if let Some(live) = &mut self.live {
            live.qp.rq().ring();
        }
    }

    #[cold]
    #[inline(never)]
    fn refusal(&self) -> LinkError {
        match self.state() {
            LinkState::Ended(end) => LinkError::Ended(end),
            _ => LinkError::Recovering,
        }
    }

    /// What a refusal of the queue is to the program.
    #[cold]
    #[inline(never)]
    fn refused(&self, error: PostError) -> LinkError {
        match error {
            // It was never connected.
            PostError::WrongState => LinkError::Recovering,
            error => LinkError::Post(error),
        }
    }
}
