//! Receives that a device hands to the poll itself, without a CQE: where the device executes on the
//! polling thread, writing a CQE and reading it back is most of what a completion costs.

use super::CompletionQueue;
use super::steps::Settled;
use crate::be::Be32;
use crate::cqe::{CompletedWqe, Cqe64, CqeOpcode};
use crate::queue::completion::{Completion, Success};
use crate::queue::ledger::Ledger;
use crate::wr::WcOpcode;

/// A successful receive of a SEND without immediate data by a queue pair's own receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    user_index: Be32,
    byte_cnt: u32,
    wqe_counter: u16,
}

impl Received {
    /// That of a message of `byte_cnt` bytes, into this receive.
    #[inline(always)]
    pub fn new(wqe: &CompletedWqe, byte_cnt: u32) -> Self {
        Self {
            user_index: Be32::new(wqe.user_index),
            byte_cnt,
            wqe_counter: wqe.wqe_counter,
        }
    }

    /// The CQE that would report it, without the number of its queue pair.
    pub fn cqe(&self) -> Cqe64 {
        let wqe = CompletedWqe {
            qpn: 0,
            user_index: self.user_index.get(),
            wqe_counter: self.wqe_counter,
        };
        Cqe64::responder(CqeOpcode::RespSend, wqe, self.byte_cnt)
    }
}

impl<'m> CompletionQueue<'m> {
    /// Completes the oldest receive of a queue pair's own receive queue. `None`, and counted as
    /// [stale](Self::stale): none is in flight.
    ///
    /// # Safety
    /// The device has executed it, writes no CQE for it, and has finished with its memory. No CQE of an
    /// older receive of that queue is left in the ring.
    #[inline(always)]
    pub unsafe fn complete_received(&mut self, received: Received) -> Option<Completion<'m>> {
        let ledger = match self.recent.receives.is(received.user_index.to_raw()) {
            true => self.recent.receives.ledger,
            false => self.find_receiver(received),
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
    fn find_receiver(&mut self, received: Received) -> Option<&'m Ledger<'m>> {
        self.find(&received.cqe()).receives.ledger
    }
}
