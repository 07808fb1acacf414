//! The responder: executes the entries in request packets as if they had been posted in this process, by a
//! queue pair that has the connection's rights and no memory except what came with the packet. Under the
//! device's lock.

use super::super::connection::{UNTRIED, connection_with, responder};
use super::super::control::Control;
use super::super::gate::Way;
use super::super::hca::Hca;
use super::super::journal::{RequestId, message_bytes};
use super::super::mr::{Grant, LOCAL_READ, Opening};
use super::super::packets::{First, Packets, accepting, too_long};
use super::super::qp::{QpCtx, SendWork, locals};
use super::super::respond::Blame;
use super::super::run::{Stop, execute_one, read_from};
use super::answer::{Answer, Verdict};
use super::data::{Pulled, data_bytes};
use super::packet::IN_PACKET;
use super::{ASKS, EAGER, MORE, PART, PULLED, Responder, SPEAKING, UNRELIABLE};
use crate::error::Error;
use crate::fabric::{Header, Number, Packet, Peer, PendingAcks, lid};
use crate::pinned::Pinned;
use bellwire_core::access::AccessFlags;
use bellwire_core::be::{Be32, Be64};
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::{Layout, WrOpcode};
use bellwire_core::wqe::{CtrlSegment, DataSegment, SEGMENT, SendRing, SendWqe, SgeList, opcode};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Blocks of the ring for arriving entries: the longest entry has 63 segments.
const BLOCKS: u32 = 16;

/// Bytes of data in a packet.
const DATA: usize = IN_PACKET as usize;

/// Holds an entry and its data while it is executed.
#[derive(Debug)]
pub(in super::super) struct Scratch {
    entry: Pinned,
    data: Pinned,
    /// Gives entries of `pd` access to `data`.
    key: u32,
    /// A protection domain that no queue pair of the program has.
    pd: u32,
}

impl Scratch {
    pub fn new(hca: &Hca, control: &mut Control, pd: u32) -> Result<Self, Error> {
        let (entry, data) = (Pinned::zeroed(BLOCKS as usize * 64)?, Pinned::zeroed(DATA)?);
        let index = control.take_key()?;
        let random = control.random();
        let scratch = Self {
            entry,
            data,
            key: hca.mrs.reserve(index, random),
            pd,
        };
        scratch.open(hca);
        Ok(scratch)
    }

    fn open(&self, hca: &Hca) {
        hca.mrs.open(
            self.key,
            Opening {
                owner: self.pd,
                access: AccessFlags::LOCAL_WRITE.bits() | LOCAL_READ,
                addr: self.data.start().as_ptr().expose_provenance() as u64,
                length: DATA as u64,
            },
        );
    }

