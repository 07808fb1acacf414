//! The state machine.
//!
//! The steps have one order, and a set of bits says which of them are still to be taken. The set follows from
//! what the faults so far need and from which queues exist: the queue pairs live, in RESET or destroyed, the
//! completion queue present or not. So a further fault is merged by adding its needs and computing the set
//! again.

use super::needs::{Needs, QpIs, Queues};
use super::step::Steps;
use super::{End, EndReason, Limits, Next, Setup, Step, StepResult};
use crate::fault::{Blame, CmEvent, EventType, Fault, Recovery, classify};
use core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Running,
    /// The end, which [`Plan::next`] returns once.
    Ended(End),
    GivingUp(EndReason),
    GivenUp(EndReason),
}

/// A recovery, step by step. See the [module](super).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    setup: Setup,
    limits: Limits,
    random: u64,
    phase: Phase,
    todo: Steps,
    /// When [`next`](Plan::next) was first called in this run or, after giving up, since then.
    since: Option<Duration>,
    /// The step that was returned last, and when it was first returned.
    current: Option<(Step, Duration)>,
    /// The program has attempted the current step at least once.
    pending: bool,
    /// End of the delay before the next attempt.
    not_before: Option<Duration>,
    needs: Needs,
    /// All that this run has needed so far.
    ever: Needs,
    /// Needs that came too late for this run, for the next one.
    later: Needs,
    queues: Queues,
    attempts: u32,
    side_tries: u32,
    /// The number of runs that followed the previous one too soon.
    relapses: u32,
    recovered_at: Option<Duration>,
    degraded: Option<EndReason>,
    /// The reason for the current further attempt.
    failed: Option<EndReason>,
    last: Fault,
    /// The fault that the current run began with, or the last one if none is under way.
    first: Option<Fault>,
}

impl Plan {
    /// A plan for working queue pairs.
    pub fn new(setup: Setup, limits: Limits) -> Self {
        Self {
            setup,
            limits,
            random: limits.seed,
            phase: Phase::Idle,
            todo: Steps::default(),
            since: None,
            current: None,
            pending: false,
            not_before: None,
            needs: Needs::empty(),
            ever: Needs::empty(),
            later: Needs::empty(),
            queues: Queues::WORKING,
            attempts: 1,
            side_tries: 0,
            relapses: 0,
            recovered_at: None,
            degraded: None,
            failed: None,
            last: Fault::PeerRecovery,
            first: None,
        }
    }

    /// The fault that the current run began with, or the last one if none is under way: what follows from it
    /// never replaces it. `None` for a first connection.
    pub fn first(&self) -> Option<Fault> {
        self.first
    }

