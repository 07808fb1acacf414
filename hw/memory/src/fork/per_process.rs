//! Static values of which each process has its own.

use super::Life;
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A static value of which each process has its own: a child of fork(2) makes a new one when it first needs it.
/// The parent's stays as it is, locked or half changed. No thread waits for another one that makes the value.
pub struct PerProcess<T> {
    make: fn() -> T,
    /// The value, of this process or of an ancestor; null: none has been needed yet.
    made: AtomicPtr<Made<T>>,
    /// A thread has taken `first`.
    taken: AtomicBool,
    /// The first value, which needs no memory of its own. Those of children do.
    first: UnsafeCell<MaybeUninit<Made<T>>>,
}

struct Made<T> {
    life: Life,
    value: T,
    /// The parent's. For leak checkers, which find it here.
    _inherited: *mut Made<T>,
}

// SAFETY: the value may be shared and dropped by any thread.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes when it is first needed. Threads that need it at the same time may call it
    /// several times: all but one of the values are dropped.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            made: AtomicPtr::new(ptr::null_mut()),
            taken: AtomicBool::new(false),
            first: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// This process's value.
    pub fn get(&'static self) -> &'static T {
        let life = Life::current();
        // Acquire: pairs with the Release below.
        let mut there = self.made.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or made below and never freed.
            match unsafe { there.as_ref() } {
                Some(made) if made.life == life => return &made.value,
                _ => {}
            }
            let value = Made {
                life,
                value: (self.make)(),
                _inherited: there,
            };
            // Relaxed: only the thread that takes the place uses it, until the pointer is stored.
            let is_first = !self.taken.swap(true, Ordering::Relaxed);
            let made = match is_first {
                // SAFETY: this thread has taken the place, and nobody else writes it.
                true => unsafe { &mut *self.first.get() }.write(value),
                false => Box::into_raw(Box::new(value)),
            };
            // Release: pairs with the Acquire of each look, which sees the value.
            match (self.made).compare_exchange(there, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => there = made,
                Err(first) => {
                    match is_first {
                        // SAFETY: written above, and given to nobody.
                        true => unsafe { ptr::drop_in_place(made) },
                        // SAFETY: from `into_raw`, and given to nobody.
                        false => drop(unsafe { Box::from_raw(made) }),
                    }
                    there = first;
                }
            }
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static NUMBERS: PerProcess<Mutex<Vec<u32>>> = PerProcess::new(|| Mutex::new(vec![7]));

    #[test]
    fn each_process_has_its_own_even_if_the_parents_is_locked() {
        let threads: Vec<_> = (0..4)
            .map(|number| std::thread::spawn(move || NUMBERS.get().lock().unwrap().push(number)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let numbers = NUMBERS.get().lock().unwrap();
        assert_eq!(numbers.len(), 5);
        #[cfg(not(miri))]
        {
            // SAFETY: the child takes a lock of its own, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let afresh = NUMBERS
                    .get()
                    .try_lock()
                    .is_ok_and(|numbers| *numbers == [7]);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!afresh)) };
            }
            let mut status = 0;
            // SAFETY: the status is writable.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
        drop(numbers);
        assert_eq!(NUMBERS.get().lock().unwrap().len(), 5);
    }
}
