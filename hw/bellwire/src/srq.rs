//! Shared receive queues.

mod create;
mod memory;

use crate::cq::CqShared;
use crate::error::Error;
use crate::panics::Panics;
use crate::pd::Pd;
use crate::provider::{Left, SrqSide};
use crate::soft::SrqCtx;
use crate::verbs;
use bellwire_core::queue::{BadRequest, PostError, Rejected, SharedRecvQueue, SrqLedger};
use bellwire_core::slab::Block;
use bellwire_core::wqe::SEGMENT;
use bellwire_core::wr::Sge;
pub(crate) use create::NewSrq;
pub(crate) use memory::SrqMemory;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The attributes of a new shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// The most receives in flight, at least one.
    pub max_wr: u32,
    /// The most scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The initial limit, as set by [`Srq::modify`]; zero for none.
    pub srq_limit: u32,
}

impl Default for SrqInit {
    fn default() -> Self {
        Self {
            max_wr: 128,
            max_sge: 1,
            srq_limit: 0,
        }
    }
}

impl SrqInit {
    /// The entries that are reserved for it in each completion queue on which its receives complete.
    pub fn cq_entries(&self) -> u32 {
        self.count()
    }

    /// The entries of the ring: one of them is never posted.
    pub(crate) fn count(&self) -> u32 {
        (self.max_wr + 1).next_power_of_two()
    }

    fn stride(&self) -> u32 {
        ((self.max_sge.max(1) + 1) * SEGMENT as u32).next_power_of_two()
    }

    fn check(&self, pd: &Pd) -> Result<(), Error> {
        let attr = pd.device().attr();
        for (what, given, max) in [
            ("max_wr", self.max_wr, attr.max_srq_wr),
            ("max_sge", self.max_sge, attr.max_srq_sge),
        ] {
            if given > max {
                return Err(too_large(what, given, max));
            }
        }
        if self.max_wr == 0 {
            return Err(too_large("max_wr", 0, attr.max_srq_wr));
        }
        Ok(())
    }
}

const FOREIGN: Error = Error::Foreign {
    what: "shared receive queue",
};

fn too_large(what: &'static str, given: u32, max: u32) -> Error {
    Error::TooLarge {
        what,
        given: given.into(),
        max: max.into(),
    }
}

fn check_limit(limit: u32, capacity: u32) -> Result<u16, Error> {
    match u16::try_from(limit) {
        Ok(limit) if u32::from(limit) <= capacity => Ok(limit),
        _ => Err(too_large("srq_limit", limit, capacity)),
    }
}

/// The attributes of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// The most receives in flight: at least as many as requested.
    pub max_wr: u32,
    /// The most scatter/gather elements of a receive: at least as many as requested.
    pub max_sge: u32,
    /// The limit; zero if none is set, or if it was reached.
    pub srq_limit: u32,
}

/// A shared receive queue (`ibv_srq`), from which many queue pairs take receives. It has one poster at a
/// time, independently of the queue pairs.
///
/// A receive is reported by the completion queue of the queue pair that consumed it; if the queue is for XRC,
/// by the completion queue of the shared receive queue itself.
///
/// Dropping it leaves the posted receives, rung or not, to the queue pairs that use it. When the last of
/// these is gone, too, buffers that no message was received into are freed, and their receives are not
/// reported: [`destroy`](Self::destroy) reports them.
#[derive(Debug)]
pub struct Srq {
    queue: SharedRecvQueue<'static>,
    /// Posts the entries to a device of libibverbs; the software HCA takes them from the ring itself.
    doorbell: Option<Box<verbs::SrqDoorbell>>,
    shared: Arc<SrqShared>,
}

/// The device's queue, shared by the [`Srq`] and the queue pairs that use it. Destroyed with the last of
/// them.
#[derive(Debug)]
pub(crate) struct SrqShared {
    ctx: SrqSide,
    pub number: u32,
    /// The memory, which completion queues keep alive, too.
    pub memory: Arc<SrqMemory>,
    /// The completion queue of its receives, for XRC.
    cq: Option<Arc<CqShared>>,
    /// The queue pairs that receive from it, and their completion queues.
    users: Mutex<Vec<(u32, Weak<CqShared>)>>,
    pub pd: Pd,
}

impl SrqShared {
    /// The software HCA's queue.
    ///
    /// # Safety
    /// It is not used after `self` has been dropped.
    pub unsafe fn ctx(&self) -> Result<&'static SrqCtx, Error> {
        let queue = self.ctx.soft().ok_or(FOREIGN)?;
        // SAFETY: it exists until `revoke`, which is called when the queue has no users any longer.
        Ok(unsafe { queue.ctx() })
    }

    /// The queue of libibverbs.
    pub fn verbs(&self) -> Result<&Arc<verbs::Srq>, Error> {
        self.ctx.libibverbs().ok_or(FOREIGN)
    }

    /// The completion queue of its receives, for XRC.
    pub fn cq(&self) -> Option<&Arc<CqShared>> {
        self.cq.as_ref()
    }

    /// The queue pairs that receive from it, and their completion queues.
    pub fn users(&self) -> MutexGuard<'_, Vec<(u32, Weak<CqShared>)>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a queue pair receives from it, and the completion queue of those receives.
    pub fn admit(&self, qp_num: u32, cq: &Arc<CqShared>) {
        let mut users = self.users();
        users.retain(|(number, cq)| *number != qp_num && cq.strong_count() != 0);
        users.push((qp_num, Arc::downgrade(cq)));
    }

    /// The ledger, to be attached to a completion queue.
    ///
    /// # Safety
    /// It is not used after the memory has been freed.
    pub unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: the caller guarantees not to use it after the memory has been freed.
        unsafe { self.memory.ledger() }
    }

    /// Destroys the device's queue; `None`: it was destroyed before.
    fn revoke(&self) -> Option<Left<'_>> {
        let revoked = self.ctx.revoke(self)?;
        if let Some(cq) = &self.cq {
            // This is the only place that sets it.
            let _ = self.memory.end.set(cq.ctx.produced());
        }
        Some(revoked)
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        // Receives that were consumed are reported by completion queues; the buffers of the others are freed.
        for index in self.revoke().into_iter().flatten() {
            // SAFETY: the device has not completed the entry, and its queue is destroyed.
            drop(unsafe { self.memory.ledger().take_back(index) });
        }
    }
}

