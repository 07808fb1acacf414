//! The software HCA behind rings that somebody else writes and polls.
//!
//! A device has two sides: whoever posts and polls, and whoever reads the rings. The crate's own
//! queues are both. Here is the second one alone, for a process in which another library posts and
//! polls in the ConnectX formats, and takes what is below for a NIC (`tests/uverbs-preload` is one).
//! Nothing is copied or translated: the HCA reads and writes the entries where they are.
//!
//! ```text
//! somebody's library                            this module, and the thread of its user
//!   send entries, doorbell record ────────────► Qp::look_at_sends
//!   receive entries, doorbell record ─────────► the HCA, when a message comes
//!                                               Qp::look_at_receives, in the error state
//!   completion entries ◄──────────────────────  the HCA
//!   consumer record ──────────────────────────► the HCA
//!   arm record ───────────────────────────────► Cq::look_at_arm
//! ```
//!
//! Who rings no bell that this process could hear is watched: its user calls the `look_at_`
//! functions when a register was written, from one thread, which executes the entries when the device
//! is in [`Mode::Inline`](crate::soft::Mode).
//!
//! What stands in the rings is not trusted: sizes are bounded by the ring, and addresses go through
//! keys.

mod cq;
mod qp;
mod srq;

pub use cq::{Cq, CqInit};
pub use qp::{Qp, QpInit, Receives, Ring};
pub use srq::{Srq, SrqInit};

use crate::error::Error;

/// A ring or a size that the format does not have.
fn does_not_fit(what: &'static str, given: u32, max: u32) -> Error {
    Error::TooLarge {
        what,
        given: given.into(),
        max: max.into(),
    }
}
