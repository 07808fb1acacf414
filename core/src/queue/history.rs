//! Looking back: what the rings still hold of the requests that were posted, and of what became of
//! them. Entries stay until they are written over, so that nothing has to be kept for this.

use super::cq::CompletionQueue;
use super::ledger::Ledger;
use super::naming::Naming;
use super::recv::RecvQueue;
use super::send::SendQueue;
use crate::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode};
use crate::port::{RecvDoorbell, SendDoorbell};
use crate::wqe::{SendWqe, Transport};
use crate::wr::{Sge, WcOpcode};

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Posted; the device has not been told.
    Staged,
    /// Posted and rung, and not told yet.
    InFlight,
    /// Told, by its own completion or by a later one.
    Told,
}

/// A request whose entry is still in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The caller's.
    pub wr_id: u64,
    /// Counter of its first slot.
    pub counter: u32,
    /// Slots that it takes.
    pub slots: u16,
    /// What its completion is called.
    pub opcode: WcOpcode,
    /// How far it has come.
    pub standing: Standing,
}

impl Ledger<'_> {
    /// The requests whose slots were not written again, oldest first.
    ///
    /// # Safety
    /// The caller is poster and poller at once.
    unsafe fn history(&self, head: u32, mut each: impl FnMut(Past)) {
        let (posted, retired) = (self.posted(), self.retired());
        let mut at = head.wrapping_sub(self.slots());
        while at != head {
            // Slots from there up to the head; what is staged or in flight is never more than the ring.
            let behind = |counter: u32| head.wrapping_sub(counter);
            let standing = if behind(at) <= behind(posted) {
                Standing::Staged
            } else if behind(at) <= behind(retired) {
                Standing::InFlight
            } else {
                Standing::Told
            };
            // SAFETY: the caller's promise.
            let past = unsafe { self.past(at, standing) };
            at = at.wrapping_add(past.map_or(1, |past| past.slots.into()));
            if let Some(past) = past {
                each(past);
            }
        }
    }
}

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// Gives each request whose entry was not written over yet to `each`, oldest first, with the
    /// entry. Of an earlier life of the queue only what its counters follow on directly.
    ///
    /// # Safety
    /// Nobody polls the queue's completion queue meanwhile.
    pub unsafe fn history(&self, mut each: impl FnMut(Past, SendWqe<'_>)) {
        let (ledger, ring) = self.recorded();
        // SAFETY: poster, because nobody posts by `&mut self` meanwhile; poller by the caller's promise.
        unsafe {
            ledger.history(self.counter(), |past| {
                // SAFETY: posted, and not written over.
                each(past, SendWqe::read(ring, past.counter));
            });
        }
    }
}

impl<D: RecvDoorbell> RecvQueue<'_, D> {
    /// As [`SendQueue::history`]; with each receive's elements.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn history(&self, mut each: impl FnMut(Past, &mut dyn Iterator<Item = Sge>)) {
        let (ledger, ring) = self.recorded();
        // SAFETY: as in `SendQueue::history`.
        unsafe {
            ledger.history(self.counter(), |past| {
                // SAFETY: posted, and not written over.
                each(past, &mut ring.read(past.counter));
            });
        }
    }
}

/// A completion entry that is still in its ring.
#[derive(Clone, Copy, Debug)]
pub struct PastCqe<'c> {
    /// Its free-running index.
    pub index: u32,
    /// Whether it was polled.
    pub polled: bool,
    /// The entry.
    pub cqe: &'c Cqe64,
    /// The payload that came within it.
    pub data: &'c [u8],
}

impl<N: Naming> CompletionQueue<'_, N> {
    /// Index of the entry that is polled next.
    pub fn consumer_index(&self) -> u32 {
        self.ci
    }

    /// Gives each entry that was not written over yet to `each`, oldest first: those that were polled,
    /// then those that were not.
    ///
    /// # Safety
    /// The device writes no entry meanwhile.
    pub unsafe fn history(&mut self, mut each: impl FnMut(PastCqe<'_>)) {
        let count = self.memory.count();
        let mut end = self.ci;
        while end.wrapping_sub(self.ci) < count {
            let entry = self.memory.entry(end);
            // SAFETY: ours from `ci` on as long as the owner bit says so.
            match unsafe { Cqe64::read_owned(entry, end, count) } {
                // What a block stands for can be shown, the block cannot.
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
            // SAFETY: nobody writes, by the caller's promise; what was never written says so.
            let Some(cqe) = (unsafe { Cqe64::read_owned(entry, index, count) }) else {
                continue;
            };
            // Before the first lap there was none.
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
                polled: (index.wrapping_sub(self.ci) as i32) < 0,
                cqe,
                data,
            });
        }
    }
}
