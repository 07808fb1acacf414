//! A static value that is made at the first look, and by which no thread waits for another one: a child of
//! fork(2) would wait for a thread of its parent for ever.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Made by each thread that looks before there is a value; all but one of those values are dropped.
pub struct Once<T>(AtomicPtr<T>);

// SAFETY: the value may be shared and dropped by any thread.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T: Send + Sync> Once<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub fn get(&'static self) -> Option<&'static T> {
        // Acquire: pairs with the Release in `get_or_init`.
        // SAFETY: null, or made there and never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub fn get_or_init(&'static self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(there) = self.get() {
            return there;
        }
        let made = Box::into_raw(Box::new(make()));
        // Release: pairs with the Acquire here and in `get`.
        let set =
            (self.0).compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        let there = match set {
            Ok(_) => made,
            Err(first) => {
                // SAFETY: from `into_raw`, and given to nobody.
                drop(unsafe { Box::from_raw(made) });
                first
            }
        };
        // SAFETY: just made, here or by another thread, and never freed.
        unsafe { &*there }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_see_one_value() {
        static NUMBER: Once<u32> = Once::new();
        assert_eq!(NUMBER.get(), None);
        let look = |number| move || *NUMBER.get_or_init(|| number);
        let threads: Vec<_> = (0..4)
            .map(|number| std::thread::spawn(look(number)))
            .collect();
        let first = *NUMBER.get_or_init(|| 9);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), first);
        }
        assert_eq!(NUMBER.get(), Some(&first));
    }
}
