//! Whether a completion queue's next entry raises an event.
//!
//! ```text
//! producer                        consumer
//! publishes its entry   store     arms            store
//! light barrier                   heavy barrier   membarrier(2)
//! looks whether armed   load      polls again     load
//! ```
//!
//! One of the two sees the other, so that whoever arms, polls once more and sleeps misses nothing.
//! Arming says, as a ConnectX device is told it, which entry is polled next: one behind it was
//! polled, and raises nothing, however late its producer looks.

use super::quiesce::Barriers;
#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

/// Zero while not armed; else what for, above the index of the entry that is polled next.
#[derive(Debug, Default)]
pub(super) struct Arm(AtomicU32);

const INDEX: u32 = 0xff_ffff;
const SOLICITED: u32 = 1 << 24;
const ANY: u32 = 2 << 24;

impl Arm {
    /// The consumer, which polls `next` next, wants an event. What it wanted before it still wants.
    pub fn arm(&self, next: u32, solicited_only: bool, barriers: Barriers) {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        let merged = |old: u32| Some((old & !INDEX).max(wanted) | next & INDEX);
        // Relaxed: ordered before the polling that follows by the barrier.
        let _always = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
        barriers.heavy();
    }

    /// Whether the producer of an entry that it has published is to [`fire`](Self::fire).
    #[inline(always)]
    pub fn is_armed(&self, barriers: Barriers) -> bool {
        // The entry before the look: partner of the heavy barrier in `arm`.
        barriers.light();
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether entry `index` raises the event; it is not armed any more then.
    pub fn fire(&self, index: u32, solicited: bool) -> bool {
        let least = if solicited { SOLICITED } else { ANY };
        let fires = |armed: u32| {
            let polled = index.wrapping_sub(armed) & INDEX > INDEX / 2;
            (armed >= least && !polled).then_some(0)
        };
        // Relaxed: one of the producers takes it; the event's queue orders the rest.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fires)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn armed(next: u32, solicited_only: bool) -> Arm {
        let arm = Arm::default();
        arm.arm(next, solicited_only, Barriers::get());
        arm
    }

    #[test]
    fn fires_once() {
        let arm = Arm::default();
        assert!(!arm.is_armed(Barriers::get()) && !arm.fire(0, true));
        let arm = armed(5, false);
        assert!(arm.is_armed(Barriers::get()));
        assert!(arm.fire(5, false) && !arm.fire(6, true));
        assert!(!arm.is_armed(Barriers::get()));
    }

    #[test]
    fn an_entry_that_was_polled_raises_nothing() {
        for next in [0, 5, INDEX, INDEX + 1, u32::MAX] {
            for solicited_only in [false, true] {
                let arm = armed(next, solicited_only);
                assert!(!arm.fire(next.wrapping_sub(1), true));
                assert!(!arm.fire(next.wrapping_sub(1 << 22), true));
                assert!(arm.fire(next.wrapping_add(1 << 22), true));
            }
            assert!(armed(next, false).fire(next, false));
        }
    }

    #[test]
    fn arming_widens_and_does_not_narrow() {
        for (first, second) in [(false, true), (true, false), (false, false)] {
            let arm = armed(3, first);
            arm.arm(4, second, Barriers::get());
            assert!(!arm.fire(3, true) && arm.fire(4, false), "{first} {second}");
        }
        let arm = armed(3, true);
        arm.arm(4, true, Barriers::get());
        assert!(!arm.fire(4, false) && arm.fire(4, true));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A completion queue of which only the number of entries counts.
    #[derive(Default)]
    struct World {
        arm: Arm,
        published: [AtomicU32; 2],
        events: AtomicU32,
    }

    impl World {
        fn produce(&self, index: u32, look: impl FnOnce(&Arm) -> bool) {
            self.published[index as usize].store(1, Ordering::Release);
            if look(&self.arm) && self.arm.fire(index, false) {
                self.events.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn polled(&self, index: u32) -> bool {
            self.published[index as usize].load(Ordering::Acquire) == 1
        }
    }

    fn nothing_is_missed(look: impl Fn(&Arm) -> bool + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let world = Arc::new(World::default());
            let producers = [0, 1].map(|index| {
                let world = world.clone();
                thread::spawn(move || world.produce(index, look))
            });
            world.arm.arm(0, false, Barriers::get());
            let seen = world.polled(0) as u32 + world.polled(1) as u32;
            for producer in producers {
                producer.join().unwrap();
            }
            let events = world.events.load(Ordering::Relaxed);
            assert!(events <= 1, "told twice");
            // Both were there at the last look, or the sleeper is woken.
            assert!(seen == 2 || events == 1, "missed");
        });
    }

    #[test]
    fn loom_what_was_not_polled_wakes() {
        nothing_is_missed(|arm| arm.is_armed(Barriers::get()));
    }

    /// The model sees it when the producer has no barrier.
    #[test]
    #[should_panic(expected = "missed")]
    fn loom_looking_needs_its_barrier() {
        nothing_is_missed(|arm| arm.0.load(Ordering::Relaxed) != 0);
    }

    /// What was polled before arming raises nothing; what comes behind it does.
    #[test]
    fn loom_what_was_polled_does_not_wake() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let producer = {
                let world = world.clone();
                thread::spawn(move || world.produce(0, |arm| arm.is_armed(Barriers::get())))
            };
            let polled = world.polled(0);
            world.arm.arm(u32::from(polled), false, Barriers::get());
            producer.join().unwrap();
            let events = world.events.load(Ordering::Relaxed);
            assert!(!(polled && events != 0), "told of what was polled");
        });
    }
}
