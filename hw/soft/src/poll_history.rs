//! The receives that were reported to polls without a completion entry, for the flight recorder; and the ledger through which
//! those of shared receive queues complete.

use crate::error::Error;
use crate::pinned::{boxed, defaults, place};
use bellwire_core::queue::{Ledger, LedgerSlot, Received};
use bellwire_provider::history::OldCqe;
use std::iter::Peekable;
use std::ptr::NonNull;

/// A receive, and the index of the entry that was to be polled next.
#[derive(Clone, Copy, Debug, Default)]
struct Old {
    received: Received,
    next: u32,
}

/// The last receives that were reported to the polls of a completion queue. Owned by the poller.
#[derive(Debug)]
pub struct PollHistory {
    /// That of the last one; before the first one, the last place.
    last: NonNull<Old>,
    /// The first place, and the last one, from one box.
    first: NonNull<Old>,
    end: NonNull<Old>,
    /// From a box.
    ledger: NonNull<OwnedLedger>,
    /// As many bits as rounds were begun, up to eight.
    rounds: u8,
}

/// A ledger with its only slot.
#[derive(Debug)]
struct OwnedLedger {
    ledger: Ledger<'static>,
    /// From a box.
    slot: NonNull<[LedgerSlot<'static>; 1]>,
}

impl OwnedLedger {
    fn new() -> Result<NonNull<Self>, Error> {
        let room = place()?;
        let slot = NonNull::from(Box::leak(boxed([LedgerSlot::default()])?));
        // SAFETY: from a box, which is freed behind the ledger.
        let ledger = Ledger::new(unsafe { &mut *slot.as_ptr() }, 0).expect("a power of two");
        Ok(NonNull::from(Box::leak(Box::write(
            room,
            Self { ledger, slot },
        ))))
    }
}

impl Drop for OwnedLedger {
    fn drop(&mut self) {
        // SAFETY: from a box. The ledger is not used any more.
        drop(unsafe { Box::from_raw(self.slot.as_ptr()) });
    }
}

// SAFETY: it owns the memory.
unsafe impl Send for PollHistory {}
// SAFETY: only an exclusive borrow changes it.
unsafe impl Sync for PollHistory {}

impl PollHistory {
    /// Remembers up to `count`, at least one.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(count: usize) -> Result<Self, Error> {
        let count = count.max(1);
        let places = defaults::<Old>(count)?;
        let ledger = OwnedLedger::new()?;
        let places = NonNull::from(Box::leak(places));
        let first = places.cast::<Old>();
        // SAFETY: it has `count` elements.
        let end = unsafe { first.add(count - 1) };
        Ok(Self {
            last: end,
            first,
            end,
            ledger,
            rounds: 0,
        })
    }

    /// All places.
    fn all(&self) -> NonNull<[Old]> {
        // SAFETY: both are of the same box.
        let count = unsafe { self.end.offset_from_unsigned(self.first) } + 1;
        NonNull::slice_from_raw_parts(self.first, count)
    }

    fn places(&self) -> &[Old] {
        // SAFETY: from a box that this owns.
        unsafe { self.all().as_ref() }
    }

    /// The ledger through which a receive of a shared receive queue completes.
    ///
    /// # Safety
    /// The ledger is not used once this is dropped.
    #[inline(always)]
    pub unsafe fn ledger(&self) -> &'static Ledger<'static> {
        // SAFETY: from a box that this owns; the caller guarantees the rest.
        unsafe { &self.ledger.as_ref().ledger }
    }

    /// Bytes of what it remembers.
    pub fn bytes(&self) -> usize {
        size_of_val(self.places())
    }

    /// A receive is reported to the poll at which the entry with this index is next. It is made last, so that few values are
    /// held meanwhile.
    #[inline(always)]
    pub fn note(&mut self, next: u32, received: impl FnOnce() -> Received) {
        if self.last == self.end {
            self.begin();
        } else {
            // SAFETY: it is not the last place.
            self.last = unsafe { self.last.add(1) };
        }
        // SAFETY: a place, which is borrowed exclusively.
        unsafe {
            (*self.last.as_ptr()).received = received();
            (*self.last.as_ptr()).next = next;
        }
    }

    /// Goes on at the first place.
    #[cold]
    #[inline(always)]
    fn begin(&mut self) {
        self.last = self.first;
        self.rounds = self.rounds << 1 | 1;
    }

    /// The receive that was reported last. Before the first one, any.
    #[inline(always)]
    pub fn last(&self) -> &Received {
        // SAFETY: a place.
        &unsafe { self.last.as_ref() }.received
    }

