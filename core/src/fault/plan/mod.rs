//! What is to be done about faults, step by step: a state machine without input and output.
//!
//! ```text
//!         fault()               done()                      nothing is left to do
//!   Idle ─────────► Step ───────────────────► Step … ─────────────────────────────► Ended ──► Idle
//!                    │ failed, timed out, or a fault again
//!                    ├──► WaitUntil ──► Step …
//!                    └──► too often, DEVICE_FATAL, peer closed: Close, Surface ──► Ended, for good
//! ```
//!
//! The program asks for the [`next`](Plan::next) step, takes it, and answers with
//! [`done`](Plan::done). Faults are told as they come, also in the midst of it.
//!
//! | recovery | steps |
//! |---|---|
//! | queue pair | StopPosting, ToError, AwaitLastWqe (SRQ), Drain, AckEvents, Reset, Exchange, Init, RepostReceives, Connect, Ready, Replay, Open |
//! | completion queue | StopPosting, ToError, AckEvents, DestroyQp, DestroyCq, CreateCq, CreateQp, Exchange … |
//! | shared receive queue | StopPosting, ToError, AwaitLastWqe, Drain, AckEvents, DestroyQp, RebuildSrq, CreateQp, Exchange … |
//! | UC, UD: a send failed | StopPosting, DrainSend, ResumeSend, Replay, Open |
//! | port | StopPosting, AwaitPort, Resolve, Probe, Open |
//! | addresses | Resolve; if they changed, as a queue pair |
//! | others | RejoinMulticast; LoadAlternatePath; RefillSrq |
//! | device | StopPosting, AckEvents, Close, Surface |
//!
//! Faults that come while it runs add what they need. What is behind the present step anyway is
//! not done twice: a QP_FATAL during the drain changes nothing, a CQ_ERR then makes it a rebuild, and
//! a port that goes down during the exchange is waited for first. Faults of a queue pair in RESET are
//! late news of its last life, and change nothing.
//!
//! A shared receive queue cannot be destroyed while queue pairs receive from it (EBUSY), so these are
//! destroyed, not reset.
//!
//! # Bounds
//! Every step has a deadline, a failed pass is tried again a limited number of times, with a delay
//! that grows and has jitter, and so is one that a fault which came before interrupts. So every run
//! ends within [`Limits::bound`]. Runs that follow one another within [`Limits::settle`] are counted
//! too: a request that breaks its connection each time it is replayed ends with
//! [`Why::FaultsKeepComing`].
//!
//! # Example
//!
//! ```
//! use bellwire_core::fault::plan::*;
//! use bellwire_core::fault::{EventType, Fault};
//! use core::time::Duration;
//!
//! let setup = Setup { peer: true, srq: false };
//! let mut plan = Plan::new(setup, Limits { seed: 4711, ..Limits::default() });
//! let mut now = Duration::ZERO;
//! plan.fault(Fault::Event(EventType::QpFatal), now);
//! let mut taken = Vec::new();
//! let end = loop {
//!     match plan.next(now) {
//!         Next::Step(step) => {
//!             // Here it is carried out.
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
//! # Threads
//! None, and no clock: the caller gives the time, from any origin, never going back.

mod limits;
mod machine;
mod needs;
mod step;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use machine::Plan;
pub use step::Step;

use super::Fault;
use core::fmt;
use core::time::Duration;

/// What there is to recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The queue pairs have a peer that recovers with them: Exchange and Ready are steps.
    pub peer: bool,
    /// They receive from a shared receive queue.
    pub srq: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Nothing: nothing is broken.
    Idle,
    /// Take this step, or see whether it has ended, then call [`Plan::done`].
    Step(Step),
    /// Nothing before this time, unless a fault comes.
    WaitUntil(Duration),
    /// The recovery is over. Recovered and Degraded are told once.
    Ended(End),
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// Done.
    Done,
    /// [`Step::Resolve`]: done, and the addresses are others than before.
    Changed,
    /// Not yet: it is named again. After its deadline the plan goes on without it, or tries again.
    Pending,
    /// It failed.
    Failed(Fault),
    /// The peer has closed the connection, in good order.
    PeerClosed,
    /// The peer cannot be reached any more, or makes no sense.
    PeerLost,
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything works again.
    Recovered,
    /// It works, but for this.
    Degraded(Why),
    /// It cannot be recovered: everything was told and closed.
    GaveUp(Why),
}

/// The reason of an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This fault cannot be recovered from.
    Fault(Fault),
    /// This step failed as often as is tried; the last time with this fault.
    Failed(Step, Fault),
    /// This step did not end within its deadline, as often as is tried.
    TimedOut(Step),
    /// Recovery was interrupted by, or followed by, faults as often as is tried; this was the last.
    FaultsKeepComing(Fault),
    /// The peer has closed the connection, in good order.
    PeerClosed,
    /// The peer cannot be reached any more, or makes no sense.
    PeerLost,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault:?} cannot be recovered from"),
            Self::Failed(step, fault) => write!(f, "the step \"{step}\" failed: {fault:?}"),
            Self::TimedOut(step) => write!(f, "the step \"{step}\" did not end in time"),
            Self::FaultsKeepComing(fault) => {
                write!(f, "faults keep coming, the last one {fault:?}")
            }
            Self::PeerClosed => f.write_str("the peer has closed the connection"),
            Self::PeerLost => f.write_str("the peer cannot be reached any more"),
        }
    }
}
