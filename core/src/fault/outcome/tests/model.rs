//! A small model of a reliable connection that executes its requests: each possible run is a path through the
//! model's states, and for few requests the tests visit all of them.

use super::super::status::Kind;
use super::super::{Consumed, Evidence, FirstFailure, Request, consumes_receive};
use crate::wr::{WcStatus, WrOpcode};
use std::vec::Vec;

/// The requests of one life of the connection, and the maximum number of outstanding READs and atomics that
/// the device respects.
#[derive(Clone, Debug)]
pub struct Posted {
    pub requests: Vec<Request>,
    pub read_depth: Option<u8>,
}

/// The state of the connection. Bits and indices are those of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// Requests that the requester's device has begun; local operations are executed when they begin.
    started: usize,
    /// The next request to arrive at the responder.
    arriving: usize,
    executed: u32,
    /// All requests below this index were completed by the requester's device.
    answered: usize,
    /// The responder refused this request, and executes no further ones.
    refused: Option<(usize, WcStatus)>,
    /// The requester's device found this request invalid, and begins no further ones.
    bad: Option<(usize, WcStatus)>,
    /// The requester's queue pair failed: the CQE of the first failure, if one was written.
    failed: Option<Option<(usize, WcStatus)>>,
}

/// The evidence that a run leaves.
#[derive(Clone, Debug)]
pub struct Known {
    pub evidence: Evidence,
    /// The index of the oldest request that the evidence does not report as completed.
    pub unresolved: usize,
}

impl Posted {
    /// Requests of these operations, each with or without FENCE; the connection is not new.
    pub fn new(operations: &[(WrOpcode, bool)], read_depth: Option<u8>) -> Self {
        let mut ordinal = 100;
        let requests = (0..)
            .zip(operations)
            .map(|(at, &(operation, fenced))| {
                let request = Request {
                    // Sequence numbers count blocks of the send queue, not requests.
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

    /// Every possible next state.
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

    /// The completions of the oldest request that has not completed, including none.
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
        for failure in [state.bad, state.refused] {
            if failure.is_some_and(|(of, _)| of == at) {
                fail(failure);
            }
        }
        if at == state.started {
            return;
        }
        if self.remote(at) {
            fail(Some((at, WcStatus::RetryExcErr)));
            fail(Some((at, WcStatus::GeneralErr)));
            // An invalid response proves nothing.
            fail(Some((at, WcStatus::BadRespErr)));
        }
        if state.executed & 1 << at != 0 {
            if self.kind(at).has_result() {
                fail(Some((at, WcStatus::LocProtErr)));
            }
            // A refused request is not acknowledged, whether executed or not.
            if state.refused.is_none_or(|(of, _)| of != at) {
                next.push(State {
                    answered: at + 1,
                    ..state.clone()
                });
            }
        }
    }

    /// A request arrives at the responder; this may also happen after the requester has failed.
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

    /// Whether neither end has failed.
    pub fn runs_well(&self, state: &State) -> bool {
        state.failed.is_none() && state.bad.is_none() && state.refused.is_none()
    }

    pub fn executed(&self, state: &State, at: usize) -> bool {
        state.executed & 1 << at != 0
    }

    /// Whether the requester has the response.
    pub fn answered(&self, state: &State, at: usize) -> bool {
        at < state.answered
    }

    /// All evidence that is possible if the run ends here: with completions lost at either end, or not.
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
                // The CQE with the cause is lost, a later one is not.
                for at in failed.map_or(state.answered, |(at, _)| at)..self.requests.len() {
                    push(completed, Some((at, WcStatus::WrFlushErr)), true);
                }
            }
        }
        known
    }
}
