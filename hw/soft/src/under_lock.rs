//! Entries that are executed under the device's lock, because it protects what they access: binding and
//! invalidating memory windows changes the memory of others, a multicast depends on the members of the group.
//! Their queue pair is closed, and no thread is in its section.

use super::connection;
use super::control::Control;
use super::datagram::{self, Address};
use super::hca::Hca;
use super::qp::SendWork;
use super::remote;
use super::respond::Blame;
use super::run::{Service, Stop, answered, outgoing_datagram, outgoing_message, received_as};
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::{ImmField, Layout, WrOpcode};
use bellwire_core::wqe::{Rc, SendWqe, Uc, Xrc};
use bellwire_core::wr::QpType;

impl Hca {
    /// `true`: the entry has been executed, and the next one may be.
    pub(super) fn execute_under_lock(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work. It is copied,
        // because the calls below may access the queue pair again.
        let Some(work) = (unsafe { *record.ctx.sender.work.get() }) else {
            return false;
        };
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let done = self.execute_rare(control, &work, &wqe);
        self.note_execution(control, &work, &wqe, &done);
        match done {
            Ok(failed) => {
                // First the request, then the receivers: the queue pair may be one of them.
                let written = self.executed(control, qpn, 0);
                for (receiver, blame) in failed {
                    self.blame(control, receiver, blame);
                }
                written
            }
            Err(stop) => self.handle(control, qpn, stop),
        }
    }

    /// Returns the receivers that fail.
    pub(super) fn execute_rare(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<Vec<(u32, Blame)>, Stop> {
        let refused = Err(Stop::local(Syndrome::LOCAL_QP_OP));
        let Some(operation) = wqe.operation() else {
            return refused.map(|()| Vec::new());
        };
        let row = operation.row();
        let done = match row.layout {
            Layout::Registration => self.registration(control, work, wqe),
            Layout::Message if !operation.runs_on(work.transport) => refused,
            Layout::Message if row.imm == ImmField::RemoteKey => match work.transport {
                QpType::Uc => self.send_invalidate::<Uc>(control, work, wqe, operation),
                QpType::XrcSend => self.send_invalidate::<Xrc>(control, work, wqe, operation),
                // No others run it.
                QpType::Rc | QpType::Ud | QpType::XrcRecv | QpType::Dci => {
                    self.send_invalidate::<Rc>(control, work, wqe, operation)
                }
            },
            Layout::Message if work.transport == QpType::Ud => {
                return self.multicast(control, work, wqe, operation);
            }
            Layout::Control
            | Layout::Message
            | Layout::Memory
            | Layout::CompareAndSwap
            | Layout::FetchAndAdd => refused,
        };
        done.map(|()| Vec::new())
    }

    /// Binds a window, or invalidates a key.
    fn registration(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<(), Stop> {
        let umr = wqe.umr().ok_or(Stop::local(Syndrome::LOCAL_QP_OP))?;
        self.register(control, work.pd, work.qpn, umr)
            .map_err(|()| Stop::local(Syndrome::MW_BIND))
    }

    /// Delivers a message after invalidating the rkey that it names.
    fn send_invalidate<T: Service>(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
        operation: WrOpcode,
    ) -> Result<(), Stop> {
        let message = outgoing_message(self, work, wqe, received_as(operation)?, T::FIRST)?;
        let peer = connection::responder(work.connection);
        let sent = T::responder(self, work, wqe).and_then(|responder| {
            responder.receive(self, &message, || {
                self.invalidate(control, responder.pd(), peer, wqe.imm().get())
                    .ok_or(Syndrome::REMOTE_INVAL_REQ)
            })
        });
        answered::<T>(sent.map(|()| 0)).map(|_| ())
    }

    /// Sends a datagram to each member of its group.
    fn multicast(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
        operation: WrOpcode,
    ) -> Result<Vec<(u32, Blame)>, Stop> {
        let message = outgoing_datagram(self, work, wqe, received_as(operation)?)?;
        let to = Address::read(work, &wqe.address_vector());
        let mut failed = Vec::new();
        let request = control.record(work.qpn);
        let request = request.map(|record| self.request(record, work.consumer));
        if !self.port.is_up() {
            return Ok(failed);
        }
        remote::send_to_all(self, work.qpn, &message, &to);
        for qpn in control.groups.members(&to.av.rgid, to.av.rlid.get()) {
            let done = datagram::deliver(self, work.qpn, &message, &to, qpn);
            if let (Some(journal), Some(request)) = (&self.journal, request) {
                journal.executed(request, qpn, wqe, message.length, &done);
            }
            if let Err(Stop::Receiver(blame)) = done {
                failed.push((qpn, blame));
            }
        }
        Ok(failed)
    }
}
