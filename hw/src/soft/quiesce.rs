//! Waiting until the data path has left what the control path takes away, at no cost to the data
//! path.
//!
//! Whoever executes a queue pair's entries raises its [`Section`] first and lowers it afterwards.
//! Whoever takes something away (a key, a connection, a queue pair) makes that known, then waits
//! until each section that may have seen the old state has been left:
//!
//! ```text
//! data path                       control path
//! section.enter()   store         revoke          store
//! light barrier                   heavy barrier   membarrier(2)
//! look at what may be revoked     section.passed() wait
//! ```
//!
//! Two stores before two loads want a full barrier on both sides. membarrier(2) runs one on every
//! processor that runs this process, so that the data path's can be the compiler's alone. Where the
//! kernel refuses it both sides have real ones.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

/// Which barriers this process uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barriers {
    asymmetric: bool,
}

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: the call takes numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

impl Barriers {
    /// Asks the kernel, once in a process.
    pub fn get() -> Self {
        static ASYMMETRIC: OnceLock<bool> = OnceLock::new();
        let asymmetric =
            *ASYMMETRIC.get_or_init(|| membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
        Self { asymmetric }
    }

    #[inline(always)]
    pub fn light(self) {
        if self.asymmetric {
            // Partner: the system call in `heavy`.
            compiler_fence(Ordering::SeqCst);
        } else {
            // Partner: the fence in `heavy`.
            fence(Ordering::SeqCst);
        }
    }

    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        if self.asymmetric && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            // Registered, so the kernel has no reason to refuse; going on would be unsound.
            std::process::abort();
        }
    }
}

/// A counter that is odd while its only writer is on the data path.
#[derive(Debug, Default)]
pub(crate) struct Section(AtomicU32);

impl Section {
    /// Enters. What may be revoked is looked at after this.
    #[inline(always)]
    pub(super) fn enter(&self, barriers: Barriers) {
        // Relaxed: one writer. Ordered before the loads that follow by the barrier.
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count.wrapping_add(1), Ordering::Relaxed);
        barriers.light();
    }

    /// Leaves.
    #[inline(always)]
    pub fn leave(&self) {
        // Relaxed: one writer.
        let count = self.0.load(Ordering::Relaxed);
        // Release: partner of the acquire in `wait`; all that was done inside comes before.
        self.0.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Waits until the section that is under way, if any, has been left. Call after
    /// [`Barriers::heavy`], and never from within a section.
    pub fn wait(&self) {
        // Acquire: partner of the release in `leave`.
        let seen = self.0.load(Ordering::Acquire);
        if seen % 2 == 0 {
            return;
        }
        let mut spins = 0u32;
        // Acquire: as above.
        while self.0.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins % 64 == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
