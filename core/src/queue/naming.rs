//! How CQEs identify their queue pair.
//!
//! Where the program creates the queue pair itself, it passes the device a user index with it. A
//! driver's library passes a user index of its own, which it does not publish; the queue pair
//! number is then what both sides know.
//!
//! A device may assign the number of a destroyed queue pair to a new one while completions of the
//! old one are still to be polled. Attaching the new one then fails with
//! [`AttachError::NumberTaken`]; the provider sets it aside and creates another.

use super::attach::{Attach, AttachError, UserIndex};
use crate::cqe::Cqe64;

mod sealed {
    pub trait Sealed {}
}

/// How CQEs identify queue pairs. Sealed.
pub trait Naming: sealed::Sealed {
    /// The name of the queue pair in a CQE.
    #[doc(hidden)]
    fn name(cqe: &Cqe64) -> u32;

    /// The same in the byte order of the CQE, for comparisons.
    #[doc(hidden)]
    fn raw_name(cqe: &Cqe64) -> u32;

    /// The slot with this name; some other number when there is none.
    #[doc(hidden)]
    fn slot(&self, name: u32) -> usize;

    /// The name in CQEs of the queues attached under `index`.
    #[doc(hidden)]
    fn admit(&mut self, index: UserIndex, queues: &Attach<'_>) -> Result<u32, AttachError>;

    /// The new name in CQEs of the queues with the name `name`, when their index becomes `index`.
    #[doc(hidden)]
    fn renew(&mut self, name: u32, index: UserIndex) -> u32;

    /// Removes a name.
    #[doc(hidden)]
    fn forget(&mut self, name: u32);
}

/// By the user index that the completion queue assigned.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByUserIndex;

impl sealed::Sealed for ByUserIndex {}

impl Naming for ByUserIndex {
    #[inline(always)]
    fn name(cqe: &Cqe64) -> u32 {
        cqe.user_index()
    }

    #[inline(always)]
    fn raw_name(cqe: &Cqe64) -> u32 {
        cqe.raw_user_index()
    }

    #[inline(always)]
    fn slot(&self, name: u32) -> usize {
        UserIndex(name).slot()
    }

    fn admit(&mut self, index: UserIndex, _: &Attach<'_>) -> Result<u32, AttachError> {
        Ok(index.get())
    }

    fn renew(&mut self, _: u32, index: UserIndex) -> u32 {
        index.get()
    }

    fn forget(&mut self, _: u32) {}
}

/// An entry of the table of [`ByQpNum`]. Created by [`Default`] in memory that the caller provides.
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

/// By the queue pair number.
///
/// A hash table with linear probing, at least half empty. Devices assign ascending numbers, so that
/// the first probe is nearly always the right one: this reads one cache line more than the user
/// index.
#[derive(Debug)]
pub struct ByQpNum<'m> {
    table: &'m mut [NumberSlot],
    used: usize,
}

impl<'m> ByQpNum<'m> {
    /// Creates it over a table of free entries. `None` unless their number is a power of two and at
    /// least two. At most half as many queue pairs can be attached.
    pub fn new(table: &'m mut [NumberSlot]) -> Option<Self> {
        (table.len() >= 2 && table.len().is_power_of_two()).then_some(Self { table, used: 0 })
    }

    /// The index of `qp_num`, or of the free entry where it would be.
    #[inline(always)]
    fn find(&self, qp_num: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut at = qp_num as usize & mask;
        // The loop ends: at least half of the entries are free.
        loop {
            // SAFETY: the table length is a power of two, so the mask keeps the index within it.
            let there = unsafe { self.table.get_unchecked(at) }.qp_num;
            if there == qp_num || there == FREE {
                return at;
            }
            at = (at + 1) & mask;
        }
    }
}

impl sealed::Sealed for ByQpNum<'_> {}

