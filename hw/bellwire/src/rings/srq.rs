//! Shared receive queues whose rings another library posts to.

use super::{Cq, UNSUPPORTED, does_not_fit};
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::soft::{SrqCtx, XrcSrq};
use crate::xrcd::Xrcd;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::SrqConsumer;
use bellwire_core::wqe::SrqRing;
use std::ptr::NonNull;
use std::sync::Arc;

/// The attributes of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit<'a> {
    /// The ring: `count` linked entries of `stride` bytes.
    pub ring: NonNull<u8>,
    /// The number of entries, a power of two.
    pub count: u32,
    /// The bytes of an entry, a power of two.
    pub stride: u32,
    /// The doorbell record, which counts posted receives.
    pub record: NonNull<DoorbellRecord>,
    /// The initial limit; zero for none.
    pub limit: u16,
    /// For XRC: the domain, the completion queue of its receives, and the user index in its completions.
    pub xrc: Option<(&'a Xrcd, &'a Cq, u32)>,
}

/// A shared receive queue, seen from the device's side. It is destroyed when it and every queue pair on it
/// are dropped.
#[derive(Clone, Debug)]
pub struct Srq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ctx: NonNull<SrqCtx>,
    number: u32,
    pd: Pd,
    // Kept until the queue is destroyed.
    _cq: Option<Cq>,
}

// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Send for Inner {}
// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Sync for Inner {}

impl Srq {
    /// Creates a queue to which nothing was posted yet.
    ///
    /// # Errors
    /// The format does not support a size; the domain or completion queue belongs to another device; the
    /// device is not a software HCA; no number is left.
    ///
    /// # Safety
    /// Ring and record are valid for reads and writes until the queue, its clones, and all queue pairs on it
    /// are destroyed. One poster uses them, as it would use those of a ConnectX device.
    pub unsafe fn new(pd: &Pd, init: &SrqInit<'_>) -> Result<Self, Error> {
        let device = pd.device();
        let hca = device.hca.soft().ok_or(UNSUPPORTED)?;
        // SAFETY: the caller guarantees that ring and record are valid until the queue is destroyed.
        let (ring, record) = unsafe {
            let ring = SrqRing::new(init.ring, init.count, init.stride);
            (ring, &*init.record.as_ptr())
        };
        let ring = ring.ok_or_else(|| does_not_fit("max_wr", init.count, 1 << 15))?;
        if let Some((xrcd, cq, _)) = init.xrc
            && !(xrcd.device().hca.is_same(&device.hca) && cq.is_of(device))
        {
            return Err(Error::Foreign {
                what: "XRC domain or completion queue",
            });
        }
        let xrc = |(xrcd, cq, user_index): (&Xrcd, &Cq, u32)| {
            Ok::<_, Error>(XrcSrq {
                xrcd: xrcd.soft()?.id(),
                // SAFETY: the completion queue is kept below until the context is destroyed.
                cq: unsafe { cq.ctx() },
                user_index,
            })
        };
        let xrc = init.xrc.map(xrc).transpose()?;
        let consumer = SrqConsumer::new(ring, record);
        consumer.set_limit(init.limit);
        let events = device.events.clone();
        let ctx = hca.create_srq(SrqCtx::new(pd.id(), consumer, xrc, events))?;
        // SAFETY: the context was just created; it exists until `drop`.
        let number = unsafe { ctx.as_ref() }.number();
        let srq = Self(Arc::new(Inner {
            ctx,
            number,
            pd: pd.clone(),
            _cq: init.xrc.map(|(_, cq, _)| cq.clone()),
        }));
        device.events.admit(Element::Srq(number))?;
        Ok(srq)
    }

    /// The queue's number (24 bits).
    pub fn srq_num(&self) -> u32 {
        self.0.number
    }

    /// The number of entries in the ring.
    pub fn count(&self) -> u32 {
        self.look().queue.ring().count()
    }

    /// The limit; zero if none is set, or if it was reached.
    pub fn limit(&self) -> u16 {
        self.look().queue.limit()
    }

    /// Sets the limit: the first receive that is taken and leaves fewer than `limit` raises
    /// `SRQ_LIMIT_REACHED`.
    pub fn set_limit(&self, limit: u16) {
        self.look().queue.set_limit(limit);
    }

    fn look(&self) -> &SrqCtx {
        // SAFETY: the context exists until `drop`.
        unsafe { self.0.ctx.as_ref() }
    }

    pub(super) fn is_of(&self, pd: &Pd) -> bool {
        self.0.pd.device().hca.is_same(&pd.device().hca)
    }

    /// # Safety
    /// It is not used after the queue and all its clones have been dropped.
    pub(super) unsafe fn ctx(&self) -> &'static SrqCtx {
        // SAFETY: the caller guarantees not to use it after the queue and all its clones have been dropped.
        unsafe { &*self.0.ctx.as_ptr() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        let device = self.pd.device();
        if let Some(hca) = device.hca.soft() {
            drop(hca.destroy_srq(self.number));
        }
        device.events.retire(Element::Srq(self.number));
    }
}
