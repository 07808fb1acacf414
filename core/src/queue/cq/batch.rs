//! Polling several at once: the device gets their entries back together where it can wait for them.

use super::{Completion, CompletionQueue, Naming};
use core::mem::ManuallyDrop;

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Takes up to `limit` completions, gives each to `each`, and returns how many there were. Requests
    /// posted by `each` find the room of those that it was given.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        match limit <= self.spare {
            true => self.poll_batch(limit, &mut each),
            false => self.poll_parts(limit, each),
        }
    }

    /// As [`poll`](Self::poll): all entries go back at the end.
    #[inline(always)]
    fn poll_batch(&mut self, limit: usize, each: &mut impl FnMut(Completion<'m>)) -> usize {
        let batch = Batch(self);
        let mut count = 0;
        while count < limit && batch.0.take_one::<false, _>(&mut *each).is_some() {
            count += 1;
        }
        let queue = ManuallyDrop::new(batch);
        // The record is in a line of its own, which polls that find nothing leave alone.
        if count != 0 {
            queue.0.give_back();
        }
        count
    }

    /// As [`poll`](Self::poll), of more than can be kept: in parts, or one by one where nothing can.
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

    /// Finds out how many entries are spare: what is attached has changed.
    pub(in crate::queue) fn count_spare(&mut self) {
        self.spare = match self.unreserving {
            0 => self.unreserved() as usize,
            _ => 0,
        };
    }
}

/// Who is given completions may panic: then the device gets back what was taken.
struct Batch<'q, 'm, N: Naming>(&'q mut CompletionQueue<'m, N>);

impl<N: Naming> Drop for Batch<'_, '_, N> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
