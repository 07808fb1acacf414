//! What happens when execution cannot go on: waiting, retrying, failing, flushing. All of it under
//! the device's lock.

use super::control::{Control, QpRecord, RecvParts, Stall, UNTRIED, connection};
use super::cq::CqCtx;
use super::datagram::Address;
use super::hca::Hca;
use super::qp::{QpCtx, SendWork};
use super::receive::Receives;
use super::respond::Blame;
use super::run::{Stop, complete, run};
use crate::event::EventType;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Syndrome};
use bellwire_core::qp::{
    AckTimeout, QpState, RNR_RETRY_INFINITE, ack_timeout, rnr_timer, state_after_send_error,
};
use bellwire_core::wqe::SendWqe;
use bellwire_core::wr::QpType;
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
            QpState::Sqe => Self::flush_sends(record),
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
    pub(super) fn handle(&self, control: &mut Control, qpn: u32, stop: Stop) {
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
            Stop::Overrun => return self.overrun(control, qpn),
            Stop::Receiver(blame) => {
                // SAFETY: rung and not completed.
                let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
                let receiver = match work.transport {
                    QpType::Ud => Address::read(work, &wqe.address_vector()).qpn,
                    _ => record.attr.dest_qp_num,
                };
                self.blame(control, receiver, blame);
                return self.executed(control, qpn, 0);
            }
            Stop::UnderLock => return self.execute_under_lock(control, qpn),
            Stop::FirstPacket => {
                let peer = record.attr.dest_qp_num;
                return self.first_packet(control, qpn, peer);
            }
            Stop::Rnr(code) => {
                if stall.rnr_left == 0 {
                    return self.fail(control, qpn, Syndrome::RNR_RETRY_EXC, None);
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
                return self.fail(control, qpn, Syndrome::TRANSPORT_RETRY_EXC, None);
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
                if record.state == QpState::Sqd {
                    record.drained();
                }
                if record.state == QpState::Rts {
                    // Release: partner of the acquire in `Hca::execute`. Entries rung since are
                    // executed by whoever rang: it found the queue pair closed, and takes the lock.
                    sender.closed.store(false, Ordering::Release);
                }
            }
        }
    }

    /// The entry at hand was executed, if not by `run`: completes it, and lets the queue go on.
    pub(super) fn executed(&self, control: &mut Control, qpn: u32, byte_len: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        // SAFETY: closed, and the lock is held: the work is ours.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return;
        };
        // Acquire: partner of the release in `Hca::ring`.
        let producer = record.ctx.sender.producer.load(Ordering::Acquire);
        // SAFETY: rung and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let told = complete(work, &wqe, work.consumer, byte_len);
        work.consumer = behind(&wqe, work.consumer, producer);
        if told {
            self.resume(control, qpn);
        } else {
            self.overrun(control, qpn);
        }
    }

    /// Completes the entry at hand with an error, and takes the queue pair (and the responder's,
    /// where it is to blame or to know) to the error state; an unreliable one's send queue only.
    pub(super) fn fail(
        &self,
        control: &mut Control,
        qpn: u32,
        syndrome: Syndrome,
        responder: Option<Blame>,
    ) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let peer = record.attr.dest_qp_num;
        // SAFETY: closed, and the lock is held: the work is ours.
        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
            // SAFETY: rung and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
            let entry = send_error(work, &wqe, syndrome);
            let _overrun_is_final = work.cq.produce(&entry);
            // Acquire: partner of the release in `Hca::ring`.
            let producer = record.ctx.sender.producer.load(Ordering::Acquire);
            work.consumer = behind(&wqe, work.consumer, producer);
        }
        if state_after_send_error(record.parts.transport) == QpState::Sqe
            && record.state == QpState::Rts
        {
            record.state = QpState::Sqe;
            record.stall = None;
            Self::flush_sends(record);
        } else {
            self.to_error(control, qpn);
        }
        // Only in the life in which it answered.
        if let Some(blame) = responder
            && let Some(record) = control.record(peer)
            // Relaxed: changed under the lock.
            && record.ctx.face.accepts.load(Ordering::Relaxed) & !UNTRIED == connection(peer, qpn)
        {
            self.blame(control, peer, blame);
        }
    }

    /// The first request of a connection: the responder is told that there is one, should it still
    /// wait for it (`COMM_EST`), and takes requests as a matter of course from here on.
    fn first_packet(&self, control: &mut Control, qpn: u32, peer: u32) {
        let taken = connection(peer, qpn);
        if let Some(record) = control.record(peer)
            // Relaxed: changed under the lock.
            && record.ctx.face.accepts.load(Ordering::Relaxed) == taken | UNTRIED
        {
            // Release: as in `start_receiving`.
            record.ctx.face.accepts.store(taken, Ordering::Release);
            if record.state == QpState::Rtr {
                record.raise(EventType::CommEst);
            }
        }
        self.resume(control, qpn);
    }

    /// What befalls a responder that could not do what it was asked.
    pub(super) fn blame(&self, control: &mut Control, qpn: u32, blame: Blame) {
        let event = match blame {
            Blame::Overrun => return self.overrun(control, qpn),
            // The receive tells.
            Blame::Receive => None,
            Blame::Access => Some(EventType::QpAccessErr),
            Blame::Request => Some(EventType::QpReqErr),
        };
        if let (Some(record), Some(event)) = (control.record(qpn), event) {
            record.raise(event);
        }
        self.to_error(control, qpn);
    }

    /// A completion queue of this queue pair may have overrun: then it is dead, and with it every
    /// queue pair on it.
    pub(super) fn overrun(&self, control: &mut Control, qpn: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let dead: Vec<&'static CqCtx> = (record.parts.cqs())
            .into_iter()
            .flatten()
            .filter(|cq| cq.overrun())
            .collect();
        for cq in dead {
            for qpn in control.qps_on(cq) {
                if let Some(record) = control.record(qpn)
                    && record.fatal(cq.cqn())
                {
                    record.raise(EventType::QpFatal);
                }
                self.to_error(control, qpn);
            }
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
            if let RecvParts::Shared { .. } = record.parts.recv {
                // Execution is synchronous: it has no receive in its hands.
                record.raise(EventType::QpLastWqeReached);
            }
        }
        // The flush may have been too much.
        self.overrun(control, qpn);
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&self, record: &mut QpRecord) {
        Self::flush_sends(record);
        // SAFETY: shut, and the lock is held: the work is ours.
        let recv = unsafe { &mut *record.ctx.receiver.work.get() };
        let Some(recv) = recv else { return };
        // Receives of a shared queue stay there for others.
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
            let entry = Cqe64::error(CqeOpcode::RespErr, wqe, 0, Syndrome::WR_FLUSH, 0);
            if !queue.cq.produce(&entry) {
                break;
            }
            queue.consumer = queue.consumer.wrapping_add(1);
        }
    }

    /// Completes all posted sends as flushed.
    pub(super) fn flush_sends(record: &QpRecord) {
        // SAFETY: closed, and the lock is held: the work is ours.
        let Some(work) = (unsafe { &mut *record.ctx.sender.work.get() }) else {
            return;
        };
        // Acquire: partner of the release in `Hca::ring`.
        let producer = record.ctx.sender.producer.load(Ordering::Acquire);
        while work.consumer != producer {
            // SAFETY: rung and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
            let entry = send_error(work, &wqe, Syndrome::WR_FLUSH);
            if !work.cq.produce(&entry) {
                break;
            }
            work.consumer = behind(&wqe, work.consumer, producer);
        }
    }
}

/// Counter behind an entry. What it says of its size is believed as far as something was rung.
fn behind(wqe: &SendWqe<'_>, counter: u32, producer: u32) -> u32 {
    let rung = producer.wrapping_sub(counter);
    counter.wrapping_add(wqe.blocks().clamp(1, rung.max(1)))
}

/// The entry of `work.consumer`, failed.
fn send_error(work: &SendWork, wqe: &SendWqe<'_>, syndrome: Syndrome) -> Cqe64 {
    let completed = CompletedWqe {
        qpn: work.qpn,
        user_index: work.user_index,
        wqe_counter: work.consumer as u16,
    };
    Cqe64::error(CqeOpcode::ReqErr, completed, wqe.opcode(), syndrome, 0)
}
