//! The links of a set, found by handle and by queue pair number.

use super::super::handle::LinkState;
use super::super::member::Member;
use super::super::state::RecoveryState;
use super::LinkId;
use super::deadlines::Due;
use super::held::Holding;
use crate::cq::Lent;
use crate::error::Error;
use crate::event::{Element, EventType};
use crate::pinned::collected;
use bellwire_core::queue::{Completion, NumberSlot, NumberTable};
use std::collections::VecDeque;
use std::time::Duration;

/// Completions of other links, and events.
pub(super) type Found = (Vec<Completion<'static>>, Vec<(EventType, Element)>);

/// A link of a set.
#[derive(Debug)]
pub(super) struct Joined {
    pub member: Member,
    /// The index of its completion queue.
    pub queue: usize,
    /// It has something to do, and an entry in the list of these.
    pub urgent: bool,
    /// It has an entry in the list of links that wait for the peer, the device or the time.
    pub patient: bool,
    /// When it has to be looked at, while it waits.
    pub due: Due,
    /// Its entry in the list of links that are looked at at a time: later ones of it do not count.
    pub timed: Option<Duration>,
    /// Completions that were found while another link was driven. Empty while it recovers.
    pub waiting: VecDeque<Completion<'static>>,
    /// It has an entry in the list of links with outcomes to be reported.
    pub reporting: bool,
    /// Its state as it was last noted.
    pub noted: LinkState,
    /// The change of its state waits to be taken by the program.
    pub change_waits: bool,
    /// Nothing says when its exchange has a message.
    pub unheard: bool,
    /// The exchange's descriptor is watched.
    pub watched: bool,
    /// Buffers of the shared receive queue that its messages hold.
    pub held: Holding,
    /// The program's own number for it.
    pub context: u64,
}

impl Joined {
    /// Its state, which is never in a thread.
    pub fn state(&mut self) -> Option<&mut RecoveryState> {
        self.member.here_mut()
    }

    /// Whether it has outcomes to be reported.
    pub fn has_outcomes(&self) -> bool {
        let here = self.member.here();
        !self.waiting.is_empty() || here.is_some_and(RecoveryState::has_outcomes)
    }

    /// Takes what it came across that was not its own while it was driven.
    pub fn found(&mut self) -> Found {
        let shared = self.state().and_then(|state| state.shared.as_mut());
        shared.map_or_else(Found::default, |shared| {
            (
                std::mem::take(&mut shared.completions),
                std::mem::take(&mut shared.events),
            )
        })
    }

    pub fn qp_num(&self) -> Option<u32> {
        self.member.qp().map(crate::qp::Qp::qp_num)
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    joined: Option<Joined>,
}

/// The links of a set.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// From the number of each queue pair to the slot of its link.
    numbers: NumberTable<'static>,
    // Dropped last: `numbers` borrows it.
    memory: Lent<NumberSlot>,
}

impl Slots {
    /// Room for so many links.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(links: u32) -> Result<Self, Error> {
        // At least half of the table stays free; with a quarter used nearly all first probes find the number.
        let entries = (links.max(1) as usize)
            .saturating_mul(4)
            .next_power_of_two();
        let mut memory = Lent::new(entries)?;
        // SAFETY: the table is used by nothing else, and freed after `numbers` was dropped.
        let numbers = NumberTable::new(unsafe { memory.get() });
        let numbers = numbers.ok_or(Error::TooLarge {
            what: "links",
            given: links.into(),
            max: u32::MAX.into(),
        })?;
        let slots = (0..links).map(|_| Slot {
            generation: 0,
            joined: None,
        });
        Ok(Self {
            slots: collected(slots)?,
            free: collected((0..links).rev())?,
            numbers,
            memory,
        })
    }

    /// Links that it has room for.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Links in it.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.free.capacity() * size_of::<u32>()
            + self.memory.bytes()
    }

    /// The slot that the next link gets; `None` if there is no room.
    pub fn next_free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Adds a link in the [next free](Self::next_free) slot, with its queue pair's number. Returns the link
    /// if there is no room or the number is in use.
    pub fn add(&mut self, joined: Joined) -> Result<LinkId, Box<Joined>> {
        let Some(index) = self.next_free() else {
            return Err(Box::new(joined));
        };
        if let Some(number) = joined.qp_num()
            && self.numbers.insert(number, index).is_err()
        {
            return Err(Box::new(joined));
        }
        self.free.pop();
        let slot = &mut self.slots[index as usize];
        slot.joined = Some(joined);
        Ok(LinkId::new(index, slot.generation))
    }

    /// Removes a link: its handle is of no link from here on.
    pub fn remove(&mut self, id: LinkId) -> Option<Joined> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        let joined = (slot.joined).take_if(|_| slot.generation == id.generation())?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index());
        if let Some(number) = joined.qp_num() {
            self.numbers.remove(number);
        }
        Some(joined)
    }

    /// The link of a handle.
    #[inline(always)]
    pub fn get(&self, id: LinkId) -> Option<&Joined> {
        let slot = self.slots.get(id.index() as usize)?;
        (slot.generation == id.generation()).then_some(slot.joined.as_ref()?)
    }

    /// The link of a handle.
    #[inline(always)]
    pub fn get_mut(&mut self, id: LinkId) -> Option<&mut Joined> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        match slot.generation == id.generation() {
            true => slot.joined.as_mut(),
            false => None,
        }
    }

    /// The link in a slot, and its handle.
    pub fn at(&mut self, index: u32) -> Option<(LinkId, &mut Joined)> {
        let slot = self.slots.get_mut(index as usize)?;
        let id = LinkId::new(index, slot.generation);
        Some((id, slot.joined.as_mut()?))
    }

    /// The link whose queue pair has this number, and its handle.
    #[inline(always)]
    pub fn of_qp(&mut self, qp_num: u32) -> Option<(LinkId, &mut Joined)> {
        let index = self.numbers.get(qp_num)?;
        let slot = self.slots.get_mut(index as usize)?;
        let id = LinkId::new(index, slot.generation);
        Some((id, slot.joined.as_mut()?))
    }

    /// Records that the queue pair of the link in a slot was destroyed, created, or both.
    pub fn renumber(&mut self, index: u32, before: Option<u32>, after: Option<u32>) {
        if before == after {
            return;
        }
        if let Some(number) = before {
            self.numbers.remove(number);
        }
        if let Some(number) = after {
            // There is room for a number of each slot, and a device gives a number to one queue pair.
            let added = self.numbers.insert(number, index);
            debug_assert!(added.is_ok(), "{number}: {added:?}");
        }
    }

    /// Shortens a list in which each link has at most one entry, and those of removed links are left to be
    /// found: removing a link costs the same however many there are.
    pub fn tidy(&self, list: &mut VecDeque<LinkId>) {
        if list.len() > 2 * self.capacity() {
            list.retain(|id| self.get(*id).is_some());
        }
    }

    /// Handles of all links.
    pub fn ids(&self) -> impl Iterator<Item = LinkId> {
        (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.joined.is_some())
            .map(|(index, slot)| LinkId::new(index, slot.generation))
    }

    /// All links.
    pub fn iter(&self) -> impl Iterator<Item = &Joined> {
        self.slots.iter().filter_map(|slot| slot.joined.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_as_many_numbers_as_links() {
        for links in [0, 1, 2, 3, 1000] {
            let slots = Slots::new(links).unwrap();
            assert_eq!((slots.capacity(), slots.len()), (links as usize, 0));
            assert_eq!(slots.next_free(), (links != 0).then_some(0));
            assert_eq!(slots.ids().count(), 0);
        }
    }
}
