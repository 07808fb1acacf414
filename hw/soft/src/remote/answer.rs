//! Responses of a responder to a requester in another process, and how the requester handles them.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::journal::RequestId;
use super::super::lists::{incoming, spread};
use super::super::qp::SendWork;
use super::super::run::{Stop, complete};
use super::Requester;
use crate::fabric::{Header, Kind, Name, Number, Packet, Send};
use bellwire_core::cqe::Syndrome;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{Request, SendWqe};
use std::sync::atomic::Ordering;

/// The outcome of a request, as the responder reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Answer {
    /// Number of the request. All requests before it were accepted.
    pub msn: u16,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// Accepted; the result of an atomic.
    Done(u64),
    /// A READ, for which there was no room to send all data: the rest may be requested again.
    Again,
    /// The requester's memory is not mapped here: the data has to travel in packets.
    NotMapped,
    /// RNR NAK: no receive is posted. The timer code.
    Rnr(u8),
    Refused(Syndrome),
}

/// Size of a response in bytes.
const BYTES: usize = 16;

impl Answer {
    fn encode(self) -> [u8; BYTES] {
        let (status, code, result) = match self.verdict {
            Verdict::Done(result) => (0, 0, result),
            Verdict::Rnr(code) => (1, code, 0),
            Verdict::Refused(syndrome) => (2, syndrome.0, 0),
            Verdict::Again => (3, 0, 0),
            Verdict::NotMapped => (4, 0, 0),
        };
        let mut bytes = [0; BYTES];
        bytes[..2].copy_from_slice(&[status, code]);
        bytes[8..].copy_from_slice(&u64::to_ne_bytes(result));
        bytes
    }

    /// `None`: the packet is invalid.
    fn decode(packet: &Packet<'_>) -> Option<Self> {
        let bytes: &[u8; BYTES] = packet.bytes.try_into().ok()?;
        let result = u64::from_ne_bytes(bytes[8..].try_into().ok()?);
        let verdict = match bytes[0] {
            0 => Verdict::Done(result),
            1 => Verdict::Rnr(bytes[1]),
            // The syndrome of a device's CQE; an unknown code counts as a general error.
            2 => Verdict::Refused(Syndrome(bytes[1])),
            3 => Verdict::Again,
            4 => Verdict::NotMapped,
            _ => return None,
        };
        Some(Self {
            msn: packet.header.number.msn(),
            verdict,
        })
    }
}

