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
use crate::fabric::Number;
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

/// The number of the request that a responder takes next: no more, in the usual case.
#[derive(Debug)]
pub struct Expected(sync::AtomicU64);

/// There has been no request.
const UNKNOWN: u64 = 1 << 32;
/// The next one is read under the device's lock: the queue pair is no RC queue pair, or owes a response that is more
/// than an acknowledgement.
const CLOSED: u64 = 1 << 33;

impl Default for Expected {
    fn default() -> Self {
        Self(sync::AtomicU64::new(UNKNOWN | CLOSED))
    }
}

impl Expected {
    /// Relaxed, here and below: each has one owner at a time, and what passes it on orders it.
    pub fn get(&self) -> Option<(u16, u16)> {
        let word = self.0.load(Ordering::Relaxed);
        let number = Number::of_word(word as u32);
        (word & UNKNOWN == 0).then_some((number.life(), number.msn()))
    }

    pub fn set(&self, life: u16, msn: u16, opens: bool) {
        let closed = if opens { 0 } else { CLOSED };
        let number = Number::new(life, msn);
        (self.0).store(closed | u64::from(number.word()), Ordering::Relaxed);
    }

    /// Whether it is the request of this number, and may be received without the device's lock.
    #[inline(always)]
    pub fn is_open_for(&self, number: Number) -> bool {
        self.0.load(Ordering::Relaxed) == u64::from(number.word())
    }

    /// The request for which it [is open](Self::is_open_for) was received, and the next one may be as well. Returns the
    /// number of that request.
    #[inline(always)]
    pub fn pass(&self) -> Number {
        let number = Number::of_word(self.0.load(Ordering::Relaxed) as u32);
        (self.0).store(number.next().word().into(), Ordering::Relaxed);
        number
    }

    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLOSED == 0
    }

    /// The next request is read under the lock.
    pub fn close(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word | CLOSED, Ordering::Relaxed);
    }

    /// No request has arrived yet.
    pub fn forget(&self) {
        self.0.store(UNKNOWN | CLOSED, Ordering::Relaxed);
    }
}
