//! Barriers, named by what they order. rdma-core's `util/udma_barrier.h` names the same intents.
//!
//! Where the device is software, its threads are ordinary threads: the fences below are the
//! language's own, and cost no instruction on x86-64. aarch64 needs barriers of the outer shareable
//! domain, which the language's fences do not give.

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
use crate::sync::atomic::{Ordering, fence};

/// Orders stores to ordinary memory before a later store that lets the device read them
/// (entries before the doorbell record, the record before the register).
#[inline(always)]
pub fn to_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and touches no memory of ours.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Release);
}

/// Orders a load that saw the device's sign (the owner bit of a completion entry) before the loads
/// of what the device wrote ahead of it.
#[inline(always)]
pub fn from_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and touches no memory of ours.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Acquire);
}

/// Pushes stores to a write-combining register page (BlueFlame) out to the device, and orders them
/// before any later store to it.
#[inline(always)]
pub fn flush_write_combining() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: sfence is part of SSE, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and touches no memory of ours.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fence(Ordering::SeqCst);
}
