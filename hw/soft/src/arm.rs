//! Whether a completion queue's next entry raises an event.
//!
//! ```text
//! producer                        consumer
//! publishes its entry   store     arms            store
//! light barrier                   heavy barrier   membarrier(2)
//! checks whether armed  load      polls again     load
//! ```
//!
//! At least one of the two sees the other's store, so a consumer that arms, polls once more and then sleeps
//! misses nothing. As on a ConnectX device, arming names the entry that is polled next. An entry before it
//! has been polled and raises nothing, however late its producer checks.
//!
//! Indices have 61 bits here, and so never wrap: a queue that is armed for solicited completions may stay so for any
//! number of others. The doorbell's 24 bits, and those 32 of a producer that checks, are widened by the count of all
//! entries.
//!
//! A consumer that sleeps often would issue a membarrier(2) at each sleep. So arming also asks producers to
//! use a full fence from then on; while they do, arming itself needs only a fence. A producer that finds
//! the queue unarmed for 256 entries after the last event goes back to the light barrier.

use crate::sync::{
    MODELS,
    atomic::{AtomicU64, Ordering, fence},
};
use bellwire_provider::quiesce::Barriers;
use std::sync::atomic::compiler_fence;

/// Whether a completion queue is armed, for what, and from which entry on.
#[derive(Debug)]
pub(super) struct Arm {
    /// What the queue is armed for, above an index: of the entry that is polled next or, while not armed, of
    /// the entry that raised the last event. In addition [`FENCED`].
    word: AtomicU64,
    barriers: Barriers,
}

const INDEX: u64 = (1 << 61) - 1;
const SOLICITED: u64 = 1 << 61;
const ANY: u64 = 2 << 61;
const WANTED: u64 = SOLICITED | ANY;
/// Producers use a full fence. They learn it from the load that they do in any case, so it costs nothing
/// while the bit is clear. Always set where the kernel has no membarrier(2).
const FENCED: u64 = 1 << 63;
/// Entries after the last event until producers stop using the full fence. That many fences cost as much as
/// one membarrier(2), or more.
const LONG: u64 = if MODELS { 1 } else { 256 };

impl Arm {
    pub fn new(barriers: Barriers) -> Self {
        let fenced = if barriers.is_asymmetric() { 0 } else { FENCED };
        Self {
            word: AtomicU64::new(fenced),
            barriers,
        }
    }

    /// Arms for the consumer, which polls `next` next. An earlier, wider request stays in effect.
    pub fn arm(&self, next: u64, solicited_only: bool) {
        self.arm_by(next, solicited_only, || self.barriers.heavy());
    }

    fn arm_by(&self, next: u64, solicited_only: bool, heavy: impl FnOnce()) {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        let merged = |old: u64| Some(FENCED | (old & WANTED).max(wanted) | next & INDEX);
        // Relaxed: the barrier orders it before the polling that follows.
        let changed = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
        if changed.is_ok_and(|old| old & FENCED != 0) {
            // Each producer has seen FENCED since the heavy barrier after the change that set it. Pairs with
            // the fence in `fire`.
            fence(Ordering::SeqCst);
        } else {
            heavy();
        }
    }