    /// The first `len` bytes of the data.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= DATA);
        // SAFETY: memory of this object, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.data.start().as_ptr(), len) }
    }

    fn ring(&self) -> SendRing<'static> {
        // SAFETY: the scratch is used, and the ring with it, only while the lock is held. The block before
        // the first has the same alignment.
        unsafe { SendRing::new(self.entry.start(), BLOCKS) }.unwrap_or_else(|| unreachable!())
    }

    /// Copies an entry and its data from a packet. `None`: the packet is invalid.
    fn load(&mut self, packet: &Packet<'_>) -> Option<SendWqe<'static>> {
        let front = packet.bytes.get(..SEGMENT)?;
        let segments = usize::from(front[7] & 0x3f);
        let (entry, behind) = (packet.bytes)
            .split_at_checked(segments * SEGMENT)
            .filter(|(entry, _)| !entry.is_empty())?;
        // SAFETY: the entry's buffer has room for 63 segments.
        unsafe {
            let to = self.entry.start().as_ptr();
            to.copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        }
        // SAFETY: just written, and not written again while it is executed.
        let wqe = unsafe { SendWqe::read(self.ring(), 0) };
        let operation = wqe.operation();
        let result = operation.is_some_and(WrOpcode::has_result);
        // The data of a READ travels in packets of its own.
        if result && operation.is_some_and(|it| it.row().layout == Layout::Memory) {
            return Some(wqe);
        }
        let length = match packet.header.flags & (EAGER | PULLED | PART) {
            EAGER => {
                self.bytes(behind.len().min(IN_PACKET as usize))
                    .copy_from_slice(behind.get(..IN_PACKET as usize).unwrap_or(behind));
                behind.len()
            }
            0 if result => size_of::<u64>(),
            // What follows the entry says where its data is.
            flags if flags & EAGER == 0 => return Some(wqe),
            _ => return None,
        };
        if length > DATA || entry.len() < 2 * SEGMENT {
            return None;
        }
        let segment = self.segment(length);
        // The last segment names the data.
        // SAFETY: within the entry.
        unsafe {
            let to = self.entry.start().add(entry.len() - SEGMENT);
            to.cast::<DataSegment>().write(segment);
        }
        Some(wqe)
    }

    /// Copies a datagram's data.
    pub(super) fn hold(&mut self, data: &[u8]) -> SgeList<'static> {
        let len = data.len().min(DATA);
        self.bytes(len).copy_from_slice(&data[..len]);
        let ctrl = CtrlSegment {
            qpn_ds: Be32::new(if len == 0 { 1 } else { 2 }),
            ..CtrlSegment::default()
        };
        let segment = self.segment(len);
        // SAFETY: both lie within the entry, which has the alignment of a block.
        unsafe {
            self.entry.start().cast::<CtrlSegment>().write(ctrl);
            let to = self.entry.start().add(SEGMENT);
            to.cast::<DataSegment>().write(segment);
        }
        // SAFETY: just written, and not written again while it is used.
        unsafe { SendWqe::read(self.ring(), 0) }.data(SEGMENT)
    }

    /// The data segment that names the data.
    fn segment(&self, length: usize) -> DataSegment {
        DataSegment {
            byte_count: Be32::new(length as u32),
            lkey: Be32::new(self.key),
            addr: Be64::new(self.data.start().as_ptr().expose_provenance() as u64),
        }
    }

    fn result(&mut self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.bytes(8));
        u64::from_ne_bytes(bytes)
    }
}

/// Whether the response to a request is an acknowledgement alone, which acknowledges all before it.
fn is_plain(verdict: Verdict, responder: &Responder) -> bool {
    (verdict, responder.answer) == (Verdict::Done(0), None)
}

/// Whether the requester is still in the life in which it sent a request, so that the request may be
/// executed.
pub(super) fn speaks(peer: &Peer, src: u32, packet: &Packet<'_>) -> bool {
    peer.segments.life(src) == u32::from(packet.header.number.life()) | SPEAKING
}

impl Hca {
    /// Handles a request packet.
    pub(super) fn arrived(
        &self,
        control: &mut Control,
        slot: usize,
        pending: &mut PendingAcks,
        packet: &Packet<'_>,
    ) {
        let Some(&[_, _, _, operation]) = packet.bytes.first_chunk() else {
            return;
        };
        let src = packet.header.name.src();
        self.take(control, slot, pending, packet, operation);
        // A part is not acknowledged: that would acknowledge the whole request.
        if packet.header.flags & (UNRELIABLE | MORE) != UNRELIABLE {
            return;
        }
        // Acknowledged whatever the outcome, so that the requester may reuse its memory.
        let number = packet.header.number;
        let answer = Answer {
            msn: number.msn(),
            verdict: Verdict::Done(0),
        };
        // If there is no room, the requester has to time out.
        let _sent = self.send_answer(slot, src, number.life(), answer);
    }