    /// What it remembers, the oldest first.
    fn entries(&self) -> impl Iterator<Item = &Old> {
        let places = self.places();
        // SAFETY: both are of the same box.
        let behind = unsafe { self.last.offset_from_unsigned(self.first) } + 1;
        let (new, old) = places.split_at(behind);
        match self.rounds {
            0 => [].iter().chain(&[]),
            1 => [].iter().chain(new),
            _ => old.iter().chain(new),
        }
    }

    /// These, in front of the entries that followed them. `entries` are in order.
    pub fn among(&self, entries: Vec<OldCqe>) -> impl Iterator<Item = OldCqe> {
        Among {
            old: self.entries().peekable(),
            entries: entries.into_iter().peekable(),
        }
    }
}

impl Drop for PollHistory {
    fn drop(&mut self) {
        // SAFETY: both are from boxes.
        unsafe {
            drop(Box::from_raw(self.all().as_ptr()));
            drop(Box::from_raw(self.ledger.as_ptr()));
        }
    }
}

struct Among<H: Iterator, E: Iterator> {
    old: Peekable<H>,
    entries: Peekable<E>,
}

impl<'h, H, E> Iterator for Among<H, E>
where
    H: Iterator<Item = &'h Old>,
    E: Iterator<Item = OldCqe>,
{
    type Item = OldCqe;

    fn next(&mut self) -> Option<OldCqe> {
        let entry = self.entries.peek().map(|entry| entry.index);
        let is_first = |next: u32| entry.is_none_or(|index| next.wrapping_sub(index) as i32 <= 0);
        match self.old.next_if(|old| is_first(old.next)) {
            Some(old) => Some(OldCqe {
                index: old.next,
                ..OldCqe::polled(old.received.cqe())
            }),
            None => self.entries.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire_core::cqe::{CompletedWqe, CqeOpcode};

    const COUNT: usize = 64;

    fn received(counter: u16) -> Received {
        let wqe = CompletedWqe {
            qpn: 7,
            user_index: 9,
            wqe_counter: counter,
        };
        Received::new(&wqe, 12)
    }

    fn entry(index: u32) -> OldCqe {
        OldCqe {
            index,
            ..OldCqe::polled(received(1000_u16.wrapping_add(index as u16)).cqe())
        }
    }

    fn shown(history: &PollHistory, entries: Vec<OldCqe>) -> Vec<(u32, u16)> {
        let all = history.among(entries);
        all.map(|old| (old.index, old.cqe.wqe_counter())).collect()
    }

    #[test]
    fn they_are_shown_where_they_were_reported() {
        let mut history = PollHistory::new(COUNT).unwrap();
        assert_eq!(shown(&history, vec![entry(0)]), [(0, 1000)]);
        history.note(1, || received(1));
        history.note(1, || received(2));
        history.note(3, || received(3));
        let entries = || vec![entry(0), entry(1), entry(2)];
        let expected = [(0, 1000), (1, 1), (1, 2), (1, 1001), (2, 1002), (3, 3)];
        assert_eq!(shown(&history, entries()), expected);
        assert_eq!(shown(&history, vec![]), [(1, 1), (1, 2), (3, 3)]);
    }

    #[test]
    fn the_last_ones_are_kept() {
        let mut history = PollHistory::new(COUNT).unwrap();
        // Before and behind the end of the index range.
        for at in 0..COUNT as u32 + 5 {
            history.note(at.wrapping_sub(40), || received(at as u16));
        }
        let all = shown(&history, vec![entry(u32::MAX), entry(0)]);
        assert_eq!(all.len(), COUNT + 2);
        assert_eq!(all[0], (5_u32.wrapping_sub(40), 5));
        assert_eq!(all.iter().position(|it| *it == (u32::MAX, 999)), Some(35));
        assert_eq!(all.iter().position(|it| *it == (0, 1000)), Some(37));
    }

    #[test]
    fn the_last_one_is_where_it_is_remembered() {
        for count in 0..4 {
            let mut history = PollHistory::new(count).unwrap();
            for counter in 1..10 {
                history.note(0, || received(counter));
                assert_eq!(*history.last(), received(counter));
                let kept = shown(&history, vec![]).len();
                assert_eq!(kept, usize::from(counter).min(count.max(1)));
            }
        }
    }

    #[test]
    fn an_entry_shows_what_was_received() {
        let cqe = received(0xfedc).cqe();
        assert_eq!((cqe.user_index(), cqe.wqe_counter()), (9, 0xfedc));
        assert_eq!(
            (cqe.opcode(), cqe.solicited()),
            (CqeOpcode::RespSend, false)
        );
        assert_eq!((cqe.byte_len(), cqe.imm().get()), (Some(12), 0));
    }
}
