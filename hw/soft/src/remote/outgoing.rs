//! An entry as packets, whatever its operation and its data: in which form the data travels, and the bytes of each packet.

use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::super::run::Stop;
use super::post::{Heading, IN_ENTRY, IN_PACKET, Step, post};
use super::pulled::{CARRIED, is_shown, pulls};
use super::{EAGER, FETCHED_AT_ONCE, PART, PULLED};
use crate::fabric::{Room, Sending};
use bellwire_core::be::Be32;
use bellwire_core::wqe::{
    BASIC_BLOCK, CtrlSegment, Data, DataSegment, INLINE_FLAG, Request, SEGMENT, SgeList,
};
use std::ops::Range;

/// An entry to be sent in packets.
pub(super) struct Outgoing<'m> {
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
    pub fn new(hca: &Hca, work: &SendWork, request: &Request<'m>, length: u64) -> Self {
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
    pub fn leave_out(&mut self, bytes: u64) {
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
    pub fn send(&self, hca: &Hca, work: &mut SendWork, idle: bool) -> Result<Step, Stop> {
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
        let step = post::<true>(hca, work, idle, asks, flags, |to, incarnation, heading| {
            to.send(incarnation, || heading.header(), bytes, fill)
        });
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
            let send = |to: Sending<'_>, incarnation, heading: Heading<'_>| {
                to.send(incarnation, || heading.header(), bytes, fill)
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
