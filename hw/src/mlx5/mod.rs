//! ConnectX devices: core posts into the device's own rings and polls its own completion queues.
//!
//! ```text
//!   core: SendQueue        RecvQueue, SharedRecvQueue        CompletionQueue, by queue pair number
//!     │ entry, record        │ entry, record                   ▲ entry          │ record, when armed
//!     ▼ BlueFlame            │                                 │                ▼ arm register
//!   the device's rings, by mlx5dv_init_obj ──────────── the device ─────────────┘
//!     ▲ allocated by the domain that a queue is made in
//!   the objects: libibverbs (`verbs`), which is asked to make, change and destroy them, and told nothing
//!   of what is posted and polled
//! ```
//!
//! - **What libmlx5 chooses** is taken as it comes: the sizes of rings, which are at least what was asked
//!   for (core keeps to what was asked for), and the user index, which it tells nobody. So completion
//!   queues know queue pairs by their numbers.
//! - **Rings outlive their queue pairs.** Entries are read back after a failure, and completions that are
//!   polled late put inline data where their requests say. So a queue pair is made in a parent domain
//!   whose allocator gives memory of ours ([`Domain`]).
//! - **Registers.** The domain has a thread domain of its own where the device has registers left: the
//!   queue pair's doorbell is nobody else's then. Where not, those who share one share a lock, by the
//!   type of their doorbell.
//! - **Numbers come again.** A queue pair that is gone may have completions that nobody polled yet, and
//!   the device may give its number to the next: that one is put aside, and another made.
//! - **Events.** The program polls behind libmlx5's back, so that it cannot arm: [`Cq::arm`] does, with the
//!   sequence number that each event taken moves on.

mod cq;
mod domain;
pub(crate) mod drain;
mod dv;
mod register;
mod rings;
mod srq;

pub(crate) use cq::{CI_MASK, Cq};
pub(crate) use domain::Domain;
use dv::Library;
pub(crate) use dv::address_vector;
pub(crate) use register::Registers;
pub(crate) use rings::QpRings;
pub(crate) use srq::SrqMemory;

use crate::verbs::sys;
use std::ptr::NonNull;

/// The variable that has ConnectX devices driven by libibverbs alone, for diagnosis.
const VERBS_ONLY: &str = "BELLWIRE_VERBS_ONLY";

/// Whether a device's rings can be driven without libibverbs, and are to be.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn drives(context: NonNull<sys::ibv_context>) -> bool {
    let wanted = std::env::var_os(VERBS_ONLY).is_none_or(|value| value != "1");
    // SAFETY: the caller's promise.
    wanted
        && unsafe {
            Library::get().is_some_and(|library| library.supports(context))
                && domain::possible(context)
        }
}
