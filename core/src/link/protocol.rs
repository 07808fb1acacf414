//! The state machine of one end.

use super::info::ConnInfo;
use super::message::{Message, RecoveryInfo};
use super::peer::{Gone, Peer, PeerError};
use crate::fault::Fault;
use crate::fault::outcome::Consumed;
use crate::fault::plan::{End, EndReason, Limits, Next, Plan, Setup, Step, StepResult};
use core::fmt;
use core::time::Duration;

/// How a link has ended. Every outcome was reported, or can be polled; all buffers come back with the
/// outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnd {
    /// The program closed it.
    Closed,
    /// It could not be recovered.
    GaveUp {
        /// The reason.
        why: EndReason,
        /// The fault that the last recovery began with: what `why` says follows from it. `None` if nothing had
        /// failed.
        first: Option<Fault>,
    },
}

impl LinkEnd {
    /// Why it was given up; `None` if the program closed it.
    pub fn why(self) -> Option<EndReason> {
        match self {
            Self::Closed => None,
            Self::GaveUp { why, .. } => Some(why),
        }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::GaveUp { why, first } => {
                why.fmt(f)?;
                let named = match *why {
                    EndReason::Fault(fault) => Some(fault),
                    EndReason::PeerGaveUp(named) => Some(Fault::PeerGaveUp(named)),
                    EndReason::PeerLost => Some(Fault::PeerLost),
                    EndReason::PeerRestarted => Some(Fault::PeerRestarted),
                    EndReason::PeerClosed => Some(Fault::PeerClosed),
                    _ => None,
                };
                match first {
                    Some(first) if named != Some(*first) => {
                        write!(f, "; it began with {first}: {}", first.text())
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// What the driver has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Action {
    /// Nothing until the [`deadline`](Protocol::deadline), unless a message or a fault comes, or the program
    /// closes the link.
    Wait,
    /// Carry out this step on the device, or check whether it has ended, then call [`Protocol::done`].
    /// [`Step::Exchange`] and [`Step::Ready`] are the protocol's own, and never come up here.
    Step(Step),
    /// Call [`Protocol::described`] or, if that fails, [`Protocol::done`] with [`Step::Exchange`].
    Describe,
    /// Send this message to the peer. If it cannot be sent: receive what the peer sent before, then call
    /// [`Protocol::lost`].
    Send(Message),
    /// The recovery is over. Returned once; after [`End::GaveUp`] the link has ended.
    Ended(End),
}

/// What this end sends of itself: its queue pair is in RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocalInfo {
    /// The queue pair to connect with, and the memory that the peer may access.
    pub conn: ConnInfo,
    /// Receives that completed successfully on the last connection.
    pub consumed: u64,
    /// Whether that count is exact. If completions may have been lost it is a lower bound.
    pub exact: bool,
}

/// Why no more messages of the peer will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerLoss {
    /// It cannot be reached.
    Unreachable,
    /// Its messages are invalid.
    Invalid,
    /// Another process replies in its place.
    Restarted,
}

/// How far a close has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Closing {
    /// Posted requests may continue until [`Protocol::close_by`].
    Waits,
    /// They are to be flushed.
    Flush,
    /// Everything is flushed by [`Protocol::close_by`].
    Flushes,
    Close,
    Report,
}

/// One end of a link. See the [module](super).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    plan: Plan,
    limits: Limits,
    peer: Peer,
    /// The peer's Info by which this end connects, or is connected.
    theirs: Option<RecoveryInfo>,
    /// The last connection on which this end could receive; zero before the first.
    connection: u64,
    /// The message to send next.
    outgoing: Option<Message>,
    closing: Option<Closing>,
    /// The end of the stage of the close that has one. Not within `Closing`: compilers compare it before they
    /// know the stage, and Valgrind then reports memory that was never written.
    close_by: Duration,
    /// The step that was returned last belongs to the close, not to the plan.
    closes: bool,
    /// The peer needs no closing message any more.
    left: bool,
    ended: Option<LinkEnd>,
}

impl Protocol {
    /// A link that is not connected; it has a peer, whatever `setup` says.
    pub fn new(setup: Setup, limits: Limits) -> Self {
        let setup = Setup {
            peer: true,
            ..setup
        };
        Self {
            plan: Plan::new(setup, limits),
            limits,
            peer: Peer::new(),
            theirs: None,
            connection: 0,
            outgoing: None,
            closing: None,
            close_by: Duration::ZERO,
            closes: false,
            left: false,
            ended: None,
        }
    }

    /// Begins to connect for the first time.
    pub fn connect(&mut self, now: Duration) {
        self.plan.connect(now);
    }

