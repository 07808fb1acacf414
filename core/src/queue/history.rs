//! Looking back: which posted requests the rings still hold, and how they completed. Entries stay
//! in their rings until they are overwritten, so no extra record is kept for this; this module
//! finds those that are whole.
//!
//! A request is still in its ring while its counter is less than a ring behind the counter of the
//! next request. A CQE is still in its ring while its owner bit is that of its lap.

use super::cq::CompletionQueue;
use super::ledger::{Ledger, MOST_SLOTS};
use super::naming::Naming;
use super::recv::RecvQueue;
use super::send::SendQueue;
use crate::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode};
use crate::port::{RecvDoorbell, SendDoorbell};
use crate::wqe::{SendWqe, Transport};
use crate::wr::{Sge, WcOpcode};

/// How far a request has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Posted, but the doorbell was not rung for it.
    Staged,
    /// Posted and rung, and not reported yet.
    InFlight,
    /// Reported, by its own completion or by a later one.
    Retired,
}

/// A request whose entry is still in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The caller's identifier.
    pub wr_id: u64,
    /// Counter of its first slot.
    pub counter: u32,
    /// Slots that the request takes.
    pub slots: u16,
    /// The opcode of its completion.
    pub opcode: WcOpcode,
    /// How far it has got.
    pub standing: Standing,
}

impl Ledger<'_> {
    /// Visits the requests whose slots were not overwritten, oldest first.
    ///
    /// # Safety
    /// The caller is both poster and poller.
    unsafe fn history(&self, head: u32, mut each: impl FnMut(Past)) {
        let (posted, retired) = (self.posted(), self.retired());
        let mut at = head.wrapping_sub(self.slots());
        while at != head {
            // Slots from a counter up to the head; what is staged or in flight never exceeds the
            // ring.
            let behind = |counter: u32| head.wrapping_sub(counter);
            let standing = if behind(at) <= behind(posted) {
                Standing::Staged
            } else if behind(at) <= behind(retired) {
                Standing::InFlight
            } else {
                Standing::Retired
            };
            // SAFETY: the caller is both poster and poller.
            let past = unsafe { self.past(at, standing) };
            at = at.wrapping_add(past.map_or(1, |past| past.slots.into()));
            if let Some(past) = past {
                each(past);
            }
        }
    }
}

impl Ledger<'_> {
    /// Visits the requests that are not reported yet, newest first, until `each` returns `false`.
    ///
    /// # Safety
    /// The caller is both poster and poller.
    unsafe fn unreported(&self, head: u32, mut each: impl FnMut(Past) -> bool) {
        let (posted, retired) = (self.posted(), self.retired());
        let mut end = head;
        while end != retired {
            let standing = match (end.wrapping_sub(posted) as i32) > 0 {
                true => Standing::Staged,
                false => Standing::InFlight,
            };
            // A record does not say where the one before it begins. The slots between are left of earlier laps,
            // and end before.
            let slots = 1..=MOST_SLOTS.min(end.wrapping_sub(retired));
            let found = slots.into_iter().find_map(|slots| {
                // SAFETY: the caller is both poster and poller.
                let past = unsafe { self.past(end.wrapping_sub(slots), standing) };
                past.filter(|past| u32::from(past.slots) == slots)
            });
            let Some(past) = found else {
                return;
            };
            end = past.counter;
            if !each(past) {
                return;
            }
        }
    }
}

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// Passes each request that is not reported yet to `each`, newest first, until that returns `false`.
    ///
    /// # Safety
    /// Nobody polls the queue's completion queue meanwhile.
    pub unsafe fn unreported(&self, each: impl FnMut(Past) -> bool) {
        // SAFETY: nobody posts meanwhile, because that takes `&mut self`; the caller guarantees that nobody polls.
        unsafe { self.recorded().0.unreported(self.counter(), each) }
    }

    /// Passes each request whose entry was not overwritten yet to `each`, oldest first, with the
    /// entry. Requests of an earlier life of the queue are included only where the counters are
    /// contiguous.
    ///
    /// # Safety
    /// Nobody polls the queue's completion queue meanwhile.
    pub unsafe fn history(&self, mut each: impl FnMut(Past, SendWqe<'_>)) {
        let (ledger, ring) = self.recorded();
        // SAFETY: nobody posts meanwhile, because that takes `&mut self`; the caller guarantees
        // that nobody polls.
        unsafe {
            ledger.history(self.counter(), |past| {
                // SAFETY: posted and not overwritten.
                each(past, SendWqe::read(ring, past.counter));
            });
        }
    }
}

