//! Two ends of the protocol with their devices, and what carries requests and messages between them.
//! Nothing here is left to chance: whoever drives it decides what happens, and when.

use super::end::{End, Packet, Qp, Sent, Violation};
use crate::fault::outcome::{Doubt, Outcome, Replay, consumes_receive};
use crate::fault::plan::{Limits, Step, StepResult};
use crate::fault::{Errno, Fault, WcStatus, WorkQueue};
use crate::link::{Action, ConnInfo, Endpoint, LinkEnd, LocalInfo, PeerLoss};
use crate::wr::QpType;
use core::time::Duration;

/// No request reached the peer, on any retry.
pub const RETRY: Fault = Fault::Status {
    status: WcStatus::RetryExcErr,
    transport: QpType::Rc,
    queue: WorkQueue::Send(None),
    vendor: None,
};

/// What disturbs an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disturbance {
    /// A step takes time.
    Pending,
    /// A step fails.
    Failed,
    /// Looking up the addresses finds others.
    Changed,
    /// A message is lost.
    Lost,
}

/// What became of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The end waits: for time, a message, or its device.
    Waits,
    /// It has done something.
    Acted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub ends: [End; 2],
    pub now: Duration,
    limits: Limits,
    new_qp_per_connection: bool,
}

impl World {
    pub fn new(limits: Limits, new_qp_per_connection: bool) -> Self {
        let now = Duration::from_secs(100);
        let ends = [0, 1].map(|at| {
            let limits = Limits {
                seed: at.into(),
                ..limits
            };
            End::new(limits, new_qp_per_connection, at, now)
        });
        Self {
            ends,
            now,
            limits,
            new_qp_per_connection,
        }
    }

    /// Another process takes the place of an end, on the same exchange.
    pub fn restart(&mut self, at: usize) {
        let End { cut, psn, .. } = self.ends[at];
        let end = End::new(self.limits, self.new_qp_per_connection, psn, self.now);
        self.ends[at] = End {
            cut,
            connected: u32::MAX,
            ..end
        };
    }

    /// The program cancels the oldest request that it may. `reports`: it is reported at once, which is wrong.
    pub fn cancel(&mut self, at: usize, reports: bool) {
        let end = &mut self.ends[at];
        let Some(id) = end.may_cancel() else {
            return;
        };
        end.requests[id].cancelled = true;
        if reports {
            end.report(id, Outcome::InDoubt(Doubt::Cancelled));
        }
    }

    pub fn close(&mut self, at: usize, within: Duration) {
        let (now, end) = (self.now, &mut self.ends[at]);
        if end.protocol.ended().is_none() && !end.protocol.closing() {
            end.protocol.close(now + within);
            end.closed_by = Some(now + within + self.limits.drain + self.limits.step);
        }
    }

    /// The end `at`, and its peer.
    fn both(&mut self, at: usize) -> (&mut End, &mut End) {
        let [first, second] = &mut self.ends;
        match at {
            0 => (first, second),
            _ => (second, first),
        }
    }

    /// Takes in the next message, or that none will come any more. Returns `false` if there is none.
    pub fn receive(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        match end.inbox.pop_front() {
            Some(message) => _ = end.protocol.receive(message),
            None => {
                if end.cut && !end.protocol.peer_gone() {
                    end.protocol.lost(PeerLoss::Unreachable);
                    return true;
                }
                return false;
            }
        }
        true
    }

    /// Does one thing that the protocol asks for.
    pub fn act(&mut self, at: usize, disturbance: Option<Disturbance>) -> Progress {
        let (now, end) = (self.now, &mut self.ends[at]);
        if let Some(fault) = end.protocol.peer_fault() {
            end.protocol.fault(fault, now);
        }
        if end.takes_back() {
            end.protocol.fault(Fault::Cancelled, now);
        }
        let action = end.protocol.next(now);
        let mut progress = Progress::Acted;
        match action {
            Action::Wait => progress = Progress::Waits,
            Action::Step(step) => {
                let result = disturbed(step, disturbance);
                let result = result.unwrap_or_else(|| self.carry_out(at, step));
                self.ends[at].protocol.done(step, result, now);
                if result == StepResult::Pending {
                    progress = Progress::Waits;
                }
            }
            Action::Describe if disturbance == Some(Disturbance::Failed) => {
                end.protocol.done(Step::Exchange, OUT_OF_MEMORY, now);
            }
            Action::Describe => self.describe(at),
            Action::Send(message) => {
                if self.ends[at].cut {
                    // What the peer sent before, and then that nothing follows.
                    while self.receive(at) {}
                } else if disturbance != Some(Disturbance::Lost) {
                    self.ends[1 - at].inbox.push_back(message);
                }
            }
            Action::Ended(how) => {
                end.recovered = Some(how);
                end.busy_since = None;
            }
        }
        self.check_time(at);
        progress
    }

    /// Within its limits a recovery has ended.
    pub fn check_time(&mut self, at: usize) {
        let (now, end) = (self.now, &mut self.ends[at]);
        if !end.protocol.busy() {
            end.busy_since = None;
            return;
        }
        let since = *end.busy_since.get_or_insert(now);
        let end_by = end.closed_by.unwrap_or(since + self.limits.max_duration());
        end.must(now <= end_by, Violation::TooLate);
    }

