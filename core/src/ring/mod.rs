//! Bounded rings over memory that the caller provides: nothing here allocates, blocks or calls the
//! operating system.
//!
//! ```text
//!            head                 tail
//!             │                    │            free-running indexes (Cursor): a slot is
//!             ▼                    ▼            index & (slots - 1), fullness is tail - head
//!   ┌─────┬─────┬─────┬─────┬─────┬─────┬─────┬─────┐
//!   │     │ old │  …  │  …  │ new │     │     │     │    slots: a power of two of them
//!   └─────┴─────┴─────┴─────┴─────┴─────┴─────┴─────┘
//!             │ pop                ▲ push
//!             ▼                    │
//!          Consumer             Producer (spsc: one; mpsc: as many as there are clones)
//! ```
//!
//! [`spsc`] connects two threads. [`mpsc`] lets many threads feed the one owner of a queue.
//! [`Cursor`] is the index type of both rings, and of the device queues.
//!
//! The cost of an operation when the ring is neither full nor empty. "Shared lines" are the cache
//! lines that the other side writes too, except the line of the slot itself:
//!
//! | operation              | read-modify-writes | shared lines             | progress            |
//! |------------------------|--------------------|--------------------------|---------------------|
//! | spsc push, pop         | none               | own index, stored once   | wait-free           |
//! | spsc batch             | none               | own index, stored once   | wait-free           |
//! | spsc, seeming full or empty | none          | the other's index, once  | wait-free           |
//! | mpsc push              | one (tail)         | tail                     | lock-free, see there |
//! | mpsc batch push        | one (tail)         | tail                     | lock-free, see there |
//! | mpsc push, seeming full | one (tail)        | tail, head               | lock-free, see there |
//! | mpsc pop, batch pop    | none               | head, stored once        | wait-free, see there |
//!
//! The two indexes of a ring are on cache lines of their own; the consumer of an [`mpsc`] ring
//! never accesses the line of the tail.
//!
//! A pop that finds nothing still fetches the line that the producer is writing. A consumer that
//! only polls makes the producer fetch it back for every element. A thread that only waits should
//! therefore pause between polls; one with other work to do pauses anyway.

mod cursor;
#[cfg(all(loom, test))]
mod loom;
pub mod mpsc;
pub mod spsc;

pub use cursor::{Cursor, RingSize, RingSizeError};

use core::fmt;
use crossbeam_utils::CachePadded;

/// Has no size, but aligns a ring half to cache lines. Otherwise two halves in adjacent memory,
/// such as one stack, could share a cache line with their private indexes.
type OwnLine = CachePadded<()>;

/// The ring was full. Contains the element that was not pushed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is full: let its consumer run, or give it more slots")
    }
}

impl<T> core::error::Error for Full<T> {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Start indexes: the first, and some from which a short run wraps.
    #[cfg(not(loom))]
    pub(super) const STARTS: [u32; 4] = [0, 5, u32::MAX - 6, u32::MAX];

    /// Counts elements created and dropped.
    #[derive(Default)]
    pub(super) struct Counted(Arc<[AtomicUsize; 2]>);

    pub(super) struct One(Arc<[AtomicUsize; 2]>);

    impl Counted {
        pub(super) fn one(&self) -> One {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            One(Arc::clone(&self.0))
        }

        pub(super) fn made(&self) -> usize {
            self.0[0].load(Ordering::Relaxed)
        }

        pub(super) fn dropped(&self) -> usize {
            self.0[1].load(Ordering::Relaxed)
        }
    }

    impl Drop for One {
        fn drop(&mut self) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
        }
    }
}
