//! Executes one entry under the device's lock, with the faults that affect it.

use super::connection::connection;
use super::control::Control;
use super::datagram::Address;
use super::fail::behind;
use super::fault::Fault;
use super::hca::Hca;
use super::journal::{is_local, takes_receive};
use super::packets::{First, Packets};
use super::qp::SendWork;
use super::record::{QpRecord, Stall, Wait};
use super::respond::Blame;
use super::run::{Stop, execute_one, run};
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::SendWqe;
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

impl Hca {
    /// Executes the current entry, with the faults that affect it. `true`: it has been executed.
    pub(super) fn attempt(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(stall) = control.stall_at_hand(qpn) else {
            return false;
        };
        let late = stall.wait == Wait::Delay && stall.id != 0;
        let new_entry = stall.id == 0 && control.record(qpn).is_some_and(QpRecord::is_new);
        // An entry that a fault affects fails after the outstanding ones: it waits until they have completed.
        if !late
            && (control.faults.hits(qpn, new_entry) || !self.port.is_up())
            && control.record(qpn).is_some_and(|record| record.under_way())
        {
            return self.handle(control, qpn, Stop::Unacknowledged);
        }
        let mut of_request = None;
        if !late {
            for fault in control.faults.packet(qpn, new_entry) {
                if fault.is_of_request() {
                    of_request = of_request.or(Some(fault));
                } else {
                    self.strike(control, fault);
                }
            }
            // The faults may have affected this queue pair.
            if control.stall_at_hand(qpn).is_none() {
                return false;
            }
        }
        let broken = self.break_cq(control, qpn, of_request);
        let went_on = self.attempt_with(control, qpn, stall, of_request);
        // The completion queue has failed, and with it the queue pairs on it, whether an entry was lost or
        // not.
        if let Some(of) = broken {
            self.overrun(control, of);
        }
        went_on
    }

    /// Fails the completion queue on which the current entry is to be reported, so that its completion is
    /// lost. Returns a queue pair that uses it.
    fn break_cq(&self, control: &mut Control, qpn: u32, fault: Option<Fault>) -> Option<u32> {
        let record = control.record(qpn)?;
        let (on, cq) = match fault {
            Some(Fault::SendCqOverrun) => (qpn, record.parts.cqs()[0]),
            Some(Fault::RecvCqOverrun) => {
                let dest_qp_num = record.attr.dest_qp_num;
                let (work, _) = record
                    .runnable()
                    .filter(|(work, _)| work.remote.is_none())?;
                // SAFETY: posted and not completed, so the poster does not write it.
                let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
                if !takes_receive(&wqe) {
                    return None;
                }
                match work.transport {
                    QpType::Ud => {
                        let to = Address::read(work, &wqe.address_vector()).qpn;
                        (to, control.record(to)?.parts.cqs()[1])
                    }
                    // SAFETY: used under the lock.
                    QpType::XrcSend => match unsafe { self.srqs.get(wqe.xrc_srqn()) }?.xrc {
                        Some(xrc) => (dest_qp_num, Some(xrc.cq)),
                        None => return None,
                    },
                    QpType::Rc | QpType::Uc | QpType::XrcRecv | QpType::Dci => {
                        (dest_qp_num, control.record(dest_qp_num)?.parts.cqs()[1])
                    }
                }
            }
            _ => return None,
        };
        cq?.fail();
        Some(on)
    }

