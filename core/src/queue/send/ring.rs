//! Ringing the doorbell for what is staged.

use super::{SendQueue, fm_ce_se};
use crate::be::Be32;
use crate::port::{LastEntry, SendDoorbell, Staged};
use crate::wqe::{Transport, build_nop, ctrl_at};
use core::ptr::NonNull;

/// The last entry staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    /// Its first block.
    pub first: NonNull<u8>,
    pub known: LastEntry,
}

// SAFETY: only the poster reads the entry.
unsafe impl Send for Last {}
// SAFETY: nothing is read through a shared reference.
unsafe impl Sync for Last {}

impl<T: Transport, D: SendDoorbell> SendQueue<'_, T, D> {
    /// Posts and rings a signalled NOP that is not in the ledger, behind everything posted so far,
    /// and returns its counter. The device completes it last, and the poll that finds its CQE drops
    /// it as [stale](super::super::CompletionQueue::stale). If there is no room for it, returns the
    /// counter of the last request.
    ///
    /// For a caller that ends the queue and looks for this counter among the CQEs that were not
    /// polled.
    ///
    /// # Safety
    /// Nothing is posted from here on until [`clear`](Self::clear): it would overwrite the NOP.
    #[cold]
    pub unsafe fn mark(&mut self) -> u16 {
        self.ring();
        if self.free_blocks() == 0 {
            // SAFETY: in flight, so nobody writes it.
            let id = unsafe { (*ctrl_at(self.last.first).as_ptr()).opmod_idx_opcode };
            return (id.get() >> 8) as u16;
        }
        let counter = self.head;
        let flags = fm_ce_se::SIGNALED;
        // SAFETY: `&mut self` makes this the only poster; the block is free.
        let ds = unsafe { build_nop(&self.ring, counter, self.ledger.qp_num(), flags) };
        let staged = Staged {
            counter: counter.wrapping_add(1),
            count: 1,
            last: self.ring.block(counter),
            known: LastEntry::new(ds as u8, crate::wqe::opcode::NOP, 0),
        };
        // SAFETY: the entry was written above; the ledger has no request in its slot.
        unsafe { self.doorbell.ring(&staged) };
        counter as u16
    }

    /// Rings the doorbell for everything staged. Does nothing when nothing is staged.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.number != self.alone {
            return self.ring_other();
        }
        self.alone = self.number.wrapping_add(1);
        // SAFETY: one is staged.
        unsafe { self.ring_staged(1) };
    }

    /// Rings the doorbell for any number of requests.
    #[inline(never)]
    fn ring_other(&mut self) {
        let count = self.staged();
        if count == 0 {
            return;
        }
        if self.unsignaled == fm_ce_se::NO_FLUSH {
            // Its completion reports the requests rung with it if they are flushed.
            self.last_completes();
        }
        self.none_staged();
        // SAFETY: so many are staged.
        unsafe { self.ring_staged(count) };
    }

    /// Clears `NO_FLUSH` of the last entry, which is staged.
    pub(super) fn last_completes(&mut self) {
        let ctrl = ctrl_at(self.last.first).as_ptr();
        // SAFETY: `&mut self` makes this the only poster; the entry is staged and not rung.
        unsafe {
            let flags = (*ctrl).signature_flags.get() & !u32::from(fm_ce_se::NO_FLUSH);
            (*ctrl).signature_flags = Be32::new(flags);
        }
    }

    /// # Safety
    /// `count` requests are staged, and not none.
    #[inline(always)]
    unsafe fn ring_staged(&mut self, count: u32) {
        // Read before the requests are published: where they were posted in the same function, the
        // compiler still knows all of these values.
        let staged = Staged {
            counter: self.head,
            count,
            last: self.last.first,
            known: self.last.known,
        };
        self.ledger.publish(staged.counter);
        // SAFETY: these requests are staged and in the ledger.
        unsafe { self.doorbell.ring(&staged) };
    }
}
