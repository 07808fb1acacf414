//! The requester: makes packets of send entries. On the poster's thread, within its section.

use super::super::hca::Hca;
use super::super::mr::{Reach, SHOWN};
use super::super::qp::{QpCtx, SendWork};
use super::super::record::QpRecord;
use super::super::run::{MAX_MESSAGE, Stop, complete, incoming, outgoing};
use super::{ASKS, EAGER, MAPPED, PULLED, UNRELIABLE, direct};
use crate::fabric::{Header, Kind, Room, Send};
use bellwire_core::be::Be32;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::{
    BASIC_BLOCK, CtrlSegment, Data, DataSegment, INLINE_FLAG, SEGMENT, SendWqe, SgeList, fm_ce_se,
    opcode,
};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Longest data that travels within the entry, behind its other segments.
const IN_ENTRY: u64 = 768;

/// Longest data that travels in the packet; more is fetched by the responder.
pub(super) const IN_PACKET: u64 = 4096;

/// How an entry went.
enum Step {
    /// Its packet is under way.
    Sent,
    /// It is done, without a packet; the bytes that it brought.
    Done(u32),
}

/// Executes entries from `work.consumer` up to `producer`, as [`run`](super::super::run::run) does.
#[inline(never)]
pub(in super::super) fn run(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    let sender = &work.own.sender;
    while work.consumer != producer {
        let counter = work.consumer;
        // SAFETY: rung and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        // Acquire: partner of the release in `Hca::acknowledge`, which has completed what comes
        // before.
        let idle = sender.acked.load(Ordering::Acquire) == counter;
        // One string of inline data for memory that is mapped here, as small WRITEs are.
        if idle
            && wqe.opcode() == opcode::RDMA_WRITE
            && wqe.blocks().wrapping_sub(1) < producer.wrapping_sub(counter)
            && wrote(hca, work, &wqe)
        {
            let next = counter.wrapping_add(wqe.blocks());
            // Relaxed: nobody else completes while nothing is under way.
            sender.acked.store(next, Ordering::Relaxed);
            if !complete(work, &wqe, counter, 0) {
                return Some(Stop::Overrun);
            }
            work.consumer = next;
            continue;
        }
        let step = if is_short(work, &wqe, idle) {
            post_entry(hca, work, &wqe, idle, SHORT)
        } else if wqe.blocks().wrapping_sub(1) >= producer.wrapping_sub(counter) {
            // No size, or more than was rung.
            Err(Stop::local(Syndrome::LOCAL_QP_OP))
        } else {
            step(hca, work, &wqe, idle)
        };
        let next = counter.wrapping_add(wqe.blocks());
        match step {
            Ok(Step::Sent) => {}
            Ok(Step::Done(bytes)) => {
                // Relaxed: nobody else completes while nothing is under way.
                sender.acked.store(next, Ordering::Relaxed);
                if !complete(work, &wqe, counter, bytes) {
                    return Some(Stop::Overrun);
                }
            }
            // First what is under way; this is for later.
            Err(Stop::Full) => return Some(Stop::Full),
            Err(_) if !idle => return Some(Stop::Unacknowledged),
            Err(why) => return Some(why),
        }
        work.consumer = next;
    }
    None
}

