//! Fault injection by script. While a fault waits for an entry or a packet, or the port is down, every entry
//! is executed on its own under the device's lock; otherwise injection costs nothing.

use super::control::Control;
use super::fault::{Fault, Script, Trigger};
use super::hca::Hca;
use super::managers::Managers;
use super::port;
use crate::error::Error;
use crate::event::{Element, EventType};
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::QpState;
use bellwire_core::wr::WcStatus;
use std::cmp::Reverse;
use std::io;
use std::sync::atomic::Ordering;

/// In the timer of a fault, stands in place of a queue pair's number.
pub(super) const FAULT_TIMER: u32 = 0;

impl Hca {
    /// Adds a script to the pending faults.
    pub fn inject(&self, script: &Script) -> Result<(), Error> {
        for &(trigger, fault) in script.steps() {
            if fault.is_of_request() && matches!(trigger, Trigger::After(_) | Trigger::Modify(_)) {
                return Err(Error::FaultWithoutRequest {
                    fault: fault.to_string(),
                });
            }
            if matches!(fault, Fault::Status(status) | Fault::StatusAfter(status) if status == WcStatus::Success)
            {
                return Err(Error::SuccessAsFault);
            }
            if fault == Fault::RefuseModify && !matches!(trigger, Trigger::Modify(_)) {
                return Err(Error::FaultWithoutModify {
                    fault: fault.to_string(),
                });
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
            if let Some(element) = fault.element()
                && !self.contexts.has(element)
            {
                return Err(Error::UnknownElement { element });
            }
            if let Trigger::EntryOf { qp_num, .. } | Trigger::PacketOf { qp_num, .. } = trigger
                && !self.contexts.has(Element::Qp(qp_num))
            {
                let element = Element::Qp(qp_num);
                return Err(Error::UnknownElement { element });
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

    /// Removes the faults that have not occurred yet.
    pub fn clear_faults(&self) {
        let mut control = self.control();
        control.faults.clear();
        self.managers.clear();
        control
            .timers
            .retain(|Reverse((_, _, of))| *of != FAULT_TIMER);
        self.note_next_due(&control);
        self.set_gate(&mut control);
    }

    /// Takes the port's link up or down.
    pub fn set_port_up(&self, up: bool) {
        let mut control = self.control();
        self.link(up);
        self.set_gate(&mut control);
    }

    fn link(&self, up: bool) {
        if !self.port.set_up(up) {
            return;
        }
        if let Some(node) = &self.node {
            node.live().for_each(|peer| peer.segments.set_down(!up));
            // What peers know that they can reach, they look up again.
            self.mrs.generation().pass();
        }
        let event = if up {
            EventType::PortActive
        } else {
            // Group memberships end with the link to the subnet.
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

    /// Closes all queue pairs to the data path, or opens them again, as currently needed.
    fn set_gate(&self, control: &mut Control) {
        let gated = self.wants_gate(control);
        if std::mem::replace(&mut control.gated, gated) == gated {
            return;
        }
        let qpns = control.qpns();
        if gated {
            self.receives_under_lock(true);
            for &qpn in &qpns {
                if let Some(record) = control.record(qpn) {
                    // Relaxed: the barrier orders it before what follows.
                    record.ctx.sender.gate.close(Ordering::Relaxed);
                }
            }
            self.barriers.heavy();
            self.wait_for_all();
            for &qpn in &qpns {
                if let Some(record) = control.record(qpn) {
                    record.kept_out = true;
                }
            }
            for &qpn in &qpns {
                self.settle(control, qpn);
            }
        } else {
            self.receives_under_lock(false);
            for &qpn in &qpns {
                let idle = control
                    .record(qpn)
                    .is_some_and(|record| !record.waits() && record.state == QpState::Rts);
                if idle {
                    self.resume(control, qpn);
                }
            }
        }
        control.listed = qpns;
    }

    /// Runs `look` while nothing is executed, so that no completion is written.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let mut control = self.control();
        control.held = true;
        self.set_gate(&mut control);
        let seen = look();
        control.held = false;
        self.set_gate(&mut control);
        seen
    }

    /// The timer of a fault has expired.
    pub(super) fn fault_is_due(&self, control: &mut Control, timer: u64) {
        if let Some(fault) = control.faults.expired(timer) {
            self.strike(control, fault);
            self.set_gate(control);
        }
    }

    /// Counts a change of a queue pair, before it is made, and applies the faults that occur now. They do not
    /// affect requests, which `inject` ensures.
    ///
    /// # Errors
    /// [`Error::Io`], if a fault refuses the change.
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

    /// Applies a fault that does not affect a single request. If the element that it names no longer exists,
    /// it has no effect.
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

    /// Moves a shared receive queue to the error state, and with it every queue pair on it.
    fn fail_srq(&self, control: &mut Control, srqn: u32) {
        // SAFETY: used under the lock.
        let Some(srq) = (unsafe { self.srqs.get(srqn) }) else {
            return;
        };
        if !srq.fail() {
            return;
        }
        let mut on = control.qpns_like(|record| record.receives_from(srq));
        self.all_to_error(control, &mut on);
        control.listed = on;
    }

    /// A fatal error of the device: everything outstanding is completed in error, and nothing is executed
    /// from then on.
    fn die(&self, control: &mut Control) {
        if std::mem::replace(&mut control.dead, true) {
            return;
        }
        self.broadcast(Element::Device, EventType::DeviceFatal);
        self.managers.strike(CmEvent::DeviceRemoval);
        for record in control.qps.iter_mut().flatten() {
            record.flush_status = WcStatus::FatalErr;
        }
        let mut all = control.qpns();
        self.all_to_error(control, &mut all);
        control.listed = all;
    }

    /// Executes the current entry while every entry needs the lock. `true`: it has been executed, and the
    /// next one may be.
    pub(super) fn execute_gated(&self, control: &mut Control, qpn: u32) -> bool {
        let executed = self.attempt(control, qpn);
        if self.wants_gate(control) {
            return executed;
        }
        // No more faults are pending. This resumes the queue pair, too, which may be open afterwards and is
        // then no longer owned by this thread.
        self.set_gate(control);
        false
    }
}