    /// Executes the current entry under `fault`. `true`: it has been executed.
    fn attempt_with(
        &self,
        control: &mut Control,
        qpn: u32,
        stall: Stall,
        fault: Option<Fault>,
    ) -> bool {
        let lost = fault == Some(Fault::DropRequest);
        let arrives = !lost && !matches!(fault, Some(Fault::Delay(_) | Fault::Status(_)));
        let mut refused = false;
        if arrives
            && self.port.is_up()
            && let Some(record) = control.record(qpn)
            && record.requester.is_none()
        {
            let (peer, packets) = (record.attr.dest_qp_num, Packets::of(&record.attr));
            let first = self.first_packet(control, peer, connection(peer, qpn), packets);
            refused = first == First::Refused;
        }
        let Some(record) = control.record(qpn) else {
            return false;
        };
        let Some((work, end)) = record.runnable() else {
            return false;
        };
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let reliable = matches!(work.transport, QpType::Rc | QpType::XrcSend);
        let lost = lost || (refused || !self.port.is_up()) && !is_local(&wqe);
        let stop = match (fault, stall.executed) {
            _ if lost && reliable => Stop::NoAnswer,
            _ if lost => return self.executed(control, qpn, 0),
            (Some(Fault::Delay(time)), _) => {
                let stall = Stall {
                    wait: Wait::Delay,
                    ..stall
                };
                self.stall(control, qpn, stall, Some(time));
                return false;
            }
            (Some(Fault::Status(status)), _) | (Some(Fault::StatusAfter(status)), Some(_)) => {
                self.fail(control, qpn, status, None);
                return false;
            }
            (Some(Fault::DropAck), Some(_)) => Stop::NoAnswer,
            // A duplicate request: it is acknowledged, and not executed again.
            (_, Some(byte_len)) => return self.executed(control, qpn, byte_len),
            (Some(Fault::RemoteAccess), None) if reliable && has_key(work.transport, &wqe) => {
                Stop::Failed {
                    syndrome: Syndrome::REMOTE_ACCESS,
                    responder: Some(Blame::Access),
                }
            }
            (Some(Fault::Rnr), None) if reliable && takes_receive(&wqe) => {
                // Relaxed: the value orders no other data.
                Stop::Rnr(work.peer.rights.min_rnr_timer.load(Ordering::Relaxed))
            }
            // Binds and invalidations are local: no responder acknowledges them.
            (Some(Fault::DropAck), None)
                if reliable && !wqe.operation().is_some_and(WrOpcode::is_registration) =>
            {
                let work = *work;
                match self.execute_unreported(control, &work, &wqe) {
                    Ok(byte_len) => {
                        if let Some(record) = control.record(qpn) {
                            record.stall = Some(Stall {
                                executed: Some(byte_len),
                                ..stall
                            });
                        }
                        Stop::NoAnswer
                    }
                    Err(stop) => stop,
                }
            }
            (Some(Fault::StatusAfter(status)), None) if work.remote.is_some() => {
                self.fail(control, qpn, status, None);
                return false;
            }
            (Some(Fault::StatusAfter(status)), None) => {
                let work = *work;
                match self.execute_unreported(control, &work, &wqe) {
                    Ok(_) | Err(Stop::Dropped) => {
                        self.fail(control, qpn, status, None);
                        return false;
                    }
                    Err(stop) => stop,
                }
            }
            _ if work.remote.is_some() => return self.attempt_remote(control, qpn, end),
            // The entry's size is zero, or exceeds what was posted.
            _ if wqe.blocks().wrapping_sub(1) >= end.wrapping_sub(work.consumer) => {
                Stop::local(Syndrome::LOCAL_QP_OP)
            }
            _ => {
                let work = *work;
                let done = execute_one(self, &work, &wqe);
                self.note_execution(control, &work, &wqe, &done);
                match done {
                    Ok(byte_len) => return self.executed(control, qpn, byte_len),
                    Err(stop) => stop,
                }
            }
        };
        self.handle(control, qpn, stop)
    }

    /// Executes an entry without completing it; only the journal records it.
    pub(super) fn execute_unreported(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<u32, Stop> {
        let done = match execute_one(self, work, wqe) {
            Err(Stop::UnderLock) => self.execute_rare(control, work, wqe).map(|_| 0),
            done => done,
        };
        self.note_execution(control, work, wqe, &done);
        done
    }

    /// Executes the current entry, whose peer is in another process, or sends it there. `true`: it has been
    /// executed or sent.
    fn attempt_remote(&self, control: &mut Control, qpn: u32, end: u32) -> bool {
        let Some((work, _)) = control.record(qpn).and_then(QpRecord::runnable) else {
            return false;
        };
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let at = *work;
        let next = behind(&wqe, work.consumer, end);
        let stop = run(self, work, next);
        // Relaxed: changed under the lock, or by this thread. An entry that is acknowledged at once needed no
        // packet; one that was sent is recorded in the peer's journal.
        let done_here = at.own.sender.acked.load(Ordering::Relaxed) == next;
        if let (Some(journal), true) = (&self.journal, done_here) {
            self.note_execution(control, &at, &wqe, &Ok::<_, Stop>(()));
            if let Some(record) = control.record(qpn) {
                let request = self.request(record, at.consumer);
                journal.executed_and_reported(request, &wqe, stop != Some(Stop::Overrun));
            }
        }
        match stop {
            None => true,
            Some(stop) => self.handle(control, qpn, stop),
        }
    }
}

/// Whether a request carries an rkey.
fn has_key(transport: QpType, wqe: &SendWqe<'_>) -> bool {
    (wqe.request(transport)).is_ok_and(|request| request.remote().is_some())
}
