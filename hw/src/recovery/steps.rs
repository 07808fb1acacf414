//! Carrying out the steps of a plan.

use super::inside::Inside;
use super::live::{create_cq, qp_init};
use super::ring;
use crate::connect::{ConnInfo, RecoveryInfo};
use crate::device::PortState;
use crate::error::Error;
use crate::qp::{ConnectAttr, Endpoint};
use bellwire_core::fault::Fault;
use bellwire_core::fault::plan::{Step, StepResult};
use std::hash::BuildHasher;

/// What a step that calls the device comes to.
fn result(answer: Result<(), Error>) -> StepResult {
    match answer {
        Ok(()) => StepResult::Done,
        Err(error) => StepResult::Failed(Inside::fault_of(&error)),
    }
}

pub(super) const fn when(done: bool) -> StepResult {
    if done {
        StepResult::Done
    } else {
        StepResult::Pending
    }
}

impl Inside {
    pub fn carry_out(&mut self, step: Step) -> StepResult {
        match step {
            Step::ToError => {
                self.keep_dump();
                result(self.enter_error())
            }
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

    /// Keeps what the queue pair did last, before it does something else.
    fn keep_dump(&mut self) {
        if let (Some(options), true) = (self.init.dump, self.connected())
            && let Some(life) = &mut self.life
            && let Some(record) = life.dump(&options)
        {
            self.failure = Some(record);
        }
    }

    pub fn enter_error(&mut self) -> Result<(), Error> {
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

    pub fn destroy_qp(&mut self) -> StepResult {
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

    pub fn destroy_cq(&mut self) -> StepResult {
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
            life.cq = Some(create_cq(&self.pd, &self.init, self.wake.as_ref())?);
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
        if let Some(end) = self.peer.ends() {
            return end;
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
        if let Some(end) = self.peer.ends() {
            return end;
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
        if let Some(end) = self.peer.ends() {
            return end;
        }
        when(met)
    }
}
