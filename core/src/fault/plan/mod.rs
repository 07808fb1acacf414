//! Recovery from faults, step by step: a state machine that performs no I/O itself.
//!
//! ```text
//!         fault()               done()                      nothing is left to do
//!   Idle ─────────► Step ───────────────────► Step … ─────────────────────────────► Ended ──► Idle
//!                    │ failed, timed out, or a fault again
//!                    ├──► WaitUntil ──► Step …
//!                    └──► too often, DEVICE_FATAL, peer closed: Close, ReportOutcomes ──► Ended, for good
//! ```
//!
//! The program asks for the [`next`](Plan::next) step, carries it out and reports the result with
//! [`done`](Plan::done). It reports faults with [`fault`](Plan::fault) as they occur, also during a recovery.
//!
//! | recovery | steps |
//! |---|---|
//! | queue pair | StopPosting, ToError, AwaitLastWqe (SRQ), Drain, AckEvents, Reset, Exchange, Init, RepostReceives, Connect, Ready, Replay, Open |
//! | completion queue | StopPosting, ToError, AckEvents, DestroyQp, DestroyCq, CreateCq, CreateQp, Exchange … |
//! | shared receive queue | StopPosting, ToError, AwaitLastWqe, Drain, AckEvents, DestroyQp, RebuildSrq, CreateQp, Exchange … |
//! | UC, UD: a send failed | StopPosting, DrainSend, ResumeSend, Replay, Open |
//! | port | StopPosting, AwaitPort, Resolve, Probe, Open |
//! | addresses | Resolve; if they changed, the steps of a queue pair |
//! | others | RejoinMulticast; LoadAlternatePath; RefillSrq |
//! | device | StopPosting, AckEvents, Close, ReportOutcomes |
//!
//! Faults that occur during a recovery add the steps that they need. Steps that are still ahead are not taken
//! twice: a QP_FATAL during the drain changes nothing, a CQ_ERR then turns the recovery into a rebuild, and a
//! port that goes down during the exchange is first waited for. Faults of a queue pair in RESET are late
//! reports about its previous life, and change nothing.
//!
//! With [`Setup::new_qp_per_connection`], a queue pair whose number the peer has received is destroyed and created wherever
//! the table says Reset: a communication manager refuses a number that already had a connection.
//!
//! A shared receive queue cannot be destroyed while queue pairs receive from it (EBUSY), so these queue pairs
//! are destroyed, not reset.
//!
//! # Bounds
//! A run always ends within [`Limits::max_duration`] of the fault that began it, 20 s by default: by then the queue
//! pairs work again, or the recovery has been given up and every outcome reported. Within that time every
//! step has a deadline. A pass that failed is repeated a limited number of times, with a growing delay and
//! jitter; so is a pass that was interrupted by a fault of a kind that had occurred before. Runs that follow
//! one another within [`Limits::settle`] are counted too: a request that breaks its connection each time it
//! is replayed ends with [`EndReason::FaultsKeepComing`].
//!
//! # Example
//!
//! ```
//! use bellwire_core::fault::plan::*;
//! use bellwire_core::fault::{EventType, Fault};
//! use core::time::Duration;
//!
//! let setup = Setup { peer: true, ..Setup::default() };
//! let mut plan = Plan::new(setup, Limits { seed: 4711, ..Limits::default() });
//! let mut now = Duration::ZERO;
//! plan.fault(Fault::Event(EventType::QpFatal), now);
//! let mut taken = Vec::new();
//! let end = loop {
//!     match plan.next(now) {
//!         Next::Step(step) => {
//!             // Carry out the step here.
//!             taken.push(step);
//!             plan.done(step, StepResult::Done, now);
//!         }
//!         Next::WaitUntil(time) => now = time,
//!         Next::Ended(end) => break end,
//!         Next::Idle => unreachable!(),
//!     }
//! };
//! assert_eq!(end, End::Recovered);
//! assert_eq!(taken.first(), Some(&Step::StopPosting));
//! assert_eq!(taken.last(), Some(&Step::Open));
//! ```
//!
//! # Threads and time
//! The plan starts no threads and reads no clock: the caller passes the time, counted from any origin and
//! never decreasing.

mod limits;
mod machine;
mod needs;
mod step;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use machine::Plan;
pub use step::Step;

use super::{Fault, FaultCode, classify};
use core::fmt;
use core::time::Duration;