    /// Executes a request, if the responder accepts it.
    fn take(
        &self,
        control: &mut Control,
        slot: usize,
        pending: &mut PendingAcks,
        packet: &Packet<'_>,
        operation: u8,
    ) {
        let Header { name, number, .. } = packet.header;
        let (dst, src, msn) = (name.dst(), name.src(), number.msn());
        let name = connection_with(dst, src, lid(slot));
        let unreliable = packet.header.flags & UNRELIABLE != 0;
        let (Some(node), Some(record)) = (&self.node, control.record(dst)) else {
            return;
        };
        // Relaxed: changed under the lock.
        let accepts = record.ctx.rights.accepts.load(Ordering::Relaxed);
        let ctx = record.ctx;
        let Some(responder) = &mut record.responder else {
            return;
        };
        if accepts & !UNTRIED != name || responder.slot != slot || !self.port.is_up() {
            return;
        }
        // Requests that were flushed meanwhile are not executed.
        if !speaks(node.peer(slot), src, packet) {
            return;
        }
        let incarnation = node.peer(slot).incarnation();
        // Another process has taken the place of the connected one.
        if responder.incarnation != incarnation {
            return;
        }
        let (life, accepted) = (number.life(), &ctx.receiver.accepted);
        let uc = record.parts.transport == QpType::Uc;
        let mut untried = accepts & UNTRIED != 0;
        if responder.life.is_some_and(|of| of != life) {
            if !uc {
                // What was taken is of an earlier life, which this one does not continue.
                return;
            }
            // Each life is compared anew.
            untried = true;
            ctx.rights.accepts.store(name | UNTRIED, Ordering::Relaxed);
        }
        let expected = match accepted.expected.get() {
            Some(expected) if expected.life() == life => expected.msn(),
            _ => {
                // The first request of the life, however late it arrives.
                accepted.expected.set_answered(Number::new(life, 0));
                responder.answer = None;
                0
            }
        };
        let ahead = msn.wrapping_sub(expected) as i16;
        // A READ is executed again (IBTA 9.4.4), because its response is not kept.
        let again = ahead == -1 && operation == opcode::RDMA_READ;
        if ahead != 0 && !unreliable && !again {
            // A request that is sent again is a duplicate: acknowledged, and not executed again. Requests
            // after one that was not accepted are not accepted either.
            if ahead < 0 && responder.answer.is_none() {
                let verdict = Verdict::Done(responder.result);
                ctx.acknowledge_again();
                self.add_response(control, pending, packet, verdict);
            }
            return;
        }
        let mut longest = None;
        if untried {
            responder.life = Some(life);
            let packets = Packets::of_word(node.peer(slot).segments.packets(src));
            match self.first_packet(control, dst, name, packets) {
                First::Accepted => {}
                First::Refused => {
                    if let Some(record) = control.record(dst)
                        && let Some(responder) = &mut record.responder
                    {
                        responder.life = None;
                    }
                    return;
                }
                First::UpTo(bytes) => longest = Some(bytes),
            }
        }
        let mut execute = || self.execute_arrived(control, slot, packet, (src, name), longest);
        let verdict = match longest {
            None => execute(),
            Some(_) => accepting(ctx, name, execute),
        };
        let Some(verdict) = verdict else {
            return;
        };
        if let Verdict::Done(result) = verdict
            && let Some(record) = control.record(dst)
            && let Some(responder) = &mut record.responder
        {
            responder.result = result;
            // At once: another thread may send the acknowledgement.
            if !unreliable && is_plain(verdict, responder) {
                let opens = record.parts.transport == QpType::Rc && longest.is_none();
                accepted.expected.set(number.next(), opens);
            } else {
                accepted.expected.set_answered(number.next());
            }
        }
        if !unreliable {
            self.add_response(control, pending, packet, verdict);
        }
    }

