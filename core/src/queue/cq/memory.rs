//! The memory that a completion queue shares with the device.

use crate::cqe::{Cqe64, owner_bit};
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A completion queue's memory: `count` CQEs of 64 or 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory<'m> {
    /// The 64 bytes of the first CQE that hold the descriptor.
    first: NonNull<Cqe64>,
    count: u32,
    /// Bytes of a CQE.
    cqe_size: usize,
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
        // SAFETY: within the first CQE; in one of 128 bytes the descriptor is the second half.
        let first: NonNull<Cqe64> = unsafe { base.add(cqe_size as usize - 64).cast() };
        let memory = Self {
            first,
            count,
            cqe_size: cqe_size as usize,
            memory: PhantomData,
        };
        // So that no pointer in or behind the ring is null.
        first
            .addr()
            .get()
            .checked_add(count as usize * cqe_size as usize)?;
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
        self.cqe_size as u32
    }

    /// The descriptor of the CQE at counter `index`.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> NonNull<Cqe64> {
        // SAFETY: the masked index lies within the ring.
        unsafe {
            self.first
                .byte_add((index & (self.count - 1)) as usize * self.cqe_size)
        }
    }
}

impl CqMemory<'_> {
    /// The place behind a CQE's descriptor.
    ///
    /// # Safety
    /// The CQE lies within the ring.
    #[inline(always)]
    pub(super) unsafe fn behind(&self, entry: NonNull<Cqe64>) -> NonNull<Cqe64> {
        let behind = entry.as_ptr().wrapping_byte_add(self.cqe_size);
        // SAFETY: at most a CQE behind the last, whose address `new` has checked.
        unsafe { NonNull::new_unchecked(behind) }
    }
}

/// Where a consumer is in the ring.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct Cursor {
    /// The next CQE.
    entry: NonNull<Cqe64>,
    /// Its free-running index.
    index: u32,
    /// CQEs from it on up to the end of the ring.
    left: u32,
    /// Its owner bit, once the device has written it.
    owner: u8,
}

// SAFETY: the memory is reached only by unsafe functions whose callers guarantee who writes it.
unsafe impl Send for Cursor {}
// SAFETY: the memory is reached only by unsafe functions whose callers guarantee who writes it.
unsafe impl Sync for Cursor {}

impl Cursor {
    /// At the CQE with this index.
    pub fn at(memory: &CqMemory<'_>, index: u32) -> Self {
        Self {
            entry: memory.entry(index),
            index,
            left: memory.count - (index & (memory.count - 1)),
            owner: owner_bit(index, memory.count()),
        }
    }

    #[inline(always)]
    pub fn entry(&self) -> NonNull<Cqe64> {
        self.entry
    }

    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub fn owner(&self) -> u8 {
        self.owner
    }

    /// Goes on to the CQE behind, in this memory.
    #[inline(always)]
    pub fn step(&mut self, memory: &CqMemory<'_>) {
        // SAFETY: within the ring.
        self.entry = unsafe { memory.behind(self.entry) };
        self.index = self.index.wrapping_add(1);
        self.left -= 1;
        if self.left == 0 {
            self.wrap(memory);
        }
    }

    /// Goes on by `count` CQEs, at most [`left`](Self::left), behind which `entry` is.
    #[inline(always)]
    pub fn skip(&mut self, memory: &CqMemory<'_>, count: u32, entry: NonNull<Cqe64>) {
        self.entry = entry;
        self.index = self.index.wrapping_add(count);
        self.left -= count;
        if self.left == 0 {
            self.wrap(memory);
        }
    }

    #[cold]
    #[inline(always)]
    fn wrap(&mut self, memory: &CqMemory<'_>) {
        self.entry = memory.first;
        self.left = memory.count;
        self.owner ^= 1;
    }

    /// How many CQEs there are from this one on up to the end of the ring.
    #[inline(always)]
    pub fn left(&self) -> u32 {
        self.left
    }
}
