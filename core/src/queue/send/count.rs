//! Counting requests by operation, from the entries in the ring.

use super::SendQueue;
use crate::port::SendDoorbell;
use crate::queue::ledger::Counting;
use crate::queue::tally::Tally;
use crate::wqe::{SendWqe, Transport};

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// Counts requests in `tally` from the next post on. A request is counted when the queue reloads its limit: at the
    /// latest one lap of the ring behind its post. [`count`](Self::count) and [`clear`](Self::clear) count, too.
    ///
    /// Posting takes no instruction more. A counted request takes some when the limit is reloaded.
    pub fn count_into(&mut self, tally: &'m Tally) {
        self.count();
        let counting = Counting {
            tally: Some(tally),
            counted: self.head,
        };
        // SAFETY: `&mut self` makes this the poster.
        unsafe { self.ledger.set_counting(counting) };
        self.reloads_slowly = true;
    }

    /// Whether requests are counted.
    pub(super) fn counts(&mut self) -> bool {
        // SAFETY: `&mut self` makes this the poster.
        unsafe { self.ledger.counting() }.tally.is_some()
    }

    /// Takes the requests before `counter` as counted.
    pub(super) fn counted_up_to(&mut self, counter: u32) {
        // SAFETY: `&mut self` makes this the poster.
        unsafe {
            let counting = self.ledger.counting();
            self.ledger.set_counting(Counting {
                counted: counter,
                ..counting
            });
        }
    }

    /// Counts the requests that were posted since the last count, if requests are counted. Requests that are staged
    /// and not rung count, too.
    #[inline]
    pub fn count(&mut self) {
        // SAFETY: `&mut self` makes this the poster.
        let counting = unsafe { self.ledger.counting() };
        if let Some(tally) = counting.tally {
            self.count_since(tally, counting.counted);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_since(&mut self, tally: &Tally, mut at: u32) {
        while self.head.wrapping_sub(at) as i32 > 0 {
            // SAFETY: posted since the last count, and not overwritten. Each reload of the limit counts, and at most a
            // ring of entries is posted between two reloads. `&mut self` keeps the poster from writing.
            let entry = unsafe { SendWqe::read(self.ring, at) };
            if let Ok(request) = entry.request(T::TYPE) {
                tally.send(request.operation(), request.data().total());
            }
            at = at.wrapping_add(entry.blocks().max(1));
        }
        self.counted_up_to(self.head);
    }
}
