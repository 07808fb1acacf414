//! The responder: executes the entries that packets bring, as if they had been rung here by a queue
//! pair that has the connection's rights and no memory but what came with the packet. Under the
//! device's lock.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::journal::{RequestId, message_bytes};
use super::super::mr::{LOCAL_READ, Opening};
use super::super::qp::SendWork;
use super::super::record::{UNTRIED, connection_with};
use super::super::respond::{Blame, unfilled};
use super::super::run::{MAX_MESSAGE, Stop, execute_one, fetched, message, read_from, refused};
use super::answer::{Answer, Verdict};
use super::pull::{bring, pull};
use super::requester::{IN_PACKET, SHORT};
use super::{ASKS, EAGER, MAPPED, PULLED, SPEAKING, UNRELIABLE, debt};
use crate::fabric::{Header, Packet, Peer, lid};
use crate::pinned::Pinned;
use arrayvec::ArrayVec;
use bellwire_core::access::AccessFlags;
use bellwire_core::be::{Be32, Be64};
use bellwire_core::cqe::{CqeOpcode, Syndrome};
use bellwire_core::wqe::{
    CtrlSegment, DataSegment, Rc, SEGMENT, SendRing, SendWqe, SgeList, Uc, Xrc, opcode,
};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Blocks of the ring that arriving entries stand in: the longest has 63 segments.
const BLOCKS: u32 = 16;

/// Bytes of data that a packet brings.
const DATA: usize = IN_PACKET as usize;

/// Where what arrives is kept while it is executed.
#[derive(Debug)]
pub(in super::super) struct Scratch {
    entry: Pinned,
    data: Pinned,
    /// Opens `data` to entries of `pd`.
    key: u32,
    /// A protection domain that no queue pair of the program has.
    pd: u32,
}

impl Scratch {
    pub fn new(hca: &Hca, control: &mut Control, pd: u32) -> Option<Self> {
        let index = control.take_key().ok()?;
        let random = control.random();
        let scratch = Self {
            entry: Pinned::zeroed(BLOCKS as usize * 64),
            data: Pinned::zeroed(DATA),
            key: hca.mrs.reserve(index, random),
            pd,
        };
        scratch.open(hca);
        Some(scratch)
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

    /// The first bytes of the data.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= DATA);
        // SAFETY: ours, as long as this borrow.
        unsafe { std::slice::from_raw_parts_mut(self.data.start().as_ptr(), len) }
    }

