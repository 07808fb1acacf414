//! What a set of links is created with.

use super::LinkSetSrq;
use crate::qp::QpInit;

/// Parameters of a set of links.
#[derive(Clone, Debug)]
pub struct LinkSetInit {
    /// Links that it has room for. An ended link takes room until it is [removed](super::LinkSet::remove).
    pub links: u32,
    /// Capabilities of a link's queue pair, by which the completion queues are sized. A link may have
    /// smaller ones.
    pub qp: QpInit,
    /// Entries of the completion queue; `None`: room for everything that can be in flight on all links,
    /// in as few queues as the device allows. A smaller queue overruns when the program does not poll
    /// in time, which is a fault of every link to recover from. Keep-alives
    /// ([`LinkInit::keep_alive`](super::super::LinkInit::keep_alive)) take entries, too: one poll posts
    /// up to [`links_per_poll`](Self::links_per_poll) of them.
    pub cq_entries: Option<u32>,
    /// The shared receive queue; `None`: each link has a receive queue of its own.
    pub srq: Option<LinkSetSrq>,
    /// Exchanges and asynchronous events are checked once in this many polls, because that takes system
    /// calls.
    pub check_every: u32,
    /// Links that one poll connects or recovers, at most: the completions of all others are not delayed by
    /// more than that, however many links fail at once.
    pub links_per_poll: u32,
    /// Whether the program sleeps when there is nothing to poll: [`fd`](super::LinkSet::fd), [`arm`](super::LinkSet::arm).
    pub waitable: bool,
}

impl Default for LinkSetInit {
    fn default() -> Self {
        Self {
            links: 256,
            qp: QpInit::default(),
            cq_entries: None,
            srq: None,
            check_every: 64,
            links_per_poll: 16,
            waitable: false,
        }
    }
}
