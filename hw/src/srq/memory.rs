//! The memory of a shared receive queue.

#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pinned::Pinned;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{SrqLedger, SrqSlot};
use bellwire_core::wqe::SrqRing;
use std::sync::{Arc, OnceLock};

/// Memory of a shared receive queue: ring, ledger, record. Kept by the queue, and by completion
/// queues until they have told everything.
#[derive(Debug)]
pub(crate) struct SrqMemory {
    ledger: *mut SrqLedger<'static>,
    slots: *mut [SrqSlot<'static>],
    pub(super) ring: Ring,
    /// Set when a queue for XRC is gone: where its last completion is at the latest, as its
    /// completion queue's producer index.
    pub(super) end: OnceLock<u32>,
}

/// Where the ring is.
#[derive(Debug)]
pub(super) enum Ring {
    /// In memory of ours.
    Own {
        memory: Pinned,
        record: Box<DoorbellRecord>,
        count: u32,
        stride: u32,
    },
    /// Where the device has it.
    #[cfg(feature = "mlx5")]
    Device(mlx5::SrqMemory),
}

// SAFETY: a ledger may be shared, and the pointers are the owner's alone.
unsafe impl Send for SrqMemory {}
// SAFETY: as above.
unsafe impl Sync for SrqMemory {}

impl SrqMemory {
    /// In memory of ours.
    pub(super) fn new(count: u32, stride: u32) -> Option<Arc<Self>> {
        Self::over(Ring::Own {
            memory: Pinned::zeroed(count as usize * stride as usize),
            record: Box::default(),
            count,
            stride,
        })
    }

    pub(super) fn over(ring: Ring) -> Option<Arc<Self>> {
        // SAFETY: the ring stays as long as the ledger below.
        let (entries, _) = unsafe { ring.parts()? };
        let slots: Box<[SrqSlot<'static>]> =
            (0..entries.count()).map(|_| SrqSlot::default()).collect();
        let slots = Box::into_raw(slots);
        // SAFETY: freed after the ledger, in `drop`.
        let ledger = SrqLedger::new(entries, unsafe { &mut *slots });
        let Some(ledger) = ledger else {
            // SAFETY: from `Box::into_raw`, and borrowed by nobody.
            drop(unsafe { Box::from_raw(slots) });
            return None;
        };
        Some(Arc::new(Self {
            ledger: Box::into_raw(Box::new(ledger)),
            slots,
            ring,
            end: OnceLock::new(),
        }))
    }

    /// # Safety
    /// Not used after the memory has gone.
    pub(super) unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: from `Box::into_raw`, freed in `drop`.
        unsafe { &*self.ledger }
    }

    #[cfg(feature = "mlx5")]
    pub(super) fn is_the_devices(&self) -> bool {
        matches!(self.ring, Ring::Device(_))
    }

    /// Entries.
    #[cfg(feature = "mlx5")]
    pub(super) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Index behind the last completion of a queue for XRC that is gone; `None` while it lives.
    pub fn end(&self) -> Option<u32> {
        self.end.get().copied()
    }
}

impl Ring {
    /// # Safety
    /// Of one queue, and not used after this has gone.
    pub(super) unsafe fn parts(&self) -> Option<(SrqRing<'static>, &'static DoorbellRecord)> {
        // SAFETY: the caller's promise; the memory has this size.
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
                #[cfg(feature = "mlx5")]
                Self::Device(ring) => Some(ring.parts()),
            }
        }
    }
}

impl Drop for SrqMemory {
    fn drop(&mut self) {
        // SAFETY: both from `Box::into_raw`; the ledger, which borrows the slots, goes first.
        unsafe {
            drop(Box::from_raw(self.ledger));
            drop(Box::from_raw(self.slots));
        }
    }
}
