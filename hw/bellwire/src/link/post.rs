//! Posting to a link: like posting to its queues, plus the policy for requests that a failure leaves
//! undone.

use super::completion::{LinkError, Refused};
use super::grant::{Grant, RefusedGrant};
use super::handle::Link;
use super::set::SetLink;
use crate::mw::Mw;
use bellwire_core::fault::outcome::Replay;
use bellwire_core::slab::Block;
use bellwire_core::wqe::{BindMw, BindMwInfo, Inline, NoPayload, Operation, Payload, Rc, Supports};
use bellwire_core::wr::{Remote, SendFlags, Sge};

// The data path, with one body for both kinds of link.
macro_rules! posting {
    ($link:ty) => {
        /// Posting. `replay` says what is done with a request that a failure of the connection leaves undone.
        impl $link {
            /// Stages a request that carries its bytes inline, or has none.
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
                // SAFETY: an inline entry refers to no local memory.
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
                // SAFETY: the entry refers to no local memory.
                unsafe { self.post(wr_id, operation, NoPayload, flags, replay) }
            }

            /// Stages a request on the first `length` bytes of a block. The block comes back with the request's
            /// outcome, or goes back to its slab if a later request retires this one.
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
                let Some(active) = &mut self.member.active else {
                    let error = self.member.refusal();
                    return Err(Refused { error, block });
                };
                let mut sq = active.qp.sq();
                let counter = sq.counter();
                match sq.post_block(wr_id, (), operation, block, length, flags) {
                    Ok(()) => {
                        active.note::<O>(counter, replay);
                        Ok(())
                    }
                    Err(rejected) => Err(Refused {
                        error: self.member.refused(rejected.error),
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
            /// The local memory that `payload` refers to stays valid, and the program does not write it (for a
            /// READ or atomic: does not access it) until the request is reported: also while the link recovers,
            /// because the request may be posted again.
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
                let Some(active) = &mut self.member.active else {
                    return Err(self.member.refusal());
                };
                let mut sq = active.qp.sq();
                let counter = sq.counter();
                // SAFETY: the caller guarantees that the payload's memory stays valid and unchanged until the
                // request is reported.
                match unsafe { sq.post(wr_id, (), operation, payload, flags) } {
                    Ok(()) => {
                        active.note::<O>(counter, replay);
                        Ok(())
                    }
                    Err(error) => Err(self.member.refused(error)),
                }
            }

            /// Stages a bind of a memory window of either type, or, with a length of zero, an unbind;
            /// [`Mw::rkey`] returns the new rkey at once. A window of type 1 stays bound when the link recovers.
            /// A window of type 2 belongs to the queue pair, which a recovery resets or replaces: allocate
            /// another one then, bind it, and send the peer its rkey. Do the same after a bind whose outcome is
            /// not `Done`, because the window's rkey is then unknown.
            ///
            /// # Errors
            /// [`LinkError`]; nothing was staged, and the rkey is unchanged.
            #[inline]
            pub fn post_bind(
                &mut self,
                wr_id: u64,
                window: &mut Mw,
                info: &BindMwInfo,
                flags: SendFlags,
                replay: Replay,
            ) -> Result<(), LinkError> {
                let Some(active) = &mut self.member.active else {
                    return Err(self.member.refusal());
                };
                let mut sq = active.qp.sq();
                let counter = sq.counter();
                match window.post_bind(&mut sq, wr_id, (), info, flags) {
                    Ok(()) => {
                        active.note::<BindMw>(counter, replay);
                        Ok(())
                    }
                    Err(error) => Err(self.member.refused(error)),
                }
            }

            /// Stages a request that lends memory to the peer until the exchange is over: see [`Grant`], which also says
            /// what its outcomes mean. `message` returns the request's bytes, which are inline, for the address and the rkey
            /// by which the peer accesses the memory. The request is signalled, and is never posted again. `operation` has
            /// to notify the peer's program: a SEND, or a WRITE_WITH_IMM.
            ///
            /// The first grants that are open at the same time allocate, and create a window each: calls of the kernel, on
            /// most devices.
            ///
            /// # Errors
            /// [`RefusedGrant`], with the grant; nothing was staged.
            #[inline(always)]
            pub fn post_grant<O: Operation, M: AsRef<[u8]>>(
                &mut self,
                wr_id: u64,
                grant: Grant,
                operation: O,
                message: impl FnOnce(Remote) -> M,
                flags: SendFlags,
            ) -> Result<(), RefusedGrant>
            where
                Rc: Supports<O>,
            {
                self.member
                    .post_grant(wr_id, grant, operation, message, flags)?;
                self.take_the_slow_path();
                Ok(())
            }

            /// Notifies the device of all staged sends. Does nothing while the link recovers: requests staged
            /// before are reported.
            #[inline(always)]
            pub fn ring(&mut self) {
                if let Some(active) = &mut self.member.active {
                    active.qp.sq().ring();
                }
            }

            /// Stages a receive into a whole block, which comes back with the receive's outcome. Until the link
            /// is [`Ready`](super::LinkState::Ready) for the first time it accepts as many receives as its queue has
            /// room for, whether or not it is polled, and posts them itself when the queue pair accepts receives;
            /// once closed it accepts none.
            ///
            /// # Errors
            /// [`Refused`], with the block.
            #[inline(always)]
            pub fn post_recv_block(
                &mut self,
                wr_id: u64,
                block: Block<'static>,
            ) -> Result<(), Refused> {
                let Some(active) = &mut self.member.active else {
                    return self.member.receive_block(wr_id, block);
                };
                active
                    .qp
                    .rq()
                    .post_block(wr_id, block)
                    .map_err(Refused::from)
            }

            /// Stages a receive, under the same conditions as [`post_recv_block`](Self::post_recv_block). This is
            /// the raw path; that is the safe one.
            ///
            /// # Errors
            /// [`LinkError`]; nothing was staged.
            ///
            /// # Safety
            /// The memory that `sges` refer to stays valid, and the program does not access it until the receive
            /// is reported; also while the link recovers.
            #[inline(always)]
            pub unsafe fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), LinkError> {
                let Some(active) = &mut self.member.active else {
                    // SAFETY: the caller guarantees that the memory stays valid and is not accessed until the
                    // receive is reported.
                    return unsafe { self.member.receive_memory(wr_id, sges) };
                };
                // SAFETY: the caller guarantees that the memory stays valid and is not accessed until the receive
                // is reported.
                unsafe { active.qp.rq().post(wr_id, sges).map_err(LinkError::from) }
            }

            /// Notifies the device of all staged receives.
            #[inline(always)]
            pub fn ring_recv(&mut self) {
                if let Some(active) = &mut self.member.active {
                    active.qp.rq().ring();
                }
            }
        }
    };
}

impl SetLink<'_> {
    /// A set asks the link, for each completion.
    fn take_the_slow_path(&mut self) {}
}

posting!(Link);
posting!(SetLink<'_>);
