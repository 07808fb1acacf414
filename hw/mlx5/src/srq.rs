//! Shared receive queues whose ring is the device's.

use super::domain::Domain;
use crate::error::Error;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::wqe::SrqRing;
use bellwire_verbs::Srq;
use bellwire_verbs::mlx5dv as dv;
use bellwire_verbs::mlx5dv::UNUSABLE;
use std::ptr::NonNull;
use std::sync::Arc;

/// The ring of a shared receive queue, and its doorbell record.
#[derive(Debug)]
pub struct SrqMemory {
    ring: SrqRing<'static>,
    record: NonNull<DoorbellRecord>,
    _domain: Arc<Domain>,
}

// SAFETY: it contains an address, whose use is subject to the queue's contract.
unsafe impl Send for SrqMemory {}
// SAFETY: it contains an address, whose use is subject to the queue's contract.
unsafe impl Sync for SrqMemory {}

impl SrqMemory {
    /// The ring of a queue that was created in this domain.
    ///
    /// # Errors
    /// The ring does not have the expected layout, has fewer than `count` entries, or is not in memory of the
    /// domain's allocator.
    pub fn of(srq: &Srq, domain: Arc<Domain>, count: u32) -> Result<Self, Error> {
        // SAFETY: the queue is alive, and of an mlx5 device.
        let dv = unsafe { dv::srq(srq.handle())? };
        let (Some(buf), Some(record)) = (
            NonNull::new(dv.buf),
            NonNull::new(dv.dbrec.cast::<DoorbellRecord>()),
        ) else {
            return Err(UNUSABLE);
        };
        // The entries after the tail belong to libmlx5, which keeps them for page faults.
        let entries = dv
            .tail
            .checked_sub(dv.head)
            .and_then(|last| last.checked_add(1));
        let entries = entries.filter(|&entries| dv.head == 0 && entries >= count);
        let entries = entries.ok_or(UNUSABLE)?;
        let inside = domain.owns(buf, entries as usize * dv.stride as usize)
            && record.is_aligned()
            && domain.owns(record.cast(), size_of::<DoorbellRecord>());
        // SAFETY: within the domain's memory, and used by one queue.
        let ring = unsafe { SrqRing::new(buf, entries, dv.stride) };
        Ok(Self {
            ring: ring.filter(|_| inside).ok_or(UNUSABLE)?,
            record,
            _domain: domain,
        })
    }

    /// # Safety
    /// They are not used after `self` has been dropped.
    pub unsafe fn parts(&self) -> (SrqRing<'static>, &'static DoorbellRecord) {
        // SAFETY: both are in the domain's memory; the caller guarantees not to use them after `self` is
        // dropped.
        (self.ring, unsafe { self.record.as_ref() })
    }
}
