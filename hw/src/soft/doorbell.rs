//! The doorbells of a software HCA.

use super::hca::{Hca, Running};
use super::qp::QpCtx;
use bellwire_core::port::{self, DoorbellRecord, Staged, StagedReceives};
use std::sync::atomic::Ordering;

/// Rings a send queue: in inline mode its entries are executed when this returns, as far as they can.
#[derive(Debug)]
pub struct SendDoorbell {
    hca: &'static Hca,
    ctx: &'static QpCtx,
    qpn: u32,
}

impl SendDoorbell {
    /// # Safety
    /// Not used after the device or the queue pair has gone.
    pub(crate) unsafe fn new(hca: &Running, ctx: &'static QpCtx, qpn: u32) -> Self {
        // SAFETY: the caller's promise.
        let hca = unsafe { &*std::ptr::from_ref::<Hca>(hca) };
        Self { hca, ctx, qpn }
    }

    /// Rings for the entries before this counter, by who looks at somebody else's ring: by one thread
    /// at a time.
    #[cfg(feature = "rings")]
    pub(crate) fn ring_up_to(&self, counter: u32) {
        self.hca.ring(self.ctx, self.qpn, counter);
    }
}

// SAFETY: the device executes entries in order, each once, and completes those that are signalled or
// fail; it touches memory only through keys.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &Staged) {
        self.hca.ring(self.ctx, self.qpn, staged.counter);
    }
}

/// Rings a receive queue.
#[derive(Debug)]
pub struct RecvDoorbell {
    hca: &'static Hca,
    ctx: &'static QpCtx,
    qpn: u32,
    record: &'static DoorbellRecord,
}

impl RecvDoorbell {
    /// # Safety
    /// As [`SendDoorbell::new`].
    pub(crate) unsafe fn new(
        hca: &Running,
        ctx: &'static QpCtx,
        qpn: u32,
        record: &'static DoorbellRecord,
    ) -> Self {
        // SAFETY: the caller's promise.
        let hca = unsafe { &*std::ptr::from_ref::<Hca>(hca) };
        Self {
            hca,
            ctx,
            qpn,
            record,
        }
    }

    /// Whether receives are flushed as they are posted.
    #[cfg(feature = "rings")]
    pub(crate) fn flushes(&self) -> bool {
        // Acquire: what is posted after it was set is in the record that is read next.
        self.ctx.receiver.flushing.load(Ordering::Acquire)
    }

    /// Flushes what the record says.
    #[cfg(feature = "rings")]
    pub(crate) fn flush(&self) {
        self.hca.receive_posted_in_error(self.qpn);
    }
}

// SAFETY: receives are consumed in order, each once, and complete; the device writes only memory
// that their keys allow.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &StagedReceives) {
        self.record.store(staged.counter & 0xffff);
        // The store before the load: partner of the barrier in `Hca::shut`, behind which the record
        // is read for the flush.
        self.hca.barriers.light();
        // Relaxed: as above.
        if self.ctx.receiver.flushing.load(Ordering::Relaxed) {
            self.hca.receive_posted_in_error(self.qpn);
        }
    }
}
