//! Numbers that no other process has: seeds, identities, initial packet sequence numbers.
//!
//! Not of `std::hash::RandomState`: its keys are drawn once for each thread and then counted, so a child of
//! fork(2) goes through the same numbers as its parent.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A random number.
pub fn draw() -> u64 {
    let mut number = 0u64;
    // SAFETY: as many bytes are writable.
    let got = unsafe {
        libc::getrandom(
            (&raw mut number).cast(),
            size_of::<u64>(),
            libc::GRND_NONBLOCK,
        )
    };
    if got == size_of::<u64>() as isize {
        number
    } else {
        without_the_call()
    }
}

/// As [`draw`], where the kernel refuses getrandom(2): the standard library's keys, which a child shares with its
/// parent, and with them the pid, the time and a count, which it does not.
#[cold]
fn without_the_call() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH))
        .map_or(0, |since| since.as_nanos());
    // Relaxed: only the count itself matters.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    RandomState::new().hash_one((std::process::id(), time, count))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ() {
        for draw in [draw, without_the_call] {
            let numbers: std::collections::BTreeSet<_> = (0..100).map(|_| draw()).collect();
            assert_eq!(numbers.len(), 100);
        }
    }

    /// On `RandomState` a child drew the next numbers of its parent.
    #[cfg(not(miri))]
    #[test]
    fn a_child_draws_other_numbers_than_its_parent() {
        for draw in [draw, without_the_call] {
            let _first = draw();
            let mut ends = [0; 2];
            // SAFETY: two descriptors are writable.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            // SAFETY: the child draws a number, writes it, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let number = draw().to_ne_bytes();
                // SAFETY: the bytes are readable, and the child ends at once.
                unsafe {
                    libc::write(ends[1], number.as_ptr().cast(), number.len());
                    libc::_exit(0);
                }
            }
            let ours = draw();
            let mut theirs = [0; 8];
            // SAFETY: the bytes are writable, and the descriptors belong to this test.
            let got = unsafe {
                let got = libc::read(ends[0], theirs.as_mut_ptr().cast(), theirs.len());
                libc::waitpid(pid, std::ptr::null_mut(), 0);
                libc::close(ends[0]);
                libc::close(ends[1]);
                got
            };
            assert_eq!(got, 8);
            assert_ne!(u64::from_ne_bytes(theirs), ours);
        }
    }
}
