//! ConnectX devices: core posts to the device's own rings and polls its completion queues directly.
//!
//! ```text
//!   core: SendQueue        RecvQueue, SharedRecvQueue        CompletionQueue, by queue pair number
//!     │ entry, record        │ entry, record                   ▲ entry          │ record, when armed
//!     ▼ BlueFlame            │                                 │                ▼ arm register
//!   the device's rings, by mlx5dv_init_obj ──────────── the device ─────────────┘
//!     ▲ allocated by the domain that a queue is created in
//!   the objects: libibverbs (`bellwire-verbs`), which creates, modifies and destroys them, and takes no part
//!   in posting and polling
//! ```
//!
//! - **Chosen by libmlx5.** The sizes of rings, which are at least what was requested (core uses no more than
//!   that), and the user index, which libmlx5 does not report. Completion queues therefore identify queue
//!   pairs by their numbers.
//! - **Rings outlive their queue pairs.** Entries are read back after a failure, and completions that are
//!   polled late copy inline data to where their requests say. Therefore a queue pair is created in a parent
//!   domain whose allocator provides memory that this crate owns ([`Domain`]).
//! - **Doorbell registers.** The parent domain has a thread domain of its own while the device has registers
//!   left: then the queue pair's doorbell register is shared with no other. Queue pairs that share a register
//!   share a lock; the type of the doorbell says which case it is.
//! - **Queue pair numbers are reused.** Completions of a destroyed queue pair may not have been polled yet
//!   when the device assigns its number to a new one: that queue pair is set aside, and another is created.
//! - **Events.** The program polls without libmlx5, so libmlx5 cannot arm the completion queue: [`Cq::arm`]
//!   does so, with the sequence number that each event advances.
//! - **Ending.** libibverbs does not know what is in the rings, so this crate drains them: in ERR it posts a NOP
//!   behind all sends. The queue pair is destroyed when the NOP and all receives in flight have completed, after 1 s,
//!   or at once if the completion queue failed (see `drain`). The poll drops the NOP's completion as stale. Core
//!   purges the completion queue's entries of a queue pair that is reset.
//! - **Address vectors** are copied from libmlx5's handles. Memory windows are bound by entries that core
//!   builds; the region that each is to be bound to is noted, for when that region is deregistered.
//! - **Consumer record.** A poll returns the entry of each receive at once. A thread that destroys a queue pair
//!   counts the receives in the queue that were not polled. The device's overrun check stays on, because without it
//!   there is no `CQ_ERR`.
//! - **Flushes.** With `suppress_flush`, an unsignalled entry writes no completion when it is flushed, except the
//!   last entry before each doorbell. The completion of that entry retires those before it.
//! - **XRC** is not implemented: completions of an XRC shared receive queue name it by an index that libmlx5 does
//!   not report.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cq;
mod domain;
pub mod drain;
mod entries;
mod rings;
mod srq;

pub use cq::Cq;
pub use domain::Domain;
pub use entries::CI_MASK;
pub use rings::{Doorbell, QpRings};
pub use srq::SrqMemory;

use bellwire_provider::{error, pinned};
use bellwire_verbs::{mlx5dv as dv, sys};
use std::ptr::NonNull;

/// The environment variable that makes ConnectX devices be driven through libibverbs alone, for diagnosis.
const VERBS_ONLY: &str = "BELLWIRE_VERBS_ONLY";

/// Whether a device's rings can be driven without libibverbs, and BELLWIRE_VERBS_ONLY does not forbid it.
///
/// # Safety
/// The context is open.
pub unsafe fn drives(context: NonNull<sys::ibv_context>) -> bool {
    let wanted = std::env::var_os(VERBS_ONLY).is_none_or(|value| value != "1");
    // SAFETY: the caller guarantees that the context is open.
    wanted && unsafe { dv::supports(context) && domain::possible(context) }
}
