//! The send doorbell: posts what core staged in the ring.
//!
//! A request that the device does not take still has its outcome. The queue pair goes to ERR, what is
//! before the request is flushed and told, and then it and all behind it are told by entries of our
//! own.

use super::chain::{Chain, LENGTH};
use super::qp::Qp;
use super::request::address;
use super::tag::Kind;
use super::{extended, wc};
use bellwire_core::port::{self, Staged};
use bellwire_core::wqe::{SendRing, SendWqe, opcode};
use bellwire_core::wr::WcStatus;
use std::ptr::NonNull;
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

    /// Posts the one entry that is staged, a request with this operation code whose data are in one
    /// piece, from what its poster knows of it.
    #[inline(always)]
    fn post_known<const OPCODE: u8, const INLINE: bool>(
        &mut self,
        to: u32,
        entry: NonNull<u8>,
        fm_ce_se: u8,
        inline: u16,
    ) {
        let own = &*self.qp;
        let Some(qp) = own.direct() else {
            return self.post(to);
        };
        own.posts_up_to(to);
        // Such an entry is one block.
        let counter = to.wrapping_sub(1);
        // SAFETY: the only poster; the entry was staged, and is the device's now.
        let posted = unsafe {
            extended::post_known::<OPCODE, INLINE>(own, qp, entry, counter, fm_ce_se, inline)
        };
        if !posted {
            self.refuse_known();
        }
    }

    /// [`post_known`](Self::post_known) where the data are an element.
    #[inline(never)]
    fn post_element<const OPCODE: u8>(&mut self, to: u32, entry: NonNull<u8>, fm_ce_se: u8) {
        self.post_known::<OPCODE, false>(to, entry, fm_ce_se, 0);
    }

    /// The last entry was not taken: [`post_known`](Self::post_known), whose entry is one block.
    #[cold]
    #[inline(never)]
    fn refuse_known(&self) {
        let to = self.qp.posted();
        self.refuse(to.wrapping_sub(1), to);
    }

    /// Posts the entries up to `to`. A function of its own: there is no need for more than one.
    #[inline(never)]
    fn post(&mut self, to: u32) {
        let from = self.qp.send_from(to);
        if self.qp.refused() {
            return self.refuse(from, to);
        }
        let posted = match self.qp.extended() {
            // SAFETY: the only poster; the entries were staged, and are the device's now.
            Some(qp) if self.qp.is_connected() => unsafe {
                extended::post::<{ address::NONE }>(self, qp.as_ptr(), from, to)
            },
            _ => self.post_other(from, to),
        };
        if posted != to {
            self.refuse(posted, to);
        }
    }

    /// Datagrams, XRC, and what goes by `ibv_post_send`.
    #[inline(never)]
    fn post_other(&mut self, from: u32, to: u32) -> u32 {
        // SAFETY: as in `post`.
        unsafe {
            match self.qp.extended() {
                Some(qp) if self.qp.is_xrc() => {
                    extended::post::<{ address::XRC }>(self, qp.as_ptr(), from, to)
                }
                Some(qp) => extended::post::<{ address::DATAGRAM }>(self, qp.as_ptr(), from, to),
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
        // Of a queue pair that failed, or was taken to ERR, without having been in RTS libmlx5 takes
        // nothing.
        let flushed = !first || self.qp.failing();
        if first {
            self.qp.drain();
        }
        let mut at = from;
        while at != to {
            // SAFETY: staged, and not written before it completes.
            let wqe = unsafe { SendWqe::read(self.ring, at) };
            let status = match wqe.opcode() {
                _ if flushed || at != from => WcStatus::WrFlushErr,
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
        let (to, entry, known) = (staged.counter, staged.last, staged.known);
        let (fm_ce_se, inline) = (known.fm_ce_se, known.inline);
        // What there is most of has code of its own. Where a request is posted and rung in one place,
        // the compiler knows which.
        if staged.count == 1 {
            macro_rules! known {
                ($opcode:path) => {
                    match extended::in_one_piece::<{ $opcode }>(known) {
                        Some(true) => {
                            return self
                                .post_known::<{ $opcode }, true>(to, entry, fm_ce_se, inline);
                        }
                        Some(false) => {
                            return self.post_element::<{ $opcode }>(to, entry, fm_ce_se);
                        }
                        None => {}
                    }
                };
            }
            match known.opcode {
                opcode::SEND => known!(opcode::SEND),
                opcode::RDMA_WRITE => known!(opcode::RDMA_WRITE),
                opcode::RDMA_READ => known!(opcode::RDMA_READ),
                _ => {}
            }
        }
        self.post(to);
    }
}
