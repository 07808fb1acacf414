//! Lost completions, and what the completions after them cannot prove. This concerns devices that
//! go on after they lost completions and report others through
//! [`complete`](CompletionQueue::complete). A ConnectX completion queue receives no more CQEs then.
//!
//! A successful send proves that all sends before it in its queue succeeded, and so does the first
//! send that fails. A flush does not: its queue pair failed, or was stopped, at or before some
//! earlier request. A signalled request that succeeded has a completion of its own, and a request
//! that failed has one in any case. So a flush reports the unsignalled requests before it as
//! successful, because no failure was reported. A signalled request that is still unreported when a
//! later flush arrives shows that its completion was lost. The outcome of it and of the requests
//! behind it is then unknown, and the flush is not reported: it is dropped as stale, and
//! [`SendQueue::clear`](crate::queue::SendQueue::clear) returns all of them as unfinished.
//!
//! Unsignalled requests before a flush were executed, unless the completion of one that failed is
//! among those lost. Therefore they are left open, too, once [`CompletionQueue::entries_lost`] was
//! called. Until then, if the queue pair reserves no CQEs and the completion queue overran, they
//! are reported as successful. So are the requests that a UC or UD queue pair flushed on a device
//! that takes it to SQE, if completions were lost, the program takes it back to RTS, and a later
//! send is executed.

use super::CompletionQueue;
use crate::cqe::{Cqe64, CqeOpcode};
use crate::queue::naming::Naming;
use crate::wqe::{SendWqe, fm_ce_se};
use crate::wr::WcStatus;

impl<N: Naming> CompletionQueue<'_, N> {
    /// Call this when the device reports that it lost completions. From here on a flush is reported
    /// only if no request is before it, because the failure of an unsignalled one may be among
    /// those lost.
    pub fn entries_lost(&mut self) {
        self.lossy = true;
    }

    /// Whether this CQE is of a failed send that does not prove how the requests before it
    /// completed.
    #[inline(always)]
    pub(super) fn leaves_open(&self, cqe: &Cqe64) -> bool {
        cqe.opcode() == CqeOpcode::ReqErr && self.failure_leaves_open(cqe)
    }

    #[cold]
    fn failure_leaves_open(&self, cqe: &Cqe64) -> bool {
        let Some((ledger, ring, _)) = self.slot(cqe).and_then(|slot| slot.send) else {
            return false;
        };
        // SAFETY: this queue is the attached ledger's poller.
        let Some(located) = (unsafe { ledger.locate(cqe.wqe_counter()) }) else {
            return false;
        };
        if located.counter == located.retired || is_first(cqe.failure()) {
            return false;
        }
        // SAFETY: in flight, so the poster does not write them; the ring is that of their queue.
        let signalled =
            |at| unsafe { SendWqe::read(ring, at) }.fm_ce_se() & fm_ce_se::SIGNALED != 0;
        // SAFETY: this queue is the poller, and the request was located.
        self.lossy || unsafe { ledger.before(located) }.any(signalled)
    }
}

/// Whether only the first request that fails can fail with this status. A queue pair that fails
/// flushes the requests behind it. Requests that libibverbs refuses complete with one of the last
/// two statuses, also behind a failure that was not reported.
const fn is_first(status: WcStatus) -> bool {
    !matches!(
        status,
        WcStatus::WrFlushErr | WcStatus::FatalErr | WcStatus::LocQpOpErr | WcStatus::MwBindErr
    )
}
