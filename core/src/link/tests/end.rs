//! A model of one end's device, and of what its program posts. It checks each outcome against what was
//! executed.

use crate::fault::outcome::{Doubt, Evidence, Outcome, Replay, Request, Verdict, consumes_receive};
use crate::fault::plan::{End as RecoveryEnd, Limits, Setup};
use crate::fault::{EventType, Fault};
use crate::link::{Message, Protocol};
use crate::wr::WrOpcode;
use core::time::Duration;
use std::collections::VecDeque;
use std::vec::Vec;

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A request was reported twice.
    ReportedTwice,
    /// An outcome contradicts what the peer executed, or its count what was acknowledged.
    FalseOutcome,
    /// The peer executed a request twice.
    ExecutedTwice,
    /// The peer executed a request after it was reported.
    ExecutedAfterReport,
    /// A recovery, or a close, has not ended within its limits.
    TooLate,
    /// A step was to be taken out of its order.
    OutOfOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qp {
    Gone,
    Reset,
    Init,
    /// Connected with the queue pair that has this PSN.
    Connected(u32),
    Error,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    /// Index in [`End::requests`].
    pub id: usize,
    pub operation: WrOpcode,
    pub ordinal: u64,
    pub executed: bool,
}

/// What the program knows of a request, and what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    pub executed: u32,
    pub outcome: Option<Outcome>,
    /// The program has cancelled it.
    pub cancelled: bool,
}

/// A request under way to the peer: the PSN of its queue pair, and its place on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    pub psn: u32,
    pub place: usize,
    pub id: usize,
    pub operation: WrOpcode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub protocol: Protocol,
    pub qp: Qp,
    /// The PSN of the last queue pair that the peer was sent; no two of both ends are equal, and they grow.
    pub psn: u32,
    /// The PSN of the last queue pair that was connected.
    pub connected: u32,
    pub cq: bool,
    pub open: bool,
    pub port_up: bool,
    /// Requests on the present connection, or the last one: the first `acked` were acknowledged.
    pub sent: Vec<Sent>,
    /// The PSN of the queue pair that they are on.
    pub sent_psn: u32,
    pub acked: usize,
    /// The next one to transmit.
    pub next: usize,
    pub entries_lost: bool,
    /// Place of the request of the peer's that is to be executed next.
    pub expected: usize,
    pub consumed: u64,
    pub exact: bool,
    pub requests: Vec<Known>,
    /// Messages for this end.
    pub inbox: VecDeque<Message>,
    /// Nothing follows the messages in the inbox.
    pub cut: bool,
    pub packets: VecDeque<Packet>,
    /// When the present recovery, or the close, began.
    pub busy_since: Option<Duration>,
    /// When a closing link has to have ended.
    pub closed_by: Option<Duration>,
    /// How the last recovery ended.
    pub recovered: Option<RecoveryEnd>,
    /// The first thing that went wrong.
    pub violation: Option<Violation>,
}

impl End {
    /// `psn`: an earlier one than its first.
    pub fn new(limits: Limits, new_qp_per_connection: bool, psn: u32, now: Duration) -> Self {
        let setup = Setup {
            new_qp_per_connection,
            ..Setup::default()
        };
        let mut protocol = Protocol::new(setup, limits);
        protocol.connect(now);
        Self {
            protocol,
            qp: Qp::Init,
            psn,
            connected: 0,
            cq: true,
            open: false,
            port_up: true,
            sent: Vec::new(),
            sent_psn: 0,
            acked: 0,
            next: 0,
            entries_lost: false,
            expected: 0,
            consumed: 0,
            exact: true,
            requests: Vec::new(),
            inbox: VecDeque::new(),
            cut: false,
            packets: VecDeque::new(),
            busy_since: None,
            closed_by: None,
            recovered: None,
            violation: None,
        }
    }

    pub fn must(&mut self, holds: bool, otherwise: Violation) {
        if !holds {
            self.violation.get_or_insert(otherwise);
        }
    }

    pub fn works(&self) -> bool {
        self.open && !self.protocol.busy() && self.protocol.ended().is_none()
    }

    pub fn post(&mut self, operation: WrOpcode) {
        if self.works() {
            self.requests.push(Known::default());
            self.push(self.requests.len() - 1, operation);
        }
    }

