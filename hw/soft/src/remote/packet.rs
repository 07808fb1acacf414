//! The packet of a request: what it has of the entry, and the data or where that is.
//!
//! ```text
//!  Line     the entry's first word │ data
//!  Entry    segments │ byte count │ data
//!  Packet   segments │ data segment │ data
//!  Place    segments │ the data's own segments
//!  in parts: like Packet or Place, with the part's offset and the total length behind the entry
//! ```

use super::super::hca::Hca;
use super::super::mr::{Reach, SHOWN};
use super::super::qp::SendWork;
use super::plain::{DATA, MOST_WITHOUT_ENTRY};
use super::post::Heading;
use super::{EAGER, FETCHED_AT_ONCE, PART, PULLED};
use crate::fabric::{Front, IN_LINE, Send, Sending};
use arrayvec::ArrayVec;
use bellwire_core::be::{Be32, Be64};
use bellwire_core::wqe::{BASIC_BLOCK, Data, DataSegment, INLINE_FLAG, SEGMENT};
use bellwire_core::wr::{QpType, Sge};
use std::iter::repeat;

/// Longest data that travels as inline data of the entry, after its other segments.
const IN_ENTRY: u64 = 768;

/// Longest data that travels in one packet. Longer data is fetched by the responder, if it has the memory
/// mapped, or travels in several packets.
pub(super) const IN_PACKET: u64 = 4096;

/// Longest data that travels in a packet although the peer may copy it from this process's memory. For a packet both
/// sides copy: at the same time if messages follow each other, one after the other if each waits for the one before.
///
/// Measured of messages that are written anew and read each, carried and by place, the best of 16 turns each between two
/// processors that share no cache: one way 512 B 1,018 and 867 ns, 1 KiB 1,144 and 1,081, 2 KiB 1,292 and 1,287, 4 KiB
/// 1,656 and 1,177; each of as many as the queue holds 537 and 459, 470 and 547, 524 and 630, 632 and 660. Of 8 turns
/// in which the processors shared a cache, as the times say: one way 530 and 432, 671 and 546, 869 and 775, 1,270 and
/// 1,068; each of many 84 and 134, 139 and 196, 243 and 267, 401 and 403. A source that does not change stays in the
/// peer's cache: without a shared one 4 KiB take 1,541 and 813 one way, each of many 559 and 425.
const CARRIED: u64 = 2048;

/// How the data of a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carriage {
    /// There is none.
    Nothing,
    /// In the packet's first line, without the entry.
    Line,
    /// As inline data of the entry.
    Entry,
    /// After the entry.
    Packet,
    /// In the requester's memory: the entry's segments say where.
    Place,
    /// The request has no data, but a result of this length.
    Result,
}

impl Carriage {
    /// Of so much data. `plain`: it is that of a SEND of which its length says all. `is_shown`: the peer may map all of it.
    #[inline(always)]
    pub fn of(length: u64, plain: bool, is_shown: impl FnOnce() -> bool) -> Self {
        match length {
            0 => Self::Nothing,
            _ if plain && length <= MOST_WITHOUT_ENTRY as u64 => Self::Line,
            1..=IN_ENTRY => Self::Entry,
            // One copy, from source to destination, instead of copies into and out of packets.
            _ if length > CARRIED && is_shown() => Self::Place,
            _ => Self::Packet,
        }
    }

    /// Most data in one packet. More travels in parts.
    #[inline(always)]
    pub fn most(self) -> u64 {
        match self {
            Self::Packet => IN_PACKET,
            Self::Place => FETCHED_AT_ONCE,
            Self::Nothing | Self::Line | Self::Entry | Self::Result => u64::MAX,
        }
    }
}

/// Whether the peer may copy data from this process's memory. If it does not have the memory mapped, it responds with
/// that, and the request is sent again, which needs a reliable service.
#[inline(always)]
pub(super) fn pulls(work: &SendWork) -> bool {
    work.transport != QpType::Uc && work.remote.as_ref().is_some_and(|remote| !remote.carries)
}

/// Whether the peer may map the memory of this element.
#[inline(always)]
pub(super) fn may_map(hca: &Hca, work: &SendWork, sge: &Sge) -> bool {
    hca.mrs.covers(&Reach {
        key: sge.lkey,
        pd: work.pd,
        qpn: 0,
        addr: sge.addr,
        length: u64::from(sge.length),
        access: SHOWN,
    })
}

/// Most elements of a message that is sent and received without the device's lock.
pub(super) const MOST: usize = 8;

/// Bytes that a packet carries.
pub(super) type Piece = (*const u8, usize);
pub(super) const NOWHERE: Piece = (std::ptr::null(), 0);

/// The most pieces of one packet. An entry has at most 61 data segments, one of which may wrap round the end of its ring.
pub(super) type Pieces = ArrayVec<Piece, PIECES>;
pub(super) const PIECES: usize = 72;

/// The pieces of memory of this data.
pub(super) fn pieces_of(data: Data<'_>) -> impl Iterator<Item = Piece> {
    let both = match data {
        Data::Pointer(sge) => [piece_of(&sge), NOWHERE],
        Data::Inline(head, tail) => [head, tail].map(|bytes| (bytes.as_ptr(), bytes.len())),
    };
    both.into_iter().filter(|(_, length)| *length != 0)
}