    fn ring(&self) -> SendRing<'static> {
        // SAFETY: used while the lock is held, by which the scratch is used; the block before the
        // first has the same alignment.
        unsafe { SendRing::new(self.entry.start(), BLOCKS) }.unwrap_or_else(|| unreachable!())
    }

    /// Takes in an entry and its data. `None`: it makes no sense, or its data is not to be had.
    fn load(&mut self, packet: &Packet<'_>) -> Option<SendWqe<'static>> {
        let front = packet.bytes.get(..SEGMENT)?;
        let segments = usize::from(front[7] & 0x3f);
        let (entry, behind) = (packet.bytes)
            .split_at_checked(segments * SEGMENT)
            .filter(|(entry, _)| !entry.is_empty())?;
        // SAFETY: 63 segments fit.
        unsafe {
            let to = self.entry.start().as_ptr();
            to.copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        }
        // SAFETY: just written, and nobody writes to it while it is executed.
        let wqe = unsafe { SendWqe::read(self.ring(), 0) };
        if wqe.opcode() == opcode::RDMA_READ {
            return Some(wqe);
        }
        let result = matches!(wqe.opcode(), opcode::ATOMIC_CS | opcode::ATOMIC_FA);
        let length = match packet.header.flags & (EAGER | PULLED) {
            EAGER => {
                self.bytes(behind.len().min(IN_PACKET as usize))
                    .copy_from_slice(behind.get(..IN_PACKET as usize).unwrap_or(behind));
                behind.len()
            }
            // What it has is told by what follows the entry.
            PULLED => return Some(wqe),
            0 if result => size_of::<u64>(),
            0 => return Some(wqe),
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

    /// Takes in a [short](is_short) entry.
    #[inline(always)]
    fn load_short(&mut self, packet: &Packet<'_>) -> Option<SendWqe<'static>> {
        let entry: &[u8; SHORT] = packet.bytes.try_into().ok()?;
        // SAFETY: 63 segments fit.
        unsafe { self.entry.start().cast().write(*entry) };
        // SAFETY: just written, and nobody writes to it while it is executed.
        Some(unsafe { SendWqe::read(self.ring(), 0) })
    }

    /// Takes in a datagram's data.
    pub(super) fn hold(&mut self, data: &[u8]) -> SgeList<'static> {
        let len = data.len().min(DATA);
        self.bytes(len).copy_from_slice(&data[..len]);
        let ctrl = CtrlSegment {
            qpn_ds: Be32::new(if len == 0 { 1 } else { 2 }),
            ..CtrlSegment::default()
        };
        let segment = self.segment(len);
        // SAFETY: both within the entry, which has the alignment of a block.
        unsafe {
            self.entry.start().cast::<CtrlSegment>().write(ctrl);
            let to = self.entry.start().add(SEGMENT);
            to.cast::<DataSegment>().write(segment);
        }
        // SAFETY: just written, and nobody writes to it while it is used.
        unsafe { SendWqe::read(self.ring(), 0) }.data(SEGMENT)
    }

    /// What names the data in an entry.
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

/// Whether the requester is still in the life in which it sent a request, and wants it executed.
fn speaks(peer: &Peer, src: u32, packet: &Packet<'_>) -> bool {
    peer.segments.life(src) == u32::from(packet.header.life) | SPEAKING
}

impl Hca {
    /// A request has come.
    pub(super) fn arrived(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        let Some(&[_, _, _, _, tail @ ..]) = packet.bytes.first_chunk::<8>() else {
            return;
        };
        let src = u32::from_be_bytes(tail) >> 8;
        self.take(control, slot, packet, src);
        if packet.header.flags & UNRELIABLE == 0 {
            return;
        }
        // Whatever became of it: the requester may have its memory back.
        let header = packet.header;
        let answer = Answer {
            msn: header.msn,
            verdict: Verdict::Taken(0),
        };
        // Without room it has to be found out by the time that passes.
        let _sent = self.send_answer(slot, src, header.life, answer);
    }

    /// Executes a request, if the responder takes it.
    fn take(&self, control: &mut Control, slot: usize, packet: &Packet<'_>, src: u32) {
        let (dst, msn) = (packet.header.dst, packet.header.msn);
        let name = connection_with(dst, src, lid(slot));
        let unreliable = packet.header.flags & UNRELIABLE != 0;
        let (Some(node), Some(record)) = (&self.node, control.record(dst)) else {
            return;
        };
        // Relaxed: changed under the lock.
        let accepts = record.ctx.face.accepts.load(Ordering::Relaxed);
        let Some(responder) = &mut record.responder else {
            return;
        };
        if accepts & !UNTRIED != name || responder.slot != slot || !self.port.is_up() {
            return;
        }
        // What has been flushed meanwhile is not executed.
        if !speaks(node.peer(slot), src, packet) {
            return;
        }
        let short = record.parts.transport == QpType::Rc
            && is_short(packet)
            // A shortcut, of which nothing is recorded.
            && self.journal.is_none();
        let incarnation = node.peer(slot).incarnation();
        if responder.incarnation == 0 {
            responder.incarnation = incarnation;
        }
        // Another process has the place of the one that it was connected to.
        if responder.incarnation != incarnation {
            return;
        }
        if responder.life != Some(packet.header.life) {
            // Its first one, however late it comes.
            responder.life = Some(packet.header.life);
            responder.expected = 0;
            responder.owed = None;
            record.ctx.sender.owed.store(0, Ordering::Relaxed);
        }
        let ahead = msn.wrapping_sub(responder.expected) as i16;
        // A READ is executed again (IBTA 9.4.4): its answer is only good for a time.
        let again = ahead == -1 && packet.bytes[3] == opcode::RDMA_READ;
        if ahead != 0 && !unreliable && !again {
            // Sent again, it is a duplicate: acknowledged, and not executed again. What comes behind
            // one that was not taken is not taken either.
            if ahead < 0 && responder.owed.is_none() {
                let verdict = Verdict::Taken(responder.result);
                self.owe(control, packet, verdict);
            }
            return;
        }
        if accepts & UNTRIED != 0 {
            self.first_packet(control, dst, name);
        }
        let verdict = if short {
            self.receive_short(control, packet)
        } else {
            self.execute_arrived(control, slot, packet, src, name)
        };
        let Some(verdict) = verdict else {
            return;
        };
        if let Some(responder) = control
            .record(dst)
            .and_then(|record| record.responder.as_mut())
            && matches!(verdict, Verdict::Taken(_) | Verdict::Granted { .. })
        {
            responder.expected = msn.wrapping_add(1);
            if let Verdict::Taken(result) = verdict {
                responder.result = result;
            }
        }
        if !unreliable {
            self.owe(control, packet, verdict);
        }
    }

    /// A responder is to tell its requester something: with the next packet that goes there, or when
    /// there is nothing more urgent.
    #[inline(always)]
    fn owe(&self, control: &mut Control, packet: &Packet<'_>, verdict: Verdict) {
        let Header {
            dst: qpn,
            msn,
            flags,
            ..
        } = packet.header;
        let asked = flags & ASKS != 0;
        let Some(record) = control.record(qpn) else {
            return;
        };
        let Some(responder) = &mut record.responder else {
            return;
        };
        let word = &record.ctx.sender.owed;
        // Relaxed: each on its own; to tell twice does no harm.
        if let (Verdict::Taken(0), Some(life), None) = (verdict, responder.life, responder.owed) {
            responder.debts = responder.debts.wrapping_add(1);
            word.store(debt(responder.debts, life, msn), Ordering::Relaxed);
        } else {
            word.store(0, Ordering::Relaxed);
            responder.owed = Some(Answer { msn, verdict });
        }
        if !std::mem::replace(&mut responder.listed, true) {
            control.owing.push(qpn);
        }
        control.asked |= asked || verdict != Verdict::Taken(0);
    }

    /// Executes an entry that has come. `None`: nobody is told.
    fn execute_arrived(
        &self,
        control: &mut Control,
        slot: usize,
        packet: &Packet<'_>,
        src: u32,
        name: u64,
    ) -> Option<Verdict> {
        let dst = packet.header.dst;
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
                other => other,
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
                is_local_rc: false,
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
                remote: None,
            };
            let executed = match wqe.opcode() {
                _ if packet.header.flags & PULLED != 0 => {
                    self.execute_pulled(control, peer, packet, &work, &wqe)?
                }
                opcode::SEND
                | opcode::SEND_IMM
                | opcode::RDMA_WRITE
                | opcode::RDMA_WRITE_IMM
                | opcode::ATOMIC_CS
                | opcode::ATOMIC_FA => execute_one(self, &work, &wqe).map(drop),
                opcode::RDMA_READ => match read_from(self, &work, &wqe) {
                    Ok(addr) => {
                        self.note_arrival(slot, packet, &work, &wqe, &Ok(()));
                        let revoked = peer.segments.own_revoked();
                        return Some(Verdict::Granted { addr, revoked });
                    }
                    Err(stop) => Err(stop),
                },
                opcode::SEND_INVAL => self.execute_rare(control, &work, &wqe).map(drop),
                _ => {
                    self.blame(control, dst, Blame::Request);
                    return Some(refused);
                }
            };
            self.note_arrival(slot, packet, &work, &wqe, &executed);
            let result = match executed {
                Ok(()) if wqe.result_offset(transport).is_some() => scratch.result(),
                _ => 0,
            };
            self.verdict(control, dst, executed.map(|()| result))
        })();
        control.scratch = Some(scratch);
        verdict
    }

    /// Execution of an entry that has come, and was given this work, ended so.
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
            life: packet.header.life,
            counter: wqe.index().into(),
        };
        let behind = packet.bytes.get(wqe.ds() as usize * SEGMENT..);
        let bytes = match behind.and_then(strings) {
            Some((_, length)) if packet.header.flags & PULLED != 0 => length,
            _ => message_bytes(work.transport, wqe),
        };
        journal.executed(request, packet.header.dst, wqe, bytes, done);
    }

    /// Executes a [short](is_short) SEND to a reliable connection. `None`: nobody is told.
    #[inline(always)]
    fn receive_short(&self, control: &mut Control, packet: &Packet<'_>) -> Option<Verdict> {
        let dst = packet.header.dst;
        let ctx = control.record(dst)?.ctx;
        let wqe = control.scratch.as_mut()?.load_short(packet)?;
        let data = wqe.data(SEGMENT);
        let message = message(&wqe, CqeOpcode::RespSend, data, data.total());
        // SAFETY: the lock is held, under which the requests of other processes are executed.
        let recv = unsafe { &mut *ctx.receiver.work.get() }.as_mut()?;
        match recv.receive(self, None, &message, || Ok(())) {
            Ok(()) => Some(Verdict::Taken(0)),
            Err(why) => self.verdict(control, dst, Err(refused(unfilled(ctx, why)))),
        }
    }

    /// What a requester is told of a request that was executed, and what befalls the responder. `None`:
    /// nothing.
    fn verdict(&self, control: &mut Control, dst: u32, done: Result<u64, Stop>) -> Option<Verdict> {
        match done {
            Ok(result) => Some(Verdict::Taken(result)),
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
                Some(Verdict::Taken(0))
            }
            Err(_) => None,
        }
    }

    /// Executes an entry whose data is in the requester's memory. `None`: it makes no sense.
    fn execute_pulled(
        &self,
        control: &mut Control,
        peer: &Peer,
        packet: &Packet<'_>,
        work: &SendWork,
        wqe: &SendWqe<'_>,
    ) -> Option<Result<(), Stop>> {
        let takes_data = matches!(
            wqe.opcode(),
            opcode::SEND
                | opcode::SEND_IMM
                | opcode::SEND_INVAL
                | opcode::RDMA_WRITE
                | opcode::RDMA_WRITE_IMM
        );
        let (strings, length) = strings(packet.bytes.get(wqe.ds() as usize * SEGMENT..)?)?;
        let mut sources = None;
        if packet.header.flags & MAPPED != 0 {
            let responder = control.record(packet.header.dst)?.responder.as_mut()?;
            let source = |&(addr, length): &(u64, u64)| {
                let place = self.source(responder, addr, length)?;
                Some((place.expose_provenance() as u64, length))
            };
            sources = strings.iter().map(source).collect::<Option<List>>();
        }
        let pid = peer.link()?.pid;
        if !takes_data {
            return None;
        }
        let fetch = |places: &[(u64, u64)]| {
            // SAFETY: the responder has checked the places, under the lock, which revoking takes; the
            // sources are mapped as long as it is held.
            let brought = unsafe {
                match &sources {
                    Some(sources) => bring(sources, places),
                    None => pull(pid, &strings, places).is_ok(),
                }
            };
            // Fetched from memory that was the request's all the while.
            brought && speaks(peer, work.qpn, packet)
        };
        let key = wqe.imm().get();
        let mut invalidate = |pd| {
            self.invalidate(control, pd, packet.header.dst, key)
                .map(drop)
                .ok_or(Syndrome::REMOTE_INVAL_REQ)
        };
        let done = match work.transport {
            QpType::Uc => fetched::<Uc>(self, work, wqe, length, &fetch, &mut invalidate),
            QpType::XrcSend => fetched::<Xrc>(self, work, wqe, length, &fetch, &mut invalidate),
            _ => fetched::<Rc>(self, work, wqe, length, &fetch, &mut invalidate),
        };
        Some(done.map(drop))
    }
}

