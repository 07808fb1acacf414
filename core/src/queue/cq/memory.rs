//! The memory that a completion queue shares with the device.

use crate::cqe::Cqe64;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A completion queue's memory: `count` CQEs of 64 or 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory<'m> {
    /// The 64 bytes of the first CQE that hold the descriptor.
    first: NonNull<Cqe64>,
    count: u32,
    /// Logarithm of the CQE size.
    log_size: u32,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: the memory is reached only by unsafe functions whose callers guarantee who writes it.
unsafe impl Send for CqMemory<'_> {}
// SAFETY: the memory is reached only by unsafe functions whose callers guarantee who writes it.
unsafe impl Sync for CqMemory<'_> {}

impl<'m> CqMemory<'m> {
    /// Memory of `count` CQEs of `cqe_size` bytes at `base`, all set to "owned by the device".
    /// `None` unless `count` is a power of two of at most 2^22, `cqe_size` is 64 or 128, and `base`
    /// is aligned to it.
    ///
    /// # Safety
    /// The memory is valid for reads and writes for `'m`, and used only by one completion queue and
    /// the device, which starts after this returns.
    pub unsafe fn new(base: NonNull<u8>, count: u32, cqe_size: u32) -> Option<Self> {
        let fits = count.is_power_of_two() && count <= 1 << 22 && matches!(cqe_size, 64 | 128);
        if !fits || !base.as_ptr().addr().is_multiple_of(cqe_size as usize) {
            return None;
        }
        let memory = Self {
            // SAFETY: within the first CQE; in one of 128 bytes the descriptor is the second half.
            first: unsafe { base.add(cqe_size as usize - 64).cast() },
            count,
            log_size: cqe_size.ilog2(),
            memory: PhantomData,
        };
        for index in 0..count {
            // SAFETY: within the memory, which the caller guarantees to be valid and unused.
            unsafe { Cqe64::init(memory.entry(index)) };
        }
        Some(memory)
    }

    /// Number of CQEs.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a CQE.
    #[inline(always)]
    pub fn cqe_size(&self) -> u32 {
        1 << self.log_size
    }

    /// The descriptor of the CQE at counter `index`.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> NonNull<Cqe64> {
        // SAFETY: the masked index lies within the ring.
        unsafe {
            self.first
                .byte_add(((index & (self.count - 1)) as usize) << self.log_size)
        }
    }
}
