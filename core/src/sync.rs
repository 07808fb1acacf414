//! Atomics and cells, replaced by loom's under `--cfg loom` so that loom checks the same code.

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

#[cfg(all(test, any(loom, miri)))]
pub(crate) mod model;

#[cfg(any(loom, all(test, miri)))]
pub(crate) mod weaken;

#[cfg(any(loom, all(test, miri)))]
pub(crate) use weaken as atomic;

#[cfg(all(loom, test))]
pub(crate) use weaken::needs_orderings;

#[cfg(not(any(loom, all(test, miri))))]
pub(crate) use core::sync::atomic;

/// `core::cell::UnsafeCell` with loom's closure interface.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