#[inline(always)]
fn wrote(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> bool {
    let mut pieces = wqe.data(2 * SEGMENT);
    let (Some(remote), Some(Data::Inline(bytes, [])), None) =
        (&work.remote, pieces.next(), pieces.next())
    else {
        return false;
    };
    work.transport == QpType::Rc
        && is_new(work)
        && direct::write_inline(hca, remote, wqe.remote(SEGMENT), bytes)
}

/// Bytes of an entry that fits into the first line of a packet, with up to 12 bytes of data.
pub(super) const SHORT: usize = 2 * SEGMENT;

/// Whether the entry is a SEND of such a size that may go at once: it is not to be made out what else it
/// could be.
#[inline(always)]
fn is_short(work: &SendWork, wqe: &SendWqe<'_>, idle: bool) -> bool {
    let fenced = wqe.fm_ce_se() & fm_ce_se::FENCE == fm_ce_se::FENCE;
    let held = fenced || work.remote.as_ref().is_some_and(|remote| remote.asks);
    wqe.opcode() == opcode::SEND
        && wqe.ds() as usize * SEGMENT == SHORT
        && work.transport == QpType::Rc
        && (idle || !held)
        && matches!(wqe.data(SEGMENT).next(), Some(Data::Inline(_, [])))
}

/// Sends an entry of `bytes` as it is: its data is one string of inline data.
#[inline(always)]
fn post_entry(
    hca: &Hca,
    work: &mut SendWork,
    wqe: &SendWqe<'_>,
    idle: bool,
    bytes: usize,
) -> Result<Step, Stop> {
    let entry = work.ring.block(work.consumer).as_ptr();
    let asks = wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0;
    post(hca, work, idle, asks, 0, bytes, |room| {
        // SAFETY: rung and not completed; its data, which is last, does not run over the ring's end.
        unsafe { room.put(entry, bytes) };
    })
}

#[inline(never)]
fn step(hca: &Hca, work: &mut SendWork, wqe: &SendWqe<'_>, idle: bool) -> Result<Step, Stop> {
    let xrc = if work.transport == QpType::XrcSend {
        SEGMENT
    } else {
        0
    };
    let reliable = !matches!(work.transport, QpType::Uc);
    let offset = xrc
        + match wqe.opcode() {
            opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL => SEGMENT,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => 2 * SEGMENT,
            opcode::ATOMIC_CS | opcode::ATOMIC_FA if reliable => 3 * SEGMENT,
            opcode::RDMA_READ if reliable => 2 * SEGMENT,
            _ if !idle => return Err(Stop::Unacknowledged),
            opcode::NOP => return Ok(Step::Done(0)),
            opcode::UMR => return Err(Stop::UnderLock),
            _ => return Err(Stop::local(Syndrome::LOCAL_QP_OP)),
        };
    // One answer stands for all that was taken before it; what a READ or an atomic brings is in its own.
    if !idle && work.remote.as_ref().is_some_and(|remote| remote.asks) {
        return Err(Stop::Unacknowledged);
    }
    // The data that is to travel may be what a READ or an atomic brings.
    if wqe.fm_ce_se() & fm_ce_se::FENCE == fm_ce_se::FENCE && !idle {
        return Err(Stop::Unacknowledged);
    }
    match wqe.opcode() {
        // What they bring is put where it belongs when it comes: nothing is to come before.
        opcode::ATOMIC_CS | opcode::ATOMIC_FA | opcode::RDMA_READ if !idle => {
            Err(Stop::Unacknowledged)
        }
        opcode::RDMA_WRITE | opcode::RDMA_READ | opcode::ATOMIC_CS | opcode::ATOMIC_FA
            if idle
                && one_sided(work, wqe)
                && is_new(work)
                && let Some(bytes) = direct::execute(hca, work, wqe, offset)? =>
        {
            Ok(Step::Done(bytes))
        }
        opcode::ATOMIC_CS | opcode::ATOMIC_FA => {
            if incoming(hca, work, wqe.data(offset))? != size_of::<u64>() as u64 {
                return Err(Stop::local(Syndrome::LOCAL_LENGTH));
            }
            if work.max_rd_atomic == 0 {
                return Err(Stop::local(Syndrome::LOCAL_QP_OP));
            }
            let packet = Outgoing::new(hca, work, wqe, offset, size_of::<u64>() as u64, true);
            packet.send(hca, work, idle)
        }
        opcode::RDMA_READ => {
            let length = incoming(hca, work, wqe.data(offset))?;
            if length > MAX_MESSAGE {
                return Err(Stop::local(Syndrome::LOCAL_LENGTH));
            }
            if work.max_rd_atomic == 0 {
                return Err(Stop::local(Syndrome::LOCAL_QP_OP));
            }
            Outgoing::new(hca, work, wqe, offset, length, true).send(hca, work, idle)
        }
        _ => {
            let mut pieces = wqe.data(offset);
            // One string of inline data, as small messages have: the entry travels as it is.
            if let (Some(Data::Inline(_, [])), None) = (pieces.next(), pieces.next()) {
                let bytes = wqe.ds() as usize * SEGMENT;
                return post_entry(hca, work, wqe, idle, bytes);
            }
            let length = outgoing(hca, work, wqe.data(offset))?;
            Outgoing::new(hca, work, wqe, offset, length, false).send(hca, work, idle)
        }
    }
}

/// Whether the entry may be done without the peer: it is one that the transport has, of a length that
/// it allows, on a connection whose requests are protected by the queue pair's own domain.
#[inline(always)]
fn one_sided(work: &SendWork, wqe: &SendWqe<'_>) -> bool {
    match work.transport {
        QpType::Uc => wqe.opcode() == opcode::RDMA_WRITE,
        QpType::Rc => match wqe.opcode() {
            opcode::RDMA_WRITE => true,
            opcode::RDMA_READ => work.max_rd_atomic != 0,
            _ => work.max_rd_atomic != 0 && wqe.data(3 * SEGMENT).total() == 8,
        },
        _ => false,
    }
}

/// Whether no packet was sent of the entry at hand. Else the peer may have executed it: only its number
/// keeps it from being executed once more, and the next one from being taken for it.
#[inline(always)]
fn is_new(work: &SendWork) -> bool {
    work.remote
        .as_ref()
        .is_some_and(|remote| (work.consumer.wrapping_sub(remote.sent_to) as i32) >= 0)
}

impl QpRecord {
    /// Whether no packet was sent to another process of the entry at hand.
    pub(in super::super) fn is_new(&mut self) -> bool {
        (self.runnable()).is_some_and(|(work, _)| work.remote.is_none() || is_new(work))
    }
}

/// An entry on its way into a packet.
struct Outgoing<'m> {
    /// Its segments before the data, with the size that it has in the packet.
    front: [u8; BASIC_BLOCK],
    offset: usize,
    data: SgeList<'m>,
    length: u64,
    form: Form,
    /// Somebody waits for its completion.
    asks: bool,
}

