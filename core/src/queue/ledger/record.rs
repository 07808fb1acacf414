//! The records of requests in flight, and where they are.

use crate::slab::Block;
use crate::sync::UnsafeCell;
use crate::wr::WcOpcode;
use core::ptr::NonNull;

/// The record of one request in flight. Created by [`Default`] in memory that the caller passes to
/// [`Ledger::new`](super::Ledger::new).
#[derive(Debug)]
#[repr(align(32))]
pub struct LedgerSlot<'m>(pub(super) UnsafeCell<Record<'m>>);

/// One request in flight.
#[derive(Debug)]
pub struct Record<'m> {
    /// The caller's identifier.
    pub wr_id: u64,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
    /// The counter behind it: it takes at least one slot, and at most [`MOST_SLOTS`].
    pub end: u32,
    /// Goes up by one with each request of the queue. Lets a completion count the requests that it retires
    /// without looking at each.
    pub number: u32,
    /// The opcode of its completion. `None`: the slot was never used.
    pub opcode: Option<WcOpcode>,
}

/// Most ring slots of a request: the blocks of the longest send entry.
pub const MOST_SLOTS: u32 = 16;

impl<'m> Record<'m> {
    /// A receive with this counter behind it.
    #[inline(always)]
    pub fn of_receive(wr_id: u64, block: Option<Block<'m>>, end: u32) -> Self {
        Self {
            wr_id,
            block,
            end,
            // Each takes one slot, and only differences count: one value for both.
            number: end,
            opcode: Some(WcOpcode::Recv),
        }
    }

    /// The slots of the request that begins at `counter`. `None`: none was recorded there.
    #[inline(always)]
    pub fn slots_at(&self, counter: u32) -> Option<u32> {
        let slots = self.end.wrapping_sub(counter);
        let is_there = slots.wrapping_sub(1) < MOST_SLOTS && self.opcode.is_some();
        is_there.then_some(slots)
    }
}

static_assertions::const_assert!(cfg!(loom) || size_of::<LedgerSlot<'static>>() == 32);

impl Default for LedgerSlot<'_> {
    fn default() -> Self {
        Self(UnsafeCell::new(Record {
            wr_id: 0,
            block: None,
            end: 0,
            number: 0,
            opcode: None,
        }))
    }
}

/// The records of a ledger, whose number is a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'m> {
    mask: u32,
    slots: &'m [LedgerSlot<'m>],
}

/// Most slots of a ring.
pub const MAX_SLOTS: u32 = 1 << 15;

impl<'m> Slots<'m> {
    /// `None` unless their number is a power of two and at most [`MAX_SLOTS`].
    pub fn new(slots: &'m mut [LedgerSlot<'m>]) -> Option<Self> {
        let fits = slots.len().is_power_of_two() && slots.len() <= MAX_SLOTS as usize;
        fits.then(|| Self {
            mask: slots.len() as u32 - 1,
            slots,
        })
    }

    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline(always)]
    pub fn at(&self, counter: u32) -> &'m UnsafeCell<Record<'m>> {
        // SAFETY: their number is a power of two, so the mask keeps the index within them.
        unsafe { &self.slots.get_unchecked((counter & self.mask) as usize).0 }
    }

    pub fn records(&self) -> Records<'m> {
        Records(NonNull::from_ref(self.slots).cast())
    }
}

/// The records of a ledger, for its poster.
#[derive(Clone, Copy, Debug)]
pub struct Records<'m>(NonNull<LedgerSlot<'m>>);

// SAFETY: only what is written and read of a record, by the poster and the poller, is not `Sync`; see
// `Ledger`.
unsafe impl Send for Records<'_> {}
// SAFETY: as above.
unsafe impl Sync for Records<'_> {}

impl<'m> Records<'m> {
    /// The record with this index.
    ///
    /// # Safety
    /// The ledger has so many.
    #[inline(always)]
    pub unsafe fn at(&self, index: usize) -> Place<'m> {
        // SAFETY: within the slots, which live for `'m`.
        Place(unsafe { &self.0.add(index).as_ref().0 })
    }
}

/// Where a request is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Place<'m>(pub(super) &'m UnsafeCell<Record<'m>>);
