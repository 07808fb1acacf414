//! Which thread reads a peer's packets: one at a time, with or without the device's lock. A thread that does so nearly every
//! time holds the [turn](Biased).
//!
//! The holder of the lock waits for its turn; others read only if it is free. So whoever has the turn must
//! not wait for the lock. A reader without the lock is in a section, for which the holder of the lock waits after it has
//! taken something away: a thread that polls a completion queue in that of its queue, others in that of the peer.

use crate::turn::{Biased, Hold, Thread};
use arrayvec::ArrayVec;
use bellwire_provider::quiesce::{Barriers, Section};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most queue pairs of one peer whose acknowledgements are pending at a time: then these are sent.
pub const MOST_PENDING: usize = 64;

/// How often in succession threads find that the one that holds the turn has left something, until it is taken away.
const PATIENCE: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Reading {
    turn: Biased,
    /// Entered by a reader that has the turn, but no completion queue.
    section: Section,
    /// Numbers of the queue pairs whose acknowledgements are pending. Owned by the thread that has the turn.
    pending: UnsafeCell<PendingAcks>,
    /// Whether there are some: written by that thread.
    has_pending: AtomicBool,
    /// The last look that found a packet and could find more. Likewise.
    found: UnsafeCell<u32>,
    /// Where the reader was when other threads last found that it left something, and how often they did.
    seen: AtomicU32,
    times: AtomicU32,
}

// SAFETY: the thread that has the turn owns the cells.
unsafe impl Sync for Reading {}

/// The turn to read, until it is dropped.
#[derive(Debug)]
pub struct Reads<'a> {
    of: &'a Reading,
    /// Left first: only who has the turn enters the peer's section.
    _entered: Option<Entered<'a>>,
    _turn: Hold<'a>,
}

/// In a section, until it is dropped.
#[derive(Debug)]
struct Entered<'a>(&'a Section);

impl<'a> Entered<'a> {
    fn enter(section: &'a Section, barriers: Barriers) -> Self {
        section.enter(barriers);
        Self(section)
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Reading {
    /// Who may read.
    pub fn turn(&self) -> &Biased {
        &self.turn
    }

    /// For the holder of the device's lock, who has the turn.
    pub fn with<'a>(&'a self, turn: Hold<'a>) -> Reads<'a> {
        debug_assert!(turn.is_of(&self.turn));
        Reads {
            of: self,
            _entered: None,
            _turn: turn,
        }
    }

    /// The queue pairs whose acknowledgements are pending.
    ///
    /// # Safety
    /// This thread has the turn, and makes this once while it is used.
    #[expect(clippy::mut_from_ref, reason = "one thread has the turn")]
    pub unsafe fn pending(&self) -> &mut PendingAcks {
        // SAFETY: as the caller guarantees.
        unsafe { &mut *self.pending.get() }
    }

    /// Takes the turn, if it is free or this thread's. For the holder of the device's lock.
    pub fn try_take(&self, me: Thread) -> Option<Reads<'_>> {
        self.turn.try_take(me).map(|turn| self.with(turn))
    }

    /// Takes the turn, if it is free or this thread's, which is in the section of the completion queue that it polls. What
    /// may be revoked is checked after this.
    #[inline(always)]
    pub fn enter(&self, me: Thread) -> Option<Reads<'_>> {
        self.turn.try_take(me).map(|turn| self.with(turn))
    }

    /// Likewise, for a thread that polls no completion queue: it enters the peer's section.
    pub fn enter_alone(&self, me: Thread, barriers: Barriers) -> Option<Reads<'_>> {
        let turn = self.turn.try_take_once(me)?;
        Some(Reads {
            of: self,
            _entered: Some(Entered::enter(&self.section, barriers)),
            _turn: turn,
        })
    }

    /// Another thread has the turn, and has left a packet unread or an acknowledgement unsent, while the reader is at this
    /// position. Whether the turn is to be taken away.
    #[cold]
    pub fn is_left(&self, me: Thread, position: u32) -> bool {
        // Relaxed, all: a guess.
        if self.seen.swap(position, Ordering::Relaxed) != position {
            self.times.store(0, Ordering::Relaxed);
        }
        self.turn.is_held_by_another(me) && self.times.fetch_add(1, Ordering::Relaxed) >= PATIENCE
    }

    /// Whether an acknowledgement is pending. A hint, unless this thread has the turn.
    pub fn has_pending(&self) -> bool {
        // Relaxed: a hint; ordered by the turn.
        self.has_pending.load(Ordering::Relaxed)
    }

    /// Notes it. For the thread that has the turn.
    pub fn set_has_pending(&self, has_pending: bool) {
        // Relaxed: as in `has_pending`.
        self.has_pending.store(has_pending, Ordering::Relaxed);
    }

    /// Waits until a reader without the lock, which polls no completion queue, has left the section in which it may have
    /// seen what was revoked. Call it after a heavy barrier.
    pub fn wait(&self) {
        self.section.wait();
    }
}

