//! Failing and flushing requests. Everything here runs under the device's lock.

use super::connection::{UNTRIED, connection};
use super::control::Control;
use super::cq::CqCtx;
use super::hca::Hca;
use super::qp::SendWork;
use super::receive::Receives;
use super::record::{QpRecord, RecvParts};
use super::respond::Blame;
use crate::event::EventType;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode};
use bellwire_core::qp::{QpState, state_after_send_error};
use bellwire_core::wqe::{SendWqe, fm_ce_se};
use bellwire_core::wr::WcStatus;
use std::sync::atomic::Ordering;

impl Hca {
    /// Completes the current entry with an error, and moves the queue pair to the error state; for an
    /// unreliable service, only its send queue (SQE). `responder` moves the responder to the error state,
    /// too.
    pub(super) fn fail(
        &self,
        control: &mut Control,
        qpn: u32,
        status: WcStatus,
        responder: Option<Blame>,
    ) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let peer = record.attr.dest_qp_num;
        self.fall_silent(record);
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
            // SAFETY: posted and not completed, so the poster does not write it.
            let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
            let entry = send_error(work, &wqe, status);
            let written = work.cq.produce(&entry);
            if let Some(journal) = &self.journal {
                journal.reported(self.request(record, work.consumer), status, written);
            }
            // Acquire: pairs with the Release in `Hca::ring`.
            let producer = record.ctx.sender.producer.load(Ordering::Acquire);
            work.pass(behind(&wqe, work.consumer, producer));
        }
        if state_after_send_error(record.parts.transport) == QpState::Sqe
            && record.state == QpState::Rts
        {
            record.state = QpState::Sqe;
            record.stall = None;
            self.flush_sends(record);
        } else {
            self.to_error(control, qpn);
        }
        // Only if the responder is still in the life in which it refused.
        if let Some(blame) = responder
            && let Some(record) = control.record(peer)
            // Relaxed: changed under the lock.
            && record.ctx.rights.accepts.load(Ordering::Relaxed) & !UNTRIED == connection(peer, qpn)
        {
            self.blame(control, peer, blame);
        }
    }

    /// Fails a responder that could not execute a request.
    pub(super) fn blame(&self, control: &mut Control, qpn: u32, blame: Blame) {
        let event = match blame {
            Blame::Overrun => return self.overrun(control, qpn),
            // The receive's completion reports it.
            Blame::Receive => None,
            Blame::Access => Some(EventType::QpAccessErr),
            Blame::Request => Some(EventType::QpReqErr),
        };
        if let (Some(record), Some(event)) = (control.record(qpn), event) {
            record.raise(event);
        }
        self.to_error(control, qpn);
    }

    /// Checks the completion queues of this queue pair for an overrun. If one has overrun, every queue pair
    /// on it fails.
    pub(super) fn overrun(&self, control: &mut Control, qpn: u32) {
        self.overrun_of(control, &[qpn]);
    }

    fn overrun_of(&self, control: &mut Control, qpns: &[u32]) {
        let mut dead = Vec::new();
        for &qpn in qpns {
            note_overrun(control, qpn, &mut dead);
        }
        let mut next = 0;
        while let Some(cq) = dead.get(next).copied() {
            next += 1;
            let mut on = control.qps_on(cq);
            for &qpn in &on {
                if let Some(record) = control.record(qpn)
                    && record.fatal(cq.cqn())
                {
                    record.raise(EventType::QpFatal);
                }
            }
            let moved = self.move_to_error(control, &mut on);
            for &qpn in &on[..moved] {
                note_overrun(control, qpn, &mut dead);
            }
            control.listed = on;
        }
    }

    /// Moves a queue pair to the error state: everything posted and not executed is flushed. If that overruns a
    /// completion queue, every queue pair on it fails.
    pub(super) fn to_error(&self, control: &mut Control, qpn: u32) {
        self.all_to_error(control, &mut [qpn]);
    }

    /// As [`to_error`](Self::to_error), for all of these: with one barrier.
    pub(super) fn all_to_error(&self, control: &mut Control, qpns: &mut [u32]) {
        let moved = self.move_to_error(control, qpns);
        self.overrun_of(control, &qpns[..moved]);
    }

    /// As [`all_to_error`](Self::all_to_error), but these queue pairs only. Returns how many were in another state, and
    /// moves those to the front.
    fn move_to_error(&self, control: &mut Control, qpns: &mut [u32]) -> usize {
        let mut moved = 0;
        for at in 0..qpns.len() {
            let record = control.record(qpns[at]);
            if let Some(record) = record.filter(|record| record.state != QpState::Err) {
                // Before anything is handled: what execution has stopped at may fail others, but starts nothing here.
                record.state = QpState::Err;
                qpns.swap(moved, at);
                moved += 1;
            }
        }
        let qpns = &qpns[..moved];
        self.take_out(control, qpns);
        for &qpn in qpns {
            let Some(record) = control.record(qpn) else {
                continue;
            };
            self.fall_silent(record);
            self.arm_flush(record);
            self.flush(record);
            if let RecvParts::Shared { .. } = record.parts.recv {
                // Execution is synchronous: no receive of the queue is in use by it.
                record.raise(EventType::QpLastWqeReached);
            }
        }
        moved
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&self, record: &mut QpRecord) {
        self.flush_sends(record);
        // SAFETY: the queue pair is shut and the lock is held, so this thread owns the work.
        let recv = unsafe { &mut *record.ctx.receiver.work.get() };
        let Some(recv) = recv else { return };
        // Receives of a shared receive queue stay there for other queue pairs.
        let Receives::Own(queue) = &mut recv.source else {
            return;
        };
        let posted = queue.record.load() as u16;
        while queue.consumer != posted {
            let wqe = CompletedWqe {
                qpn: recv.qpn,
                user_index: queue.user_index,
                wqe_counter: queue.consumer,
            };
            let entry = Cqe64::failed(CqeOpcode::RespErr, wqe, 0, record.flush_status, 0);
            if !queue.cq.produce(&entry) {
                break;
            }
            queue.consumer = queue.consumer.wrapping_add(1);
        }
    }

    /// Completes all posted sends as flushed.
    pub(super) fn flush_sends(&self, record: &QpRecord) {
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return;
        };
        // Acquire: pairs with the Release in `Hca::ring`.
        let producer = record.ctx.sender.producer.load(Ordering::Acquire);
        while work.consumer != producer {
            // SAFETY: posted and not completed, so the poster does not write it.
            let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
            // Its poster has a later entry report it.
            if wqe.fm_ce_se() & COMPLETION_MODE != fm_ce_se::NO_FLUSH {
                let entry = send_error(work, &wqe, record.flush_status);
                let written = work.cq.produce(&entry);
                if let Some(journal) = &self.journal {
                    let request = self.request(record, work.consumer);
                    journal.reported(request, record.flush_status, written);
                }
                if !written {
                    break;
                }
            }
            work.pass(behind(&wqe, work.consumer, producer));
        }
    }
}

