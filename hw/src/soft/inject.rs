//! Letting things go wrong as a script says. While some entry or packet is to be hit, or the port is
//! down, every entry is executed under the device's lock, one by one; else nothing here costs
//! anything.

use super::control::Control;
use super::datagram::Address;
use super::fail::behind;
use super::fault::{Fault, Script, Trigger};
use super::hca::Hca;
use super::journal::takes_receive;
use super::port;
use super::qp::SendWork;
use super::record::{QpRecord, Stall, Wait, connection};
use super::respond::Blame;
use super::run::{Stop, execute_one, run};
use crate::error::Error;
use crate::event::{Element, EventType};
use bellwire_core::cqe::Syndrome;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{SendWqe, opcode};
use bellwire_core::wr::{QpType, WcStatus};
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// What a timer of a fault has in place of a queue pair's number.
pub(super) const FAULT_TIMER: u32 = 0;

impl Hca {
    /// Adds a script to what is to go wrong.
    pub(crate) fn inject(&self, script: &Script) -> Result<(), Error> {
        for &(trigger, fault) in script.steps() {
            if fault.is_of_request() && matches!(trigger, Trigger::After(_) | Trigger::Modify(_)) {
                return Err(Error::FaultWithoutRequest { fault });
            }
            if matches!(fault, Fault::Status(status) | Fault::StatusAfter(status) if status == WcStatus::Success)
            {
                return Err(Error::SuccessAsFault);
            }
            if let Fault::Raise(event, element) = fault
                && event.element_kind() != element.kind()
            {
                return Err(Error::WrongElement { event, element });
            }
        }
        let mut control = self.control();
        let now = self.clock.now();
        for &(trigger, fault) in script.steps() {
            let timer = control.next_timer();
            if let Some(after) = control.faults.add(trigger, fault, timer) {
                let due = now.saturating_add(after.as_nanos() as u64);
                control.timers.push(Reverse((due, timer, FAULT_TIMER)));
            }
        }
        self.note_next_due(&control);
        self.set_gate(&mut control);
        Ok(())
    }

    /// Forgets what has not gone wrong yet.
    pub(crate) fn clear_faults(&self) {
        let mut control = self.control();
        control.faults.clear();
        control
            .timers
            .retain(|Reverse((_, _, of))| *of != FAULT_TIMER);
        self.note_next_due(&control);
        self.set_gate(&mut control);
    }

    /// The port's link goes down, or comes up.
    pub(crate) fn set_port_up(&self, up: bool) {
        let mut control = self.control();
        self.link(up);
        self.set_gate(&mut control);
    }

    fn link(&self, up: bool) {
        if !self.port.set_up(up) {
            return;
        }
        if let Some(node) = &self.node {
            node.live()
                .for_each(|slot| node.peer(slot).segments.set_down(!up));
        }
        let event = if up {
            EventType::PortActive
        } else {
            EventType::PortErr
        };
        self.broadcast(Element::Port(port::NUMBER), event);
    }

    fn wants_gate(&self, control: &Control) -> bool {
        control.faults.counts_packets()
            || self.journal.is_some()
            || control.held
            || !self.port.is_up()
    }

    /// Keeps the data path out of all queue pairs, or lets it in again, as things are.
    fn set_gate(&self, control: &mut Control) {
        let gated = self.wants_gate(control);
        if std::mem::replace(&mut control.gated, gated) == gated {
            return;
        }
        let qpns = control.qpns();
        if gated {
            for &qpn in &qpns {
                if let Some(record) = control.record(qpn) {
                    // Relaxed: ordered before what follows by the barrier.
                    record.ctx.sender.closed.store(true, Ordering::Relaxed);
                }
            }
            self.barriers.heavy();
            self.qps.wait_for_all(control.slots());
            for qpn in qpns {
                self.settle(control, qpn);
            }
        } else {
            for qpn in qpns {
                let idle = control
                    .record(qpn)
                    .is_some_and(|record| !record.waits() && record.state == QpState::Rts);
                if idle {
                    self.resume(control, qpn);
                }
            }
        }
    }

