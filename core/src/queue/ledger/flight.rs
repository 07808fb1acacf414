//! The requests in flight, as the poller sees them.

use super::record::{Record, Slots};
use crate::sync::UnsafeCell;
use crate::wr::WcOpcode;

/// A request that the poller found in flight.
#[derive(Clone, Copy, Debug)]
pub struct Located<'m> {
    pub counter: u32,
    pub retired: u32,
    pub(super) slot: &'m UnsafeCell<Record<'m>>,
}

/// A request that the poller took.
#[derive(Debug)]
pub struct Taken<'m> {
    pub wr_id: u64,
    pub counter: u32,
    pub opcode: WcOpcode,
    /// How many requests are retired with it, itself included.
    pub retired: u32,
    /// The counter behind it.
    pub(super) end: u32,
    pub(super) slot: &'m UnsafeCell<Record<'m>>,
}

/// The requests in flight, as the poller found them.
#[derive(Clone, Copy, Debug)]
pub struct Flight<'m> {
    /// The oldest.
    pub(super) retired: u32,
    /// Behind the last.
    pub(super) posted: u32,
    pub(super) slots: Slots<'m>,
}

impl<'m> Flight<'m> {
    /// The oldest.
    #[inline(always)]
    pub fn next(&self) -> Option<Located<'m>> {
        (self.posted != self.retired).then(|| self.at(self.retired))
    }

    /// Whether the oldest has a counter with these low 16 bits.
    #[inline(always)]
    pub fn oldest_is(&self, counter: u16) -> bool {
        self.posted != self.retired && self.retired as u16 == counter
    }

    /// The oldest.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    pub unsafe fn oldest(&self) -> Located<'m> {
        self.at(self.retired)
    }

    /// The one whose counter has these low 16 bits.
    #[inline(always)]
    pub fn locate(&self, counter: u16) -> Option<Located<'m>> {
        let ahead = u32::from(counter.wrapping_sub(self.retired as u16));
        let located = self.at(self.retired.wrapping_add(ahead));
        let live = ahead < self.posted.wrapping_sub(self.retired)
            && located
                .slot
                // SAFETY: the slot is below `posted`, so the poster does not write it until it is
                // released.
                .with(|slot| unsafe { (*slot).slots_at(located.counter) }.is_some());
        live.then_some(located)
    }

    /// The one that begins at `counter`.
    #[inline(always)]
    fn at(&self, counter: u32) -> Located<'m> {
        Located {
            counter,
            retired: self.retired,
            slot: self.slots.at(counter),
        }
    }

    /// Goes on behind a request that the poller has taken.
    #[inline(always)]
    pub fn pass(&mut self, taken: &Taken<'m>) {
        self.retired = taken.end;
    }
}
