//! Which thread writes which entry of a completion queue, and what happens when there is no room.
//!
//! ```text
//! producer                             consumer
//! claims an index      fetch_add       reads the entry
//! is there room?       load `seen`,    passes it        store of its index (Release)
//!                      or that index (Acquire)
//! writes the entry, publishes it
//! ```
//!
//! Indices have 64 bits here, and never wrap. So a thread that is interrupted between its load and its store of `seen`
//! makes others look again, however many entries come meanwhile; with the 24 bits of the consumer's record, a value
//! that is 2^24 entries old would look like room.
//!
//! A producer that finds no room has lost its entry: the queue fails, and takes no more entries.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;

/// Consumer indices have 24 bits.
pub(super) const CI_MASK: u32 = 0xff_ffff;

/// The index of which these are the lower bits within `mask`: the last one that is not behind `produced`, from which it
/// is less than `mask` entries away. If it is further away, the result is too high by a multiple of that.
pub(super) fn widened(produced: u64, bits: u32, mask: u32) -> u64 {
    produced.wrapping_sub(((produced as u32).wrapping_sub(bits) & mask).into())
}

/// See the module.
#[derive(Debug)]
pub(super) struct Producer {
    /// Free-running: a thread claims an entry by incrementing it.
    next: CachePadded<AtomicU64>,
    /// The consumer index that was read last.
    seen: AtomicU64,
    overrun: AtomicBool,
}

impl Producer {
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// One that has produced as many entries, all of which were polled.
    fn starting_at(next: u64) -> Self {
        Self {
            next: CachePadded::new(AtomicU64::new(next)),
            seen: AtomicU64::new(next),
            overrun: AtomicBool::new(false),
        }
    }

    /// Claims the next entry of a ring of `count` entries for this thread. `consumed` reads the consumer's
    /// index with Acquire. `None`: there is no room, and the queue has failed; the first thread that finds
    /// that calls `raise`.
    #[inline(always)]
    pub fn claim(
        &self,
        count: u32,
        consumed: impl FnOnce() -> u32,
        raise: impl FnOnce(),
    ) -> Option<u32> {
        // Relaxed: the increment claims the index for this thread; the owner bit publishes the entry.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        // Acquire: pairs with the Release in `room_for`, so that the consumer's last read of the entry comes
        // before. An old value only makes this thread check again.
        let ahead = index.wrapping_sub(self.seen.load(Ordering::Acquire));
        (ahead < count.into() || self.room_for(index, count, consumed, raise))
            .then_some(index as u32)
    }

    #[cold]
    #[inline(never)]
    fn room_for(
        &self,
        index: u64,
        count: u32,
        consumed: impl FnOnce() -> u32,
        raise: impl FnOnce(),
    ) -> bool {
        // Rings have at most 2^22 entries, and each thread claims one beyond: the consumer is less than 2^24 behind.
        let consumer = widened(index, consumed(), CI_MASK);
        // Release: pairs with the Acquire in `claim`.
        self.seen.store(consumer, Ordering::Release);
        let room = index.wrapping_sub(consumer) < count.into();
        if !room {
            self.fail(raise);
        }
        // Checked after the store, which could otherwise undo a concurrent failure.
        if self.overrun() {
            self.shut(index);
            return false;
        }
        true
    }

    /// An entry is lost: the queue fails. The first thread that finds that calls `raise`.
    #[cold]
    pub fn fail(&self, raise: impl FnOnce()) {
        // Relaxed: the swap selects the one producer that raises the event; the flag orders no other data.
        if !self.overrun.swap(true, Ordering::Relaxed) {
            // Whoever counts entries by their indices finds that there was one more. Relaxed: a count.
            self.next.fetch_add(1, Ordering::Relaxed);
            raise();
        }
        self.shut(self.all());
    }

    /// Makes every entry from this one on check for room and find none.
    fn shut(&self, index: u64) {
        // Far behind: each attempt finds no room by it, and looks.
        let far = index.wrapping_sub(1 << 62);
        // Relaxed: whoever sees it writes no entry.
        self.seen.store(far, Ordering::Relaxed);
    }

    /// Whether an entry was lost.
    pub fn overrun(&self) -> bool {
        // Relaxed: the flag orders no other data.
        self.overrun.load(Ordering::Relaxed)
    }

