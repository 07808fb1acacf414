//! Time limits.

use super::error::{TcpError, Waited};
use std::time::{Duration, Instant};

/// The end of a time limit, and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// `None`: beyond the range of the clock.
    at: Option<Instant>,
    within: Duration,
}

impl Deadline {
    pub fn new(within: Duration) -> Self {
        Self {
            at: Instant::now().checked_add(within),
            within,
        }
    }

    /// The time that is left; never zero.
    ///
    /// # Errors
    /// [`TcpError::TimedOut`] when none is left.
    pub fn left(&self, waited: impl FnOnce() -> Waited) -> Result<Duration, TcpError> {
        let left = self.at.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        });
        if left.is_zero() {
            return Err(self.passed(waited()));
        }
        Ok(left)
    }

    /// The limit; `None`: none that the clock can reach.
    pub fn limit(&self) -> Option<Duration> {
        self.at.map(|_| self.within)
    }

    /// The error for a limit that has passed.
    pub fn passed(&self, waited: Waited) -> TcpError {
        TcpError::TimedOut {
            waited,
            within: self.within,
        }
    }
}
