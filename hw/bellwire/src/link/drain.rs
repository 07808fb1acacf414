//! Requests that complete while a link recovers, and requests that do not.

use super::repost;
use super::state::RecoveryState;
use super::steps::when;
use crate::cq::Cq;
use crate::qp::Unreported;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::StepResult;
use bellwire_core::fault::{Fault, WorkQueue};
use bellwire_core::queue::{Completion, Failure, PostError};
use bellwire_core::wqe::RdmaWrite;
use bellwire_core::wr::{QpType, Remote, SendFlags, WcStatus, WrOpcode};

/// Whether a status says only that the queue pair stopped.
const fn is_flush(status: WcStatus) -> bool {
    matches!(status, WcStatus::WrFlushErr | WcStatus::FatalErr)
}

/// The fault of a request that failed.
const fn failed(status: WcStatus, queue: WorkQueue) -> Fault {
    Fault::Status {
        status,
        transport: QpType::Rc,
        queue,
        vendor: None,
    }
}

impl RecoveryState {
    /// Polls all completions. A failure that this end did not cause itself is a fault.
    pub fn collect(&mut self) -> Option<Fault> {
        let mut fault = None;
        let qp_num = self.qp_num();
        while let Some(completion) = self.cq.as_mut().and_then(Cq::poll_one) {
            match &mut self.shared {
                Some(shared) if qp_num != Some(completion.qp_num) => {
                    shared.completions.push(completion);
                }
                _ => {
                    let found = self.take(completion);
                    fault = fault.or(found);
                }
            }
        }
        fault
    }

    /// Takes in one completion.
    pub fn take(&mut self, completion: Completion<'static>) -> Option<Fault> {
        match completion.result {
            Ok(success) if success.opcode.is_recv() => {
                self.consumed += 1;
                let report = self.done(completion, success);
                self.report(report);
                None
            }
            Ok(success) => {
                let mut completion = completion;
                let queues = self.queues.as_mut();
                let taken = queues.map(|queues| queues.takes_own(completion.retired));
                let (own, retired) = taken.unwrap_or((false, completion.retired));
                completion.retired = retired;
                match own {
                    true => self.carried += retired,
                    false => {
                        let report = self.done(completion, success);
                        self.report(report);
                    }
                }
                None
            }
            Err(failure) => self.take_failure(completion, failure),
        }
    }

    fn own_completed(&mut self) -> bool {
        self.queues
            .as_mut()
            .is_some_and(|queues| queues.own_completed())
    }

    fn take_failure(&mut self, completion: Completion<'static>, failure: Failure) -> Option<Fault> {
        let Completion {
            wr_id,
            block,
            retired,
            ..
        } = completion;
        let Failure {
            status, counter, ..
        } = failure;
        let on_srq = self.on_srq.is_some();
        let Some(queues) = &mut self.queues else {
            self.carried += retired - 1;
            return None;
        };
        let ordered = queues.in_error;
        if failure.is_recv && on_srq {
            // It is none of the program's requests, and its buffer goes back to the slab.
            drop(block);
            return (!ordered).then_some(failed(status, WorkQueue::SharedRecv));
        }
        let own = !failure.is_recv && queues.is_own(counter);
        let programs = match failure.is_recv {
            true => retired,
            false => queues.takes_own(retired).1,
        };
        // Those before it.
        self.carried += programs - u32::from(!own);
        let queue = if failure.is_recv {
            let receive = repost::receive(queues, &self.cancels, counter, wr_id, block, true);
            if is_flush(status) {
                self.keep_receive(receive);
            } else {
                self.report_outcome(receive.completion(Outcome::Failed(status)));
            }
            WorkQueue::Recv
        } else if own {
            WorkQueue::Send(None)
        } else {
            let pending =
                repost::pending(queues, &self.cancels, counter, wr_id, block, Some(status));
            let operation = pending.operation;
            self.in_flight.requests.push_back(pending);
            self.retired_by_failure(wr_id, operation);
            WorkQueue::Send(Some(operation))
        };
        (!ordered).then_some(failed(status, queue))
    }

    /// A request failed: it retires no bind of the link's own for the program.
    fn retired_by_failure(&mut self, wr_id: u64, operation: WrOpcode) {
        if let Some(grants) = &mut self.grants {
            let own = grants.failed(wr_id, operation);
            self.carried = self.carried.saturating_sub(own);
        }
    }

