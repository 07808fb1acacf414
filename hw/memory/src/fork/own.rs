//! Values that only the process that made them drops.

use super::{Life, keep};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value that only the process that made it drops. A child of fork(2) that drops its copy keeps the value
/// instead: no destructor runs, which could wait for a lock or for a thread that the child does not have, or
/// destroy what its parent uses.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    life: Life,
}

impl<T> Own<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            life: Life::current(),
        }
    }

    /// Whether it belongs to the parent of this process: then it must not be used.
    pub fn is_inherited(own: &Self) -> bool {
        !own.life.is_current()
    }

    /// The value. `None` if it belongs to the parent of this process, which keeps it.
    pub fn into_inner(mut own: Self) -> Option<T> {
        if Self::is_inherited(&own) {
            return None;
        }
        // SAFETY: taken once: it is not dropped any more.
        let value = unsafe { ManuallyDrop::take(&mut own.value) };
        std::mem::forget(own);
        Some(value)
    }
}

impl<T> From<T> for Own<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: Default> Default for Own<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The clone of a parent's value is the parent's, too.
impl<T: Clone> Clone for Own<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            life: self.life,
        }
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, as the value is not used behind this.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        match Self::is_inherited(self) {
            true => keep(value),
            false => drop(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static DROPPED: AtomicU32 = AtomicU32::new(0);

    #[derive(Clone)]
    struct Counted;

    impl Drop for Counted {
        fn drop(&mut self) {
            // Relaxed: one thread at a time.
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_value_is_dropped_once_by_its_process_alone() {
        let dropped = || DROPPED.load(Ordering::Relaxed);
        let own = Own::new(Counted);
        assert!(!Own::is_inherited(&own));
        drop(own.clone());
        assert_eq!(dropped(), 1);
        drop(Own::into_inner(own));
        assert_eq!(dropped(), 2);
        #[cfg(not(miri))]
        {
            let own = Own::new(Counted);
            // SAFETY: the child drops a value, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let inherited = Own::is_inherited(&own);
                drop(own.clone());
                drop(own);
                let right = inherited && dropped() == 2;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            let mut status = 0;
            // SAFETY: the status is writable.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
            drop(own);
            assert_eq!(dropped(), 3);
        }
    }
}
