//! Shared receive queues.

mod create;
mod memory;

use crate::cq::CqShared;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::soft::SrqCtx;
#[cfg(feature = "verbs")]
use crate::verbs;
#[cfg(feature = "mlx5")]
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_core::queue::{BadRequest, PostError, Rejected, SharedRecvQueue, SrqLedger};
use bellwire_core::slab::Block;
use bellwire_core::wqe::SEGMENT;
use bellwire_core::wr::Sge;
pub(crate) use memory::SrqMemory;
#[cfg(feature = "mlx5")]
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Arc;
#[cfg(feature = "mlx5")]
use std::sync::{Mutex, PoisonError, Weak};

/// What a shared receive queue is to be able to do (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives in flight, at least one.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The limit to begin with, as [`Srq::modify`] sets it; zero for none.
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
    /// Entries that are reserved for it in each completion queue on which its receives complete.
    pub fn cq_entries(&self) -> u32 {
        self.count()
    }

    /// Entries of the ring: one is never posted.
    fn count(&self) -> u32 {
        (self.max_wr + 1).next_power_of_two()
    }

    fn stride(&self) -> u32 {
        ((self.max_sge.max(1) + 1) * SEGMENT as u32).next_power_of_two()
    }

    fn check(&self, pd: &Pd) -> Result<(), Error> {
        let attr = pd.device().attr();
        for (what, given, max) in [
            ("max_wr (at least 1)", self.max_wr, attr.max_srq_wr),
            ("max_sge", self.max_sge, attr.max_srq_sge),
        ] {
            if given > max {
                return Err(too_large(what, given, max));
            }
        }
        if self.max_wr == 0 {
            return Err(too_large("max_wr (at least 1)", 0, attr.max_srq_wr));
        }
        Ok(())
    }
}

#[cfg(feature = "verbs")]
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

/// What a shared receive queue is able to do (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives in flight: at least as many as asked for.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive: at least as many as asked for.
    pub max_sge: u32,
    /// The limit; zero when none is set, or the one that was is reached.
    pub srq_limit: u32,
}

/// A receive queue that many queue pairs take from. It has one poster at a time; who receives does
/// not matter to it.
///
/// What was posted is told by the completion queue of the queue pair that received it, or of the
/// shared receive queue itself where it is for XRC.
///
/// Dropping it leaves what was posted, rung or not, to the queue pairs that use it. When the last of
/// them is gone as well, buffers that no message has come into are given back, and their requests
/// are told by nobody: [`destroy`](Self::destroy) tells them.
#[derive(Debug)]
pub struct Srq {
    queue: SharedRecvQueue<'static>,
    /// What takes the entries to the device; the software HCA takes them itself.
    #[cfg(feature = "verbs")]
    doorbell: Option<Box<verbs::SrqDoorbell>>,
    shared: Arc<SrqShared>,
}

/// The device's queue, held by the [`Srq`] and the queue pairs that use it. Goes with the last one.
#[derive(Debug)]
pub(crate) struct SrqShared {
    ctx: SrqSide,
    number: u32,
    /// What a completion queue keeps.
    pub memory: Arc<SrqMemory>,
    /// Where it completes, for XRC.
    cq: Option<Arc<CqShared>>,
    /// Which queue pairs have received from it, and where that completes.
    #[cfg(feature = "mlx5")]
    users: Mutex<Vec<(u32, Weak<CqShared>)>>,
    pub pd: Pd,
}

/// The device's side, by who stands behind it.
#[derive(Debug)]
enum SrqSide {
    Soft(NonNull<SrqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Srq>),
}

/// What is left of the device's side, when it was taken away.
enum Revoked {
    Soft(Box<SrqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Srq>),
}

// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Send for SrqShared {}
// SAFETY: as above.
unsafe impl Sync for SrqShared {}

