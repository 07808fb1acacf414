//! What happens when execution cannot go on: waiting, retrying, failing, flushing. All of it under
//! the device's lock.

use super::control::{Control, QpRecord, Stall, connection};
use super::hca::Hca;
use super::qp::QpCtx;
use super::run::{Stop, run};
use crate::event::EventType;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Syndrome};
use bellwire_core::qp::{AckTimeout, QpState, RNR_RETRY_INFINITE, ack_timeout, rnr_timer};
use bellwire_core::wqe::SendWqe;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

impl Hca {
    /// The data path found a queue pair closed.
    #[cold]
    #[inline(never)]
    pub(super) fn rung_while_closed(&self, ctx: &'static QpCtx, qpn: u32) {
        let mut control = self.control();
        let Some(record) = control.record(qpn) else {
            return;
        };
        match record.state {
            QpState::Err => self.flush(record),
            // Opened between our look and the lock.
            QpState::Rts if !ctx.sender.closed.load(Ordering::Relaxed) => {
                drop(control);
                self.execute(ctx, qpn);
            }
            // It waits, and what was rung waits behind it; or it is drained and waits for RTS.
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

    /// The data path stopped at an entry, and closed the queue pair behind it.
    #[cold]
    #[inline(never)]
    pub(super) fn stopped(&self, qpn: u32) {
        let mut control = self.control();
        // Relaxed: changed under the lock, or by this thread. Open again: whoever opened it has
        // settled the entry, and the work is not ours.
        if let Some(record) = control.record(qpn)
            && record.ctx.sender.closed.load(Ordering::Relaxed)
        {
            self.settle(&mut control, qpn);
        }
    }

    /// Deals with the entry that the data path stopped at, unless somebody has. The queue pair is
    /// closed, and its section has been left.
    pub(super) fn settle(&self, control: &mut Control, qpn: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        // SAFETY: closed, and the lock is held: the work is ours.
        let work = unsafe { &mut *record.ctx.sender.work.get() };
        if let Some(stop) = work.as_mut().and_then(|work| work.stop.take()) {
            self.handle(control, qpn, stop);
        }
    }

    /// Deals with the entry that execution stopped at.
    fn handle(&self, control: &mut Control, qpn: u32, stop: Stop) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        // SAFETY: closed, and the lock is held: the work is ours.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return;
        };
        let mut stall = match record.stall {
            Some(stall) if stall.counter == work.consumer => stall,
            _ => Stall {
                id: 0,
                counter: work.consumer,
                rnr_left: record.attr.rnr_retry,
                retries_left: record.attr.retry_cnt,
                unanswered: false,
            },
        };
        let wait = match stop {
            Stop::Failed {
                syndrome,
                responder,
            } => return self.fail(control, qpn, syndrome, responder),
            Stop::Overrun => {
                record.raise(EventType::QpFatal);
                return self.to_error(control, qpn);
            }
            Stop::Rnr(code) => {
                if stall.rnr_left == 0 {
                    return self.fail(control, qpn, Syndrome::RNR_RETRY_EXC, false);
                }
                if stall.rnr_left != RNR_RETRY_INFINITE {
                    stall.rnr_left -= 1;
                }
                stall.unanswered = false;
                rnr_timer(code)
            }
            Stop::NoAnswer => {
                stall.unanswered = true;
                match ack_timeout(record.attr.timeout) {
                    Some(AckTimeout::After(wait)) => Some(wait),
                    Some(AckTimeout::Infinite) | None => None,
                }
            }
        };
        stall.id = control.next_stall;
        control.next_stall += 1;
        if let Some(wait) = wait {
            let due = self.clock.now().saturating_add(wait.as_nanos() as u64);
            control.timers.push(Reverse((due, stall.id, qpn)));
        }
        if let Some(record) = control.record(qpn) {
            record.stall = Some(stall);
        }
        self.note_next_due(control);
    }

    pub(super) fn note_next_due(&self, control: &Control) {
        let due = control.timers.peek().map_or(u64::MAX, |next| next.0.0);
        // Relaxed: a hint for `waiting`.
        self.next_due.store(due, Ordering::Relaxed);
    }

