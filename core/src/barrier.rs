//! Memory barriers, named by what they order, as in rdma-core's `util/udma_barrier.h`.
//!
//! The threads of a software device are ordinary threads: for these the language's own fences
//! suffice, which cost no instruction on x86-64. aarch64 needs barriers of the outer shareable
//! domain, which the language's fences do not provide.

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
use crate::sync::atomic::{Ordering, fence};

/// Orders stores to ordinary memory before a later store that lets the device read them: WQEs
/// before the doorbell record, the doorbell record before the register.
#[inline(always)]
pub fn to_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and accesses no memory of the program.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Release);
}

/// Orders a load that saw what the device writes last (the owner bit of a CQE) before the loads of
/// what the device wrote before it.
#[inline(always)]
pub fn from_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and accesses no memory of the program.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Acquire);
}

/// Flushes stores to a write-combining register page (BlueFlame) to the device, and orders them
/// before any later store to it.
#[inline(always)]
pub fn flush_write_combining() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: sfence is part of SSE, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier instruction has no operands and accesses no memory of the program.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fence(Ordering::SeqCst);
}
