//! The memory of a shared receive queue.

use crate::error::Error;
use crate::mlx5;
use crate::pinned::{Pinned, boxed, defaults, place};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{SrqLedger, SrqSlot};
use bellwire_core::wqe::SrqRing;
use std::sync::{Arc, OnceLock};

/// Memory of a shared receive queue: ring, ledger, and doorbell record. Kept by the queue, and by completion
/// queues until they have reported everything.
#[derive(Debug)]
pub(crate) struct SrqMemory {
    ledger: *mut SrqLedger<'static>,
    slots: *mut [SrqSlot<'static>],
    pub(super) ring: Ring,
    /// Set when a queue for XRC was destroyed: the index up to which its completions extend at most, as the
    /// producer index of its completion queue.
    pub(super) end: OnceLock<u32>,
}

/// The location of the ring.
#[derive(Debug)]
pub(super) enum Ring {
    /// In our own memory.
    Own {
        memory: Pinned,
        record: Box<DoorbellRecord>,
        count: u32,
        stride: u32,
    },
    /// In memory that the device's queue was created with.
    Device(mlx5::SrqMemory),
}

// SAFETY: a ledger may be shared, and only the owner uses the pointers.
unsafe impl Send for SrqMemory {}
// SAFETY: a ledger may be shared, and only the owner uses the pointers.
unsafe impl Sync for SrqMemory {}

impl SrqMemory {
    /// Allocates it in our own memory. `None`: the sizes are not supported.
    pub(super) fn new(count: u32, stride: u32) -> Result<Option<Arc<Self>>, Error> {
        Self::over(Ring::Own {
            memory: Pinned::zeroed(count as usize * stride as usize)?,
            record: boxed(Default::default())?,
            count,
            stride,
        })
    }

    pub(super) fn over(ring: Ring) -> Result<Option<Arc<Self>>, Error> {
        // SAFETY: the ring exists as long as the ledger created below.
        let Some((entries, _)) = (unsafe { ring.parts() }) else {
            return Ok(None);
        };
        let room = place()?;
        let slots: Box<[SrqSlot<'static>]> = defaults(entries.count() as usize)?;
        let slots = Box::into_raw(slots);
        // SAFETY: the slots are freed after the ledger, in `drop`.
        let ledger = SrqLedger::new(entries, unsafe { &mut *slots });
        let Some(ledger) = ledger else {
            // SAFETY: from `Box::into_raw`, and not borrowed.
            drop(unsafe { Box::from_raw(slots) });
            return Ok(None);
        };
        Ok(Some(Arc::new(Self {
            ledger: Box::into_raw(Box::write(room, ledger)),
            slots,
            ring,
            end: OnceLock::new(),
        })))
    }

    /// # Safety
    /// It is not used after the memory has been freed.
    pub unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: from `Box::into_raw`, freed in `drop`.
        unsafe { &*self.ledger }
    }

    /// The number of entries.
    pub fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Index after the last completion of a destroyed queue for XRC; `None` while it exists.
    pub fn end(&self) -> Option<u32> {
        self.end.get().copied()
    }
}

impl Ring {
    /// # Safety
    /// They are used by one queue, and not after this has been dropped.
    pub(super) unsafe fn parts(&self) -> Option<(SrqRing<'static>, &'static DoorbellRecord)> {
        // SAFETY: the caller guarantees that one queue uses them while this lives; the memory has this size.
        unsafe {
            match self {
                Self::Own {
                    memory,
                    record,
                    count,
                    stride,
                } => {
                    let ring = SrqRing::new(memory.start(), *count, *stride)?;
                    Some((ring, &*std::ptr::from_ref(&**record)))
                }
                Self::Device(ring) => Some(ring.parts()),
            }
        }
    }
}

impl Drop for SrqMemory {
    fn drop(&mut self) {
        // SAFETY: both are from `Box::into_raw`; the ledger, which borrows the slots, is freed first.
        unsafe {
            drop(Box::from_raw(self.ledger));
            drop(Box::from_raw(self.slots));
        }
    }
}
