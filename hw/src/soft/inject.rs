//! Letting things go wrong as a script says. While some entry or packet is to be hit, or the port is
//! down, every entry is executed under the device's lock, one by one; else nothing here costs
//! anything.

use super::control::Control;
use super::fault::{Fault, Script, Trigger};
use super::hca::Hca;
use super::port;
use crate::connect::cm::Managers;
use crate::error::Error;
use crate::event::{Element, EventType};
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::QpState;
use bellwire_core::wr::WcStatus;
use std::cmp::Reverse;
use std::io;
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
            if fault == Fault::RefuseModify && !matches!(trigger, Trigger::Modify(_)) {
                return Err(Error::FaultWithoutModify { fault });
            }
            if let Fault::Cm(event) = fault
                && !Managers::can_strike(event)
            {
                return Err(Error::CmEventAsFault { event });
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
        self.managers.clear();
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
            // Groups are of the subnet, which is gone.
            self.managers.strike(CmEvent::MulticastError);
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

    /// A queue pair is about to be changed, unless this says otherwise. Nothing of a request strikes
    /// then: `inject` sees to it.
    ///
    /// # Errors
    /// [`Error::Io`], when that is what is to go wrong.
    pub(super) fn strike_at_modify(&self, control: &mut Control) -> Result<(), Error> {
        let faults = control.faults.modify();
        for &fault in &faults {
            self.strike(control, fault);
        }
        if !faults.is_empty() {
            self.set_gate(control);
        }
        if faults.contains(&Fault::RefuseModify) {
            let no_memory = io::Error::from_raw_os_error(libc::ENOMEM);
            return Err(Error::io("modify the queue pair", no_memory));
        }
        Ok(())
    }

    /// Something that is not one request's goes wrong. What names something that is gone does
    /// nothing.
    pub(super) fn strike(&self, control: &mut Control, fault: Fault) {
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
            Fault::Cm(event) => self.managers.strike(event),
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
            | Fault::RecvCqOverrun
            | Fault::RefuseModify => {}
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
        self.managers.strike(CmEvent::DeviceRemoval);
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
}
