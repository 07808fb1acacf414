//! The requester: sends entries as packets. On the poster's thread, within its section.

use super::super::connection::responder;
use super::super::gate::Way;
use super::super::hca::Hca;
use super::super::one_sided::transfer_there;
use super::super::qp::{QpCtx, SendWork};
use super::super::record::QpRecord;
use super::super::run::{MAX_MESSAGE, Stop, complete, incoming, outgoing};
use super::eager::sent_eagerly;
use super::pulled::{CARRIED, is_shown, pulls};
use super::short::{sent, wrote};
use super::{
    ASKS, EAGER, FETCHED_AT_ONCE, MORE, PART, PULLED, Remote, UNRELIABLE, direct, taken_of,
};
use crate::fabric::{Header, Kind, Peer, Room, Send};
use bellwire_core::be::Be32;
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::{Layout, opcode};
use bellwire_core::wqe::{
    BASIC_BLOCK, CtrlSegment, Data, DataSegment, FirstBlock, INLINE_FLAG, Request, SEGMENT,
    SendWqe, SgeList, fm_ce_se,
};
use bellwire_core::wr::QpType;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Longest data that travels as inline data of the entry, after its other segments.
pub(super) const IN_ENTRY: u64 = 768;

/// Longest data that travels in one packet. Longer data is fetched by the responder, if it has the memory
/// mapped, or travels in several packets.
pub(super) const IN_PACKET: u64 = 4096;

/// Outcome of an entry.
pub(super) enum Step {
    /// Its packet has been sent.
    Sent,
    /// It was executed without a packet; its byte count.
    Done(u32),
}

/// Executes entries from `work.consumer` up to `producer`, like [`run`](super::super::run::run).
#[inline(never)]
pub(in super::super) fn run(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    let sender = &work.own.sender;
    while work.consumer != producer {
        let counter = work.consumer;
        // SAFETY: posted and not completed, so the poster does not write it.
        let block = unsafe { FirstBlock::read(work.ring, counter) };
        let posted = producer.wrapping_sub(counter);
        if work.way == Way::There
            // SAFETY: just found.
            && let Some(peer) = unsafe { sent_message(hca, work, block, posted) }
        {
            hca.after_send(peer);
            continue;
        }
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
        let idle = sender.acked.load(Ordering::Acquire) == counter;
        let step = if wqe.blocks().wrapping_sub(1) >= posted {
            // The entry's size is zero, or exceeds what was posted.
            Err(Stop::local(Syndrome::LOCAL_QP_OP))
        } else if idle
            && wqe.opcode() == opcode::RDMA_WRITE
            && work.way == Way::There
            && is_new(work)
            // SAFETY: its way is that.
            && unsafe { wrote::<true>(work, block) || wrote::<false>(work, block) }
        {
            Ok(Step::Done(0))
        } else if idle
            && matches!(wqe.opcode(), opcode::RDMA_WRITE | opcode::RDMA_READ)
            && work.way == Way::There
            && let Some(transfer) = transfer_there(hca, work, block)
        {
            Ok(Step::Done(transfer.bytes()))
        } else {
            step(hca, work, &wqe, idle)
        };
        let next = counter.wrapping_add(wqe.blocks());
        match step {
            Ok(Step::Sent) => {}
            Ok(Step::Done(bytes)) => {
                // Relaxed: no other thread completes requests while none is outstanding.
                sender.acked.store(next, Ordering::Relaxed);
                if !complete(work, &wqe, counter, bytes) {
                    return Some(Stop::Overrun);
                }
            }
            // Outstanding requests come first; the error occurs again once they have completed.
            Err(Stop::Full) => return Some(Stop::Full),
            Err(_) if !idle => return Some(Stop::Unacknowledged),
            Err(why) => return Some(why),
        }
        work.consumer = next;
    }
    None
}

/// Sends the current entry, if it is a message that travels whole in one packet, and passes it. `None`: nothing has
/// changed.
///
/// # Safety
/// The work's way is [`Way::There`].
#[inline(always)]
unsafe fn sent_message(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    posted: u32,
) -> Option<&'static Peer> {
    match block.opcode() {
        opcode::SEND | opcode::SEND_IMM => {
            // SAFETY: the caller guarantees it.
            let sent = unsafe { sent(work, block) };
            sent.or_else(|| sent_eagerly(hca, work, block, posted))
        }
        opcode::RDMA_WRITE_IMM => sent_eagerly(hca, work, block, posted),
        _ => None,
    }
}

