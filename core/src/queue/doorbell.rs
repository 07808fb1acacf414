//! The ConnectX send doorbell: a record in memory, then the device's register.

use crate::barrier;
use crate::port::{DoorbellRecord, SendDoorbell, Staged};
use crate::wqe::{BASIC_BLOCK, SEGMENT, SendRing};
use core::ptr::NonNull;

/// Segments from and up to which an entry can be handed over whole.
const MIN_BLUEFLAME_DS: u32 = 2;
const MAX_BLUEFLAME_DS: u32 = 16;

mod register;

pub use register::{Private, Register, Shared, SharedRegister};

/// The doorbell of a send queue on a BlueFlame register, whose two halves are used in turn. Whether
/// others ring the same register is the type `R`'s to say: [`Private`] costs nothing, [`Shared`] a
/// lock.
///
/// A single entry is copied into the register, so that the device need not fetch it; a batch writes
/// eight bytes. One barrier orders the record before the register; a second one, behind the eight
/// bytes alone, pushes them out (UCX's `ib_mlx5.inl` does the same; rdma-core always has two).
#[derive(Debug)]
pub struct BlueFlame<'m, R: Register = Private> {
    record: &'m DoorbellRecord,
    register: R,
    /// How many sizes of entries, from [`MIN_BLUEFLAME_DS`] up, can be handed over whole.
    sizes: u32,
    ring_start: NonNull<u8>,
    ring_end: usize,
}

// SAFETY: the ring is only read, by its poster; the register says itself who may write it.
unsafe impl<R: Register + Send> Send for BlueFlame<'_, R> {}
// SAFETY: nothing is done by a shared reference.
unsafe impl<R: Register + Sync> Sync for BlueFlame<'_, R> {}

impl<'m> BlueFlame<'m> {
    /// A doorbell on `register`, whose halves have `size` bytes (a multiple of 256, or zero where
    /// the device only takes the eight-byte form), for the send queue on `ring`.
    ///
    /// # Safety
    /// `register` is aligned to 8 and valid for writes of `2 * size` bytes (at least 8) for `'m`,
    /// and nobody else rings it meanwhile.
    pub unsafe fn new(
        record: &'m DoorbellRecord,
        register: NonNull<u64>,
        size: usize,
        ring: SendRing<'m>,
    ) -> Self {
        // SAFETY: the caller's promise.
        Self::on(record, unsafe { Private::new(register, size) }, ring)
    }
}

impl<'m, R: Register> BlueFlame<'m, R> {
    /// A doorbell on this register, for the send queue on `ring`.
    pub fn on(record: &'m DoorbellRecord, register: R, ring: SendRing<'m>) -> Self {
        let ring_start = ring.block(0);
        Self {
            record,
            sizes: ((register.size() / SEGMENT) as u32)
                .min(MAX_BLUEFLAME_DS)
                .saturating_sub(MIN_BLUEFLAME_DS - 1),
            register,
            ring_start,
            ring_end: ring_start.addr().get() + ring.blocks() as usize * BASIC_BLOCK,
        }
    }

    /// Copies an entry in 8-byte words, upwards, to the end of its last block and over the ring's
    /// end.
    #[inline(always)]
    fn copy(ring: (NonNull<u8>, usize), to: NonNull<u64>, from: NonNull<u8>, ds: u32) {
        // SAFETY: the first block is within the ring, and a half has room for an entry of this size.
        unsafe { copy_block(to, from.cast()) };
        if ds > SEGMENTS_PER_BLOCK {
            Self::copy_rest(ring, to, from, ds);
        }
    }

    #[inline(never)]
    fn copy_rest(
        (ring_start, ring_end): (NonNull<u8>, usize),
        to: NonNull<u64>,
        mut from: NonNull<u8>,
        ds: u32,
    ) {
        for block in 1..ds.div_ceil(SEGMENTS_PER_BLOCK) as usize {
            // SAFETY: blocks are contiguous up to the ring's end, where they go on at its start; at
            // most 16 segments, 256 bytes, go to a half, which has as many.
            unsafe {
                from = from.add(BASIC_BLOCK);
                if from.addr().get() == ring_end {
                    from = ring_start;
                }
                copy_block(to.byte_add(block * BASIC_BLOCK), from.cast());
            }
        }
    }
}

const SEGMENTS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

/// # Safety
/// Both are valid for a basic block, and aligned to 8.
#[inline(always)]
unsafe fn copy_block(to: NonNull<u64>, from: NonNull<u64>) {
    for word in 0..BASIC_BLOCK / size_of::<u64>() {
        // SAFETY: the caller's promise.
        unsafe { to.add(word).write_volatile(from.add(word).read()) };
    }
}

// SAFETY: writes the record and the register as the ConnectX manual says; what the device then does
// is the device's.
unsafe impl<R: Register> SendDoorbell for BlueFlame<'_, R> {
    #[inline(always)]
    fn ring(&mut self, staged: &Staged) {
        self.record.store(staged.counter & 0xffff);
        // The record before the register, which may be write-combining memory.
        barrier::flush_write_combining();
        let ds = u32::from(staged.known.ds);
        let whole = staged.count == 1 && ds.wrapping_sub(MIN_BLUEFLAME_DS) < self.sizes;
        let ring = (self.ring_start, self.ring_end);
        if whole {
            // Whole lines go by themselves.
            self.register
                .write(false, |half| Self::copy(ring, half, staged.last, ds));
        } else {
            // Part of a line stays in the write-combining buffer until somebody pushes it out.
            self.register.write(true, |half| {
                // SAFETY: an entry starts with at least eight bytes, aligned; so does the register.
                unsafe { half.write_volatile(staged.last.cast::<u64>().read()) };
            });
        }
    }
}
