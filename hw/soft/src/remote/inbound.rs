//! What a queue pair keeps for whoever reads the packets of its peer: with or without the device's lock.
//!
//! ```text
//!  owner                              while
//!  the reader of the peer's packets   `accepts` names the peer (receiving), or the queue pair is not
//!                                     `closed` (acknowledging); it has the peer's turn, and is in the
//!                                     section of the peer's reader or holds the device's lock
//!  the holder of the device's lock    otherwise, after it has waited for that section
//! ```

use super::super::cq::CqCtx;
use super::Sources;
use crate::sync::atomic as sync;
use bellwire_core::wqe::SendRing;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Inbound {
    /// Incarnation of the node whose requests are taken; zero: none yet.
    pub incarnation: AtomicU64,
    /// It is in the peer's list of queue pairs that owe an acknowledgement.
    pub listed: AtomicBool,
    pub expected: Expected,
    pub sources: UnsafeCell<Sources>,
    /// As a requester: number of the oldest unacknowledged request, in 16 bits.
    pub acked: AtomicU32,
    /// As a requester: how its requests are completed when they are acknowledged.
    pub completing: UnsafeCell<Option<Completing>>,
}

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

/// The number of the request that a responder takes next, and the requester's life.
#[derive(Debug, Default)]
pub struct Expected(sync::AtomicU64);

/// There has been a request.
const KNOWN: u64 = 1 << 32;
/// The next one may be received without the device's lock: the queue pair is an RC queue pair, and owes no response
/// that is more than an acknowledgement.
const OPEN: u64 = 1 << 33;

impl Expected {
    /// Relaxed, here and below: each has one owner at a time, and what passes it on orders it.
    pub fn get(&self) -> Option<(u16, u16)> {
        let word = self.0.load(Ordering::Relaxed);
        (word & KNOWN != 0).then_some(((word >> 16) as u16, word as u16))
    }

    pub fn set(&self, life: u16, msn: u16, opens: bool) {
        let open = if opens { OPEN } else { 0 };
        let word = open | KNOWN | u64::from(life) << 16 | u64::from(msn);
        self.0.store(word, Ordering::Relaxed);
    }

    /// Whether it is the request of this number, with its life above 16 bits, and may be received without the
    /// device's lock.
    #[inline(always)]
    pub fn is_open_for(&self, number: u32) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN | KNOWN | u64::from(number)
    }

    /// The request of this number was received, and the next one may be as well.
    #[inline(always)]
    pub fn pass(&self, number: u32) {
        let next = number & !0xffff | u32::from((number as u16).wrapping_add(1));
        (self.0).store(OPEN | KNOWN | u64::from(next), Ordering::Relaxed);
    }

    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) & OPEN != 0
    }

    /// The next request is read under the lock.
    pub fn close(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !OPEN, Ordering::Relaxed);
    }

    /// No request has arrived yet.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
