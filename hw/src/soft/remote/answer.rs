//! What a responder tells a requester in another process, and what that makes of it.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::journal::RequestId;
use super::super::qp::SendWork;
use super::super::run::{Stop, complete, incoming, spread};
use super::Requester;
use super::pull::pull;
use crate::fabric::{Header, Kind, Packet, Send};
use bellwire_core::cqe::Syndrome;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{Data, SendWqe, opcode};
use std::sync::atomic::Ordering;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Answer {
    /// Number of the request. Those before it were taken.
    pub msn: u16,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// Taken; what an atomic found.
    Taken(u64),
    /// A READ may fetch what it wants from this address, if the responder has taken no key away until
    /// then: this is how many it had.
    Granted {
        addr: u64,
        revoked: u32,
    },
    /// No receive is posted; the code of the time to wait.
    Rnr(u8),
    Refused(Syndrome),
}

/// Bytes of an answer.
const BYTES: usize = 16;

impl Answer {
    fn encode(self) -> [u8; BYTES] {
        let (status, code, count, result) = match self.verdict {
            Verdict::Taken(result) => (0, 0, 0, result),
            Verdict::Rnr(code) => (1, code, 0, 0),
            Verdict::Refused(syndrome) => (2, syndrome.0, 0, 0),
            Verdict::Granted { addr, revoked } => (3, 0, revoked, addr),
        };
        let mut bytes = [0; BYTES];
        bytes[..2].copy_from_slice(&[status, code]);
        bytes[4..8].copy_from_slice(&u32::to_ne_bytes(count));
        bytes[8..].copy_from_slice(&u64::to_ne_bytes(result));
        bytes
    }

    /// `None`: it makes no sense.
    fn decode(packet: &Packet<'_>) -> Option<Self> {
        let bytes: &[u8; BYTES] = packet.bytes.try_into().ok()?;
        let result = u64::from_ne_bytes(bytes[8..].try_into().ok()?);
        let verdict = match bytes[0] {
            0 => Verdict::Taken(result),
            1 => Verdict::Rnr(bytes[1]),
            // As a device's entry would have it; a code that says nothing is an error of some kind.
            2 => Verdict::Refused(Syndrome(bytes[1])),
            3 => Verdict::Granted {
                addr: result,
                revoked: u32::from_ne_bytes(bytes[4..8].try_into().ok()?),
            },
            _ => return None,
        };
        Some(Self {
            msn: packet.header.msn,
            verdict,
        })
    }
}