    /// Takes in a fault.
    pub fn fault(&mut self, fault: Fault, now: Duration) {
        self.plan.fault(fault, now);
    }

    /// Takes in a message of the peer. When all that have come were taken in, call
    /// [`peer_fault`](Self::peer_fault).
    ///
    /// # Errors
    /// [`PeerError`]: the peer counts as gone from here on.
    pub fn receive(&mut self, message: Message) -> Result<(), PeerError> {
        self.peer.receive(message)
    }

    /// Takes in that no more messages will come.
    pub fn lost(&mut self, why: PeerLoss) {
        self.peer.lost(match why {
            PeerLoss::Unreachable => Gone::Lost,
            PeerLoss::Invalid => Gone::Invalid,
            PeerLoss::Restarted => Gone::Restarted,
        });
    }

    /// What the messages since the last call amount to for this end: a fault, which the caller passes to
    /// [`fault`](Self::fault).
    pub fn peer_fault(&mut self) -> Option<Fault> {
        let fault = self.peer.fault();
        // An end that still has to exchange with the peer finds it as it is then.
        fault.filter(|_| !self.plan.will_exchange())
    }

    /// The program closes the link: what was posted may continue until `until`.
    pub fn close(&mut self, until: Duration) {
        if self.ended.is_none() && self.closing.is_none() {
            self.closing = Some(Closing::Waits);
            self.close_by = until;
        }
    }

    /// Ends the link without waiting any longer.
    pub fn close_now(&mut self) {
        if self.ended.is_none() && self.closing != Some(Closing::Report) {
            self.closing = Some(Closing::Close);
        }
    }

    /// The closing message, if the peer has yet to be sent it: for a link that is dropped.
    pub fn leave(&mut self) -> Option<Message> {
        let left = core::mem::replace(&mut self.left, true);
        if left || self.peer.gone.is_some_and(|gone| !gone.listens()) {
            return None;
        }
        let reason = self.plan.gives_up();
        let fault = reason.and_then(|reason| reason.fault(self.first()));
        let named = fault.map(Fault::without_circumstances);
        Some(named.map_or(Message::Closing, Message::GaveUp))
    }

    /// The fault that the current recovery began with, or the last one if none is under way.
    pub fn first(&self) -> Option<Fault> {
        self.plan.first()
    }

    /// Returns what to do now.
    pub fn next(&mut self, now: Duration) -> Action {
        loop {
            if let Some(message) = self.outgoing.take() {
                return Action::Send(message);
            }
            if self.ended.is_some() {
                return Action::Wait;
            }
            if let Some(step) = self.next_of_close(now) {
                self.closes = true;
                return Action::Step(step);
            }
            self.closes = false;
            let step = match self.plan.next(now) {
                Next::Idle | Next::WaitUntil(_) => return Action::Wait,
                Next::Ended(end) => {
                    if let End::GaveUp(why) = end {
                        let first = self.plan.first();
                        self.ended = Some(LinkEnd::GaveUp { why, first });
                    }
                    return Action::Ended(end);
                }
                Next::Step(step) => step,
            };
            let waits_for_peer = matches!(step, Step::Exchange | Step::Ready);
            let result = match (step, self.peer.gone) {
                (_, Some(gone)) if waits_for_peer => gone.result(),
                (Step::Exchange, _) if self.peer.needs_info() => return Action::Describe,
                (Step::Exchange, _) => {
                    self.theirs = self.peer.info();
                    when(self.theirs.is_some())
                }
                (Step::Ready, _) if self.peer.needs_ready() => {
                    let epoch = self.peer.epoch();
                    self.outgoing = Some(Message::Ready { epoch });
                    continue;
                }
                (Step::Ready, _) => when(self.peer.ready),
                // The connection did not change: nothing has failed.
                (Step::Replay, _) if self.peer.sent_on() == self.connection => StepResult::Done,
                _ => return Action::Step(step),
            };
            self.plan.done(step, result, now);
            if result == StepResult::Pending {
                return Action::Wait;
            }
        }
    }

    /// Reports the result of the step that was returned last.
    pub fn done(&mut self, step: Step, result: StepResult, now: Duration) {
        match (step, result) {
            (_, StepResult::Pending) => {}
            // Outcomes are reported next, also if the close has not ended in time.
            (Step::Close | Step::ReportOutcomes, _) => {
                self.peer.renew();
                self.outgoing = self.leave();
            }
            (Step::Reset | Step::DestroyQp, StepResult::Done) => self.peer.renew(),
            (Step::Connect, StepResult::Done) => {
                self.connection = self.theirs.map_or(self.connection, |theirs| theirs.epoch);
            }
            // What could not be posted again is posted on a further connection, or reported.
            (Step::Replay, _) => self.peer.sends_on(self.connection),
            _ => {}
        }
        match self.closes {
            true => self.close_done(step, result, now),
            false => self.plan.done(step, result, now),
        }
    }

