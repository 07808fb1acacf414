//! The doorbell of a receive queue, and lists of receives.

use super::qp::Qp;
use super::request::element;
use super::sys;
use super::tag::{Kind, parts};
use super::wc;
use crate::error::Error;
use crate::pinned::collected;
use bellwire_core::port::{self, StagedReceives};
use bellwire_core::wqe::RecvRing;
use bellwire_core::wr::{Sge, WcStatus};
use std::iter::repeat_with;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

/// Most receives of one list.
pub(super) const LENGTH: usize = 16;
const MAX_SGE: usize = 128;

/// Preallocated memory for a list of receives.
pub(super) struct Chain {
    wrs: [MaybeUninit<sys::ibv_recv_wr>; LENGTH],
    sges: Box<[MaybeUninit<sys::ibv_sge>]>,
    max_sge: usize,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}

// SAFETY: the pointers in it are used during one call, on one thread.
unsafe impl Send for Chain {}
// SAFETY: it is only used through `&mut`.
unsafe impl Sync for Chain {}

impl Chain {
    /// For receives of up to `max_sge` elements.
    ///
    /// # Errors
    /// There is no memory for the list.
    pub fn new(max_sge: u32) -> Result<Self, Error> {
        let max_sge = (max_sge as usize).clamp(1, MAX_SGE);
        Ok(Self {
            wrs: [const { MaybeUninit::uninit() }; LENGTH],
            sges: collected(repeat_with(MaybeUninit::uninit).take(LENGTH * max_sge))?.into(),
            max_sge,
        })
    }

    /// Writes the receive at position `index`, which must be below [`LENGTH`].
    #[inline(always)]
    pub fn put(&mut self, index: usize, wr_id: u64, mut list: impl Iterator<Item = Sge>) {
        let sges = &mut self.sges[index * self.max_sge..][..self.max_sge];
        let mut used = 0;
        while let Some(sge) = list.next()
            && let Some(slot) = sges.get_mut(used)
        {
            slot.write(element(sge));
            used += 1;
        }
        self.wrs[index].write(sys::ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr().cast(),
            num_sge: used as i32,
        });
    }

    /// Posts the first `count` receives, which must have been written, by `post`; returns how many were
    /// taken.
    #[inline(always)]
    pub fn post(
        &mut self,
        count: usize,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> usize {
        let first: *mut sys::ibv_recv_wr = self.wrs.as_mut_ptr().cast();
        for index in 1..count {
            // SAFETY: both are within the array, and were written by `put`.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let mut bad = null_mut();
        if post(first, &raw mut bad) == 0 {
            return count;
        }
        let refused = (0..count).find(|&index| std::ptr::eq(first.wrapping_add(index), bad));
        refused.unwrap_or(0)
    }
}

/// The doorbell of a receive queue: ringing it posts every staged receive before it returns.
#[derive(Debug)]
pub struct RecvDoorbell {
    qp: Arc<Qp>,
    ring: RecvRing<'static>,
    one: One,
    chain: Box<Chain>,
}

/// Preallocated memory for one receive of one element.
struct One {
    wr: sys::ibv_recv_wr,
    sge: sys::ibv_sge,
    bad: *mut sys::ibv_recv_wr,
}

impl std::fmt::Debug for One {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("One").finish_non_exhaustive()
    }
}

// SAFETY: the pointers in it are used during one call, on one thread.
unsafe impl Send for One {}
// SAFETY: it is only used through `&mut`.
unsafe impl Sync for One {}