/// Whether a packet is a SEND whose entry, with its data inline, is all that there is.
#[inline(always)]
fn is_short(packet: &Packet<'_>) -> bool {
    let Ok(entry) = <&[u8; SHORT]>::try_from(packet.bytes) else {
        return false;
    };
    let flags = packet.header.flags & (EAGER | PULLED | UNRELIABLE);
    let (ds, is_inline) = (entry[7] & 0x3f, entry[SEGMENT] & 0x80 != 0);
    flags == 0 && entry[3] == opcode::SEND && usize::from(ds) * SEGMENT == SHORT && is_inline
}

/// As many pieces as an entry's data can have, each in two parts.
const PIECES: usize = 128;

/// Addresses and lengths.
type List = ArrayVec<(u64, u64), PIECES>;

/// Where the requester says that it has a message's data, and how much that is.
fn strings(list: &[u8]) -> Option<(List, u64)> {
    let (pairs, rest) = list.as_chunks::<16>();
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
    if pairs.len() > PIECES {
        return None;
    }
    let strings: List = (pairs.iter())
        .map(|pair| Some((word(&pair[..8])?, word(&pair[8..])?)))
        .collect::<Option<_>>()?;
    let total = strings
        .iter()
        .try_fold(0u64, |sum, &(_, len)| sum.checked_add(len))?;
    (rest.is_empty() && (1..=MAX_MESSAGE).contains(&total)).then_some((strings, total))
}