    /// Records a response of the responder to its requester. It is sent with the next packet to the peer,
    /// or when there is nothing more urgent.
    fn add_response(
        &self,
        control: &mut Control,
        pending: &mut PendingAcks,
        packet: &Packet<'_>,
        verdict: Verdict,
    ) {
        let Header {
            name,
            number,
            flags,
            ..
        } = packet.header;
        let (qpn, msn) = (name.dst(), number.msn());
        let asked = flags & ASKS != 0;
        let (Some(node), Some(record)) = (&self.node, control.record(qpn)) else {
            return;
        };
        let ctx = record.ctx;
        let Some(responder) = &mut record.responder else {
            return;
        };
        if is_plain(verdict, responder) {
            let peer = node.peer(responder.slot);
            self.add_pending_ack(peer, pending, ctx);
            control.asked |= asked;
            return;
        }
        // It acknowledges all requests before it.
        ctx.receiver.accepted.expected.close();
        if responder.answer.replace(Answer { msn, verdict }).is_none() {
            control.pending_responses.push(qpn);
        }
        control.asked = true;
    }

    /// The acknowledgement of a queue pair is pending. For the thread that has the turn to read the peer's packets.
    #[inline(always)]
    pub(super) fn add_pending_ack(&self, peer: &Peer, pending: &mut PendingAcks, ctx: &QpCtx) {
        // SAFETY: by the thread that has the turn.
        let listed = unsafe { &mut *ctx.receiver.accepted.listed.get() };
        if *listed {
            return;
        }
        // Behind others it need not be said that there are some. Relaxed: as in `list`.
        let qpn = responder(ctx.rights.accepts.load(Ordering::Relaxed));
        if pending.is_empty() || pending.try_push(qpn).is_err() {
            return self.list(peer, pending, ctx);
        }
        *listed = true;
    }

    /// Adds a queue pair to the list of those with a pending acknowledgement, which is looked at again until it is empty. If it is
    /// full, these are sent now. If there is no room for that either, the requester sends its request again.
    #[cold]
    #[inline(never)]
    fn list(&self, peer: &Peer, pending: &mut PendingAcks, ctx: &QpCtx) {
        if pending.is_full() {
            self.send_pending_acks(peer, pending);
        }
        // Relaxed: its request has just been taken. If it is not accepted any more, nobody is listed, and whoever has
        // stopped that sends the acknowledgement: see `stop_reading`.
        let qpn = responder(ctx.rights.accepts.load(Ordering::Relaxed));
        let listed = pending.try_push(qpn).is_ok();
        peer.reading.set_has_pending(true);
        // SAFETY: by the thread that has the turn.
        unsafe { *ctx.receiver.accepted.listed.get() = listed };
        if let Some(node) = &self.node {
            node.add_pending_response();
        }
    }

