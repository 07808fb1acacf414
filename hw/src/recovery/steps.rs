//! Carrying out the steps of a plan.

use super::inside::Inside;
use super::live::{create_cq, done, qp_init};
use super::ring;
use crate::connect::{ConnInfo, RecoveryInfo};
use crate::device::PortState;
use crate::error::Error;
use crate::qp::{ConnectAttr, Endpoint, Untold};
use bellwire_core::fault::outcome::{Consumed, Doubt, Outcome, Replay};
use bellwire_core::fault::plan::{Step, StepResult};
use bellwire_core::fault::{Fault, WorkQueue};
use bellwire_core::queue::{Completion, Failure, PostError};
use bellwire_core::wqe::RdmaWrite;
use bellwire_core::wr::{QpType, Remote, SendFlags, WcStatus};
use std::hash::BuildHasher;

/// What a step that calls the device comes to.
fn result(answer: Result<(), Error>) -> StepResult {
    match answer {
        Ok(()) => StepResult::Done,
        Err(error) => StepResult::Failed(Inside::fault_of(&error)),
    }
}

const fn when(done: bool) -> StepResult {
    if done {
        StepResult::Done
    } else {
        StepResult::Pending
    }
}

/// Whether a completion says no more than that its queue pair stopped.
const fn is_flush(status: WcStatus) -> bool {
    matches!(status, WcStatus::WrFlushErr | WcStatus::FatalErr)
}

impl Inside {
    pub fn carry_out(&mut self, step: Step) -> StepResult {
        match step {
            Step::ToError => result(self.enter_error()),
            Step::Drain => self.drain(),
            Step::AckEvents => self.ack_events(),
            Step::Reset => result(self.reset()),
            Step::DestroyQp => self.destroy_qp(),
            Step::DestroyCq => self.destroy_cq(),
            Step::CreateCq => result(self.create_cq()),
            Step::CreateQp => result(self.create_qp()),
            Step::AwaitPort => self.await_port(),
            Step::Exchange => self.exchange(),
            Step::Init => result(self.enter_init()),
            Step::RepostReceives => self.repost_receives(),
            Step::Connect => result(self.connect()),
            Step::Ready => self.ready(),
            Step::Probe => self.probe(),
            Step::Replay => self.replay(),
            Step::Close => self.close(),
            Step::Surface => self.surface_all(),
            // The queues were taken from the poster before; they go back to it at the end.
            Step::StopPosting | Step::Open => StepResult::Done,
            // Addresses are looked up at each connection.
            Step::Resolve => self.resolve(),
            // A link has no shared receive queue, no unreliable transport, no identifier of the
            // communication manager, no alternate path and no groups.
            Step::AwaitLastWqe
            | Step::DrainSend
            | Step::AwaitTimewait
            | Step::RebuildSrq
            | Step::ResumeSend
            | Step::LoadAlternatePath
            | Step::RejoinMulticast
            | Step::RefillSrq => StepResult::Done,
        }
    }

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

    fn enter_error(&mut self) -> Result<(), Error> {
        let Some(life) = &mut self.life else {
            return Ok(());
        };
        let Some(qp) = &mut life.qp else {
            return Ok(());
        };
        qp.to_error()?;
        life.in_error = true;
        // What was staged is flushed, and so told.
        qp.sq().ring();
        qp.rq().ring();
        Ok(())
    }

    /// Whether completions may have been lost.
    fn cq_failed(&self) -> bool {
        let cq = self.life.as_ref().and_then(|life| life.cq.as_ref());
        self.cq_failed || cq.is_some_and(|cq| cq.overrun())
    }

