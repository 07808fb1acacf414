//! The part of bellwire that does not depend on an operating system: work queue entries and
//! completion queue entries in the ConnectX format, slabs, queues and queue pair states.
//!
//! No `std`, no `alloc`: the caller provides all memory. Rust programs depend on the crate
//! `bellwire`, which re-exports this one and adds devices, memory and connections.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod access;
pub mod barrier;
pub mod be;
pub mod cqe;
pub mod event;
pub mod fault;
pub mod guarded;
pub mod link;
pub mod op;
pub mod port;
pub mod qp;
pub mod queue;
#[cfg(test)]
mod random;
pub mod shared;
pub mod slab;
mod sync;
pub mod wqe;
pub mod wr;
