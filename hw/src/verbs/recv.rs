//! The doorbell of a receive queue, and how receives are posted.

use super::qp::Qp;
use super::request::element;
use super::sys;
use super::tag::Kind;
use super::wc;
use bellwire_core::port;
use bellwire_core::wqe::RecvRing;
use bellwire_core::wr::{Sge, WcStatus};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

/// Requests of one list, and elements of one request.
const LENGTH: usize = 16;
const MAX_SGE: usize = 128;

/// Prepared memory for a list of receives.
pub(super) struct Chain {
    wrs: [MaybeUninit<sys::ibv_recv_wr>; LENGTH],
    sges: Box<[MaybeUninit<sys::ibv_sge>]>,
    max_sge: usize,
    count: usize,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("count", &self.count)
            .finish_non_exhaustive()
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
            count: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.count == LENGTH
    }

    /// Adds a receive. The list is not full.
    pub fn push(&mut self, wr_id: u64, list: impl Iterator<Item = Sge>) {
        let sges = &mut self.sges[self.count * self.max_sge..][..self.max_sge];
        let mut used = 0;
        for (slot, sge) in sges.iter_mut().zip(list) {
            slot.write(element(sge));
            used += 1;
        }
        self.wrs[self.count].write(sys::ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr().cast(),
            num_sge: used,
        });
        self.count += 1;
    }

    /// Gives the list to `post`, and is empty again; how many it took.
    pub fn flush(
        &mut self,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> usize {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return 0;
        }
        let first: *mut sys::ibv_recv_wr = self.wrs.as_mut_ptr().cast();
        for index in 1..count {
            // SAFETY: both are within the array, and were written by `push`.
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
    chain: Box<Chain>,
}

impl RecvDoorbell {
    /// # Safety
    /// The ring is that of the queue pair's receive queue, and stays as long as it is rung for.
    pub(crate) unsafe fn new(qp: Arc<Qp>, ring: RecvRing<'static>) -> Self {
        let chain = Box::new(Chain::new(ring.max_sge()));
        Self { qp, ring, chain }
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
            let index = self.qp.recv_index();
            let cqe = wc::refused(Kind::Recv, index, at, WcStatus::WrFlushErr);
            // Without room the queue has overrun, which `reserve_cq` rules out.
            let _room = self.qp.recv_cq().produce(&cqe);
            at = at.wrapping_add(1);
        }
    }
}

// SAFETY: receives are posted in order, each once, and libibverbs completes each; the device writes
// only memory that their keys allow.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    fn ring(&mut self, counter: u32) {
        let mut at = self.qp.recv_from(counter);
        if self.qp.refused() {
            return self.refuse(at, counter);
        }
        let tag = self.qp.recv_tag();
        while at != counter {
            let from = at;
            while at != counter && !self.chain.is_full() {
                // SAFETY: posted, and not written before it completes.
                let list = unsafe { self.ring.read(at) };
                self.chain.push(tag.of(at), list);
                at = at.wrapping_add(1);
            }
            let qp = self.qp.handle().as_ptr();
            let taken = self.chain.flush(|first, bad| {
                // SAFETY: alive; a list that was just linked.
                unsafe { sys::ibv_post_recv(qp, first, bad) }
            });
            let taken = from.wrapping_add(taken as u32);
            if taken != at {
                return self.refuse(taken, counter);
            }
        }
        if self.qp.failing() {
            self.qp.flush_again();
        }
    }
}
