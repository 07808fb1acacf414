//! The software HCA's communication manager.
//!
//! ```text
//!  server                                        client
//!  Id: bound ── socket at ".../cm/SPACE/PORT/NAME" ◄── connects ── Id
//!  child ◄──────────── one socket for each connection ───────────► Id
//!           REQ, MRA, REP, RTU, REJ, DREQ, DREP; SIDR_REQ, SIDR_REP
//! ```
//!
//! An end is a Unix socket with an address in the kernel's abstract namespace, within a process and
//! between processes: ports are in use as long as somebody has them, and go with the process, as
//! connections do. Both ends check each other's user (SO_PEERCRED), and every message. What is to be
//! found by whom has a scope: a fabric, or one device that is on none.
//!
//! - **channel**, **id**, **dialog**: what the program calls. **hub**: what stands behind a channel; it has no thread.
//! - **entry**: an id's states, and how messages and time change them.
//! - **socket**, **message**, **params**, **private**: what the two ends say to each other.
//! - **faults**: what the device has to tell. **multicast**: groups.
//!
//! Every IP address is this machine's. Time is the machine's, on a device with a virtual clock as well.

mod channel;
mod dialog;
mod entry;
mod faults;
mod hub;
mod id;
mod message;
mod multicast;
mod params;
mod private;
mod socket;

pub(in crate::connect::cm) use channel::Channel;
pub(crate) use faults::Managers;
pub(in crate::connect::cm) use id::Id;
