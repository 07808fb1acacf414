//! Counts of posted requests, which any thread may read.
//!
//! The data path counts nothing. An entry stays in its ring until it is overwritten, and a queue reloads its limit
//! before it overwrites one. There the poster counts the entries that it posted since, if the queue has a tally.

use crate::wr::WrOpcode;
use core::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = WrOpcode::ALL.len();

/// Requests of one operation, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Requests that were posted.
    pub requests: u64,
    /// Bytes that they send, or that a READ or an atomic brings.
    pub bytes: u64,
}

/// Counts of the requests that were posted to the queues of one queue pair. One poster writes the counts of sends,
/// one those of receives; any thread reads both.
#[derive(Debug, Default)]
pub struct Tally {
    sends: [Count; OPERATIONS],
    receives: AtomicU64,
}

#[derive(Debug, Default)]
struct Count {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// Adds to a counter that one thread writes.
fn add(counter: &AtomicU64, more: u64) {
    // Relaxed, here and in the reads: each counter stands for itself. Two plain instructions, because there is one
    // writer.
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(more), Ordering::Relaxed);
}

impl Tally {
    /// The requests of an operation that were posted and counted.
    pub fn sends(&self, operation: WrOpcode) -> Posted {
        let index = WrOpcode::ALL.iter().position(|one| *one == operation);
        index.map_or_else(Posted::default, |index| Posted {
            requests: self.sends[index].requests.load(Ordering::Relaxed),
            bytes: self.sends[index].bytes.load(Ordering::Relaxed),
        })
    }

    /// The receives that were posted and counted.
    pub fn receives(&self) -> u64 {
        self.receives.load(Ordering::Relaxed)
    }

    /// Counts a request.
    pub(super) fn send(&self, operation: WrOpcode, bytes: u64) {
        if let Some(index) = WrOpcode::ALL.iter().position(|one| *one == operation) {
            add(&self.sends[index].requests, 1);
            add(&self.sends[index].bytes, bytes);
        }
    }

    /// Counts receives.
    pub(super) fn receive(&self, receives: u32) {
        add(&self.receives, receives.into());
    }
}
