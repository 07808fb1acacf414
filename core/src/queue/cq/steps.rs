//! The path of a completion, whichever device reports it and by whatever means:
//!
//! 1. **decode**: a CQE says which side of its queue pair completed a request, and how;
//! 2. **settle**: the request is found in its ledger and taken from it, with the unsignalled
//!    requests before it; payload that the CQE carries is copied to the request's memory;
//! 3. **deliver**: the CQE is returned to the device, the request's slots to the poster, and the
//!    [`Completion`] is made.

use super::payload::{put, put_short, scatter_read};
use super::{CompletionQueue, Naming, RecvSide};
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode, Syndrome};
use crate::queue::attach::SrqUser;
use crate::queue::completion::{Completion, Failure, Success};
use crate::queue::ledger::{Ledger, Located, Taken};
use crate::queue::srq::{Consumed, SrqLedger};
use crate::wr::WcOpcode;

/// The queue of a queue pair that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Recv,
}

/// What a CQE reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'c> {
    pub side: Side,
    pub failed: bool,
    /// The payload that the CQE carries in place of the request's memory.
    pub payload: Option<&'c [u8]>,
    pub cqe: &'c Cqe64,
}

impl<'c> Report<'c> {
    /// First step; `payload` is called for a CQE with payload. `None`: the CQE is of no request.
    #[inline(always)]
    pub fn decode(cqe: &'c Cqe64, payload: impl FnOnce() -> &'c [u8]) -> Option<Self> {
        let (side, failed) = match cqe.opcode() {
            CqeOpcode::Req => (Side::Send, false),
            CqeOpcode::ReqErr => (Side::Send, true),
            CqeOpcode::RespErr => (Side::Recv, true),
            opcode if opcode.is_received() => (Side::Recv, false),
            _ => return None,
        };
        let carries = cqe.format() != CqeFormat::None && !failed;
        Some(Self {
            side,
            failed,
            payload: carries.then(payload),
            cqe,
        })
    }

    /// The outcome of the request. `placed`: whether payload in the CQE is in the request's memory now.
    #[inline(always)]
    fn outcome(
        &self,
        request: &Settled<'_>,
        placed: Result<(), Syndrome>,
    ) -> Result<Success, Failure> {
        if self.failed {
            return Err(failure(self.side, self.cqe, request.counter()));
        }
        if let Err(syndrome) = placed {
            return Err(Failure {
                status: syndrome.status(),
                vendor_err: 0,
                syndrome,
                counter: request.counter(),
                is_recv: self.side == Side::Recv,
            });
        }
        let opcode = opcode(self.side, self.cqe, || request.posted());
        Ok(Success::new(opcode, self.cqe))
    }
}

#[cold]
fn failure(side: Side, cqe: &Cqe64, counter: u32) -> Failure {
    Failure {
        status: cqe.failure(),
        vendor_err: cqe.vendor_err_synd(),
        syndrome: cqe.syndrome(),
        counter,
        is_recv: side == Side::Recv,
    }
}

/// The operation that a CQE of a successful request reports; `posted` returns that of a send.
#[inline(always)]
pub(super) fn opcode(side: Side, cqe: &Cqe64, posted: impl FnOnce() -> WcOpcode) -> WcOpcode {
    match (side, cqe.opcode()) {
        (Side::Send, _) => posted(),
        (Side::Recv, CqeOpcode::RespWrImm) => WcOpcode::RecvRdmaWithImm,
        (Side::Recv, _) => WcOpcode::Recv,
    }
}

/// A request that was taken from its ledger, whose slots are not returned to the poster yet.
#[derive(Debug)]
pub(super) enum Settled<'m> {
    Own {
        ledger: &'m Ledger<'m>,
        taken: Taken<'m>,
    },
    /// Of a shared receive queue, consumed by this queue pair.
    Shared {
        request: Consumed<'m, 'm>,
        qp_num: u32,
    },
}

impl<'m> Settled<'m> {
    /// Takes a request from the ledger of its queue.
    ///
    /// # Safety
    /// The caller is the ledger's poller, and has taken nothing from it since it located the
    /// request.
    #[inline(always)]
    pub unsafe fn take(ledger: &'m Ledger<'m>, located: Located<'m>) -> Self {
        // SAFETY: the caller is the poller, and has taken nothing since it located the request.
        let taken = unsafe { ledger.take(located) };
        Self::Own { ledger, taken }
    }

    /// The counter at which it was posted; the index of its entry in a shared receive queue.
    #[inline(always)]
    pub fn counter(&self) -> u32 {
        match self {
            Self::Own { taken, .. } => taken.counter,
            Self::Shared { request, .. } => request.index(),
        }
    }

