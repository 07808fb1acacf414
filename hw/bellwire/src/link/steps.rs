//! Carrying out the steps of a plan.

use super::active_queues::{create_cq, create_qp};
use super::repost::{self, Receive};
use super::state::RecoveryState;
use crate::error::Error;
use crate::qp::ConnectAttr;
use bellwire_core::event::EventType;
use bellwire_core::fault::Fault;
use bellwire_core::fault::plan::{Step, StepResult};
use bellwire_core::link::{ConnInfo, Endpoint, LocalInfo};
use bellwire_provider::attr::PortState;
use bellwire_provider::psn::random_psn;
use std::collections::VecDeque;

/// The GID of an empty entry of the GID table.
const NO_GID: [u8; 16] = [0; 16];

/// The result of a step that needs the port: the plan waits for the port, for longer than it tries a step
/// again.
const WITHOUT_PORT: StepResult = StepResult::Failed(Fault::Event(EventType::PortErr));

/// The result of a step that calls the device.
fn result(answer: Result<(), Error>) -> StepResult {
    match answer {
        Ok(()) => StepResult::Done,
        Err(error) => StepResult::Failed(RecoveryState::fault_of(&error)),
    }
}

pub(super) const fn when(done: bool) -> StepResult {
    if done {
        StepResult::Done
    } else {
        StepResult::Pending
    }
}

impl RecoveryState {
    pub fn carry_out(&mut self, step: Step) -> StepResult {
        match step {
            Step::ToError => {
                self.keep_dump();
                result(self.enter_error())
            }
            Step::AwaitLastWqe => self.await_last_wqe(),
            Step::Drain => self.drain(),
            Step::AckEvents => self.ack_events(),
            Step::Reset => result(self.reset()),
            Step::DestroyQp => self.destroy_qp(),
            Step::DestroyCq => self.destroy_cq(),
            Step::RebuildSrq => when(self.on_srq.as_ref().is_none_or(|on_srq| !on_srq.failed)),
            Step::CreateCq => self.create_cq(),
            // The set is about to create it.
            Step::CreateQp if self.on_srq.is_some() && self.srq.is_none() => StepResult::Pending,
            Step::CreateQp => result(self.create_qp()),
            Step::AwaitPort => self.await_port(),
            Step::Init => result(self.enter_init()),
            Step::RepostReceives => self.repost_receives(),
            Step::Connect if self.gid_is_lost() => WITHOUT_PORT,
            Step::Connect if self.peer.is_unreachable() => StepResult::PeerLost,
            Step::Connect => result(self.connect()),
            Step::Probe => self.probe(),
            Step::Replay => self.replay(),
            Step::Close => self.close(),
            Step::ReportOutcomes => self.report_all(),
            // The queues were taken from the program before; they are returned to it at the end.
            Step::StopPosting | Step::Open => StepResult::Done,
            // The protocol takes these itself.
            Step::Exchange | Step::Ready => StepResult::Done,
            // Addresses are looked up for each connection.
            Step::Resolve if self.gid_is_lost() => WITHOUT_PORT,
            Step::Resolve => self.resolve(),
            // A link has no unreliable transport, no identifier of the communication manager, no alternate
            // path and no groups. Its set refills the shared receive queue.
            Step::DrainSend
            | Step::AwaitTimewait
            | Step::ResumeSend
            | Step::LoadAlternatePath
            | Step::RejoinMulticast
            | Step::RefillSrq => StepResult::Done,
        }
    }

    /// Keeps the record of the queue pair, before the queue pair is used again.
    fn keep_dump(&mut self) {
        if self.protocol.first() == Some(Fault::Cancelled) {
            // Nothing failed: a record of a failure is kept.
            return;
        }
        if let (Some(options), true) = (self.init.dump, self.protocol.connected())
            && let (Some(queues), Some(cq)) = (&mut self.queues, &mut self.cq)
            && let Some(record) = queues.dump(cq, &options)
        {
            self.failure = Some(record);
        }
    }