impl Hca {
    /// Sends the pending response of a responder, if it is more than an acknowledgement. `false`: there is no
    /// room, and it is still pending.
    pub(super) fn send_response(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return true;
        };
        let to = record.attr.dest_qp_num;
        let Some(responder) = &mut record.responder else {
            return true;
        };
        let Some(expected) = record.ctx.receiver.accepted.expected.get() else {
            return true;
        };
        if let Some(answer) = responder.answer
            && self.send_answer(responder.slot, to, expected.life(), answer) == Err(Send::Full)
        {
            return false;
        }
        responder.answer = None;
        true
    }

    /// Sends a response to the requester `to`.
    pub(super) fn send_answer(
        &self,
        slot: usize,
        to: u32,
        life: u16,
        answer: Answer,
    ) -> Result<(), Send> {
        let peer = self.node.as_ref().ok_or(Send::Gone)?.peer(slot);
        let header = Header::of(Name::new(Kind::Answer, to), Number::new(life, answer.msn));
        (self.sending(peer)?).answer_line(peer.incarnation(), |front| {
            front.put(0, answer.encode());
            (BYTES, header)
        })?;
        self.after_send(peer);
        Ok(())
    }

    /// Handles a response.
    pub(super) fn answered(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        if let Some(answer) = Answer::decode(packet) {
            let Header { name, number, .. } = packet.header;
            self.take_answer(control, slot, name.dst(), number.life(), answer);
        }
    }

    /// Handles an acknowledgement of a queue pair's requests, up to this one.
    pub(super) fn acknowledged(&self, control: &mut Control, slot: usize, qpn: u32, last: Number) {
        let answer = Answer {
            msn: last.msn(),
            verdict: Verdict::Done(0),
        };
        self.take_answer(control, slot, qpn, last.life(), answer);
    }

    fn take_answer(&self, control: &mut Control, slot: usize, qpn: u32, life: u16, answer: Answer) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(requester) = &record.requester else {
            return;
        };
        let sender = &record.ctx.sender;
        let under_way = || record.unacknowledged();
        let before = answer.msn.wrapping_sub(record.acked());
        // From an earlier life, or from another peer.
        let mut stale = requester.slot != slot || record.lives != life;
        if !stale && before >= under_way() {
            // Either it was reported before, or the sending thread has not counted the request yet, which it
            // does before it leaves its section.
            sender.section.wait();
            stale = before >= under_way();
        }
        if stale || !matches!(record.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        match answer.verdict {
            Verdict::Done(result) => {
                self.acknowledge(control, qpn, before + 1, result);
            }
            Verdict::Again => {
                if self.acknowledge(control, qpn, before, 0) {
                    self.ask_for_rest(control, qpn);
                }
            }
            Verdict::NotMapped => {
                if self.acknowledge(control, qpn, before, 0) {
                    self.carry(control, qpn);
                }
            }
            verdict => {
                if !self.acknowledge(control, qpn, before, 0) {
                    return;
                }
                self.halt(control, qpn);
                self.heard(control, qpn);
                let stop = match verdict {
                    Verdict::Rnr(code) => Stop::Rnr(code),
                    Verdict::Refused(syndrome) => Stop::Failed {
                        syndrome,
                        responder: None,
                    },
                    _ => return,
                };
                if self.handle(control, qpn, stop) {
                    self.resume(control, qpn);
                }
            }
        }
    }

    /// Completes the next `count` outstanding requests. `false`: the caller cannot continue, because the
    /// queue pair failed.
    pub(super) fn acknowledge(
        &self,
        control: &mut Control,
        qpn: u32,
        count: u16,
        result: u64,
    ) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        let Some(Requester {
            work,
            watch,
            probed,
            got,
            asked_from,
            ..
        }) = &mut record.requester
        else {
            return false;
        };
        let cell = &record.ctx.sender.acked;
        let number = &record.ctx.inbound.acked;
        // Relaxed, both: while requests are outstanding, only this thread changes them, as the reader of the
        // peer's packets or with the queue pair closed.
        let mut counter = cell.load(Ordering::Relaxed);
        let mut acked = number.load(Ordering::Relaxed) as u16;
        let mut all_written = true;
        let mut fits = true;
        for left in (0..count).rev() {
            // SAFETY: sent, so posted, and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, counter) };
            let mut bytes = 0;
            if let Some(request) = with_result(work, wqe) {
                if request.atomic().is_none() {
                    // Its data has arrived already.
                    bytes = request.data().total() as u32;
                    (*got, *asked_from) = (0, 0);
                } else if left == 0 {
                    fits = self.bring(work, &request, result);
                    if !fits {
                        break;
                    }
                    bytes = size_of::<u64>() as u32;
                }
            }
            let written = complete(work, &wqe, counter, bytes);
            if let Some(journal) = &self.journal {
                let request = RequestId {
                    qp_num: qpn,
                    lid: self.port.lid(),
                    life: record.lives,
                    counter,
                };
                journal.executed_and_reported(request, &wqe, written);
            }
            all_written &= written;
            counter = counter.wrapping_add(wqe.blocks());
            acked = acked.wrapping_add(1);
        }
        if count != 0 {
            *watch = None;
            *probed = None;
        }
        // Relaxed: published by the counter.
        number.store(acked.into(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `run`.
        cell.store(counter, Ordering::Release);
        if count != 0 && record.state == QpState::Sqd && !record.under_way() {
            record.stall = None;
            record.drained();
        }
        if !all_written {
            self.overrun(control, qpn);
            return false;
        }
        if !fits {
            // The memory was deregistered while the request was outstanding.
            self.halt(control, qpn);
            let stop = Stop::local(Syndrome::LOCAL_PROT);
            self.handle(control, qpn, stop);
            return false;
        }
        true
    }

    /// From here on, the data of a queue pair's requests travels in packets. The peer asks for this once.
    fn carry(&self, control: &mut Control, qpn: u32) {
        self.halt(control, qpn);
        let Some(record) = control.record(qpn) else {
            return;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let work = unsafe { &mut *record.ctx.sender.work.get() };
        if let Some(remote) = work.as_mut().and_then(|work| work.remote.as_mut())
            && !std::mem::replace(&mut remote.carries, true)
        {
            self.heard(control, qpn);
        }
        self.resume(control, qpn);
    }

    /// Writes an atomic's result to the entry's elements. `false`: they may or can no longer be written.
    fn bring(&self, work: &SendWork, request: &Request<'_>, result: u64) -> bool {
        let data = request.data();
        if incoming(self, work, data) != Ok(size_of::<u64>() as u64) {
            return false;
        }
        let bytes = result.to_ne_bytes();
        // SAFETY: checked just before, under the lock, which revoking a key takes; eight bytes in all.
        unsafe { spread(bytes.as_ptr(), data) }.is_ok()
    }
}

/// The request of an entry whose operation has a result.
#[inline(always)]
pub(super) fn with_result<'m>(work: &SendWork, wqe: SendWqe<'m>) -> Option<Request<'m>> {
    let operation = wqe.operation().filter(|it| it.has_result())?;
    Some(wqe.request_of(operation, work.transport))
}
