//! Waiting until the data path no longer uses what the control path revokes, at no cost to the data path.
//!
//! A thread that executes WQEs of a queue pair enters its [`Section`] before and leaves it afterwards. A
//! thread that revokes something (a key, a connection, a queue pair) first publishes the revocation, then
//! waits until every section that may have seen the old state has been left:
//!
//! ```text
//! data path                       control path
//! section.enter()   store         revoke          store
//! light barrier                   heavy barrier   membarrier(2)
//! check what may be revoked       section.wait()
//! ```
//!
//! Each side stores before it loads, which requires a full barrier on both sides. membarrier(2) executes one
//! on every processor that runs this process, so a compiler barrier is sufficient on the data path. If the
//! kernel refuses membarrier(2) from the start, both sides use real barriers. If it refuses it later, because a
//! seccomp filter came in between, the control path has another barrier: see `refused`.
//!
//! Between processes it is the same; which kind a link has is in [`Between`].
//!
//! The models cover real barriers only, because neither loom nor Miri models the effect of the kernel on other
//! processors. What that rests on, membarrier(2): all accesses of each thread that the call reaches come, in
//! the order of the program, either before or after the call; of a thread that is not running its last
//! context switch is the barrier. Linux interrupts the processors for that, and each executes a full barrier:
//! on aarch64 `dmb ish`, which orders every access before it before every access behind it (Arm Architecture
//! Reference Manual, chapter B2, "Data Memory Barrier"). So the store of `enter` is seen by `wait`, or the
//! loads behind `enter` see the revocation, on a weak memory model as on a strong one. The compiler's order
//! is the light barrier's part.

mod between;
mod refused;

pub use between::Between;

use crate::backoff::Backoff;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use bellwire_memory::fork::PerProcess;
use std::sync::OnceLock;
use std::sync::atomic::compiler_fence;

/// The kind of barriers that this process uses.
#[derive(Clone, Copy, Debug)]
pub struct Barriers {
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
    // SAFETY: the call takes numbers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

impl Barriers {
    /// Registers with the kernel, once per process, and returns the kind of barriers to use.
    pub fn get() -> Self {
        static REGISTERED: PerProcess<OnceLock<bool>> = PerProcess::new(OnceLock::new);
        let asymmetric = *REGISTERED
            .get()
            .get_or_init(|| membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
        Self { asymmetric }
    }

    /// Whether what is made from now on should leave its light barriers to the compiler. No more, once the kernel has
    /// refused membarrier(2): what was made before works as well, but each heavy barrier takes longer.
    pub fn is_asymmetric(self) -> bool {
        self.asymmetric && !refused::is_so()
    }

    /// The barrier of the data path: orders its earlier stores before its later loads.
    #[inline(always)]
    pub fn light(self) {
        if self.asymmetric {
            // Pairs with the system call in `heavy`.
            compiler_fence(Ordering::SeqCst);
        } else {
            // Pairs with the fence in `heavy`.
            fence(Ordering::SeqCst);
        }
    }

    /// Like [`heavy`](Self::heavy), also for the other processes of the fabric.
    pub fn heavy_everywhere(self) {
        if !Self::is_registered_everywhere() {
            // Every link of this process has fences, which pair with that in `heavy`.
            return self.heavy();
        }
        fence(Ordering::SeqCst);
        // Reaches every process that is registered for it, and so this one: another call for it alone would add
        // nothing.
        if !membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) {
            refused::barrier_everywhere();
        }
    }

    /// Whether this process and others reach each other by [`heavy_everywhere`](Self::heavy_everywhere) on the links
    /// that are made from now on. Registers it with the kernel, once per process. Otherwise links have fences: see
    /// [`Between`].
    pub fn reach_everywhere() -> bool {
        Self::is_registered_everywhere() && !refused::is_so()
    }

    fn is_registered_everywhere() -> bool {
        static REGISTERED: PerProcess<OnceLock<bool>> = PerProcess::new(OnceLock::new);
        *REGISTERED.get().get_or_init(|| {
            Self::get().is_asymmetric() && membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
        })
    }