    /// Lets requests go on whose time comes by `end`, in the order of their times.
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
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(stall) = record.stall.as_mut().filter(|stall| stall.id == id) else {
            return;
        };
        if stall.unanswered {
            if stall.retries_left == 0 {
                return self.fail(control, qpn, Syndrome::TRANSPORT_RETRY_EXC, false);
            }
            stall.retries_left -= 1;
        }
        self.resume(control, qpn);
    }

    /// Executes what waits, and opens the queue pair when nothing is left.
    pub(super) fn resume(&self, control: &mut Control, qpn: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let sender = &record.ctx.sender;
        // SAFETY: closed, and the lock is held: the work is ours.
        let Some(work) = (unsafe { &mut *sender.work.get() }) else {
            return;
        };
        let producer = if record.state == QpState::Rts {
            // Acquire: partner of the release in `Hca::ring`.
            sender.producer.load(Ordering::Acquire)
        } else if let Some(stall) = record.stall {
            // Draining: what was started is finished, and nothing else begun.
            // SAFETY: rung and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, stall.counter) };
            stall.counter.wrapping_add(wqe.blocks())
        } else {
            return;
        };
        match run(self, work, producer) {
            Some(stop) => self.handle(control, qpn, stop),
            None => {
                record.stall = None;
                if record.state == QpState::Rts {
                    // Release: partner of the acquire in `Hca::execute`. Entries rung since are
                    // executed by whoever rang: it found the queue pair closed, and takes the lock.
                    sender.closed.store(false, Ordering::Release);
                }
            }
        }
    }

    /// Completes the entry at hand with an error, and takes the queue pair (and the responder's,
    /// where it is to blame or to know) to the error state.
    fn fail(&self, control: &mut Control, qpn: u32, syndrome: Syndrome, responder: bool) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let peer = record.attr.dest_qp_num;
        // SAFETY: closed, and the lock is held: the work is ours.
        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
            // SAFETY: rung and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
            let entry = send_error(record, &wqe, work.consumer, syndrome);
            let _overrun_is_final = work.cq.produce(&entry);
            // Acquire: partner of the release in `Hca::ring`.
            let producer = record.ctx.sender.producer.load(Ordering::Acquire);
            work.consumer = behind(&wqe, work.consumer, producer);
        }
        self.to_error(control, qpn);
        // Only in the life in which it answered.
        if responder
            && let Some(record) = control.record(peer)
            // Relaxed: changed under the lock.
            && record.ctx.face.accepts.load(Ordering::Relaxed) == connection(peer, qpn)
        {
            self.to_error(control, peer);
        }
    }

    /// Takes a queue pair to the error state: everything posted and not executed is flushed.
    pub(super) fn to_error(&self, control: &mut Control, qpn: u32) {
        let in_error = |record: &QpRecord| record.state == QpState::Err;
        if control.record(qpn).is_none_or(|record| in_error(record)) {
            return;
        }
        self.close(control, qpn);
        // The entry that execution stopped at may have led here already.
        let Some(record) = control.record(qpn).filter(|record| !in_error(record)) else {
            return;
        };
        record.state = QpState::Err;
        // Relaxed: ordered by the barrier in `shut`; partner of the poster's look after it has
        // stored the record.
        record.ctx.receiver.flushing.store(true, Ordering::Relaxed);
        self.shut(control, qpn);
        if let Some(record) = control.record(qpn) {
            self.arm_flush(record);
            self.flush(record);
        }
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&self, record: &mut QpRecord) {
        // SAFETY: shut, and the lock is held: both works are ours.
        let (send, recv) = unsafe {
            (
                &mut *record.ctx.sender.work.get(),
                &mut *record.ctx.receiver.work.get(),
            )
        };
        if let Some(work) = send {
            // Acquire: partner of the release in `Hca::ring`.
            let producer = record.ctx.sender.producer.load(Ordering::Acquire);
            while work.consumer != producer {
                // SAFETY: rung and not completed.
                let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
                let entry = send_error(record, &wqe, work.consumer, Syndrome::WR_FLUSH);
                if !work.cq.produce(&entry) {
                    break;
                }
                work.consumer = behind(&wqe, work.consumer, producer);
            }
        }
        if let Some(work) = recv {
            let posted = work.record.load() as u16;
            while work.consumer != posted {
                let wqe = CompletedWqe {
                    qpn: work.qpn,
                    user_index: work.user_index,
                    wqe_counter: work.consumer,
                };
                let entry = Cqe64::error(CqeOpcode::RespErr, wqe, 0, Syndrome::WR_FLUSH, 0);
                if !work.cq.produce(&entry) {
                    break;
                }
                work.consumer = work.consumer.wrapping_add(1);
            }
        }
    }
}

/// Counter behind an entry. What it says of its size is believed as far as something was rung.
fn behind(wqe: &SendWqe<'_>, counter: u32, producer: u32) -> u32 {
    let rung = producer.wrapping_sub(counter);
    counter.wrapping_add(wqe.blocks().clamp(1, rung.max(1)))
}

fn send_error(record: &QpRecord, wqe: &SendWqe<'_>, counter: u32, syndrome: Syndrome) -> Cqe64 {
    let completed = CompletedWqe {
        qpn: record.qpn,
        user_index: record.life.send_user_index,
        wqe_counter: counter as u16,
    };
    Cqe64::error(CqeOpcode::ReqErr, completed, wqe.opcode(), syndrome, 0)
}