    /// Whether there is a step to take or an end to report.
    pub fn running(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::GivenUp(_)) || !self.later.is_empty()
    }

    /// The number of the current attempt in this run, counted from one.
    pub fn attempt(&self) -> u32 {
        self.attempts
    }

    /// The latest time at which [`next`](Self::next) changes its result if no fault occurs: the time until
    /// which the caller may sleep.
    pub fn deadline(&self) -> Option<Duration> {
        let next = match (self.not_before, self.current) {
            (Some(time), _) => time,
            (None, Some((step, since))) => self.step_ends(step, since),
            (None, None) => return None,
        };
        Some(self.run_ends().map_or(next, |end| end.min(next)))
    }

    /// The latest time at which the run, or giving it up, ends.
    fn run_ends(&self) -> Option<Duration> {
        Some(self.since?.saturating_add(self.run_limit()))
    }

    fn run_limit(&self) -> Duration {
        match self.phase {
            Phase::GivingUp(_) => self.limits.step,
            _ => self.limits.recovery,
        }
    }

    /// Reports a fault. Faults that need no recovery, or only steps that are still ahead, change nothing; nor
    /// does any fault after the recovery was given up.
    pub fn fault(&mut self, fault: Fault, now: Duration) {
        if matches!(self.phase, Phase::GivingUp(_) | Phase::GivenUp(_)) {
            return;
        }
        match fault {
            Fault::Event(EventType::PortErr) => self.queues.port_down = true,
            Fault::Event(EventType::PortActive) => self.queues.port_down = false,
            Fault::Event(EventType::QpLastWqeReached) => self.queues.last_wqe = true,
            Fault::Cm(CmEvent::Disconnected) => self.queues.timewait = true,
            Fault::Cm(CmEvent::TimewaitExit) => self.queues.timewait = false,
            // The peer is there and waits for this end, or is not waited for.
            _ if fault.is_of_peer() => self.not_before = None,
            _ => {}
        }
        let recovery = classify(fault).recovery;
        if closes(recovery) {
            if self.phase == Phase::Idle {
                self.first = Some(fault);
            }
            return self.give_up(EndReason::Fault(fault));
        }
        let needs = Needs::of(recovery, self.setup);
        if needs.is_empty() {
            return;
        }
        self.last = fault;
        match self.phase {
            Phase::Running => self.merge(needs, now),
            Phase::Idle => {
                self.first = Some(fault);
                self.begin(needs, now);
            }
            // The end is returned first.
            _ => self.later |= needs,
        }
    }

    /// Begins a recovery like [`fault`](Self::fault), for queue pairs that are to be connected for the first
    /// time: the peer does not know them yet.
    pub fn connect(&mut self, now: Duration) {
        self.queues.peer_knows = false;
        self.fault(Fault::PeerRecovery, now);
        self.first = None;
    }

    /// Returns what to do now.
    pub fn next(&mut self, now: Duration) -> Next {
        loop {
            match self.phase {
                Phase::Idle if self.later.is_empty() => return Next::Idle,
                Phase::Idle => {
                    let needs = core::mem::replace(&mut self.later, Needs::empty());
                    self.first = Some(self.last);
                    self.begin(needs, now);
                }
                Phase::Ended(end) => {
                    self.phase = Phase::Idle;
                    return Next::Ended(end);
                }
                Phase::GivenUp(why) => return Next::Ended(End::GaveUp(why)),
                Phase::Running | Phase::GivingUp(_) => {}
            }
            let since = *self.since.get_or_insert(now);
            let end = since.saturating_add(self.run_limit());
            if self.phase == Phase::Running && self.is_past(end, since, now) {
                self.expire(now);
                continue;
            }
            match self.not_before {
                Some(time) if now < time => return Next::WaitUntil(time.min(end)),
                _ => self.not_before = None,
            }
            match self.current.or_else(|| self.name(now)) {
                None => self.end(now),
                Some((step, _)) if self.queues.is_over(step) => self.finish(step, false, now),
                Some((step, since)) if self.is_past(self.step_ends(step, since), since, now) => {
                    self.stumble(step, EndReason::TimedOut(step), now);
                }
                Some((step, _)) => return Next::Step(step),
            }
        }
    }

    /// Whether the deadline `end` of what began at `since` has passed, and at least one attempt was made: a
    /// limit may be zero.
    fn is_past(&self, end: Duration, since: Duration, now: Duration) -> bool {
        now >= end && (since < now || self.pending)
    }

    /// The deadline of a step that was first returned at `since`.
    fn step_ends(&self, step: Step, since: Duration) -> Duration {
        let end = since.saturating_add(self.limits.deadline(step));
        self.run_ends().map_or(end, |run| end.min(run))
    }

    /// Reports the result of the step that [`next`](Self::next) returned last. The result of any other step
    /// is late and ignored.
    pub fn done(&mut self, step: Step, result: StepResult, now: Duration) {
        if self.current.is_none_or(|(current, _)| current != step) {
            return;
        }
        match result {
            StepResult::Pending => self.pending = true,
            StepResult::Done => self.finish(step, false, now),
            StepResult::Changed => self.finish(step, step == Step::Resolve, now),
            StepResult::PeerClosed => self.peer_left(step, EndReason::PeerClosed, now),
            StepResult::PeerLost => self.peer_left(step, EndReason::PeerLost, now),
            StepResult::PeerRestarted => self.peer_left(step, EndReason::PeerRestarted, now),
            StepResult::PeerGaveUp(named) => {
                self.peer_left(step, EndReason::PeerGaveUp(named), now);
            }
            StepResult::Failed(fault) => {
                // An error number concerns only the step, unless it means that the device is gone.
                if !matches!(fault, Fault::Errno(_)) || closes(classify(fault).recovery) {
                    self.fault(fault, now);
                }
                // `fault` may have replaced the current step.
                if self.current.is_some_and(|(current, _)| current == step) {
                    self.stumble(step, EndReason::Failed(step, fault), now);
                }
            }
        }
    }

    fn peer_left(&mut self, step: Step, why: EndReason, now: Duration) {
        match self.phase {
            Phase::GivingUp(_) => self.finish(step, false, now),
            _ => self.give_up(why),
        }
    }

    /// Why it was given up, or is being given up.
    pub(crate) fn gives_up(&self) -> Option<EndReason> {
        match self.phase {
            Phase::GivingUp(why) | Phase::GivenUp(why) => Some(why),
            _ => None,
        }
    }

    /// Starts a run.
    fn begin(&mut self, needs: Needs, now: Duration) {
        self.phase = Phase::Running;
        self.since = None;
        self.pending = false;
        self.failed = None;
        self.attempts = 1;
        self.side_tries = 0;
        self.degraded = None;
        self.needs = Needs::empty();
        self.ever = Needs::empty();
        self.free_pass(needs, now);
    }

    /// Adds the needs of a fault to the current run.
    fn merge(&mut self, needs: Needs, now: Duration) {
        let again = self.ever.contains(needs);
        let current = self.current.map(|(step, _)| step);
        let ahead = |step| self.todo.has(step) && current != Some(step);
        let covered = match needs {
            needs if Needs::SIDE.contains(needs) => {
                let step = needs.side_step();
                if !ahead(step) {
                    if again {
                        self.later |= needs;
                    } else {
                        self.want(needs);
                        self.todo.add(&[step]);
                    }
                }
                return;
            }
            Needs::RESOLVE => {
                let settled = self.needs.intersects(Needs::BREAK) && !self.before_connect();
                if !ahead(Step::Resolve) {
                    if again || settled {
                        self.later |= needs;
                    } else {
                        self.free_pass(needs, now);
                    }
                }
                return;
            }
            Needs::SEND if !self.needs.intersects(Needs::BREAK) => self.todo.has(Step::ResumeSend),
            needs if needs.contains(Needs::PORT) => self.todo.has(Step::AwaitPort),
            needs if needs.intersects(Needs::REBUILD) => {
                self.needs.contains(needs & Needs::REBUILD)
            }
            _ if self.last.is_of_peer() && self.setup.peer => {
                self.will_quiesce() || self.todo.has(Step::Exchange)
            }
            // The connection that is being made failed, not the queue pair.
            _ if matches!(self.last, Fault::Cm(_)) => {
                self.will_quiesce() || self.before_connect() && current != Some(Step::Exchange)
            }
            _ => self.before_connect(),
        };
        match (covered, again) {
            (true, _) => {}
            (false, false) => self.free_pass(needs, now),
            (false, true) => {
                self.want(needs);
                self.again(
                    EndReason::FaultsKeepComing(self.last),
                    !self.last.is_of_peer(),
                    now,
                );
            }
        }
    }

    /// Whether the queue pairs are in RESET or destroyed, or will be: nothing of their present life lasts.
    fn before_connect(&self) -> bool {
        self.queues.qp != QpIs::Live || self.will_quiesce()
    }

    fn will_quiesce(&self) -> bool {
        self.todo.has(Step::Reset) || self.todo.has(Step::DestroyQp)
    }

    /// Whether messages of the peer are used later in this run, or not any more: they are no faults.
    pub(crate) fn will_exchange(&self) -> bool {
        match self.phase {
            Phase::Running => self.will_quiesce() || self.todo.has(Step::Exchange),
            Phase::GivingUp(_) | Phase::GivenUp(_) => true,
            Phase::Idle | Phase::Ended(_) => false,
        }
    }

    fn want(&mut self, needs: Needs) {
        self.needs |= needs;
        self.ever |= needs;
    }

    /// A pass that the first fault of a new kind needs. It does not count as an attempt.
    fn free_pass(&mut self, needs: Needs, now: Duration) {
        let breaks = Needs::BREAK | Needs::SEND;
        let first_break = needs.intersects(breaks) && !self.ever.intersects(breaks);
        self.want(needs);
        if first_break {
            let settled = self
                .recovered_at
                .is_none_or(|time| now.saturating_sub(time) >= self.limits.settle);
            if settled {
                self.relapses = 0;
            } else if !is_of_program(self.last) {
                self.relapses += 1;
                if self.relapses >= self.limits.attempts.max(1) {
                    return self.give_up(EndReason::FaultsKeepComing(self.last));
                }
                self.delay(self.relapses + 1, now);
            }
        }
        self.restart();
    }

    /// Begins the next attempt, if any is left.
    fn again(&mut self, why: EndReason, delayed: bool, now: Duration) {
        self.attempts += 1;
        if self.attempts > self.limits.attempts {
            return self.give_up(why);
        }
        self.failed = Some(why);
        if delayed {
            self.delay(self.attempts, now);
        }
        self.restart();
    }

    fn delay(&mut self, attempt: u32, now: Duration) {
        // A Weyl sequence and a multiplication are enough to keep the two ends from retrying in step.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.not_before = Some(now.saturating_add(self.limits.backoff(attempt, mixed >> 32)));
    }

    fn restart(&mut self) {
        self.todo = self.queues.steps(self.needs, self.setup);
        self.current = None;
    }

    /// Selects the first step to take.
    fn name(&mut self, now: Duration) -> Option<(Step, Duration)> {
        let step = self.todo.first()?;
        self.queues.named(step);
        self.pending = false;
        self.current = Some((step, now));
        self.current
    }

    fn finish(&mut self, step: Step, changed: bool, now: Duration) {
        self.todo.remove(step);
        self.current = None;
        self.queues.finished(step);
        self.needs.remove(Needs::met_by(step));
        if changed && !self.before_connect() {
            self.merge(Needs::RESET, now);
        }
    }

    /// A step failed, or did not end in time.
    fn stumble(&mut self, step: Step, why: EndReason, now: Duration) {
        if matches!(self.phase, Phase::GivingUp(_)) {
            return self.finish(step, false, now);
        }
        match step {
            // Waiting longer gives no further information.
            Step::Drain | Step::DrainSend | Step::AwaitLastWqe | Step::AwaitTimewait
            // This step cannot fail.
            | Step::StopPosting => {
                return self.finish(step, false, now);
            }
            Step::AwaitPort if matches!(why, EndReason::TimedOut(_)) => return self.give_up(why),
            Step::LoadAlternatePath | Step::RejoinMulticast | Step::RefillSrq => {
                return self.side_failed(step, why, now);
            }
            Step::ToError | Step::Reset => self.want(Needs::QP),
            Step::Probe | Step::ResumeSend => self.want(Needs::RESET),
            _ => {}
        }
        self.again(why, true, now);
    }

    /// A step failed that the connection works without.
    fn side_failed(&mut self, step: Step, why: EndReason, now: Duration) {
        self.side_tries += 1;
        self.current = None;
        if self.side_tries < self.limits.attempts {
            return self.delay(self.side_tries + 1, now);
        }
        self.side_tries = 0;
        self.degraded = Some(why);
        self.finish(step, false, now);
    }

    /// The time for all attempts has elapsed.
    fn expire(&mut self, now: Duration) {
        let why = match self.current {
            Some((step, _)) => EndReason::TimedOut(step),
            None => self
                .failed
                .unwrap_or(EndReason::FaultsKeepComing(self.last)),
        };
        self.not_before = None;
        if !self.todo.is_within(Steps::SIDE) {
            return self.give_up(why);
        }
        // The connection works without the remaining steps.
        if self.todo != Steps::default() {
            self.degraded = Some(why);
        }
        while let Some(step) = self.todo.first() {
            self.finish(step, false, now);
        }
        self.end(now);
    }

    fn give_up(&mut self, why: EndReason) {
        self.phase = Phase::GivingUp(why);
        self.since = None;
        self.pending = false;
        self.todo = Steps::of(&[Step::AckEvents, Step::Close, Step::ReportOutcomes]);
        if !self.queues.stopped {
            self.todo.add(&[Step::StopPosting]);
        }
        self.current = None;
        self.not_before = None;
        self.later = Needs::empty();
    }

    /// No step is left.
    fn end(&mut self, now: Duration) {
        if let Phase::GivingUp(why) = self.phase {
            self.phase = Phase::GivenUp(why);
            return;
        }
        if self.ever.intersects(Needs::BREAK | Needs::SEND) {
            self.recovered_at = Some(now);
        }
        self.phase = Phase::Ended(self.degraded.map_or(End::Recovered, End::Degraded));
    }
}

/// Whether a program caused the fault, or the peer, which counts its own faults.
const fn is_of_program(fault: Fault) -> bool {
    let blame = classify(fault).blame;
    fault.is_of_peer() || matches!(blame, Blame::LocalProgram | Blame::RemoteProgram)
}

/// Whether closing is the only recovery.
const fn closes(recovery: Recovery) -> bool {
    matches!(
        recovery,
        Recovery::CloseDevice | Recovery::DestroyId | Recovery::CloseLink
    )
}
