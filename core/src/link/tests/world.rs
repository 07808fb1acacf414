//! Two ends of the protocol with their devices, and what carries requests and messages between them.

use super::super::{Action, ConnInfo, Endpoint, LinkEnd, LocalInfo};
use super::end::{End, Packet, Qp, Sent};
use crate::fault::outcome::{Outcome, Replay, consumes_receive};
use crate::fault::plan::{Limits, Step, StepResult};
use crate::fault::{Errno, Fault, WcStatus, WorkQueue};
use crate::random::Random;
use crate::wr::QpType;
use core::time::Duration;

/// No request reached the peer, on any retry.
const RETRY: Fault = Fault::Status {
    status: WcStatus::RetryExcErr,
    transport: QpType::Rc,
    queue: WorkQueue::Send(None),
    vendor: None,
};

pub struct World {
    pub ends: [End; 2],
    pub now: Duration,
    pub random: Random,
    limits: Limits,
    new_qp_per_connection: bool,
    last_psn: u32,
    /// Steps may fail or take time, and acknowledgements may be lost.
    pub chaos: bool,
    /// One message in so many is lost.
    pub loss: Option<usize>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let now = Duration::from_secs(100);
        let new_qp_per_connection = random.below(2) == 0;
        let limits = Limits::default();
        let ends =
            [0, 1].map(|seed| End::new(Limits { seed, ..limits }, new_qp_per_connection, now));
        Self {
            ends,
            now,
            random,
            limits,
            new_qp_per_connection,
            last_psn: 0,
            chaos: true,
            loss: None,
        }
    }

    /// Another process takes the place of an end, on the same exchange.
    pub fn restart(&mut self, at: usize) {
        let end = End::new(self.limits, self.new_qp_per_connection, self.now);
        let cut = self.ends[at].cut;
        self.ends[at] = End {
            cut,
            connected: u32::MAX,
            ..end
        };
    }

    pub fn close(&mut self, at: usize, within: Duration) {
        let (now, end) = (self.now, &mut self.ends[at]);
        if end.protocol.ended().is_none() && !end.protocol.closing() {
            end.protocol.close(now + within);
            end.closed_by = Some(now + within + self.limits.drain + self.limits.step);
        }
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.random.below(many) == 0
    }

    /// Receives messages, and does one thing that the protocol asks for. Returns `false` if it waits.
    pub fn drive(&mut self, at: usize) -> bool {
        let (now, most) = (self.now, self.random.below(3));
        let end = &mut self.ends[at];
        for _ in 0..if self.chaos { most } else { usize::MAX } {
            match end.inbox.pop_front() {
                Some(message) => _ = end.protocol.receive(message),
                None if end.cut => {
                    end.protocol.lost(false);
                    break;
                }
                None => break,
            }
        }
        if let Some(fault) = end.protocol.peer_fault() {
            end.protocol.fault(fault, now);
        }
        let action = end.protocol.next(now);
        match action {
            Action::Wait => {}
            Action::Step(step) => {
                let result = self.carry_out(at, step);
                self.ends[at].protocol.done(step, result, now);
                self.check_time(at);
                return result != StepResult::Pending;
            }
            Action::Describe => self.describe(at),
            Action::Send(message) => {
                let lost = self.loss.is_some_and(|many| self.one_in(many));
                let [peer, end] = match at {
                    0 => [1, 0],
                    _ => [0, 1],
                };
                if self.ends[end].cut {
                    self.ends[end].protocol.lost(false);
                } else if !lost {
                    self.ends[peer].inbox.push_back(message);
                }
            }
            Action::Ended(how) => {
                end.ends.push(how);
                end.busy_since = None;
            }
        }
        self.check_time(at);
        action != Action::Wait
    }

    /// Within its limits a recovery has ended.
    fn check_time(&mut self, at: usize) {
        let (now, end) = (self.now, &mut self.ends[at]);
        if !end.protocol.busy() {
            end.busy_since = None;
            return;
        }
        let since = *end.busy_since.get_or_insert(now);
        let end_by = end.closed_by.unwrap_or(since + self.limits.max_duration());
        assert!(now <= end_by, "since {since:?}, now {now:?}: {end:?}");
    }

    fn describe(&mut self, at: usize) {
        if self.chaos && self.one_in(50) {
            let failed = StepResult::Failed(Fault::Errno(Errno::Enomem as i32));
            return self.ends[at]
                .protocol
                .done(Step::Exchange, failed, self.now);
        }
        self.last_psn += 1;
        let end = &mut self.ends[at];
        assert_eq!(end.qp, Qp::Reset, "the count is final");
        end.psn = self.last_psn;
        let endpoint = Endpoint {
            qp_num: 1,
            psn: end.psn,
            ..Endpoint::default()
        };
        end.protocol.described(LocalInfo {
            conn: ConnInfo {
                endpoint,
                ..ConnInfo::default()
            },
            consumed: end.consumed,
            exact: end.exact,
        });
    }

    fn carry_out(&mut self, at: usize, step: Step) -> StepResult {
        if self.chaos
            && !matches!(
                step,
                Step::StopPosting | Step::Open | Step::Replay | Step::ReportOutcomes
            )
        {
            match self.random.below(100) {
                0..10 => return StepResult::Pending,
                10 if step != Step::DestroyQp && step != Step::Close => {
                    return StepResult::Failed(Fault::Errno(Errno::Enomem as i32));
                }
                _ => {}
            }
        }
        let now = self.now;
        let changed = self.chaos && self.one_in(4);
        let [first, second] = &mut self.ends;
        let (end, peer) = match at {
            0 => (first, second),
            _ => (second, first),
        };
        match step {
            Step::StopPosting => end.open = false,
            Step::ToError if matches!(end.qp, Qp::Reset | Qp::Gone) => {}
            Step::ToError => end.qp = Qp::Error,
            Step::Reset => end.qp = Qp::Reset,
            Step::DestroyQp => end.qp = Qp::Gone,
            Step::DestroyCq => end.cq = false,
            Step::CreateCq => end.cq = true,
            Step::CreateQp => {
                assert!(end.cq && end.qp == Qp::Gone);
                end.qp = Qp::Reset;
            }
            Step::AwaitPort if !end.port_up => return StepResult::Pending,
            Step::Resolve if changed => return StepResult::Changed,
            Step::Init => end.qp = Qp::Init,
            Step::Connect => {
                assert_eq!(end.qp, Qp::Init);
                let theirs = end.protocol.peer_info().expect("exchanged before");
                end.qp = Qp::Connected(theirs.conn.endpoint.psn);
                end.connected = end.psn;
                (end.expected, end.consumed, end.exact) = (0, 0, true);
            }
            Step::Probe => {
                if end.qp != Qp::Connected(peer.psn) || peer.qp != Qp::Connected(end.psn) {
                    end.fails(RETRY, now);
                    return StepResult::Failed(RETRY);
                }
                return match end.acked == end.sent.len() {
                    true => StepResult::Done,
                    false => StepResult::Pending,
                };
            }
            Step::Replay => {
                let theirs = end.protocol.peer_info().expect("exchanged before");
                assert!(peer.connected >= theirs.conn.endpoint.psn, "not ready");
                let again = end.settle(Replay::IfSafe);
                end.sent_psn = end.psn;
                for (id, operation) in again {
                    end.push(id, operation);
                }
            }
            Step::Open => end.open = true,
            Step::Close => (end.qp, end.open) = (Qp::Gone, false),
            Step::ReportOutcomes => assert!(end.settle(Replay::Surface).is_empty()),
            Step::Exchange | Step::Ready => panic!("the protocol's own"),
            _ => {}
        }
        StepResult::Done
    }

    /// Moves a request to the peer, or executes one there. Returns `false` if there is none.
    pub fn transfer(&mut self, at: usize) -> bool {
        let ack_lost = self.chaos && self.one_in(8);
        let wait = self.chaos && self.one_in(2);
        let [first, second] = &mut self.ends;
        let (end, peer) = match at {
            0 => (first, second),
            _ => (second, first),
        };
        let settled = end.sent_psn == end.psn;
        if matches!(end.qp, Qp::Connected(_)) && settled && end.next < end.sent.len() {
            let Sent { id, operation, .. } = end.sent[end.next];
            end.packets.push_back(Packet {
                psn: end.psn,
                place: end.next,
                id,
                operation,
            });
            end.next += 1;
            if wait {
                return true;
            }
        }
        let Some(packet) = end.packets.pop_front() else {
            return false;
        };
        let Packet { psn, place, .. } = packet;
        // A packet of an earlier connection finds nobody.
        if peer.qp != Qp::Connected(psn) || peer.expected != place {
            if psn == end.psn && matches!(end.qp, Qp::Connected(_)) {
                end.fails(RETRY, self.now);
            }
            return true;
        }
        // The queue pair may have been reset since, but no other connection was made: the peer would know. The
        // requests may have been reported, if this end has ended.
        assert_eq!(psn, end.sent_psn, "an old packet on a new connection");
        peer.expected += 1;
        peer.consumed += u64::from(consumes_receive(packet.operation));
        let known = &mut end.requests[packet.id];
        known.executed += 1;
        assert_eq!(known.executed, 1, "executed twice");
        assert_ne!(known.outcome, Some(Outcome::NotExecuted));
        if let Some(sent) = end.sent.get_mut(place) {
            sent.executed = true;
        }
        if matches!(end.qp, Qp::Connected(_)) && end.psn == psn {
            match ack_lost {
                true => end.fails(RETRY, self.now),
                false => end.ack(place),
            }
        }
        true
    }

    /// Lets both ends do what they can until they wait, again and again as time passes, until nothing is left
    /// to do.
    pub fn settle(&mut self) {
        self.chaos = false;
        for _ in 0..100_000 {
            let busy = [0, 1].map(|at| self.drive(at) | self.transfer(at));
            if busy != [false; 2] {
                continue;
            }
            let pending = self.ends.iter().any(|end| end.protocol.busy());
            let deadlines = self.ends.iter().filter_map(|end| end.protocol.deadline());
            match deadlines.min() {
                Some(deadline) if pending => self.now = self.now.max(deadline),
                _ if pending => panic!("it waits for ever: {:?}", self.ends),
                _ => return,
            }
        }
        panic!("it does not end: {:?}", self.ends);
    }

    /// Has both ends do what they can without waiting.
    pub fn drive_both(&mut self) {
        for at in [0, 1] {
            while self.drive(at) {}
        }
    }

    /// Lets a part of the time until the next deadline pass.
    pub fn pass_time(&mut self) {
        let deadlines = self.ends.iter().filter_map(|end| end.protocol.deadline());
        if let Some(deadline) = deadlines.min() {
            let left = deadline.saturating_sub(self.now);
            self.now += left * (self.random.next() % 17) as u32 / 16;
        }
    }

    /// Both ends work on the same connection, or both have ended.
    pub fn check_agreement(&self) {
        let [a, b] = &self.ends;
        let ended = [a, b].map(|end| end.protocol.ended().is_some());
        if ended == [false; 2] {
            assert!(a.works() && b.works(), "{a:?} {b:?}");
            assert_eq!(a.protocol.epoch(), b.protocol.epoch(), "{a:?} {b:?}");
            let connected = a.qp == Qp::Connected(b.psn) && b.qp == Qp::Connected(a.psn);
            assert!(connected, "{a:?} {b:?}");
        } else {
            assert_eq!(ended, [true; 2], "{a:?} {b:?}");
        }
    }

    /// Every request was reported.
    pub fn check_outcomes(&self) {
        for end in &self.ends {
            let unreported = end.requests.iter().filter(|known| known.outcome.is_none());
            assert_eq!(unreported.count(), 0, "{end:?}");
        }
    }

    pub fn ended(&self) -> [Option<LinkEnd>; 2] {
        [0, 1].map(|at| self.ends[at].protocol.ended())
    }
}
