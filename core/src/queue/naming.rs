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
use super::number_table::{NumberError, NumberSlot, NumberTable};
use crate::cqe::Cqe64;

mod sealed {
    pub trait Sealed {}
}

/// How CQEs identify queue pairs. Sealed.
pub trait Naming: sealed::Sealed {
    /// The name of the queue pair in a CQE.
    #[doc(hidden)]
    fn name(cqe: &Cqe64) -> u32;

    /// A word of the CQE that contains the name, for comparisons: where it is equal, so is the name.
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

/// By the queue pair number: reads one cache line more than the user index.
#[derive(Debug)]
pub struct ByQpNum<'m>(NumberTable<'m>);

impl<'m> ByQpNum<'m> {
    /// Creates it over a table of free entries. `None` unless their number is a power of two and at
    /// least two. At most half as many queue pairs can be attached.
    pub fn new(table: &'m mut [NumberSlot]) -> Option<Self> {
        NumberTable::new(table).map(Self)
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
        self.0.get_or_any(name) as usize
    }

    fn admit(&mut self, index: UserIndex, queues: &Attach<'_>) -> Result<u32, AttachError> {
        let qp_num = queues.qp_num().ok_or(AttachError::Unnamed)?;
        match self.0.insert(qp_num, index.slot() as u32) {
            Ok(()) => Ok(qp_num),
            Err(NumberError::Full { slots }) => Err(AttachError::TooManyQueues { slots }),
            Err(NumberError::Taken) => Err(AttachError::NumberTaken { qp_num }),
        }
    }

    fn renew(&mut self, name: u32, _: UserIndex) -> u32 {
        name
    }

    fn forget(&mut self, name: u32) {
        self.0.remove(name);
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
        for round in 0..if cfg!(miri) { 15 } else { 4000_usize } {
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
                let found = naming.0.get(number).map(|slot| slot as usize);
                assert_eq!(found, model.get(&number).copied());
                assert!(found.is_none_or(|slot| slot == naming.slot(number)));
            }
        }
        naming.forget(0xab_cdef);
        assert_eq!(naming.0.len(), model.len());
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