/// Whether a message with these flags waits until those before it are acknowledged.
#[inline(always)]
pub(super) fn is_held(work: &SendWork, flags: u8) -> bool {
    let held = flags & fm_ce_se::FENCE == fm_ce_se::FENCE
        || work.remote.as_ref().is_some_and(|remote| remote.asks);
    // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
    held && work.own.sender.acked.load(Ordering::Acquire) != work.consumer
}

/// Sends an entry of `bytes` unchanged: its data is one piece of inline data.
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
    let fill = |room: &mut Room| {
        // SAFETY: posted and not completed; its inline data, which is last, does not wrap at the ring's end.
        unsafe { room.put(entry, bytes) };
    };
    post::<true>(hca, work, idle, asks, 0, |peer, incarnation, heading| {
        peer.writer.send(incarnation, heading.header(), bytes, fill)
    })
}

#[inline(never)]
fn step(hca: &Hca, work: &mut SendWork, wqe: &SendWqe<'_>, idle: bool) -> Result<Step, Stop> {
    let Ok(request) = wqe.request(work.transport) else {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    };
    let operation = request.operation();
    match operation.row().layout {
        Layout::Control | Layout::Registration if !idle => return Err(Stop::Unacknowledged),
        Layout::Control => return Ok(Step::Done(0)),
        Layout::Registration => return Err(Stop::UnderLock),
        Layout::Message | Layout::Memory | Layout::CompareAndSwap | Layout::FetchAndAdd => {}
    }
    // A response acknowledges all requests before it, but carries the data of only one READ or atomic.
    if !idle && work.remote.as_ref().is_some_and(|remote| remote.asks) {
        return Err(Stop::Unacknowledged);
    }
    // Fence: the data to be sent may be the result of an earlier READ or atomic.
    if request.is_fenced() && !idle {
        return Err(Stop::Unacknowledged);
    }
    // A result is written as it arrives, so all earlier requests have to be acknowledged before.
    if operation.has_result() && !idle {
        return Err(Stop::Unacknowledged);
    }
    if idle
        && one_sided(work, &request)
        && is_new(work)
        && let Some(bytes) = direct::execute(hca, work, &request)?
    {
        return Ok(Step::Done(bytes));
    }
    if !operation.has_result() {
        let mut pieces = request.data();
        // One piece of inline data, as in small messages: the entry is sent unchanged.
        if let (Some(Data::Inline(_, [])), None) = (pieces.next(), pieces.next()) {
            let bytes = wqe.ds() as usize * SEGMENT;
            return post_entry(hca, work, wqe, idle, bytes);
        }
        let length = outgoing(hca, work, request.data())?;
        return Outgoing::new(hca, work, &request, length).send(hca, work, idle);
    }
    let length = incoming(hca, work, request.data())?;
    let fits = match operation.row().layout {
        Layout::CompareAndSwap | Layout::FetchAndAdd => length == size_of::<u64>() as u64,
        Layout::Control | Layout::Registration | Layout::Message | Layout::Memory => {
            length <= MAX_MESSAGE
        }
    };
    if !fits {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let mut packet = Outgoing::new(hca, work, &request, length);
    if request.atomic().is_none() {
        // What has arrived of a READ is not requested again.
        packet.leave_out(work.remote.as_ref().map_or(0, |remote| remote.got));
    }
    packet.send(hca, work, idle)
}

/// Whether the entry may be executed without the peer: the transport supports it, its length is permitted,
/// and the peer queue pair's own protection domain applies to it.
#[inline(always)]
fn one_sided(work: &SendWork, request: &Request<'_>) -> bool {
    let operation = request.operation();
    let own_domain = matches!(work.transport, QpType::Rc | QpType::Uc);
    let reads = operation.has_result();
    own_domain
        && !operation.consumes_receive()
        && (!reads || work.max_rd_atomic != 0)
        && match operation.row().layout {
            Layout::Memory => true,
            Layout::CompareAndSwap | Layout::FetchAndAdd => {
                request.data().total() == size_of::<u64>() as u64
            }
            Layout::Control | Layout::Registration | Layout::Message => false,
        }
}

/// Whether no packet has been sent for the current entry. Otherwise the peer may have executed it: only its
/// number prevents that it is executed twice, or that the next one is taken for it.
#[inline(always)]
pub(super) fn is_new(work: &SendWork) -> bool {
    work.remote
        .as_ref()
        .is_some_and(|remote| (work.consumer.wrapping_sub(remote.sent_to) as i32) >= 0)
}

impl QpRecord {
    /// Whether no packet has been sent to another process for the current entry.
    pub(in super::super) fn is_new(&mut self) -> bool {
        (self.runnable()).is_some_and(|(work, _)| work.remote.is_none() || is_new(work))
    }
}

/// An entry to be sent in packets.
struct Outgoing<'m> {
    /// Its segments before the data, with the size that it has in the packet.
    front: [u8; BASIC_BLOCK],
    offset: usize,
    data: SgeList<'m>,
    length: u64,
    form: Form,
    /// It is signalled.
    asks: bool,
}