    /// Whether each heavy barrier takes milliseconds for as long as this process lives, because the kernel has refused
    /// membarrier(2) after start-up.
    pub fn are_slow() -> bool {
        refused::is_so()
    }

    /// The barrier of the control path: pairs with every [`light`](Self::light) of this process.
    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        if self.asymmetric && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            refused::barrier();
        }
    }
}

/// A counter that is odd while its only writer executes on the data path.
#[derive(Debug, Default)]
pub struct Section(AtomicU32);

impl Section {
    /// Enters the section. Check what may be revoked only after this.
    #[inline(always)]
    pub fn enter(&self, barriers: Barriers) {
        self.begin();
        barriers.light();
    }

    /// Like [`enter`](Self::enter), where the light barrier is only a compiler barrier. What the caller loads next says
    /// whether it is; if not, the caller issues the barrier, and loads it again.
    #[inline(always)]
    pub fn enter_unfenced(&self) {
        self.begin();
        // Pairs with the system call in `heavy`.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn begin(&self) {
        // Relaxed: only this thread writes the counter.
        let count = self.0.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `wait`, which may see this entry instead of the end of the
        // previous section. The barrier orders the store before the loads that follow.
        self.0.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Leaves the section.
    #[inline(always)]
    pub fn leave(&self) {
        // Relaxed: only this thread writes the counter.
        let count = self.0.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `wait`; everything done in the section is ordered before it.
        self.0.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Changes each time that it is entered or left: odd while it is entered.
    pub fn count(&self) -> u32 {
        // Relaxed: orders nothing.
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until the current section, if any, has been left. Call it after [`Barriers::heavy`], and never
    /// within a section.
    pub fn wait(&self) {
        // Acquire: pairs with the Release in `leave` and `enter`.
        let seen = self.0.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return;
        }
        let mut backoff = Backoff::new();
        // Acquire: pairs with the Release in `leave` and `enter`.
        while self.0.load(Ordering::Acquire) == seen {
            backoff.wait();
        }
    }
}

impl AsRef<Section> for Section {
    fn as_ref(&self) -> &Section {
        self
    }
}

/// Like [`Section::wait`], for sections of other processes. Waits for all of them together no longer than
/// `bound`. Returns how many have not been left by then, and moves those to the front. Allocates nothing.
#[must_use]
pub fn wait_until_left<T: AsRef<Section>>(
    sections: &mut [(T, u32)],
    bound: std::time::Duration,
) -> usize {
    let start = std::time::Instant::now();
    let mut backoff = Backoff::new();
    let mut inside = sections.len();
    loop {
        let mut still = 0;
        for at in 0..inside {
            let (of, seen) = &sections[at];
            // Acquire: pairs with the Release in `leave` and `enter`.
            let now = of.as_ref().0.load(Ordering::Acquire);
            if now == *seen && !seen.is_multiple_of(2) {
                sections.swap(still, at);
                still += 1;
            }
        }
        inside = still;
        if inside == 0 || start.elapsed() > bound {
            return inside;
        }
        backoff.wait();
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sections_that_are_not_left_are_named() {
        let [left, stuck, other] = [0, 1, u32::MAX].map(|count| Section(AtomicU32::new(count)));
        let mut sections = [&left, &stuck, &other].map(|of| (of, of.count()));
        assert_eq!(wait_until_left(&mut sections, Duration::ZERO), 2);
        let is = |section: &Section| {
            sections[..2]
                .iter()
                .any(|(of, _)| std::ptr::eq(*of, section))
        };
        assert!(!is(&left) && is(&stuck) && is(&other));
        // A section that was left and entered again is not waited for.
        let mut sections = [(&left, 0), (&stuck, u32::MAX)];
        assert_eq!(wait_until_left(&mut sections, Duration::MAX), 0);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};

    /// Memory that can be revoked.
    #[derive(Default)]
    struct World {
        section: Section,
        revoked: AtomicU32,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: the models check that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        /// Executes once on the data path.
        fn execute(&self) {
            self.section.enter(Barriers::get());
            if self.revoked.load(Ordering::Relaxed) == 0 {
                // SAFETY: the models check that this access does not conflict.
                self.memory.with_mut(|memory| unsafe { *memory += 1 });
            }
            self.section.leave();
        }

        fn revoke(&self) {
            self.revoked.store(1, Ordering::Relaxed);
            Barriers::get().heavy();
            self.section.wait();
            // SAFETY: the models check that this access does not conflict.
            self.memory.with_mut(|memory| unsafe { *memory = 100 });
        }
    }

    #[test]
    fn loom_nobody_uses_what_was_revoked() {
        check(|| {
            let world = Arc::new(World::default());
            let data_path = {
                let world = world.clone();
                thread::spawn(move || (0..2).for_each(|_| world.execute()))
            };
            world.revoke();
            // SAFETY: after the revocation no other thread accesses the memory.
            assert_eq!(world.memory.with(|memory| unsafe { *memory }), 100);
            data_path.join().unwrap();
        });
    }

    /// The barriers of both sides, too.
    #[cfg(loom)]
    #[test]
    fn loom_sections_need_each_ordering() {
        let models: [fn(); 3] = [
            loom_nobody_uses_what_was_revoked,
            loom_a_post_meets_the_flush,
            loom_who_closes_in_its_section_needs_no_barrier,
        ];
        crate::sync::needs_orderings(&models, "provider/src/quiesce.rs", &[]);
    }

    /// A thread that closes what it executes, while it is in its section, as `Hca::stop` of the software HCA
    /// does: a thread that sees that it is closed sees the section, too, and needs no barrier to wait for it.
    #[test]
    fn loom_who_closes_in_its_section_needs_no_barrier() {
        check(|| {
            let world = Arc::new(World::default());
            let data_path = {
                let world = world.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        // Without its barrier, which has no partner here.
                        world.section.begin();
                        if world.revoked.load(Ordering::Relaxed) == 0 {
                            // SAFETY: the models check that this access does not conflict.
                            world.memory.with_mut(|memory| unsafe { *memory += 1 });
                            world.revoked.store(1, Ordering::Release);
                        }
                        world.section.leave();
                    }
                })
            };
            // loom lets the other thread go first only at a change; this one synchronizes with nothing.
            world.revoked.fetch_add(0, Ordering::Relaxed);
            if world.revoked.load(Ordering::Acquire) != 0 {
                world.section.wait();
                // SAFETY: the models check that this access does not conflict.
                world.memory.with_mut(|memory| unsafe { *memory = 100 });
            }
            data_path.join().unwrap();
        });
    }

