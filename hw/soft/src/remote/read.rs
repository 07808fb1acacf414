//! READ responses as packets of data: the responder's side, and how the requester handles them. Under the
//! device's lock.
//!
//! ```text
//!  requester                          responder
//!  the entry, from `got` on      ──►  checks it, copies what there is room for
//!  writes it to its elements     ◄──  packets, each of which says how much is left
//!  asks for the rest, if any     ──►
//! ```

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::lists::incoming;
use super::super::run::Stop;
use super::answer::{Verdict, with_result};
use super::data::bring;
use super::packet::IN_PACKET;
use crate::fabric::{Header, Kind, Name, Packet, Send};
use bellwire_core::cqe::Syndrome;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{Data, Request, SendWqe};
use std::sync::atomic::Ordering;

/// Maximum number of packets per request, because other threads wait for the lock meanwhile.
const AT_ONCE: usize = 32;

/// Most bytes of a READ that are sent at once.
pub(in super::super) const READ_AT_ONCE: u64 = AT_ONCE as u64 * IN_PACKET;

/// Bytes of a packet before its data: how many bytes are left, including this packet's, and whether it is the
/// last packet for now.
const FRONT: usize = 16;

impl Hca {
    /// Sends the data of a READ, which starts at `from`. `None`: no other response is needed.
    pub(super) fn answer_read(
        &self,
        slot: usize,
        packet: &Packet<'_>,
        to: u32,
        request: &Request<'_>,
        mut from: u64,
    ) -> Option<Verdict> {
        let peer = self.node.as_ref()?.peer(slot);
        let mut left = request.data().total();
        let header = Header::of(Name::new(Kind::Data, to), packet.header.number);
        for packets in 1..=AT_ONCE {
            let now = left.min(IN_PACKET);
            let ends = now == left || packets == AT_ONCE;
            let words = [left.to_ne_bytes(), u64::from(ends).to_ne_bytes()].concat();
            let source = std::ptr::with_exposed_provenance(from as usize);
            let bytes = FRONT + now as usize;
            let pieces = [(words.as_ptr(), FRONT), (source, now as usize)];
            let sent = (self.sending(peer)).and_then(|to| {
                // SAFETY: local bytes, and memory that the request may read, which was checked under the lock.
                unsafe { to.send(peer.incarnation(), bytes, |_| header, 0, &pieces) }
            });
            match sent {
                Ok(()) if ends => break,
                Ok(()) => {}
                // The holder of the lock is never kept from sending.
                Err(Send::Full | Send::Held) => return Some(Verdict::Again),
                Err(Send::Gone) => return None,
                Err(Send::Unread) => return Some(Verdict::Refused(Syndrome::REMOTE_ACCESS)),
            }
            (from, left) = (from + now, left - now);
        }
        self.after_send(peer);
        None
    }

    /// Handles data of a READ response.
    pub(super) fn brought(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        let Some((front, bytes)) = packet.bytes.split_first_chunk::<FRONT>() else {
            return;
        };
        let [left, ends] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&front[at..at + 8]);
            u64::from_ne_bytes(word)
        });
        let Header { name, number, .. } = packet.header;
        let qpn = name.dst();
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(requester) = &record.requester else {
            return;
        };
        let is_sent = || record.unacknowledged() != 0;
        if requester.slot != slot
            || record.lives != number.life()
            || number.msn() != record.acked()
            || !matches!(record.state, QpState::Rts | QpState::Sqd)
        {
            return;
        }
        if !is_sent() {
            // The sending thread has not counted the request yet, which it does before it leaves its section.
            record.ctx.sender.section.wait();
            if !is_sent() {
                return;
            }
        }
        let (work, got) = (requester.work, requester.got);
        // Relaxed: while requests are outstanding, only the holder of the lock changes it.
        let counter = record.ctx.sender.acked.load(Ordering::Relaxed);
        // SAFETY: sent, so posted, and not completed.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        let Some(request) = with_result(&work, wqe).filter(|it| it.atomic().is_none()) else {
            return;
        };
        let data = request.data();
        let Ok(total) = incoming(self, &work, data) else {
            // The memory was deregistered while the request was outstanding.
            self.halt(control, qpn);
            self.handle(control, qpn, Stop::local(Syndrome::LOCAL_PROT));
            return;
        };
        // A full packet of the next missing data, or a repetition of earlier data. Anything else is ignored.
        let Some(at) = total.checked_sub(left).filter(|at| *at <= got) else {
            return;
        };
        if bytes.len() as u64 != left.min(IN_PACKET) {
            return;
        }
        let places: Vec<(u64, u64)> = data
            .filter_map(|piece| match piece {
                Data::Pointer(sge) => Some((sge.addr, u64::from(sge.length))),
                Data::Inline(..) => None,
            })
            .collect();
        let source = (
            bytes.as_ptr().expose_provenance() as u64,
            bytes.len() as u64,
        );
        // SAFETY: checked just before, under the lock, which revoking a key takes; the source is the packet.
        if !unsafe { bring(&[source], &places, at) } {
            // The memory cannot be written any more.
            self.halt(control, qpn);
            self.handle(control, qpn, Stop::local(Syndrome::LOCAL_PROT));
            return;
        }
        let now_got = got.max(at + source.1);
        if let Some(record) = control.record(qpn)
            && let Some(requester) = &mut record.requester
        {
            requester.got = now_got;
        }
        if now_got == total {
            self.acknowledge(control, qpn, 1, 0);
        } else if ends != 0 {
            self.ask_for_rest(control, qpn);
        }
    }

    /// Requests the missing data of a READ. The time without a response restarts only if data has arrived
    /// since the last request.
    pub(super) fn ask_for_rest(&self, control: &mut Control, qpn: u32) {
        let brought = control
            .record(qpn)
            .and_then(|record| record.requester.as_ref())
            .is_some_and(|requester| requester.got > requester.asked_from);
        if brought {
            self.heard(control, qpn);
        }
        self.halt(control, qpn);
        self.resume(control, qpn);
    }
}
