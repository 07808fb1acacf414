//! The software HCA's communication manager.
//!
//! ```text
//!  server                                        client
//!  Id: bound ── socket at ".../cm/SPACE/PORT/ADDRESS" ◄── connects ── Id
//!  child ◄──────────── one socket for each connection ───────────► Id
//!           REQ, MRA, REP, RTU, REJ, DREQ, DREP; SIDR_REQ, SIDR_REP
//! ```
//!
//! An end is a Unix socket with an address in the kernel's abstract namespace, both within a process and
//! between processes: a port is in use as long as its socket is open, and is released with the process,
//! as are connections. Both ends check each other's user (SO_PEERCRED), and every message. Ends find each
//! other only within a scope: a user's fabric, or a single device without one.
//!
//! - **channel**, **id**, **dialog**: the calls of the program. **hub**: the inside of a channel; it has
//!   no thread.
//! - **entry**: the states of an id, and how messages and timeouts change them.
//! - **peers**: the processes at the other ends.
//! - **socket**, **message**, **params**, **private**: the messages between two ends.
//! - **remote_qp**: the queue pairs of peers that have a connection, and cannot have another.
//! - **multicast**: groups.
//! - **why**: the reason of a refusal, in words.
//! - **address**: addresses of this host, and their ports.
//!
//! One lock protects a channel. Events that the program has not got hold no id; those that it has got
//! hold theirs.
//!
//! - **Backlog.** The socket of a listener whose backlog is full is not watched. A connector that comes
//!   then waits in the kernel's queue, and gets `UNREACHABLE` after 5 s.
//! - **Silent peers.** A peer that connects to a listener and sends no request takes nothing from the backlog. Of those
//!   there are 64 places for a second each, shared by process; beyond its share a peer is closed.
//! - **Stale connections.** The queue pair of a peer that has a connection with this process cannot
//!   have another one until the program has released the first: REJ with reason 10, as on Linux.
//! - **Closing a socket** is a REJ with reason 28 before the connection is made, and a DREQ afterwards,
//!   as when the kernel cleans up after a program.
//! - **Events.** A port that is down causes `ADDR_ERROR`, `ROUTE_ERROR` and `MULTICAST_ERROR`, and a
//!   device that fails `DEVICE_REMOVAL`. An address of another host cannot be bound to (EADDRNOTAVAIL)
//!   or reached (`ADDR_ERROR`). Events that have no cause here are injected by `Fault::Cm`.
//!
//! Time is the machine's, also on a device with a virtual clock.

mod address;
mod channel;
mod dialog;
mod entry;
mod hub;
mod id;
mod message;
#[cfg(fuzzing)]
pub use message::fuzz;
mod multicast;
mod params;
mod peers;
mod private;
mod remote_qp;
mod socket;
mod why;

pub(in crate::connect::cm) use channel::Channel;
pub(in crate::connect::cm) use id::Id;
pub(in crate::connect::cm) use peers::PeerProcess;
