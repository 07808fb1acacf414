//! The ConnectX send doorbell: a record in memory, then the device's register.

use crate::barrier;
use crate::port::{DoorbellRecord, SendDoorbell, Staged};
use crate::wqe::SEGMENT;
use core::ptr::NonNull;

/// Segments up to which an entry can be handed over whole.
const MAX_BLUEFLAME_DS: u32 = 16;

/// A BlueFlame register of one owner: two halves, used in turn.
///
/// A single entry is copied into the register, so that the device need not fetch it; a batch writes
/// eight bytes. Both flush the write-combining buffer once.
#[derive(Debug)]
pub struct BlueFlame<'m> {
    record: &'m DoorbellRecord,
    register: NonNull<u64>,
    /// Byte offset of the half that is next.
    half: usize,
    /// Bytes of a half; zero where the device takes no entries.
    size: usize,
    ring_start: NonNull<u8>,
    ring_end: usize,
}

// SAFETY: the register belongs to this owner alone, by `new`'s contract.
unsafe impl Send for BlueFlame<'_> {}

impl<'m> BlueFlame<'m> {
    /// A doorbell on `register`, whose halves have `size` bytes (a multiple of 256, or zero where
    /// the device only takes the eight-byte form), for the ring of `blocks` basic blocks at `ring`.
    ///
    /// # Safety
    /// `register` is aligned to 8 and valid for writes of `2 * size` bytes (at least 8) for `'m`,
    /// and nobody else rings it meanwhile.
    pub unsafe fn new(
        record: &'m DoorbellRecord,
        register: NonNull<u64>,
        size: usize,
        ring: crate::wqe::SendRing<'m>,
    ) -> Self {
        let ring_start = ring.block(0);
        Self {
            record,
            register,
            half: 0,
            size,
            ring_start,
            ring_end: ring_start.addr().get() + ring.blocks() as usize * crate::wqe::BASIC_BLOCK,
        }
    }

    /// Copies an entry in 8-byte words, upwards, to the end of its last block and over the ring's
    /// end.
    #[inline(always)]
    fn copy(&self, to: NonNull<u64>, from: NonNull<u8>, ds: u32) {
        let blocks = ds.div_ceil(4) as usize;
        let mut from = from.cast::<u64>();
        for block in 0..blocks {
            if from.addr().get() == self.ring_end {
                from = self.ring_start.cast();
            }
            for word in 0..8 {
                // SAFETY: blocks are contiguous and within the ring; at most 16 segments, 256 bytes,
                // go to a half, which has as many.
                unsafe {
                    to.add(block * 8 + word).write_volatile(from.read());
                    from = from.add(1);
                }
            }
        }
    }
}

// SAFETY: writes the record and the register as the ConnectX manual says; what the device then does
// is the device's.
unsafe impl SendDoorbell for BlueFlame<'_> {
    #[inline(always)]
    fn ring(&mut self, staged: &Staged) {
        self.record.store(staged.counter & 0xffff);
        // The record before the register, which may be write-combining memory.
        barrier::flush_write_combining();
        // SAFETY: the half lies within the register.
        let half = unsafe { self.register.byte_add(self.half) };
        let whole = self.size != 0
            && staged.count == 1
            && (2..=MAX_BLUEFLAME_DS).contains(&staged.ds)
            && staged.ds as usize * SEGMENT <= self.size;
        if whole {
            self.copy(half, staged.last, staged.ds);
        } else {
            // SAFETY: an entry starts with at least eight bytes, aligned.
            unsafe { half.write_volatile(staged.last.cast::<u64>().read()) };
        }
        barrier::flush_write_combining();
        self.half ^= self.size;
    }
}