    /// Executes an entry that has arrived. `None`: no response is sent for it now.
    fn execute_arrived(
        &self,
        control: &mut Control,
        slot: usize,
        packet: &Packet<'_>,
        (src, name): (u32, u64),
        longest: Option<u32>,
    ) -> Option<Verdict> {
        let dst = packet.header.name.dst();
        let peer = self.node.as_ref()?.peer(slot);
        let mut scratch = control.scratch.take()?;
        let wqe = scratch.load(packet);
        let pd = scratch.pd;
        let ring = scratch.ring();
        let verdict = (|| {
            let wqe = wqe?;
            let record = control.record(dst)?;
            let transport = match record.parts.transport {
                QpType::XrcRecv => QpType::XrcSend,
                other @ (QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::Dci) => {
                    other
                }
            };
            let own = record.parts.cqs().into_iter().flatten().next();
            let refused = Verdict::Refused(Syndrome::REMOTE_INVAL_REQ);
            let cq = match own {
                Some(cq) => cq,
                // SAFETY: used under the lock.
                None => match unsafe { self.srqs.get(wqe.xrc_srqn()) }.and_then(|srq| srq.xrc) {
                    Some(xrc) => xrc.cq,
                    None => {
                        self.blame(control, dst, Blame::Request);
                        return Some(refused);
                    }
                },
            };
            let work = SendWork {
                transport,
                way: Way::Other,
                ring,
                consumer: 0,
                qpn: src,
                pd,
                peer: record.ctx,
                own: record.ctx,
                connection: name,
                stop: None,
                cq,
                user_index: 0,
                max_rd_atomic: 1,
                qkey: 0,
                local: locals(pd),
                grants: [Grant::NOTHING; 2],
                remote: None,
            };
            let request = wqe.request(transport).ok();
            let Some(request) = request.filter(|it| !it.operation().row().layout.is_local()) else {
                self.blame(control, dst, Blame::Request);
                return Some(refused);
            };
            let operation = request.operation();
            let bytes = data_bytes(packet, transport, &wqe);
            if let Some(stop) = longest.and_then(|most| too_long(transport, &wqe, bytes, most)) {
                return self.verdict(control, dst, Err(stop));
            }
            let executed = match operation.row().layout {
                _ if packet.header.flags & (PULLED | PART) != 0 => {
                    let done = match packet.header.flags & PART {
                        0 => self.execute_pulled(control, peer, packet, &work, &request)?,
                        _ => self.execute_part(control, peer, packet, &work, &request)?,
                    };
                    match done {
                        Pulled::Done(done) => done,
                        Pulled::NotMapped => return Some(Verdict::NotMapped),
                    }
                }
                Layout::Memory if operation.has_result() => {
                    match read_from(self, &work, &request) {
                        Ok(addr) => {
                            self.note_arrival(slot, packet, &work, &wqe, &Ok(()));
                            // The READ response acknowledges it.
                            let ctx = control.record(dst)?.ctx;
                            let next = packet.header.number.next();
                            ctx.receiver.accepted.expected.set_answered(next);
                            return self.answer_read(slot, packet, src, &request, addr);
                        }
                        Err(stop) => Err(stop),
                    }
                }
                Layout::Message
                | Layout::Memory
                | Layout::CompareAndSwap
                | Layout::FetchAndAdd
                // Local: refused above.
                | Layout::Control
                | Layout::Registration => match execute_one(self, &work, &wqe) {
                    Err(Stop::UnderLock) => self.execute_rare(control, &work, &wqe).map(drop),
                    done => done.map(drop),
                },
            };
            self.note_arrival(slot, packet, &work, &wqe, &executed);
            let result = match executed {
                Ok(()) if operation.has_result() => scratch.result(),
                _ => 0,
            };
            self.verdict(control, dst, executed.map(|()| result))
        })();
        control.scratch = Some(scratch);
        verdict
    }

    /// Records how the execution of an entry that arrived, with this work, ended.
    fn note_arrival(
        &self,
        slot: usize,
        packet: &Packet<'_>,
        work: &SendWork,
        wqe: &SendWqe<'_>,
        done: &Result<(), Stop>,
    ) {
        let Some(journal) = &self.journal else { return };
        let request = RequestId {
            qp_num: work.qpn,
            lid: lid(slot),
            life: packet.header.number.life(),
            counter: wqe.index().into(),
        };
        let bytes = match data_bytes(packet, work.transport, wqe) {
            Some(fetched) => fetched,
            None => message_bytes(work.transport, wqe),
        };
        journal.executed(request, packet.header.name.dst(), wqe, bytes, done);
    }

    /// The response to a request that was executed. If the responder is to blame, it fails. `None`: no
    /// response.
    fn verdict(&self, control: &mut Control, dst: u32, done: Result<u64, Stop>) -> Option<Verdict> {
        match done {
            Ok(result) => Some(Verdict::Done(result)),
            Err(Stop::Rnr(code)) => Some(Verdict::Rnr(code)),
            Err(Stop::Failed {
                syndrome,
                responder,
            }) => {
                if let Some(blame) = responder {
                    self.blame(control, dst, blame);
                }
                Some(Verdict::Refused(syndrome))
            }
            Err(Stop::Receiver(blame)) => {
                self.blame(control, dst, blame);
                Some(Verdict::Done(0))
            }
            Err(_) => None,
        }
    }
}
