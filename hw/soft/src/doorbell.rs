//! The doorbells of a software HCA.

use super::hca::{Hca, Running};
use super::qp::QpCtx;
use bellwire_core::port::{self, DoorbellRecord, Staged, StagedReceives};

/// Rings a send queue. In inline mode, the entries that can be executed have been executed when this returns.
#[derive(Debug)]
pub struct SendDoorbell {
    hca: &'static Hca,
    ctx: &'static QpCtx,
}

impl SendDoorbell {
    /// # Safety
    /// The device and the queue pair outlive the doorbell's last use.
    pub unsafe fn new(hca: &Running, ctx: &'static QpCtx) -> Self {
        // SAFETY: the caller guarantees that the device outlives the doorbell's last use.
        let hca = unsafe { &*std::ptr::from_ref::<Hca>(hca) };
        Self { hca, ctx }
    }

    /// Rings for the entries before this counter, for a caller that observes another thread's ring. One
    /// thread at a time may call it.
    pub fn ring_up_to(&self, counter: u32) {
        self.hca.ring(self.ctx, counter);
    }
}

// SAFETY: the device executes entries in order, each once, and completes those that are signalled or fail; it
// accesses memory only through memory keys.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        // SAFETY: the caller keeps the promise.
        unsafe { self.hca.ring_staged(self.ctx, staged) };
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
    /// The device and the queue pair outlive the doorbell's last use, as for [`SendDoorbell::new`].
    pub unsafe fn new(
        hca: &Running,
        ctx: &'static QpCtx,
        qpn: u32,
        record: &'static DoorbellRecord,
    ) -> Self {
        // SAFETY: the caller guarantees that the device outlives the doorbell's last use.
        let hca = unsafe { &*std::ptr::from_ref::<Hca>(hca) };
        Self {
            hca,
            ctx,
            qpn,
            record,
        }
    }

    /// Whether receives are flushed as they are posted.
    pub fn flushes(&self) -> bool {
        self.ctx.rights.flushing.is_on()
    }

    /// Flushes what was posted, if receives are flushed.
    #[cold]
    #[inline(never)]
    fn look_again(&self) {
        if self.flushes() {
            self.flush();
        }
    }

    /// Flushes the receives that the doorbell record announces.
    pub fn flush(&self) {
        self.hca.receive_posted_in_error(self.qpn);
    }
}

// SAFETY: receives are consumed in order, each once, and complete; the device writes only to memory that
// their lkeys allow.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &StagedReceives) {
        self.record.store(staged.counter & 0xffff);
        if !self.ctx.rights.flushing.is_off() {
            self.look_again();
        }
    }
}