/// How an entry's data travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// There is none.
    Empty,
    /// As inline data of the entry.
    InEntry,
    /// Behind the entry.
    InPacket,
    /// Where it is travels behind the entry.
    Pulled { pieces: usize, mapped: bool },
    /// None goes there, and as much comes back.
    Result,
}

impl<'m> Outgoing<'m> {
    fn new(
        hca: &Hca,
        work: &SendWork,
        wqe: &SendWqe<'m>,
        offset: usize,
        length: u64,
        result: bool,
    ) -> Self {
        let data = wqe.data(offset);
        let pulled = |mapped| Form::Pulled {
            pieces: data.flat_map(strings).count(),
            mapped,
        };
        let form = match length {
            _ if result => Form::Result,
            0 => Form::Empty,
            1..=IN_ENTRY => Form::InEntry,
            // One copy, from there to where it goes, in place of those into and out of a packet.
            _ if is_shown(hca, work, data) => pulled(true),
            _ if length <= IN_PACKET => Form::InPacket,
            _ => pulled(false),
        };
        let mut front = [0; BASIC_BLOCK];
        let block = work.ring.block(work.consumer);
        // SAFETY: an entry starts with a whole block, which is rung and not completed.
        front.copy_from_slice(unsafe { block.cast::<[u8; BASIC_BLOCK]>().as_ref() });
        let segments = (offset + data_segment_bytes(form, length)) / SEGMENT;
        let qpn_ds = Be32::new(work.qpn << 8 | segments as u32);
        // SAFETY: the control segment's second word, in a block of bytes.
        unsafe {
            let at = front
                .as_mut_ptr()
                .add(std::mem::offset_of!(CtrlSegment, qpn_ds));
            at.cast::<Be32>().write_unaligned(qpn_ds);
        }
        Self {
            front,
            offset,
            data,
            length,
            form,
            asks: wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0,
        }
    }

    /// Bytes of the packet.
    fn bytes(&self) -> usize {
        let behind = match self.form {
            Form::InPacket => self.length as usize,
            Form::Pulled { pieces, .. } => pieces * size_of::<[u64; 2]>(),
            Form::Empty | Form::InEntry | Form::Result => 0,
        };
        self.offset + data_segment_bytes(self.form, self.length) + behind
    }

    fn fill(&self, room: &mut Room) {
        let put = |room: &mut Room, bytes: &[u8]| {
            // SAFETY: a slice.
            unsafe { room.put(bytes.as_ptr(), bytes.len()) };
        };
        put(room, &self.front[..self.offset]);
        match self.form {
            Form::Empty => {}
            Form::InEntry => {
                put(room, &(self.length as u32 | INLINE_FLAG).to_be_bytes());
                self.put_data(room);
                const ZERO: [u8; SEGMENT] = [0; SEGMENT];
                let used = size_of::<Be32>() + self.length as usize;
                put(room, &ZERO[..used.next_multiple_of(SEGMENT) - used]);
            }
            Form::InPacket | Form::Pulled { .. } | Form::Result => {
                // The responder fills in where it has the data.
                put(room, &(self.length as u32).to_be_bytes());
                put(room, &[0; SEGMENT - size_of::<Be32>()]);
            }
        }
        match self.form {
            Form::InPacket => self.put_data(room),
            Form::Pulled { .. } => {
                for (addr, length) in self.data.flat_map(strings) {
                    put(room, &addr.to_ne_bytes());
                    put(room, &length.to_ne_bytes());
                }
            }
            Form::Empty | Form::InEntry | Form::Result => {}
        }
    }

