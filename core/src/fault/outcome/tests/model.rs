//! A reliable connection in the small, that executes what it is asked to: every way in which it can
//! go is a path through its states.

use super::super::status::Kind;
use super::super::{Consumed, Evidence, FirstFailure, Request, consumes_receive};
use crate::wr::{WcStatus, WrOpcode};
use std::vec::Vec;

/// The requests of one life, and the depth of READs that the device holds to.
#[derive(Clone, Debug)]
pub struct Posted {
    pub requests: Vec<Request>,
    pub read_depth: Option<u8>,
}

/// Where the connection stands. Bits and indices are of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// Begun by the requester's device; local operations are done when they begin.
    started: usize,
    /// The next that reaches the responder.
    arriving: usize,
    executed: u32,
    /// Completed by the requester's device, all below.
    answered: usize,
    /// The responder refused this one, and executes nothing more.
    refused: Option<(usize, WcStatus)>,
    /// The requester's device found this one bad, and begins nothing more.
    bad: Option<(usize, WcStatus)>,
    /// The requester's queue pair failed: the entry of the first failure, if one was written.
    failed: Option<Option<(usize, WcStatus)>>,
}

/// How it came out, and what is known of it.
#[derive(Clone, Debug)]
pub struct Known {
    pub evidence: Evidence,
    /// The request's place in the connection.
    pub unresolved: usize,
}

impl Posted {
    /// From operations, with FENCE or without; the connection is not new.
    pub fn new(operations: &[(WrOpcode, bool)], read_depth: Option<u8>) -> Self {
        let mut ordinal = 100;
        let requests = (0..)
            .zip(operations)
            .map(|(at, &(operation, fenced))| {
                let request = Request {
                    // Numbers of blocks, not of requests.
                    sequence: 1000 + 3 * at,
                    ordinal,
                    operation,
                    fenced,
                };
                ordinal += u64::from(consumes_receive(operation));
                request
            })
            .collect();
        Self {
            requests,
            read_depth,
        }
    }

    fn kind(&self, at: usize) -> Kind {
        Kind::of(self.requests[at].operation)
    }

    fn remote(&self, at: usize) -> bool {
        !matches!(self.kind(at), Kind::Nothing | Kind::Local)
    }

    fn sequence(&self, at: usize) -> u64 {
        let last = self.requests.last().map_or(0, |r| r.sequence);
        self.requests.get(at).map_or(last + 3, |r| r.sequence)
    }

    /// Every state that may come next.
    pub fn successors(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        if state.failed.is_none() {
            self.begin(state, &mut next);
            self.answer(state, &mut next);
        }
        self.arrive(state, &mut next);
        next
    }

    fn begin(&self, state: &State, next: &mut Vec<State>) {
        let at = state.started;
        if at == self.requests.len() || state.bad.is_some() {
            return;
        }
        let waiting = (state.answered..at)
            .filter(|&before| self.kind(before).has_result())
            .count();
        let full = self.kind(at).has_result()
            && self.read_depth.is_some_and(|depth| waiting >= depth.into());
        if self.requests[at].fenced && waiting > 0 || full {
            return;
        }
        let mut begun = State {
            started: at + 1,
            ..state.clone()
        };
        if !self.remote(at) {
            begun.executed |= 1 << at;
        }
        next.push(begun);
        let reasons = match self.kind(at) {
            Kind::Local => [WcStatus::MwBindErr, WcStatus::LocQpOpErr],
            _ => [WcStatus::LocProtErr, WcStatus::LocQpOpErr],
        };
        next.extend(reasons.map(|status| State {
            bad: Some((at, status)),
            ..state.clone()
        }));
    }

