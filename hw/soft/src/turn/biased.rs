//! A turn that one thread takes nearly every time, without a locked instruction.
//!
//! A locked instruction waits until all earlier stores of its processor are done, and a store to a line that another
//! process polls takes as long as that line needs to cross. So a thread that has taken the turn often, one time after the
//! other, keeps it: it becomes the holder. Who has the turn is in a section of its own, which no other thread enters, or
//! holds the device's lock. The holder of the lock can take the place away:
//!
//! ```text
//! holder                          holder of the device's lock
//! section.enter()       store     holder = CHANGES        store
//! holds it?             load      heavy barrier           membarrier(2)
//! …                               waits for all sections
//! section.leave()       store     has the turn
//! ```
//!
//! The turn itself stays taken meanwhile. Whoever is in a section waits for the turn only while it has no holder: who
//! takes the place away waits for that section.

use super::{Turn, TurnGuard};
use crate::sync::MODELS;
use crate::sync::atomic::{AtomicUsize, Ordering};
use bellwire_provider::backoff::Backoff;
use bellwire_provider::quiesce::Barriers;
use std::cell::UnsafeCell;
use std::time::{Duration, Instant};

/// How often in succession a thread takes the turn until it holds it. Each time that the place is taken away `SOON`, twice
/// as often as before, up to `MOST_OFTEN`; otherwise half as often.
const OFTEN: u32 = if MODELS { 1 } else { 64 };
const MOST_OFTEN: u32 = 1 << 20;
const NEVER: u32 = u32::MAX;

/// Compared with what it costs to take the place away.
const SOON: Duration = Duration::from_millis(10);

/// A thread, as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(usize);

/// No thread's.
const NONE: usize = 0;
/// Likewise: the place is being taken away. No thread has its memory there.
const CHANGES: usize = 1;

impl Thread {
    /// The calling thread.
    #[inline(always)]
    pub fn current() -> Self {
        Self(pointer())
    }

    /// Another one than each other thread's, and not zero.
    pub fn number(self) -> usize {
        self.0
    }

    /// A thread of a model, from one on.
    #[cfg(all(test, any(loom, miri)))]
    pub fn of_model(number: usize) -> Self {
        Self(CHANGES + number)
    }
}

/// The thread pointer: of the memory that each thread has for itself. A thread may have that of one that has ended; what
/// that one has done is ordered before it by then.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline(always)]
fn pointer() -> usize {
    let pointer;
    // SAFETY: reads the first word of the thread's control block, which is its own address (ELF Handling For Thread-Local
    // Storage, "x86-64 Specific").
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    pointer
}

/// As above.
#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
#[inline(always)]
fn pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    pointer
}

/// The address of something that each thread has for itself.
#[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn pointer() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// See the module.
#[derive(Debug, Default)]
pub struct Biased {
    turn: Turn,
    /// The thread that holds the turn, or one of the numbers above.
    holder: AtomicUsize,
    /// Owned by the thread that has the turn.
    habit: UnsafeCell<Habit>,
}

// SAFETY: the thread that has the turn owns the cell.
unsafe impl Sync for Biased {}

/// How the turn is taken.
#[derive(Debug)]
struct Habit {
    /// The thread that took it last, and how often in succession.
    last: usize,
    times: u32,
    /// A thread that takes it more often in succession holds it.
    needed: u32,
    /// When that happened.
    since: Option<Instant>,
}

impl Default for Habit {
    fn default() -> Self {
        Self {
            last: NONE,
            times: 0,
            needed: OFTEN,
            since: None,
        }
    }
}

/// The turn, until it is dropped.
#[derive(Debug)]
pub struct Hold<'a> {
    of: &'a Biased,
    how: How<'a>,
}

#[derive(Debug)]
enum How<'a> {
    /// As the holder.
    Held,
    Locked(#[expect(dead_code, reason = "only to be dropped")] TurnGuard<'a>),
    /// Taken, and this thread holds it from now on.
    Keeps(Thread),
}

impl Hold<'_> {
    /// Whether it is this turn.
    pub fn is_of(&self, biased: &Biased) -> bool {
        std::ptr::eq(self.of, biased)
    }

    /// Whether a thread may become the holder of the turn from now on. It has none.
    pub fn may_be_held(&self, yes: bool) {
        debug_assert!(matches!(self.how, How::Locked(_)));
        // SAFETY: this thread has the turn.
        let habit = unsafe { &mut *self.of.habit.get() };
        *habit = Habit {
            needed: if yes { OFTEN } else { NEVER },
            ..Habit::default()
        };
    }
}