    fn put_data(&self, room: &mut Room) {
        for (addr, length) in self.data.flat_map(strings) {
            let from = std::ptr::with_exposed_provenance(addr as usize);
            // SAFETY: checked in this section, or within the entry.
            unsafe { room.put(from, length as usize) };
        }
    }

    #[inline(never)]
    fn send(&self, hca: &Hca, work: &mut SendWork, idle: bool) -> Result<Step, Stop> {
        let flags = match self.form {
            Form::InPacket => EAGER,
            Form::Pulled { mapped: true, .. } => PULLED | MAPPED,
            Form::Pulled { mapped: false, .. } => PULLED,
            Form::Empty | Form::InEntry | Form::Result => 0,
        };
        let step = post(hca, work, idle, self.asks, flags, self.bytes(), |room| {
            self.fill(room);
        });
        if let (Ok(Step::Sent), Some(remote)) = (&step, &mut work.remote) {
            remote.asks = self.form == Form::Result;
        }
        step
    }
}

/// Sends a request's packet. `asks`: somebody waits for its completion.
#[inline(always)]
fn post(
    hca: &Hca,
    work: &mut SendWork,
    idle: bool,
    asks: bool,
    flags: u8,
    bytes: usize,
    fill: impl FnOnce(&mut Room),
) -> Result<Step, Stop> {
    let (Some(node), Some(remote)) = (&hca.node, &mut work.remote) else {
        return Err(Stop::NoAnswer);
    };
    let reliable = !matches!(work.transport, QpType::Uc);
    // What nobody takes is dropped where the service is unreliable.
    let lost = || {
        if reliable || !idle {
            Err(Stop::NoAnswer)
        } else {
            Ok(Step::Done(0))
        }
    };
    if !hca.port.is_up() {
        return lost();
    }
    let msn = remote.msn;
    // Relaxed: as in `untold`.
    let owed = work.own.sender.owed.load(Ordering::Relaxed);
    let header = Header {
        kind: Kind::Request,
        dst: (work.connection >> 32) as u32,
        msn,
        life: remote.life,
        taken: untold(work.own, owed),
        flags: flags | (if reliable { 0 } else { UNRELIABLE }) | (if asks { ASKS } else { 0 }),
    };
    let peer = node.peer(remote.slot);
    match peer.writer.send(remote.incarnation, header, bytes, fill) {
        Ok(()) => {
            remote.msn = msn.wrapping_add(1);
            // Within the section: whoever hears of it before waits for its end. Release: partner of the
            // acquire in `Hca::told`; the entry comes before.
            (work.own.sender.sent).store(remote.msn.into(), Ordering::Release);
            remote.asks = false;
            // Relaxed: as in `untold`.
            work.own.sender.told.store(owed, Ordering::Relaxed);
            hca.after_send(peer);
            Ok(Step::Sent)
        }
        Err(Send::Full) => Err(Stop::Full),
        Err(Send::Gone) => lost(),
    }
}

/// What the queue pair's other direction owes, unless it was told: by a packet, or by the lock's holder,
/// who owes nothing then. It may be told twice, which does no harm.
#[inline(always)]
fn untold(own: &QpCtx, owed: u64) -> Option<(u16, u16)> {
    // Relaxed: each is a number on its own.
    let told = own.sender.told.load(Ordering::Relaxed);
    (owed != 0 && owed != told).then_some(((owed >> 16) as u16, owed as u16))
}

/// Bytes of the segments that name the data.
fn data_segment_bytes(form: Form, length: u64) -> usize {
    match form {
        Form::Empty => 0,
        Form::InEntry => (size_of::<Be32>() + length as usize).next_multiple_of(SEGMENT),
        Form::InPacket | Form::Pulled { .. } | Form::Result => size_of::<DataSegment>(),
    }
}

/// Whether the peer may map all of the data's memory.
fn is_shown(hca: &Hca, work: &SendWork, mut data: SgeList<'_>) -> bool {
    data.all(|piece| match piece {
        Data::Inline(..) => false,
        Data::Pointer(sge) => hca.mrs.covers(&Reach {
            key: sge.lkey,
            pd: work.pd,
            qpn: 0,
            addr: sge.addr,
            length: u64::from(sge.length),
            access: SHOWN,
        }),
    })
}

/// Where a piece of data is.
fn strings(piece: Data<'_>) -> impl Iterator<Item = (u64, u64)> {
    let both = match piece {
        Data::Pointer(sge) => [(sge.addr, u64::from(sge.length)), (0, 0)],
        Data::Inline(head, tail) => [head, tail].map(|bytes| {
            (
                bytes.as_ptr().expose_provenance() as u64,
                bytes.len() as u64,
            )
        }),
    };
    both.into_iter().filter(|(_, length)| *length != 0)
}
