//! Bounded rings over memory that the caller gives: nothing here allocates, blocks or calls the
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
//! [`spsc`] joins two threads. [`mpsc`] is how many threads feed the one owner of a queue.
//! [`Cursor`] is the index that both use, and that device queues use as well.
//!
//! What an operation costs when the ring is neither full nor empty. "Shared lines" are the cache
//! lines that the other side writes too, beside the line of the slot itself:
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
//! A ring's two indexes stand on cache lines of their own; the consumer of an [`mpsc`] ring never
//! touches the line of the tail.
//!
//! A pop that finds nothing still fetches the line that the producer is writing. A consumer that
//! does nothing but poll makes the producer fetch it back for every element, so a thread that only
//! waits should pause between polls; one that has other work has that pause already.

mod cursor;
#[cfg(all(loom, test))]
mod loom;
pub mod mpsc;
pub mod spsc;

pub use cursor::{Cursor, RingSize, RingSizeError};

use core::fmt;
use crossbeam_utils::CachePadded;

/// Takes no room, but aligns a half to cache lines: two halves that lie side by side, say on one
/// stack, would otherwise pass the line of their private indexes to and fro.
type OwnLine = CachePadded<()>;

/// The ring was full. What was to be pushed comes back.
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

    /// Indexes to start at: the first, and some from which a short run wraps.
    #[cfg(not(loom))]
    pub(super) const STARTS: [u32; 4] = [0, 5, u32::MAX - 6, u32::MAX];

    /// Counts elements made and dropped.
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
