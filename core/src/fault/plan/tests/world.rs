//! A model of the queues that checks the legality of each step, and panics if a step is illegal.

use super::super::{End, Limits, Next, Plan, Setup, Step, StepResult};
use crate::fault::{EventType, Fault, Recovery, classify};
use core::time::Duration;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Qp {
    /// Connected, as far as this end knows.
    Live,
    Error,
    Reset,
    Init,
    Gone,
}

/// The number of kinds of faults, each of which may interrupt a pass once without counting as an attempt.
const FREE_PASSES: u32 = 7;

/// A plan, and the queues that it recovers.
pub struct World {
    pub plan: Plan,
    pub setup: Setup,
    pub limits: Limits,
    pub now: Duration,
    pub trace: Vec<Step>,
    current: Option<(Step, Duration)>,
    qp: Qp,
    cq: bool,
    open: bool,
    drained: bool,
    send_drained: bool,
    acked: bool,
    exchanged: bool,
    /// The peer has received the number of this queue pair.
    peer_knows: bool,
    reposted: bool,
    ready: bool,
    replayed: bool,
    closed: bool,
    pub port_down: bool,
    /// Faults that have not been recovered from yet.
    owed_cq: bool,
    owed_srq: bool,
    owed_qp: bool,
    owed_send: bool,
    /// The start of the current run, and the index of its first step in `trace`.
    started: Option<(Duration, usize)>,
}

