//! The protocol by which the two ends of a connection recover together: a state machine that performs no
//! input or output, starts no threads, reads no clock and allocates nothing.
//!
//! ```text
//!    a                                                     b
//!    fault
//!    ERR, drain, RESET (or destroy and create)
//!    Info {epoch 2, queue pair, receives consumed} ──────► ERR, drain, RESET
//!        ◄────────────────────────────── Info {epoch 2, queue pair, receives consumed}
//!    INIT, receives again, RTR, RTS                        INIT, receives again, RTR, RTS
//!    Ready {epoch 2} ────────────────────────────────────►
//!        ◄──────────────────────────────────────────────── Ready {epoch 2}
//!    settle outcomes, replay, open                         settle outcomes, replay, open
//! ```
//!
//! A driver asks a [`Protocol`] what to do [`next`](Protocol::next), and does it. It passes in what happens:
//!
//! | in | out |
//! |---|---|
//! | [`fault`](Protocol::fault), and the time | [`Action::Step`]: a step to carry out on the device |
//! | [`receive`](Protocol::receive): a message of the peer | [`Action::Describe`]: this end's address and counts are due |
//! | [`lost`](Protocol::lost): no more messages will come | [`Action::Send`]: a message to the peer |
//! | [`done`](Protocol::done), [`described`](Protocol::described) | [`Action::Ended`]: the recovery is over |
//! | [`close`](Protocol::close): the program closes the link | [`deadline`](Protocol::deadline): when to ask again |
//!
//! - Each connection has a number, its epoch. The end that fails asks for the next epoch, which is a fault at
//!   the other end; if both fail at once, both ask for the same one. A fault during a recovery asks for a
//!   further epoch. Before the peer's Info of this epoch has been used a newer one changes nothing: it is used
//!   instead.
//! - An end sends one Info for each epoch, when its queue pair is in RESET. So the count of consumed receives
//!   that it contains is final. It settles what was posted on the connection that it names, whatever epoch it
//!   arrives with; the first count of a connection applies.
//! - The epochs of each end only grow. An end that starts over is another process, which knows nothing of the
//!   link: the link ends with [`EndReason::PeerRestarted`].
//! - A peer that is silent is waited for as long as [`Limits::exchange`] and [`Limits::ready`] allow, and
//!   [`Limits::recovery`] bounds the whole. The steps and their deadlines are those of
//!   [`fault::plan`](crate::fault::plan).
//! - The first connection is a recovery from nothing.
//! - A close lets what was posted continue for a given time, a recovery included, then flushes it. Both are
//!   bounded, too.
//!
//! The messages must arrive whole, in order and once; if one is lost, both ends still end in time. What they
//! contain is not trusted.

// Miri leaves these tests out: there is nothing for it to find.
#![forbid(unsafe_code)]

mod info;
mod message;
mod peer;
mod protocol;
#[cfg(test)]
mod tests;
pub mod wire;

pub use info::{ConnInfo, Endpoint, RemoteMemory};
pub use message::{Message, MessageBytes, RecoveryInfo};
pub use peer::PeerError;
pub use protocol::{Action, LinkEnd, LocalInfo, PeerLoss, Protocol};
pub use wire::FormatError;

#[cfg(doc)]
use crate::fault::plan::{EndReason, Limits};
