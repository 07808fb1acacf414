//! What models of lock-free code are made of. loom runs a model in every interleaving. Miri runs it many times, with
//! real threads, each time in another order, and with values that the memory model allows to be old.

#[allow(unused_imports, reason = "not each crate uses all")]
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    model as check,
    sync::{Arc, Mutex},
    thread,
};
#[allow(unused_imports, reason = "not each crate uses all")]
#[cfg(miri)]
pub(crate) use std::sync::{Arc, Mutex};

/// How often Miri runs a model, unless `BELLWIRE_ROUNDS` says so.
#[cfg(miri)]
const ROUNDS: u32 = 6;

/// Runs the model. Miri's random numbers go on from round to round.
#[cfg(miri)]
pub(crate) fn check(model: impl Fn()) {
    let rounds = std::env::var("BELLWIRE_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    (0..rounds).for_each(|_| model());
}

/// For a model in which something is missing: some need more rounds.
#[allow(dead_code, reason = "not each crate uses all")]
pub(crate) fn longer(model: impl Fn()) {
    let times = if cfg!(miri) { 50 } else { 1 };
    (0..times).for_each(|_| model());
}

/// As `std::thread`.
#[cfg(miri)]
#[allow(unused_imports, reason = "not each crate uses all")]
pub(crate) mod thread {
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::boxed::Box;
    pub(crate) use std::thread::{JoinHandle, yield_now};

    /// Returns when the thread runs: else one of the two would mostly be through before the other has begun.
    pub(crate) fn spawn<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // Relaxed, both: it must not order what the model does. Kept for good, because an `Arc` orders.
        let runs: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let thread = std::thread::spawn(|| {
            runs.store(true, Ordering::Relaxed);
            run()
        });
        while !runs.load(Ordering::Relaxed) {
            yield_now();
        }
        thread
    }
}

/// A cell that threads share: the model, or Miri, finds accesses that conflict.
#[cfg(miri)]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(miri)]
// SAFETY: each access is `unsafe` by itself.
unsafe impl<T: Send> Sync for UnsafeCell<T> {}

#[cfg(miri)]
#[allow(dead_code, reason = "not each crate uses all")]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
