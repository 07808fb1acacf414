//! The doorbell of a receive queue, and how receives are posted.

use super::qp::Qp;
use super::request::element;
use super::sys;
use super::tag::{Kind, parts};
use super::wc;
use bellwire_core::port::{self, StagedReceives};
use bellwire_core::wqe::RecvRing;
use bellwire_core::wr::{Sge, WcStatus};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

/// Requests of one list, and elements of one request.
pub(super) const LENGTH: usize = 16;
const MAX_SGE: usize = 128;

/// Prepared memory for a list of receives.
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

// SAFETY: the pointers in it are of one post, on one thread.
unsafe impl Send for Chain {}
// SAFETY: used by `&mut` only.
unsafe impl Sync for Chain {}

impl Chain {
    /// For receives of so many elements.
    pub fn new(max_sge: u32) -> Self {
        let max_sge = (max_sge as usize).clamp(1, MAX_SGE);
        Self {
            wrs: [const { MaybeUninit::uninit() }; LENGTH],
            sges: (0..LENGTH * max_sge)
                .map(|_| MaybeUninit::uninit())
                .collect(),
            max_sge,
        }
    }

    /// Writes the receive at place `index`, which is below [`LENGTH`].
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

    /// Gives the first `count` receives, which have been written, to `post`; how many it took.
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

/// Rings a receive queue: everything staged has been posted when this returns.
#[derive(Debug)]
pub struct RecvDoorbell {
    qp: Arc<Qp>,
    ring: RecvRing<'static>,
    one: One,
    chain: Box<Chain>,
}

/// Prepared memory for one receive of one element.
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

// SAFETY: the pointers in it are of one post, on one thread.
unsafe impl Send for One {}
// SAFETY: used by `&mut` only.
unsafe impl Sync for One {}

impl RecvDoorbell {
    /// # Safety
    /// The ring is that of the queue pair's receive queue, and stays as long as it is rung for.
    pub(crate) unsafe fn new(qp: Arc<Qp>, ring: RecvRing<'static>) -> Self {
        let chain = Box::new(Chain::new(ring.max_sge()));
        let wr = sys::ibv_recv_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 1,
        };
        let sge = element(Sge::default());
        let bad = null_mut();
        let one = One { wr, sge, bad };
        Self {
            qp,
            ring,
            one,
            chain,
        }
    }

    /// Posts the receive before `to`, which has one element.
    #[inline(never)]
    fn post_one(&mut self, to: u32) {
        if self.qp.refused() {
            return self.post(to, 1);
        }
        let (qp, at, one) = (&*self.qp, to.wrapping_sub(1), &mut self.one);
        // SAFETY: posted, with an element, and not written before it completes.
        one.sge = element(unsafe { self.ring.first(at) });
        one.wr.wr_id = qp.recv_tag().of(at);
        one.wr.sg_list = &raw mut one.sge;
        // SAFETY: alive; a list of one.
        let answer =
            unsafe { qp.post_recv()(qp.handle().as_ptr(), &raw mut one.wr, &raw mut one.bad) };
        if answer != 0 {
            return self.refuse_one();
        }
        if self.qp.failing() {
            self.qp.flush_again();
        }
    }

    /// The receive that the device was given last was not taken, and is the only one.
    #[cold]
    #[inline(never)]
    fn refuse_one(&self) {
        let (.., counter) = parts(self.one.wr.wr_id);
        self.refuse(counter, counter.wrapping_add(1));
    }

    /// Posts `count` receives up to `to`; none where a life begins. A function of its own: there is no
    /// need for more than one.
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

    /// Gives the first that was not taken.
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

    /// The same, of up to [`LENGTH`] receives.
    fn post_some(&mut self, from: u32, to: u32) -> u32 {
        let tag = self.qp.recv_tag();
        let count = (to.wrapping_sub(from) as usize).min(LENGTH);
        for index in 0..count {
            let at = from.wrapping_add(index as u32);
            // SAFETY: posted, and not written before it completes.
            let list = unsafe { self.ring.read(at) };
            self.chain.put(index, tag.of(at), list);
        }
        let qp = self.qp.handle().as_ptr();
        let taken = self.chain.post(count, |first, bad| {
            // SAFETY: alive; a list that was just linked.
            unsafe { sys::ibv_post_recv(qp, first, bad) }
        });
        from.wrapping_add(taken as u32)
    }

    /// As the send doorbell's.
    #[cold]
    #[inline(never)]
    fn refuse(&self, from: u32, to: u32) {
        if self.qp.set_refused() {
            self.qp.drain();
        }
        let mut at = from;
        while at != to {
            let index = self.qp.recv_tag().user_index();
            let cqe = wc::refused(Kind::Recv, index, at, WcStatus::WrFlushErr);
            self.qp.produce(true, &cqe);
            at = at.wrapping_add(1);
        }
    }
}

// SAFETY: receives are posted in order, each once, and libibverbs completes each; the device writes
// only memory that their keys allow.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &StagedReceives) {
        match staged.count == 1 && staged.sges == 1 {
            true => self.post_one(staged.counter),
            false => self.post(staged.counter, staged.count),
        }
    }
}
