//! Send requests whose queue pair failed before they were told.

use super::told::Told;
use bellwire_core::fault::outcome::{
    Consumed, Doubt, Evidence, FirstFailure, Outcome, Replay, Request, Verdict, consumes_receive,
};
use bellwire_core::slab::Block;
use bellwire_core::wr::{WcStatus, WrOpcode};
use std::collections::VecDeque;

/// A send request, with all that it takes to post it again.
#[derive(Debug)]
pub(super) struct Pending {
    pub wr_id: u64,
    pub block: Option<Block<'static>>,
    pub operation: WrOpcode,
    pub fenced: bool,
    pub policy: Replay,
    /// It was posted again though it may have been executed: no later failure takes that back.
    pub before: Option<Doubt>,
    /// Its own completion's; `None`: none came.
    pub status: Option<WcStatus>,
    /// Whether the device was told of it.
    pub rung: bool,
    /// Its entry in the ring, as it was.
    pub entry: Vec<u8>,
}

impl Pending {
    pub fn consumes(&self) -> bool {
        consumes_receive(self.operation)
    }

    pub fn told(self, outcome: Outcome) -> Told {
        let outcome = match (outcome, self.before) {
            (Outcome::NotExecuted | Outcome::Failed(_), Some(doubt)) => Outcome::InDoubt(doubt),
            _ => outcome,
        };
        Told {
            wr_id: self.wr_id,
            opcode: self.operation.completes_as(),
            outcome,
            retired: 1,
            block: self.block,
            success: None,
        }
    }
}

/// The requests of one connection that were not told when it failed, oldest first. Everything before
/// them was executed and told.
#[derive(Debug, Default)]
pub(super) struct Limbo {
    pub requests: VecDeque<Pending>,
    /// READs and atomics that the queue pair keeps outstanding at the most.
    pub read_depth: Option<u8>,
    /// The own port went down meanwhile.
    pub port_failed: bool,
    /// Requests that consume a receive, of all that were posted on the connection.
    pub consuming: u64,
    /// Not everything that was posted has completed: completions are missing.
    pub entries_lost: bool,
}

