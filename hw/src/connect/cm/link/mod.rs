//! How two [`Link`](crate::recovery::Link)s find each other by the communication manager, for the first
//! time and again: exchanges whose messages travel as private data.
//!
//! ```text
//!   connector                                             listener
//!   Info ──► REQ {session, Info} ────────────────────────► Info
//!   Info, Ready ◄──────────── REP {Info, Ready} ◄── accept once its link has told both
//!   Ready ──► establish ─────────────────────────────────► Established: Ready
//! ```
//!
//! - Each message says where its sender stands, so that the last one is all that the peer needs. An end
//!   whose link has something new to say lets the connection go; the connector makes the next one, with
//!   what it has to say now, and is answered at once if the listener's link is ahead.
//! - A connection that is lost is made again, with what was said last: after a pause that doubles, and
//!   so many times at the most. The listener's end waits for as long.
//! - The queue pairs are the links' own; the manager brings what they have to know, and who the peer is.

mod connector;
mod listener;
mod private_data;

pub use connector::{Connector, Outgoing};
pub use listener::{Incoming, Listener};

use std::time::Duration;

/// How long to try to reach the peer, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long each step of a connection may take.
    pub step: Duration,
    /// The pause after the first attempt that fails; each that follows is twice as long.
    pub pause: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// Attempts, one after the other, that may fail.
    pub attempts: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            step: Duration::from_secs(5),
            pause: Duration::from_millis(10),
            longest: Duration::from_secs(1),
            attempts: 10,
        }
    }
}

impl Retry {
    /// The pause after so many attempts that failed.
    fn pause_after(&self, failed: u32) -> Duration {
        let doubled = 1u32
            .checked_shl(failed.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.pause.saturating_mul(doubled).min(self.longest)
    }

    /// How long all attempts may take.
    fn all(&self) -> Duration {
        let pauses: Duration = (1..=self.attempts.min(64))
            .map(|failed| self.pause_after(failed))
            .sum();
        pauses.saturating_add(self.step.saturating_mul(self.attempts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::default();
        let pauses = [1, 2, 3, 7, 8, 40].map(|failed| retry.pause_after(failed).as_millis());
        assert_eq!(pauses, [10, 20, 40, 640, 1000, 1000]);
        assert!(retry.all() > retry.step * retry.attempts);
    }
}