impl World {
    pub fn new(setup: Setup, limits: Limits) -> Self {
        Self {
            plan: Plan::new(setup, limits),
            setup,
            limits,
            now: Duration::from_secs(1000),
            trace: Vec::new(),
            current: None,
            qp: Qp::Live,
            cq: true,
            open: true,
            drained: false,
            send_drained: false,
            acked: false,
            exchanged: false,
            peer_knows: true,
            reposted: false,
            ready: true,
            replayed: true,
            closed: false,
            port_down: false,
            owed_cq: false,
            owed_srq: false,
            owed_qp: false,
            owed_send: false,
            started: None,
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.owe(fault);
        self.plan.fault(fault, self.now);
    }

    /// Connects for the first time.
    pub fn connect(&mut self) {
        self.peer_knows = false;
        self.plan.connect(self.now);
    }

    fn owe(&mut self, fault: Fault) {
        match fault {
            Fault::Event(EventType::PortErr) => self.port_down = true,
            Fault::Event(EventType::PortActive) => self.port_down = false,
            _ => {}
        }
        match classify(fault).recovery {
            Recovery::RebuildCq => {
                self.owed_cq = true;
                self.owed_qp |= self.qp != Qp::Gone;
            }
            Recovery::RebuildSrq if self.setup.srq => {
                self.owed_srq = true;
                self.owed_qp |= self.qp != Qp::Gone;
            }
            // A late fault of a queue pair that is in RESET or destroyed.
            Recovery::ResetQp | Recovery::Reconnect => {
                self.owed_qp |= !matches!(self.qp, Qp::Reset | Qp::Gone);
            }
            Recovery::SqeToRts => self.owed_send |= self.qp == Qp::Live,
            _ => {}
        }
    }

    /// Asks the plan for the next step, and checks it against the state of the queues.
    pub fn next(&mut self) -> Next {
        let next = self.plan.next(self.now);
        let named = match next {
            Next::Step(step) => Some(step),
            _ => None,
        };
        if let Some((step, since)) = self.current
            && named != Some(step)
        {
            let expired = self.now - since >= self.limits.deadline(step);
            self.left(step, expired);
            self.current = None;
        }
        match next {
            Next::Step(step) => {
                if self.current.is_none() {
                    self.named(step);
                    self.current = Some((step, self.now));
                }
                let (start, from) = *self.started.get_or_insert((self.now, self.trace.len() - 1));
                self.in_time(start);
                let steps = self.trace.len() - from;
                let passes = 2 * self.limits.attempts + FREE_PASSES + 1;
                assert!(
                    steps <= passes as usize * Step::ALL.len(),
                    "{:?}",
                    self.trace
                );
            }
            Next::WaitUntil(time) => assert!(time > self.now),
            Next::Ended(end) => self.ended(end),
            Next::Idle => assert!(self.open && self.cq && self.started.is_none()),
        }
        next
    }

    pub fn done(&mut self, step: Step, result: StepResult) {
        if let StepResult::Done | StepResult::Changed = result {
            self.succeeded(step);
            self.current = None;
        } else if let StepResult::Failed(fault) = result {
            if !matches!(fault, Fault::Errno(_)) {
                self.owe(fault);
            }
            self.left(step, true);
            self.current = None;
        } else if let StepResult::PeerClosed = result {
            self.left(step, true);
            self.current = None;
        }
        self.plan.done(step, result, self.now);
    }

    /// Checks that a newly returned step is legal.
    fn named(&mut self, step: Step) {
        self.trace.push(step);
        let trace = &self.trace;
        let legal = match step {
            Step::StopPosting => !self.closed,
            Step::ToError => !self.open && !matches!(self.qp, Qp::Reset | Qp::Gone),
            Step::AwaitLastWqe => self.setup.srq && self.qp == Qp::Error,
            Step::Drain => self.qp == Qp::Error && !self.owed_cq,
            Step::DrainSend => !self.open && self.qp == Qp::Live,
            Step::AwaitTimewait => self.qp == Qp::Error,
            Step::AckEvents => !self.open,
            Step::Reset => {
                let stays = !(self.setup.new_qp_per_connection && self.peer_knows);
                self.qp == Qp::Error && self.drained && self.acked && !self.owed_cq && stays
            }
            Step::DestroyQp => {
                let srq_quiet = self.qp == Qp::Reset || self.drained || self.owed_cq;
                matches!(self.qp, Qp::Error | Qp::Reset) && self.acked && srq_quiet
            }
            Step::DestroyCq => self.qp == Qp::Gone && self.cq && self.acked,
            Step::RebuildSrq => self.qp == Qp::Gone && self.setup.srq,
            Step::CreateCq => !self.cq,
            Step::CreateQp => self.cq && self.qp == Qp::Gone && !self.owed_cq,
            Step::AwaitPort => self.port_down,
            Step::Resolve => !self.port_down,
            Step::Exchange => self.qp == Qp::Reset && self.setup.peer && !self.port_down,
            Step::Init => self.qp == Qp::Reset && (self.exchanged || !self.setup.peer),
            Step::RepostReceives => self.qp == Qp::Init && !self.owed_srq,
            Step::Connect => self.qp == Qp::Init && self.reposted,
            Step::Ready => self.qp == Qp::Live && self.setup.peer && self.exchanged,
            Step::ResumeSend => self.qp == Qp::Live && self.send_drained && !self.open,
            Step::Probe => self.qp == Qp::Live && !self.open && !self.port_down,
            Step::Replay => self.qp == Qp::Live && self.ready && !self.owed_send && !self.open,
            Step::Open => self.qp == Qp::Live && self.ready && self.replayed && !self.open,
            Step::LoadAlternatePath | Step::RejoinMulticast | Step::RefillSrq => {
                self.open && self.qp == Qp::Live
            }
            Step::Close => !self.open && self.acked,
            Step::ReportOutcomes => self.closed,
        };
        assert!(legal, "{step:?} of {:?}: {trace:?}", self.qp);
        match step {
            // Whether or not the step succeeds, these no longer hold.
            Step::ToError => (self.drained, self.acked, self.replayed) = (false, false, false),
            Step::Init => {
                self.qp = Qp::Init;
                (self.ready, self.reposted, self.replayed) = (!self.setup.peer, false, false);
            }
            Step::Exchange => self.peer_knows = true,
            Step::DrainSend => (self.send_drained, self.replayed) = (false, false),
            Step::Close => self.closed = true,
            _ => {}
        }
    }

    /// The plan left the step without the result that it was done; `for_good` if it failed or its deadline
    /// had passed.
    fn left(&mut self, step: Step, for_good: bool) {
        match step {
            Step::Drain => self.drained |= for_good,
            Step::DrainSend => self.send_drained |= for_good,
            // Giving up continues regardless.
            Step::StopPosting => self.open &= !for_good,
            Step::AckEvents => self.acked |= for_good,
            _ => {}
        }
    }

    fn succeeded(&mut self, step: Step) {
        match step {
            Step::StopPosting => self.open = false,
            Step::ToError => self.qp = Qp::Error,
            Step::Drain => self.drained = true,
            Step::DrainSend => self.send_drained = true,
            Step::AckEvents => self.acked = true,
            Step::Reset => self.quiet(Qp::Reset),
            Step::DestroyQp => self.quiet(Qp::Gone),
            Step::DestroyCq => self.cq = false,
            Step::CreateCq => (self.cq, self.owed_cq) = (true, false),
            Step::RebuildSrq => self.owed_srq = false,
            Step::CreateQp => (self.qp, self.peer_knows) = (Qp::Reset, false),
            Step::AwaitPort => self.port_down = false,
            Step::Exchange => self.exchanged = true,
            Step::RepostReceives => self.reposted = true,
            Step::Connect => self.qp = Qp::Live,
            Step::Ready => self.ready = true,
            Step::ResumeSend => self.owed_send = false,
            Step::Replay => self.replayed = true,
            Step::Open => self.open = true,
            _ => {}
        }
    }

    fn quiet(&mut self, qp: Qp) {
        self.qp = qp;
        (self.exchanged, self.owed_qp, self.owed_send) = (false, false, false);
    }

    fn in_time(&self, start: Duration) {
        let elapsed = self.now - start;
        assert!(
            elapsed <= self.limits.max_duration(),
            "{:?} {elapsed:?}",
            self.trace
        );
    }

    fn ended(&mut self, end: End) {
        let trace = &self.trace;
        if let Some((start, _)) = self.started.take() {
            self.in_time(start);
        }
        if let End::GaveUp(_) = end {
            assert!(
                self.closed && trace.last() == Some(&Step::ReportOutcomes),
                "{trace:?}"
            );
            return;
        }
        assert!(!self.closed, "{trace:?}");
        assert!(self.open && self.cq && self.qp == Qp::Live, "{trace:?}");
        assert!(self.ready && self.replayed, "{trace:?}");
        assert!(!self.owed_cq && !self.owed_srq, "{trace:?}");
        assert!(
            !self.owed_qp && !self.owed_send && !self.port_down,
            "{trace:?}"
        );
    }
}
