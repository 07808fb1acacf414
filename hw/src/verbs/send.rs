//! The send doorbell: posts what core staged in the ring.
//!
//! A request that the device does not take still has its outcome. The queue pair goes to ERR, what is
//! before the request is flushed and told, and then it and all behind it are told by entries of our
//! own.

use super::chain::{Chain, LENGTH};
use super::qp::Qp;
use super::tag::Kind;
use super::{extended, wc};
use bellwire_core::port::{self, Staged};
use bellwire_core::wqe::{SendRing, SendWqe, opcode};
use bellwire_core::wr::WcStatus;
use std::sync::Arc;

/// Rings a send queue: everything staged has been posted when this returns.
#[derive(Debug)]
pub struct SendDoorbell {
    pub(super) qp: Arc<Qp>,
    pub(super) ring: SendRing<'static>,
    /// For what does not go by `ibv_wr_*`.
    pub(super) chain: Chain,
}

impl SendDoorbell {
    /// # Safety
    /// The ring is that of the queue pair's send queue, and stays as long as it is rung for.
    pub(crate) unsafe fn new(qp: Arc<Qp>, ring: SendRing<'static>) -> Self {
        let chain = Chain::new(if qp.extended().is_some() { 1 } else { LENGTH });
        Self { qp, ring, chain }
    }

    /// Posts `count` entries up to `to`. A function of its own: there is no need for more than one.
    #[inline(never)]
    fn post(&mut self, to: u32, count: u32) {
        let from = self.qp.send_from(to);
        if self.qp.refused() {
            return self.refuse(from, to);
        }
        let posted = match self.qp.extended() {
            // SAFETY: the only poster; the entries were staged, and are the device's now.
            Some(qp) if !self.qp.is_datagram() => unsafe {
                extended::post::<false>(self, qp.as_ptr(), from, to, count)
            },
            _ => self.post_other(from, to, count),
        };
        if posted != to {
            self.refuse(posted, to);
        }
    }

    /// Datagrams, and what goes by `ibv_post_send`.
    #[inline(never)]
    fn post_other(&mut self, from: u32, to: u32, count: u32) -> u32 {
        // SAFETY: as in `post`.
        unsafe {
            match self.qp.extended() {
                Some(qp) => extended::post::<true>(self, qp.as_ptr(), from, to, count),
                None => self.chain.post(&self.qp, self.ring, from, to),
            }
        }
    }

    /// The entries from `from` up to `to` are not taken: each is told as failed, behind all that were
    /// posted before.
    #[cold]
    #[inline(never)]
    fn refuse(&self, from: u32, to: u32) {
        let first = self.qp.set_refused();
        if first {
            self.qp.drain();
        }
        let mut at = from;
        while at != to {
            // SAFETY: staged, and not written before it completes.
            let wqe = unsafe { SendWqe::read(self.ring, at) };
            let status = match wqe.opcode() {
                _ if !first || at != from => WcStatus::WrFlushErr,
                opcode::UMR => WcStatus::MwBindErr,
                _ => WcStatus::LocQpOpErr,
            };
            let cqe = wc::refused(Kind::Send, self.qp.send_tag().user_index(), at, status);
            self.qp.produce(false, &cqe);
            at = at.wrapping_add(wqe.blocks());
        }
    }
}

// SAFETY: entries are posted in order, each once; libibverbs completes those that are signalled or
// fail, under their counters. The device touches memory only through keys.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &Staged) {
        self.post(staged.counter, staged.count);
    }
}
