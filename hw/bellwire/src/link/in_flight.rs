//! Send requests whose queue pair failed before their outcome was reported.

use super::cancel::Taking;
use super::completion::LinkCompletion;
use super::monitor::Published;
use bellwire_core::fault::outcome::{
    Consumed, Doubt, Evidence, FirstFailure, Outcome, Replay, Request, Verdict, consumes_receive,
};
use bellwire_core::slab::Block;
use bellwire_core::wr::{WcStatus, WrOpcode};
use std::collections::VecDeque;
use std::time::Duration;

/// The record of a request that was posted again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    /// When a connection first failed under it.
    pub since: Duration,
    /// It may have been executed: later failures do not change that.
    pub doubt: Option<Doubt>,
}

/// A send request, with everything that is needed to post it again.
#[derive(Debug)]
pub(super) struct Pending {
    pub wr_id: u64,
    pub block: Option<Block<'static>>,
    pub operation: WrOpcode,
    pub fenced: bool,
    pub policy: Replay,
    /// Set if it was posted again.
    pub before: Option<Again>,
    /// Status of its own reported; `None` if there was none.
    pub status: Option<WcStatus>,
    /// Whether the device was notified of it.
    pub rung: bool,
    /// Whether and when it is taken back.
    pub taking: Taking,
    /// Its entry in the ring, as it was.
    pub entry: Vec<u8>,
}

impl Pending {
    pub fn consumes(&self) -> bool {
        consumes_receive(self.operation)
    }

    pub fn completion(self, outcome: Outcome) -> LinkCompletion {
        let doubt = self.before.and_then(|before| before.doubt);
        let outcome = match (outcome, doubt) {
            (Outcome::NotExecuted | Outcome::Failed(_), Some(doubt)) => Outcome::InDoubt(doubt),
            _ => outcome,
        };
        let outcome = match self.taking.why {
            Some(why) => outcome.taken_back(why),
            None => outcome,
        };
        LinkCompletion {
            wr_id: self.wr_id,
            opcode: self.operation.completes_as(),
            outcome,
            retired: 1,
            block: self.block,
            success: None,
        }
    }
}

/// The requests of one connection that were outstanding when it failed, oldest first. All requests
/// before them were executed and reported.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub requests: VecDeque<Pending>,
    /// READs and atomics that the queue pair keeps outstanding, at most.
    pub read_depth: Option<u8>,
    /// The local port went down meanwhile.
    pub port_failed: bool,
    /// Number of requests posted on the connection that consume a receive.
    pub consuming: u64,
    /// Not everything that was posted has completed: completions were lost.
    pub entries_lost: bool,
}

impl InFlight {
    /// Stops replay of requests that are taken back, and of requests under which connections have failed for
    /// `limit` or longer. Counts deadlines that have passed.
    pub fn expire(&mut self, now: Duration, limit: Duration, published: &Published) {
        for pending in &mut self.requests {
            let since = pending.before.map_or(now, |before| before.since);
            if pending.taking.is_due(now, published) || now.saturating_sub(since) >= limit {
                pending.policy = Replay::Surface;
            }
        }
    }

