//! Completions that a device reports in a format of its own, and not by CQEs in the ring.
//!
//! They pass the same checks as polled CQEs. No older CQE may be left in the ring: the completion
//! of a request retires those before it in its queue as unsignalled ones.

use super::steps::{Report, Settled};
use super::{Completion, CompletionQueue, RecvSide, Success};
use crate::cqe::{Cqe64, CqeOpcode};
use crate::queue::UserIndex;
use crate::queue::ledger::{Ledger, Located};
use crate::wr::WcOpcode;

impl<'m> CompletionQueue<'m> {
    /// Completes the send request posted at `counter`, with `byte_cnt` bytes for an operation that
    /// returns data. `None`: no such request is in flight; the report is counted as
    /// [stale](Self::stale).
    ///
    /// Cost: reads half a cache line of the ledger and one line of the slot table, writes the
    /// ledger's counter.
    ///
    /// # Safety
    /// The device has executed this request and every older one of its queue, and has finished with
    /// their memory: their blocks are returned.
    #[inline(always)]
    pub unsafe fn complete_send(
        &mut self,
        user_index: u32,
        counter: u32,
        byte_cnt: u32,
    ) -> Option<Completion<'m>> {
        let slot = self.attached(UserIndex(user_index));
        let found = slot.and_then(|slot| slot.send).and_then(|(ledger, ..)| {
            // SAFETY: this queue is the attached ledger's poller.
            let located = unsafe { ledger.oldest_is(counter).or_else(|| later(ledger, counter)) };
            Some((ledger, located?))
        });
        // SAFETY: the request was just located.
        unsafe {
            self.complete_located(found, |posted| {
                Success::plain(CqeOpcode::Req, posted, byte_cnt)
            })
        }
    }

    /// Completes the receive posted at `counter` to a queue pair's own receive queue: a message of
    /// `byte_cnt` bytes, without immediate data, consumed it. `None`, and counted as
    /// [stale](Self::stale): it is not the oldest in flight. Completions of those before it were
    /// lost then, see [`Attach::recv_counted`](crate::queue::Attach::recv_counted).
    ///
    /// # Safety
    /// A message did so, and the device has finished with the memory of that receive.
    #[inline(always)]
    pub unsafe fn complete_recv(
        &mut self,
        user_index: u32,
        counter: u32,
        byte_cnt: u32,
    ) -> Option<Completion<'m>> {
        let slot = self.attached(UserIndex(user_index));
        let found = slot.and_then(|slot| match slot.recv {
            RecvSide::Own(ledger, _) | RecvSide::Counted(ledger, _) => {
                // SAFETY: this queue is the attached ledger's poller.
                Some((ledger, unsafe { ledger.oldest_is(counter)? }))
            }
            RecvSide::Shared(..) | RecvSide::None => None,
        });
        // SAFETY: the request was just located.
        unsafe {
            self.complete_located(found, |_| {
                Success::plain(CqeOpcode::RespSend, WcOpcode::Recv, byte_cnt)
            })
        }
    }

    /// Settles and delivers a request without a CQE; `success` gets the opcode that was posted.
    ///
    /// # Safety
    /// The request was located in an attached ledger, and nothing was taken from it since.
    #[inline(always)]
    unsafe fn complete_located(
        &mut self,
        found: Option<(&'m Ledger<'m>, Located<'m>)>,
        success: impl FnOnce(WcOpcode) -> Success,
    ) -> Option<Completion<'m>> {
        let Some((ledger, located)) = found else {
            self.stale += 1;
            return None;
        };
        // SAFETY: this queue is the attached ledger's poller; the caller has located the request
        // and has taken nothing since, so it is the last one taken.
        unsafe {
            let request = Settled::take(ledger, located);
            let success = success(request.posted());
            Some(self.deliver::<false>(request, Ok(success)))
        }
    }

    /// Completes a request by a CQE that the caller has just written at
    /// [`next_index`](Self::next_index); it is not read from there. `None`, and counted as
    /// [stale](Self::stale): no such request is in flight.
    ///
    /// # Safety
    /// The CQE is written there and is true: the device has finished with the memory of its
    /// request, and, for a send, with that of the older ones of its queue.
    #[inline(always)]
    pub unsafe fn complete(&mut self, cqe: &Cqe64) -> Option<Completion<'m>> {
        self.complete_cqe(cqe).map(Completion::unpacked)
    }

    #[inline(never)]
    fn complete_cqe(&mut self, cqe: &Cqe64) -> Option<Completion<'m>> {
        self.next.step(&self.memory);
        // Payload would be in the ring, and is not looked for.
        let completion = Report::decode(cqe, || &[])
            .filter(|report| report.payload.is_none() && !self.leaves_open(cqe))
            .and_then(|report| self.settle_and_deliver(&report));
        if completion.is_none() {
            self.give_back();
            self.stale += 1;
        }
        completion
    }
}

/// The request at `counter`, which is not the oldest.
///
/// # Safety
/// The caller is the ledger's poller.
#[inline(never)]
unsafe fn later<'m>(ledger: &Ledger<'m>, counter: u32) -> Option<Located<'m>> {
    // SAFETY: the caller guarantees that it is the ledger's poller.
    let located = unsafe { ledger.locate(counter as u16)? };
    (located.counter == counter).then_some(located)
}
