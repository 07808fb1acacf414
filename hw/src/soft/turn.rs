//! Taking turns at a receive queue that many may send to.
//!
//! A NIC puts the datagrams of a queue pair into its receives one after the other; here the
//! senders' threads do, so that they have to take turns. Connected queue pairs need none of it: they
//! have one peer.

use super::quiesce::pause;
#[cfg(loom)]
use loom::sync::atomic::AtomicBool;
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

/// Who may use what it stands beside: one at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicBool);

/// One's turn, until dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for one's turn. What is done in it is bounded: one message is copied.
    #[inline]
    pub fn take(&self) -> Taken<'_> {
        let mut spins = 0u32;
        loop {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            // Relaxed: only waits for a chance at the exchange.
            while self.0.load(Ordering::Relaxed) {
                spins += 1;
                pause(spins);
            }
        }
    }

    /// One's turn, if nobody else has it.
    #[inline]
    fn try_take(&self) -> Option<Taken<'_>> {
        // Acquire: partner of the release in `drop`; what the last one did comes before. Relaxed: a
        // turn that is not taken publishes nothing.
        let taken = (self.0).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Taken(self))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: partner of the acquire in `try_take`.
        self.0.0.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[derive(Default)]
    struct Counter(Turn, UnsafeCell<u64>);

    // SAFETY: the counter is touched in turns only, which is what the test is to show.
    unsafe impl Sync for Counter {}

    impl Counter {
        fn count(&self) {
            let _turn = self.0.take();
            // SAFETY: it is our turn.
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
        // SAFETY: the threads are gone.
        assert_eq!(unsafe { *counter.1.get() }, 4 * EACH);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use ::loom::cell::UnsafeCell;
    use ::loom::sync::Arc;
    use ::loom::thread;

    #[derive(Default)]
    struct Shared(Turn, UnsafeCell<u32>);

    // SAFETY: what the model is to show.
    unsafe impl Sync for Shared {}

    impl Shared {
        /// Counts, if it is our turn at once: a model cannot wait.
        fn count(&self) -> u32 {
            let Some(_turn) = self.0.try_take() else {
                return 0;
            };
            // SAFETY: what the model is to show.
            self.1.with_mut(|count| unsafe { *count += 1 });
            1
        }
    }

    #[test]
    fn loom_turns_are_taken_one_at_a_time() {
        ::loom::model(|| {
            let shared = Arc::new(Shared::default());
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.count() + shared.count())
            };
            let ours = shared.count() + shared.count();
            let counted = ours + other.join().unwrap();
            assert!(counted >= 1);
            // SAFETY: the other is gone.
            assert_eq!(shared.1.with(|count| unsafe { *count }), counted);
        });
    }
}