/// How an entry's data travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The entry has no data.
    Empty,
    /// As inline data of the entry.
    InEntry,
    /// After the entry.
    InPacket,
    /// The location of the data travels in the entry, or after it if there are several pieces.
    Pulled { pieces: usize },
    /// In several packets, each of which contains the entry.
    InParts,
    /// The location travels in several packets, each of which contains the entry.
    PulledInParts,
    /// The entry has no outgoing data, only a result of this length.
    Result,
}

impl<'m> Outgoing<'m> {
    fn new(hca: &Hca, work: &SendWork, request: &Request<'m>, length: u64) -> Self {
        let (offset, data) = (request.data_offset(), request.data());
        let result = request.operation().has_result();
        let form = match length {
            _ if result => Form::Result,
            0 => Form::Empty,
            1..=IN_ENTRY => Form::InEntry,
            // One copy, from source to destination, instead of copies into and out of packets.
            _ if length > CARRIED && pulls(work) && is_shown(hca, work, data) => match length {
                0..=FETCHED_AT_ONCE => Form::Pulled {
                    pieces: data.flat_map(strings).count(),
                },
                _ => Form::PulledInParts,
            },
            _ if length <= IN_PACKET => Form::InPacket,
            _ => Form::InParts,
        };
        let mut front = [0; BASIC_BLOCK];
        let block = work.ring.block(work.consumer);
        // SAFETY: an entry starts with a whole block, which is posted and not completed.
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
            asks: request.is_signaled(),
        }
    }

    /// For a READ: requests only what follows the first `bytes` bytes.
    fn leave_out(&mut self, bytes: u64) {
        if let Some(at) = self.offset.checked_sub(SEGMENT)
            && let Some(addr) = self.front[at..].first_chunk_mut()
        {
            *addr = u64::from_be_bytes(*addr).wrapping_add(bytes).to_be_bytes();
            self.length = self.length.saturating_sub(bytes);
        }
    }

    /// Size of the packet, or of the packet with this part.
    fn bytes(&self, part: &Range<u64>) -> usize {
        let behind = match self.form {
            Form::InPacket => self.length as usize,
            Form::InParts => size_of::<[u64; 2]>() + (part.end - part.start) as usize,
            Form::PulledInParts => (1 + self.strings_of(part).count()) * size_of::<[u64; 2]>(),
            Form::Pulled { pieces: 1 } => 0,
            Form::Pulled { pieces } => pieces * size_of::<[u64; 2]>(),
            Form::Empty | Form::InEntry | Form::Result => 0,
        };
        self.offset + data_segment_bytes(self.form, self.length) + behind
    }

    fn fill(&self, room: &mut Room, part: &Range<u64>) {
        let put = |room: &mut Room, bytes: &[u8]| {
            // SAFETY: the bytes of a slice.
            unsafe { room.put(bytes.as_ptr(), bytes.len()) };
        };
        put(room, &self.front[..self.offset]);
        match self.form {
            Form::Empty => {}
            Form::InEntry => {
                put(room, &(self.length as u32 | INLINE_FLAG).to_be_bytes());
                self.put_data(room, part);
                const ZERO: [u8; SEGMENT] = [0; SEGMENT];
                let used = size_of::<Be32>() + self.length as usize;
                put(room, &ZERO[..used.next_multiple_of(SEGMENT) - used]);
            }
            Form::InPacket
            | Form::InParts
            | Form::Pulled { .. }
            | Form::PulledInParts
            | Form::Result => {
                // The responder fills in the address of its copy.
                put(room, &(self.length as u32).to_be_bytes());
                put(room, &[0; SEGMENT - size_of::<[Be32; 3]>()]);
                let location = match self.form {
                    Form::Pulled { pieces: 1 } => self.data.flat_map(strings).next(),
                    _ => None,
                };
                let addr = location.map_or(0, |(addr, _)| addr);
                put(room, &addr.to_be_bytes());
            }
        }
        match self.form {
            Form::InPacket => self.put_data(room, part),
            Form::InParts => {
                put(room, &part.start.to_ne_bytes());
                put(room, &self.length.to_ne_bytes());
                self.put_data(room, part);
            }
            Form::PulledInParts => {
                put(room, &part.start.to_ne_bytes());
                put(room, &self.length.to_ne_bytes());
                for (addr, length) in self.strings_of(part) {
                    put(room, &addr.to_ne_bytes());
                    put(room, &length.to_ne_bytes());
                }
            }
            Form::Pulled { pieces } if pieces != 1 => {
                for (addr, length) in self.data.flat_map(strings) {
                    put(room, &addr.to_ne_bytes());
                    put(room, &length.to_ne_bytes());
                }
            }
            Form::Empty | Form::InEntry | Form::Pulled { .. } | Form::Result => {}
        }
    }

    /// The addresses and lengths of a part of the data.
    fn strings_of(&self, part: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<'m> {
        let (mut skip, mut left) = (part.start, part.end - part.start);
        self.data
            .flat_map(strings)
            .filter_map(move |(addr, length)| {
                let passed = skip.min(length);
                let now = left.min(length - passed);
                (skip, left) = (skip - passed, left - now);
                (now != 0).then_some((addr + passed, now))
            })
    }

    /// Appends a part of the data.
    fn put_data(&self, room: &mut Room, part: &Range<u64>) {
        for (addr, length) in self.strings_of(part) {
            let from = std::ptr::with_exposed_provenance(addr as usize);
            // SAFETY: checked in this section, or within the entry.
            unsafe { room.put(from, length as usize) };
        }
    }

    #[inline(never)]
    fn send(&self, hca: &Hca, work: &mut SendWork, idle: bool) -> Result<Step, Stop> {
        let flags = match self.form {
            Form::InPacket => EAGER,
            Form::InParts => return self.send_parts(hca, work, idle, IN_PACKET, PART),
            Form::PulledInParts => {
                return self.send_parts(hca, work, idle, FETCHED_AT_ONCE, PART | PULLED);
            }
            Form::Pulled { .. } => PULLED,
            Form::Empty | Form::InEntry | Form::Result => 0,
        };
        let whole = 0..self.length;
        let bytes = self.bytes(&whole);
        let fill = |room: &mut Room| self.fill(room, &whole);
        let asks = self.asks;
        let step = post::<true>(
            hca,
            work,
            idle,
            asks,
            flags,
            |peer, incarnation, heading| {
                peer.writer.send(incarnation, heading.header(), bytes, fill)
            },
        );
        if let (Ok(Step::Sent), Some(remote)) = (&step, &mut work.remote) {
            remote.asks = self.form == Form::Result;
            remote.got = 0;
        }
        step
    }

    /// Sends the data, or its location, in parts of this size, starting where the room last ran out. The last
    /// part is the request.
    fn send_parts(
        &self,
        hca: &Hca,
        work: &mut SendWork,
        idle: bool,
        size: u64,
        flags: u8,
    ) -> Result<Step, Stop> {
        let mut at = work.remote.as_ref().map_or(0, |remote| remote.carried);
        let step = loop {
            let part = at..(at + size).min(self.length);
            let bytes = self.bytes(&part);
            let fill = |room: &mut Room| self.fill(room, &part);
            let send = |peer: &Peer, incarnation, heading: Heading<'_>| {
                peer.writer.send(incarnation, heading.header(), bytes, fill)
            };
            if part.end == self.length {
                break post::<true>(hca, work, idle, self.asks, flags, send);
            }
            match post::<false>(hca, work, idle, false, flags, send) {
                Ok(Step::Sent) => at = part.end,
                done => break done,
            }
        };
        if let (Some(node), Some(remote)) = (&hca.node, &mut work.remote) {
            let full = matches!(step, Err(Stop::Full));
            if full && at != remote.carried {
                hca.after_send(node.peer(remote.slot));
            }
            remote.carried = if full { at } else { 0 };
        }
        step
    }
}