#[inline(always)]
pub(super) fn piece_of(sge: &Sge) -> Piece {
    let from = std::ptr::with_exposed_provenance(sge.addr as usize);
    (from, sge.length as usize)
}

/// The segment that says where a piece is. Of a key the peer needs nothing.
#[inline(always)]
pub(super) fn place_of((from, length): Piece) -> DataSegment {
    DataSegment {
        byte_count: Be32::new(length as u32),
        lkey: Be32::new(0),
        addr: Be64::new(from.expose_provenance() as u64),
    }
}

/// Bytes of the longest segments in front of data, which are in the first block, and of a data segment.
const LONGEST: usize = BASIC_BLOCK + SEGMENT;

/// What is in a packet besides the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Bytes of the entry in front of its data.
    segments: usize,
    /// Bytes of the entry in the packet. Zero: the packet has only its first word.
    entry: usize,
    /// Bytes in front of the data, and in all.
    before: usize,
    len: usize,
    /// The word behind the segments, if the data is not there.
    count: u32,
    pub flags: u8,
    /// See [`Header::short`](crate::fabric::Header::short).
    pub short: u8,
}

/// The first line has as many words of an entry as [`Form::send`] writes.
const _: () = assert!(IN_LINE == 5 * size_of::<u64>());

impl Form {
    /// Of an entry with these bytes in front of its data. `length` is that of the data, or of the segments that say where
    /// it is.
    #[inline(always)]
    pub fn new(carriage: Carriage, segments: usize, length: usize) -> Self {
        let one = segments + size_of::<DataSegment>();
        let (before, entry, len, count, flags) = match carriage {
            Carriage::Nothing => (segments, segments, segments, 0, 0),
            Carriage::Line => (DATA, 0, DATA + length, 0, 0),
            Carriage::Entry => {
                let front = segments + size_of::<Be32>();
                // As `next_multiple_of` does it, which would test the remainder.
                let entry = (front + length + SEGMENT - 1) & !(SEGMENT - 1);
                (front, entry, entry, length as u32 | INLINE_FLAG, 0)
            }
            Carriage::Packet => (one, one, one + length, length as u32, EAGER),
            Carriage::Place => (segments, segments + length, segments + length, 0, PULLED),
            Carriage::Result => (one, one, one, length as u32, 0),
        };
        Self {
            segments,
            entry,
            before,
            len,
            count,
            flags,
            short: 0,
        }
    }

    /// Of a part of data of this length. The data is behind [`size_of`] two words, which say which part.
    pub fn in_part(self, total: u64) -> Self {
        Self {
            len: self.len + size_of::<[u64; 2]>(),
            count: total as u32,
            flags: self.flags & !EAGER | PART,
            ..self
        }
    }

    /// What is in front of the data, and not in the first line, as long entries have it. It is the first piece from here on.
    pub fn take_rest(&mut self, front: &[u64; BASIC_BLOCK / 8]) -> ArrayVec<u8, LONGEST> {
        let before = self.before;
        self.before = before.min(IN_LINE);
        let segments = front.iter().flat_map(|pair| pair.to_ne_bytes());
        let segment = self.count.to_be_bytes().into_iter().chain(repeat(0));
        (segments.take(self.segments).chain(segment))
            .take(before)
            .skip(IN_LINE)
            .collect()
    }

    /// Sends the packet, of an entry that begins with this block.
    ///
    /// # Safety
    /// Each piece is readable.
    #[inline(always)]
    pub unsafe fn send(
        &self,
        to: Sending<'_>,
        incarnation: u64,
        heading: Heading<'_>,
        front: &[u64; BASIC_BLOCK / 8],
        pieces: &[Piece],
    ) -> Result<(), Send> {
        // SAFETY: the caller guarantees that the pieces are readable.
        unsafe {
            to.send(
                incarnation,
                self.len,
                #[inline(always)]
                |line: Front| {
                    let header = heading.header_of(self.short);
                    if self.entry == 0 {
                        let [a, b, c, d, ..] = front[0].to_ne_bytes();
                        line.set_word(0, u32::from_ne_bytes([a, b, c, d]));
                        return header;
                    }
                    line.set(0, with_size(front[0], self.entry));
                    line.set(1, front[1]);
                    if self.segments > SEGMENT {
                        line.set(2, front[2]);
                        line.set(3, front[3]);
                    }
                    // The last of this line, of which nothing is behind it.
                    if self.segments > 2 * SEGMENT {
                        line.set(4, front[4]);
                    }
                    if self.segments < self.before {
                        line.set_word(self.segments / 4, self.count.to_be());
                    }
                    header
                },
                self.before,
                pieces,
            )
        }
    }
}

/// The first words of an entry, which has this size in bytes in its packet.
#[inline(always)]
fn with_size(pair: u64, bytes: usize) -> u64 {
    let mut pair = pair.to_ne_bytes();
    pair[7] = (bytes / SEGMENT) as u8;
    u64::from_ne_bytes(pair)
}