    /// What the requester hears, or does not, of the oldest request that has not completed.
    fn answer(&self, state: &State, next: &mut Vec<State>) {
        let at = state.answered;
        let mut fail = |failed| {
            next.push(State {
                failed: Some(failed),
                ..state.clone()
            });
        };
        // The program takes the queue pair to ERR, or an event does.
        fail(None);
        if at == self.requests.len() {
            return;
        }
        fail(Some((at, WcStatus::WrFlushErr)));
        for told in [state.bad, state.refused] {
            if told.is_some_and(|(of, _)| of == at) {
                fail(told);
            }
        }
        if at == state.started {
            return;
        }
        if self.remote(at) {
            fail(Some((at, WcStatus::RetryExcErr)));
            fail(Some((at, WcStatus::GeneralErr)));
            // Nonsense proves nothing.
            fail(Some((at, WcStatus::BadRespErr)));
        }
        if state.executed & 1 << at != 0 {
            if self.kind(at).has_result() {
                fail(Some((at, WcStatus::LocProtErr)));
            }
            // A refused request is not acknowledged, executed or not.
            if state.refused.is_none_or(|(of, _)| of != at) {
                next.push(State {
                    answered: at + 1,
                    ..state.clone()
                });
            }
        }
    }

    /// What reaches the responder, also while the requester has failed and does not know it yet.
    fn arrive(&self, state: &State, next: &mut Vec<State>) {
        let at = state.arriving;
        if at == state.started || state.refused.is_some() {
            return;
        }
        let arrived = State {
            arriving: at + 1,
            ..state.clone()
        };
        if !self.remote(at) {
            next.push(arrived);
            return;
        }
        let executed = State {
            executed: state.executed | 1 << at,
            ..arrived.clone()
        };
        let refuse = |state: &State, status| State {
            refused: Some((at, status)),
            ..state.clone()
        };
        next.push(refuse(&arrived, WcStatus::RemAccessErr));
        next.push(refuse(&arrived, WcStatus::RemOpErr));
        next.push(refuse(&executed, WcStatus::RemOpErr));
        if self.kind(at) != Kind::Write {
            next.push(refuse(&arrived, WcStatus::RnrRetryExcErr));
        }
        next.push(executed);
    }

    /// Neither end has failed.
    pub fn runs_well(&self, state: &State) -> bool {
        state.failed.is_none() && state.bad.is_none() && state.refused.is_none()
    }

    pub fn executed(&self, state: &State, at: usize) -> bool {
        state.executed & 1 << at != 0
    }

    /// Whether the requester has what comes back.
    pub fn answered(&self, state: &State, at: usize) -> bool {
        at < state.answered
    }

    /// Everything that may be known when it ends here: with completions lost at either end, or not.
    pub fn known(&self, state: &State) -> Vec<Known> {
        let Some(failed) = state.failed else {
            return Vec::new();
        };
        let consumed = (0..self.requests.len())
            .filter(|&at| self.kind(at) == Kind::Consuming && self.executed(state, at))
            .count() as u64;
        let first = self.requests.first().map_or(0, |r| r.ordinal);
        let counts = [Consumed::Exactly(first + consumed), Consumed::Unknown]
            .into_iter()
            .chain((0..=consumed).map(|count| Consumed::AtLeast(first + count)));
        let mut known = Vec::new();
        for consumed in counts {
            let mut push = |completed, failed: Option<(usize, WcStatus)>, entries_lost| {
                known.push(Known {
                    evidence: Evidence {
                        completed: self.sequence(completed),
                        failed: failed.map(|(at, status)| FirstFailure {
                            sequence: self.sequence(at),
                            status,
                        }),
                        entries_lost,
                        consumed,
                        read_depth: self.read_depth,
                    },
                    unresolved: completed,
                });
            };
            push(state.answered, failed, false);
            for completed in 0..=state.answered {
                push(completed, None, true);
                push(completed, failed, true);
                // The entry that says why is lost, one behind it is not.
                for at in failed.map_or(state.answered, |(at, _)| at)..self.requests.len() {
                    push(completed, Some((at, WcStatus::WrFlushErr)), true);
                }
            }
        }
        known
    }
}