    /// Runs `look` while nothing is executed, and so no completion written.
    pub(crate) fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let mut control = self.control();
        control.held = true;
        self.set_gate(&mut control);
        let seen = look();
        control.held = false;
        self.set_gate(&mut control);
        seen
    }

    /// The time of a fault has come.
    pub(super) fn fault_is_due(&self, control: &mut Control, timer: u64) {
        if let Some(fault) = control.faults.expired(timer) {
            self.strike(control, fault);
            self.set_gate(control);
        }
    }

    /// A queue pair is about to be changed. Nothing of a request strikes then: `inject` sees to it.
    pub(super) fn strike_at_modify(&self, control: &mut Control) {
        let faults = control.faults.modify();
        if faults.is_empty() {
            return;
        }
        for fault in faults {
            self.strike(control, fault);
        }
        self.set_gate(control);
    }

    /// Something that is not one request's goes wrong. What names something that is gone does
    /// nothing.
    fn strike(&self, control: &mut Control, fault: Fault) {
        match fault {
            Fault::CqOverrun(cqn) => {
                let on = |cq: Option<&super::cq::CqCtx>| cq.is_some_and(|cq| cq.cqn() == cqn);
                let found = control.find(|record| record.parts.cqs().into_iter().any(on));
                let Some(qpn) = found else { return };
                if let Some(record) = control.record(qpn) {
                    (record.parts.cqs().into_iter().flatten())
                        .filter(|cq| cq.cqn() == cqn)
                        .for_each(|cq| cq.fail());
                }
                self.overrun(control, qpn);
            }
            Fault::QpFatal(qpn) => {
                if let Some(record) = control.record(qpn) {
                    record.raise(EventType::QpFatal);
                    self.to_error(control, qpn);
                }
            }
            Fault::SrqErr(srqn) => self.fail_srq(control, srqn),
            Fault::DeviceFatal => self.die(control),
            Fault::PortDown => self.link(false),
            Fault::PortUp => self.link(true),
            Fault::Raise(event, element) => {
                self.broadcast(element, event);
            }
            Fault::DropRequest
            | Fault::DropAck
            | Fault::Delay(_)
            | Fault::RemoteAccess
            | Fault::Rnr
            | Fault::Status(_)
            | Fault::StatusAfter(_)
            | Fault::SendCqOverrun
            | Fault::RecvCqOverrun => {}
        }
    }

    /// A shared receive queue breaks, and with it every queue pair on it.
    fn fail_srq(&self, control: &mut Control, srqn: u32) {
        // SAFETY: used under the lock.
        let Some(srq) = (unsafe { self.srqs.get(srqn) }) else {
            return;
        };
        if !srq.fail() {
            return;
        }
        for qpn in control.qpns() {
            if control
                .record(qpn)
                .is_some_and(|record| record.receives_from(srq))
            {
                self.to_error(control, qpn);
            }
        }
    }

    /// The device breaks: everything in flight is told, and nothing is executed any more.
    fn die(&self, control: &mut Control) {
        if std::mem::replace(&mut control.dead, true) {
            return;
        }
        self.broadcast(Element::Device, EventType::DeviceFatal);
        for qpn in control.qpns() {
            if let Some(record) = control.record(qpn) {
                record.flush_status = WcStatus::FatalErr;
            }
            self.to_error(control, qpn);
        }
    }

    /// Executes the entry at hand while every one wants the lock. `true`: it has been, and the next may
    /// be.
    pub(super) fn execute_gated(&self, control: &mut Control, qpn: u32) -> bool {
        let executed = self.attempt(control, qpn);
        if self.wants_gate(control) {
            return executed;
        }
        // Nothing more is to go wrong. This lets the queue pair go on too; it may be open then, and
        // is not ours any more.
        self.set_gate(control);
        false
    }

    /// Executes the entry at hand, with what is to go wrong. `true`: it has been.
    fn attempt(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(stall) = control.stall_at_hand(qpn) else {
            return false;
        };
        let late = stall.wait == Wait::Delay && stall.id != 0;
        let mut of_request = None;
        if !late {
            for fault in control.faults.packet(qpn, stall.id == 0) {
                if fault.is_of_request() {
                    of_request = of_request.or(Some(fault));
                } else {
                    self.strike(control, fault);
                }
            }
            // What struck may have been this queue pair.
            if control.stall_at_hand(qpn).is_none() {
                return false;
            }
        }
        let broken = self.break_cq(control, qpn, of_request);
        let went_on = self.attempt_with(control, qpn, stall, of_request);
        // What was told on it is dead with it, whether an entry was lost or not.
        if let Some(of) = broken {
            self.overrun(control, of);
        }
        went_on
    }

    /// Breaks the completion queue by which the entry at hand is to be told, so that what is told there
    /// is lost. Gives a queue pair on it.
    fn break_cq(&self, control: &mut Control, qpn: u32, fault: Option<Fault>) -> Option<u32> {
        let record = control.record(qpn)?;
        let (on, cq) = match fault {
            Some(Fault::SendCqOverrun) => (qpn, record.parts.cqs()[0]),
            Some(Fault::RecvCqOverrun) => {
                let dest_qp_num = record.attr.dest_qp_num;
                let (work, _) = record
                    .runnable()
                    .filter(|(work, _)| work.remote.is_none())?;
                // SAFETY: rung and not completed.
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
                    _ => (dest_qp_num, control.record(dest_qp_num)?.parts.cqs()[1]),
                }
            }
            _ => return None,
        };
        cq?.fail();
        Some(on)
    }

    /// Executes the entry at hand, as `fault` has it. `true`: it has been.
    fn attempt_with(
        &self,
        control: &mut Control,
        qpn: u32,
        stall: Stall,
        fault: Option<Fault>,
    ) -> bool {
        let lost = fault == Some(Fault::DropRequest);
        let arrives = !lost && !matches!(fault, Some(Fault::Delay(_) | Fault::Status(_)));
        if arrives
            && self.port.is_up()
            && let Some(record) = control.record(qpn)
            && record.requester.is_none()
        {
            let peer = record.attr.dest_qp_num;
            self.first_packet(control, peer, connection(peer, qpn));
        }
        let Some(record) = control.record(qpn) else {
            return false;
        };
        let Some((work, end)) = record.runnable() else {
            return false;
        };
        // SAFETY: rung and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let reliable = matches!(work.transport, QpType::Rc | QpType::XrcSend);
        let lost = lost || !self.port.is_up() && !matches!(wqe.opcode(), opcode::NOP | opcode::UMR);
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
            // A duplicate: acknowledged, and not executed again.
            (_, Some(byte_len)) => return self.executed(control, qpn, byte_len),
            (Some(Fault::RemoteAccess), None) if reliable && has_key(&wqe) => Stop::Failed {
                syndrome: Syndrome::REMOTE_ACCESS,
                responder: Some(Blame::Access),
            },
            (Some(Fault::Rnr), None) if reliable && takes_receive(&wqe) => {
                // Relaxed: a number on its own.
                Stop::Rnr(work.peer.face.min_rnr_timer.load(Ordering::Relaxed))
            }
            // Registration work goes to nobody, who would acknowledge it.
            (Some(Fault::DropAck), None) if reliable && wqe.opcode() != opcode::UMR => {
                let work = *work;
                match self.execute_untold(control, &work, &wqe) {
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
                match self.execute_untold(control, &work, &wqe) {
                    Ok(_) | Err(Stop::Dropped) => {
                        self.fail(control, qpn, status, None);
                        return false;
                    }
                    Err(stop) => stop,
                }
            }
            _ if work.remote.is_some() => return self.attempt_remote(control, qpn, end),
            // No size, or more than was rung.
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

    /// Executes an entry, and tells nobody but the journal.
    fn execute_untold(
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

    /// Executes the entry at hand, which goes to another process, or sends it there. `true`: so it was.
    fn attempt_remote(&self, control: &mut Control, qpn: u32, end: u32) -> bool {
        let Some((work, _)) = control.record(qpn).and_then(QpRecord::runnable) else {
            return false;
        };
        // SAFETY: rung and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let at = *work;
        let next = behind(&wqe, work.consumer, end);
        let stop = run(self, work, next);
        // Relaxed: changed under the lock, or by this thread. What is done here needs no packet; of what
        // was sent the peer's journal tells.
        let done_here = at.own.sender.acked.load(Ordering::Relaxed) == next;
        if let (Some(journal), true) = (&self.journal, done_here) {
            self.note_execution(control, &at, &wqe, &Ok::<_, Stop>(()));
            if let Some(record) = control.record(qpn) {
                let request = self.request(record, at.consumer);
                journal.executed_and_told(request, &wqe, stop != Some(Stop::Overrun));
            }
        }
        match stop {
            None => true,
            Some(stop) => self.handle(control, qpn, stop),
        }
    }
}

/// Whether a request names memory of the peer.
fn has_key(wqe: &SendWqe<'_>) -> bool {
    matches!(
        wqe.opcode(),
        opcode::RDMA_WRITE
            | opcode::RDMA_WRITE_IMM
            | opcode::RDMA_READ
            | opcode::ATOMIC_CS
            | opcode::ATOMIC_FA
    )
}