/// The queue pairs whose acknowledgements are pending.
pub type PendingAcks = ArrayVec<u32, MOST_PENDING>;

impl Reads<'_> {
    /// This look has found a packet. Whether the one before it had, too.
    ///
    /// Most looks find one packet. Whether there is another one is looked at only if the last look had found one, too: that
    /// line has to come from the peer's processor, for which a program that answers each message would wait.
    #[inline(always)]
    pub fn follows_a_packet_in(&mut self, look: u32) -> bool {
        // SAFETY: this thread has the turn.
        let found = unsafe { &mut *self.of.found.get() };
        look.wrapping_sub(std::mem::replace(found, look)) == 1
    }

    #[inline(always)]
    pub fn pending(&mut self) -> &mut PendingAcks {
        // SAFETY: this thread has the turn, and the borrow is exclusive.
        unsafe { self.of.pending() }
    }
}

#[cfg(all(test, any(loom, miri)))]
mod models;

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::{Barriers, Reading, Section};
    use crate::sync::atomic::{AtomicU32, Ordering};
    use crate::sync::model::{Arc, UnsafeCell, check, thread};
    use crate::turn::Thread;

    /// A queue pair's receive side (or its requests to be completed), whose owner is a reader while it is
    /// accepted (open), and then the holder of the device's lock.
    struct World {
        reading: Reading,
        /// That of the completion queue which a reader polls.
        polls: Section,
        accepts: AtomicU32,
        received: UnsafeCell<u32>,
    }

    // SAFETY: the models verify that accesses do not conflict.
    unsafe impl Sync for World {}

    impl World {
        fn count(&self) {
            // SAFETY: the models verify that this access does not conflict.
            self.received.with_mut(|received| unsafe { *received += 1 });
        }

        /// Reads a packet without the lock, if another thread does not read. `polls` a completion queue, or does not.
        fn read_unlocked(&self, me: Thread, polls: bool) {
            let barriers = Barriers::get();
            if !polls {
                let reads = self.reading.enter_alone(me, barriers);
                if reads.is_some() && self.accepts.load(Ordering::Acquire) == 1 {
                    self.count();
                }
                return;
            }
            self.polls.enter(barriers);
            let reads = self.reading.enter(me);
            if reads.is_some() && self.accepts.load(Ordering::Acquire) == 1 {
                self.count();
            }
            drop(reads);
            self.polls.leave();
        }

        /// Waits for the readers.
        fn wait(&self) {
            self.reading.wait();
            self.polls.wait();
        }

        /// Reads a packet under the lock.
        fn read_under_lock(&self, me: Thread) {
            let turn = (self.reading.turn()).take_away(me, || self.wait());
            let _reads = self.reading.with(turn);
            self.count();
        }
    }

    /// A reader without the lock that reads so often, from when on it holds the turn, and a thread with the lock that reads, and
    /// then revokes.
    fn revoked(waits: bool, polls: bool, before: u32) {
        check(move || {
            let [one, other] = [1, 2].map(Thread::of_model);
            let world = Arc::new(World {
                reading: Reading::default(),
                polls: Section::default(),
                accepts: AtomicU32::new(1),
                received: UnsafeCell::new(0),
            });
            (0..before).for_each(|_| world.read_unlocked(one, true));
            let reader = {
                let world = world.clone();
                thread::spawn(move || world.read_unlocked(one, polls))
            };
            world.read_under_lock(other);
            world.accepts.store(0, Ordering::Relaxed);
            Barriers::get().heavy();
            if waits {
                world.wait();
            }
            // SAFETY: the models verify that this access does not conflict.
            world
                .received
                .with_mut(|received| unsafe { *received = 100 });
            reader.join().unwrap();
            // SAFETY: the reader has ended.
            assert_eq!(world.received.with(|received| unsafe { *received }), 100);
        });
    }

    #[test]
    fn loom_packets_are_read_in_turn_until_it_is_revoked() {
        for polls in [false, true] {
            revoked(true, polls, 0);
        }
    }

    /// The reader holds the turn; if it polls no more, it gives that back.
    #[test]
    fn loom_who_holds_the_turn_reads_until_it_is_revoked() {
        for polls in [false, true] {
            revoked(true, polls, 2);
        }
    }

    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_revoking_has_to_wait_for_readers() {
        revoked(false, true, 2);
    }
}
