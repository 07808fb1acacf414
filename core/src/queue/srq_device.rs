//! A software device's side of a shared receive queue: taking entries, from any thread.
//!
//! One word says where the queue stands, so that taking an entry, and taking the limit when it is
//! reached, is one exchange:
//!
//! ```text
//! 63         32  31   30    16 15      0
//! │ consumed   │dead│ limit   │ head   │
//! ```
//!
//! `consumed` counts every entry taken, so that the exchange of a popper that was overtaken fails,
//! even where the same entry has come round to the head again. That makes it harmless that such a
//! popper has read a link which the poster is writing for another round.

use crate::port::DoorbellRecord;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wqe::SrqRing;
use crossbeam_utils::CachePadded;

const HEAD: u64 = 0xffff;
const LIMIT_SHIFT: u32 = 16;
const LIMIT: u64 = 0x7fff << LIMIT_SHIFT;
const DEAD: u64 = 1 << 31;
const CONSUMED_SHIFT: u32 = 32;

/// The consuming half of a shared receive queue. Any number of threads take from it.
#[derive(Debug)]
pub struct SrqConsumer<'m> {
    ring: SrqRing<'m>,
    record: &'m DoorbellRecord,
    state: CachePadded<AtomicU64>,
}

/// An entry that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Popped {
    /// Its index in the ring: the counter that its completion entry bears. It is the taker's until
    /// that is written.
    pub index: u16,
    /// Fewer entries than the limit are left, and were not before: `SRQ_LIMIT_REACHED` is to be
    /// raised. The limit is zero now.
    pub limit_reached: bool,
}

impl<'m> SrqConsumer<'m> {
    /// The other end of a [`SharedRecvQueue`](super::SharedRecvQueue) from which nothing was posted
    /// yet, on the same ring and record. No limit is set.
    pub fn new(ring: SrqRing<'m>, record: &'m DoorbellRecord) -> Self {
        Self {
            ring,
            record,
            state: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The ring, to read the entries taken.
    #[inline(always)]
    pub fn ring(&self) -> &SrqRing<'m> {
        &self.ring
    }

    /// Entries posted and not taken.
    pub fn available(&self) -> u32 {
        // Acquire: as in `pop`.
        let state = self.state.load(Ordering::Acquire);
        u32::from(self.posted_since(state))
    }

    #[inline(always)]
    fn posted_since(&self, state: u64) -> u16 {
        (self.record.load() as u16).wrapping_sub((state >> CONSUMED_SHIFT) as u16)
    }

    /// Takes the oldest entry. `None`: nothing is posted, or the queue [failed](Self::fail).
    #[inline(always)]
    pub fn pop(&self) -> Option<Popped> {
        // Acquire: partner of the release below. The record that the last popper saw is what we see
        // at the least, so that `consumed` is never ahead of it.
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & DEAD != 0 {
                return None;
            }
            let available = self.posted_since(state);
            if available == 0 {
                // Acquire: as above. The record has 16 bits: had others taken 65536 entries
                // meanwhile, the old count would match it by chance.
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
            // Release: partner of the acquires here. The link was read before, and is not written
            // again before the entry was taken, which is here.
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

    /// The limit; zero when none is set, or the one that was is reached.
    pub fn limit(&self) -> u16 {
        // Relaxed: a number on its own.
        ((self.state.load(Ordering::Relaxed) & LIMIT) >> LIMIT_SHIFT) as u16
    }

    /// Sets the limit: the first pop that leaves fewer entries reports it. Zero sets none. Only 15
    /// bits are used; a ring has no more entries.
    pub fn set_limit(&self, limit: u16) {
        let limit = u64::from(limit) << LIMIT_SHIFT & LIMIT;
        self.change(|state| state & !LIMIT | limit);
    }

    /// Takes the queue to the error state: nothing is taken any more.
    pub fn fail(&self) {
        self.change(|state| state | DEAD);
    }

    /// Whether the queue has failed.
    pub fn failed(&self) -> bool {
        // Relaxed: a flag on its own.
        self.state.load(Ordering::Relaxed) & DEAD != 0
    }

    fn change(&self, new: impl Fn(u64) -> u64) {
        // Relaxed: only a guess for the exchange.
        let mut state = self.state.load(Ordering::Relaxed);
        // Relaxed: publishes nothing. What the last popper released is passed on, as every exchange
        // does.
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
