//! What a queue pair keeps for whoever reads the packets of its peer: with or without the device's lock.
//!
//! ```text
//!  owner                              while
//!  the reader of the peer's packets   `accepts` names the peer (receiving), or the queue pair is not
//!                                     `closed` (acknowledging); it has the peer's turn, and is in a
//!                                     section (see `Reading`) or holds the device's lock
//!  the holder of the device's lock    otherwise, after it has waited for all of these sections
//! ```

use super::super::cq::CqCtx;
use super::Sources;
use bellwire_core::wqe::SendRing;
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;

/// See the module. What an acknowledgement needs is in front, in one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Inbound {
    /// As a requester: number of the oldest unacknowledged request, in 16 bits.
    pub acked: AtomicU32,
    /// As a requester: how its requests are completed when they are acknowledged.
    pub completing: UnsafeCell<Option<Completing>>,
    pub sources: UnsafeCell<Sources>,
}

const _: () = assert!(offset_of!(Inbound, sources) <= 64);

/// What completes a requester's acknowledged requests.
#[derive(Clone, Copy, Debug)]
pub struct Completing {
    pub ring: SendRing<'static>,
    pub cq: &'static CqCtx,
    pub qpn: u32,
    pub user_index: u32,
    pub life: u16,
    /// The place of the peer's node, and its incarnation.
    pub slot: usize,
    pub incarnation: u64,
}
