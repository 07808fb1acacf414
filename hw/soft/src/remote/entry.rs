//! What the entry in a request's packet says of a message: read without the device's lock, from memory that the peer may
//! change meanwhile.

use super::super::receive::Arrived;
use super::inline::is_send;
use super::plain::{DATA, without_entry};
use super::post::IN_PACKET;
use super::{ASKS, EAGER};
use crate::fabric::{Besides, IN_LINE, InPlace, Peer, Size};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT, fm_ce_se, opcode};
use bellwire_core::wr::Remote;

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

/// The message of a plain SEND without its entry: see [`plain`](super::plain). `None`: it is longer than its packet.
fn arrived_without_entry(
    peer: &Peer,
    line: InPlace<'_>,
    size: Size,
    length: usize,
) -> Option<Arrived> {
    let packet = size.len_if(0, Besides::ack_and(ASKS).and_short());
    if !(DATA + length..=IN_LINE).contains(&packet) || !is_send(line) {
        return None;
    }
    Some(Arrived {
        kind: CqeOpcode::RespSend,
        imm: Be32::new(0),
        solicited: false,
        length,
        data: peer.reader.place(DATA, length)?,
        target: None,
    })
}

/// The message of a SEND or a WRITE with immediate data, whose data is in the packet, as one piece. `entry` is the
/// beginning of the payload. `None`: it is another request.
#[inline(always)]
pub(super) fn arrived(peer: &Peer, line: InPlace<'_>, entry: u64, size: Size) -> Option<Arrived> {
    if let Some(length) = without_entry(size) {
        return arrived_without_entry(peer, line, size, length);
    }
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
                && inline.saturating_add(length).next_multiple_of(SEGMENT) == whole =>
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
    Some(Arrived {
        kind,
        imm: Be32::from_raw((flags >> 32) as u32),
        solicited: high(flags) as u8 & fm_ce_se::SOLICITED != 0,
        length,
        data: peer.reader.place(at, length)?,
        target,
    })
}
