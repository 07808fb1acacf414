//! Barriers between two processes, which are those of the weaker one.
//!
//! Where both processes have membarrier(2), the light barrier of a link orders nothing but the compiler, and
//! the global form of membarrier(2) reaches the other process. Where one of them has not, that one cannot
//! make the other's light barriers stronger: on this link both use fences.
//!
//! A link's kind is known when the link is made, while threads may still be on their way out of an earlier
//! link in the same place. Each loads the kind behind the store that another process looks for:
//!
//! ```text
//! data path                       a link with fences is made
//! section.enter()   store         fenced       store
//! fenced?           load          heavy barrier of this process
//! fence, if so                    the other process is told of the link
//! ```
//!
//! A thread that does not see `fenced` was there before the heavy barrier, and so was its store: the other
//! process sees it whatever it does about this link.

use super::{Barriers, Section};
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::atomic::compiler_fence;

/// The kind of barriers of a link between this process and another.
#[derive(Debug)]
pub struct Between {
    fenced: AtomicBool,
}

impl Default for Between {
    fn default() -> Self {
        let fenced = AtomicBool::new(true);
        Self { fenced }
    }
}

impl Between {
    /// The link is made with a process, of which this is what [`Barriers::reach_everywhere`] says there.
    pub fn set(&self, reaches: bool) {
        self.change(!(reaches && Barriers::reach_everywhere()), || {
            Barriers::get().heavy();
        });
    }

    fn change(&self, fenced: bool, heavy: impl FnOnce()) {
        // Relaxed: the heavy barrier orders it; the weaker kind may be seen late.
        self.fenced.store(fenced, Ordering::Relaxed);
        if fenced {
            heavy();
        }
    }

    /// Whether the light barrier is only a compiler barrier.
    pub fn is_unfenced(&self) -> bool {
        // Relaxed: the caller has loaded before this what changes first when it ends.
        !self.fenced.load(Ordering::Relaxed)
    }

    /// The barrier of the data path: orders its earlier stores before its later loads. Pairs with
    /// [`Barriers::heavy_everywhere`] of both processes.
    #[inline(always)]
    pub fn light(&self) {
        // Keeps the load behind the stores.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: ordered by the heavy barrier in `set`.
        if self.fenced.load(Ordering::Relaxed) {
            // Pairs with the fence in `Barriers::heavy`.
            fence(Ordering::SeqCst);
        } else {
            // Pairs with the system call in `Barriers::heavy_everywhere`.
            compiler_fence(Ordering::SeqCst);
        }
    }
}

impl Section {
    /// As [`enter`](Self::enter), where another process waits for the section to be left.
    #[inline(always)]
    pub fn enter_between(&self, barriers: &Between) {
        self.begin();
        barriers.light();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_process_decides() {
        let between = Between::default();
        let is_fenced = || between.fenced.load(Ordering::Relaxed);
        assert!(is_fenced());
        between.set(true);
        assert_eq!(is_fenced(), !Barriers::reach_everywhere());
        between.set(false);
        assert!(is_fenced());
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, Mutex, UnsafeCell, check, thread};

    /// A thread of an earlier link, and a process that revokes memory by fences alone.
    struct World {
        between: Between,
        section: Section,
        revoked: AtomicU32,
        memory: UnsafeCell<u32>,
        /// A heavy barrier comes before or after the work done while this is held, never in between.
        light: Mutex<()>,
    }

    // SAFETY: the models check that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        fn execute(&self) {
            let held = self.light.lock().unwrap();
            let fenced = self.between.fenced.load(Ordering::Relaxed);
            let revoked = if fenced {
                drop(held);
                self.section.begin();
                fence(Ordering::SeqCst);
                self.revoked.load(Ordering::Relaxed)
            } else {
                // Without a fence, the load may come first.
                let revoked = self.revoked.load(Ordering::Relaxed);
                self.section.begin();
                drop(held);
                revoked
            };
            if revoked == 0 {
                // SAFETY: the models check that this access does not conflict.
                self.memory.with_mut(|memory| unsafe { *memory += 1 });
            }
            self.section.leave();
        }

        fn revoke(&self) {
            self.revoked.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.section.wait();
            // SAFETY: the models check that this access does not conflict.
            self.memory.with_mut(|memory| unsafe { *memory = 100 });
        }
    }

    fn the_kind_changes(heavy: bool) {
        check(move || {
            let world = Arc::new(World {
                between: Between::default(),
                section: Section::default(),
                revoked: AtomicU32::new(0),
                memory: UnsafeCell::new(0),
                light: Mutex::new(()),
            });
            // The earlier link had both sides' membarrier(2).
            world.between.change(false, || ());
            let data_path = {
                let world = world.clone();
                thread::spawn(move || world.execute())
            };
            world.between.change(true, || {
                fence(Ordering::SeqCst);
                if heavy {
                    drop(world.light.lock().unwrap());
                }
            });
            world.revoke();
            data_path.join().unwrap();
        });
    }

    #[test]
    fn loom_a_link_with_fences_follows_one_without() {
        the_kind_changes(true);
    }

    /// The model detects that the kind is changed without the heavy barrier.
    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_changing_the_kind_needs_the_heavy_barrier() {
        the_kind_changes(false);
    }
}
