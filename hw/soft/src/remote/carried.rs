//! Messages that travel whole in one packet, written straight from the send entry.

use super::super::execute::SEND_DATA;
use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::EAGER;
use super::plain;
use super::post::{IN_ENTRY, post_packet};
use crate::fabric::{Front, IN_LINE, MOST_SHORT, Peer};
use bellwire_core::be::Be32;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::wqe::{
    BASIC_BLOCK, DataSegment, FirstBlock, INLINE_FLAG, SEGMENT, data_offset, fm_ce_se,
};
use bellwire_core::wr::QpType;

/// Offset of a WRITE's data.
pub(super) const WRITE_DATA: usize = data_offset(WrOpcode::RdmaWriteWithImm, QpType::Rc);

/// What is in front of the data and means something is in the packet's first line.
const _: () = assert!(SEND_DATA < WRITE_DATA && WRITE_DATA + size_of::<Be32>() <= IN_LINE);

/// Sends the current entry with its data in the packet, which are these pieces of `length` bytes in all, and passes it.
///
/// # Safety
/// Each piece is readable.
#[inline(always)]
pub(super) unsafe fn sent_pieces<const SEGMENTS: usize>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    length: usize,
    pieces: &[(*const u8, usize)],
) -> Option<&'static Peer> {
    let flags = block.fm_ce_se();
    let asks = flags & fm_ce_se::SIGNALED != 0;
    let says_more = flags & fm_ce_se::SOLICITED != 0 || block.opcode() != opcode::SEND;
    let short = if says_more || length > MOST_SHORT {
        0
    } else {
        length
    };
    let without_entry = (1..=plain::MOST_WITHOUT_ENTRY).contains(&short);
    // As in `Outgoing`, but for those without an entry: the other side reads any of them. The bytes in front of the data,
    // those of the entry and those of the packet, the word in front of the data, and the packet's flag.
    let (before, entry, packet, count, flag) = match length {
        len if without_entry => (plain::DATA, 0, plain::DATA + len, 0, 0),
        0 => (SEGMENTS, SEGMENTS, SEGMENTS, 0, 0),
        len if len as u64 <= IN_ENTRY => {
            let front = SEGMENTS + size_of::<u32>();
            // As `next_multiple_of` does it, which would test the remainder.
            let entry = (front + len + SEGMENT - 1) & !(SEGMENT - 1);
            (front, entry, entry, len as u32 | INLINE_FLAG, 0)
        }
        len => {
            let front = SEGMENTS + size_of::<DataSegment>();
            (front, front, front + len, len as u32, EAGER)
        }
    };
    let qpn_ds = work.qpn << 8 | (entry / SEGMENT) as u32;
    let sent = post_packet::<true>(
        hca,
        work,
        asks,
        flag,
        #[inline(always)]
        |to, incarnation, heading| {
            let first = |front: Front| {
                let header = heading.header_of(short as u8);
                if without_entry {
                    front.set_word(0, block.word());
                    return header;
                }
                let mut words = block.words::<{ WRITE_DATA / 8 }>();
                words[0] = with_second(words[0], qpn_ds);
                for (at, pair) in words[..SEGMENTS / 8].iter().enumerate() {
                    front.set(at, *pair);
                }
                if count != 0 {
                    // Of where the data was the receiver needs nothing.
                    front.set_word(SEGMENTS / 4, count.to_be());
                }
                header
            };
            // SAFETY: the caller guarantees that the pieces are readable.
            unsafe { to.send_data(incarnation, packet, first, before, pieces) }
        },
    );
    // Whatever the reason is, who sends it otherwise finds it.
    let peer = sent.ok()?;
    let bytes = block.ds() as usize * SEGMENT;
    let blocks = ((bytes + BASIC_BLOCK - 1) >> BASIC_BLOCK.ilog2()) as u32;
    work.consumer = work.consumer.wrapping_add(blocks);
    Some(peer)
}

/// A pair of words, with this big-endian one as the second.
#[inline(always)]
pub(super) fn with_second(pair: u64, word: u32) -> u64 {
    let mut bytes = pair.to_ne_bytes();
    bytes[4..].copy_from_slice(&word.to_be_bytes());
    u64::from_ne_bytes(bytes)
}
