//! Taking turns at a receive queue that many may send to.
//!
//! A NIC puts the datagrams of a queue pair into its receives one after the other; here the
//! senders' threads do, so that they have to take turns. Connected queue pairs need none of it: they
//! have one peer.

use std::sync::atomic::{AtomicBool, Ordering};

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
        // Acquire: partner of the release in `drop`; what the last one did comes before.
        while self.0.swap(true, Ordering::Acquire) {
            // Relaxed: only waits for a chance at the exchange.
            while self.0.load(Ordering::Relaxed) {
                spins += 1;
                if spins.is_multiple_of(64) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
        Taken(self)
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: partner of the acquire in `take`.
        self.0.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
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