    /// The opcode that its poster recorded.
    #[inline(always)]
    pub fn posted(&self) -> WcOpcode {
        match self {
            Self::Own { taken, .. } => taken.opcode,
            Self::Shared { .. } => WcOpcode::Recv,
        }
    }
}

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Second and third step, for a CQE whose index the consumer index has passed. `None`: no such
    /// request is in flight.
    #[inline(always)]
    pub(super) fn settle_and_deliver(&self, report: &Report<'_>) -> Option<Completion<'m>> {
        let slot = self.slot(report.cqe)?;
        let counter = report.cqe.wqe_counter();
        let (ledger, located, placed) = match report.side {
            Side::Send => {
                let (ledger, ring, transport) = slot.send?;
                // SAFETY: this queue is the attached ledger's poller.
                let located = unsafe { ledger.locate(counter)? };
                // SAFETY: the request is in flight; its poster guarantees that the memory is valid
                // until it is reported.
                let placed = report.payload.map_or(Ok(()), |data| unsafe {
                    scatter_read(report.cqe, data, ring, transport, located.counter)
                });
                (ledger, located, placed)
            }
            Side::Recv => match slot.recv {
                RecvSide::Own(ledger, ring) | RecvSide::Counted(ledger, ring) => {
                    // SAFETY: this queue is the attached ledger's poller.
                    let located = unsafe { ledger.next()? };
                    let counted = matches!(slot.recv, RecvSide::Counted(..));
                    if counted && located.counter as u16 != counter {
                        return None;
                    }
                    // SAFETY: the receive is in flight and not reported yet; its poster guarantees
                    // that the memory is writable until then.
                    let placed = report.payload.map_or(Ok(()), |data| unsafe {
                        put(report.cqe, data, ring.read(located.counter))
                    });
                    (ledger, located, placed)
                }
                RecvSide::Shared(srq, user) => return self.settle_shared(srq, user, report),
                RecvSide::None => return None,
            },
        };
        // SAFETY: this queue is the poller, and the request was just located; so it is the last one
        // taken.
        unsafe {
            let request = Settled::take(ledger, located);
            let outcome = report.outcome(&request, placed);
            Some(self.deliver::<true>(request, outcome))
        }
    }

    /// Second and third step of a receive of a shared receive queue, for a CQE whose index the
    /// consumer index has passed. `None`: no such receive is in flight.
    #[inline(always)]
    pub(super) fn settle_shared(
        &self,
        srq: &'m SrqLedger<'m>,
        user: SrqUser,
        report: &Report<'_>,
    ) -> Option<Completion<'m>> {
        let request = srq.locate(report.cqe.wqe_counter())?;
        let (ring, index) = (srq.ring(), request.index());
        // SAFETY: the receive is in flight and not reported yet; its poster guarantees that the
        // memory is writable until then.
        let placed = report.payload.map_or(Ok(()), |data| unsafe {
            match put_short(report.cqe, ring.first(index)) {
                true => Ok(()),
                false => put(report.cqe, data, ring.read(index)),
            }
        });
        let qp_num = user.qp_num(report.cqe);
        let request = Settled::Shared { request, qp_num };
        let outcome = report.outcome(&request, placed);
        // SAFETY: it is of no ledger with an order.
        Some(unsafe { self.deliver::<true>(request, outcome) })
    }

    /// Third step. With `AT_ONCE` the CQEs polled so far are returned to the device here, before
    /// the request's slots; the caller does it later otherwise, if there is a CQE.
    ///
    /// # Safety
    /// This queue is the ledger's poller, and the request is the last one taken from it.
    #[inline(always)]
    pub(super) unsafe fn deliver<const AT_ONCE: bool>(
        &self,
        request: Settled<'m>,
        result: Result<Success, Failure>,
    ) -> Completion<'m> {
        if AT_ONCE {
            self.give_back();
        }
        match request {
            Settled::Own { ledger, taken } => {
                // SAFETY: the caller guarantees that it was taken last, by this queue, which is the
                // poller.
                let block = unsafe { ledger.release::<AT_ONCE>(&taken) };
                Completion {
                    wr_id: taken.wr_id,
                    qp_num: ledger.qp_num(),
                    retired: taken.retired,
                    result,
                    block,
                }
            }
            Settled::Shared { request, qp_num } => {
                let (wr_id, block) = request.release();
                Completion {
                    wr_id,
                    qp_num,
                    retired: 1,
                    result,
                    block,
                }
            }
        }
    }
}
