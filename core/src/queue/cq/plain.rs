//! Polling what most polls find without a call: for interfaces whose polls are called, not inlined.

use super::{CompletionQueue, LAST_RECEIVED, Naming, RECEIVED, RecvSide, SENT, recv_opcode};
use crate::cqe::{Cqe64, CqeFormat};
use crate::port::DoorbellRecord;
use crate::queue::completion::Success;
use crate::queue::ledger::{Ledger, Record};
use crate::wr::WcOpcode;

/// The next completion, of an executed request that posted no block, and before which every one of its
/// queue has been told. It is not taken before [`take`](Self::take).
#[derive(Debug)]
pub struct Plain<'q, 'm> {
    cqe: &'q Cqe64,
    ledger: &'q Ledger<'m>,
    record: &'q Record<'m>,
    ci: &'q mut u32,
    consumer: &'q DoorbellRecord,
    is_send: bool,
}

impl Plain<'_, '_> {
    /// The caller's identifier of the request.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.record.wr_id
    }

    /// Number of the local queue pair.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.ledger.qp_num()
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        match self.is_send {
            true => self.record.opcode,
            false => recv_opcode(self.cqe),
        }
    }

    /// What is known of the request.
    #[inline(always)]
    pub fn success(&self) -> Success {
        Success::new(self.opcode(), self.cqe)
    }

    /// What [`Success::to_raw`] gives first: the number of the opcode, the last byte of the entry, the
    /// sender's local identifier. Here each is read when it is asked for.
    #[inline(always)]
    pub fn raw_head(&self) -> (u8, u8, u16) {
        (self.opcode().number(), self.cqe.op_own(), self.cqe.slid())
    }

    /// The first of its words, the bytes.
    #[inline(always)]
    pub fn raw_byte_cnt(&self) -> u32 {
        self.cqe.byte_cnt().to_be()
    }

    /// The second, what came with them.
    #[inline(always)]
    pub fn raw_imm(&self) -> u32 {
        self.cqe.imm().to_raw()
    }

    /// The third, the sender's queue pair and more.
    #[inline(always)]
    pub fn raw_source(&self) -> u32 {
        self.cqe.flags_rqpn().to_raw()
    }

    /// Takes it: its entry and its request's slot go back.
    #[inline(always)]
    pub fn take(self) {
        *self.ci = self.ci.wrapping_add(1);
        // As for every completion: before the slot goes back to the poster.
        self.consumer.store(*self.ci & 0xff_ffff);
        // SAFETY: the oldest in flight, of a ledger whose poller is the queue that lent it out.
        unsafe { self.ledger.release(self.record) };
    }
}

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// The next completion if it is a [`Plain`] one. Otherwise [`poll_one`](Self::poll_one) says what
    /// there is.
    ///
    /// Nothing is called here and little is held at once, so that a function which does no more saves no
    /// registers.
    #[inline(always)]
    pub fn plain(&mut self) -> Option<Plain<'_, 'm>> {
        let entry = self.memory.entry(self.ci);
        // SAFETY: as in `poll_one`.
        let cqe = unsafe { Cqe64::read_owned(entry, self.ci, self.memory.count())? };
        let slot = self.slot(cqe)?;
        let kind = cqe.op_own() & !3;
        let ledger = match kind {
            SENT => slot.send?.0,
            RECEIVED..=LAST_RECEIVED if cqe.format() == CqeFormat::None => match slot.recv {
                RecvSide::Own(ledger, _) => ledger,
                _ => return None,
            },
            _ => return None,
        };
        // SAFETY: the attached ledger's poller is this queue, which is borrowed as long as the record.
        let record = unsafe { ledger.oldest()? };
        let is_send = kind == SENT;
        // Receives are told in order, whatever counter the entry has.
        if record.block.is_some() || is_send && record.counter as u16 != cqe.wqe_counter() {
            return None;
        }
        Some(Plain {
            cqe,
            ledger,
            record,
            ci: &mut self.ci,
            consumer: self.record,
            is_send,
        })
    }
}
