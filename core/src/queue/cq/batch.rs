//! Polling several completions at once: their CQEs are returned to the device together where it can
//! wait for them.
//!
//! Only the CQEs of successful sends wait; every other CQE is returned with its completion. As many
//! may wait as no queue has reserved: then requests that the program posts while its completions
//! are being reported find both a slot and a CQE. So that some can wait, `bellwire` adds up to
//! 32 entries to those requested where the device writes the ring itself. If a queue pair reserves
//! no CQEs and relies on the device's overrun check, each CQE is returned before its completion is
//! reported.

use super::{Completion, CompletionQueue, Naming};
use core::mem::ManuallyDrop;

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Polls up to `limit` completions, passes each to `each`, and returns how many there were.
    /// `each` may post: the slots of the completions that it was passed are free.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        match limit <= self.spare {
            true => self.poll_batch(limit, &mut each),
            false => self.poll_parts(limit, each),
        }
    }

    /// Polls like [`poll`](Self::poll), and returns all CQEs to the device at the end.
    #[inline(always)]
    fn poll_batch(&mut self, limit: usize, each: &mut impl FnMut(Completion<'m>)) -> usize {
        let batch = Batch(self);
        let mut count = 0;
        while count < limit && batch.0.take_one::<false, _>(&mut *each).is_some() {
            count += 1;
        }
        let queue = ManuallyDrop::new(batch);
        // The consumer index is in a cache line of its own, which polls that find nothing do not
        // touch.
        if count != 0 {
            queue.0.give_back();
        }
        count
    }

    /// Polls like [`poll`](Self::poll) with a `limit` above the spare CQEs: in parts, or one by one
    /// where there are none to spare.
    #[inline(never)]
    fn poll_parts(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        let mut count = 0;
        while count < limit {
            let part = self.spare.min(limit - count);
            let polled = match part {
                0 => usize::from(self.take_one::<true, _>(&mut each).is_some()),
                _ => self.poll_batch(part, &mut each),
            };
            count += polled;
            if polled < part.max(1) {
                break;
            }
        }
        count
    }

    /// Recomputes `spare`, after an attachment has changed.
    pub(in crate::queue) fn count_spare(&mut self) {
        self.spare = match self.unreserving {
            0 => self.unreserved() as usize,
            _ => 0,
        };
    }
}

/// Returns the polled CQEs to the device when the function that is passed the completions panics.
struct Batch<'q, 'm, N: Naming>(&'q mut CompletionQueue<'m, N>);

impl<N: Naming> Drop for Batch<'_, '_, N> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