/// What the header of a request's packet is made of.
#[derive(Clone, Copy)]
pub(super) struct Heading<'w> {
    remote: &'w Remote,
    own: &'static QpCtx,
    connection: &'w u64,
    /// The acknowledgement that the queue pair's responder owes.
    owed: u64,
    flags: u8,
}

impl Heading<'_> {
    #[inline(always)]
    pub fn header(self) -> Header {
        Header {
            kind: Kind::Request,
            dst: responder(*self.connection),
            msn: self.remote.msn,
            life: self.remote.life,
            taken: owed_ack(self.own, self.owed),
            flags: self.flags,
        }
    }
}

/// Sends a request's packet by `send`, or one of its parts if it is not `LAST`. `asks`: the request is
/// signalled.
#[inline(always)]
fn post<const LAST: bool>(
    hca: &Hca,
    work: &mut SendWork,
    idle: bool,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<Step, Stop> {
    let reliable = !matches!(work.transport, QpType::Uc);
    let flags = flags | (if reliable { 0 } else { UNRELIABLE }) | (if LAST { 0 } else { MORE });
    match post_packet::<LAST>(work, asks, flags, send) {
        Ok(peer) => {
            if LAST {
                hca.after_send(peer);
            }
            Ok(Step::Sent)
        }
        Err(Send::Full) => Err(Stop::Full),
        // An unreliable service drops what the peer does not accept.
        Err(Send::Gone) if !reliable && idle => Ok(Step::Done(0)),
        Err(Send::Gone) => Err(Stop::NoAnswer),
    }
}

/// Like [`post`]. The caller then calls [`Hca::after_send`] for the peer, if it was the last part.
#[inline(always)]
pub(super) fn post_packet<const LAST: bool>(
    work: &mut SendWork,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<&'static Peer, Send> {
    let remote = work.remote.as_mut().ok_or(Send::Gone)?;
    post_to::<LAST>(remote, work.own, &work.connection, asks, flags, send)
}

/// Like [`post_packet`], by the work's parts.
#[inline(always)]
pub(super) fn post_to<const LAST: bool>(
    remote: &mut Remote,
    own: &'static QpCtx,
    connection: &u64,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<&'static Peer, Send> {
    // Relaxed: the value is independent; a repeated acknowledgement does no harm.
    let owed = own.sender.owed.load(Ordering::Relaxed);
    let heading = Heading {
        remote,
        own,
        connection,
        owed,
        flags: flags | (if asks { ASKS } else { 0 }),
    };
    let peer = remote.door.peer();
    send(peer, remote.incarnation, heading)?;
    // The last part carries the same number, and repeats the acknowledgement.
    if LAST {
        remote.msn = remote.msn.wrapping_add(1);
        // Within the section: a thread that sees the response earlier waits until the section is left.
        // Release: pairs with the Acquire in `Hca::take_answer`; the entry comes before.
        (own.sender.sent).store(remote.msn.into(), Ordering::Release);
        remote.asks = false;
        // Relaxed: the value is independent; a repeated acknowledgement does no harm.
        own.sender.ack_sent.store(owed, Ordering::Relaxed);
    }
    Ok(peer)
}

/// The acknowledgement that the queue pair's responder owes, unless a packet has carried it, or the holder of
/// the lock has sent it. It may be sent twice, which does no harm.
#[inline(always)]
fn owed_ack(own: &QpCtx, owed: u64) -> Option<(u16, u16)> {
    // Relaxed: each value is independent.
    let ack_sent = own.sender.ack_sent.load(Ordering::Relaxed);
    (owed != ack_sent).then(|| taken_of(owed))
}

/// Size in bytes of the segments that name the data.
fn data_segment_bytes(form: Form, length: u64) -> usize {
    match form {
        Form::Empty => 0,
        Form::InEntry => (size_of::<Be32>() + length as usize).next_multiple_of(SEGMENT),
        Form::InPacket
        | Form::InParts
        | Form::Pulled { .. }
        | Form::PulledInParts
        | Form::Result => size_of::<DataSegment>(),
    }
}

/// Addresses and lengths of a piece of data.
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
