//! The barrier of the control path where the kernel refuses membarrier(2) although the process is registered: a
//! seccomp filter came after start-up.
//!
//! Threads on the data path have only compiler barriers by then, and some never come by to learn that they need more.
//! So each heavy barrier makes the other processors drain their stores in another way:
//!
//! 1. On x86-64, [`Page::shoot_down`] takes away the access to a page that was just written. The kernel interrupts each
//!    processor that runs a thread of this process, so that it forgets the address, and returns when all have done so.
//!    An interrupt is a full barrier. A processor that does not run such a thread has switched threads, which is one,
//!    too. This does not hold where the kernel has processors that invalidate each other's addresses without an
//!    interrupt (AArch64; INVLPGB of AMD), nor under hypervisors that invalidate them for the guest, except for KVM,
//!    which leaves out only virtual processors that do not run.
//! 2. Elsewhere, and for other processes, the thread waits for [`GRACE`]. Each processor that runs a thread takes the
//!    timer's interrupt every 10 ms at least (CONFIG_HZ is 100 or more), or has switched threads. A processor in the
//!    mode `nohz_full` may take none: there it rests on the fact that processors write their stores out in the order of
//!    microseconds, and do not keep them for a later event (Arm Architecture Reference Manual, chapter B2: "in finite
//!    time").
//!
//! New objects use fences from then on, and so need neither.

use crate::backoff::sleep;
// Not a part of any model.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Three times the longest time between two interrupts of the timer.
const GRACE: Duration = Duration::from_millis(30);

/// The kernel has refused membarrier(2) to a process that is registered for it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether it has: new objects use fences.
pub(super) fn is_so() -> bool {
    // Relaxed: only decides which barriers new objects use; the heavy barriers work for both kinds.
    REFUSED.load(Ordering::Relaxed)
}

/// The heavy barrier for this process.
#[cold]
pub(super) fn barrier() {
    // Relaxed: as in `is_so`.
    REFUSED.store(true, Ordering::Relaxed);
    if !shoot_down() {
        grace();
    }
}

/// Likewise, also for the other processes.
#[cold]
pub(super) fn barrier_everywhere() {
    // Relaxed: as in `is_so`.
    REFUSED.store(true, Ordering::Relaxed);
    grace();
}

/// The caller has issued a fence.
fn grace() {
    let start = Instant::now();
    // A signal ends a sleep early.
    while let Some(left) = GRACE.checked_sub(start.elapsed()) {
        sleep(left);
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
fn shoot_down() -> bool {
    use bellwire_memory::fork::PerProcess;
    use std::sync::{Mutex, OnceLock, PoisonError};
    static PAGE: PerProcess<OnceLock<Option<Mutex<x86::Page>>>> = PerProcess::new(OnceLock::new);
    let page = PAGE.get().get_or_init(|| x86::Page::new().map(Mutex::new));
    page.as_ref().is_some_and(|page| {
        let mut page = page.lock().unwrap_or_else(PoisonError::into_inner);
        page.shoot_down()
    })
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
fn shoot_down() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod x86 {
    use std::arch::x86_64::{__cpuid, CpuidResult};
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// A page of this process, locked into memory, that nothing else uses.
    #[derive(Debug)]
    pub struct Page(NonNull<AtomicU8>);

    // SAFETY: it belongs to this value alone.
    unsafe impl Send for Page {}

    #[allow(unused_unsafe, reason = "the call is safe in newer versions of Rust")]
    fn leaf(number: u32) -> CpuidResult {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { __cpuid(number) }
    }

    /// Whether the kernel has to interrupt processors to make them forget an address.
    fn interrupts() -> bool {
        // INVLPGB (AMD64 Architecture Programmer's Manual, volume 3, appendix E.4.7).
        let highest = leaf(0x8000_0000).eax;
        let broadcasts = highest >= 0x8000_0008 && leaf(0x8000_0008).ebx & 1 << 3 != 0;
        let is_guest = leaf(1).ecx & 1 << 31 != 0;
        let of = leaf(0x4000_0000);
        let mut name = [0; 12];
        for (to, word) in name.chunks_exact_mut(4).zip([of.ebx, of.ecx, of.edx]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        !broadcasts && (!is_guest || name == *b"KVMKVMKVM\0\0\0")
    }

    impl Page {
        /// `None`: taking access away interrupts no processor, or the kernel refuses the page.
        pub fn new() -> Option<Self> {
            if !interrupts() {
                return None;
            }
            let bytes = rustix::param::page_size();
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: maps new memory.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                return None;
            }
            // Locked, so that it is there, and no processor has forgotten it, when its access is taken away.
            // SAFETY: the page was just mapped.
            if unsafe { libc::mlock(at, bytes) } != 0 {
                // SAFETY: likewise, and nothing refers to it.
                unsafe { libc::munmap(at, bytes) };
                return None;
            }
            NonNull::new(at.cast()).map(Self)
        }

        /// See the module. `false`: the kernel refuses it.
        pub fn shoot_down(&mut self) -> bool {
            let protect = |access| {
                // SAFETY: the page is this value's, and no reference to it exists during the call.
                unsafe {
                    libc::mprotect(self.0.as_ptr().cast(), rustix::param::page_size(), access) == 0
                }
            };
            if !protect(libc::PROT_READ | libc::PROT_WRITE) {
                return false;
            }
            // SAFETY: the page can be accessed, and lives as long as the process.
            // SeqCst: a full barrier on this side; the write makes the kernel interrupt the others.
            unsafe { self.0.as_ref() }.fetch_add(1, Ordering::SeqCst);
            protect(libc::PROT_NONE)
        }
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    #[test]
    fn each_way_can_be_gone_again_and_again() {
        let first = shoot_down();
        (0..100).for_each(|_| assert_eq!(shoot_down(), first));
        let start = Instant::now();
        grace();
        assert!(start.elapsed() >= GRACE);
    }
}
