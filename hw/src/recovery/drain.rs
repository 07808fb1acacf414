//! What completes while a link recovers, and what does not.

use super::inside::Inside;
use super::live::done;
use super::ring;
use super::steps::when;
use crate::qp::Untold;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::StepResult;
use bellwire_core::fault::{Fault, WorkQueue};
use bellwire_core::queue::{Completion, Failure, PostError};
use bellwire_core::wqe::RdmaWrite;
use bellwire_core::wr::{QpType, Remote, SendFlags, WcStatus};

/// Whether a completion says no more than that its queue pair stopped.
const fn is_flush(status: WcStatus) -> bool {
    matches!(status, WcStatus::WrFlushErr | WcStatus::FatalErr)
}

impl Inside {
    /// Takes what has completed. A failure that this end did not order is a fault.
    pub fn collect(&mut self) -> Option<Fault> {
        let mut fault = None;
        while let Some(completion) = self
            .life
            .as_mut()
            .and_then(|life| life.cq.as_mut())
            .and_then(|cq| cq.poll_one())
        {
            let found = self.take(completion);
            fault = fault.or(found);
        }
        fault
    }

    /// Takes one completion.
    pub fn take(&mut self, completion: Completion<'static>) -> Option<Fault> {
        match completion.result {
            Ok(success) if success.opcode.is_recv() => {
                self.consumed += 1;
                self.tell(done(completion, success));
                None
            }
            Ok(success) => {
                if self.told_own() {
                    self.carried += completion.retired - 1;
                } else {
                    self.tell(done(completion, success));
                }
                None
            }
            Err(failure) => self.take_failure(completion, failure),
        }
    }

    fn told_own(&mut self) -> bool {
        self.life.as_mut().is_some_and(|life| life.told_own())
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
        self.carried += retired - 1;
        let life = self.life.as_mut()?;
        let ordered = life.in_error;
        let queue = if failure.is_recv {
            let receive = ring::receive(life, counter, wr_id, block, true);
            if is_flush(status) {
                self.receives.push_back(receive);
            } else {
                self.surface(receive.told(Outcome::Failed(status)));
            }
            WorkQueue::Recv
        } else if life.is_own(counter) {
            WorkQueue::Send(None)
        } else {
            let pending = ring::pending(life, counter, wr_id, block, Some(status));
            let operation = pending.operation;
            self.limbo.requests.push_back(pending);
            WorkQueue::Send(Some(operation))
        };
        (!ordered).then_some(Fault::Status {
            status,
            transport: QpType::Rc,
            queue,
            vendor: None,
        })
    }

    /// Whether completions may have been lost.
    fn cq_failed(&self) -> bool {
        let cq = self.life.as_ref().and_then(|life| life.cq.as_ref());
        self.cq_failed || cq.is_some_and(|cq| cq.overrun())
    }

    /// Everything that was posted is flushed; a send of our own, posted last, completes those that
    /// were executed and have no completion of their own.
    pub fn drain(&mut self) -> StepResult {
        self.collect();
        if self.cq_failed() {
            // Nothing more comes.
            return StepResult::Done;
        }
        if self
            .life
            .as_ref()
            .is_some_and(|life| !life.beacon && life.in_error)
        {
            match self.post_own() {
                Ok(()) => {}
                Err(PostError::QueueFull) => return StepResult::Pending,
                Err(_) => return StepResult::Done,
            }
            if let Some(life) = &mut self.life {
                life.beacon = true;
            }
            self.collect();
        }
        let empty = self.life.as_mut().is_none_or(|life| life.is_empty());
        when(empty)
    }

    /// Posts a send of our own, behind all others: an empty WRITE, which needs no key and of which the
    /// peer notices nothing, should it be executed.
    fn post_own(&mut self) -> Result<(), PostError> {
        let Some(life) = &mut self.life else {
            return Ok(());
        };
        life.posts_own();
        let Some(qp) = &mut life.qp else {
            return Ok(());
        };
        let remote = Remote::default();
        let write = RdmaWrite { remote };
        qp.sq().post_empty(0, (), write, SendFlags::SIGNALED)?;
        qp.sq().ring();
        if !life.in_error {
            life.rung = qp.sq().rung();
        }
        Ok(())
    }

    /// A send of our own, and its acknowledgement.
    pub fn probe(&mut self) -> StepResult {
        if let Some(fault) = self.collect() {
            self.broke(fault, self.now);
            return StepResult::Failed(fault);
        }
        if self.life.as_ref().is_some_and(|life| !life.probe) {
            match self.post_own() {
                Ok(()) => {}
                Err(PostError::QueueFull) => return StepResult::Pending,
                Err(_) => return StepResult::Failed(Fault::Errno(libc::EINVAL)),
            }
            if let Some(life) = &mut self.life {
                life.probe = true;
            }
        }
        if let Some(fault) = self.collect() {
            self.broke(fault, self.now);
            return StepResult::Failed(fault);
        }
        let answered = self.told_own();
        if answered && let Some(life) = &mut self.life {
            life.forget_own();
        }
        when(answered)
    }

    /// Takes what no completion told of, at the end of a queue pair's life.
    pub fn account(&mut self, untold: Vec<Untold>) {
        let Some(life) = &mut self.life else {
            return;
        };
        for request in untold {
            match request {
                Untold::Send(send) if life.is_own(send.counter) => {}
                Untold::Send(send) => {
                    let pending = ring::pending(life, send.counter, send.wr_id, send.block, None);
                    self.limbo.entries_lost |= pending.rung;
                    self.limbo.requests.push_back(pending);
                }
                Untold::Recv(lost) => {
                    // It may have been consumed.
                    self.exact = false;
                    let receive = ring::receive(life, lost.counter, lost.wr_id, lost.block, false);
                    self.receives.push_back(receive);
                }
                // A link has no shared receive queue.
                Untold::Shared(..) => {}
            }
        }
        life.renew();
        self.peer.renew();
    }
}
