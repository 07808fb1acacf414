//! The gate of a requester: whether its entries are executed without the device's lock, and which way its packets go.
//! One value to check for the usual cases.
//!
//! ```text
//! data path                                  control path
//! section.enter_unfenced()   store           gate.close()      store
//! what does the gate say?    load            heavy barrier
//! FENCED: a fence, and look again            section.wait()
//! ```

use crate::sync::atomic::{AtomicU8, Ordering};
use bellwire_provider::quiesce::Barriers;

/// Open, and [`Way::Other`].
pub const OTHER: u8 = 0;
/// The data path keeps out: entries are executed or flushed under the device's lock.
pub const CLOSED: u8 = 1;
/// Open, but only a fence orders this load behind the entry into the section: load it again behind one.
pub const FENCED: u8 = 2;
// The usual cases.
/// Open, and [`Way::There`].
pub const THERE: u8 = 3;
/// Open, and [`Way::Here`].
pub const HERE: u8 = 4;

/// See the module.
#[derive(Debug)]
pub struct Gate(AtomicU8);

impl Default for Gate {
    fn default() -> Self {
        Self(AtomicU8::new(CLOSED))
    }
}

impl Gate {
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u8 {
        self.0.load(order)
    }

    #[inline(always)]
    pub fn is_closed(&self, order: Ordering) -> bool {
        self.load(order) == CLOSED
    }

    pub fn close(&self, order: Ordering) {
        self.0.store(CLOSED, order);
    }

    /// Opens it for a requester whose packets go this way.
    pub fn open(&self, way: Way, barriers: Barriers) {
        let open = match way {
            _ if !barriers.is_asymmetric() => FENCED,
            Way::Here => HERE,
            Way::There => THERE,
            Way::Other => OTHER,
        };
        // Release: pairs with the Acquire in `Hca::execute` and `Hca::acknowledge_unlocked`.
        self.0.store(open, Ordering::Release);
    }
}

/// Where a requester's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a reliable connection in this process.
    Here,
    /// To a reliable connection in another process: there is a `remote`.
    There,
    /// Anywhere else, or not by a reliable connection.
    Other,
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};
    use bellwire_provider::quiesce::Section;

    struct World {
        section: Section,
        gate: Gate,
        work: UnsafeCell<u32>,
    }

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        /// As `Hca::execute` and `Hca::execute_fenced`.
        fn execute(&self, looks_again: bool) {
            self.section.enter_unfenced();
            let mut gate = self.gate.load(Ordering::Acquire);
            if gate == FENCED && looks_again {
                Barriers::get().light();
                gate = self.gate.load(Ordering::Acquire);
            }
            if gate != CLOSED {
                // SAFETY: the models verify that this access does not conflict.
                self.work.with_mut(|work| unsafe { *work += 1 });
            }
            self.section.leave();
        }
    }

    /// A poster, and a thread that closes the gate, changes the work, and opens it again.
    fn closed(looks_again: bool) {
        check(move || {
            let world = World {
                section: Section::default(),
                gate: Gate::default(),
                work: UnsafeCell::new(0),
            };
            world.gate.open(Way::There, Barriers::get());
            let world = Arc::new(world);
            let poster = {
                let world = world.clone();
                thread::spawn(move || (0..2).for_each(|_| world.execute(looks_again)))
            };
            // Relaxed: the barrier orders it before what follows.
            world.gate.close(Ordering::Relaxed);
            Barriers::get().heavy();
            world.section.wait();
            // SAFETY: the models verify that this access does not conflict.
            world.work.with_mut(|work| unsafe { *work = 100 });
            world.gate.open(Way::There, Barriers::get());
            poster.join().unwrap();
            // SAFETY: the poster has ended.
            assert!(world.work.with(|work| unsafe { *work }) >= 100);
        });
    }

    #[test]
    fn loom_a_closed_gate_keeps_the_data_path_out() {
        closed(true);
    }

    #[cfg(loom)]
    #[test]
    fn loom_the_gate_needs_each_ordering() {
        let models: [fn(); 1] = [loom_a_closed_gate_keeps_the_data_path_out];
        crate::sync::needs_orderings(&models, "soft/src/gate.rs", &[]);
    }

    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_a_gate_without_a_fence_has_to_be_looked_at_again() {
        closed(false);
    }
}
