//! The data path of a provider: its doorbells, and how its completions are polled.

use super::calls::calls;
use super::{CqSide, Hca, Provider, RecvDoorbell, SendDoorbell, each, verbs};
use crate::cq::{CqShared, OldCqe};
use crate::device::Device;
use crate::error::Error;
use crate::pinned::push;
use arrayvec::ArrayVec;
use bellwire_core::cqe::Cqe64;
use bellwire_core::port::{self, Staged, StagedReceives};
use bellwire_core::queue::{
    Attach, AttachError, ByQpNum, Completion, CompletionQueue, Plain, UserIndex,
};
use bellwire_core::slab::Block;
use std::sync::Arc;

/// A doorbell, and the completion queue that reports what it rings for.
#[derive(Debug)]
pub(crate) struct OnCq<D> {
    pub by: D,
    pub cq: Arc<CqShared>,
}

// SAFETY: the doorbell's own promise.
unsafe impl<D: port::SendDoorbell> port::SendDoorbell for OnCq<D> {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        // SAFETY: the caller keeps the promise of `ring`.
        unsafe { self.by.ring(staged) }
    }

    fn cq_failed(&self) -> bool {
        self.cq.ctx.overrun()
    }
}

// SAFETY: the doorbell's own promise.
unsafe impl<D: port::RecvDoorbell> port::RecvDoorbell for OnCq<D> {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &StagedReceives) {
        // SAFETY: the caller keeps the promise of `ring`.
        unsafe { self.by.ring(staged) }
    }

    fn cq_failed(&self) -> bool {
        self.cq.ctx.overrun()
    }
}

// SAFETY: each case implements the trait with the same promise.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        // SAFETY: the caller keeps the promise of `ring`, which is the same in each case.
        each!(self, doorbell => unsafe { doorbell.ring(staged) });
    }
}

// SAFETY: each case implements the trait with the same promise.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &StagedReceives) {
        // SAFETY: the caller keeps the promise of `ring`, which is the same in each case.
        each!(self, doorbell => unsafe { doorbell.ring(staged) });
    }
}

/// The polling side of a completion queue, by who writes the entries and how they identify queue pairs. Each
/// is one of core's completion queues.
pub(crate) type Polled =
    Provider<crate::soft::Polled, verbs::Polled, CompletionQueue<'static, ByQpNum<'static>>>;

/// What polling involves besides core.
pub(super) trait Poll {
    /// The producing side.
    type Producer;

    fn poll_one(&mut self, cq: &Arc<CqShared>, device: &Device) -> Option<Completion<'static>>;

    fn poll(
        &mut self,
        cq: &Arc<CqShared>,
        device: &Device,
        limit: usize,
        each: impl FnMut(Completion<'static>),
    ) -> usize;

    fn arm(&mut self, cq: &Self::Producer, solicited_only: bool) -> Result<(), Error>;

    /// Bytes of what it keeps for its history, beside the ring.
    fn kept(&self) -> usize {
        0
    }

    /// Its history, given the entries that core's ring still has: those that are certainly whole.
    fn known(&self, entries: Vec<OldCqe>, _: &CqSide) -> Result<Vec<OldCqe>, Error> {
        Ok(entries)
    }
}

impl Polled {
    #[inline(always)]
    pub fn poll_one(&mut self, cq: &Arc<CqShared>, device: &Device) -> Option<Completion<'static>> {
        each!(self, core => Poll::poll_one(core, cq, device))
    }

    #[inline(always)]
    pub fn plain(&mut self) -> Option<Plain<'_, 'static>> {
        each!(self, core => core.plain())
    }

    #[inline(always)]
    pub fn poll(
        &mut self,
        cq: &Arc<CqShared>,
        device: &Device,
        limit: usize,
        each: impl FnMut(Completion<'static>),
    ) -> usize {
        each!(self, core => Poll::poll(core, cq, device, limit, each))
    }

    calls! {
        fn capacity(&self) -> u32;
        fn unreserved(&self) -> u32;
        fn stale(&self) -> u64;
        fn consumer_index(&self) -> u32;
        fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool;
    }

    /// Bytes of what it keeps for its history, beside the ring.
    pub fn kept(&self) -> usize {
        each!(self, core => Poll::kept(core))
    }

    /// Arms the queue, whose producing side is `cq`.
    pub fn arm(&mut self, cq: &CqSide, solicited_only: bool) -> Result<(), Error> {
        // Both sides are of one provider.
        let both = self.as_mut().with(cq.as_ref());
        both.map_or(
            Ok(()),
            |both| each!(both, (core, cq) => Poll::arm(core, cq, solicited_only)),
        )
    }

    /// # Safety
    /// That of [`CompletionQueue::attach`](bellwire_core::queue::CompletionQueue::attach).
    pub unsafe fn attach(
        &mut self,
        queues: Attach<'static>,
        reserve: bool,
    ) -> Result<UserIndex, AttachError> {
        each!(self, core => {
            // SAFETY: the caller keeps the promise of `CompletionQueue::attach`.
            unsafe {
                match reserve {
                    true => core.attach(queues),
                    false => core.attach_unreserved(queues),
                }
            }
        })
    }

    /// # Safety
    /// That of [`CompletionQueue::detach`](bellwire_core::queue::CompletionQueue::detach).
    pub unsafe fn detach(
        &mut self,
        index: UserIndex,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) {
        // SAFETY: the caller keeps the promise of `CompletionQueue::detach`.
        each!(self, core => unsafe { core.detach(index, each) })
    }

    /// # Safety
    /// That of [`CompletionQueue::renew`](bellwire_core::queue::CompletionQueue::renew).
    pub unsafe fn renew(
        &mut self,
        index: UserIndex,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Option<UserIndex> {
        // SAFETY: the caller keeps the promise of `CompletionQueue::renew`.
        each!(self, core => unsafe { core.renew(index, each) })
    }

    /// Copies of the completions that are still known, oldest first.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn history(&mut self, cq: &CqSide, hca: &Hca) -> Result<Vec<OldCqe>, Error> {
        let (mut entries, mut room) = (Vec::new(), Ok(()));
        let copy = |past: bellwire_core::queue::PastCqe<'_>| {
            let old = OldCqe {
                index: past.index,
                polled: past.polled,
                cqe: *past.cqe,
                data: ArrayVec::from_iter(past.data.iter().copied()),
            };
            if room.is_ok() {
                room = push(&mut entries, old);
            }
        };
        hca.hold_still(cq, || {
            // SAFETY: the device writes no entry meanwhile.
            each!(&mut *self, core => unsafe { core.history(copy) });
        });
        room?;
        each!(self, core => core.known(entries, cq))
    }
}
