//! Which entries of a ring still hold a request: what was posted in the present life of the queue, or,
//! until something is, in the last one.

/// The counters of two lives of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lives {
    /// Where the present one began.
    born: u32,
    /// Where the last one began and ended.
    last: (u32, u32),
}

impl Lives {
    /// The next life begins at `born`; this one ended at `end`.
    pub fn renew(&mut self, end: u32, born: u32) {
        // A life in which nothing was posted has overwritten nothing.
        if end != self.born {
            self.last = (self.born, end);
        }
        self.born = born;
    }

    /// How many counters from `counter` up to the end of its life, where the entry at it was not
    /// overwritten yet: at most `capacity`. `None`: it was, or there was none.
    pub fn left(&self, counter: u32, head: u32, capacity: u32) -> Option<u32> {
        let (born, end) = if head == self.born {
            self.last
        } else {
            (self.born, head)
        };
        let left = end.wrapping_sub(counter);
        (1..=capacity.min(end.wrapping_sub(born)))
            .contains(&left)
            .then_some(left)
    }
}
