//! Shared receive queues whose rings are somebody else's.

use super::{Cq, does_not_fit};
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

/// A shared receive queue's memory.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit<'a> {
    /// The ring: `count` linked entries of `stride` bytes.
    pub ring: NonNull<u8>,
    /// Entries, a power of two.
    pub count: u32,
    /// Bytes of an entry, a power of two.
    pub stride: u32,
    /// Counts what was posted.
    pub record: NonNull<DoorbellRecord>,
    /// The limit to begin with; zero for none.
    pub limit: u16,
    /// For XRC: the domain, where its receives complete, and how completions name it.
    pub xrc: Option<(&'a Xrcd, &'a Cq, u32)>,
}

/// A shared receive queue as its device has it. Goes when it and every queue pair on it are dropped.
#[derive(Clone, Debug)]
pub struct Srq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ctx: NonNull<SrqCtx>,
    number: u32,
    pd: Pd,
    // Kept until the queue is gone.
    _cq: Option<Cq>,
}

// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Srq {
    /// A queue from which nothing was posted yet.
    ///
    /// # Errors
    /// Sizes that the format does not have; a domain or completion queue of another device; another
    /// device than a software HCA; no number left.
    ///
    /// # Safety
    /// Ring and record are valid for reads and writes until the queue, its clones and all queue pairs
    /// on it are gone. One poster uses them, as a ConnectX device's are used.
    pub unsafe fn new(pd: &Pd, init: &SrqInit<'_>) -> Result<Self, Error> {
        let device = pd.device();
        let hca = device.hca.soft("rings of somebody else's")?;
        // SAFETY: the caller's promise.
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
                // SAFETY: kept below until the context is gone.
                cq: unsafe { cq.ctx() },
                user_index,
            })
        };
        let xrc = init.xrc.map(xrc).transpose()?;
        let consumer = SrqConsumer::new(ring, record);
        consumer.set_limit(init.limit);
        let events = device.events.clone();
        let ctx = hca.create_srq(SrqCtx::new(pd.id(), consumer, xrc, events))?;
        // SAFETY: just made; it goes in `drop`.
        let number = unsafe { ctx.as_ref() }.number();
        device.events.admit(Element::Srq(number));
        Ok(Self(Arc::new(Inner {
            ctx,
            number,
            pd: pd.clone(),
            _cq: init.xrc.map(|(_, cq, _)| cq.clone()),
        })))
    }

    /// Its number (24 bits).
    pub fn srq_num(&self) -> u32 {
        self.0.number
    }

    /// Entries of the ring.
    pub fn count(&self) -> u32 {
        self.look().queue.ring().count()
    }

    /// The limit; zero when none is set, or the one that was is reached.
    pub fn limit(&self) -> u16 {
        self.look().queue.limit()
    }

    /// Sets the limit: the first receive taken that leaves fewer raises `SRQ_LIMIT_REACHED`.
    pub fn set_limit(&self, limit: u16) {
        self.look().queue.set_limit(limit);
    }

    fn look(&self) -> &SrqCtx {
        // SAFETY: the context goes in `drop`.
        unsafe { self.0.ctx.as_ref() }
    }

    pub(super) fn is_of(&self, pd: &Pd) -> bool {
        self.0.pd.device().hca.is_same(&pd.device().hca)
    }

    /// # Safety
    /// Not used after the queue and all its clones are gone.
    pub(super) unsafe fn ctx(&self) -> &'static SrqCtx {
        // SAFETY: the caller's promise.
        unsafe { &*self.0.ctx.as_ptr() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let device = self.pd.device();
        if let Ok(hca) = device.hca.soft("the queue's device") {
            drop(hca.destroy_srq(self.number));
        }
        device.events.retire(Element::Srq(self.number));
    }
}
