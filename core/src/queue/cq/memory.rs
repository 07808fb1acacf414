//! The memory that a completion queue shares with its device.

use crate::cqe::Cqe64;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A completion queue's memory: `count` entries of 64 or 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory<'m> {
    /// The first entry's 64 bytes that hold the descriptor.
    first: NonNull<Cqe64>,
    count: u32,
    /// Logarithm of the bytes from one entry to the next.
    log_size: u32,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: memory that is reached only through unsafe functions whose callers promise who writes.
unsafe impl Send for CqMemory<'_> {}
// SAFETY: as above.
unsafe impl Sync for CqMemory<'_> {}

impl<'m> CqMemory<'m> {
    /// Memory of `count` entries of `cqe_size` bytes at `base`, set to "owned by the device". `None`
    /// unless `count` is a power of two of at most 2^22, `cqe_size` 64 or 128, and `base` aligned
    /// to it.
    ///
    /// # Safety
    /// The memory is valid for reads and writes for `'m`, and used by nobody but one completion
    /// queue and the device, which starts after this returns.
    pub unsafe fn new(base: NonNull<u8>, count: u32, cqe_size: u32) -> Option<Self> {
        let fits = count.is_power_of_two() && count <= 1 << 22 && matches!(cqe_size, 64 | 128);
        if !fits || !base.as_ptr().addr().is_multiple_of(cqe_size as usize) {
            return None;
        }
        let memory = Self {
            // SAFETY: within the first entry; in one of 128 bytes the descriptor is the second half.
            first: unsafe { base.add(cqe_size as usize - 64).cast() },
            count,
            log_size: cqe_size.ilog2(),
            memory: PhantomData,
        };
        for index in 0..count {
            // SAFETY: within the memory, which is the caller's to give.
            unsafe { Cqe64::init(memory.entry(index)) };
        }
        Some(memory)
    }

    /// Entries.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of an entry.
    #[inline(always)]
    pub fn cqe_size(&self) -> u32 {
        1 << self.log_size
    }

    /// The descriptor of the entry that counter `index` falls on.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> NonNull<Cqe64> {
        // SAFETY: the masked index lies within the ring.
        unsafe {
            self.first
                .byte_add(((index & (self.count - 1)) as usize) << self.log_size)
        }
    }
}
