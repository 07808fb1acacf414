//! Nodes of a fabric: software HCAs of several processes that find each other by a name, and the
//! memory that each two of them share.
//!
//! ```text
//!  process A                                     process B
//!  Node ── listens at "…/NAME/0" ◄── connects ── Node (next free place)
//!    │            hello, descriptors (SCM_RIGHTS), the peer's user checked
//!    ├─ segment that A writes and B reads: lines of packets, how far A has read B's
//!    └─ segment that B writes and A reads: the same the other way round
//! ```
//!
//! Nothing in shared memory is a pointer, and nobody can write what another one owns: segments are
//! sealed against it. What is read from a peer's is copied, then checked, then used.
//!
//! Addresses are of the kernel's abstract namespace, and memory is of memfds: however a process
//! goes, nothing of it stays.

mod address;
mod export;
mod hello;
mod node;
mod peer;
mod readable;
mod segment;
mod window;
mod wire;

pub(crate) use export::{Export, Memory, Shown};
pub(crate) use node::{Agreed, Met, Node, lid};
pub(crate) use peer::Peer;
pub(crate) use readable::unreadable;
pub(crate) use segment::Face;
pub(crate) use wire::{Header, Kind, MAX_PACKET, Packet, Room, Send};

/// Nodes that a fabric can have at once.
pub(crate) const MAX_NODES: usize = 64;
