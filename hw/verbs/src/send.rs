//! The send doorbell: posts the requests that core has staged in the ring.
//!
//! A request that the device does not take is reported as well. The queue pair is moved to ERR, the requests
//! before it are flushed and reported, and then the request and all after it are reported by entries that
//! this module writes.

use super::calls::Poster;
use super::chain::{Chain, LENGTH};
use super::qp::Qp;
use super::request::address;
use super::tag::Kind;
use super::{extended, wc};
use crate::error::Error;
use bellwire_core::port::{self, Staged};
use bellwire_core::wqe::{SendRing, SendWqe, fm_ce_se_at, opcode};
use bellwire_core::wr::WcStatus;
use bellwire_provider::thread::Uncancelled;
use std::ptr::NonNull;
use std::sync::Arc;

/// The doorbell of a send queue: ringing it posts every staged request before it returns.
#[derive(Debug)]
pub struct SendDoorbell {
    pub(super) qp: Arc<Qp>,
    pub(super) ring: SendRing<'static>,
    /// For requests that are not posted by `ibv_wr_*`.
    pub(super) chain: Chain,
    /// Posting is a system call of the C library, and so a cancellation point.
    calls: bool,
}

impl SendDoorbell {
    /// # Errors
    /// There is no memory for lists.
    ///
    /// # Safety
    /// The ring is that of the queue pair's send queue, and outlives this.
    pub unsafe fn new(qp: Arc<Qp>, ring: SendRing<'static>) -> Result<Self, Error> {
        let chain = Chain::new(if qp.extended().is_some() { 1 } else { LENGTH })?;
        let calls = qp.posts_by_system_call();
        Ok(Self {
            qp,
            ring,
            chain,
            calls,
        })
    }

    /// Posts the one staged entry, a request with this opcode whose data are in one piece, from what the
    /// poster of the entry passes on.
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
        // Such an entry has one basic block.
        let counter = to.wrapping_sub(1);
        // SAFETY: this is the only poster; the entry is staged, and not written before it completes.
        let posted = unsafe {
            extended::post_known::<OPCODE, INLINE>(own, qp, entry, counter, fm_ce_se, inline)
        };
        if !posted {
            self.refuse_known();
        }
    }

    /// [`post_known`](Self::post_known) for a request with one scatter/gather element.
    #[inline(never)]
    fn post_element<const OPCODE: u8>(&mut self, to: u32, entry: NonNull<u8>, fm_ce_se: u8) {
        self.post_known::<OPCODE, false>(to, entry, fm_ce_se, 0);
    }

    /// Reports the last entry as not taken, after [`post_known`](Self::post_known), whose entry has one
    /// block.
    #[cold]
    #[inline(never)]
    fn refuse_known(&self) {
        let to = self.qp.posted();
        self.refuse(to.wrapping_sub(1), to);
    }

    /// Posts the entries up to `to`. Not inlined: one copy is enough.
    #[inline(never)]
    fn post(&mut self, to: u32) {
        let from = self.qp.send_from(to);
        if self.qp.refused() {
            return self.refuse(from, to);
        }
        let posted = match self.qp.extended() {
            // SAFETY: this is the only poster; the entries are staged, and not written before they complete.
            Some(qp) if self.qp.is_connected() => unsafe {
                let Self {
                    qp: own,
                    ring,
                    chain,
                    ..
                } = self;
                extended::post::<{ address::NONE }>(own, qp.as_ptr(), *ring, chain, from, to)
            },
            _ => self.post_other(from, to),
        };
        if posted != to {
            self.refuse(posted, to);
        }
    }

    /// Posts datagrams, requests of XRC, and everything on queue pairs without `ibv_wr_*`.
    #[inline(never)]
    fn post_other(&mut self, from: u32, to: u32) -> u32 {
        let Self {
            qp: own,
            ring,
            chain,
            ..
        } = self;
        let (own, ring) = (&**own, *ring);
        // Held until the end: a list is posted after its requests were read.
        let _handles = own.uses_address_handles();
        // SAFETY: this is the only poster; the entries are staged, and not written before they complete.
        unsafe {
            match own.extended().map(Poster::as_ptr) {
                Some(qp) if own.is_xrc() => {
                    extended::post::<{ address::XRC }>(own, qp, ring, chain, from, to)
                }
                Some(qp) => extended::post::<{ address::DATAGRAM }>(own, qp, ring, chain, from, to),
                None => chain.post(own, ring, from, to),
            }
        }
    }

    /// Reports the entries from `from` up to `to`, which were not taken, as failed, after all that were
    /// posted before them.
    #[cold]
    #[inline(never)]
    fn refuse(&self, from: u32, to: u32) {
        let first = self.qp.set_refused();
        // libmlx5 takes no request on a queue pair that failed, or was moved to ERR, without having been in
        // RTS.
        let flushed = !first || self.qp.failing();
        // SAFETY: the entry is staged, and is not written before it completes.
        let read = |at| unsafe { SendWqe::read(self.ring, at) };
        let user_index = self.qp.send_tag().user_index();
        if !flushed {
            let status = match read(from).operation() {
                Some(operation) if operation.is_registration() => WcStatus::MwBindErr,
                _ => WcStatus::LocQpOpErr,
            };
            // Before the drain, which has a device flush the request that it was not told of.
            self.qp.set_refusal(from, status);
        }
        if first {
            self.qp.drain();
        }
        let mut at = from;
        while at != to {
            let wqe = read(at);
            let flush = || wc::refused(Kind::Send, user_index, at, WcStatus::WrFlushErr, 0);
            let refusal = self.qp.refusal(user_index, at).filter(|_| !flushed);
            self.qp.produce(false, &refusal.unwrap_or_else(flush));
            at = at.wrapping_add(wqe.blocks());
        }
    }
}

// SAFETY: entries are posted in order, each once; libibverbs completes requests that are signalled or fail,
// with their counters in `wr_id`. The device accesses memory only by keys.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        match self.calls {
            // A copy, so that other devices need not have it in memory.
            true => self.ring_whole(*staged),
            false => self.ring_now(staged),
        }
    }
}

impl SendDoorbell {
    /// Posts staged requests, while cancellation of the thread is deferred.
    #[cold]
    #[inline(never)]
    fn ring_whole(&mut self, staged: Staged) {
        let _whole = Uncancelled::new();
        self.ring_now(&staged);
    }

    #[inline(always)]
    fn ring_now(&mut self, staged: &Staged) {
        let (to, entry, known) = (staged.counter, staged.last, staged.known);
        // SAFETY: the last entry is staged.
        let (fm_ce_se, inline) = (unsafe { fm_ce_se_at(entry) }, known.inline());
        // The most frequent operations have code of their own. Where posting and ringing are inlined at the
        // same place, the compiler knows which one it is.
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
            match known.opcode() {
                opcode::SEND => known!(opcode::SEND),
                opcode::RDMA_WRITE => known!(opcode::RDMA_WRITE),
                opcode::RDMA_READ => known!(opcode::RDMA_READ),
                _ => {}
            }
        }
        self.post(to);
    }
}
