//! The completions that an extended completion queue has reported, for the flight recorder. A plain success
//! is not written to core's ring: its `wr_id` and its byte count are all that it consists of.

use super::tag::{Kind, parts};
use super::wc;
use crate::error::Error;
use crate::pinned::{collected, push};
use bellwire_core::cqe::Cqe64;
use bellwire_provider::history::OldCqe;
use std::iter::repeat_n;

/// The last completions, in the order in which they were reported. Owned by the poller.
#[derive(Debug)]
pub struct Reported {
    /// The number of entries is a power of two, at least one.
    entries: Box<[Entry]>,
    /// Size of `entries` in bytes, less the size of one entry.
    mask: usize,
    /// Size in bytes of all completions reported so far: kept in bytes so that finding a place needs no
    /// shift.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The request's `wr_id`, or [`IN_RING`].
    wr_id: u64,
    /// The byte count of the completion, if it has one; for [`IN_RING`] the index in core's ring.
    bytes: u32,
}

const SIZE: usize = size_of::<Entry>();

/// Replaces the `wr_id` where the completion is in core's ring. No [`Kind`] has this value.
const IN_RING: u64 = u64::MAX;

impl Reported {
    /// Remembers up to `count` completions.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(count: u32) -> Result<Self, Error> {
        let count = count.max(1).next_power_of_two();
        let none = Entry {
            wr_id: IN_RING,
            bytes: 0,
        };
        Ok(Self {
            entries: collected(repeat_n(none, count as usize))?.into(),
            mask: (count as usize - 1) * SIZE,
            next: 0,
        })
    }

    /// The next place to write to.
    #[inline(always)]
    fn next(&mut self) -> *mut Entry {
        let at = self.next & self.mask;
        self.next = self.next.wrapping_add(SIZE);
        // SAFETY: the offset is masked, so it is that of an entry.
        unsafe { self.entries.as_mut_ptr().byte_add(at) }
    }

    /// A request with this `wr_id` was executed; its completion has no byte count.
    #[inline(always)]
    pub fn sent(&mut self, wr_id: u64) {
        let entry = self.next();
        // SAFETY: `next` returns an entry of ours.
        unsafe { (*entry).wr_id = wr_id };
    }

    /// A request with this `wr_id` was executed; its completion has this byte count.
    #[inline(always)]
    pub fn brought(&mut self, wr_id: u64, bytes: u32) {
        let entry = self.next();
        // SAFETY: `next` returns an entry of ours.
        unsafe { *entry = Entry { wr_id, bytes } };
    }

    /// The completion at `index` of core's ring was reported.
    pub fn in_ring(&mut self, index: u32) {
        self.brought(IN_RING, index);
    }

    /// Number of completions reported so far: the index of the next one.
    pub fn count(&self) -> u32 {
        (self.next / SIZE) as u32
    }

    /// All completions that are known, oldest first, given the contents of core's ring.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn history(&self, ring: &[OldCqe]) -> Result<Vec<OldCqe>, Error> {
        let mut polled = ring.iter().filter(|old| old.polled).cloned().peekable();
        let waiting = ring.iter().filter(|old| !old.polled).cloned();
        let count = self.next / SIZE;
        let known = count.min(self.entries.len());
        let mut all = Vec::new();
        for index in count - known..count {
            let entry = self.entries[index % self.entries.len()];
            let old = match entry.wr_id {
                IN_RING => {
                    // Both are in order; entries before this one are not remembered here.
                    while polled
                        .next_if(|old| (old.index.wrapping_sub(entry.bytes) as i32) < 0)
                        .is_some()
                    {}
                    // The entry may have been overwritten since.
                    polled.next_if(|old| old.index == entry.bytes)
                }
                wr_id => plain(wr_id, entry.bytes).map(OldCqe::polled),
            };
            let index = index as u32;
            if let Some(old) = old {
                push(&mut all, OldCqe { index, ..old })?;
            }
        }
        for (at, old) in (0..).zip(waiting) {
            let index = self.count().wrapping_add(at);
            push(&mut all, OldCqe { index, ..old })?;
        }
        Ok(all)
    }
}

/// The entry of a plain success.
fn plain(wr_id: u64, bytes: u32) -> Option<Cqe64> {
    let (kind, user_index, counter) = parts(wr_id);
    match kind? {
        Kind::Send => Some(wc::sent(user_index, counter)),
        Kind::Fetch => Some(wc::fetched(bytes, user_index, counter)),
        Kind::Recv => Some(wc::plain(bytes, user_index, counter)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tag::Tag;
    use super::*;

    fn in_ring(index: u32, polled: bool) -> OldCqe {
        let cqe = wc::sent(7, 1000 + index);
        OldCqe {
            index,
            polled,
            ..OldCqe::polled(cqe)
        }
    }

    fn shown(reported: &Reported, ring: Vec<OldCqe>) -> Vec<(u32, bool, u16)> {
        let all = reported.history(&ring).unwrap();
        (all.iter()
            .map(|old| (old.index, old.polled, old.cqe.wqe_counter())))
        .collect()
    }

    #[test]
    fn they_are_shown_in_the_order_in_which_they_were_reported() {
        let mut reported = Reported::new(4).unwrap();
        let sent = Tag::new(Kind::Send, 7);
        assert_eq!(shown(&reported, vec![]), []);
        reported.sent(sent.of(1));
        reported.in_ring(0);
        reported.sent(sent.of(2));
        let ring = || vec![in_ring(0, true), in_ring(1, false)];
        let expected = [
            (0, true, 1),
            (1, true, 1000),
            (2, true, 2),
            (3, false, 1001),
        ];
        assert_eq!(shown(&reported, ring()), expected);
        // Overwritten entries are not shown, neither here nor in the ring.
        reported.in_ring(1);
        reported.sent(sent.of(3));
        let ring = vec![in_ring(0, true), in_ring(2, false)];
        let expected = [
            (1, true, 1000),
            (2, true, 2),
            (4, true, 3),
            (5, false, 1002),
        ];
        assert_eq!(shown(&reported, ring), expected);
    }

    #[test]
    fn a_plain_success_says_whose_it_was_and_what_came() {
        let cqe = plain(Tag::new(Kind::Recv, 9).of(0x1_2345), 77).expect("known");
        assert_eq!((cqe.user_index(), cqe.wqe_counter()), (9, 0x2345));
        assert_eq!(cqe.byte_len(), Some(77));
        assert!(plain(IN_RING, 0).is_none());
    }
}
