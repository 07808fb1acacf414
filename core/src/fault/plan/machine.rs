//! The state machine.

use super::needs::{Needs, QpIs, Queues};
use super::step::Steps;
use super::{End, Limits, Next, Setup, Step, StepResult, Why};
use crate::fault::{CmEvent, EventType, Fault, Recovery, classify};
use core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Running,
    /// The end, to be told once.
    Ended(End),
    GivingUp(Why),
    GivenUp(Why),
}

/// A recovery, step by step. See the [module](super).
#[derive(Clone, Debug)]
pub struct Plan {
    setup: Setup,
    limits: Limits,
    random: u64,
    phase: Phase,
    todo: Steps,
    /// The step that was named last, and when first.
    current: Option<(Step, Duration)>,
    /// End of the delay before the next attempt.
    not_before: Option<Duration>,
    needs: Needs,
    /// What this run has needed so far.
    ever: Needs,
    /// What came too late for this run: the next one's.
    later: Needs,
    queues: Queues,
    attempts: u32,
    side_tries: u32,
    /// Runs that followed one another too soon.
    relapses: u32,
    recovered_at: Option<Duration>,
    degraded: Option<Why>,
    last: Fault,
}

impl Plan {
    /// A plan for queue pairs that work.
    pub fn new(setup: Setup, limits: Limits) -> Self {
        Self {
            setup,
            limits,
            random: limits.seed,
            phase: Phase::Idle,
            todo: Steps::default(),
            current: None,
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
            last: Fault::Peer,
        }
    }

