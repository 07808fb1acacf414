//! Which entries of a ring still hold a request: those posted in the present life of the queue, or
//! in the previous one as long as nothing is posted in the present one.

/// The counters of the present and the previous life of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lives {
    /// Where the present life began.
    born: u32,
    /// Where the previous life began and ended.
    last: (u32, u32),
}

impl Lives {
    /// Starts the next life at `born`; this one ended at `end`.
    pub fn renew(&mut self, end: u32, born: u32) {
        // A life in which nothing was posted has overwritten nothing.
        if end != self.born {
            self.last = (self.born, end);
        }
        self.born = born;
    }

    /// Number of counters from `counter` up to the end of its life, at most `capacity`. `None`: the
    /// entry at `counter` was overwritten, or there was none.
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
