//! Receives that the program posts during the first connection.
//!
//! They are kept until the queue pair accepts receives: it may be in RESET, or may still be replaced.

use super::completion::{LinkError, Refused};
use super::member::{Member, StateOwner};
use super::repost::Receive;
use super::state::RecoveryState;
use bellwire_core::fault::plan::StepResult;
use bellwire_core::queue::PostError;
use bellwire_core::slab::Block;
use bellwire_core::wqe::{Payload, PayloadLimits};
use bellwire_core::wr::Sge;

/// Free slots of the receive queue, and the limit of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub receives: u32,
    pub max_sge: u32,
}

impl Room {
    /// Refuses the same receives as the queue would.
    fn check(self, sges: &[Sge]) -> Result<(), PostError> {
        if self.receives == 0 {
            return Err(PostError::QueueFull);
        }
        let limits = PayloadLimits {
            max_sge: self.max_sge,
            max_inline: 0,
        };
        sges.check(&limits)
    }
}

impl RecoveryState {
    /// The room for receives while the link is not open to posts; `None` if it accepts none.
    pub fn room(&mut self) -> Option<Room> {
        if self.opened || self.protocol.closing() {
            return None;
        }
        let queues = self.queues.as_mut()?;
        let free = match &mut queues.qp {
            Some(qp) => qp.rq().free(),
            None => queues.receives,
        };
        let waiting = (self.receives.len() + self.early.len()) as u32;
        Some(Room {
            receives: free.saturating_sub(waiting),
            max_sge: queues.max_recv_sge,
        })
    }

    /// Makes sure that so many receives more can be kept, now, and after a connection that fails. `false`: there is no
    /// memory for them.
    pub fn keep_receives(&mut self, count: usize) -> bool {
        let all = self.receives.len() + self.early.len() + count;
        let in_queue = self.queues.as_ref().map_or(0, |queues| queues.receives);
        self.early.try_reserve(all).is_ok() && self.receives.try_reserve(in_queue as usize).is_ok()
    }

    /// Takes a receive for which there is [room](Self::room), and that can be [kept](Self::keep_receives).
    pub fn receive(&mut self, receive: Receive) {
        self.early.push_back(receive);
        match &self.queues {
            Some(queues) if queues.receives_posted => {
                let posted = self.repost_receives();
                debug_assert_eq!(posted, StepResult::Done, "there is room");
            }
            // The step that posts receives is still to come.
            Some(_) => {}
            // The link has ended in a thread meanwhile.
            None => self.report_receives(),
        }
    }
}

impl Member {
    /// [`post_recv_block`](super::Link::post_recv_block) while the link is not open to posts.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_block(
        &mut self,
        wr_id: u64,
        block: Block<'static>,
    ) -> Result<(), Refused> {
        match self.room_for(&[]) {
            Ok(()) => {
                self.hand_over(Receive::of_block(wr_id, block));
                Ok(())
            }
            Err(error) => Err(Refused { error, block }),
        }
    }

    /// [`post_recv`](super::Link::post_recv) while the link is not open to posts.
    ///
    /// # Safety
    /// That of [`post_recv`](super::Link::post_recv): the memory stays valid, and the program does not access it until the
    /// receive is reported.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn receive_memory(
        &mut self,
        wr_id: u64,
        sges: &[Sge],
    ) -> Result<(), LinkError> {
        self.room_for(sges)?;
        // SAFETY: the caller guarantees that the memory stays valid and is not accessed until the receive
        // is reported.
        let receive = unsafe { Receive::of_memory(wr_id, sges) };
        // Without memory to keep it, the program posts it later.
        self.hand_over(receive.map_err(|_| LinkError::Recovering)?);
        Ok(())
    }

    fn room_for(&mut self, sges: &[Sge]) -> Result<(), LinkError> {
        let room = match &mut self.recovery {
            StateOwner::Here(state) if state.on_srq.is_some() => {
                return Err(LinkError::Post(PostError::NoRecvQueue));
            }
            StateOwner::Here(state) => state.room(),
            StateOwner::Thread(worker) => worker.room,
            StateOwner::Moving => None,
        };
        let room = room.ok_or_else(|| self.refusal())?;
        room.check(sges)?;
        let kept = match &mut self.recovery {
            StateOwner::Here(state) => state.keep_receives(1),
            StateOwner::Thread(worker) => worker.keep_receive(),
            StateOwner::Moving => true,
        };
        // Without memory to keep it, the program posts it later, as it posts sends.
        kept.then_some(()).ok_or(LinkError::Recovering)
    }

    fn hand_over(&mut self, receive: Receive) {
        match &mut self.recovery {
            StateOwner::Here(state) => state.receive(receive),
            StateOwner::Thread(worker) => worker.receive(receive),
            StateOwner::Moving => {}
        }
    }
}
