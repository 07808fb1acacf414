//! Numbers of 24 bits, of which none is given out twice at a time.

use crate::error::Error;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

const MAX: u32 = (1 << 24) - 1;

/// Numbers from 1 to 2^24 - 1, counted up, and those that are still in use skipped: one that was
/// given back comes round late.
#[derive(Debug)]
pub(crate) struct Numbers {
    what: &'static str,
    used: Mutex<(u32, HashSet<u32>)>,
}

impl Numbers {
    /// Numbers of what the errors call `what`.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            used: Mutex::default(),
        }
    }

    pub fn take(&self) -> Result<u32, Error> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, used) = &mut *used;
        if used.len() >= MAX as usize {
            return Err(Error::Exhausted {
                what: self.what,
                max: MAX as usize,
            });
        }
        loop {
            *last = if *last == MAX { 1 } else { *last + 1 };
            if used.insert(*last) {
                return Ok(*last);
            }
        }
    }

    /// How many are in use.
    pub fn used(&self) -> u32 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.1.len() as u32
    }

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
