//! The device side of a shared receive queue, for software devices: any thread may consume entries.
//!
//! One word holds the whole state, so that a single exchange consumes an entry and clears the limit
//! when it is reached:
//!
//! ```text
//! 63         32  31   30    16 15      0
//! │ consumed   │dead│ limit   │ head   │
//! ```
//!
//! `consumed` counts every entry taken, so that the exchange of a thread that was overtaken fails
//! even if the same entry is at the head again. It is therefore harmless if such a thread has read
//! a link that the poster was writing for a later round.

use crate::port::DoorbellRecord;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wqe::SrqRing;
use crossbeam_utils::CachePadded;

const HEAD: u64 = 0xffff;
const LIMIT_SHIFT: u32 = 16;
const LIMIT: u64 = 0x7fff << LIMIT_SHIFT;
const DEAD: u64 = 1 << 31;
const CONSUMED_SHIFT: u32 = 32;

/// The consuming side of a shared receive queue. Any number of threads may consume from it.
#[derive(Debug)]
pub struct SrqConsumer<'m> {
    ring: SrqRing<'m>,
    record: &'m DoorbellRecord,
    state: CachePadded<AtomicU64>,
}

/// An entry that was consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Popped {
    /// Its index in the ring, which is the counter of its CQE. The entry belongs to the thread that
    /// consumed it until the CQE is written.
    pub index: u16,
    /// Fewer entries than the limit are left, for the first time: raise `SRQ_LIMIT_REACHED`. The
    /// limit is zero now.
    pub limit_reached: bool,
}

impl<'m> SrqConsumer<'m> {
    /// The device side of a [`SharedRecvQueue`](super::SharedRecvQueue) to which nothing was posted
    /// yet, on the same ring and doorbell record. No limit is set.
    pub fn new(ring: SrqRing<'m>, record: &'m DoorbellRecord) -> Self {
        Self {
            ring,
            record,
            state: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The ring, to read the consumed entries.
    #[inline(always)]
    pub fn ring(&self) -> &SrqRing<'m> {
        &self.ring
    }

    /// Entries posted and not consumed.
    pub fn available(&self) -> u32 {
        // Acquire: pairs with the Release in `pop`, so that `consumed` is never ahead of the
        // doorbell record.
        let state = self.state.load(Ordering::Acquire);
        u32::from(self.posted_since(state))
    }

    #[inline(always)]
    fn posted_since(&self, state: u64) -> u16 {
        (self.record.load() as u16).wrapping_sub((state >> CONSUMED_SHIFT) as u16)
    }

    /// Consumes the oldest entry. `None`: nothing is posted, or the queue [failed](Self::fail).
    #[inline(always)]
    pub fn pop(&self) -> Option<Popped> {
        // Acquire: pairs with the Release below, so that the doorbell record read here is at least
        // as new as the one that the last consumer saw, and `consumed` is never ahead of it.
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & DEAD != 0 {
                return None;
            }
            let available = self.posted_since(state);
            if available == 0 {
                // Acquire: pairs with the Release below. The record has 16 bits: if others have
                // consumed 65536 entries meanwhile, the old count matches it by chance.
                let now = self.state.load(Ordering::Acquire);
                if now == state {
                    return None;
                }
                state = now;
                continue;
            }
            let head = (state & HEAD) as u32;
            let limit = (state & LIMIT) >> LIMIT_SHIFT;
            let limit_reached = u64::from(available - 1) < limit;
            let left = if limit_reached { 0 } else { state & LIMIT };
            let consumed = (state >> CONSUMED_SHIFT).wrapping_add(1) << CONSUMED_SHIFT;
            let next = consumed | left | u64::from(self.ring.next(head));
            // Release: pairs with the Acquires here. The link was read before, and is not
            // overwritten before the entry is consumed, which happens here.
            match self.state.compare_exchange_weak(
                state,
                next,
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    return Some(Popped {
                        index: head as u16,
                        limit_reached,
                    });
                }
                Err(now) => state = now,
            }
        }
    }

    /// The limit; zero when none is set, or when it was reached.
    pub fn limit(&self) -> u16 {
        // Relaxed: orders nothing else.
        ((self.state.load(Ordering::Relaxed) & LIMIT) >> LIMIT_SHIFT) as u16
    }

    /// Sets the limit: the first `pop` that leaves fewer entries reports it. Zero sets none. Only
    /// 15 bits are used; a ring has no more entries.
    pub fn set_limit(&self, limit: u16) {
        let limit = u64::from(limit) << LIMIT_SHIFT & LIMIT;
        self.change(|state| state & !LIMIT | limit);
    }

    /// Moves the queue to the error state: no more entries are consumed.
    pub fn fail(&self) {
        self.change(|state| state | DEAD);
    }

    /// Whether the queue has failed.
    pub fn failed(&self) -> bool {
        // Relaxed: orders nothing else.
        self.state.load(Ordering::Relaxed) & DEAD != 0
    }

    fn change(&self, new: impl Fn(u64) -> u64) {
        // Relaxed: only a guess for the exchange.
        let mut state = self.state.load(Ordering::Relaxed);
        // Relaxed: publishes nothing. As a read-modify-write it continues the release sequence of
        // the last consumer.
        while let Err(now) = self.state.compare_exchange_weak(
            state,
            new(state),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            state = now;
        }
    }
}
