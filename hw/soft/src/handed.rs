//! The receives that were handed to polls without a completion entry, for the flight recorder.

use crate::error::Error;
use crate::pinned::defaults;
use bellwire_core::queue::Received;
use bellwire_provider::history::OldCqe;
use std::iter::Peekable;

/// The last receives that were handed to the polls of a completion queue. Owned by the poller.
#[derive(Debug)]
pub struct Handed {
    /// Each with the index of the entry that was to be polled next. As many as a power of two, or none.
    last: Box<[(Received, u32)]>,
    /// How many there have been.
    count: usize,
}

impl Handed {
    /// Remembers up to `count`, a power of two, or none.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(count: u32) -> Result<Self, Error> {
        debug_assert!(count == 0 || count.is_power_of_two());
        Ok(Self {
            last: defaults(count as usize)?,
            count: 0,
        })
    }

    /// Bytes of what it remembers.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.last)
    }

    /// A receive was handed to the poll at which this entry is next.
    #[inline(always)]
    pub fn note(&mut self, received: Received, next: u32) {
        let at = self.count & self.last.len().wrapping_sub(1);
        if let Some(place) = self.last.get_mut(at) {
            *place = (received, next);
        }
        self.count = self.count.wrapping_add(1);
    }

    /// These, in front of the entries that followed them. `entries` are in order.
    pub fn among(&self, entries: Vec<OldCqe>) -> impl Iterator<Item = OldCqe> {
        let known = self.count.saturating_sub(self.last.len())..self.count;
        let handed = known.map(|at| self.last[at % self.last.len()]);
        Among {
            handed: handed.peekable(),
            entries: entries.into_iter().peekable(),
        }
    }
}

struct Among<H: Iterator, E: Iterator> {
    handed: Peekable<H>,
    entries: Peekable<E>,
}

impl<H, E> Iterator for Among<H, E>
where
    H: Iterator<Item = (Received, u32)>,
    E: Iterator<Item = OldCqe>,
{
    type Item = OldCqe;

    fn next(&mut self) -> Option<OldCqe> {
        let entry = self.entries.peek().map(|entry| entry.index);
        let is_first = |next: u32| entry.is_none_or(|index| next.wrapping_sub(index) as i32 <= 0);
        match self.handed.next_if(|(_, next)| is_first(*next)) {
            Some((received, index)) => Some(OldCqe {
                index,
                ..OldCqe::polled(received.cqe())
            }),
            None => self.entries.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire_core::be::Be32;
    use bellwire_core::cqe::{CompletedWqe, CqeOpcode, PlainCqe};

    const COUNT: usize = 64;

    fn received(counter: u16) -> Received {
        let wqe = CompletedWqe {
            qpn: 7,
            user_index: 9,
            wqe_counter: counter,
        };
        let (kind, none) = (CqeOpcode::RespSend, Be32::new(0));
        Received::new(&PlainCqe::responder(kind, wqe, 12, none, false))
    }

    fn entry(index: u32) -> OldCqe {
        OldCqe {
            index,
            ..OldCqe::polled(received(1000_u16.wrapping_add(index as u16)).cqe())
        }
    }

    fn shown(handed: &Handed, entries: Vec<OldCqe>) -> Vec<(u32, u16)> {
        let all = handed.among(entries);
        all.map(|old| (old.index, old.cqe.wqe_counter())).collect()
    }

    #[test]
    fn they_are_shown_where_they_were_handed_over() {
        let mut handed = Handed::new(COUNT as u32).unwrap();
        assert_eq!(shown(&handed, vec![entry(0)]), [(0, 1000)]);
        handed.note(received(1), 1);
        handed.note(received(2), 1);
        handed.note(received(3), 3);
        let entries = || vec![entry(0), entry(1), entry(2)];
        let expected = [(0, 1000), (1, 1), (1, 2), (1, 1001), (2, 1002), (3, 3)];
        assert_eq!(shown(&handed, entries()), expected);
        assert_eq!(shown(&handed, vec![]), [(1, 1), (1, 2), (3, 3)]);
    }

    #[test]
    fn the_last_ones_are_known() {
        let mut handed = Handed::new(COUNT as u32).unwrap();
        // Before and behind the end of the index range.
        for at in 0..COUNT as u32 + 5 {
            handed.note(received(at as u16), at.wrapping_sub(40));
        }
        let all = shown(&handed, vec![entry(u32::MAX), entry(0)]);
        assert_eq!(all.len(), COUNT + 2);
        assert_eq!(all[0], (5_u32.wrapping_sub(40), 5));
        assert_eq!(all.iter().position(|it| *it == (u32::MAX, 999)), Some(35));
        assert_eq!(all.iter().position(|it| *it == (0, 1000)), Some(37));
    }

    #[test]
    fn none_are_known_where_none_are_remembered() {
        let mut handed = Handed::new(0).unwrap();
        handed.note(received(1), 0);
        assert_eq!(shown(&handed, vec![entry(0)]), [(0, 1000)]);
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
