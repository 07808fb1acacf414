//! The part of bellwire that knows no operating system: work-queue and completion entries in the
//! ConnectX format, lock-free rings, slabs, queues and queue-pair states.
//!
//! No `std`, no `alloc`: all memory is the caller's. Rust programs depend on the crate `bellwire`,
//! which re-exports this one and adds devices, memory and connections.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod access;
pub mod barrier;
pub mod be;
pub mod cqe;
pub mod event;
pub mod fault;
pub mod port;
pub mod qp;
pub mod queue;
#[cfg(test)]
mod random;
pub mod ring;
pub mod slab;
mod sync;
pub mod wqe;
pub mod wr;