    /// Everything that was posted is flushed; a send of our own, posted last, completes those that
    /// were executed and have no completion of their own.
    fn drain(&mut self) -> StepResult {
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

    /// The dispatcher acknowledges what it gets. What is still to be got is of the queues that go
    /// now.
    fn ack_events(&mut self) -> StepResult {
        for event in self.events() {
            self.fault(Fault::Event(event), self.now);
        }
        StepResult::Done
    }

    fn reset(&mut self) -> Result<(), Error> {
        let Some(life) = &mut self.life else {
            return Ok(());
        };
        let (Some(qp), Some(cq)) = (&mut life.qp, &mut life.cq) else {
            return Ok(());
        };
        let mut untold = Vec::new();
        qp.reset_with(cq, |request| untold.push(request))?;
        self.account(untold);
        Ok(())
    }

    fn destroy_qp(&mut self) -> StepResult {
        self.collect();
        let Some(life) = &mut self.life else {
            return StepResult::Done;
        };
        let (Some(qp), Some(cq)) = (&mut life.qp, &mut life.cq) else {
            return StepResult::Done;
        };
        let mut untold = Vec::new();
        qp.end(cq, |request| untold.push(request));
        self.account(untold);
        if let Some(life) = &mut self.life {
            life.qp = None;
        }
        StepResult::Done
    }

    /// Takes what no completion told of, at the end of a queue pair's life.
    fn account(&mut self, untold: Vec<Untold>) {
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

    fn destroy_cq(&mut self) -> StepResult {
        if let Some(life) = &mut self.life {
            life.cq = None;
        }
        StepResult::Done
    }

    fn create_cq(&mut self) -> Result<(), Error> {
        let Some(life) = &mut self.life else {
            return Ok(());
        };
        if life.cq.is_none() {
            life.cq = Some(create_cq(&self.pd, &self.init)?);
            self.cq_failed = false;
        }
        Ok(())
    }

    fn create_qp(&mut self) -> Result<(), Error> {
        let Some(life) = &mut self.life else {
            return Ok(());
        };
        if let (None, Some(cq)) = (&life.qp, &mut life.cq) {
            let qp = self.pd.create_qp(&mut *cq, &qp_init(&self.init))?;
            let (qpn, cqn) = (qp.qp_num(), cq.cqn());
            life.qp = Some(qp);
            self.watch(qpn, cqn);
        }
        Ok(())
    }

    fn await_port(&mut self) -> StepResult {
        match self.pd.device().query_port(self.init.connect.port_num) {
            Ok(port) => when(port.state == PortState::Active),
            Err(error) => StepResult::Failed(Self::fault_of(&error)),
        }
    }

    /// How the peer finds this end.
    fn endpoint(&self) -> Endpoint {
        let qp = self.life.as_ref().and_then(|life| life.qp.as_ref());
        qp.map_or_else(Endpoint::default, |qp| qp.endpoint_for(&self.init.connect))
    }

    fn resolve(&mut self) -> StepResult {
        let now = self.endpoint();
        if (now.lid, now.gid) == self.address {
            return StepResult::Done;
        }
        self.address = (now.lid, now.gid);
        StepResult::Changed
    }

    fn exchange(&mut self) -> StepResult {
        self.peer.listen();
        if self.peer.gone().is_some() {
            return StepResult::PeerClosed;
        }
        let Ok(port) = self.pd.device().query_port(self.init.connect.port_num) else {
            return StepResult::Failed(Fault::Errno(libc::EIO));
        };
        let mut endpoint = self.endpoint();
        self.address = (endpoint.lid, endpoint.gid);
        let (connection, consumed, exact) = (self.connection, self.consumed, self.exact);
        let (mtu, memory) = (
            port.active_mtu.min(self.init.connect.path_mtu),
            self.init.memory,
        );
        let psn = &mut self.psn;
        let theirs = self.peer.exchange(|epoch| {
            // No late packet of an earlier connection is one of this one.
            let random = std::hash::RandomState::new().hash_one(epoch);
            *psn = random as u32 & 0xff_ffff;
            endpoint.psn = *psn;
            RecoveryInfo {
                epoch,
                conn: ConnInfo {
                    endpoint,
                    mtu,
                    memory,
                },
                connection,
                consumed,
                exact,
            }
        });
        if theirs.is_some()
            && let Some(life) = &mut self.life
        {
            life.met_peer = true;
        }
        if self.peer.gone().is_some() {
            return StepResult::PeerClosed;
        }
        self.theirs = theirs;
        when(theirs.is_some())
    }

    fn enter_init(&mut self) -> Result<(), Error> {
        let qp = self.life.as_mut().and_then(|life| life.qp.as_mut());
        qp.map_or(Ok(()), |qp| qp.init(&self.init.connect))
    }

    fn repost_receives(&mut self) -> StepResult {
        let Some(qp) = self.life.as_mut().and_then(|life| life.qp.as_mut()) else {
            return StepResult::Done;
        };
        while let Some(receive) = self.receives.pop_front() {
            if let Err(receive) = ring::repost_receive(qp, receive) {
                // They were there before, so there is room.
                self.receives.push_front(receive);
                return StepResult::Failed(Fault::Errno(libc::ENOMEM));
            }
            self.counters.reposted += 1;
        }
        qp.rq().ring();
        StepResult::Done
    }

    fn connect(&mut self) -> Result<(), Error> {
        let Some(theirs) = self.theirs else {
            return Ok(());
        };
        let connect = ConnectAttr {
            path_mtu: self.init.connect.path_mtu.min(theirs.conn.mtu),
            ..self.init.connect
        };
        if let Some(qp) = self.life.as_mut().and_then(|life| life.qp.as_mut()) {
            qp.connect_from(self.psn, &theirs.conn.endpoint, &connect)?;
            self.connection = theirs.epoch;
            self.consumed = 0;
            self.exact = true;
        }
        Ok(())
    }

    fn ready(&mut self) -> StepResult {
        self.peer.listen();
        let met = self.peer.meet();
        if self.peer.gone().is_some() {
            return StepResult::PeerClosed;
        }
        when(met)
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
    fn probe(&mut self) -> StepResult {
        if self.collect().is_some() {
            return StepResult::Failed(Fault::Errno(libc::ETIMEDOUT));
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
        self.collect();
        let answered = self.told_own();
        if answered && let Some(life) = &mut self.life {
            life.forget_own();
        }
        when(answered)
    }

    /// What the peer's count is, of requests on the connection that failed.
    fn consumed_there(&self) -> Consumed {
        match self.peer.count() {
            Some((count, true)) => Consumed::Exactly(count),
            Some((count, false)) => Consumed::AtLeast(count),
            None => Consumed::Unknown,
        }
    }

    /// Settles what was in flight: tells it, or keeps it to be posted again.
    fn settle(&mut self) {
        let consumed = self.consumed_there();
        let mut limbo = std::mem::take(&mut self.limbo);
        let mut told = Vec::new();
        limbo.resolve(
            consumed,
            |tell| told.push(tell),
            |pending, outcome| self.again.push_back((pending, outcome)),
        );
        told.into_iter().for_each(|told| self.surface(told));
    }

    fn replay(&mut self) -> StepResult {
        if self.peer.sent_on() == self.connection {
            // The connection is as it was: nothing failed.
            return StepResult::Done;
        }
        self.settle();
        self.peer.sends_on(self.connection);
        let Some(life) = &mut self.life else {
            return StepResult::Done;
        };
        let mut unread = Vec::new();
        while let Some((mut pending, outcome)) = self.again.pop_front() {
            if let Outcome::Failed(_) = outcome {
                // Once: it would break the connection for ever.
                pending.policy = Replay::Surface;
            }
            let consumes = pending.consumes();
            match ring::repost_send(life, pending) {
                Ok(()) => {}
                Err((PostError::NoEntry, pending)) => {
                    unread.push(pending.told(outcome));
                    continue;
                }
                // They were there before, so there is room.
                Err((_, pending)) => {
                    self.again.push_front((pending, outcome));
                    return StepResult::Failed(Fault::Errno(libc::ENOMEM));
                }
            }
            self.limbo.consuming += u64::from(consumes);
            self.counters.replayed += 1;
            self.replayed += 1;
        }
        if let Some(qp) = &mut life.qp {
            qp.sq().ring();
            life.rung = qp.sq().rung();
        }
        unread.into_iter().for_each(|told| self.surface(told));
        StepResult::Done
    }

    fn close(&mut self) -> StepResult {
        // A queue pair that cannot go to ERR is destroyed as it is.
        let _ = self.enter_error();
        self.drain();
        self.destroy_qp();
        self.destroy_cq();
        self.life = None;
        self.peer.close();
        StepResult::Done
    }

    fn surface_all(&mut self) -> StepResult {
        for pending in &mut self.limbo.requests {
            pending.policy = Replay::Surface;
        }
        // These are older.
        let again = std::mem::take(&mut self.again);
        for (pending, outcome) in again {
            self.surface(pending.told(outcome));
        }
        self.settle();
        for receive in std::mem::take(&mut self.receives) {
            let outcome = if receive.flushed {
                Outcome::NotExecuted
            } else {
                Outcome::InDoubt(Doubt::NoAnswer)
            };
            self.surface(receive.told(outcome));
        }
        if let Some(last) = self.outbox.back_mut() {
            last.retired += std::mem::take(&mut self.carried);
        }
        StepResult::Done
    }
}