impl Limbo {
    /// What became of each: it is told, or kept to be posted again.
    pub fn resolve(
        &mut self,
        consumed: Consumed,
        mut tell: impl FnMut(Told),
        mut again: impl FnMut(Pending, Outcome),
    ) {
        let requests = std::mem::take(&mut self.requests);
        let consuming = requests.iter().filter(|pending| pending.consumes()).count();
        let mut ordinal = self.consuming.saturating_sub(consuming as u64);
        let mut asked = Vec::with_capacity(requests.len());
        for (sequence, pending) in (0..).zip(&requests) {
            asked.push(Request {
                sequence,
                ordinal,
                operation: pending.operation,
                fenced: pending.fenced,
            });
            ordinal += u64::from(pending.consumes());
        }
        let rung = requests.iter().take_while(|pending| pending.rung).count();
        let failed = (0..).zip(&requests).find_map(|(sequence, pending)| {
            let status = pending.status?;
            // Without a route rxe fails whatever it would send so, also again: nothing is said of the
            // request.
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
        let verdict = Verdict::new(&evidence, asked[..rung].iter().copied());
        for (at, (pending, request)) in requests.into_iter().zip(&asked).enumerate() {
            let (outcome, replays) = if at < rung {
                let replays = verdict.replays(request, pending.policy);
                (verdict.of(request), replays)
            } else {
                // It never left this process.
                (Outcome::NotExecuted, pending.policy != Replay::Surface)
            };
            if replays {
                again(pending, outcome);
            } else {
                tell(pending.told(outcome));
            }
        }
        // What is posted from here on is on another connection.
        *self = Self {
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
            entry: Vec::new(),
        }
    }

    fn resolved(limbo: &mut Limbo, consumed: Consumed) -> (Vec<(u64, Outcome)>, Vec<u64>) {
        let (mut told, mut again) = (Vec::new(), Vec::new());
        limbo.resolve(
            consumed,
            |tell| told.push((tell.wr_id, tell.outcome)),
            |pending, _| again.push(pending.wr_id),
        );
        assert!(limbo.requests.is_empty());
        (told, again)
    }

    /// Ten SENDs were told, then: SEND, WRITE, SEND, WRITE, SEND; the peer has had twelve.
    #[test]
    fn the_count_divides_them() {
        let mut limbo = Limbo {
            consuming: 13,
            ..Limbo::default()
        };
        for wr_id in 0..5 {
            let operation = [WrOpcode::Send, WrOpcode::RdmaWrite][wr_id as usize % 2];
            limbo
                .requests
                .push_back(pending(wr_id, operation, Replay::IfSafe));
        }
        let (told, again) = resolved(&mut limbo, Consumed::Exactly(12));
        let doubt = Outcome::InDoubt(Doubt::NoAnswer);
        let expected = [
            (0, Outcome::Done),
            (1, Outcome::Done),
            (2, Outcome::Done),
            (3, doubt),
        ];
        assert_eq!(
            (told.as_slice(), again.as_slice()),
            (&expected[..], &[4][..])
        );
    }

    /// Five READs of which two may be outstanding: when the first was not answered the third was not
    /// begun.
    #[test]
    fn no_more_reads_are_begun_than_may_be_outstanding() {
        let mut limbo = Limbo {
            read_depth: Some(2),
            ..Limbo::default()
        };
        let reads = (0..5).map(|wr_id| pending(wr_id, WrOpcode::RdmaRead, Replay::Surface));
        limbo.requests.extend(reads);
        let (told, _) = resolved(&mut limbo, Consumed::Exactly(0));
        let doubt = (0..2).map(|wr_id| (wr_id, Outcome::InDoubt(Doubt::NoAnswer)));
        let not = (2..5).map(|wr_id| (wr_id, Outcome::NotExecuted));
        assert_eq!(told, doubt.chain(not).collect::<Vec<_>>());
    }

    /// A WRITE, a SEND, a WRITE; the first failed as malformed.
    #[test]
    fn without_a_port_a_malformed_request_may_be_none() {
        let failed = |port_failed| {
            let mut limbo = Limbo {
                consuming: 1,
                port_failed,
                ..Limbo::default()
            };
            let operations = [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaWrite];
            for (wr_id, operation) in (0..).zip(operations) {
                limbo
                    .requests
                    .push_back(pending(wr_id, operation, Replay::Anyway));
            }
            limbo.requests[0].status = Some(WcStatus::LocQpOpErr);
            let first = resolved(&mut limbo, Consumed::Exactly(0));
            assert!(!limbo.port_failed, "of this connection only");
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
            let mut limbo = Limbo {
                consuming: 2,
                ..Limbo::default()
            };
            for (wr_id, policy) in [(0, Replay::Surface), (1, Replay::Anyway)] {
                limbo.requests.push_back(Pending {
                    rung: false,
                    ..pending(wr_id, WrOpcode::Send, policy)
                });
            }
            let expected = (vec![(0, Outcome::NotExecuted)], vec![1]);
            assert_eq!(resolved(&mut limbo, consumed), expected);
        }
    }

    #[test]
    fn a_doubt_outlasts_the_failure_of_what_was_posted_again() {
        let mut limbo = Limbo::default();
        for (wr_id, before) in [(0, None), (1, Some(Doubt::NoAnswer))] {
            limbo.requests.push_back(Pending {
                rung: false,
                before,
                ..pending(wr_id, WrOpcode::RdmaWrite, Replay::Surface)
            });
        }
        let (told, _) = resolved(&mut limbo, Consumed::Exactly(0));
        let doubt = Outcome::InDoubt(Doubt::NoAnswer);
        assert_eq!(told, [(0, Outcome::NotExecuted), (1, doubt)]);
    }
}
