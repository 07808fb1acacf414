//! A lock that serializes the senders to one receive queue.
//!
//! A NIC places the datagrams of a queue pair into its receives one after the other. Here the senders'
//! threads place them, so they take turns. Connected queue pairs do not need this: they have one peer.

mod biased;

pub use biased::{Biased, HeldByAnother, Hold, Thread};

use crate::sync::atomic::{AtomicBool, Ordering};
use bellwire_provider::backoff::Backoff;

/// Spin lock for the data beside it.
#[derive(Debug, Default)]
pub struct Turn(AtomicBool);

/// The turn, held until dropped.
#[derive(Debug)]
pub struct TurnGuard<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn. The wait is short: a holder copies one message. Only if the holder does not run, the wait
    /// [sleeps](Backoff).
    #[inline]
    pub fn take(&self) -> TurnGuard<'_> {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> TurnGuard<'_> {
        let mut backoff = Backoff::new();
        loop {
            // Relaxed: only waits until the exchange can succeed.
            while self.0.load(Ordering::Relaxed) {
                backoff.wait();
            }
            if let Some(guard) = self.try_take() {
                return guard;
            }
        }
    }

    /// The turn that was [kept](TurnGuard::keep).
    ///
    /// # Safety
    /// It was, and is taken back once.
    #[inline(always)]
    pub unsafe fn kept(&self) -> TurnGuard<'_> {
        TurnGuard(self)
    }

    /// Takes the turn, if it is free.
    #[inline]
    pub fn try_take(&self) -> Option<TurnGuard<'_>> {
        // Acquire: pairs with the Release in `drop`, so that the previous holder's work is visible. Relaxed:
        // a failed exchange publishes nothing.
        let taken = (self.0).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| TurnGuard(self))
    }
}

impl<'a> TurnGuard<'a> {
    /// Keeps the turn until it is [taken back](Turn::kept), for a type that holds what it is a part of.
    #[inline(always)]
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TurnGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_take`.
        self.0.0.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[derive(Default)]
    struct Counter(Turn, UnsafeCell<u64>);

    // SAFETY: the counter is accessed only by the turn's holder, which the test verifies.
    unsafe impl Sync for Counter {}

    impl Counter {
        fn count(&self) {
            let _turn = self.0.take();
            // SAFETY: this thread has the turn.
            unsafe { *self.1.get() += 1 };
        }
    }

    #[test]
    fn one_at_a_time() {
        const EACH: u64 = 50_000;
        let counter = &Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..EACH {
                        counter.count();
                    }
                });
            }
        });
        // SAFETY: the threads have ended.
        assert_eq!(unsafe { *counter.1.get() }, 4 * EACH);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};

    #[derive(Default)]
    struct Shared(Turn, UnsafeCell<u32>);

    // SAFETY: the counter is accessed only by the turn's holder, which the model verifies.
    unsafe impl Sync for Shared {}

    impl Shared {
        /// Counts, if the turn is free: a model cannot wait.
        fn count(&self) -> u32 {
            let Some(_turn) = self.0.try_take() else {
                return 0;
            };
            // SAFETY: this thread has the turn, which the model verifies.
            self.1.with_mut(|count| unsafe { *count += 1 });
            1
        }
    }

    #[test]
    fn loom_turns_are_taken_one_at_a_time() {
        check(|| {
            let shared = Arc::new(Shared::default());
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.count() + shared.count())
            };
            let ours = shared.count() + shared.count();
            let counted = ours + other.join().unwrap();
            assert!(counted >= 1);
            // SAFETY: the other thread has ended.
            assert_eq!(shared.1.with(|count| unsafe { *count }), counted);
        });
    }

    #[cfg(loom)]
    #[test]
    fn loom_turns_need_each_ordering() {
        let models: [fn(); 1] = [loom_turns_are_taken_one_at_a_time];
        crate::sync::needs_orderings(&models, "soft/src/turn.rs", &[]);
    }
}