/// Adds the completion queues of this queue pair that have overrun.
fn note_overrun(control: &mut Control, qpn: u32, dead: &mut Vec<&'static CqCtx>) {
    let cqs = control.record(qpn).map(|record| record.parts.cqs());
    for cq in cqs.into_iter().flatten().flatten() {
        if cq.overrun() && !dead.iter().any(|known| std::ptr::eq(*known, cq)) {
            dead.push(cq);
        }
    }
}

/// The bits of an entry's flags that say when it gets a CQE.
const COMPLETION_MODE: u8 = fm_ce_se::SIGNALED | fm_ce_se::NO_FLUSH;

/// Counter behind an entry. Its size is trusted only up to what was posted.
pub(super) fn behind(wqe: &SendWqe<'_>, counter: u32, producer: u32) -> u32 {
    let rung = producer.wrapping_sub(counter);
    counter.wrapping_add(wqe.blocks().clamp(1, rung.max(1)))
}

/// The error CQE for the entry at `work.consumer`.
fn send_error(work: &SendWork, wqe: &SendWqe<'_>, status: WcStatus) -> Cqe64 {
    let completed = CompletedWqe {
        qpn: work.qpn,
        user_index: work.user_index,
        wqe_counter: work.consumer as u16,
    };
    Cqe64::failed(CqeOpcode::ReqErr, completed, wqe.opcode(), status, 0)
}
