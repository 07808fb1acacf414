//! A count of what has been taken away: of keys, of mappings. Something that was found to be there still is, as long as
//! the count is the same, so that it need not be looked for each time.
//!
//! ```text
//! data path                            control path
//! section.enter()                      take away        store
//! the count           load (Acquire)   count up         (Release)
//! known from before?  use it           heavy barrier
//! else look for it, and keep it        section.wait()
//! with the count
//! ```
//!
//! The count is loaded before anything is looked for: what is found and taken away meanwhile is kept with a count that
//! is never seen again.

use crate::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
#[repr(transparent)]
pub struct Generation(AtomicU64);

impl Default for Generation {
    /// The first one: nothing is known of none.
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl Generation {
    #[inline(always)]
    pub fn now(&self) -> u64 {
        // Acquire: pairs with the Release in `pass`, so that what was taken away before is not found any more.
        self.0.load(Ordering::Acquire)
    }

    /// Something has been taken away. The caller issues a heavy barrier and waits for every section before it is used
    /// for anything else.
    pub fn pass(&self) {
        // Release: pairs with the Acquire in `now`.
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};
    use bellwire_provider::quiesce::{Barriers, Section};

    struct World {
        generation: Generation,
        section: Section,
        /// The key of the memory that is there: 1, then 2.
        key: AtomicU32,
        memory: [UnsafeCell<u32>; 2],
    }

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        /// Accesses the memory of this key twice, the second time by what it knows.
        fn access(&self, key: u32) {
            let mut known = None;
            for _ in 0..2 {
                self.section.enter(Barriers::get());
                let now = self.generation.now();
                if known != Some(now) && self.key.load(Ordering::Acquire) == key {
                    known = Some(now);
                }
                if known == Some(now) {
                    // SAFETY: the models verify that this access does not conflict.
                    self.memory[key as usize - 1].with_mut(|memory| unsafe { *memory += 1 });
                }
                self.section.leave();
            }
        }
    }

    /// A requester, and a thread that takes the first memory away, uses it for something else, and gives another.
    fn takes_away(requested: u32, counts: bool) {
        check(move || {
            let world = Arc::new(World {
                generation: Generation::default(),
                section: Section::default(),
                key: AtomicU32::new(1),
                memory: [0, 0].map(UnsafeCell::new),
            });
            let requester = {
                let world = world.clone();
                thread::spawn(move || world.access(requested))
            };
            world.key.store(0, Ordering::Relaxed);
            if counts {
                world.generation.pass();
            }
            Barriers::get().heavy();
            world.section.wait();
            // SAFETY: the models verify that these accesses do not conflict.
            world.memory[0].with_mut(|memory| unsafe { *memory = 100 });
            world.memory[1].with_mut(|memory| unsafe { *memory = 7 });
            world.key.store(2, Ordering::Release);
            requester.join().unwrap();
            // SAFETY: the requester has ended.
            assert_eq!(world.memory[0].with(|memory| unsafe { *memory }), 100);
        });
    }

    #[test]
    fn loom_what_is_known_is_not_used_after_it_was_taken_away() {
        takes_away(1, true);
        takes_away(2, true);
    }

    #[cfg(loom)]
    #[test]
    fn loom_what_is_known_needs_each_ordering() {
        let models: [fn(); 1] = [loom_what_is_known_is_not_used_after_it_was_taken_away];
        crate::sync::needs_orderings(&models, "soft/src/generation.rs", &[]);
    }

    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_taking_away_has_to_be_counted() {
        takes_away(1, false);
    }
}