    /// Whether completions may have been lost.
    fn cq_failed(&self) -> bool {
        self.cq_failed || self.cq.as_ref().is_some_and(Cq::overrun)
    }

    /// Flushes everything that was posted. A send of the recovery's own, posted last, retires executed
    /// requests that have no completion of their own.
    pub fn drain(&mut self) -> StepResult {
        self.collect();
        if self.cq_failed() {
            // No more completions will come.
            return StepResult::Done;
        }
        if self
            .queues
            .as_ref()
            .is_some_and(|queues| !queues.beacon && queues.in_error)
        {
            match self.post_own() {
                Ok(()) => {}
                Err(PostError::QueueFull) => return StepResult::Pending,
                Err(_) => return StepResult::Done,
            }
            if let Some(queues) = &mut self.queues {
                queues.beacon = true;
            }
            self.collect();
        }
        let empty = self.queues.as_mut().is_none_or(|queues| queues.is_empty());
        let in_error = self.queues.as_ref().is_some_and(|queues| queues.in_error);
        if let Some(on_srq) = &mut self.on_srq {
            on_srq.drained = empty && in_error;
        }
        when(empty)
    }

    /// Posts a send of the recovery's own behind all others: an empty WRITE, which needs no rkey and has
    /// no effect at the peer if it is executed.
    fn post_own(&mut self) -> Result<(), PostError> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        queues.posts_own();
        let Some(qp) = &mut queues.qp else {
            return Ok(());
        };
        let remote = Remote::default();
        let write = RdmaWrite { remote };
        qp.sq().post_empty(0, (), write, SendFlags::SIGNALED)?;
        qp.sq().ring();
        if !queues.in_error {
            queues.rung = qp.sq().rung();
        }
        Ok(())
    }

    /// Posts a send of the recovery's own, and checks whether it was acknowledged.
    pub fn probe(&mut self) -> StepResult {
        if let Some(fault) = self.collect() {
            self.broke(fault, self.now);
            return StepResult::Failed(fault);
        }
        if self.queues.as_ref().is_some_and(|queues| !queues.probe) {
            match self.post_own() {
                Ok(()) => {}
                Err(PostError::QueueFull | PostError::CqFailed) => return StepResult::Pending,
                Err(_) => return StepResult::Failed(Fault::Errno(libc::EINVAL)),
            }
            if let Some(queues) = &mut self.queues {
                queues.probe = true;
            }
        }
        if let Some(fault) = self.collect() {
            self.broke(fault, self.now);
            return StepResult::Failed(fault);
        }
        let answered = self.own_completed();
        if answered && let Some(queues) = &mut self.queues {
            queues.forget_own();
        }
        when(answered)
    }

    /// Takes in the requests without a completion, when the queue pair is reset or destroyed.
    pub fn account(&mut self, unreported: Vec<Unreported>) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        // Those that are posted again are kept at once.
        let mut taken_back = Vec::new();
        for request in unreported {
            match request {
                Unreported::Send(send) if queues.is_own(send.counter) => {}
                Unreported::Send(send) => {
                    let (wr_id, block) = (send.wr_id, send.block);
                    let pending =
                        repost::pending(queues, &self.cancels, send.counter, wr_id, block, None);
                    self.in_flight.entries_lost |= pending.rung;
                    if let Some(grants) = &mut self.grants {
                        // The bind in front of it is in this list, too.
                        grants.failed(wr_id, pending.operation);
                    }
                    self.in_flight.requests.push_back(pending);
                }
                Unreported::Recv(lost) => {
                    // It may have been consumed.
                    self.exact = false;
                    let (wr_id, block) = (lost.wr_id, lost.block);
                    let receive =
                        repost::receive(queues, &self.cancels, lost.counter, wr_id, block, false);
                    match receive.taking.why {
                        Some(_) => taken_back.push(receive),
                        None => self.receives.push_back(receive),
                    }
                }
                // A message was received into it, and is lost. The buffer goes back to the slab.
                Unreported::Shared(..) => self.exact = false,
            }
        }
        if let Some(on_srq) = &mut self.on_srq {
            self.exact &= on_srq.end_life();
        }
        queues.renew();
        self.cancels.renew();
        if let Some(grants) = &mut self.grants {
            grants.dead = true;
        }
        taken_back
            .into_iter()
            .for_each(|receive| self.report_receive(receive));
    }
}
