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
//! kernel refuses it both sides have real ones; the loom models are of those, for they cannot know
//! what the kernel does to other processors.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, fence};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, fence};
use std::sync::atomic::{Ordering, compiler_fence};

/// Which barriers this process uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barriers {
    asymmetric: bool,
}

const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    if cfg!(any(miri, loom)) {
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

    /// Whether the light barrier is the compiler's alone.
    pub fn is_asymmetric(self) -> bool {
        self.asymmetric
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

    /// As [`heavy`](Self::heavy), for other processes of the fabric too.
    pub fn heavy_everywhere(self) {
        self.heavy();
        // Where the kernel refuses it the light barrier is a real one everywhere: see `join`.
        membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    }

    /// Lets other processes' [`heavy_everywhere`](Self::heavy_everywhere) reach this one.
    pub fn join() -> bool {
        membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
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
        // Relaxed: one writer.
        let count = self.0.load(Ordering::Relaxed);
        // Release: partner of the acquire in `wait`, which may see this section in place of the end
        // of the last one. Ordered before the loads that follow by the barrier.
        self.0.store(count.wrapping_add(1), Ordering::Release);
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

    /// As [`wait`](Self::wait), of a section of another process: `false` when it has not been left after
    /// `bound`.
    pub fn wait_bounded(&self, bound: std::time::Duration) -> bool {
        // Acquire: as in `wait`.
        let seen = self.0.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return true;
        }
        let start = std::time::Instant::now();
        let mut spins = 0u32;
        while self.0.load(Ordering::Acquire) == seen {
            spins += 1;
            pause(spins);
            if start.elapsed() > bound {
                return false;
            }
        }
        true
    }

    /// Waits until the section that is under way, if any, has been left. Call after
    /// [`Barriers::heavy`], and never from within a section.
    pub fn wait(&self) {
        // Acquire: partner of the releases in `leave` and `enter`.
        let seen = self.0.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return;
        }
        let mut spins = 0u32;
        // Acquire: as above.
        while self.0.load(Ordering::Acquire) == seen {
            spins += 1;
            pause(spins);
        }
    }
}

/// Waits a little for another thread.
#[cfg(not(loom))]
pub(super) fn pause(spins: u32) {
    if spins.is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(loom)]
pub(super) fn pause(_: u32) {
    loom::thread::yield_now();
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// Memory that can be revoked.
    #[derive(Default)]
    struct World {
        section: Section,
        revoked: AtomicU32,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: what the models are to show.
    unsafe impl Sync for World {}

    impl World {
        /// The data path, once.
        fn execute(&self, enter: impl FnOnce(&Section)) {
            enter(&self.section);
            if self.revoked.load(Ordering::Relaxed) == 0 {
                // SAFETY: what the models are to show.
                self.memory.with_mut(|memory| unsafe { *memory += 1 });
            }
            self.section.leave();
        }

        fn revoke(&self) {
            self.revoked.store(1, Ordering::Relaxed);
            Barriers::get().heavy();
            self.section.wait();
            // SAFETY: what the models are to show.
            self.memory.with_mut(|memory| unsafe { *memory = 100 });
        }
    }

    fn revoked_under(rounds: u32, enter: impl Fn(&Section) + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let world = Arc::new(World::default());
            let data_path = {
                let world = world.clone();
                thread::spawn(move || (0..rounds).for_each(|_| world.execute(enter)))
            };
            world.revoke();
            // SAFETY: nobody but us since the revocation.
            assert_eq!(world.memory.with(|memory| unsafe { *memory }), 100);
            data_path.join().unwrap();
        });
    }

    #[test]
    fn loom_nobody_uses_what_was_revoked() {
        revoked_under(2, |section| section.enter(Barriers::get()));
    }

    /// The model sees it when the data path has no barrier.
    #[test]
    #[should_panic]
    fn loom_entering_needs_its_barrier() {
        revoked_under(1, |section| section.0.store(1, Ordering::Relaxed));
    }

    /// A receive posted while the queue pair goes to ERR is flushed by one side or the other.
    #[test]
    fn loom_a_post_meets_the_flush() {
        loom::model(|| {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let poster = {
                let words = words.clone();
                thread::spawn(move || {
                    words.0.store(1, Ordering::Release);
                    Barriers::get().light();
                    words.1.load(Ordering::Relaxed)
                })
            };
            words.1.store(1, Ordering::Relaxed);
            Barriers::get().heavy();
            let posted = words.0.load(Ordering::Acquire);
            assert_eq!(posted | poster.join().unwrap(), 1);
        });
    }
}
