//! 24-bit numbers, each of which is in use at most once at a time.

use crate::error::Error;
use crate::pinned::no_memory;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

const MAX: u32 = (1 << 24) - 1;

/// Numbers from 1 to 2^24 - 1. They are given out in ascending order, skipping those in use, so a returned
/// number is reused late.
#[derive(Debug)]
pub struct Numbers {
    what: &'static str,
    used: Mutex<(u32, HashSet<u32>)>,
}

impl Numbers {
    /// Creates a set of numbers; `what` names them in errors.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            used: Mutex::default(),
        }
    }

    /// Returns a number that is not in use.
    ///
    /// # Errors
    /// [`Error::Exhausted`]; [`Error::Memory`].
    pub fn take(&self) -> Result<u32, Error> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, used) = &mut *used;
        if used.len() >= MAX as usize {
            return Err(Error::Exhausted {
                what: self.what,
                max: MAX as usize,
            });
        }
        let room = used.try_reserve(1);
        room.map_err(|_| no_memory((used.len() + 1) * size_of::<u32>()))?;
        loop {
            *last = if *last == MAX { 1 } else { *last + 1 };
            if used.insert(*last) {
                return Ok(*last);
            }
        }
    }

    /// How many numbers are in use.
    pub fn used(&self) -> u32 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.1.len() as u32
    }

    /// Returns a number, which is then no longer in use.
    pub fn give_back(&self, number: u32) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.1.remove(&number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn comes_round_and_skips_what_is_used() {
        let numbers = Numbers::new("things");
        assert_eq!(numbers.take().unwrap(), 1);
        assert_eq!(numbers.take().unwrap(), 2);
        numbers.give_back(1);
        assert_eq!(numbers.take().unwrap(), 3);
        numbers.used.lock().unwrap().0 = MAX - 1;
        assert_eq!(numbers.take().unwrap(), MAX);
        assert_eq!(numbers.take().unwrap(), 1);
        assert_eq!(numbers.take().unwrap(), 4);
    }
}
