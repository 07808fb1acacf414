//! What the entry in a request's packet says of a message: read without the device's lock, from memory that the peer may
//! change meanwhile.

use super::super::receive::Arrived;
use super::packet::{IN_PACKET, Piece};
use super::plain::{DATA, without_entry};
use super::{ASKS, EAGER};
use crate::fabric::{Besides, IN_LINE, InPlace, Peer};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT, fm_ce_se, opcode};
use bellwire_core::wr::Remote;
use std::ops::RangeInclusive;

/// Bytes of a packet, of which the peer may change each part until it is copied. Behind them are zeroes.
///
/// # Safety
/// Both parts are readable.
pub(super) unsafe fn joined<const BYTES: usize>(parts: [(*const u8, usize); 2]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut at = 0;
    for (from, len) in parts {
        let len = len.min(BYTES - at);
        // SAFETY: the caller guarantees that it is readable; within the array.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(at), len) };
        at += len;
    }
    bytes
}

/// The second of two big-endian words.
#[inline(always)]
pub(super) fn low(pair: u64) -> u32 {
    u64::from_be(pair) as u32
}

/// The first of two big-endian words.
#[inline(always)]
pub(super) fn high(pair: u64) -> u32 {
    (u64::from_be(pair) >> 32) as u32
}

/// Offset of a SEND's inline data in its packet's payload.
pub(super) const INLINE: usize = SEGMENT + size_of::<Be32>();

/// The opcode of the receive's completion, and where the data of a WRITE goes. `None`: it is neither a SEND nor a WRITE
/// with immediate data.
#[inline(always)]
pub(super) fn operation(line: InPlace<'_>, entry: u64) -> Option<(CqeOpcode, Option<Remote>)> {
    let (kind, target) = match high(entry) as u8 {
        opcode::SEND => (const { CqeOpcode::of_receive(WrOpcode::Send) }, None),
        opcode::SEND_IMM => (const { CqeOpcode::of_receive(WrOpcode::SendWithImm) }, None),
        opcode::RDMA_WRITE_IMM => {
            let [addr, key] = [line.wide(SEGMENT), line.wide(SEGMENT + 8)];
            let target = Remote {
                addr: u64::from_be(addr),
                rkey: high(key),
            };
            (
                const { CqeOpcode::of_receive(WrOpcode::RdmaWriteWithImm) },
                Some(target),
            )
        }
        _ => return None,
    };
    Some((kind?, target))
}

/// Bytes in front of what names the data.
#[inline(always)]
pub(super) fn segments(target: Option<Remote>) -> usize {
    match target {
        Some(_) => 2 * SEGMENT,
        None => SEGMENT,
    }
}

/// Whether a packet carries a plain SEND: its payload has a length in this range, and no flags but [`ASKS`].
#[inline(always)]
fn plain(line: InPlace<'_>, lengths: RangeInclusive<usize>) -> bool {
    lengths.contains(&line.size().len_if(0, Besides::ack_and(ASKS).and_short()))
}

/// The message of a SEND or a WRITE with immediate data, whose packet begins with this line, and carries the data. The
/// places of the data are put in `data`. `None`: it is another packet.
///
/// The header says all of a plain SEND. A peer that says anything else changes only its own message.
#[inline(always)]
pub(super) fn decode<'d>(
    peer: &Peer,
    line: InPlace<'_>,
    data: &'d mut [Piece; 2],
) -> Option<Arrived<'d>> {
    let size = line.size();
    let short = size.short();
    if let Some(length) = without_entry(size) {
        data[0] = (line.bytes(DATA), length);
        return plain(line, DATA + length..=IN_LINE).then(|| Arrived::plain(length, &data[..1]));
    }
    if short != 0 {
        *data = peer.reader.place(INLINE, short)?;
        return plain(line, INLINE + short..=INLINE + short + SEGMENT)
            .then(|| Arrived::plain(short, data));
    }
    let entry = line.wide(0);
    let (kind, target) = operation(line, entry)?;
    let segments = segments(target);
    let whole = (low(entry) & 0x3f) as usize * SEGMENT;
    let flags = size.flags() & !ASKS;
    let (at, len, length) = if whole == segments && flags == 0 {
        (whole, whole, 0)
    } else {
        let count = high(line.wide(segments));
        let length = (count & !INLINE_FLAG) as usize;
        let inline = segments + size_of::<Be32>();
        match flags {
            // Inline data, padded to whole segments.
            0 if count & INLINE_FLAG != 0
                && (inline + length + SEGMENT - 1) & !(SEGMENT - 1) == whole =>
            {
                (inline, whole, length)
            }
            // The data follows the entry.
            EAGER if whole == segments + SEGMENT && u64::from(count) <= IN_PACKET => {
                (whole, whole + length, length)
            }
            _ => return None,
        }
    };
    if size.len() != len {
        return None;
    }
    let flags = line.wide(8);
    *data = peer.reader.place(at, length)?;
    Some(Arrived {
        kind,
        imm: Be32::from_raw((flags >> 32) as u32),
        solicited: high(flags) as u8 & fm_ce_se::SOLICITED != 0,
        length,
        data,
        target,
    })
}
