//! Shared receive queues whose ring is the device's.

use super::domain::Domain;
use super::dv;
use super::rings::UNUSABLE;
use crate::error::Error;
use crate::verbs::Srq;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::wqe::SrqRing;
use std::ptr::NonNull;
use std::sync::Arc;

/// The ring of a shared receive queue, and its record.
#[derive(Debug)]
pub(crate) struct SrqMemory {
    ring: SrqRing<'static>,
    record: NonNull<DoorbellRecord>,
    _domain: Arc<Domain>,
}

// SAFETY: an address, whose use is the queue's contract.
unsafe impl Send for SrqMemory {}
// SAFETY: as above.
unsafe impl Sync for SrqMemory {}

impl SrqMemory {
    /// That of a queue which was made in this domain.
    ///
    /// # Errors
    /// A ring that is not as the format has it, or has fewer entries than `count`, or not where the
    /// domain's allocator gave memory.
    pub fn of(srq: &Srq, domain: Arc<Domain>, count: u32) -> Result<Self, Error> {
        // SAFETY: alive, and of a device of mlx5.
        let dv = unsafe { dv::srq(srq.handle())? };
        let (Some(buf), Some(record)) = (NonNull::new(dv.buf), NonNull::new(dv.dbrec)) else {
            return Err(UNUSABLE);
        };
        // What is behind the tail is libmlx5's, for faults of pages.
        let entries = dv
            .tail
            .checked_sub(dv.head)
            .and_then(|last| last.checked_add(1));
        let entries = entries.filter(|&entries| dv.head == 0 && entries >= count);
        let entries = entries.ok_or(UNUSABLE)?;
        let inside = domain.owns(buf, entries as usize * dv.stride as usize)
            && record.is_aligned()
            && domain.owns(record.cast(), size_of::<DoorbellRecord>());
        // SAFETY: within the domain's memory, and one queue's.
        let ring = unsafe { SrqRing::new(buf, entries, dv.stride) };
        Ok(Self {
            ring: ring.filter(|_| inside).ok_or(UNUSABLE)?,
            record,
            _domain: domain,
        })
    }

    /// # Safety
    /// Not used after this has gone.
    pub unsafe fn parts(&self) -> (SrqRing<'static>, &'static DoorbellRecord) {
        // SAFETY: in the domain's memory; the caller's promise.
        (self.ring, unsafe { self.record.as_ref() })
    }
}