impl Drop for Hold<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let How::Keeps(thread) = &self.how {
            // Relaxed: whoever takes the turn away waits until this thread has left its section, or released the lock, which
            // orders what was done.
            self.of.holder.store(thread.0, Ordering::Relaxed);
        }
    }
}

/// Another thread holds the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldByAnother;

impl Biased {
    /// Whether this thread, `me`, holds the turn, and so has it.
    ///
    /// In a section, which is entered by a light barrier.
    #[inline(always)]
    pub fn is_held_by(&self, me: Thread) -> bool {
        // Relaxed: what this thread has stored, unless it was taken away; ordered by the barrier on entering the section.
        self.holder.load(Ordering::Relaxed) == me.0
    }

    /// Whether another thread than this one holds the turn. A hint.
    pub fn is_held_by_another(&self, me: Thread) -> bool {
        // Relaxed: a hint.
        let holder = self.holder.load(Ordering::Relaxed);
        holder != NONE && holder != me.0
    }

    /// The turn, if this thread holds it.
    #[inline(always)]
    pub fn held(&self, me: Thread) -> Option<Hold<'_>> {
        self.is_held_by(me).then_some(self.hold(How::Held))
    }

    /// Takes the turn, if it is free or this thread's.
    #[inline]
    pub fn try_take(&self, me: Thread) -> Option<Hold<'_>> {
        if let Some(held) = self.held(me) {
            return Some(held);
        }
        Some(self.hold(self.counted(me, self.turn.try_take()?)))
    }

    /// Like [`try_take`](Self::try_take), for a thread that is in no section yet. It is not the holder any more, and does not
    /// become it.
    pub fn try_take_once(&self, me: Thread) -> Option<Hold<'_>> {
        if self.is_held_by(me) && self.change(me.0, NONE) {
            // SAFETY: it was kept for this thread, which does not have it at present, and is not the holder any more.
            drop(unsafe { self.turn.kept() });
        }
        Some(self.hold(How::Locked(self.turn.try_take()?)))
    }

    /// Waits for the turn, while no other thread holds it.
    #[inline]
    pub fn take(&self, me: Thread) -> Result<Hold<'_>, HeldByAnother> {
        match self.try_take(me) {
            Some(hold) => Ok(hold),
            None => self.wait(me),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self, me: Thread) -> Result<Hold<'_>, HeldByAnother> {
        let mut backoff = Backoff::new();
        loop {
            if self.is_held_by_another(me) {
                return Err(HeldByAnother);
            }
            backoff.wait();
            if let Some(hold) = self.try_take(me) {
                return Ok(hold);
            }
        }
    }

    /// Waits for the turn, and takes it away from its holder if that is another thread: for the holder of the device's lock.
    /// `wait` waits until all sections have been left that were entered before.
    pub fn take_away(&self, me: Thread, wait: impl Fn()) -> Hold<'_> {
        self.take_away_by(me, wait, || self.try_take(me))
    }

    /// Like [`take_away`](Self::take_away), also from this thread, which does not become the holder, either.
    pub fn take_away_once(&self, me: Thread, wait: impl Fn()) -> Hold<'_> {
        self.take_away_by(me, wait, || self.try_take_once(me))
    }

    fn take_away_by<'a>(
        &'a self,
        me: Thread,
        wait: impl Fn(),
        try_take: impl Fn() -> Option<Hold<'a>>,
    ) -> Hold<'a> {
        let mut backoff = Backoff::new();
        loop {
            let hold = try_take().or_else(|| match self.is_held_by_another(me) {
                // Unless the holder has given it back meanwhile.
                true => self.revoke(&wait),
                false => None,
            });
            if let Some(hold) = hold {
                return hold;
            }
            backoff.wait();
        }
    }

    /// Changes the holder, if it is this one.
    fn change(&self, from: usize, to: usize) -> bool {
        // Relaxed, both: what this thread does next is ordered by a barrier or by the turn.
        (self.holder)
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    #[inline(always)]
    fn hold<'a>(&'a self, how: How<'a>) -> Hold<'a> {
        Hold { of: self, how }
    }

    #[inline]
    fn counted<'a>(&self, me: Thread, guard: TurnGuard<'a>) -> How<'a> {
        // SAFETY: this thread has the turn.
        let habit = unsafe { &mut *self.habit.get() };
        if habit.last != me.0 {
            (habit.last, habit.times) = (me.0, 0);
        }
        habit.times = habit.times.saturating_add(1);
        if habit.times <= habit.needed || !(MODELS || Barriers::get().is_asymmetric()) {
            return How::Locked(guard);
        }
        (habit.times, habit.since) = (0, Some(Instant::now()));
        guard.keep();
        How::Keeps(me)
    }

    /// Takes the turn away from its holder. `None`: it is not the holder any more.
    #[cold]
    #[inline(never)]
    fn revoke(&self, wait: &impl Fn()) -> Option<Hold<'_>> {
        // Relaxed: the exchange finds whether it is still that one.
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == NONE || !self.change(holder, CHANGES) {
            return None;
        }
        // Pairs with the light barrier with which the holder enters its section.
        Barriers::get().heavy();
        wait();
        // SAFETY: it was kept for the holder, from whom it has just been taken away.
        let guard = unsafe { self.turn.kept() };
        // SAFETY: this thread has the turn.
        let habit = unsafe { &mut *self.habit.get() };
        habit.needed = match habit.since.is_some_and(|since| since.elapsed() < SOON) {
            true => (habit.needed * 2).min(MOST_OFTEN),
            false => (habit.needed / 2).max(OFTEN),
        };
        habit.last = NONE;
        // Relaxed: the turn orders the rest.
        self.holder.store(NONE, Ordering::Relaxed);
        Some(self.hold(How::Locked(guard)))
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use bellwire_provider::quiesce::Section;
    use std::sync::Mutex;

    #[test]
    fn who_takes_it_often_holds_it() {
        if !Barriers::get().is_asymmetric() {
            return;
        }
        let (biased, me) = (Biased::default(), Thread::current());
        for _ in 0..=OFTEN {
            assert!(!biased.is_held_by(me));
            assert!(biased.held(me).is_none() && biased.try_take(me).is_some());
        }
        assert!(biased.is_held_by(me) && !biased.is_held_by_another(me));
        assert!(biased.held(me).is_some() && biased.take(me).is_ok());
    }

    #[test]
    fn another_thread_takes_it_away() {
        if !Barriers::get().is_asymmetric() {
            return;
        }
        let biased = &Biased::default();
        let me = Thread::current();
        // SAFETY: no other thread has the turn.
        let needed = || unsafe { (*biased.habit.get()).needed };
        assert_eq!(needed(), OFTEN);
        for _ in 0..3 {
            let (begun, needed_now) = (Instant::now(), needed());
            (0..needed_now).for_each(|_| drop(biased.try_take(me)));
            assert!(!biased.is_held_by(me), "{needed_now} times");
            drop(biased.try_take(me));
            assert!(biased.is_held_by(me), "{needed_now} times");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let other = Thread::current();
                    assert_ne!(other, me);
                    assert!(biased.is_held_by_another(other) && biased.try_take(other).is_none());
                    assert!(matches!(biased.take(other), Err(HeldByAnother)));
                    let hold = biased.take_away(other, || assert!(!biased.is_held_by(me)));
                    assert!(biased.try_take(me).is_none() && !biased.is_held_by_another(other));
                    drop(hold);
                    assert!(biased.try_take(other).is_some());
                });
            });
            let soon = begun.elapsed() < SOON;
            let expected = [OFTEN.max(needed_now / 2), 2 * needed_now];
            assert!(needed() == expected[1] || !soon && needed() == expected[0]);
        }
    }

    /// Threads that take it often, and, when another one holds it, take it away.
    #[test]
    fn one_at_a_time() {
        #[derive(Default)]
        struct World {
            biased: Biased,
            lock: Mutex<()>,
            sections: [Section; THREADS],
            count: UnsafeCell<u64>,
        }
        // SAFETY: the count is accessed only by who has the turn, which the test verifies.
        unsafe impl Sync for World {}
        const THREADS: usize = 3;
        const EACH: u64 = 100_000;
        let world = &World::default();
        std::thread::scope(|scope| {
            for section in &world.sections {
                scope.spawn(move || {
                    let (me, mut left) = (Thread::current(), EACH);
                    // SAFETY: called by who has the turn.
                    let count = || unsafe { *world.count.get() += 1 };
                    while left != 0 {
                        section.enter(Barriers::get());
                        let counted = world.biased.take(me).map(|_hold| count());
                        section.leave();
                        if counted.is_err() {
                            let _lock = world.lock.lock();
                            let wait = || world.sections.iter().for_each(Section::wait);
                            let _hold = world.biased.take_away(me, wait);
                            count();
                        }
                        left -= 1;
                    }
                });
            }
        });
        // SAFETY: the threads have ended.
        assert_eq!(unsafe { *world.count.get() }, THREADS as u64 * EACH);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};
    use bellwire_provider::quiesce::Section;

    /// A thread in its section, which holds the turn, and the holder of the device's lock.
    #[derive(Default)]
    struct World {
        biased: Biased,
        section: Section,
        count: UnsafeCell<u32>,
    }

    // SAFETY: the count is accessed only by who has the turn, which the models verify.
    unsafe impl Sync for World {}

    impl World {
        /// In which this thread holds the turn.
        fn held_by(thread: Thread) -> Arc<Self> {
            let world = Self::default();
            (0..=OFTEN).for_each(|_| drop(world.biased.try_take(thread)));
            assert!(world.biased.is_held_by(thread));
            Arc::new(world)
        }

        fn count(&self) {
            // SAFETY: this thread has the turn, which the models verify.
            self.count.with_mut(|count| unsafe { *count += 1 });
        }

        /// Counts in the section, if it gets the turn.
        fn in_section(&self, take: impl FnOnce(&Biased) -> Option<Hold<'_>>) -> u32 {
            self.section.enter(Barriers::get());
            let hold = take(&self.biased);
            hold.iter().for_each(|_| self.count());
            let counted = u32::from(hold.is_some());
            drop(hold);
            self.section.leave();
            counted
        }

        fn counted(&self) -> u32 {
            // SAFETY: the other thread has ended.
            self.count.with(|count| unsafe { *count })
        }
    }

    /// The first thread counts as its holder; the second one takes the turn away, and counts.
    fn taken_away(waits: bool, looks: bool) {
        check(move || {
            let [one, other] = [1, 2].map(Thread::of_model);
            let world = World::held_by(one);
            let holder = {
                let world = world.clone();
                thread::spawn(move || {
                    let first = match looks {
                        true => world.in_section(|biased| biased.try_take(one)),
                        // Before it is in the section.
                        false => {
                            let held = world.biased.is_held_by(one);
                            world.in_section(|biased| held.then(|| biased.hold(How::Held)))
                        }
                    };
                    first + world.in_section(|biased| biased.try_take(one))
                })
            };
            let hold = world.biased.take_away(other, || {
                if waits {
                    world.section.wait();
                }
            });
            world.count();
            drop(hold);
            let counted = 1 + holder.join().unwrap();
            assert_eq!(world.counted(), counted);
        });
    }

    #[test]
    fn loom_the_holder_is_alone_until_it_is_taken_away() {
        taken_away(true, true);
    }

    /// What a thread has done by which it becomes the holder is seen by who takes the turn away.
    #[test]
    fn loom_who_gets_the_turn_sees_what_was_done() {
        check(|| {
            let [one, other] = [1, 2].map(Thread::of_model);
            let world = Arc::new(World::default());
            let holder = {
                let world = world.clone();
                thread::spawn(move || {
                    let count = || world.in_section(|biased| biased.try_take(one));
                    count() + count() + count()
                })
            };
            let mut counted = 0;
            if world.biased.is_held_by_another(other) {
                let _hold = world.biased.take_away(other, || world.section.wait());
                world.count();
                counted += 1;
            }
            counted += holder.join().unwrap();
            assert_eq!(world.counted(), counted);
        });
    }

    /// A thread in its section that waits for a turn which another one holds goes on, while that one is taken away.
    #[test]
    fn loom_who_waits_in_a_section_is_not_waited_for() {
        check(|| {
            let [one, two, other] = [1, 2, 3].map(Thread::of_model);
            let world = World::held_by(one);
            let waiting = {
                let world = world.clone();
                thread::spawn(move || world.in_section(|biased| biased.take(two).ok()))
            };
            let hold = world.biased.take_away(other, || world.section.wait());
            world.count();
            drop(hold);
            let counted = 1 + waiting.join().unwrap();
            assert_eq!(world.counted(), counted);
        });
    }

    /// The model detects that who takes it away does not wait for the sections.
    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_taking_away_has_to_wait_for_the_holder() {
        taken_away(false, true);
    }

    /// The model detects that the holder does not look in its section.
    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "a race, which ends Miri")]
    fn loom_the_holder_has_to_look_in_its_section() {
        taken_away(true, false);
    }
}
