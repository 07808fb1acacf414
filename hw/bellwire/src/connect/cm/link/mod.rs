//! How two [`Link`](crate::link::Link)s connect by the communication manager, the first time and at
//! each recovery: exchanges whose messages are sent as private data.
//!
//! ```text
//!   connector                                             listener
//!   Info ──► REQ {session, Info} ────────────────────────► Info
//!   Info, Ready ◄──────────── REP {Info, Ready} ◄── accept once its link has sent both
//!   Ready ──► establish ─────────────────────────────────► Established: Ready
//! ```
//!
//! - Each message contains the sender's complete state, so the peer needs only the last one. When the
//!   listener's link has a new message it closes the connection, and the connector requests the next one.
//!   When the connector's link has one, the connector requests the next connection first, and closes the
//!   last one when it gets a response. Each request contains the connector's current state, and is
//!   answered at once if the listener's link is in a later epoch.
//! - So a connection that ends at the listener's end without a new request means that the peer is gone. A
//!   connector that closes its link says so before, by a datagram (SIDR) to the same port.
//! - Each listener has a number. If a listener is replaced, links of the old one get another number from
//!   the new one, and find their peer restarted.
//! - A lost connection is made again, with the last messages: after a pause that doubles each time, for
//!   as long as [`Retry`] allows. The listener's end waits for as long after it has lost one.
//! - Each connection has another queue pair number: a communication manager rejects a number that has a
//!   connection, at either end, as stale. If it rejects a request as stale nevertheless, because the
//!   peer's program has not closed the last connection yet, the peer is there, and the request is
//!   repeated.
//! - The queue pairs belong to the links; the manager only carries what they need, and the peer's
//!   address.
//! - A listener admits links: so many wait to be accepted, and so many that were accepted connect for the
//!   first time. It refuses further ones with the word "busy" and the time until there will be room, as fast
//!   as it accepts links now. Connectors ask again then, each at another time, after a pause that doubles and
//!   differs between them at the least, and within the time that [`Retry`] allows. An accepted link that is
//!   not connected in time is given up ([`Listener::limit_handshakes`]), and at once if its peer's process
//!   ends and that can be seen, as on a fabric of software HCAs.
//! - A link that was connected before and that the listener does not have is refused for good. The
//!   refusal contains the listener's number: if that is the one that the connector knows, its peer was
//!   closed, otherwise the peer was restarted.
//! - The private data has 56 bytes, and includes the count of consumed receives. The route of the
//!   datagram that closes a link is resolved when the link connects, because nothing waits for it when
//!   the link is closed.

mod admission;
mod connector;
mod inbox;
mod listener;
mod peers;
mod private_data;
mod session;

#[cfg(fuzzing)]
pub use private_data::fuzz;

pub use connector::{Connector, Outgoing};
pub use listener::{Incoming, Listener};

use std::time::Duration;

/// How long to try to reach the peer, and how often.
///
/// Attempts that fail at once, for instance because nothing listens, are repeated until the total time of
/// all attempts is over: [`attempts`](Self::attempts) times [`step`](Self::step), plus the pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Time limit for each step of a connection.
    pub step: Duration,
    /// The pause after the first failed attempt; each further pause is twice as long.
    pub pause: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// Consecutive attempts that may fail, each after the time limit of a step.
    pub attempts: u32,
}

impl Default for Retry {
    /// Five attempts of 2 s each, with pauses of 10 ms to 1 s: a peer is given up after about ten
    /// seconds.
    fn default() -> Self {
        Self {
            step: Duration::from_secs(2),
            pause: Duration::from_millis(10),
            longest: Duration::from_secs(1),
            attempts: 5,
        }
    }
}

impl Retry {
    /// The pause after this many failed attempts.
    fn pause_after(&self, failed: u32) -> Duration {
        let doubled = 1u32
            .checked_shl(failed.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.pause.saturating_mul(doubled).min(self.longest)
    }

    /// The time limit of all attempts together.
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
