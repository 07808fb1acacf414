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
use std::sync::atomic::{Ordering, compiler_fence};

/// Whether a completion queue is armed, for what, and from which entry on.
#[derive(Debug)]
pub(super) struct Arm {
    /// What for, above the index of the entry that is polled next; zero in both while not armed.
    /// [`FENCED`] besides, always or never.
    word: AtomicU32,
    barriers: Barriers,
}

const INDEX: u32 = 0xff_ffff;
const SOLICITED: u32 = 1 << 24;
const ANY: u32 = 2 << 24;
const WANTED: u32 = SOLICITED | ANY;
/// The light barrier is a real one. The producer finds that out by the one look that it takes
/// anyway, so that it costs nothing where it is not.
const FENCED: u32 = 1 << 31;

impl Arm {
    pub fn new(barriers: Barriers) -> Self {
        let fenced = if barriers.is_asymmetric() { 0 } else { FENCED };
        Self {
            word: AtomicU32::new(fenced),
            barriers,
        }
    }

    /// The consumer, which polls `next` next, wants an event. What it wanted before it still wants.
    pub fn arm(&self, next: u32, solicited_only: bool) {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        let merged = |old: u32| Some(old & FENCED | (old & WANTED).max(wanted) | next & INDEX);
        // Relaxed: ordered before the polling that follows by the barrier.
        let _always = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
        self.barriers.heavy();
    }

    /// Whether the producer of an entry that it has published has to ask [`fire`](Self::fire).
    #[inline(always)]
    pub fn may_fire(&self) -> bool {
        // The entry before the look: partner of the heavy barrier in `arm`. Where that takes a real
        // one on both sides the word is never zero, and `fire` has it.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: as above.
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Whether entry `index`, which was published, raises the event; it is not armed any more then.
    pub fn fire(&self, index: u32, solicited: bool) -> bool {
        self.barriers.light();
        self.disarm(index, solicited)
    }

    fn disarm(&self, index: u32, solicited: bool) -> bool {
        let least = if solicited { SOLICITED } else { ANY };
        let fires = |word: u32| {
            let polled = index.wrapping_sub(word) & INDEX > INDEX / 2;
            (word & WANTED >= least && !polled).then_some(word & FENCED)
        };
        // Relaxed: one of the producers takes it; the event's queue orders the rest.
        self.word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fires)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn armed(next: u32, solicited_only: bool) -> Arm {
        let arm = Arm::new(Barriers::get());
        arm.arm(next, solicited_only);
        arm
    }

    #[test]
    fn fires_once() {
        let arm = Arm::new(Barriers::get());
        let idle = arm.may_fire();
        // Where the kernel has no membarrier(2) it may always.
        assert_eq!(idle, !Barriers::get().is_asymmetric());
        assert!(!arm.fire(0, true));
        let arm = armed(5, false);
        assert!(arm.may_fire());
        assert!(arm.fire(5, false) && !arm.fire(6, true));
        assert_eq!(arm.may_fire(), idle);
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
            arm.arm(4, second);
            assert!(!arm.fire(3, true) && arm.fire(4, false), "{first} {second}");
        }
        let arm = armed(3, true);
        arm.arm(4, true);
        assert!(!arm.fire(4, false) && arm.fire(4, true));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A completion queue of which only the number of entries counts.
    struct World {
        arm: Arm,
        published: [AtomicU32; 2],
        events: AtomicU32,
    }

    /// A producer's look at what is armed.
    type Look = fn(&Arm, u32) -> bool;

    fn look(arm: &Arm, index: u32) -> bool {
        arm.may_fire() && arm.fire(index, false)
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                arm: Arm::new(Barriers::get()),
                published: Default::default(),
                events: AtomicU32::new(0),
            })
        }

        fn produce(&self, index: u32, look: Look) {
            self.published[index as usize].store(1, Ordering::Release);
            if look(&self.arm, index) {
                self.events.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn polled(&self, index: u32) -> bool {
            self.published[index as usize].load(Ordering::Acquire) == 1
        }
    }

    fn nothing_is_missed(look: Look) {
        loom::model(move || {
            let world = World::new();
            let producers = [0, 1].map(|index| {
                let world = world.clone();
                thread::spawn(move || world.produce(index, look))
            });
            world.arm.arm(0, false);
            let seen = u32::from(world.polled(0)) + u32::from(world.polled(1));
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
        nothing_is_missed(look);
    }

    /// The model sees it when the producer has no barrier.
    #[test]
    #[should_panic(expected = "missed")]
    fn loom_looking_needs_its_barrier() {
        nothing_is_missed(|arm, index| arm.disarm(index, false));
    }
}