impl SrqShared {
    /// The software HCA's side.
    ///
    /// # Safety
    /// Not used after `self` has gone.
    pub unsafe fn ctx(&self) -> Result<&'static SrqCtx, Error> {
        match &self.ctx {
            // SAFETY: stays until `revoke`, which is called when there are no users any more.
            SrqSide::Soft(ctx) => Ok(unsafe { ctx.as_ref() }),
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(_) => Err(FOREIGN),
        }
    }

    /// That of libibverbs.
    #[cfg(feature = "verbs")]
    pub fn verbs(&self) -> Result<&Arc<verbs::Srq>, Error> {
        match &self.ctx {
            SrqSide::Verbs(srq) => Ok(srq),
            SrqSide::Soft(_) => Err(FOREIGN),
        }
    }

    /// A queue pair that receives from it completes there.
    #[cfg(feature = "mlx5")]
    pub fn admit(&self, qp_num: u32, cq: &Arc<CqShared>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|(number, cq)| *number != qp_num && cq.strong_count() != 0);
        users.push((qp_num, Arc::downgrade(cq)));
    }

    /// The entries that completions tell of which were not polled, on the device's own rings.
    #[cfg(feature = "mlx5")]
    fn completed(&self) -> HashSet<u16> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let mut completed = HashSet::new();
        for (qp_num, cq) in users.iter() {
            let cq = cq.upgrade();
            let Some(cq) = cq.as_ref().and_then(|cq| cq.ctx.mlx5().ok()) else {
                continue;
            };
            let of_it = |all: &mut HashSet<u16>, cqe: &Cqe64| {
                let of_receive = cqe.opcode().is_received() || cqe.opcode() == CqeOpcode::RespErr;
                if of_receive && cqe.qpn() == *qp_num {
                    all.insert(cqe.wqe_counter());
                }
            };
            completed.extend(cq.entries().fold(HashSet::new, of_it).0);
        }
        completed
    }

    /// What a completion queue attaches.
    ///
    /// # Safety
    /// Not used after the memory has gone.
    pub unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.ledger() }
    }

    #[cfg(feature = "verbs")]
    fn of_verbs(
        device: Arc<verbs::Srq>,
        memory: Arc<SrqMemory>,
        cq: Option<Arc<CqShared>>,
        pd: &Pd,
    ) -> Arc<Self> {
        Arc::new(Self {
            number: device.number(),
            ctx: SrqSide::Verbs(device),
            memory,
            cq,
            #[cfg(feature = "mlx5")]
            users: Mutex::default(),
            pd: pd.clone(),
        })
    }

    /// Takes the queue from the device. Once: `None` afterwards.
    fn revoke(&self) -> Option<Revoked> {
        let device = self.pd.device();
        let element = Element::Srq(self.number);
        let ctx = match &self.ctx {
            SrqSide::Soft(_) => {
                let hca = device.hca.soft("the queue's device").ok()?;
                let ctx = hca.destroy_srq(self.number)?;
                device.events.retire(element);
                Revoked::Soft(ctx)
            }
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(srq) => {
                if srq.is_gone() {
                    return None;
                }
                // Before: the next queue may have the number.
                device.events.retire(element);
                srq.destroy(self.cq.as_ref().and_then(|cq| cq.ctx.verbs().ok()));
                Revoked::Verbs(srq.clone())
            }
        };
        if let Some(cq) = &self.cq {
            // Nobody else sets it.
            let _ = self.memory.end.set(cq.ctx.produced());
        }
        Some(ctx)
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // What was taken is told by completion queues; what was not goes back.
        match self.revoke() {
            None => {}
            Some(Revoked::Soft(ctx)) => {
                while let Some(popped) = ctx.pop() {
                    // SAFETY: the device has not taken it.
                    drop(unsafe { self.memory.ledger().take_back(popped.index) });
                }
            }
            #[cfg(feature = "mlx5")]
            Some(Revoked::Verbs(_)) if self.memory.is_the_devices() => {
                let completed = self.completed();
                for index in (0..self.memory.count()).filter(|index| !completed.contains(index)) {
                    // SAFETY: the device has not completed it, and is gone.
                    drop(unsafe { self.memory.ledger().take_back(index) });
                }
            }
            #[cfg(feature = "verbs")]
            Some(Revoked::Verbs(srq)) => {
                for index in srq.left() {
                    // SAFETY: the device has not completed it, and is gone.
                    drop(unsafe { self.memory.ledger().take_back(index) });
                }
            }
        }
    }
}

impl Srq {
    /// Its number (`ibv_get_srq_num`), by which XRC requests name it.
    pub fn srq_num(&self) -> u32 {
        self.shared.number
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Stages a receive into a whole block, which comes back with the completion.
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
        // SAFETY: the caller's promise.
        unsafe { self.queue.post(wr_id, sges) }
    }

    /// Stages the receives of a list, up to the first that is refused (the `bad_wr` of
    /// `ibv_post_srq_recv`). What comes behind that one is left in the iterator.
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
        // SAFETY: the caller's promise.
        unsafe { self.queue.post_list(requests) }
    }

    /// Makes everything staged known to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.queue.ring();
        #[cfg(feature = "verbs")]
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.ring();
        }
    }

    /// Requests that can be staged before something has to complete.
    pub fn free(&mut self) -> u32 {
        self.queue.free()
    }

    /// What it is able to do, and its limit (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.queue.capacity(),
            max_sge: self.queue.max_sge(),
            srq_limit: match &self.shared.ctx {
                // SAFETY: `self` is there.
                SrqSide::Soft(ctx) => unsafe { ctx.as_ref() }.queue.limit().into(),
                #[cfg(feature = "verbs")]
                SrqSide::Verbs(srq) => srq.limit(),
            },
        }
    }

    /// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`): when a message takes a receive and
    /// leaves fewer than `limit`, the limit is reached, once, and is zero then. Zero sets none.
    /// `max_wr` cannot be changed (`IBV_SRQ_MAX_WR`): create a larger queue instead.
    ///
    /// # Errors
    /// A limit above `max_wr`; [`Error::Io`] when the device refuses.
    pub fn modify(&mut self, limit: u32) -> Result<(), Error> {
        let limit = check_limit(limit, self.queue.capacity())?;
        match &self.shared.ctx {
            // SAFETY: `self` is there.
            SrqSide::Soft(ctx) => unsafe { ctx.as_ref() }.queue.set_limit(limit),
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(srq) => srq.set_limit(limit)?,
        }
        Ok(())
    }

    /// Destroys it (`ibv_destroy_srq`). Everything posted and not told yet goes to `each`, with its
    /// identifier and its buffer, in no order; completions of it that were not polled are dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it, and the queue, as it was.
    pub fn destroy(
        mut self,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), (Self, Error)> {
        // Nobody else has it: everything that others did with it comes before.
        if Arc::get_mut(&mut self.shared).is_none() {
            let users = (Arc::strong_count(&self.shared) - 1).max(1);
            let what = "shared receive queue";
            return Err((self, Error::Busy { what, users }));
        }
        let ctx = self.shared.revoke();
        // SAFETY: no queue pair uses it, and no XRC request finds it any more.
        unsafe { self.shared.ledger().clear(each) };
        drop(ctx);
        Ok(())
    }

    /// What a queue pair of this protection domain that receives from it holds.
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
        // What is staged was taken, as what is rung.
        self.ring();
    }
}

#[cfg(test)]
mod tests;
