//! Entries that are executed under the device's lock: what they touch is the lock's. Their queue
//! pair is closed, and nobody is within its section.

use super::control::Control;
use super::datagram::{self, Address};
use super::hca::Hca;
use super::qp::SendWork;
use super::remote;
use super::respond::Blame;
use super::run::{Service, Stop, answered, outgoing_datagram, outgoing_message};
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::{Rc, SendWqe, Uc, Xrc, opcode};
use bellwire_core::wr::QpType;

impl Hca {
    /// `true`: it has been executed, and the next may be.
    pub(super) fn execute_under_lock(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: closed, and the lock is held: the work is ours. A copy: what follows may look at
        // the queue pair again.
        let Some(work) = (unsafe { *record.ctx.sender.work.get() }) else {
            return false;
        };
        // SAFETY: rung and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let done = self.execute_rare(control, &work, &wqe);
        self.note_execution(control, &work, &wqe, &done);
        match done {
            Ok(failed) => {
                // First the request, then the receivers: it may be one of them.
                let told = self.executed(control, qpn, 0);
                for (receiver, blame) in failed {
                    self.blame(control, receiver, blame);
                }
                told
            }
            Err(stop) => self.handle(control, qpn, stop),
        }
    }

    /// Gives the receivers that fail with it.
    pub(super) fn execute_rare(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<Vec<(u32, Blame)>, Stop> {
        let done = match (work.transport, wqe.opcode()) {
            (QpType::Ud, opcode::SEND | opcode::SEND_IMM) => {
                return self.multicast(control, work, wqe);
            }
            (QpType::Rc, opcode::SEND_INVAL) => self.send_invalidate::<Rc>(control, work, wqe),
            (QpType::Uc, opcode::SEND_INVAL) => self.send_invalidate::<Uc>(control, work, wqe),
            (QpType::XrcSend, opcode::SEND_INVAL) => {
                self.send_invalidate::<Xrc>(control, work, wqe)
            }
            (_, opcode::UMR) => self.registration(control, work, wqe),
            _ => Err(Stop::Failed {
                syndrome: Syndrome::LOCAL_QP_OP,
                responder: None,
            }),
        };
        done.map(|()| Vec::new())
    }

    /// Binds a window, or takes a key away.
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

    /// Hands a message over once the key that it names has been taken away.
    fn send_invalidate<T: Service>(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<(), Stop> {
        let message = outgoing_message(self, work, wqe, T::FIRST)?;
        let peer = (work.connection >> 32) as u32;
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
    ) -> Result<Vec<(u32, Blame)>, Stop> {
        let message = outgoing_datagram(self, work, wqe)?;
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
