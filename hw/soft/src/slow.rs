//! Waiting, retrying and continuing after execution has stopped at an entry. Everything here runs under the
//! device's lock.

use super::connection::connection;
use super::control::Control;
use super::datagram::Address;
use super::fail::behind;
use super::hca::Hca;
use super::inject::FAULT_TIMER;
use super::packets::{First, Packets};
use super::qp::QpCtx;
use super::record::{Stall, Wait};
use super::run::{Stop, complete, run};
use bellwire_core::qp::{AckTimeout, QpState, RNR_RETRY_INFINITE, ack_timeout, rnr_timer};
use bellwire_core::wqe::SendWqe;
use bellwire_core::wr::{QpType, WcStatus};
use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Hca {
    /// The data path found a queue pair closed.
    #[cold]
    #[inline(never)]
    pub(super) fn rung_while_closed(&self, ctx: &'static QpCtx) {
        let mut control = self.control();
        let gated = control.gated;
        let Some(record) = control.record_of(ctx) else {
            return;
        };
        let qpn = record.qpn;
        match record.state {
            QpState::Err => self.flush(record),
            QpState::Sqe => self.flush_sends(record),
            // Opened between our check and the lock.
            QpState::Rts if !ctx.sender.gate.is_closed(Ordering::Relaxed) => {
                drop(control);
                self.execute_rung(ctx);
            }
            // Each entry needs the lock, because a fault may affect it or a journal is kept.
            QpState::Rts if gated && !record.waits() => self.resume(&mut control, qpn),
            // An entry waits, and what was posted waits behind it; or the queue pair is drained and waits for
            // RTS.
            _ => {
                drop(control);
                if self.waiting() {
                    self.progress();
                }
            }
        }
    }

    /// A receive was posted to a queue pair in the error state.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_posted_in_error(&self, qpn: u32) {
        let mut control = self.control();
        if let Some(record) = control.record(qpn)
            && record.state == QpState::Err
        {
            self.flush(record);
        }
    }

    /// The data path stopped at an entry, and closed the queue pair.
    #[cold]
    #[inline(never)]
    pub(super) fn stopped(&self, ctx: &QpCtx) {
        let mut control = self.control();
        // Relaxed: changed under the lock, or by this thread. If it is open again, the thread that opened it
        // has handled the entry and this thread does not own the work.
        if let Some(record) = control.record_of(ctx)
            && record.ctx.sender.gate.is_closed(Ordering::Relaxed)
        {
            let qpn = record.qpn;
            self.settle(&mut control, qpn);
        }
    }

    /// Handles the entry at which the data path stopped. `false`: it has been handled already, or execution
    /// did not stop. The queue pair is closed, and its section has been left.
    pub(super) fn settle(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let work = unsafe { &mut *record.ctx.sender.work.get() };
        let Some(stop) = work.as_mut().and_then(|work| work.stop.take()) else {
            return false;
        };
        if self.handle(control, qpn, stop) {
            self.resume(control, qpn);
        }
        true
    }

    /// Handles the entry at which execution stopped. `true`: it has been executed, and the next one may be.
    pub(super) fn handle(&self, control: &mut Control, qpn: u32, stop: Stop) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return false;
        };
        if let Some(requester) = &mut record.requester {
            requester.full = false;
        }
        let mut stall = record.stall_at(work.consumer);
        let wait = match stop {
            Stop::Failed {
                syndrome,
                responder,
            } => {
                self.fail(control, qpn, syndrome.status(), responder);
                return false;
            }
            Stop::Overrun => {
                self.overrun(control, qpn);
                return false;
            }
            Stop::Receiver(blame) => {
                // SAFETY: posted and not completed, so the poster does not write it.
                let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
                let receiver = match work.transport {
                    QpType::Ud => Address::read(work, &wqe.address_vector()).qpn,
                    QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => {
                        record.attr.dest_qp_num
                    }
                };
                // First the request, then the receiver: they may belong to one queue pair.
                let written = self.executed(control, qpn, 0);
                self.blame(control, receiver, blame);
                return written;
            }
            Stop::UnderLock => return self.execute_under_lock(control, qpn),
            Stop::Dropped => return self.executed(control, qpn, 0),
            Stop::FirstPacket => {
                let (peer, packets) = (record.attr.dest_qp_num, Packets::of(&record.attr));
                match self.first_packet(control, peer, connection(peer, qpn), packets) {
                    First::Accepted => return true,
                    First::Refused => return self.handle(control, qpn, Stop::NoAnswer),
                    First::UpTo(longest) => return self.execute_up_to(control, qpn, longest),
                }
            }
            // The holder of the lock takes the turn away.
            Stop::Held => return true,
            Stop::Unacknowledged | Stop::Full => return self.wait_for_peer(control, qpn, stop),
            Stop::Rnr(code) => {
                if stall.rnr_left == 0 {
                    self.fail(control, qpn, WcStatus::RnrRetryExcErr, None);
                    return false;
                }
                if stall.rnr_left != RNR_RETRY_INFINITE {
                    stall.rnr_left -= 1;
                }
                stall.wait = Wait::Rnr;
                control.rnr_naks += 1;
                rnr_timer(code)
            }
            Stop::NoAnswer => {
                stall.wait = Wait::Acknowledgement;
                match ack_timeout(record.attr.timeout) {
                    Some(AckTimeout::After(wait)) => Some(wait),
                    Some(AckTimeout::Infinite) | None => None,
                }
            }
        };
        self.stall(control, qpn, stall, wait);
        false
    }

    /// Lets the current entry wait: for this long, or until another event resumes it.
    pub(super) fn stall(
        &self,
        control: &mut Control,
        qpn: u32,
        stall: Stall,
        wait: Option<Duration>,
    ) {
        let id = control.next_timer();
        if let Some(wait) = wait {
            let due = self.clock.now().saturating_add(wait.as_nanos() as u64);
            control.timers.push(Reverse((due, id, qpn)));
        }
        if let Some(record) = control.record(qpn) {
            record.stall = Some(Stall { id, ..stall });
        }
        self.note_next_due(control);
    }

    pub(super) fn note_next_due(&self, control: &Control) {
        let due = control.timers.peek().map_or(self.never(), |next| next.0.0);
        // Relaxed: a hint for `waiting`.
        self.next_due.store(due, Ordering::Relaxed);
        self.note_looks();
        if let Some(node) = &self.node
            && due != self.never()
            && !node.is_awake()
        {
            node.rouse();
        }
    }

    /// Continues requests whose time comes by `end`, in the order of their times.
    pub(super) fn run_timers(&self, control: &mut Control, end: u64) {
        while let Some(Reverse((due, id, qpn))) = control.timers.peek().copied() {
            if due > end {
                break;
            }
            control.timers.pop();
            self.clock.set(due);
            self.expire(control, id, qpn);
        }
        self.note_next_due(control);
    }

    fn expire(&self, control: &mut Control, id: u64, qpn: u32) {
        if qpn == FAULT_TIMER {
            return self.fault_is_due(control, id);
        }
        let Some(record) = control.record(qpn) else {
            return;
        };
        // It has not been sent while there is no link. If one is still being made, the outcome will be known soon.
        let unlinked = (record.requester.as_ref())
            .filter(|requester| requester.incarnation == 0)
            .and_then(|requester| Some((self.node.as_ref()?, requester.slot)));
        let calling = unlinked.is_some_and(|(node, slot)| node.is_calling(slot));
        let retry_cnt = record.attr.retry_cnt;
        let Some(stall) = record.stall.as_mut().filter(|stall| stall.id == id) else {
            return;
        };
        if stall.wait == Wait::Acknowledgement && !calling {
            if stall.retries_left == 0 {
                return self.fail(control, qpn, WcStatus::RetryExcErr, None);
            }
            // Call the node once more: the last call may have ended before this request began to wait for a link.
            if let Some((node, slot)) = unlinked.filter(|_| stall.retries_left == retry_cnt) {
                node.call(slot);
            }
            stall.retries_left -= 1;
            control.retries += 1;
        }
        self.resume(control, qpn);
    }

    /// Executes what waits, and opens the queue pair when nothing is left.
    pub(super) fn resume(&self, control: &mut Control, qpn: u32) {
        loop {
            let gated = control.gated;
            let Some(record) = control.record(qpn) else {
                return;
            };
            let stall = record.stall;
            let Some((work, producer)) = record.runnable() else {
                return;
            };
            let stall = stall.filter(|stall| stall.counter == work.consumer);
            if let Some(byte_len) = stall.and_then(|stall| stall.executed).filter(|_| !gated) {
                // If it were sent again, it would be a duplicate: acknowledged, and not executed again.
                if self.executed(control, qpn, byte_len) {
                    continue;
                }
                return;
            }
            if gated && work.consumer != producer {
                if self.execute_gated(control, qpn) {
                    continue;
                }
                return;
            }
            match run(self, work, producer) {
                Some(stop) if self.handle(control, qpn, stop) => {}
                Some(_) => return,
                None => return self.ran_dry(control, qpn),
            }
        }
    }

    /// Nothing is left to execute.
    fn ran_dry(&self, control: &mut Control, qpn: u32) {
        let gated = control.gated;
        let id = control.next_timer();
        let Some(record) = control.record(qpn) else {
            return;
        };
        if let Some(requester) = &mut record.requester {
            requester.full = false;
        }
        // Outstanding requests may have to wait again, and keep their retry counters. A new id disables
        // timers that have not expired: the queue pair may be opened now, and then belongs to the poster.
        record.stall = (record.stall.take())
            .filter(|_| record.under_way())
            .map(|stall| Stall { id, ..stall });
        match record.state {
            // What was started is not finished before it is acknowledged.
            QpState::Sqd if record.under_way() => {}
            QpState::Sqd => record.drained(),
            // Entries that were posted meanwhile are executed by their poster, which found the queue pair closed
            // and takes the lock.
            QpState::Rts if !gated => record.open(),
            _ => {}
        }
    }

    /// Completes the current entry, which was executed, but not by `run`. `true`: the next one may be
    /// executed.
    pub(super) fn executed(&self, control: &mut Control, qpn: u32, byte_len: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return false;
        };
        // Acquire: pairs with the Release in `Hca::ring`.
        let producer = record.ctx.sender.producer.load(Ordering::Acquire);
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let written = complete(work, &wqe, work.consumer, byte_len);
        if let Some(journal) = &self.journal {
            journal.executed_and_reported(self.request(record, work.consumer), &wqe, written);
        }
        work.pass(behind(&wqe, work.consumer, producer));
        if !written {
            self.overrun(control, qpn);
        }
        written
    }
}
