//! What a dump has.

use super::{CompletionEntry, Note, ReceiveEntry, SendEntry};
use bellwire_core::qp::QpState;
use bellwire_core::wr::QpType;

/// What goes into a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// Send entries, receives, and completions of each completion queue, at most: the last ones.
    pub entries: usize,
    /// Whether the bytes that stand in entries are shown: inline data of sends, and short messages that
    /// came within completion entries. They may be user data. No other memory of requests is ever read.
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

/// What a queue pair did last. [`Display`](std::fmt::Display) is for operators; with the feature
/// `serde` it can be serialized, with the same facts.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Record {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Its transport service.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text"))]
    pub transport: QpType,
    /// The device's state of it.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text"))]
    pub state: QpState,
    /// The peer's queue pair; zero before it is connected, and of UD.
    pub dest_qp_num: u32,
    /// Its send queue, counted in basic blocks of 64 bytes.
    pub send_queue: QueueView,
    /// Its own receive queue; `None`: it has none.
    pub recv_queue: Option<QueueView>,
    /// Where its sends complete.
    pub send_cq: CqView,
    /// Where its receives complete; `None`: on the same queue, or it has none.
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

/// How a queue stands. Counters run freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QueueView {
    /// Slots of its ring.
    pub slots: u32,
    /// Counter of the next request.
    pub counter: u32,
    /// Slots in flight: rung and not told.
    pub in_flight: u32,
}

/// How a completion queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CqView {
    /// Its number.
    pub cqn: u32,
    /// Entries.
    pub entries: u32,
    /// Index of the entry that is polled next.
    pub consumer_index: u32,
    /// Whether an entry was lost.
    pub overrun: bool,
    /// Entries, of any queue pair, that were dropped because they told of no request in flight.
    pub stale: u64,
}
