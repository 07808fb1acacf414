//! Receives that a device hands to the poll itself, without a CQE: where the device executes on the
//! polling thread, writing a CQE and reading it back is most of what a completion costs.

use super::recent::Named;
use super::steps::Settled;
use super::{CompletionQueue, RecvSide, UserIndex};
use crate::be::Be32;
use crate::cqe::{CompletedWqe, Cqe64, CqeOpcode};
use crate::queue::attach::SrqUser;
use crate::queue::completion::{Completion, Success};
use crate::queue::ledger::Ledger;
use crate::wr::WcOpcode;

/// A successful receive of a SEND without immediate data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// With [`SHARED`], if it was posted to a shared receive queue.
    user_index: Be32,
    byte_cnt: u32,
    wqe_counter: u16,
}

/// User indices have 24 bits, so this is in the name of no queue.
const SHARED: u32 = 1 << 31;

impl Received {
    /// That of a message of `byte_cnt` bytes, into this receive of the queue pair's own receive queue.
    #[inline(always)]
    pub fn new(wqe: &CompletedWqe, byte_cnt: u32) -> Self {
        Self {
            user_index: Be32::new(wqe.user_index),
            byte_cnt,
            wqe_counter: wqe.wqe_counter,
        }
    }

    /// Like [`new`](Self::new), of the queue pair's shared receive queue.
    #[inline(always)]
    pub fn of_shared(wqe: &CompletedWqe, byte_cnt: u32) -> Self {
        Self {
            user_index: Be32::new(wqe.user_index | SHARED),
            ..Self::new(wqe, byte_cnt)
        }
    }

    fn is_shared(&self) -> bool {
        self.user_index.get() & SHARED != 0
    }

    fn user_index(&self) -> u32 {
        self.user_index.get() & !SHARED
    }

    /// The CQE that would report it, without the number of its queue pair.
    pub fn cqe(&self) -> Cqe64 {
        let wqe = CompletedWqe {
            qpn: 0,
            user_index: self.user_index(),
            wqe_counter: self.wqe_counter,
        };
        Cqe64::responder(CqeOpcode::RespSend, wqe, self.byte_cnt)
    }
}

impl<'m> CompletionQueue<'m> {
    /// Completes the oldest receive of a queue pair's own receive queue, or this one of its shared receive
    /// queue. `None`, and counted as [stale](Self::stale): there is none in flight.
    ///
    /// `single` returns a ledger with one slot, through which a receive of a shared receive queue completes.
    ///
    /// # Safety
    /// The device has executed it, writes no CQE for it, and has finished with its memory. No CQE of an
    /// older receive of that queue pair is left in the ring. Nothing else uses the ledger of one slot.
    #[inline(always)]
    pub unsafe fn complete_received(
        &mut self,
        received: Received,
        single: impl FnOnce() -> &'m Ledger<'m>,
    ) -> Option<Completion<'m>> {
        let ledger = match self.recent.receives.is(received.user_index.to_raw()) {
            true => self.recent.receives.ledger,
            false => self.find_receiver(received, single),
        };
        // SAFETY: this queue is the attached ledger's poller.
        let located = ledger.and_then(|ledger| Some((ledger, unsafe { ledger.next()? })));
        let Some((ledger, oldest)) = located else {
            self.stale += 1;
            return None;
        };
        // SAFETY: this queue is the poller, and the request was just located; so it is the last one
        // taken.
        unsafe {
            let request = Settled::take(ledger, oldest);
            let success = Success::plain(CqeOpcode::RespSend, WcOpcode::Recv, received.byte_cnt);
            Some(self.deliver::<false>(request, Ok(success)))
        }
    }

    // Not `inline(never)`: then this crate would have a copy of `find`, and every poll that one.
    #[cold]
    #[inline]
    fn find_receiver(
        &mut self,
        received: Received,
        single: impl FnOnce() -> &'m Ledger<'m>,
    ) -> Option<&'m Ledger<'m>> {
        match received.is_shared() {
            true => self.take_shared(received, single()),
            false => self.find_own(received),
        }
    }

    /// Makes the queue pair the recent one, as [`find`](Self::find) does for a CQE. `None`: it has no receive queue of its own.
    #[inline(never)]
    fn find_own(&mut self, received: Received) -> Option<&'m Ledger<'m>> {
        let RecvSide::Own(ledger, _) = self.attached(UserIndex(received.user_index()))?.recv else {
            return None;
        };
        self.recent.receives = Named::new(received.user_index.to_raw(), Some(ledger));
        Some(ledger)
    }

    /// Takes a receive from its shared receive queue, and records it in this ledger, where it is the
    /// only one. From there it completes like any other: the code that is inlined into polls is the same
    /// as without shared receive queues.
    #[inline(never)]
    fn take_shared(&self, received: Received, single: &'m Ledger<'m>) -> Option<&'m Ledger<'m>> {
        let slot = self.attached(UserIndex(received.user_index()))?;
        let RecvSide::Shared(srq, SrqUser::Qp(qp_num)) = slot.recv else {
            return None;
        };
        let (wr_id, block) = srq.locate(received.wqe_counter)?.release();
        // SAFETY: the caller of `complete_received` guarantees that this queue alone uses the ledger, from
        // which it takes each receive at once.
        unsafe { single.record_one(qp_num, wr_id, block) };
        Some(single)
    }
}
