//! A table from queue pair numbers to slots.

/// An entry of a [`NumberTable`]. Created by [`Default`] in memory that the caller provides.
#[derive(Clone, Copy, Debug)]
pub struct NumberSlot {
    qp_num: u32,
    slot: u32,
}

/// A free entry: queue pair numbers have 24 bits.
const FREE: u32 = u32::MAX;

impl Default for NumberSlot {
    fn default() -> Self {
        Self {
            qp_num: FREE,
            slot: 0,
        }
    }
}

/// Why a [`NumberTable`] refuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// Half of the entries are used.
    Full {
        /// Numbers that the table has room for.
        slots: usize,
    },
    /// It has the number already.
    Taken,
}

/// A hash table with linear probing, at least half empty. Devices assign ascending numbers, so that the
/// first probe is nearly always the right one.
#[derive(Debug)]
pub struct NumberTable<'m> {
    table: &'m mut [NumberSlot],
    used: usize,
}

impl<'m> NumberTable<'m> {
    /// Creates it over free entries. `None` unless their number is a power of two and at least two. It has
    /// room for half as many numbers.
    pub fn new(table: &'m mut [NumberSlot]) -> Option<Self> {
        (table.len() >= 2 && table.len().is_power_of_two()).then_some(Self { table, used: 0 })
    }

    /// Numbers in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The entry of `qp_num`, or the free entry where it would be, and its index.
    #[inline(always)]
    fn find(&self, qp_num: u32) -> (usize, NumberSlot) {
        let mask = self.table.len() - 1;
        let mut at = qp_num as usize & mask;
        // The loop ends: at least half of the entries are free.
        loop {
            // SAFETY: the table length is a power of two, so the mask keeps the index within it.
            let there = unsafe { self.table.get_unchecked(at) };
            if there.qp_num == qp_num || there.qp_num == FREE {
                return (at, *there);
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot of a number.
    #[inline(always)]
    pub fn get(&self, qp_num: u32) -> Option<u32> {
        let (_, there) = self.find(qp_num);
        (there.qp_num == qp_num).then_some(there.slot)
    }

    /// The slot of a number; any slot if the table does not have the number.
    #[inline(always)]
    pub fn get_or_any(&self, qp_num: u32) -> u32 {
        self.find(qp_num).1.slot
    }

    /// Adds a number.
    ///
    /// # Errors
    /// [`NumberError`]; nothing was changed.
    pub fn insert(&mut self, qp_num: u32, slot: u32) -> Result<(), NumberError> {
        let slots = self.table.len() / 2;
        if self.used == slots {
            return Err(NumberError::Full { slots });
        }
        let (at, there) = self.find(qp_num);
        if there.qp_num == qp_num {
            return Err(NumberError::Taken);
        }
        self.table[at] = NumberSlot { qp_num, slot };
        self.used += 1;
        Ok(())
    }

    /// Removes a number, if the table has it.
    pub fn remove(&mut self, qp_num: u32) {
        let (mut gap, there) = self.find(qp_num);
        if there.qp_num != qp_num {
            return;
        }
        self.used -= 1;
        let mask = self.table.len() - 1;
        // Entries whose probing passed over the gap move into it (Knuth, vol. 3, 6.4, algorithm R).
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.table[at];
            if entry.qp_num == FREE {
                break;
            }
            let home = entry.qp_num as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = entry;
                gap = at;
            }
        }
        self.table[gap] = NumberSlot::default();
    }
}