    /// Determines the outcome of each request, and reports it, or keeps it to be posted again.
    pub fn resolve(
        &mut self,
        consumed: Consumed,
        mut report: impl FnMut(LinkCompletion),
        mut again: impl FnMut(Pending, Outcome),
    ) {
        let requests = &mut self.requests;
        let consuming = requests.iter().filter(|pending| pending.consumes()).count();
        let first = self.consuming.saturating_sub(consuming as u64);
        // Numbers the requests: no list is made of them, because there may be no memory for it.
        let asked = |(sequence, ordinal): &mut (u64, u64), pending: &Pending| {
            let request = Request {
                sequence: *sequence,
                ordinal: *ordinal,
                operation: pending.operation,
                fenced: pending.fenced,
            };
            *sequence += 1;
            *ordinal += u64::from(pending.consumes());
            request
        };
        let rung = requests.iter().take_while(|pending| pending.rung).count();
        let failed = (0..).zip(&*requests).find_map(|(sequence, pending)| {
            let status = pending.status?;
            // Without a route rxe fails every send with this status, again and again: it says nothing
            // about the request.
            let no_route = self.port_failed && status == WcStatus::LocQpOpErr;
            let status = if no_route {
                WcStatus::RetryExcErr
            } else {
                status
            };
            Some(FirstFailure { sequence, status })
        });
        let evidence = Evidence {
            completed: 0,
            failed: failed.filter(|failed| (failed.sequence as usize) < rung),
            entries_lost: self.entries_lost,
            consumed,
            read_depth: self.read_depth,
        };
        let of_the_device = requests.iter().take(rung);
        let numbered = of_the_device.scan((0, first), |at, pending| Some(asked(at, pending)));
        let verdict = Verdict::new(&evidence, numbered);
        let mut numbers = (0, first);
        for at in 0.. {
            let Some(pending) = requests.pop_front() else {
                break;
            };
            let request = asked(&mut numbers, &pending);
            let (outcome, replays) = if at < rung {
                let replays = verdict.replays(&request, pending.policy);
                (verdict.of(&request), replays)
            } else {
                // The device was never notified of it.
                (Outcome::NotExecuted, pending.policy != Replay::Surface)
            };
            if replays {
                again(pending, outcome);
            } else {
                report(pending.completion(outcome));
            }
        }
        // Requests posted from here on are on another connection.
        *self = Self {
            requests: std::mem::take(requests),
            read_depth: self.read_depth,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(wr_id: u64, operation: WrOpcode, policy: Replay) -> Pending {
        Pending {
            wr_id,
            block: None,
            operation,
            fenced: false,
            policy,
            before: None,
            status: Some(WcStatus::WrFlushErr),
            rung: true,
            taking: Taking::default(),
            entry: Vec::new(),
        }
    }

    fn resolved(in_flight: &mut InFlight, consumed: Consumed) -> (Vec<(u64, Outcome)>, Vec<u64>) {
        let (mut reported, mut again) = (Vec::new(), Vec::new());
        in_flight.resolve(
            consumed,
            |completion| reported.push((completion.wr_id, completion.outcome)),
            |pending, _| again.push(pending.wr_id),
        );
        assert!(in_flight.requests.is_empty());
        (reported, again)
    }

    /// Ten SENDs were reported, then: SEND, WRITE, SEND, WRITE, SEND; the peer has received twelve.
    #[test]
    fn the_count_divides_them() {
        let mut in_flight = InFlight {
            consuming: 13,
            ..InFlight::default()
        };
        for wr_id in 0..5 {
            let operation = [WrOpcode::Send, WrOpcode::RdmaWrite][wr_id as usize % 2];
            in_flight
                .requests
                .push_back(pending(wr_id, operation, Replay::IfSafe));
        }
        let (reported, again) = resolved(&mut in_flight, Consumed::Exactly(12));
        let doubt = Outcome::InDoubt(Doubt::NoAnswer);
        let expected = [
            (0, Outcome::Done),
            (1, Outcome::Done),
            (2, Outcome::Done),
            (3, doubt),
        ];
        assert_eq!(
            (reported.as_slice(), again.as_slice()),
            (&expected[..], &[4][..])
        );
    }

    /// Five READs of which two may be outstanding: as long as the first has no response the third is not
    /// started.
    #[test]
    fn no_more_reads_are_begun_than_may_be_outstanding() {
        let mut in_flight = InFlight {
            read_depth: Some(2),
            ..InFlight::default()
        };
        let reads = (0..5).map(|wr_id| pending(wr_id, WrOpcode::RdmaRead, Replay::Surface));
        in_flight.requests.extend(reads);
        let (reported, _) = resolved(&mut in_flight, Consumed::Exactly(0));
        let doubt = (0..2).map(|wr_id| (wr_id, Outcome::InDoubt(Doubt::NoAnswer)));
        let not = (2..5).map(|wr_id| (wr_id, Outcome::NotExecuted));
        assert_eq!(reported, doubt.chain(not).collect::<Vec<_>>());
    }

    /// A WRITE, a SEND, a WRITE; the first failed with `LOC_QP_OP_ERR`.
    #[test]
    fn without_a_port_a_malformed_request_may_be_none() {
        let failed = |port_failed| {
            let mut in_flight = InFlight {
                consuming: 1,
                port_failed,
                ..InFlight::default()
            };
            let operations = [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaWrite];
            for (wr_id, operation) in (0..).zip(operations) {
                in_flight
                    .requests
                    .push_back(pending(wr_id, operation, Replay::Anyway));
            }
            in_flight.requests[0].status = Some(WcStatus::LocQpOpErr);
            let first = resolved(&mut in_flight, Consumed::Exactly(0));
            assert!(!in_flight.port_failed, "of this connection only");
            first
        };
        let refused = (0, Outcome::Failed(WcStatus::LocQpOpErr));
        assert_eq!(failed(false), (vec![refused], vec![1, 2]));
        assert_eq!(failed(true), (vec![], vec![0, 1, 2]));
    }

    #[test]
    fn what_was_not_rung_was_not_executed_whatever_the_peer_says() {
        for consumed in [
            Consumed::Unknown,
            Consumed::Exactly(2),
            Consumed::AtLeast(0),
        ] {
            let mut in_flight = InFlight {
                consuming: 2,
                ..InFlight::default()
            };
            for (wr_id, policy) in [(0, Replay::Surface), (1, Replay::Anyway)] {
                in_flight.requests.push_back(Pending {
                    rung: false,
                    ..pending(wr_id, WrOpcode::Send, policy)
                });
            }
            let expected = (vec![(0, Outcome::NotExecuted)], vec![1]);
            assert_eq!(resolved(&mut in_flight, consumed), expected);
        }
    }

    #[test]
    fn a_doubt_outlasts_the_failure_of_what_was_posted_again() {
        let mut in_flight = InFlight::default();
        for (wr_id, doubt) in [(0, None), (1, Some(Doubt::NoAnswer))] {
            let since = Duration::ZERO;
            let before = Some(Again { since, doubt });
            in_flight.requests.push_back(Pending {
                rung: false,
                before,
                ..pending(wr_id, WrOpcode::RdmaWrite, Replay::Surface)
            });
        }
        let (reported, _) = resolved(&mut in_flight, Consumed::Exactly(0));
        let doubt = Outcome::InDoubt(Doubt::NoAnswer);
        assert_eq!(reported, [(0, Outcome::NotExecuted), (1, doubt)]);
    }
}
