//! A model of one end's device, and of what its program posts. It checks each outcome against what was
//! executed.

use super::super::{Message, Protocol};
use crate::fault::outcome::{Evidence, Outcome, Replay, Request, Verdict, consumes_receive};
use crate::fault::plan::{End as RecoveryEnd, Limits};
use crate::fault::{EventType, Fault};
use crate::random::Random;
use crate::wr::WrOpcode;
use core::time::Duration;
use std::collections::VecDeque;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qp {
    Gone,
    Reset,
    Init,
    /// Connected with the queue pair that has this PSN.
    Connected(u32),
    Error,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Index in [`End::requests`].
    pub id: usize,
    pub operation: WrOpcode,
    pub ordinal: u64,
    pub executed: bool,
}

/// What the program knows of a request, and what happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub executed: u32,
    pub outcome: Option<Outcome>,
}

/// A request under way to the peer: the PSN of its queue pair, and its place on the connection.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub psn: u32,
    pub place: usize,
    pub id: usize,
    pub operation: WrOpcode,
}

#[derive(Debug)]
pub struct End {
    pub protocol: Protocol,
    pub qp: Qp,
    pub psn: u32,
    /// The PSN of the last queue pair that was connected; they grow.
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
    pub ends: Vec<RecoveryEnd>,
}

impl End {
    pub fn new(limits: Limits, new_qp_per_connection: bool, now: Duration) -> Self {
        let mut protocol = Protocol::new(new_qp_per_connection, limits);
        protocol.connect(now);
        Self {
            protocol,
            qp: Qp::Init,
            psn: 0,
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
            ends: Vec::new(),
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

    /// The completion queue loses what it has, and some of what it had not passed on.
    pub fn loses_cq(&mut self, random: &mut Random, now: Duration) {
        self.consumed -= (random.next() % 3).min(self.consumed);
        self.exact = false;
        self.entries_lost = true;
        self.fails(Fault::Event(EventType::CqErr), now);
    }

    pub fn report(&mut self, id: usize, outcome: Outcome) {
        let known = &mut self.requests[id];
        assert_eq!(known.outcome, None, "reported twice");
        match outcome {
            Outcome::Done => assert_eq!(known.executed, 1),
            Outcome::NotExecuted => assert_eq!(known.executed, 0),
            _ => {}
        }
        known.outcome = Some(outcome);
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
        assert!(asked.is_empty() || !verdict.contradicted(), "{self:?}");
        let mut again = Vec::new();
        for (sent, request) in in_flight.iter().zip(&asked) {
            if verdict.replays(request, policy) {
                assert!(!sent.executed, "executed twice");
                again.push((sent.id, sent.operation));
            } else {
                self.report(sent.id, verdict.of(request));
            }
        }
        (self.sent, self.acked, self.next) = (Vec::new(), 0, 0);
        self.entries_lost = false;
        again
    }

    pub fn ack(&mut self, place: usize) {
        while self.acked <= place {
            self.report(self.sent[self.acked].id, Outcome::Done);
            self.acked += 1;
        }
    }
}
