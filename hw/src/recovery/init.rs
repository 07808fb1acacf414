//! What a link is made with.

use crate::connect::RemoteMemory;
use crate::qp::{ConnectAttr, QpInit};
use crate::recorder::DumpOptions;
use bellwire_core::fault::plan::{End, Limits};
use bellwire_core::fault::{Class, Fault};
use std::fmt;
use std::time::Duration;

/// Who carries a recovery out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoverIn {
    /// Whoever polls the link: a poll does what can be done at once, and never waits.
    #[default]
    Poller,
    /// A thread that lives for as long as the recovery: polls return at once meanwhile, and find
    /// nothing. What the drain told comes when it is over.
    Thread,
}

/// What a link is made with.
#[derive(Clone, Debug)]
pub struct LinkInit {
    /// What its queue pair is to be able to do. Its completion queue has room for all of it.
    pub qp: QpInit,
    /// How it connects. The packets' size is the lesser of both ends'.
    pub connect: ConnectAttr,
    /// Memory that the peer may work on: told to it with each connection.
    pub memory: RemoteMemory,
    /// How long a recovery may take, and how often it is tried.
    pub limits: Limits,
    /// Who carries it out.
    pub recover_in: RecoverIn,
    /// Steps of a recovery that one poll takes at the most: each may be a call of the device's driver.
    pub steps_at_once: u32,
    /// Polls that find nothing until the exchange and the asynchronous events are looked at, which
    /// takes system calls: once in so many.
    pub look_every: u32,
    /// Entries of the completion queue; `None`: room for everything that can be in flight. Fewer
    /// overrun it when the program does not poll in time, which is a fault to recover from.
    pub cq_entries: Option<u32>,
    /// Whether the program sleeps where there is nothing to poll: [`Link::fd`](super::Link::fd),
    /// [`Link::arm`](super::Link::arm). Takes three descriptors.
    pub sleeps: bool,
    /// Whether, and how much of it, what a queue pair did last is kept when its connection fails:
    /// [`Link::failure`](super::Link::failure).
    pub dump: Option<DumpOptions>,
}

impl Default for LinkInit {
    fn default() -> Self {
        Self {
            qp: QpInit::default(),
            connect: ConnectAttr::default(),
            memory: RemoteMemory::default(),
            limits: Limits::default(),
            recover_in: RecoverIn::default(),
            steps_at_once: u32::MAX,
            look_every: 64,
            cq_entries: None,
            sleeps: false,
            dump: None,
        }
    }
}

/// A fault that a link has met.
#[derive(Clone, Copy, Debug)]
pub struct FaultReport {
    /// What happened.
    pub fault: Fault,
    /// What it means.
    pub class: Class,
    /// The connection that it befell, as [`Link::epoch`](super::Link::epoch) counts them.
    pub epoch: u64,
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryReport {
    /// How.
    pub end: End,
    /// From the first fault on.
    pub took: Duration,
    /// The connection from here on.
    pub epoch: u64,
    /// Requests that were posted again.
    pub replayed: u32,
    /// Requests that were told because of it, and not as executed.
    pub surfaced: u32,
}

/// A function of the program's, which is told something.
pub(super) type Hook<T> = Box<dyn FnMut(&T) + Send>;

/// What calls the program, besides polls.
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