    /// Whether there is something to do, or to tell.
    pub fn running(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::GivenUp(_)) || !self.later.is_empty()
    }

    /// Which attempt of this run it is, counted from one.
    pub fn attempt(&self) -> u32 {
        self.attempts
    }

    /// When [`next`](Self::next) has another answer at the latest, should nothing happen: for who
    /// sleeps.
    pub fn deadline(&self) -> Option<Duration> {
        match (self.not_before, self.current) {
            (Some(time), _) => Some(time),
            (None, Some((step, since))) => Some(since.saturating_add(self.limits.of(step))),
            (None, None) => None,
        }
    }

    /// Tells of a fault. Faults that ask for nothing, or for what is to be done anyway, change nothing;
    /// nor does any after it was given up.
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
            // It is there, and waits for us; or is not waited for.
            _ if fault.is_of_peer() => self.not_before = None,
            _ => {}
        }
        let recovery = classify(fault).recovery;
        if closes(recovery) {
            return self.give_up(Why::Fault(fault));
        }
        let needs = Needs::of(recovery, self.setup);
        if needs.is_empty() {
            return;
        }
        self.last = fault;
        match self.phase {
            Phase::Running => self.merge(needs, now),
            Phase::Idle => self.begin(needs, now),
            // The end is told first.
            _ => self.later |= needs,
        }
    }

    /// What to do now.
    pub fn next(&mut self, now: Duration) -> Next {
        loop {
            match self.phase {
                Phase::Idle if self.later.is_empty() => return Next::Idle,
                Phase::Idle => {
                    let needs = core::mem::replace(&mut self.later, Needs::empty());
                    self.begin(needs, now);
                }
                Phase::Ended(end) => {
                    self.phase = Phase::Idle;
                    return Next::Ended(end);
                }
                Phase::GivenUp(why) => return Next::Ended(End::GaveUp(why)),
                Phase::Running | Phase::GivingUp(_) => {}
            }
            match self.not_before {
                Some(time) if now < time => return Next::WaitUntil(time),
                _ => self.not_before = None,
            }
            match self.current.or_else(|| self.name(now)) {
                None => self.end(now),
                Some((step, _)) if self.queues.is_over(step) => self.finish(step, false, now),
                Some((step, since)) if since < now && now - since >= self.limits.of(step) => {
                    self.stumble(step, Why::TimedOut(step), now);
                }
                Some((step, _)) => return Next::Step(step),
            }
        }
    }

    /// Tells how the step went that [`next`](Self::next) named last. An answer to another one is late,
    /// and left out of account.
    pub fn done(&mut self, step: Step, result: StepResult, now: Duration) {
        if self.current.is_none_or(|(current, _)| current != step) {
            return;
        }
        match result {
            StepResult::Pending => {}
            StepResult::Done => self.finish(step, false, now),
            StepResult::Changed => self.finish(step, step == Step::Resolve, now),
            StepResult::PeerClosed | StepResult::PeerLost => match self.phase {
                Phase::GivingUp(_) => self.finish(step, false, now),
                _ if result == StepResult::PeerClosed => self.give_up(Why::PeerClosed),
                _ => self.give_up(Why::PeerLost),
            },
            StepResult::Failed(fault) => {
                // The error of a call is about the step, unless the device is gone.
                if !matches!(fault, Fault::Errno(_)) || closes(classify(fault).recovery) {
                    self.fault(fault, now);
                }
                // Unless that made the step a thing of the past.
                if self.current.is_some_and(|(current, _)| current == step) {
                    self.stumble(step, Why::Failed(step, fault), now);
                }
            }
        }
    }

    /// Starts a run.
    fn begin(&mut self, needs: Needs, now: Duration) {
        self.phase = Phase::Running;
        self.attempts = 1;
        self.side_tries = 0;
        self.degraded = None;
        self.needs = Needs::empty();
        self.ever = Needs::empty();
        self.free_pass(needs, now);
    }

    /// Adds what a fault asks for to what is under way.
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
                    Why::FaultsKeepComing(self.last),
                    !self.last.is_of_peer(),
                    now,
                );
            }
        }
    }

    /// Nothing of the present life of the queue pairs lasts: they are to be reset, or are.
    fn before_connect(&self) -> bool {
        self.queues.qp != QpIs::Live || self.will_quiesce()
    }

    fn will_quiesce(&self) -> bool {
        self.todo.has(Step::Reset) || self.todo.has(Step::DestroyQp)
    }

    fn want(&mut self, needs: Needs) {
        self.needs |= needs;
        self.ever |= needs;
    }

    /// A pass that a fault of a new kind calls for, which does not count as an attempt.
    fn free_pass(&mut self, needs: Needs, now: Duration) {
        let breaks = Needs::BREAK | Needs::SEND;
        let first_break = needs.intersects(breaks) && !self.ever.intersects(breaks);
        self.want(needs);
        if first_break {
            let settled = self
                .recovered_at
                .is_none_or(|time| now.saturating_sub(time) >= self.limits.settle);
            self.relapses = if settled { 0 } else { self.relapses + 1 };
            if self.relapses >= self.limits.attempts.max(1) {
                return self.give_up(Why::FaultsKeepComing(self.last));
            }
            if self.relapses > 0 && !self.last.is_of_peer() {
                self.delay(self.relapses + 1, now);
            }
        }
        self.restart();
    }

    /// The next attempt, if there is one.
    fn again(&mut self, why: Why, delayed: bool, now: Duration) {
        self.attempts += 1;
        if self.attempts > self.limits.attempts {
            return self.give_up(why);
        }
        if delayed {
            self.delay(self.attempts, now);
        }
        self.restart();
    }

    fn delay(&mut self, attempt: u32, now: Duration) {
        // Weyl sequence and a multiply: enough to keep two ends from marching in step.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.not_before = Some(now.saturating_add(self.limits.backoff(attempt, mixed >> 32)));
    }

    fn restart(&mut self) {
        self.todo = self.queues.steps(self.needs, self.setup);
        self.current = None;
    }

    /// Names the first step that is to be taken.
    fn name(&mut self, now: Duration) -> Option<(Step, Duration)> {
        let step = self.todo.first()?;
        self.queues.named(step);
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
    fn stumble(&mut self, step: Step, why: Why, now: Duration) {
        if matches!(self.phase, Phase::GivingUp(_)) {
            return self.finish(step, false, now);
        }
        match step {
            // Nothing more can be learnt by waiting.
            Step::Drain | Step::DrainSend | Step::AwaitLastWqe | Step::AwaitTimewait
            // Nor can this fail.
            | Step::StopPosting => {
                return self.finish(step, false, now);
            }
            Step::AwaitPort if matches!(why, Why::TimedOut(_)) => return self.give_up(why),
            Step::LoadAlternatePath | Step::RejoinMulticast | Step::RefillSrq => {
                return self.side_failed(step, why, now);
            }
            Step::ToError | Step::Reset => self.want(Needs::QP),
            Step::Probe | Step::ResumeSend => self.want(Needs::RESET),
            _ => {}
        }
        self.again(why, true, now);
    }

    /// The connection works, but for this.
    fn side_failed(&mut self, step: Step, why: Why, now: Duration) {
        self.side_tries += 1;
        self.current = None;
        if self.side_tries < self.limits.attempts {
            return self.delay(self.side_tries + 1, now);
        }
        self.side_tries = 0;
        self.degraded = Some(why);
        self.finish(step, false, now);
    }

    fn give_up(&mut self, why: Why) {
        self.phase = Phase::GivingUp(why);
        self.todo = Steps::of(&[Step::AckEvents, Step::Close, Step::Surface]);
        if !self.queues.stopped {
            self.todo.add(&[Step::StopPosting]);
        }
        self.current = None;
        self.not_before = None;
        self.later = Needs::empty();
    }

    /// Nothing is left to do.
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

/// Whether nothing but closing is left.
const fn closes(recovery: Recovery) -> bool {
    matches!(recovery, Recovery::CloseDevice | Recovery::DestroyId)
}
