//! What models of lock-free code are made of. loom runs a model in every interleaving. Miri runs it once for each
//! of many seeds, with real threads of its own, and values that the memory model allows to be old.

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, model as check, sync::Arc, thread};
#[cfg(miri)]
pub(crate) use std::{sync::Arc, thread};

/// Runs the model.
#[cfg(miri)]
pub(crate) fn check(model: impl Fn()) {
    model();
}

/// A cell that threads share: the model, or Miri, finds accesses that conflict.
#[cfg(miri)]
pub(crate) struct UnsafeCell<T>(super::UnsafeCell<T>);

#[cfg(miri)]
// SAFETY: each access is `unsafe` by itself.
unsafe impl<T: Send> Sync for UnsafeCell<T> {}

#[cfg(miri)]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(super::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}