    /// Whether the producer has to call [`fire`](Self::fire) for the entry that it has published.
    #[inline(always)]
    pub fn may_fire(&self) -> bool {
        // Orders the entry before the load. Pairs with the heavy barrier in `arm`. Where both sides need a
        // full fence, the word is never zero, and `fire` has the fence.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: ordered by the barrier.
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Whether entry `index`, which was published, raises the event. If so, the queue is no longer armed.
    pub fn fire(&self, index: u64, solicited: bool) -> bool {
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        self.disarm(index, solicited, self.barriers.is_asymmetric())
    }

    fn disarm(&self, index: u64, solicited: bool, may_relax: bool) -> bool {
        let least = if solicited { SOLICITED } else { ANY };
        let after = |word: u64| {
            let ahead = index.wrapping_sub(word) & INDEX;
            // Half the range is 2^60 entries: at 10^9 a second they last for 36 years.
            let polled = ahead > INDEX / 2;
            if word & WANTED >= least && !polled {
                return Some(FENCED | index & INDEX);
            }
            // The next consumer to arm sees FENCED cleared, and uses the heavy barrier.
            (may_relax && word & WANTED == 0 && word & FENCED != 0 && !polled && ahead >= LONG)
                .then_some(0)
        };
        // Relaxed: only one producer gets the event; the event queue orders the rest.
        let changed = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        changed.is_ok_and(|old| old & WANTED != 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn armed(next: u64, solicited_only: bool) -> Arm {
        let arm = Arm::new(Barriers::get());
        arm.arm(next, solicited_only);
        arm
    }

    #[test]
    fn fires_once() {
        let arm = Arm::new(Barriers::get());
        let idle = arm.may_fire();
        // Always true where the kernel has no membarrier(2).
        assert_eq!(idle, !Barriers::get().is_asymmetric());
        assert!(!arm.fire(0, true));
        let arm = armed(5, false);
        assert!(arm.may_fire());
        assert!(arm.fire(5, false) && !arm.fire(6, true));
    }

    /// Producers use the full fence from the first sleep on, until no consumer has slept for long.
    #[test]
    fn the_barrier_stays_for_as_long_as_somebody_sleeps() {
        let arm = armed(0, false);
        assert!(arm.fire(0, false));
        for index in [1, LONG - 1] {
            assert!(arm.may_fire() && !arm.fire(index, true));
        }
        arm.arm(LONG, false);
        assert!(arm.fire(LONG, false));
        assert!(arm.may_fire() && !arm.fire(LONG + 1, true));
        assert!(!arm.fire(2 * LONG, true));
        assert_eq!(arm.may_fire(), !Barriers::get().is_asymmetric());
        arm.arm(2 * LONG + 1, false);
        assert!(arm.fire(2 * LONG + 1, true));
    }

    /// An entry whose producer checks late does not end the use of the fence.
    #[test]
    fn late_producers_leave_the_barrier() {
        let arm = armed(10, false);
        assert!(arm.fire(10, false) && !arm.fire(9, true));
        assert!(arm.may_fire());
    }

    #[test]
    fn an_entry_that_was_polled_raises_nothing() {
        for next in [0, 5, EDGE_24, u32::MAX.into(), INDEX, INDEX + 1] {
            for solicited_only in [false, true] {
                let arm = armed(next, solicited_only);
                assert!(!arm.fire(next.wrapping_sub(1), true));
                assert!(!arm.fire(next.wrapping_sub(1 << 22), true));
                assert!(arm.fire(next.wrapping_add(1 << 22), true));
            }
            assert!(armed(next, false).fire(next, false));
        }
    }

    const EDGE_24: u64 = 0xff_ffff;

    /// However many entries come that nobody has asked for, the one that was asked for wakes.
    #[test]
    fn any_number_of_other_entries_may_come_first() {
        for next in [0, EDGE_24, u32::MAX.into()] {
            for others in [
                1,
                1 << 23,
                (1 << 23) + 1,
                1 << 24,
                1 << 31,
                (1 << 32) + 1,
                1 << 40,
            ] {
                let arm = armed(next, true);
                for index in [next, next + others / 2, next + others - 1] {
                    assert!(!arm.fire(index, false), "{others} from {next}");
                }
                assert!(arm.fire(next + others, true), "{others} from {next}");
            }
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

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, Mutex, check, longer, thread};

    /// A completion queue reduced to the number of its entries.
    struct World {
        arm: Arm,
        published: [AtomicU32; 2],
        events: AtomicU32,
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                arm: Arm::new(Barriers::get()),
                published: Default::default(),
                events: AtomicU32::new(0),
            })
        }

        fn produce(&self, index: u32) {
            self.published[index as usize].store(1, Ordering::Relaxed);
            if self.arm.may_fire() && self.arm.fire(index.into(), false) {
                self.events.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn polled(&self, index: u32) -> bool {
            self.published[index as usize].load(Ordering::Relaxed) == 1
        }
    }

    #[test]
    fn loom_what_was_not_polled_wakes() {
        check(|| {
            let world = World::new();
            let producers = [0, 1].map(|index| {
                let world = world.clone();
                thread::spawn(move || world.produce(index))
            });
            world.arm.arm(0, false);
            let seen = u32::from(world.polled(0)) + u32::from(world.polled(1));
            for producer in producers {
                producer.join().unwrap();
            }
            let events = world.events.load(Ordering::Relaxed);
            assert!(events <= 1, "notified twice");
            // Both entries were there at the last poll, or the sleeper is woken.
            assert!(seen == 2 || events == 1, "missed");
        });
    }

    /// The fences of the producer and of the consumer.
    #[cfg(loom)]
    #[test]
    fn loom_arming_needs_both_fences() {
        let models: [fn(); 1] = [loom_what_was_not_polled_wakes];
        crate::sync::needs_orderings(&models, "soft/src/arm.rs", &[]);
    }

    /// A producer with the light barrier: another thread's heavy barrier comes before or after it, never in
    /// between.
    struct Light(Mutex<()>);

    /// Armed twice; between the two, a producer may have cleared FENCED.
    fn nothing_is_missed_between_the_barriers(relax: bool, heavy: bool) {
        check(move || {
            let world = World::new();
            let light = Arc::new(Light(Mutex::new(())));
            // As where the kernel has membarrier(2).
            world.arm.word.store(0, Ordering::Relaxed);
            let heavy = {
                let light = light.clone();
                move || {
                    fence(Ordering::SeqCst);
                    drop(heavy.then(|| light.0.lock().unwrap()));
                }
            };
            world.arm.arm_by(0, false, &heavy);
            assert!(world.arm.disarm(0, false, true));
            let producer = {
                let (world, light) = (world.clone(), light.clone());
                thread::spawn(move || {
                    if relax {
                        // Of another producer, late.
                        world.arm.disarm(1, false, true);
                    }
                    // Without a full fence, the load may come first.
                    let held = light.0.lock().unwrap();
                    if world.arm.word.load(Ordering::Relaxed) == 0 {
                        world.published[0].store(1, Ordering::Release);
                        return;
                    }
                    drop(held);
                    world.published[0].store(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if world.arm.disarm(2, false, true) {
                        world.events.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            world.arm.arm_by(2, false, &heavy);
            let seen = world.polled(0);
            producer.join().unwrap();
            let events = world.events.load(Ordering::Relaxed);
            assert!(seen || events == 1, "missed");
        });
    }

    #[test]
    fn loom_nothing_is_missed_where_the_barrier_is_real() {
        nothing_is_missed_between_the_barriers(false, true);
    }

    #[test]
    fn loom_nothing_is_missed_where_it_is_done_away_with() {
        nothing_is_missed_between_the_barriers(true, true);
    }

    /// The model detects a missing heavy barrier after FENCED was cleared.
    #[test]
    #[should_panic(expected = "missed")]
    fn loom_doing_away_with_the_barrier_needs_the_heavy_one() {
        longer(|| nothing_is_missed_between_the_barriers(true, false));
    }
}
