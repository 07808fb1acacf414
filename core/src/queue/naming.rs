//! How completion entries name the queue pair that they tell of.
//!
//! The device is given a user index with a queue pair where the program makes it by itself; a driver's
//! library gives an index of its own, and tells nobody which. There the queue pair's number is what is
//! known on both sides.

use super::attach::{Attach, AttachError, UserIndex};
use crate::cqe::Cqe64;

mod sealed {
    pub trait Sealed {}
}

/// How entries name queue pairs. Sealed.
pub trait Naming: sealed::Sealed {
    /// What an entry calls its queue pair.
    #[doc(hidden)]
    fn name(cqe: &Cqe64) -> u32;

    /// The same, in the order of the entry's bytes, to be compared.
    #[doc(hidden)]
    fn raw_name(cqe: &Cqe64) -> u32;

    /// The slot of what is called so; any other number when nothing is.
    #[doc(hidden)]
    fn slot(&self, name: u32) -> usize;

    /// What entries will call what is attached under `index`.
    #[doc(hidden)]
    fn admit(&mut self, index: UserIndex, queues: &Attach<'_>) -> Result<u32, AttachError>;

    /// Nothing is called so any more.
    #[doc(hidden)]
    fn forget(&mut self, name: u32);
}

/// By the user index that the completion queue gave.
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

    fn forget(&mut self, _: u32) {}
}

/// A place of the table of [`ByQpNum`]. Created by [`Default`] in memory that the caller gives.
#[derive(Clone, Copy, Debug)]
pub struct NumberSlot {
    qp_num: u32,
    slot: u32,
}

/// No number: they have 24 bits.
const FREE: u32 = u32::MAX;

impl Default for NumberSlot {
    fn default() -> Self {
        Self {
            qp_num: FREE,
            slot: 0,
        }
    }
}

/// By the queue pair's number.
///
/// A hash table with linear probing, half empty at the least. Devices count numbers up, so that the
/// first place looked at is nearly always the right one: one line more is read than by user index.
#[derive(Debug)]
pub struct ByQpNum<'m> {
    table: &'m mut [NumberSlot],
    used: usize,
}

impl<'m> ByQpNum<'m> {
    /// Over a table of places that are free. `None` unless they are a power of two, and at least two.
    /// Half as many queue pairs can be attached.
    pub fn new(table: &'m mut [NumberSlot]) -> Option<Self> {
        (table.len() >= 2 && table.len().is_power_of_two()).then_some(Self { table, used: 0 })
    }

    /// Where `qp_num` is, or the free place where it would be.
    #[inline(always)]
    fn find(&self, qp_num: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut at = qp_num as usize & mask;
        // Ends: half of the places are free.
        loop {
            // SAFETY: there are a power of two of places, so that the mask keeps within them.
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
        // SAFETY: `find` gives a place within the table.
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

    fn forget(&mut self, name: u32) {
        let mask = self.table.len() - 1;
        let mut gap = self.find(name);
        if self.table[gap].qp_num != name {
            return;
        }
        self.used -= 1;
        // What probing passed over the gap for moves into it (Knuth, vol. 3, 6.4, algorithm R).
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
