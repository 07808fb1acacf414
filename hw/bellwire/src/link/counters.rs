//! Counters of a link.

use bellwire_core::fault::Scope;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::End;
use std::time::Duration;

/// Counts of faults, recoveries and outcomes of a link. Requests that succeed without a recovery are not
/// counted: that would cost the data path. Their number is that of the requests that were posted
/// ([`monitor`](crate::monitor)), less the failed requests and the requests in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Faults, by [`Scope::number`]. Events that break nothing are not counted.
    pub faults: [u64; Scope::ALL.len()],
    /// Recoveries after which the link works; the first connection counts as one.
    pub recovered: u64,
    /// Of these, recoveries after which something is not as it was.
    pub degraded: u64,
    /// One if the link has been given up; zero if the peer closed a link that worked.
    pub gave_up: u64,
    /// Requests that were posted again.
    pub replayed: u64,
    /// Receives that were posted again.
    pub reposted: u64,
    /// Sends of a failed connection that turned out to have been executed.
    pub done: u64,
    /// Sends reported as failed.
    pub failed: u64,
    /// Sends reported as not executed.
    pub not_executed: u64,
    /// Sends reported as in doubt.
    pub in_doubt: u64,
    /// Receives reported as failed.
    pub recv_failed: u64,
    /// Receives reported as not executed, at the end: no message came for them.
    pub recv_not_executed: u64,
    /// Receives reported as in doubt: a message may have come for them, and its completion was lost.
    pub recv_in_doubt: u64,
    /// Requests of both queues that the program cancelled in time, whatever became of them.
    pub cancelled: u64,
    /// Requests of both queues that missed deadlines of their own, whatever became of them.
    pub deadlines_passed: u64,
    /// Duration of the last recovery, from its first fault.
    pub last: Duration,
    /// Duration of the longest recovery.
    pub longest: Duration,
    /// Total duration of all recoveries.
    pub total: Duration,
}

impl Counters {
    /// Adds those of another link.
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
        for (sum, more) in [
            (&mut self.recovered, other.recovered),
            (&mut self.degraded, other.degraded),
            (&mut self.gave_up, other.gave_up),
            (&mut self.replayed, other.replayed),
            (&mut self.reposted, other.reposted),
            (&mut self.done, other.done),
            (&mut self.failed, other.failed),
            (&mut self.not_executed, other.not_executed),
            (&mut self.in_doubt, other.in_doubt),
            (&mut self.recv_failed, other.recv_failed),
            (&mut self.recv_not_executed, other.recv_not_executed),
            (&mut self.recv_in_doubt, other.recv_in_doubt),
            (&mut self.cancelled, other.cancelled),
            (&mut self.deadlines_passed, other.deadlines_passed),
        ] {
            *sum += more;
        }
        self.last = self.last.max(other.last);
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }

    pub(super) fn fault(&mut self, scope: Scope) {
        self.faults[usize::from(scope.number())] += 1;
    }

    /// Counts the outcome of a request of a failed connection.
    pub(super) fn outcome(&mut self, is_recv: bool, outcome: Outcome) {
        *match (is_recv, outcome) {
            (false, Outcome::Done) => &mut self.done,
            (false, Outcome::Failed(_)) => &mut self.failed,
            (false, Outcome::NotExecuted) => &mut self.not_executed,
            (false, Outcome::InDoubt(_)) => &mut self.in_doubt,
            (true, Outcome::Failed(_)) => &mut self.recv_failed,
            (true, Outcome::NotExecuted) => &mut self.recv_not_executed,
            (true, Outcome::InDoubt(_)) => &mut self.recv_in_doubt,
            // A consumed receive has its own completion, and counts as a request that succeeded.
            (true, Outcome::Done) => return,
        } += 1;
    }

    pub(super) fn ended(&mut self, end: End, took: Duration) {
        match end {
            End::Recovered => self.recovered += 1,
            End::Degraded(_) => {
                self.recovered += 1;
                self.degraded += 1;
            }
            End::GaveUp(_) => self.gave_up += 1,
        }
        self.last = took;
        self.longest = self.longest.max(took);
        self.total += took;
    }
}