    /// Passes in what [`Action::Describe`] asks for.
    pub fn described(&mut self, ours: LocalInfo) {
        self.peer.info_sent();
        self.outgoing = Some(Message::Info(RecoveryInfo {
            epoch: self.peer.epoch(),
            conn: ours.conn,
            connection: self.connection,
            consumed: ours.consumed,
            exact: ours.exact,
        }));
    }

    /// The next step of the close; `None` if there is none, or a recovery is under way and may continue.
    fn next_of_close(&mut self, now: Duration) -> Option<Step> {
        let in_time = now < self.close_by;
        loop {
            let next = match self.closing? {
                Closing::Waits if in_time && self.plan.running() => return None,
                // Until an empty WRITE of the link's own, behind all sends, is acknowledged.
                Closing::Waits if in_time && self.connection != 0 => {
                    return Some(Step::Probe);
                }
                Closing::Waits => Closing::Flush,
                Closing::Flush => return Some(Step::ToError),
                Closing::Flushes if in_time => return Some(Step::Drain),
                Closing::Flushes => Closing::Close,
                Closing::Close => return Some(Step::Close),
                Closing::Report => return Some(Step::ReportOutcomes),
            };
            self.closing = Some(next);
        }
    }

    fn close_done(&mut self, step: Step, result: StepResult, now: Duration) {
        let pending = result == StepResult::Pending;
        self.closing = match (self.closing, step) {
            // A probe that found a fault has begun a recovery, which may continue.
            (Some(Closing::Waits), Step::Probe) if !pending && !self.plan.running() => {
                Some(Closing::Flush)
            }
            // A queue pair that cannot go to ERR is destroyed as it is.
            (Some(Closing::Flush), Step::ToError) => {
                self.close_by = now.saturating_add(self.limits.drain);
                Some(Closing::Flushes)
            }
            (Some(Closing::Flushes), Step::Drain) if !pending => Some(Closing::Close),
            (Some(Closing::Close), Step::Close) if !pending => Some(Closing::Report),
            (Some(Closing::Report), Step::ReportOutcomes) => {
                self.ended = Some(LinkEnd::Closed);
                None
            }
            (closing, _) => closing,
        };
    }

    /// The latest time at which [`next`](Self::next) changes its result if nothing happens; in the past if it
    /// does at once.
    pub fn deadline(&self) -> Option<Duration> {
        if self.ended.is_some() {
            return None;
        }
        match self.closing {
            None => self.plan.deadline(),
            Some(Closing::Waits) => {
                let plan = self.plan.deadline().into_iter();
                plan.chain([self.close_by]).min()
            }
            Some(Closing::Flushes) => Some(self.close_by),
            Some(Closing::Flush | Closing::Close | Closing::Report) => Some(Duration::ZERO),
        }
    }

    /// Whether faults are being recovered from, or the first connection is made.
    pub fn recovering(&self) -> bool {
        self.plan.running()
    }

    /// Whether the link may not be used: it recovers, is being closed, or has ended.
    pub fn busy(&self) -> bool {
        self.ended.is_none() && (self.plan.running() || self.closing.is_some())
    }

    /// Whether the program has closed it.
    pub fn closing(&self) -> bool {
        self.closing.is_some()
    }

    /// How it has ended.
    pub fn ended(&self) -> Option<LinkEnd> {
        self.ended
    }

    /// The epoch that both ends connect for, or are connected in.
    pub fn epoch(&self) -> u64 {
        self.peer.epoch()
    }

    /// Whether there has been a connection.
    pub fn connected(&self) -> bool {
        self.connection != 0
    }

    /// Whether the peer will send nothing more.
    pub fn peer_gone(&self) -> bool {
        self.peer.gone.is_some()
    }

    /// The peer's Info by which this end connects, or is connected.
    pub fn peer_info(&self) -> Option<RecoveryInfo> {
        self.theirs
    }

    /// How many of the requests on the failed connection consumed a receive, as the peer counted: for
    /// [`Step::Replay`] and [`Step::ReportOutcomes`].
    pub fn consumed(&self) -> Consumed {
        self.peer.consumed()
    }
}

const fn when(done: bool) -> StepResult {
    if done {
        StepResult::Done
    } else {
        StepResult::Pending
    }
}