impl Hca {
    /// Sends what a responder owes; `false`: there is no room, it still does.
    pub(super) fn pay(&self, control: &mut Control, qpn: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return true;
        };
        let to = record.attr.dest_qp_num;
        let sender = &record.ctx.sender;
        let Some(responder) = &mut record.responder else {
            return true;
        };
        let Some(life) = responder.life else {
            return true;
        };
        // Relaxed: each is a number on its own.
        let owed = sender.owed.load(Ordering::Relaxed);
        let told = owed == 0 || owed == sender.told.load(Ordering::Relaxed);
        let answer = match responder.owed {
            Some(answer) => Some(answer),
            // A packet has told it.
            None if told => None,
            None => Some(Answer {
                msn: owed as u16,
                verdict: Verdict::Taken(0),
            }),
        };
        if let Some(answer) = answer
            && self.send_answer(responder.slot, to, life, answer) == Err(Send::Full)
        {
            return false;
        }
        sender.owed.store(0, Ordering::Relaxed);
        responder.owed = None;
        responder.listed = false;
        true
    }

    /// Sends an answer to the requester `to`.
    pub(super) fn send_answer(
        &self,
        slot: usize,
        to: u32,
        life: u16,
        answer: Answer,
    ) -> Result<(), Send> {
        let peer = self.node.as_ref().ok_or(Send::Gone)?.peer(slot);
        let header = Header {
            kind: Kind::Answer,
            dst: to,
            msn: answer.msn,
            life,
            taken: None,
            flags: 0,
        };
        let bytes = answer.encode();
        peer.writer
            .send(peer.incarnation(), header, BYTES, |room| {
                // SAFETY: an array.
                unsafe { room.put(bytes.as_ptr(), BYTES) };
            })?;
        self.after_send(peer);
        Ok(())
    }

    /// An answer has come.
    pub(super) fn answered(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        if let Some(answer) = Answer::decode(packet) {
            let Header { dst, life, .. } = packet.header;
            self.told(control, slot, dst, life, answer);
        }
    }

    /// A packet of the other direction tells that requests were taken.
    #[inline]
    pub(super) fn told_taken(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        if let Some((life, msn)) = packet.header.taken {
            let verdict = Verdict::Taken(0);
            self.told(
                control,
                slot,
                packet.header.dst,
                life,
                Answer { msn, verdict },
            );
        }
    }

    fn told(&self, control: &mut Control, slot: usize, qpn: u32, life: u16, answer: Answer) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(requester) = &record.requester else {
            return;
        };
        let sender = &record.ctx.sender;
        // Acquire: partner of the release of whoever sends.
        let under_way =
            || (sender.sent.load(Ordering::Acquire) as u16).wrapping_sub(requester.acked);
        let before = answer.msn.wrapping_sub(requester.acked);
        // Of an earlier life, or of another peer's.
        let mut stale = requester.slot != slot || record.lives != life;
        if !stale && before >= under_way() {
            // Told already; or whoever has sent it is about to say so, which ends with its section.
            sender.section.wait();
            stale = before >= under_way();
        }
        if stale || !matches!(record.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        match answer.verdict {
            Verdict::Taken(result) => {
                self.acknowledge(control, qpn, before + 1, result);
            }
            Verdict::Granted { addr, revoked } => {
                if !self.acknowledge(control, qpn, before, 0) {
                    return;
                }
                self.fetch(control, qpn, addr, revoked);
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
                    Verdict::Taken(_) | Verdict::Granted { .. } => return,
                };
                if self.handle(control, qpn, stop) {
                    self.resume(control, qpn);
                }
            }
        }
    }

    /// Completes the next `count` requests that are under way. `false`: it cannot go on.
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
            acked,
            watch,
            probed,
            ..
        }) = &mut record.requester
        else {
            return false;
        };
        let cell = &record.ctx.sender.acked;
        // Relaxed: while something is under way only the lock's holder changes it.
        let mut counter = cell.load(Ordering::Relaxed);
        let mut told = true;
        let mut fits = true;
        for left in (0..count).rev() {
            // SAFETY: sent, so rung, and not completed.
            let wqe = unsafe { SendWqe::read(work.ring, counter) };
            let mut bytes = 0;
            match wqe.opcode() {
                opcode::ATOMIC_CS | opcode::ATOMIC_FA if left == 0 => {
                    fits = self.bring(work, &wqe, result);
                    if !fits {
                        break;
                    }
                    bytes = size_of::<u64>() as u32;
                }
                // It was fetched just now.
                opcode::RDMA_READ => bytes = wqe.data(result_offset(work, &wqe)).total() as u32,
                _ => {}
            }
            let written = complete(work, &wqe, counter, bytes);
            if let Some(journal) = &self.journal {
                let request = RequestId {
                    qp_num: qpn,
                    lid: self.port.lid(),
                    life: record.lives,
                    counter,
                };
                journal.executed_and_told(request, &wqe, written);
            }
            told &= written;
            counter = counter.wrapping_add(wqe.blocks());
            *acked = acked.wrapping_add(1);
        }
        if count != 0 {
            *watch = None;
            *probed = false;
        }
        // Release: partner of the acquire in `run`.
        cell.store(counter, Ordering::Release);
        if count != 0 && record.state == QpState::Sqd && !record.under_way() {
            record.stall = None;
            record.drained();
        }
        if !told {
            self.overrun(control, qpn);
            return false;
        }
        if !fits {
            // Its memory was deregistered while the request was under way.
            self.halt(control, qpn);
            let stop = Stop::local(Syndrome::LOCAL_PROT);
            self.handle(control, qpn, stop);
            return false;
        }
        true
    }

    /// Puts an atomic's result where the entry says; `false`: that is not ours to write to any more.
    fn bring(&self, work: &SendWork, wqe: &SendWqe<'_>, result: u64) -> bool {
        let data = wqe.data(result_offset(work, wqe));
        if incoming(self, work, data) != Ok(size_of::<u64>() as u64) {
            return false;
        }
        let bytes = result.to_ne_bytes();
        // SAFETY: checked just now, under the lock, which revoking takes; eight bytes in all.
        unsafe { spread(bytes.as_ptr(), data) };
        true
    }

    /// A READ may fetch what it wants.
    fn fetch(&self, control: &mut Control, qpn: u32, addr: u64, revoked: u32) {
        let Some(node) = &self.node else { return };
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(requester) = &record.requester else {
            return;
        };
        let (work, slot) = (requester.work, requester.slot);
        // Relaxed: under way, so only the lock's holder changes it.
        let counter = record.ctx.sender.acked.load(Ordering::Relaxed);
        // SAFETY: sent, so rung, and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        if wqe.opcode() != opcode::RDMA_READ {
            return;
        }
        let data = wqe.data(result_offset(&work, &wqe));
        if incoming(self, &work, data).is_err() {
            // Its memory was deregistered while the request was under way.
            self.halt(control, qpn);
            self.handle(control, qpn, Stop::local(Syndrome::LOCAL_PROT));
            return;
        }
        let peer = node.peer(slot);
        let strings: Vec<(u64, u64)> = data
            .filter_map(|piece| match piece {
                Data::Pointer(sge) => Some((sge.addr, u64::from(sge.length))),
                Data::Inline(..) => None,
            })
            .collect();
        let Some(link) = peer.link() else { return };
        let length = strings.iter().map(|(_, length)| length).sum();
        // SAFETY: checked just now, under the lock, which revoking takes.
        if unsafe { pull(link.pid, &[(addr, length)], &strings) }.is_err() {
            // It is gone, or says so soon: nothing was acknowledged.
            return;
        }
        if peer.segments.revoked() == revoked {
            self.acknowledge(control, qpn, 1, 0);
        } else {
            // Some key was taken away meanwhile, perhaps ours: asks again.
            self.halt(control, qpn);
            self.resume(control, qpn);
        }
    }
}

fn result_offset(work: &SendWork, wqe: &SendWqe<'_>) -> usize {
    wqe.result_offset(work.transport).unwrap_or_default()
}