impl Naming for ByQpNum<'_> {
    #[inline(always)]
    fn name(cqe: &Cqe64) -> u32 {
        cqe.qpn()
    }

    #[inline(always)]
    fn raw_name(cqe: &Cqe64) -> u32 {
        cqe.raw_qpn()
    }

    #[inline(always)]
    fn slot(&self, name: u32) -> usize {
        // SAFETY: `find` returns an index within the table.
        unsafe { self.table.get_unchecked(self.find(name)) }.slot as usize
    }

    fn admit(&mut self, index: UserIndex, queues: &Attach<'_>) -> Result<u32, AttachError> {
        let qp_num = queues.qp_num().ok_or(AttachError::Unnamed)?;
        if self.used == self.table.len() / 2 {
            let slots = self.used;
            return Err(AttachError::TooManyQueues { slots });
        }
        let at = self.find(qp_num);
        if self.table[at].qp_num == qp_num {
            return Err(AttachError::NumberTaken { qp_num });
        }
        self.table[at] = NumberSlot {
            qp_num,
            slot: index.slot() as u32,
        };
        self.used += 1;
        Ok(qp_num)
    }

    fn renew(&mut self, name: u32, _: UserIndex) -> u32 {
        name
    }

    fn forget(&mut self, name: u32) {
        let mask = self.table.len() - 1;
        let mut gap = self.find(name);
        if self.table[gap].qp_num != name {
            return;
        }
        self.used -= 1;
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{keep, keep_all};
    use super::*;
    use crate::queue::{Ledger, LedgerSlot};
    use crate::random::Random;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn queues(qp_num: u32) -> Attach<'static> {
        let slots = keep_all(1, LedgerSlot::default);
        let ledger = &*keep(Ledger::new(slots, qp_num).expect("one"));
        // SAFETY: never used.
        let ring = unsafe { crate::wqe::RecvRing::new(super::super::tests::memory(16), 1, 16) };
        Attach {
            recv: Some((ledger, ring.expect("sizes"))),
            ..Attach::default()
        }
    }

    #[test]
    fn numbers_are_found_until_they_are_forgotten() {
        let mut naming = ByQpNum::new(keep_all(64, NumberSlot::default)).expect("64 places");
        let mut random = Random(7);
        // Few numbers, most of which fall on the same places.
        let all: Vec<_> = (0..40).map(|i| queues(i / 8 * 64 + i % 8 * 2)).collect();
        let mut model = BTreeMap::new();
        for round in 0..if cfg!(miri) { 40 } else { 4000_usize } {
            let queues = &all[random.below(all.len())];
            let number = queues.qp_num().expect("has one");
            match model.get(&number) {
                Some(_) if random.next().is_multiple_of(4) => {
                    let taken = AttachError::NumberTaken { qp_num: number };
                    let index = UserIndex::new(1, 0);
                    let full = model.len() == 32;
                    let refused = naming.admit(index, queues);
                    assert!(refused == Err(taken) || full, "{refused:?}");
                }
                Some(_) => {
                    model.remove(&number);
                    naming.forget(number);
                }
                None => {
                    let admitted = naming.admit(UserIndex::new(round, 3), queues);
                    if model.len() == 32 {
                        assert_eq!(admitted, Err(AttachError::TooManyQueues { slots: 32 }));
                    } else {
                        assert_eq!(admitted, Ok(number));
                        model.insert(number, round);
                    }
                }
            }
            for queues in &all {
                let number = queues.qp_num().expect("has one");
                let at = naming.find(number);
                let found = (naming.table[at].qp_num == number).then(|| naming.slot(number));
                assert_eq!(found, model.get(&number).copied());
            }
        }
        naming.forget(0xab_cdef);
        assert_eq!(naming.used, model.len());
    }

    #[test]
    fn a_table_has_a_power_of_two_of_places() {
        for (places, fits) in [(0, false), (1, false), (2, true), (3, false), (4, true)] {
            let table = keep_all(places, NumberSlot::default);
            assert_eq!(ByQpNum::new(table).is_some(), fits, "{places}");
        }
        let mut naming = ByQpNum::new(keep_all(2, NumberSlot::default)).expect("two");
        let nobody = naming.admit(UserIndex::new(0, 0), &Attach::default());
        assert_eq!(nobody, Err(AttachError::Unnamed));
    }
}