impl Srq {
    /// The queue's number (`ibv_get_srq_num`), by which XRC requests address it.
    pub fn srq_num(&self) -> u32 {
        self.shared.number
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Stages a receive into a whole block, which is returned by the completion.
    ///
    /// # Errors
    /// [`Rejected`], with the block.
    #[inline(always)]
    pub fn post_block(
        &mut self,
        wr_id: u64,
        block: Block<'static>,
    ) -> Result<(), Rejected<Block<'static>>> {
        self.queue.post_block(wr_id, block)
    }

    /// Stages a receive. This is the raw interface; [`post_block`](Self::post_block) is the safe one.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// The memory of `sges` stays valid, and the program does not access it, until the receive is reported.
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller guarantees that the memory stays valid and is not accessed until the receive is
        // reported.
        unsafe { self.queue.post(wr_id, sges) }
    }

    /// Stages the receives of a list, up to the first that is refused (the `bad_wr` of `ibv_post_srq_recv`).
    /// Those after it stay in the iterator.
    ///
    /// # Errors
    /// [`BadRequest`] says which receive was refused and why; those before it are staged.
    ///
    /// # Safety
    /// That of [`post`](Self::post), for each receive.
    #[inline]
    pub unsafe fn post_list<'s>(
        &mut self,
        requests: impl IntoIterator<Item = (u64, &'s [Sge])>,
    ) -> Result<(), BadRequest> {
        // SAFETY: the caller guarantees that the memory of each receive stays valid and is not accessed until
        // it is reported.
        unsafe { self.queue.post_list(requests) }
    }

    /// Posts all staged receives to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.queue.ring();
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.ring();
        }
    }

    /// The number of receives that can be staged before one has to complete.
    pub fn free(&mut self) -> u32 {
        self.queue.free()
    }

    /// The number of receives that are posted, staged ones and those included whose completions were not polled
    /// yet.
    pub(crate) fn posted(&mut self) -> u32 {
        self.queue.capacity() - self.queue.free()
    }

    /// The queue's attributes and its limit (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.queue.capacity(),
            max_sge: self.queue.max_sge(),
            // SAFETY: the device's queue exists as long as `self`.
            srq_limit: unsafe { self.shared.ctx.limit() },
        }
    }

    /// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`): when a message takes a receive and leaves
    /// fewer than `limit`, the limit is reached, once, and is then zero. Zero sets no limit. `max_wr` cannot
    /// be changed (`IBV_SRQ_MAX_WR`): create a larger queue instead.
    ///
    /// # Errors
    /// The limit exceeds `max_wr`; [`Error::Io`]: the device refuses.
    pub fn modify(&mut self, limit: u32) -> Result<(), Error> {
        let limit = check_limit(limit, self.queue.capacity())?;
        // SAFETY: the device's queue exists as long as `self`.
        unsafe { self.shared.ctx.set_limit(limit) }
    }

    /// Destroys the queue (`ibv_destroy_srq`). Every receive that was posted and not reported yet is passed
    /// to `each`, with its `wr_id` and its buffer, in no particular order; its completions that were not
    /// polled are discarded.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use the queue, with the unchanged queue.
    ///
    /// # Panics
    /// If `each` panics, after it was called for every receive.
    pub fn destroy(
        mut self,
        mut each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), (Self, Error)> {
        // `get_mut` succeeds only if nothing else shares the queue; it orders what others did before.
        if Arc::get_mut(&mut self.shared).is_none() {
            let users = (Arc::strong_count(&self.shared) - 1).max(1);
            let what = "shared receive queue";
            return Err((self, Error::Busy { what, users }));
        }
        let ctx = self.shared.revoke();
        let mut panics = Panics::default();
        // SAFETY: no queue pair uses the queue, and no XRC request finds it any longer.
        unsafe {
            // Each receive is reported once, and here.
            (self.shared.ledger()).clear(|wr_id, block| {
                panics.catch(|| each(wr_id, block));
            });
        }
        drop(ctx);
        panics.resume();
        Ok(())
    }

    /// The shared part, for a queue pair of this protection domain that receives from it.
    pub(crate) fn shared_with(&self, pd: &Pd) -> Result<Arc<SrqShared>, Error> {
        if !self.pd().is_same(pd) {
            return Err(Error::Foreign {
                what: "shared receive queue",
            });
        }
        if self.shared.cq.is_some() {
            return Err(Error::XrcSrq {
                srqn: self.srq_num(),
            });
        }
        Ok(self.shared.clone())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd().device().is_inherited() {
            return;
        }
        // Staged receives are posted, too: their buffers were accepted.
        self.ring();
    }
}

#[cfg(test)]
mod tests;
