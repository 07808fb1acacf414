//! Memory barriers, named by what they order, as in rdma-core's `util/udma_barrier.h`.
//!
//! | place | barrier | x86-64 | aarch64 | rdma-core | UCX |
//! |---|---|---|---|---|---|
//! | entries, then the doorbell record | [`to_device`] | | `dmb oshst` | `dmb oshst` | `dmb ishst` |
//! | a record, then its register (send doorbell, arm) | [`record_to_register`] | `sfence` | `dmb oshst` | `dsb st` | `dmb oshst` |
//! | behind a whole entry in a BlueFlame register | [`end_gathering`] | | `dgh` | `dsb st` | `dgh` |
//! | behind the eight bytes of a doorbell, and before a register's lock is released | [`flush_write_combining`] | `sfence` | `dsb st` | `dsb st` | `dmb oshst` |
//! | the owner bit of a CQE, then the rest of it | [`from_device`] | | `dmb oshld` | `dmb oshld` | `dmb ishld` |
//! | loads of a CQE, then the consumer record | a release store | | `stlr` | none | no record |
//!
//! Empty: the compiler must keep the order, and the processor does so by itself.
//!
//! The threads of a software device are ordinary threads: for these the language's own fences
//! suffice, and loom and Miri explore those. What follows is about devices, which neither models.
//!
//! # aarch64
//!
//! The rules are those of the Arm Architecture Reference Manual (DDI 0487), chapter B2, "The AArch64
//! Application Level Memory Model".
//!
//! - A device is an observer in the Outer Shareable domain, and so are accesses to Device and Normal
//!   Non-cacheable memory, as which Linux maps a register (`pgprot_device`, `pgprot_writecombine`):
//!   sections "Normal memory" and "Device memory" of B2. The language's fences are of the Inner
//!   Shareable domain (`dmb ish`); hence the `osh` forms.
//! - "Data Memory Barrier": every observer in the domain that sees an access behind the barrier sees
//!   those before it, `st` for stores, `ld` for loads before and anything behind. The architecture is
//!   other-multi-copy atomic, so what one observer has seen, all have. A device that was reached by
//!   the store to its register therefore reads the record, and a device that reads the new record
//!   reads the entries. Completion (`dsb`) adds nothing to that; Linux orders its own `writel` in this
//!   way since 5.0 (commit 22ec71615d82).
//! - A branch on the owner bit does not order loads behind it ("control dependency": stores only), so
//!   the rest of a CQE needs `dmb oshld`. The owner bit itself may be loaded without ordering.
//! - Stores to Device-GRE or Normal Non-cacheable memory may be gathered and may wait for more
//!   ("Gathering"); accesses on both sides of a barrier that affects them are never gathered. So the
//!   barrier before the register also separates a ring's stores from those of the ring before it.
//! - Stores become visible in finite time without any instruction. `dgh` (FEAT_DGH; a NOP on
//!   processors without it) says that no more comes to gather, `dsb st` waits until all stores have
//!   completed. A full line needs no more than the first; eight bytes would wait for the rest of their
//!   line. A lock that protects a register is released when the stores under it are complete.
//! - "Load-Acquire, Load-AcquirePC, and Store-Release": `stlr` orders earlier loads and stores, in the
//!   domain of the address. It keeps loads of a CQE before the store that lets the device overwrite it.

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
use crate::sync::atomic::{Ordering, fence};

/// An instruction of aarch64 that orders memory accesses. Without `nomem`, so that the compiler keeps
/// them in order, too.
#[cfg(all(target_arch = "aarch64", not(miri)))]
macro_rules! instruction {
    ($text:literal) => {
        // SAFETY: the instruction has no operands and accesses no memory of the program.
        unsafe { core::arch::asm!($text, options(nostack, preserves_flags)) }
    };
}

/// Orders stores to ordinary memory before a later store to ordinary memory that lets the device
/// read them: WQEs before the doorbell record.
#[inline(always)]
pub fn to_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    instruction!("dmb oshst");
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Release);
}

/// Orders stores to ordinary memory, and earlier stores to registers, before a later store to a
/// register, which may be write-combining memory: the doorbell record before BlueFlame, the arm
/// record before the arm register. Includes [`to_device`].
#[inline(always)]
pub fn record_to_register() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // Stores to write-combining memory may overtake earlier stores.
    store_fence();
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    instruction!("dmb oshst");
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fence(Ordering::SeqCst);
}

/// Orders a load that saw what the device writes last (the owner bit of a CQE) before the loads of
/// what the device wrote before it.
#[inline(always)]
pub fn from_device() {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    instruction!("dmb oshld");
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    fence(Ordering::Acquire);
}

/// Flushes stores to a write-combining register page (BlueFlame) to the device, and orders them
/// before any later store to it.
#[inline(always)]
pub fn flush_write_combining() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    store_fence();
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    instruction!("dsb st");
    // Miri has no registers, and a fence would hide from it what a lock of a register lacks.
    #[cfg(not(any(miri, target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Tells the processor that nothing comes that could be combined with the whole lines just stored to
/// a write-combining register. Orders nothing.
#[inline(always)]
pub fn end_gathering() {
    // By number, because assemblers name it only for processors that have it. x86-64 sends a full
    // line by itself.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    instruction!("hint #6");
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn store_fence() {
    // SAFETY: sfence is part of SSE, which every x86-64 processor has.
    unsafe { core::arch::x86_64::_mm_sfence() };
}
