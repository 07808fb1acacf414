//! Where a piece of a peer's memory is mapped here, while it is.
//!
//! The peer cannot write any of this. A word of the peer's is only compared with a value here, so whatever it
//! is, addresses that are found are mapped until the finder leaves its section.

use crate::fabric::Memory;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Generation while nothing is mapped. A peer's generations have fewer bits.
const GONE: u64 = u64::MAX;

/// The mapping of one piece of a peer's memory. Except for setting `generation` to [`GONE`], it is changed
/// only while no thread can have read it as mapped.
#[derive(Debug)]
pub(super) struct Place {
    generation: AtomicU64,
    /// Start address in the peer's address space.
    theirs: AtomicU64,
    length: AtomicU64,
    /// How much of it is writable: all or nothing.
    writable: AtomicU64,
    /// Start address in ours.
    ours: AtomicUsize,
}

/// The purpose for which an address is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Reading,
    Writing,
}

impl Place {
    pub fn new() -> Self {
        Self {
            generation: AtomicU64::new(GONE),
            theirs: AtomicU64::new(0),
            length: AtomicU64::new(0),
            writable: AtomicU64::new(0),
            ours: AtomicUsize::new(0),
        }
    }

    /// Our address for these addresses of the peer, if they belong to the generation that the peer publishes.
    /// In a section, or under the device's lock; valid until it is left or released.
    #[inline(always)]
    pub fn find(&self, shown: u32, addr: u64, length: u64, access: For) -> Option<usize> {
        // Acquire: pairs with the Release in `publish`. A place that is being revoked may still be seen: the
        // unmapping thread waits for this section.
        if self.generation.load(Ordering::Acquire) != u64::from(shown) {
            return None;
        }
        // Relaxed, all: written before the generation, and not again during this section.
        let offset = addr.wrapping_sub(self.theirs.load(Ordering::Relaxed));
        let whole = match access {
            For::Reading => self.length.load(Ordering::Relaxed),
            For::Writing => self.writable.load(Ordering::Relaxed),
        };
        let within = offset <= whole && length <= whole - offset;
        within.then(|| (self.ours.load(Ordering::Relaxed)).wrapping_add(offset as usize))
    }

    /// The addresses of the peer that `find` finds, and ours of the first. While what it found is valid.
    pub fn all(&self, access: For) -> (u64, u64, usize) {
        let whole = match access {
            For::Reading => &self.length,
            For::Writing => &self.writable,
        };
        // Relaxed, all: as in `find`.
        (
            self.theirs.load(Ordering::Relaxed),
            whole.load(Ordering::Relaxed),
            self.ours.load(Ordering::Relaxed),
        )
    }

    /// Publishes a mapping at `ours`. No thread may have read the previous contents as mapped.
    pub fn publish(&self, memory: &Memory, ours: usize, writable: bool) {
        // Relaxed: published by the generation.
        self.theirs.store(memory.addr, Ordering::Relaxed);
        self.length.store(memory.length, Ordering::Relaxed);
        let writable = if writable { memory.length } else { 0 };
        self.writable.store(writable, Ordering::Relaxed);
        self.ours.store(ours, Ordering::Relaxed);
        // Release: pairs with the Acquire in `find`.
        (self.generation).store(memory.generation.into(), Ordering::Release);
    }

    /// Makes the place impossible to find. Before it is unmapped, the caller issues a heavy barrier and waits
    /// for every section.
    pub fn revoke(&self) {
        // Relaxed: that barrier orders it.
        self.generation.store(GONE, Ordering::Relaxed);
    }

    /// Called by the only writer.
    pub fn is_gone(&self) -> bool {
        // Relaxed: the caller wrote it itself.
        self.generation.load(Ordering::Relaxed) == GONE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory {
        inode: 1,
        index: 0,
        generation: 3,
        fd: 0,
        addr: 1000,
        length: 100,
    };

    #[test]
    fn only_what_is_mapped_is_found() {
        let place = Place::new();
        let all = [For::Reading, For::Writing];
        for shown in [0, 1, 3, u32::MAX] {
            for access in all {
                assert_eq!(place.find(shown, 0, 0, access), None);
            }
        }
        place.publish(&MEMORY, 5000, true);
        for access in all {
            assert_eq!(place.find(3, 1000, 100, access), Some(5000));
            assert_eq!(place.find(3, 1099, 1, access), Some(5099));
            for (shown, addr, length) in [
                (1, 1000, 8),
                (3, 999, 1),
                (3, 1000, 101),
                (3, 1099, 2),
                (3, 1101, 0),
                (3, 1050, u64::MAX),
                (3, u64::MAX, 8),
            ] {
                assert_eq!(place.find(shown, addr, length, access), None);
            }
        }
        place.revoke();
        assert!(place.is_gone());
        assert_eq!(place.find(3, 1000, 8, For::Reading), None);
        place.publish(&MEMORY, 5000, false);
        assert_eq!(place.find(3, 1000, 8, For::Reading), Some(5000));
        assert_eq!(place.find(3, 1000, 8, For::Writing), None);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};
    use bellwire_provider::quiesce::{Barriers, Section};

    struct World {
        place: Place,
        section: Section,
        /// Indexed by what stands for the addresses: first 0 is mapped, then 1.
        memory: [UnsafeCell<u32>; 2],
    }

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for World {}

    fn memory(generation: u32) -> Memory {
        Memory {
            index: 0,
            generation,
            fd: 0,
            addr: 0,
            length: 1,
            inode: 0,
        }
    }

    /// A requester, and a thread that unmaps one piece of memory and maps another, whatever generations the
    /// peer publishes.
    fn requests(shown: [u32; 2], waits: bool) {
        check(move || {
            let world = Arc::new(World {
                place: Place::new(),
                section: Section::default(),
                memory: [0, 1].map(|_| UnsafeCell::new(0)),
            });
            world.place.publish(&memory(1), 0, true);
            let requester = {
                let world = world.clone();
                thread::spawn(move || {
                    for shown in shown {
                        world.section.enter(Barriers::get());
                        if let Some(at) = world.place.find(shown, 0, 1, For::Writing) {
                            assert_eq!(at, shown as usize / 2, "found as what it was not");
                            // SAFETY: the models verify that accesses do not conflict.
                            world.memory[at].with_mut(|memory| unsafe { *memory = 7 });
                        }
                        world.section.leave();
                    }
                })
            };
            world.place.revoke();
            Barriers::get().heavy();
            if waits {
                world.section.wait();
            }
            // Unmapped, and used for something else.
            // SAFETY: the models verify that accesses do not conflict.
            world.memory[0].with_mut(|memory| unsafe { *memory = 100 });
            world.place.publish(&memory(3), 1, true);
            requester.join().unwrap();
            // SAFETY: the models verify that accesses do not conflict.
            assert_eq!(world.memory[0].with(|memory| unsafe { *memory }), 100);
        });
    }

    #[test]
    fn loom_nothing_is_found_that_is_not_mapped() {
        for shown in [[3, 3], [1, 3], [3, 1], [1, 1]] {
            requests(shown, true);
        }
    }

    #[cfg(loom)]
    #[test]
    fn loom_a_mapping_needs_each_ordering() {
        let models: [fn(); 1] = [loom_nothing_is_found_that_is_not_mapped];
        crate::sync::needs_orderings(&models, "remote/place.rs", &[]);
    }

    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_unmapping_has_to_wait_for_sections() {
        requests([1, 1], false);
    }
}