impl RecvDoorbell {
    /// # Errors
    /// There is no memory for lists.
    ///
    /// # Safety
    /// The ring is that of the queue pair's receive queue, and outlives this.
    pub unsafe fn new(qp: Arc<Qp>, ring: RecvRing<'static>) -> Result<Self, Error> {
        let chain = Box::new(Chain::new(ring.max_sge())?);
        let wr = sys::ibv_recv_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 1,
        };
        let sge = element(Sge::default());
        let bad = null_mut();
        let one = One { wr, sge, bad };
        Ok(Self {
            qp,
            ring,
            one,
            chain,
        })
    }

    /// Posts the receive before `to`, which has one element.
    #[inline(never)]
    fn post_one(&mut self, to: u32) {
        if self.qp.refused() {
            return self.post(to, 1);
        }
        let (qp, at, one) = (&*self.qp, to.wrapping_sub(1), &mut self.one);
        // SAFETY: the receive is posted, has an element, and is not written before it completes.
        one.sge = element(unsafe { self.ring.first(at) });
        one.wr.wr_id = qp.recv_tag().of(at);
        one.wr.sg_list = &raw mut one.sge;
        // SAFETY: the queue pair is alive; the list has one receive.
        let answer =
            unsafe { qp.post_recv()(qp.handle().as_ptr(), &raw mut one.wr, &raw mut one.bad) };
        if answer != 0 {
            return self.refuse_one();
        }
        if self.qp.failing() {
            self.qp.flush_again();
        }
    }

    /// Reports the receive of `one`, which was not taken.
    #[cold]
    #[inline(never)]
    fn refuse_one(&self) {
        let (.., counter) = parts(self.one.wr.wr_id);
        self.refuse(counter, counter.wrapping_add(1));
    }

    /// Posts the `count` receives before `to`; there are none when a life begins. Not inlined: one copy is
    /// enough.
    #[inline(never)]
    fn post(&mut self, to: u32, count: u32) {
        let from = to.wrapping_sub(count);
        if count != 0 && self.qp.refused() {
            return self.refuse(from, to);
        }
        let posted = self.post_all(from, to);
        if posted != to {
            return self.refuse(posted, to);
        }
        if self.qp.failing() {
            self.qp.flush_again();
        }
    }

    /// Posts the receives from `at` up to `to`; returns the counter of the first one that was not taken.
    fn post_all(&mut self, mut at: u32, to: u32) -> u32 {
        while at != to {
            let end = at.wrapping_add(to.wrapping_sub(at).min(LENGTH as u32));
            let posted = self.post_some(at, end);
            if posted != end {
                return posted;
            }
            at = end;
        }
        at
    }

    /// Posts up to [`LENGTH`] receives; returns the counter of the first one that was not taken.
    fn post_some(&mut self, from: u32, to: u32) -> u32 {
        let tag = self.qp.recv_tag();
        let count = (to.wrapping_sub(from) as usize).min(LENGTH);
        for index in 0..count {
            let at = from.wrapping_add(index as u32);
            // SAFETY: the receive is posted, and is not written before it completes.
            let list = unsafe { self.ring.read(at) };
            self.chain.put(index, tag.of(at), list);
        }
        let qp = self.qp.handle().as_ptr();
        let taken = self.chain.post(count, |first, bad| {
            // SAFETY: the queue pair is alive, and the list was just linked.
            unsafe { sys::ibv_post_recv(qp, first, bad) }
        });
        from.wrapping_add(taken as u32)
    }

    /// Reports the receives from `from` up to `to`, which were not taken, as flushed, after all that were
    /// posted before them.
    #[cold]
    #[inline(never)]
    fn refuse(&self, from: u32, to: u32) {
        if self.qp.set_refused() {
            self.qp.drain();
        }
        let mut at = from;
        while at != to {
            let index = self.qp.recv_tag().user_index();
            let cqe = wc::refused(Kind::Recv, index, at, WcStatus::WrFlushErr, 0);
            self.qp.produce(true, &cqe);
            at = at.wrapping_add(1);
        }
    }
}

// SAFETY: receives are posted in order, each once, and libibverbs completes each; the device writes memory
// only by their keys.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &StagedReceives) {
        match staged.count == 1 && staged.sges == 1 {
            true => self.post_one(staged.counter),
            false => self.post(staged.counter, staged.count),
        }
    }
}
