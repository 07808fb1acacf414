//! What an extended completion queue has told, for the flight recorder. A plain success is not written
//! into core's ring: its identifier and its bytes are all that there is to it.

use super::tag::{Kind, parts};
use super::wc;
use crate::cq::OldCqe;
use bellwire_core::cqe::Cqe64;

/// The last completions, in the order in which they were told. The poller's.
#[derive(Debug)]
pub(crate) struct Told {
    /// As many as a power of two, and one at least.
    entries: Box<[Entry]>,
    /// Bytes of them, without those of one.
    mask: usize,
    /// Bytes that all which were told would take: so that finding a place takes no shift.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The request's identifier, or [`IN_RING`].
    wr_id: u64,
    /// Bytes that came, if it brings any; or the index in core's ring.
    bytes: u32,
}

const SIZE: usize = size_of::<Entry>();

/// In place of an identifier: the completion stands in core's ring. No [`Kind`] is so.
const IN_RING: u64 = u64::MAX;

impl Told {
    /// Remembers up to `count` completions.
    pub fn new(count: u32) -> Self {
        let count = count.max(1).next_power_of_two();
        let none = Entry {
            wr_id: IN_RING,
            bytes: 0,
        };
        Self {
            entries: vec![none; count as usize].into(),
            mask: (count as usize - 1) * SIZE,
            next: 0,
        }
    }

    /// The next place.
    #[inline(always)]
    fn next(&mut self) -> *mut Entry {
        let at = self.next & self.mask;
        self.next = self.next.wrapping_add(SIZE);
        // SAFETY: masked, so that it is the offset of an entry.
        unsafe { self.entries.as_mut_ptr().byte_add(at) }
    }

    /// A request with this identifier was executed, and brought nothing.
    #[inline(always)]
    pub fn sent(&mut self, wr_id: u64) {
        let entry = self.next();
        // SAFETY: an entry of ours.
        unsafe { (*entry).wr_id = wr_id };
    }

    /// A request with this identifier was executed, and brought so many bytes.
    #[inline(always)]
    pub fn brought(&mut self, wr_id: u64, bytes: u32) {
        let entry = self.next();
        // SAFETY: an entry of ours.
        unsafe { *entry = Entry { wr_id, bytes } };
    }

    /// What stands in core's ring at `index` was told.
    pub fn in_ring(&mut self, index: u32) {
        self.brought(IN_RING, index);
    }

    /// Completions told in all: the index of the next.
    pub fn count(&self) -> u32 {
        (self.next / SIZE) as u32
    }

    /// All that is known, oldest first, given what stands in core's ring.
    pub fn history(&self, ring: Vec<OldCqe>) -> Vec<OldCqe> {
        let (polled, waiting): (Vec<_>, Vec<_>) = ring.into_iter().partition(|old| old.polled);
        let mut polled = polled.into_iter().peekable();
        let count = self.next / SIZE;
        let known = count.min(self.entries.len());
        let mut all = Vec::new();
        for index in count - known..count {
            let entry = self.entries[index % self.entries.len()];
            let old = match entry.wr_id {
                IN_RING => {
                    // Both are in order; older ones are not remembered any more.
                    while polled
                        .next_if(|old| (old.index.wrapping_sub(entry.bytes) as i32) < 0)
                        .is_some()
                    {}
                    // It may have been written over.
                    polled.next_if(|old| old.index == entry.bytes)
                }
                wr_id => plain(wr_id, entry.bytes).map(OldCqe::polled),
            };
            let index = index as u32;
            all.extend(old.map(|old| OldCqe { index, ..old }));
        }
        for (at, old) in (0..).zip(waiting) {
            let index = self.count().wrapping_add(at);
            all.push(OldCqe { index, ..old });
        }
        all
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

    fn shown(told: &Told, ring: Vec<OldCqe>) -> Vec<(u32, bool, u16)> {
        let all = told.history(ring);
        (all.iter()
            .map(|old| (old.index, old.polled, old.cqe.wqe_counter())))
        .collect()
    }

    #[test]
    fn they_are_shown_in_the_order_in_which_they_were_told() {
        let mut told = Told::new(4);
        let sent = Tag::new(Kind::Send, 7);
        assert_eq!(shown(&told, vec![]), []);
        told.sent(sent.of(1));
        told.in_ring(0);
        told.sent(sent.of(2));
        let ring = || vec![in_ring(0, true), in_ring(1, false)];
        let expected = [
            (0, true, 1),
            (1, true, 1000),
            (2, true, 2),
            (3, false, 1001),
        ];
        assert_eq!(shown(&told, ring()), expected);
        // What was written over is not shown, neither here nor in the ring.
        told.in_ring(1);
        told.sent(sent.of(3));
        let ring = vec![in_ring(0, true), in_ring(2, false)];
        let expected = [
            (1, true, 1000),
            (2, true, 2),
            (4, true, 3),
            (5, false, 1002),
        ];
        assert_eq!(shown(&told, ring), expected);
    }

    #[test]
    fn a_plain_success_says_whose_it_was_and_what_came() {
        let cqe = plain(Tag::new(Kind::Recv, 9).of(0x1_2345), 77).expect("known");
        assert_eq!((cqe.user_index(), cqe.wqe_counter()), (9, 0x2345));
        assert_eq!(cqe.byte_len(), Some(77));
        assert!(plain(IN_RING, 0).is_none());
    }
}