    /// One barrier is enough for all that was revoked before it, and none is needed for what was revoked, and left,
    /// before.
    #[test]
    fn loom_one_barrier_for_several() {
        check(|| {
            let worlds = Arc::new([World::default(), World::default()]);
            let data_path = {
                let worlds = worlds.clone();
                thread::spawn(move || {
                    worlds.iter().for_each(World::execute);
                })
            };
            for world in &*worlds {
                world.revoked.store(1, Ordering::Relaxed);
            }
            Barriers::get().heavy();
            for world in &*worlds {
                // The second time nothing is executed any more.
                for value in [100, 200] {
                    world.section.wait();
                    // SAFETY: the models check that this access does not conflict.
                    world.memory.with_mut(|memory| unsafe { *memory = value });
                }
            }
            data_path.join().unwrap();
        });
    }

    /// A receive posted while the queue pair goes to ERR is flushed by one side or the other.
    #[test]
    fn loom_a_post_meets_the_flush() {
        check(|| {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let poster = {
                let words = words.clone();
                thread::spawn(move || {
                    words.0.store(1, Ordering::Relaxed);
                    Barriers::get().light();
                    words.1.load(Ordering::Relaxed)
                })
            };
            words.1.store(1, Ordering::Relaxed);
            Barriers::get().heavy();
            let posted = words.0.load(Ordering::Relaxed);
            assert_eq!(posted | poster.join().unwrap(), 1);
        });
    }
}