/// The objects to recover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Setup {
    /// The queue pairs have a peer that recovers together with them: Exchange and Ready are steps.
    pub peer: bool,
    /// They receive from a shared receive queue.
    pub srq: bool,
    /// Each connection with the peer needs queue pairs with new numbers.
    pub new_qp_per_connection: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Next {
    /// Nothing: there is no fault to recover from.
    Idle,
    /// Carry out this step, or check whether it has ended, then call [`Plan::done`].
    Step(Step),
    /// Nothing until this time, unless a fault occurs.
    WaitUntil(Duration),
    /// The recovery is over. Recovered and Degraded are returned once.
    Ended(End),
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// Done.
    Done,
    /// [`Step::Resolve`]: done, and the addresses have changed.
    Changed,
    /// Not finished: the plan returns the step again. After its deadline the plan continues without it or
    /// retries.
    Pending,
    /// It failed.
    Failed(Fault),
    /// The peer has closed the connection in an orderly way.
    PeerClosed,
    /// The peer cannot be reached any more, or its messages are invalid.
    PeerLost,
    /// Another process replies in place of the peer.
    PeerRestarted,
    /// The peer has given up, for this reason of its own.
    PeerGaveUp(FaultCode),
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Everything works again.
    Recovered,
    /// The connection works, with this restriction.
    Degraded(EndReason),
    /// Recovery is impossible: every outcome was reported and everything closed.
    GaveUp(EndReason),
}

/// The reason of an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// This fault cannot be recovered from.
    Fault(Fault),
    /// This step failed as often as it may be tried; the last time with this fault.
    Failed(Step, Fault),
    /// This step did not end in time: within its own deadline as often as it may be tried, or within
    /// [`Limits::recovery`].
    TimedOut(Step),
    /// Recovery was interrupted or followed by faults as often as it may be tried; this was the last one.
    FaultsKeepComing(Fault),
    /// The peer has closed the connection in an orderly way.
    PeerClosed,
    /// The peer cannot be reached any more, or its messages are invalid.
    PeerLost,
    /// Another process replies in place of the peer.
    PeerRestarted,
    /// The peer has given the link up, for this reason of its own.
    PeerGaveUp(FaultCode),
}

impl EndReason {
    /// What the operator should look at.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Fault(fault) => classify(fault).advice.as_str(),
            Self::Failed(step, _) | Self::TimedOut(step) => step.advice(),
            Self::FaultsKeepComing(_) => {
                "The fault, and the requests that are posted again each time: one of them may cause it."
            }
            Self::PeerClosed => classify(Fault::PeerClosed).advice.as_str(),
            Self::PeerLost => classify(Fault::PeerLost).advice.as_str(),
            Self::PeerRestarted => classify(Fault::PeerRestarted).advice.as_str(),
            Self::PeerGaveUp(named) => classify(Fault::PeerGaveUp(named)).advice.as_str(),
        }
    }

    /// The fault that explains it; `first` is the fault that the recovery began with. `None` if the peer has
    /// ended the link, and needs no explanation.
    pub fn fault(self, first: Option<Fault>) -> Option<Fault> {
        match self {
            Self::Fault(fault) => Some(fault),
            Self::Failed(_, fault) | Self::FaultsKeepComing(fault) => Some(first.unwrap_or(fault)),
            // What Linux calls it: the same as of a connection that nobody answers.
            Self::TimedOut(_) => Some(first.unwrap_or(Fault::Errno(110))),
            Self::PeerLost => Some(Fault::PeerLost),
            Self::PeerRestarted => Some(Fault::PeerRestarted),
            Self::PeerClosed | Self::PeerGaveUp(_) => None,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault} cannot be recovered from: {}", fault.text()),
            Self::Failed(step, fault) => {
                write!(f, "the step \"{step}\" failed: {fault}: {}", fault.text())
            }
            Self::TimedOut(step) => write!(f, "the step \"{step}\" did not end in time"),
            Self::FaultsKeepComing(fault) => {
                write!(
                    f,
                    "faults keep coming, the last one {fault}: {}",
                    fault.text()
                )
            }
            Self::PeerClosed => f.write_str("the peer has closed the connection"),
            Self::PeerLost => f.write_str("the peer cannot be reached any more"),
            Self::PeerRestarted => f.write_str("another process answers in the peer's place"),
            Self::PeerGaveUp(named) => {
                let text = named.fault().text();
                write!(
                    f,
                    "the peer has given the link up, and says: {named}: {text}"
                )
            }
        }
    }
}
