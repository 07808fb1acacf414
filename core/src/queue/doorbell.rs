//! The ConnectX send doorbell: a doorbell record in memory, then the device's register.

use crate::barrier;
use crate::port::{DoorbellRecord, SendDoorbell, Staged};
use crate::wqe::{BASIC_BLOCK, SEGMENT, SendRing};
use core::ptr::NonNull;

/// Sizes in segments of the WQEs that can be copied whole into a BlueFlame register.
const MIN_BLUEFLAME_DS: u32 = 2;
const MAX_BLUEFLAME_DS: u32 = 16;

mod register;

pub use register::{Private, Register, Shared, SharedRegister};

/// The doorbell of a send queue on a BlueFlame register, whose two halves are used in turn. The
/// type `R` says whether other queues ring the same register: [`Private`] costs nothing, [`Shared`]
/// takes a lock.
///
/// A single WQE is copied into the register, so that the device need not fetch it; a batch writes
/// eight bytes. One barrier orders the record before the register; a second one, only after the
/// eight bytes, flushes them (as in UCX's `ib_mlx5.inl`; rdma-core always has two). [`barrier`] says
/// why these suffice.
#[derive(Debug)]
pub struct BlueFlame<'m, R: Register = Private> {
    record: &'m DoorbellRecord,
    register: R,
    /// Number of WQE sizes, from [`MIN_BLUEFLAME_DS`] up, that can be copied whole.
    sizes: u32,
    ring_start: NonNull<u8>,
    ring_end: usize,
}

// SAFETY: the ring is only read, by its poster; the type of the register says whether it is `Send`.
unsafe impl<R: Register + Send> Send for BlueFlame<'_, R> {}
// SAFETY: nothing is done through a shared reference.
unsafe impl<R: Register + Sync> Sync for BlueFlame<'_, R> {}

impl<'m> BlueFlame<'m> {
    /// Creates a doorbell on `register` for the send queue on `ring`. The halves of the register
    /// have `size` bytes: a multiple of 256, or zero where the device only takes the eight-byte
    /// form.
    ///
    /// # Safety
    /// `register` is aligned to 8 and valid for writes of `2 * size` bytes (at least 8) for `'m`,
    /// and nothing else rings it meanwhile.
    pub unsafe fn new(
        record: &'m DoorbellRecord,
        register: NonNull<u64>,
        size: usize,
        ring: SendRing<'m>,
    ) -> Self {
        // SAFETY: the caller guarantees a valid register that nothing else rings.
        Self::on(record, unsafe { Private::new(register, size) }, ring)
    }
}

impl<'m, R: Register> BlueFlame<'m, R> {
    /// Creates a doorbell on this register for the send queue on `ring`.
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

    /// Copies a WQE, ascending, to the end of its last block and across the end of the ring.
    #[inline(always)]
    fn copy(ring: (NonNull<u8>, usize), to: NonNull<u64>, from: NonNull<u8>, ds: u32) {
        // SAFETY: the first block is within the ring, and a half has room for a WQE of this size.
        unsafe { copy_block(to, from.cast()) };
        if ds > SEGMENTS_PER_BLOCK {
            let (to, from) = Self::copy_next(ring, to, from);
            if ds > 2 * SEGMENTS_PER_BLOCK {
                Self::copy_rest(ring, to, from, ds);
            }
        }
    }

    /// Copies the block behind `from` to behind `to`, and returns both.
    #[inline(always)]
    fn copy_next(
        (ring_start, ring_end): (NonNull<u8>, usize),
        to: NonNull<u64>,
        from: NonNull<u8>,
    ) -> (NonNull<u64>, NonNull<u8>) {
        // SAFETY: blocks are contiguous up to the end of the ring, where they continue at its start; at
        // most 16 segments, 256 bytes, go to a half, which has as many.
        unsafe {
            let mut from = from.add(BASIC_BLOCK);
            if from.addr().get() == ring_end {
                from = ring_start;
            }
            let to = to.byte_add(BASIC_BLOCK);
            copy_block(to, from.cast());
            (to, from)
        }
    }

    /// Copies the blocks behind the second, at which `to` and `from` are.
    #[inline(never)]
    fn copy_rest(ring: (NonNull<u8>, usize), mut to: NonNull<u64>, mut from: NonNull<u8>, ds: u32) {
        // Shifts, because `div_ceil` would test the remainder.
        let blocks = (ds + SEGMENTS_PER_BLOCK - 1) >> SEGMENTS_PER_BLOCK.ilog2();
        for _ in 2..blocks {
            (to, from) = Self::copy_next(ring, to, from);
        }
    }
}

const SEGMENTS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

/// # Safety
/// Both are valid for a basic block, and aligned to 8.
#[inline(always)]
unsafe fn copy_block(to: NonNull<u64>, from: NonNull<u64>) {
    // One store of the block: processors that combine only adjacent stores send it as one packet.
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", not(miri)))]
    // SAFETY: the caller guarantees that both are valid for a basic block. The elements have eight
    // bytes, to which both are aligned, as Device memory requires.
    unsafe {
        core::arch::asm!(
            "ld1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{from}]",
            "st1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{to}]",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            options(nostack, preserves_flags),
        );
    }
    // Half as many stores as by words, each within a line (as in UCX). In assembly, so that they stay
    // these stores, in this order, and need no more alignment than a register has.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse", not(miri)))]
    // SAFETY: the caller guarantees that both are valid for a basic block.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(any(
        miri,
        not(any(
            all(target_arch = "aarch64", target_feature = "neon"),
            all(target_arch = "x86_64", target_feature = "sse"),
        )),
    ))]
    for word in 0..BASIC_BLOCK / size_of::<u64>() {
        // SAFETY: the caller guarantees that both are valid for a basic block and aligned.
        unsafe { to.add(word).write_volatile(from.add(word).read()) };
    }
}

// SAFETY: writes the record and the register as the ConnectX manual specifies; the device is
// trusted to do the rest.
unsafe impl<R: Register> SendDoorbell for BlueFlame<'_, R> {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        self.record.store(staged.counter & 0xffff);
        barrier::record_to_register();
        let ds = u32::from(staged.known.ds());
        let whole = staged.count == 1 && ds.wrapping_sub(MIN_BLUEFLAME_DS) < self.sizes;
        let ring = (self.ring_start, self.ring_end);
        if whole {
            // Whole blocks leave the write-combining buffer without a flush.
            self.register
                .write(false, |half| Self::copy(ring, half, staged.last, ds));
        } else {
            // A partial line stays in the write-combining buffer until it is flushed.
            self.register.write(true, |half| {
                // SAFETY: a WQE has at least eight bytes and is aligned; so is the register.
                unsafe { half.write_volatile(staged.last.cast::<u64>().read()) };
            });
        }
    }
}