    /// Index behind the last entry.
    #[inline(always)]
    pub fn produced(&self) -> u32 {
        self.all() as u32
    }

    /// Like [`produced`](Self::produced), in all its bits.
    #[inline(always)]
    pub fn all(&self) -> u64 {
        // Relaxed: the relevant increments were made before, by this thread or under the device's lock.
        self.next.load(Ordering::Relaxed)
    }

    /// Passes one entry, while no other thread claims any.
    pub fn pass_one(&self) {
        let next = self.all().wrapping_add(1);
        // Relaxed: no other thread increments it meanwhile.
        self.next.store(next, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Where the indices of 24 and of 32 bits wrap, a ring takes as many entries as it has, and no more.
    #[test]
    fn room_is_counted_across_the_edges() {
        const COUNT: u32 = 8;
        for edge in [1 << 23, 1 << 24, 1 << 31, 1 << 32] {
            let mut next = edge - 20;
            let producer = Producer::starting_at(next);
            for round in 0..5 {
                let polled = next as u32 & CI_MASK;
                for _ in 0..COUNT {
                    let claimed = producer.claim(COUNT, || polled, || panic!("there is room"));
                    assert_eq!(claimed, Some(next as u32), "round {round} at {edge:#x}");
                    next += 1;
                }
            }
            let polled = (next as u32 - COUNT) & CI_MASK;
            let mut raised = 0;
            for _ in 0..3 {
                assert_eq!(producer.claim(COUNT, || polled, || raised += 1), None);
            }
            assert!(producer.overrun());
            assert_eq!(raised, 1);
        }
    }

    /// A thread that was interrupted before it stored what it had read leaves an old value, which is no room.
    #[test]
    fn an_old_consumer_index_is_no_room() {
        const COUNT: u32 = 8;
        let producer = Producer::starting_at(1 << 24);
        // As old as the range of the consumer's record.
        producer.seen.store(0, Ordering::Relaxed);
        let full = (1 << 24) - COUNT;
        assert_eq!(producer.claim(COUNT, || full & CI_MASK, || ()), None);
    }

    #[test]
    fn bits_are_widened_to_the_last_index_that_has_them() {
        for produced in [0, 1, 1 << 24, (1 << 32) + 3, u64::MAX / 2] {
            for behind in [0, 1, 1 << 22, 0xff_fffe] {
                let index = u64::wrapping_sub(produced, behind);
                assert_eq!(widened(produced, index as u32 & CI_MASK, CI_MASK), index);
                assert_eq!(widened(produced, index as u32, u32::MAX), index);
            }
        }
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, UnsafeCell, check, longer, thread};
    use crate::turn::Turn;

    const COUNT: u32 = 2;

    /// A ring of two entries. An entry is published by its index plus one.
    struct World {
        producer: Producer,
        consumer: AtomicU32,
        published: [AtomicU32; COUNT as usize],
        entries: [UnsafeCell<u32>; COUNT as usize],
        failures: AtomicU32,
    }

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        fn new() -> Self {
            Self {
                producer: Producer::new(),
                consumer: AtomicU32::new(0),
                published: Default::default(),
                entries: [0, 0].map(UnsafeCell::new),
                failures: AtomicU32::new(0),
            }
        }

        /// `true`: an entry was written, with its index in it.
        fn produce(&self) -> bool {
            self.write(|index| index)
        }

        fn write(&self, value: impl FnOnce(u32) -> u32) -> bool {
            let consumed = || self.consumer.load(Ordering::Acquire);
            let raise = || {
                self.failures.fetch_add(1, Ordering::Relaxed);
            };
            let Some(index) = self.producer.claim(COUNT, consumed, raise) else {
                return false;
            };
            let at = (index % COUNT) as usize;
            // SAFETY: the models verify that this access does not conflict.
            self.entries[at].with_mut(|entry| unsafe { *entry = value(index) });
            self.published[at].store(index + 1, Ordering::Release);
            true
        }

        /// Polls the entry at `index`, if it is there, and checks what is in it.
        fn poll(&self, index: u32) -> bool {
            let entry = self.polled(index);
            assert!(
                entry.is_none_or(|entry| entry == index),
                "another entry was written here"
            );
            entry.is_some()
        }

        /// What is in the entry at `index`, if it is there.
        fn polled(&self, index: u32) -> Option<u32> {
            let at = (index % COUNT) as usize;
            if self.published[at].load(Ordering::Acquire) != index + 1 {
                return None;
            }
            // SAFETY: the models verify that this access does not conflict.
            let entry = self.entries[at].with(|entry| unsafe { *entry });
            self.consumer.store(index + 1, Ordering::Release);
            Some(entry)
        }
    }

    /// Two threads write two entries each, and one polls: no entry is overwritten before it was polled, and
    /// one that is lost is an overrun, which is raised once.
    #[test]
    fn loom_completions_are_written_once_and_not_overwritten() {
        check(|| {
            let world = Arc::new(World::new());
            let other = {
                let world = world.clone();
                thread::spawn(move || u32::from(world.produce()))
            };
            let poller = {
                let world = world.clone();
                thread::spawn(move || (0..2).take_while(|index| world.poll(*index)).count() as u32)
            };
            let ours = u32::from(world.produce()) + u32::from(world.produce());
            let written = ours + other.join().unwrap();
            let mut polled = poller.join().unwrap();
            while world.poll(polled) {
                polled += 1;
            }
            // A queue that has failed may have gaps.
            let missing = !world.producer.overrun() && polled != written;
            assert!(!missing && polled <= written, "an entry is missing");
            let failures = world.failures.load(Ordering::Relaxed);
            assert_eq!(failures, u32::from(written < 3), "raised otherwise");
            assert_eq!(world.producer.overrun(), written < 3);
        });
    }

    /// A thread finds room by what another one has seen of the consumer, which that one was itself before.
    #[test]
    fn loom_room_that_another_producer_found_is_free() {
        check(|| {
            let world = Arc::new(World::new());
            assert!(world.produce() && world.produce());
            let other = {
                let world = world.clone();
                thread::spawn(move || {
                    assert!(world.poll(0) && world.poll(1));
                    world.produce()
                })
            };
            world.produce();
            other.join().unwrap();
        });
    }

    /// How many messages of a connection were received, each in turn: see [`Turn`].
    #[derive(Default)]
    struct Messages(Turn, UnsafeCell<u32>);

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for Messages {}

    impl Messages {
        /// Receives the next message, if the turn is free, and writes its number to an entry; or returns it, where it is
        /// reported instead.
        fn receive(&self, world: &World, reports: impl FnOnce() -> bool) -> Option<u32> {
            let _turn = self.0.try_take()?;
            // SAFETY: this thread has the turn.
            let number = self.1.with_mut(|received| unsafe {
                *received += 1;
                *received
            });
            if reports() {
                return Some(number);
            }
            assert!(world.write(|_| number));
            None
        }
    }

    /// A thread receives a message. Another one polls, and receives where it finds nothing.
    fn reported(only_if_empty: bool) {
        check(move || {
            let world = Arc::new((World::new(), Messages::default()));
            let other = {
                let world = world.clone();
                thread::spawn(move || world.1.receive(&world.0, || false))
            };
            let (queue, messages) = &*world;
            let (mut next, mut last) = (0, 0);
            for _ in 0..2 {
                let polled = queue.polled(next);
                let empty = || queue.producer.produced() == next;
                let reported = match polled {
                    Some(_) => {
                        next += 1;
                        polled
                    }
                    None => messages.receive(queue, || !only_if_empty || empty()),
                };
                if let Some(number) = reported {
                    assert!(number == last + 1, "one has overtaken another");
                    last = number;
                }
            }
            assert_eq!(other.join().unwrap(), None);
        });
    }

    #[test]
    fn loom_a_receive_that_is_reported_overtakes_none() {
        reported(true);
    }

    #[test]
    #[should_panic(expected = "one has overtaken another")]
    fn loom_whether_the_queue_is_still_empty_has_to_be_checked() {
        longer(|| reported(false));
    }

    #[cfg(loom)]
    #[test]
    fn loom_completions_need_each_ordering() {
        let models: [fn(); 2] = [
            loom_room_that_another_producer_found_is_free,
            loom_completions_are_written_once_and_not_overwritten,
        ];
        crate::sync::needs_orderings(&models, "soft/src/producer.rs", &[]);
    }
}
