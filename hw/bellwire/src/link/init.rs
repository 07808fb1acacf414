//! Parameters of a link.

use crate::error::Error;
use crate::qp::{ConnectAttr, QpInit};
use crate::recorder::DumpOptions;
use bellwire_core::fault::plan::{End, Limits};
use bellwire_core::fault::{Class, Fault};
use bellwire_core::link::RemoteMemory;
use std::fmt;
use std::time::Duration;

/// Where a recovery is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoverIn {
    /// In the program's polls: each does what can be done at once, and never blocks.
    #[default]
    Poll,
    /// In a thread that lives for as long as the recovery. Meanwhile polls return at once, and find
    /// nothing; outcomes found by the drain are reported when the recovery is over.
    Thread,
}

/// Parameters of a link.
#[derive(Clone, Debug)]
pub struct LinkInit {
    /// Capabilities of its queue pair. By default its completion queue has room for all of its requests.
    pub qp: QpInit,
    /// How it connects. The path MTU is the lesser of both ends'.
    pub connect: ConnectAttr,
    /// Memory that the peer may access: sent to it with each connection.
    pub memory: RemoteMemory,
    /// How long a recovery may take, and how often it is tried: within [`Limits::max_duration`] of the fault
    /// (20 s by default) the link works again or has ended, and every outcome can be polled. A request is
    /// posted again for no longer than [`Limits::recovery`] after a connection first failed under it,
    /// however many failures follow.
    pub limits: Limits,
    /// Where a recovery is carried out.
    pub recover_in: RecoverIn,
    /// Recovery steps that one poll takes at most: each may be a call of the device's driver.
    pub max_steps_per_poll: u32,
    /// The exchange, the asynchronous events and the deadlines are checked once in this many polls that find
    /// nothing, because that takes system calls. Sixty-four polls that find something count as one of these.
    pub check_every: u32,
    /// Entries of the completion queue; `None`: room for everything that can be in flight. A smaller
    /// queue overruns when the program does not poll in time, which is a fault to recover from.
    pub cq_entries: Option<u32>,
    /// Whether the program sleeps when there is nothing to poll: [`Link::fd`](super::Link::fd),
    /// [`Link::arm`](super::Link::arm). Takes two descriptors, a third while a deadline is pending, and
    /// one more on a libibverbs device; there, the first such link also starts a thread for the context.
    pub waitable: bool,
    /// Whether a record of what the queue pair did last is kept when its connection fails, and what goes
    /// into it: [`Link::failure`](super::Link::failure).
    pub dump: Option<DumpOptions>,
    /// How long a send may be in flight while the link works; `None`: without a limit. One that takes longer
    /// is a fault of the link ([`Fault::DeadlineMissed`]), which then recovers, and posts it again or reports
    /// it. The fault is found no earlier, and within twice that time, by the checks of polls
    /// ([`check_every`](Self::check_every)). An unsignalled send is in flight until a signalled one behind it
    /// completes, and only counts if there is one. Not zero.
    pub request_deadline: Option<Duration>,
    /// How soon the loss of the peer is detected, at the latest, while nothing is in flight; `None`: not
    /// before something is posted. A link that was idle for half of this time sends an empty WRITE; if
    /// that is not acknowledged in the other half the link has a fault ([`Fault::KeepAliveMissed`]) and
    /// recovers. It is not reported, and takes a place in the send queue until it completes. Not zero.
    pub keep_alive: Option<Duration>,
    /// Buffers of the set's shared receive queue that this link's messages may hold, in place of
    /// [`LinkSetSrq::max_held`](super::LinkSetSrq::max_held), which has to be set. Of no meaning for other links.
    pub max_held: Option<u32>,
}

impl Default for LinkInit {
    fn default() -> Self {
        Self {
            qp: QpInit::default(),
            connect: ConnectAttr::default(),
            memory: RemoteMemory::default(),
            limits: Limits::default(),
            recover_in: RecoverIn::default(),
            max_steps_per_poll: u32::MAX,
            check_every: 64,
            cq_entries: None,
            waitable: false,
            dump: None,
            request_deadline: None,
            keep_alive: None,
            max_held: None,
        }
    }
}

impl LinkInit {
    /// Refuses times of zero, which no device keeps.
    pub(super) fn check(&self) -> Result<(), Error> {
        let times = [
            ("request_deadline, in nanoseconds,", self.request_deadline),
            ("keep_alive, in nanoseconds,", self.keep_alive),
        ];
        match times
            .into_iter()
            .find(|(_, time)| *time == Some(Duration::ZERO))
        {
            Some((what, _)) => Err(Error::TooLarge {
                what,
                given: 0,
                max: u64::MAX,
            }),
            None => Ok(()),
        }
    }
}

/// A fault that a link has detected.
#[derive(Clone, Copy, Debug)]
pub struct FaultReport {
    /// What happened.
    pub fault: Fault,
    /// How it is classified.
    pub class: Class,
    /// The connection on which it occurred, as counted by [`Link::epoch`](super::Link::epoch).
    pub epoch: u64,
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryReport {
    /// Its result.
    pub end: End,
    /// Time from the first fault.
    pub took: Duration,
    /// The connection's epoch from here on.
    pub epoch: u64,
    /// Requests that were posted again.
    pub replayed: u32,
    /// Requests reported as other than executed because of it.
    pub reported: u32,
    /// The fault that it began with; `None` for the first connection.
    pub first: Option<Fault>,
}

/// A callback of the program.
pub(super) type Hook<T> = Box<dyn FnMut(&T) + Send>;

/// The program's callbacks, apart from those of polls.
#[derive(Default)]
pub(super) struct Hooks {
    pub on_fault: Option<Hook<FaultReport>>,
    pub on_recovered: Option<Hook<RecoveryReport>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("on_fault", &self.on_fault.is_some())
            .field("on_recovered", &self.on_recovered.is_some())
            .finish()
    }
}
