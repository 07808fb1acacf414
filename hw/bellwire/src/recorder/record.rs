//! The contents of a dump.

use super::{CompletionEntry, Note, ReceiveEntry, SendEntry};
use bellwire_core::qp::QpState;
use bellwire_core::wr::QpType;
use serde::Serialize;

/// What to include in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// Send entries, receives, and completions of each completion queue: the last of each, at most.
    pub entries: usize,
    /// Whether bytes within entries are shown: inline data of sends, and short messages within completion
    /// queue entries. They may be user data. No other memory of requests is ever read.
    pub inline: bool,
}

impl Default for DumpOptions {
    /// The last 32 of each, with inline bytes.
    fn default() -> Self {
        Self {
            entries: 32,
            inline: true,
        }
    }
}

/// What a queue pair did last. [`Display`](std::fmt::Display) formats it for operators; serialized it has
/// the same contents.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Record {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Its transport service.
    #[serde(serialize_with = "super::serialize::as_text")]
    pub transport: QpType,
    /// The device's state of the queue pair.
    #[serde(serialize_with = "super::serialize::as_text")]
    pub state: QpState,
    /// The peer's queue pair number; zero before it is connected, and for UD.
    pub dest_qp_num: u32,
    /// Its send queue, counted in basic blocks of 64 bytes.
    pub send_queue: QueueView,
    /// Its own receive queue; `None` if it has none.
    pub recv_queue: Option<QueueView>,
    /// The completion queue of its sends.
    pub send_cq: CqView,
    /// The completion queue of its receives; `None` if it is the same one, or there are no receives.
    pub recv_cq: Option<CqView>,
    /// The last send requests, oldest first.
    pub sends: Vec<SendEntry>,
    /// The last receives, oldest first.
    pub receives: Vec<ReceiveEntry>,
    /// The last completions, in the order of each completion queue.
    pub completions: Vec<CompletionEntry>,
    /// What happened on the control path, oldest first.
    pub notes: Vec<Note>,
}

/// State of a queue. Its counters are free-running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueView {
    /// Slots of its ring.
    pub slots: u32,
    /// Counter of the next request.
    pub counter: u32,
    /// Slots in flight: the device was notified, and they are not retired.
    pub in_flight: u32,
}

/// State of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CqView {
    /// Its number.
    pub cqn: u32,
    /// Number of its entries.
    pub entries: u32,
    /// Index of the next entry to be polled.
    pub consumer_index: u32,
    /// Whether it overran, and lost an entry.
    pub overrun: bool,
    /// Entries, of any queue pair, that were dropped because they belong to no request in flight.
    pub stale: u64,
}
