//! Waiting for another thread of this process, or of a peer's.
//!
//! The other thread may have been descheduled, and a thread with a real-time priority on the same processor keeps it
//! off for as long as it runs: sched_yield(2) lets only threads of the same priority run. So each wait sleeps after a
//! bounded number of tries. Every loop that waits for another thread uses [`Backoff`]; clippy's `disallowed-methods`
//! forbids the bare calls in library code.

use std::time::Duration;

/// A try in so many gives the processor away; the others only pause it.
const SPINS: u32 = 64;
/// Tries before the first sleep: less than a millisecond, and longer than another thread that runs takes for one
/// message.
const TRIES: u32 = SPINS * 256;
/// The first sleep; each is twice as long as the one before, up to [`LONGEST`].
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// How long a thread has waited for another, and so how it goes on waiting.
#[derive(Debug)]
pub struct Backoff {
    tries: u32,
    step: u32,
    sleep: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    /// For a condition that takes nanoseconds to check.
    #[inline]
    pub const fn new() -> Self {
        Self {
            tries: 0,
            step: 1,
            sleep: FIRST,
        }
    }

    /// For a loop that does some work in each try, such as polling a queue: gives the processor away each time.
    pub const fn between_polls() -> Self {
        Self {
            tries: 0,
            step: SPINS,
            sleep: FIRST,
        }
    }

    /// The other thread has made progress: starts again.
    pub fn reset(&mut self) {
        (self.tries, self.sleep) = (0, FIRST);
    }

    /// Waits a little: spins or yields at first, and later sleeps.
    #[cfg(not(loom))]
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "the one place for it")]
    pub fn wait(&mut self) {
        if self.tries >= TRIES {
            return self.sleep();
        }
        self.tries += self.step;
        if self.tries.is_multiple_of(SPINS) {
            give_away();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Lets another thread of the model go on.
    #[cfg(loom)]
    pub fn wait(&mut self) {
        loom::thread::yield_now();
    }

    #[cfg(not(loom))]
    #[cold]
    #[inline(never)]
    fn sleep(&mut self) {
        sleep(self.sleep);
        self.sleep = (self.sleep * 2).min(LONGEST);
    }
}

/// As [`Backoff::wait`] in the wait's try of this number, for a caller that has only that.
pub fn wait_after(tries: u32) {
    Backoff {
        tries: tries.saturating_sub(1),
        ..Backoff::new()
    }
    .wait();
}

/// Sleeps for about this long. Unlike [`std::thread::sleep`] it does not panic in a sandbox that refuses
/// clock_nanosleep(2): there it asks poll(2), and if that is refused, too, it gives the processor away.
#[cfg(not(any(loom, miri)))]
pub fn sleep(duration: Duration) {
    use rustix::event::{Timespec, poll};
    use rustix::thread::{ClockId, NanosleepRelativeResult, clock_nanosleep_relative};
    let Ok(time) = Timespec::try_from(duration) else {
        return;
    };
    match clock_nanosleep_relative(ClockId::Monotonic, &time) {
        // A signal ends it early: the caller looks again.
        NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => {}
        NanosleepRelativeResult::Err(_) => {
            if poll(&mut [], Some(&time)).is_err() {
                give_away();
            }
        }
    }
}

/// A model does not sleep.
#[cfg(any(loom, miri))]
pub fn sleep(_: Duration) {
    #[cfg(miri)]
    give_away();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(not(loom))]
#[expect(clippy::disallowed_methods, reason = "the one place for it")]
fn give_away() {
    std::thread::yield_now();
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_after_a_bounded_number_of_tries() {
        for mut backoff in [Backoff::new(), Backoff::between_polls()] {
            let tries = (0..).find(|_| {
                backoff.wait();
                backoff.sleep > FIRST
            });
            assert!(tries.is_some_and(|tries| tries <= TRIES));
            (0..10).for_each(|_| backoff.wait());
            assert_eq!(backoff.sleep, LONGEST);
            backoff.reset();
            backoff.wait();
            assert_eq!(backoff.sleep, FIRST);
        }
    }
}
