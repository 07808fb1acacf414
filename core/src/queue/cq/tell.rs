//! Telling of requests that a device reports in a form of its own, not by entries of the ring.
//!
//! All the checks of a completion that is polled. Nothing older may stand in the ring: a request that
//! is told tells those before it in its queue as unsignalled ones.

use super::{Completion, CompletionQueue, LAST_RECEIVED, RECEIVED, RecvSide, SENT, Success};
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode};
use crate::queue::UserIndex;
use crate::queue::ledger::{Ledger, Located};
use crate::wr::WcOpcode;

impl<'m> CompletionQueue<'m> {
    /// Tells that the send request which was posted at `counter` was executed, and brought `byte_cnt`
    /// bytes if it is one that brings any. When no such request is in flight, the report is counted as
    /// [stale](Self::stale), and the answer is `otherwise`'s.
    ///
    /// Cost: reads half a line of ledger and one of the slot table, writes the ledger's counter.
    #[inline(always)]
    pub fn tell_sent(
        &mut self,
        user_index: u32,
        counter: u32,
        byte_cnt: u32,
        otherwise: impl FnOnce(&mut Self) -> Option<Completion<'m>>,
    ) -> Option<Completion<'m>> {
        let Some((ledger, ..)) = self
            .attached(UserIndex(user_index))
            .and_then(|slot| slot.send)
        else {
            self.stale += 1;
            return otherwise(self).map(Completion::unpacked);
        };
        // SAFETY: the attached ledger's poller is this queue.
        let Some(located) =
            (unsafe { ledger.oldest_is(counter).or_else(|| later(ledger, counter)) })
        else {
            self.stale += 1;
            return otherwise(self).map(Completion::unpacked);
        };
        // SAFETY: as above, and located.
        let (record, retired) = unsafe { ledger.take(located) };
        // SAFETY: as above, and taken last.
        unsafe { ledger.release(&record) };
        let success = Success::plain(CqeOpcode::Req, record.opcode, byte_cnt);
        Some(record.told(ledger, retired, Ok(success)))
    }

    /// Tells that a message of `byte_cnt` bytes, without immediate data, consumed the oldest receive of
    /// a queue pair's own receive queue. `otherwise`: as in [`tell_sent`](Self::tell_sent).
    #[inline(always)]
    pub fn tell_received(
        &mut self,
        user_index: u32,
        byte_cnt: u32,
        otherwise: impl FnOnce(&mut Self) -> Option<Completion<'m>>,
    ) -> Option<Completion<'m>> {
        let Some(RecvSide::Own(ledger, _)) =
            self.attached(UserIndex(user_index)).map(|slot| slot.recv)
        else {
            self.stale += 1;
            return otherwise(self).map(Completion::unpacked);
        };
        // SAFETY: the attached ledger's poller is this queue.
        let Some(located) = (unsafe { ledger.next() }) else {
            self.stale += 1;
            return otherwise(self).map(Completion::unpacked);
        };
        // SAFETY: as above, and located.
        let (record, retired) = unsafe { ledger.take(located) };
        // SAFETY: as above, and taken last.
        unsafe { ledger.release(&record) };
        let success = Success::plain(CqeOpcode::RespSend, WcOpcode::Recv, byte_cnt);
        Some(record.told(ledger, retired, Ok(success)))
    }

    /// Tells of what the other two do not, by an entry that the caller has just written at
    /// [`next_index`](Self::next_index): it is not read back. `None`: it is
    /// stale.
    #[inline(never)]
    pub fn tell(&mut self, cqe: Cqe64) -> Option<Completion<'m>> {
        self.ci = self.ci.wrapping_add(1);
        let plain = cqe.format() == CqeFormat::None;
        let told = match cqe.op_own() & !3 {
            SENT => self.sent(&cqe),
            RECEIVED..=LAST_RECEIVED if plain => self.received(&cqe),
            _ => self.slot(&cqe).and_then(|slot| self.failed(slot, &cqe)),
        };
        if told.is_none() {
            self.give_back();
            self.stale += 1;
        }
        told
    }
}

/// The request at `counter`, which others are before.
///
/// # Safety
/// The caller is the ledger's poller.
#[inline(never)]
unsafe fn later<'m>(ledger: &Ledger<'m>, counter: u32) -> Option<Located<'m>> {
    // SAFETY: the caller's promise.
    let located = unsafe { ledger.locate(counter as u16)? };
    (located.counter == counter).then_some(located)
}