    pub fn enter_error(&mut self) -> Result<(), Error> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        let Some(qp) = &mut queues.qp else {
            return Ok(());
        };
        qp.to_error()?;
        queues.in_error = true;
        queues.receives_posted = false;
        // Staged requests are flushed, and so reported.
        qp.sq().ring();
        qp.rq().ring();
        Ok(())
    }

    /// The dispatcher acknowledges each event that it takes. Events that are still queued concern the
    /// queues that are now destroyed.
    fn ack_events(&mut self) -> StepResult {
        self.take_events(self.now);
        StepResult::Done
    }

    fn reset(&mut self) -> Result<(), Error> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        let (Some(qp), Some(cq)) = (&mut queues.qp, &mut self.cq) else {
            return Ok(());
        };
        let mut unreported = Vec::new();
        // If it fails it hands back no request.
        qp.reset_with(cq, |request| unreported.push(request))?;
        self.account(unreported);
        Ok(())
    }

    pub fn destroy_qp(&mut self) -> StepResult {
        self.collect();
        let Some(queues) = &mut self.queues else {
            return StepResult::Done;
        };
        let (Some(qp), Some(cq)) = (&mut queues.qp, &mut self.cq) else {
            return StepResult::Done;
        };
        let mut unreported = Vec::new();
        qp.end(cq, |request| unreported.push(request));
        self.account(unreported);
        if let Some(qp) = self.queues.as_mut().and_then(|queues| queues.qp.take()) {
            self.unwatch(qp.qp_num());
        }
        StepResult::Done
    }

    pub fn destroy_cq(&mut self) -> StepResult {
        // A shared queue is destroyed by the set, when the last link has left it.
        if self.shared.is_none() {
            self.cq = None;
        }
        StepResult::Done
    }

    fn create_cq(&mut self) -> StepResult {
        if self.shared.is_some() {
            // The set creates the queue, and then says so.
            return when(!self.cq_failed);
        }
        if self.cq.is_none() {
            match create_cq(&self.pd, &self.init, self.wake.as_ref()) {
                Ok(cq) => self.cq = Some(cq),
                Err(error) => return StepResult::Failed(Self::fault_of(&error)),
            }
            self.cq_failed = false;
            self.poll_again = true;
        }
        StepResult::Done
    }

    fn create_qp(&mut self) -> Result<(), Error> {
        let Some(queues) = &mut self.queues else {
            return Ok(());
        };
        if let (None, Some(cq)) = (&queues.qp, &mut self.cq) {
            let reserve = match &self.shared {
                Some(shared) => shared.reserve,
                None => self.init.cq_entries.is_none(),
            };
            let srq = self.srq.as_ref();
            let mut qp = create_qp(&self.pd, &self.init, cq, srq, reserve)?;
            self.published.set_queues(&mut qp);
            let (qpn, cqn) = (qp.qp_num(), cq.cqn());
            queues.qp = Some(qp);
            self.watch(qpn, cqn)?;
        }
        Ok(())
    }

    fn await_port(&mut self) -> StepResult {
        match self.pd.device().query_port(self.init.connect.port_num) {
            Ok(port) => when(port.state == PortState::Active && self.has_gid()),
            Err(error) => StepResult::Failed(Self::fault_of(&error)),
        }
    }

    /// The current index of the GID that the program named by index: when the table is filled again (the
    /// port was down, or an interface was recreated) the GID may be at another index. If the GID is gone
    /// for good, the index remains as the program gave it.
    fn named_index(&self) -> Option<u8> {
        let connect = &self.init.connect;
        let index = connect.gid_index?;
        let hca = &self.pd.device().hca;
        let now = match self.named_gid.gid {
            NO_GID => None,
            _ => hca.gid_index_of(connect.port_num, &self.named_gid, index),
        };
        Some(now.unwrap_or(index))
    }

    /// Whether the named entry is filled, which may happen later than the port becomes active.
    fn has_gid(&self) -> bool {
        let port = self.init.connect.port_num;
        let is_there = |index| self.pd.device().hca.gid_entry(port, index).gid != NO_GID;
        self.named_index().is_none_or(is_there)
    }

    /// Whether the GID that the program named was there, and is not there now: its address was taken from
    /// the interface, perhaps only for a while. An entry that was empty when it was named is the program's
    /// mistake.
    fn gid_is_lost(&self) -> bool {
        self.named_gid.gid != NO_GID && !self.has_gid()
    }

    /// The local address for the peer, and the index of its GID.
    fn endpoint(&self) -> (Endpoint, u8) {
        let (device, port) = (self.pd.device(), self.init.connect.port_num);
        let index = device.gid_index(port, self.named_index());
        let qp = self.queues.as_ref().and_then(|queues| queues.qp.as_ref());
        let endpoint = qp.map_or_else(Endpoint::default, |qp| {
            device.endpoint(qp.qp_num(), port, Some(index))
        });
        (endpoint, index)
    }

    /// A queue pair keeps the GID index that it was connected with: if the GID has moved, it is connected
    /// again.
    fn resolve(&mut self) -> StepResult {
        let (now, index) = self.endpoint();
        if (now.lid, now.gid, index) == self.address {
            return StepResult::Done;
        }
        self.address = (now.lid, now.gid, index);
        StepResult::Changed
    }

    /// Passes this end's address and count to the protocol.
    pub fn describe(&mut self) {
        match self.local_info() {
            Ok(ours) => self.protocol.described(ours),
            Err(error) => {
                let result = StepResult::Failed(Self::fault_of(&error));
                self.protocol.done(Step::Exchange, result, self.now);
            }
        }
    }

    /// What the peer has to know of this end. Makes system calls on most devices, so not called at each
    /// poll.
    fn local_info(&mut self) -> Result<LocalInfo, Error> {
        let port = (self.pd.device()).query_port(self.init.connect.port_num)?;
        let (mut endpoint, index) = self.endpoint();
        self.address = (endpoint.lid, endpoint.gid, index);
        // A random PSN: late packets of an earlier connection are not taken for packets of this one.
        self.psn = random_psn();
        endpoint.psn = self.psn;
        Ok(LocalInfo {
            conn: ConnInfo {
                endpoint,
                mtu: port.active_mtu.min(self.init.connect.path_mtu),
                memory: self.init.memory,
            },
            consumed: self.consumed,
            exact: self.exact,
        })
    }

    fn enter_init(&mut self) -> Result<(), Error> {
        if let Some(on_srq) = &mut self.on_srq {
            on_srq.begin_life();
        }
        let qp = self.queues.as_mut().and_then(|queues| queues.qp.as_mut());
        qp.map_or(Ok(()), |qp| qp.init(&self.init.connect))
    }

    /// Waits until the queue pair takes no more receives from the shared receive queue.
    fn await_last_wqe(&mut self) -> StepResult {
        self.collect();
        when(!self.takes_receives())
    }

    /// Posts receives again, and the receives that the program has posted since.
    pub fn repost_receives(&mut self) -> StepResult {
        if self
            .queues
            .as_ref()
            .is_some_and(|queues| queues.qp.is_some())
        {
            self.report_late_receives();
        }
        let Some(queues) = &mut self.queues else {
            return StepResult::Done;
        };
        let Some(qp) = &mut queues.qp else {
            return StepResult::Done;
        };
        for (receives, again) in [(&mut self.receives, true), (&mut self.early, false)] {
            while let Some(receive) = receives.pop_front() {
                if let Err(receive) = repost::post_receive(qp, &mut self.cancels.receives, receive)
                {
                    // They were in the queue before, or were counted, so there is room.
                    receives.push_front(receive);
                    return StepResult::Failed(Fault::Errno(libc::ENOMEM));
                }
                (self.published).update(|counters| counters.reposted += u64::from(again));
            }
        }
        qp.rq().ring();
        queues.receives_posted = true;
        StepResult::Done
    }

    fn kept(&mut self, early: bool) -> &mut VecDeque<Receive> {
        if early {
            &mut self.early
        } else {
            &mut self.receives
        }
    }

    /// Reports the receives that are taken back; the others stay, in their order.
    fn report_late_receives(&mut self) {
        for early in [false, true] {
            for _ in 0..self.kept(early).len() {
                let Some(mut receive) = self.kept(early).pop_front() else {
                    break;
                };
                match receive.taking.is_due(self.now, &self.published) {
                    true => self.report_receive(receive),
                    false => self.kept(early).push_back(receive),
                }
            }
        }
    }

    fn connect(&mut self) -> Result<(), Error> {
        let Some(theirs) = self.protocol.peer_info() else {
            return Ok(());
        };
        let connect = ConnectAttr {
            path_mtu: self.init.connect.path_mtu.min(theirs.conn.mtu),
            gid_index: self.named_index(),
            ..self.init.connect
        };
        if let Some(qp) = self.queues.as_mut().and_then(|queues| queues.qp.as_mut()) {
            // If it fails the queue pair may have taken receives, too.
            if let Some(on_srq) = &mut self.on_srq {
                on_srq.connected = true;
            }
            qp.connect_from(self.psn, &theirs.conn.endpoint, &connect)?;
            self.consumed = 0;
            self.exact = true;
        }
        Ok(())
    }
}
