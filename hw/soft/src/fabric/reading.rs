//! Which thread reads a peer's packets: one at a time, with or without the device's lock.
//!
//! The holder of the lock waits for its turn; others read only if it is free. So whoever has the turn must
//! not wait for the lock. A reader without the lock is in the peer's section, for which the holder of the
//! lock waits after it has taken something away.

use crate::turn::Turn;
use arrayvec::ArrayVec;
use bellwire_provider::quiesce::{Barriers, Section};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

/// Most queue pairs of one peer that owe an acknowledgement at a time: then it is sent.
pub const OWING: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Reading {
    turn: Turn,
    section: Section,
    /// Numbers of the queue pairs that owe an acknowledgement. Owned by the thread that has the turn.
    owing: UnsafeCell<Owing>,
    /// The last look that found a packet and could find more. Likewise.
    found: UnsafeCell<u32>,
    /// A [`Likely`].
    likely: AtomicU8,
}

/// What a peer's next message probably is, as the last one that told was. A guess: which function is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Likely {
    /// A [short](super::Header::short) one in one line, or anything that is none of the others.
    Short,
    /// A short one in several lines.
    Longer,
    /// One that goes to a shared receive queue.
    Shared,
    /// A SEND with more to say, as immediate data, in the packet.
    Inline,
}

// SAFETY: the thread that has the turn owns the cells.
unsafe impl Sync for Reading {}

/// The turn to read, until it is dropped; `ENTERED`: it is in the section.
#[derive(Debug)]
pub struct Reads<'a, const ENTERED: bool = false>(&'a Reading);

impl Reading {
    /// Waits for the turn. For the holder of the device's lock.
    pub fn take(&self) -> Reads<'_> {
        self.turn.take().keep();
        Reads(self)
    }

    /// Takes the turn if it is free. For the holder of the device's lock.
    pub fn try_take(&self) -> Option<Reads<'_>> {
        self.turn.try_take()?.keep();
        Some(Reads(self))
    }

    /// Takes the turn if it is free, and enters the section: for a thread without the lock. What may be
    /// revoked is checked after this.
    #[inline(always)]
    pub fn enter(&self, barriers: Barriers) -> Option<Reads<'_, true>> {
        self.turn.try_take()?.keep();
        self.section.enter(barriers);
        Some(Reads(self))
    }

    /// What the next message probably is.
    #[inline(always)]
    pub fn likely(&self) -> Likely {
        const SHORT: u8 = Likely::Short as u8;
        const LONGER: u8 = Likely::Longer as u8;
        const INLINE: u8 = Likely::Inline as u8;
        // Relaxed: orders nothing.
        match self.likely.load(Ordering::Relaxed) {
            SHORT => Likely::Short,
            LONGER => Likely::Longer,
            INLINE => Likely::Inline,
            _ => Likely::Shared,
        }
    }

    /// The last message was this.
    #[inline(always)]
    pub fn set_likely(&self, likely: Likely) {
        // Relaxed, both: orders nothing. Not written where nothing changes.
        if self.likely() != likely {
            self.likely.store(likely as u8, Ordering::Relaxed);
        }
    }

    /// Waits until a reader without the lock has left the section in which it may have seen what was
    /// revoked. Call it after a heavy barrier.
    pub fn wait(&self) {
        self.section.wait();
    }
}

/// The queue pairs that owe an acknowledgement.
pub type Owing = ArrayVec<u32, OWING>;

impl<const ENTERED: bool> Reads<'_, ENTERED> {
    /// This look has found a packet. Whether the one before it had, too.
    ///
    /// Most looks find one packet. Whether there is another one is looked at only if the last look had found one, too: that
    /// line has to come from the peer's processor, for which a program that answers each message would wait.
    #[inline(always)]
    pub fn found_again_in(&mut self, look: u32) -> bool {
        // SAFETY: this thread has the turn.
        let found = unsafe { &mut *self.0.found.get() };
        look.wrapping_sub(std::mem::replace(found, look)) == 1
    }

    #[inline(always)]
    pub fn owing(&mut self) -> &mut Owing {
        // SAFETY: this thread has the turn, and the borrow is exclusive.
        unsafe { &mut *self.0.owing.get() }
    }
}

impl<const ENTERED: bool> Drop for Reads<'_, ENTERED> {
    #[inline(always)]
    fn drop(&mut self) {
        // Before the turn: only its holder writes the section.
        if ENTERED {
            self.0.section.leave();
        }
        // SAFETY: this is the turn that was kept.
        drop(unsafe { self.0.turn.kept() });
    }
}

#[cfg(all(test, any(loom, miri)))]
mod models;

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::{Barriers, Reading};
    use crate::sync::atomic::{AtomicU32, Ordering};
    use crate::sync::model::{Arc, UnsafeCell, check, thread};

    /// A queue pair's receive side (or its requests to be completed), whose owner is a reader while it is
    /// accepted (open), and then the holder of the device's lock.
    struct World {
        reading: Reading,
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

        /// Reads a packet without the lock, if another thread does not read.
        fn read_unlocked(&self) {
            if let Some(_reads) = self.reading.enter(Barriers::get())
                && self.accepts.load(Ordering::Acquire) == 1
            {
                self.count();
            }
        }

        /// Reads a packet under the lock.
        fn read_under_lock(&self) {
            if let Some(_reads) = self.reading.try_take() {
                self.count();
            }
        }
    }

    /// A reader without the lock, and a thread with it that reads, and then revokes.
    fn revoked(waits: bool) {
        check(move || {
            let world = Arc::new(World {
                reading: Reading::default(),
                accepts: AtomicU32::new(1),
                received: UnsafeCell::new(0),
            });
            let reader = {
                let world = world.clone();
                thread::spawn(move || world.read_unlocked())
            };
            world.read_under_lock();
            world.accepts.store(0, Ordering::Relaxed);
            Barriers::get().heavy();
            if waits {
                world.reading.wait();
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
        revoked(true);
    }

    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_revoking_has_to_wait_for_readers() {
        revoked(false);
    }
}