    fn describe(&mut self, at: usize) {
        let end = &mut self.ends[at];
        // The count is final.
        end.must(end.qp == Qp::Reset, Violation::OutOfOrder);
        end.psn += 2;
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
        let now = self.now;
        let (end, peer) = self.both(at);
        match step {
            Step::StopPosting => end.open = false,
            Step::ToError if matches!(end.qp, Qp::Reset | Qp::Gone) => {}
            Step::ToError => end.qp = Qp::Error,
            Step::Reset => end.qp = Qp::Reset,
            Step::DestroyQp => end.qp = Qp::Gone,
            Step::DestroyCq => end.cq = false,
            Step::CreateCq => end.cq = true,
            Step::CreateQp => {
                end.must(end.cq && end.qp == Qp::Gone, Violation::OutOfOrder);
                end.qp = Qp::Reset;
            }
            Step::AwaitPort if !end.port_up => return StepResult::Pending,
            Step::Init => end.qp = Qp::Init,
            Step::Connect => {
                end.must(end.qp == Qp::Init, Violation::OutOfOrder);
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
                let ready = peer.connected >= theirs.conn.endpoint.psn;
                end.must(ready, Violation::OutOfOrder);
                let again = end.settle(Replay::IfSafe);
                end.sent_psn = end.psn;
                for (id, operation) in again {
                    end.push(id, operation);
                }
            }
            Step::Open => end.open = true,
            Step::Close => (end.qp, end.open) = (Qp::Gone, false),
            Step::ReportOutcomes => _ = end.settle(Replay::Surface),
            Step::Exchange | Step::Ready => panic!("the protocol's own"),
            _ => {}
        }
        StepResult::Done
    }

    /// The device transmits the next request. Returns `false` if there is none.
    pub fn transmit(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let may = matches!(end.qp, Qp::Connected(_)) && end.sent_psn == end.psn;
        let Some(&Sent { id, operation, .. }) = end.sent.get(end.next).filter(|_| may) else {
            return false;
        };
        end.packets.push_back(Packet {
            psn: end.psn,
            place: end.next,
            id,
            operation,
        });
        end.next += 1;
        true
    }

    /// A request of the end `at` reaches the peer, which executes it. Returns `false` if none is under way.
    pub fn execute(&mut self, at: usize) -> bool {
        let now = self.now;
        let (end, peer) = self.both(at);
        let Some(packet) = end.packets.pop_front() else {
            return false;
        };
        let Packet { psn, place, .. } = packet;
        // A packet of an earlier connection finds nobody.
        if peer.qp != Qp::Connected(psn) || peer.expected != place {
            if psn == end.psn && matches!(end.qp, Qp::Connected(_)) {
                end.fails(RETRY, now);
            }
            return true;
        }
        // The queue pair may have been reset since, but no other connection was made: the peer would know. The
        // requests may have been reported, if this end has ended.
        end.must(psn == end.sent_psn, Violation::OutOfOrder);
        peer.expected += 1;
        peer.consumed += u64::from(consumes_receive(packet.operation));
        let known = &mut end.requests[packet.id];
        known.executed += 1;
        let (once, reported) = (known.executed == 1, known.outcome);
        end.must(once, Violation::ExecutedTwice);
        end.must(
            reported != Some(Outcome::NotExecuted),
            Violation::FalseOutcome,
        );
        // Of a peer that is gone nobody knows when it stops.
        let unknown = matches!(reported, None | Some(Outcome::InDoubt(Doubt::PeerGone)));
        end.must(unknown, Violation::ExecutedAfterReport);
        if let Some(sent) = end.sent.get_mut(place) {
            sent.executed = true;
        }
        true
    }

    /// When the next deadline of either end is.
    pub fn deadline(&self) -> Option<Duration> {
        let deadlines = self.ends.iter().filter_map(|end| end.protocol.deadline());
        deadlines.min()
    }

    /// Both ends work on the same connection, or both have ended.
    pub fn agrees(&self) -> bool {
        let [a, b] = &self.ends;
        match self.ended() {
            [None, None] => {
                a.works()
                    && b.works()
                    && a.protocol.epoch() == b.protocol.epoch()
                    && a.qp == Qp::Connected(b.psn)
                    && b.qp == Qp::Connected(a.psn)
            }
            ended => ended.iter().all(Option::is_some),
        }
    }

    /// Every request was reported.
    pub fn all_reported(&self) -> bool {
        let mut requests = self.ends.iter().flat_map(|end| &end.requests);
        requests.all(|known| known.outcome.is_some())
    }

    pub fn ended(&self) -> [Option<LinkEnd>; 2] {
        [0, 1].map(|at| self.ends[at].protocol.ended())
    }

    pub fn violation(&self) -> Option<Violation> {
        self.ends.iter().find_map(|end| end.violation)
    }
}

const OUT_OF_MEMORY: StepResult = StepResult::Failed(Fault::Errno(Errno::Enomem as i32));

/// The result of a step that is disturbed.
fn disturbed(step: Step, disturbance: Option<Disturbance>) -> Option<StepResult> {
    let certain = matches!(
        step,
        Step::StopPosting | Step::Open | Step::Replay | Step::ReportOutcomes
    );
    match disturbance? {
        Disturbance::Pending if !certain => Some(StepResult::Pending),
        Disturbance::Failed if !certain && step != Step::DestroyQp && step != Step::Close => {
            Some(OUT_OF_MEMORY)
        }
        Disturbance::Changed if step == Step::Resolve => Some(StepResult::Changed),
        _ => None,
    }
}