    pub fn push(&mut self, id: usize, operation: WrOpcode) {
        let consuming = |sent: &&Sent| consumes_receive(sent.operation);
        self.sent.push(Sent {
            id,
            operation,
            ordinal: self.sent.iter().filter(consuming).count() as u64,
            executed: false,
        });
    }

    /// Takes the queue pair to ERR by itself, as a device does.
    pub fn fails(&mut self, fault: Fault, now: Duration) {
        if !matches!(self.qp, Qp::Reset | Qp::Gone) {
            self.qp = Qp::Error;
        }
        self.protocol.fault(fault, now);
    }

    /// The completion queue loses what it has, and up to so many receives that it had not passed on.
    pub fn loses_cq(&mut self, receives: u64, now: Duration) {
        self.consumed -= receives.min(self.consumed);
        self.exact = false;
        self.entries_lost = true;
        self.fails(Fault::Event(EventType::CqErr), now);
    }

    pub fn report(&mut self, id: usize, outcome: Outcome) {
        let Known {
            executed,
            outcome: earlier,
            ..
        } = self.requests[id];
        self.must(earlier.is_none(), Violation::ReportedTwice);
        let is_true = match outcome {
            Outcome::Done => executed == 1,
            Outcome::NotExecuted => executed == 0,
            _ => true,
        };
        self.must(is_true, Violation::FalseOutcome);
        self.requests[id].outcome = Some(outcome);
    }

    /// The request that is not acknowledged, and that the program has not cancelled: the oldest one.
    pub fn may_cancel(&self) -> Option<usize> {
        let in_flight = self.sent.get(self.acked..)?;
        let mut ids = in_flight.iter().map(|sent| sent.id);
        ids.find(|id| !self.requests[*id].cancelled)
    }

    /// Whether a request on a connection that works has to be taken back.
    pub fn takes_back(&self) -> bool {
        let in_flight = self.sent.get(self.acked..).unwrap_or_default();
        matches!(self.qp, Qp::Connected(_))
            && !self.protocol.recovering()
            && in_flight
                .iter()
                .any(|sent| self.requests[sent.id].cancelled)
    }

    /// Determines the outcomes of what is in flight; returns the requests to post again.
    pub fn settle(&mut self, policy: Replay) -> Vec<(usize, WrOpcode)> {
        let in_flight = self.sent.split_off(self.acked);
        let asked: Vec<_> = (0..)
            .zip(&in_flight)
            .map(|(sequence, sent)| Request {
                sequence,
                ordinal: sent.ordinal,
                operation: sent.operation,
                fenced: false,
            })
            .collect();
        let evidence = Evidence {
            completed: 0,
            failed: None,
            entries_lost: self.entries_lost,
            consumed: self.protocol.consumed(),
            read_depth: None,
        };
        let verdict = Verdict::new(&evidence, asked.iter().copied());
        let possible = asked.is_empty() || !verdict.contradicted();
        self.must(possible, Violation::FalseOutcome);
        let mut again = Vec::new();
        for (sent, request) in in_flight.iter().zip(&asked) {
            let cancelled = self.requests[sent.id].cancelled;
            if !cancelled && verdict.replays(request, policy) {
                self.must(!sent.executed, Violation::ExecutedTwice);
                again.push((sent.id, sent.operation));
            } else {
                let outcome = verdict.of(request);
                let outcome = match cancelled {
                    true => outcome.taken_back(Doubt::Cancelled),
                    false => outcome,
                };
                self.report(sent.id, outcome);
            }
        }
        (self.sent, self.acked, self.next) = (Vec::new(), 0, 0);
        self.entries_lost = false;
        again
    }

    /// Whether the acknowledgement of an executed request is under way.
    pub fn acknowledgement(&self) -> bool {
        matches!(self.qp, Qp::Connected(_))
            && self.sent_psn == self.psn
            && self.sent.get(self.acked).is_some_and(|sent| sent.executed)
    }

    /// All requests that were executed are acknowledged.
    pub fn acknowledge(&mut self) {
        while self.acknowledgement() {
            self.report(self.sent[self.acked].id, Outcome::Done);
            self.acked += 1;
        }
    }
}