impl<D: RecvDoorbell> RecvQueue<'_, D> {
    /// Passes each receive that is not reported yet to `each`, like [`SendQueue::unreported`].
    ///
    /// # Safety
    /// Nobody polls the queue's completion queue meanwhile.
    pub unsafe fn unreported(&self, each: impl FnMut(Past) -> bool) {
        // SAFETY: nobody posts meanwhile, because that takes `&mut self`; the caller guarantees that nobody polls.
        unsafe { self.recorded().0.unreported(self.counter(), each) }
    }

    /// Passes each receive whose entry was not overwritten yet to `each`, like
    /// [`SendQueue::history`], with its scatter/gather elements.
    ///
    /// # Safety
    /// Nobody polls the queue's completion queue meanwhile.
    pub unsafe fn history(&self, mut each: impl FnMut(Past, &mut dyn Iterator<Item = Sge>)) {
        let (ledger, ring) = self.recorded();
        // SAFETY: nobody posts meanwhile, because that takes `&mut self`; the caller guarantees
        // that nobody polls.
        unsafe {
            ledger.history(self.counter(), |past| {
                // SAFETY: posted and not overwritten.
                each(past, &mut ring.read(past.counter));
            });
        }
    }
}

/// A CQE that is still in its ring.
#[derive(Clone, Copy, Debug)]
pub struct PastCqe<'c> {
    /// Its free-running index.
    pub index: u32,
    /// Whether it was polled.
    pub polled: bool,
    /// The entry.
    pub cqe: &'c Cqe64,
    /// The payload that it carries inline.
    pub data: &'c [u8],
}

impl<N: Naming> CompletionQueue<'_, N> {
    /// Index of the entry that is polled next.
    pub fn consumer_index(&self) -> u32 {
        self.next.index()
    }

    /// Passes each CQE that was not overwritten yet to `each`, oldest first: those that were
    /// polled, then those that were not.
    ///
    /// # Safety
    /// The device writes no CQE meanwhile.
    pub unsafe fn history(&mut self, mut each: impl FnMut(PastCqe<'_>)) {
        let count = self.memory.count();
        let next = self.next.index();
        let mut end = next;
        while end.wrapping_sub(next) < count {
            let entry = self.memory.entry(end);
            // SAFETY: from `next` on, the owner bit says whether the entry is the program's.
            match unsafe { Cqe64::read_owned(entry, end, count) } {
                // A compressed block is expanded: its mini CQEs can be shown, the block itself
                // cannot.
                Some(cqe) if cqe.format() == CqeFormat::Compressed => {
                    if self.expand(end).is_none() {
                        break;
                    }
                }
                Some(_) => end = end.wrapping_add(1),
                None => break,
            }
        }
        for index in (0..count).map(|at| end.wrapping_sub(count).wrapping_add(at)) {
            let entry = self.memory.entry(index);
            // SAFETY: the caller guarantees that the device writes no CQE; an entry that was never
            // written is marked invalid.
            let Some(cqe) = (unsafe { Cqe64::read_owned(entry, index, count) }) else {
                continue;
            };
            // The invalid opcode: never written, before the end of the first lap.
            if cqe.opcode() == CqeOpcode::Invalid || cqe.format() == CqeFormat::Compressed {
                continue;
            }
            let data = match self.memory.cqe_size() {
                // SAFETY: the entries have 128 bytes, and nobody writes this one.
                128 => unsafe { Cqe128::around(entry) }.inline_data(),
                _ => cqe.inline_data(),
            };
            each(PastCqe {
                index,
                polled: (index.wrapping_sub(next) as i32) < 0,
                cqe,
                data,
            });
        }
    }
}
