//! Messages that travel whole in one packet, and whose data is one piece (of several: see [`gather`](super::gather)): a SEND with or without immediate data, or a
//! WRITE with immediate data, on a reliable connection, of up to 4 KiB. Of longer data in memory that the peer can map,
//! from 2 KiB on, the packet only says where it is: see [`pulled`](super::pulled).
//!
//! The packet is written straight from the send entry. What is otherwise changes nothing here, and
//! [`step`](super::requester) executes it.

use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::super::short::{Current, SEND_DATA};
use super::EAGER;
use super::gather::sent_gathered;
use super::post::{IN_ENTRY, IN_PACKET, is_held, post_packet};
use super::pulled::{CARRIED, sent_place};
use crate::fabric::{Front, IN_LINE, Peer, Send};
use bellwire_core::be::Be32;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::wqe::{
    BASIC_BLOCK, Data, DataSegment, FirstBlock, INLINE_FLAG, SEGMENT, data_offset, fm_ce_se,
};
use bellwire_core::wr::QpType;

/// Offset of a WRITE's data.
const WRITE_DATA: usize = data_offset(WrOpcode::RdmaWriteWithImm, QpType::Rc);

/// What is in front of the data and means something is in the packet's first line.
const _: () = assert!(SEND_DATA < WRITE_DATA && WRITE_DATA + size_of::<Be32>() <= IN_LINE);

/// The data of an entry, all of which is readable.
struct Piece {
    from: *const u8,
    len: usize,
}

impl Piece {
    const NONE: Self = Self {
        from: std::ptr::dangling(),
        len: 0,
    };
}

impl Hca {
    /// Sends a message to another process, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn send_eagerly_there(&self, mut current: Current) {
        let block = current.block;
        // One block was posted, or `execute` would not have come here.
        // SAFETY: used before the section is left.
        let sent = sent_eagerly(self, unsafe { current.work() }, block, 1);
        let Some(peer) = sent else {
            return self.execute_any(current.ctx);
        };
        current.ctx.sender.section.leave();
        self.after_send(peer);
    }
}

/// Sends the current entry, if it is such a message and fits in the `posted` blocks, and passes it. The caller then calls
/// [`Hca::after_send`] for the peer. `None`: it is otherwise, or cannot be sent now; nothing has changed.
#[inline(always)]
pub(super) fn sent_eagerly(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    posted: u32,
) -> Option<&'static Peer> {
    match block.opcode() {
        opcode::SEND | opcode::SEND_IMM => sent_behind::<SEND_DATA>(hca, work, block, posted),
        opcode::RDMA_WRITE_IMM => sent_behind::<WRITE_DATA>(hca, work, block, posted),
        _ => None,
    }
}

/// Like [`sent_eagerly`], for an entry whose data is behind this many bytes.
#[inline(never)]
fn sent_behind<const SEGMENTS: usize>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    posted: u32,
) -> Option<&'static Peer> {
    let flags = block.fm_ce_se();
    if is_held(work, flags) {
        return None;
    }
    let ds = block.ds() as usize * SEGMENT;
    let piece = if ds == SEGMENTS {
        Piece::NONE
    } else {
        let blocks = work.ring.contiguous(work.consumer).min(posted);
        // SAFETY: posted, up to the ring's end.
        let Some(data) = (unsafe { block.piece(SEGMENTS, blocks) }) else {
            return sent_gathered::<SEGMENTS>(hca, work, block, blocks);
        };
        if let Data::Pointer(sge) = data
            && u64::from(sge.length) > CARRIED
        {
            let sent = sent_place::<SEGMENTS>(hca, work, block, sge);
            if sent.is_some() || u64::from(sge.length) > IN_PACKET {
                return sent;
            }
        }
        readable(hca, work, data)?
    };
    // SAFETY: it is readable.
    unsafe { sent_pieces::<SEGMENTS>(work, block, piece.len, &[(piece.from, piece.len)]) }
}

/// Sends the current entry with its data in the packet, which are these pieces of `length` bytes in all, and passes it.
///
/// # Safety
/// Each piece is readable.
#[inline(always)]
pub(super) unsafe fn sent_pieces<const SEGMENTS: usize>(
    work: &mut SendWork,
    block: FirstBlock<'static>,
    length: usize,
    pieces: &[(*const u8, usize)],
) -> Option<&'static Peer> {
    // As in `Outgoing`: the other side reads any of them. The bytes in front of the data, those of the entry and those
    // of the packet.
    let (front, entry, packet, count) = match length {
        0 => (SEGMENTS, SEGMENTS, SEGMENTS, 0),
        len if len as u64 <= IN_ENTRY => {
            let front = SEGMENTS + size_of::<u32>();
            // As `next_multiple_of` does it, which would test the remainder.
            let entry = (front + len + SEGMENT - 1) & !(SEGMENT - 1);
            (front, entry, entry, len as u32 | INLINE_FLAG)
        }
        len => {
            let front = SEGMENTS + size_of::<DataSegment>();
            (front, front, front + len, len as u32)
        }
    };
    let qpn_ds = work.qpn << 8 | (entry / SEGMENT) as u32;
    let asks = block.fm_ce_se() & fm_ce_se::SIGNALED != 0;
    let sent = post_packet::<true>(
        work,
        asks,
        if packet == entry { 0 } else { EAGER },
        #[inline(always)]
        |peer, incarnation, heading| {
            let first = |to: Front| {
                let mut words = block.words::<{ WRITE_DATA / 8 }>();
                words[0] = with_second(words[0], qpn_ds);
                for (at, pair) in words[..SEGMENTS / 8].iter().enumerate() {
                    to.set(at, *pair);
                }
                if count != 0 {
                    // Of where the data was the receiver needs nothing.
                    to.set_word(SEGMENTS / 4, count.to_be());
                }
                heading.header()
            };
            // SAFETY: the caller guarantees that the pieces are readable.
            let sent = unsafe {
                (peer.writer).send_data::<true>(incarnation, packet, first, front, pieces)
            };
            // Whatever the reason is, who sends it otherwise finds it.
            if sent { Ok(()) } else { Err(Send::Full) }
        },
    );
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

/// Where the data is, if it may be read.
#[inline(always)]
fn readable(hca: &Hca, work: &mut SendWork, data: Data<'static>) -> Option<Piece> {
    let (from, length) = match data {
        Data::Inline(bytes, _) => (bytes.as_ptr(), bytes.len() as u64),
        Data::Pointer(sge) => {
            let length = u64::from(sge.length);
            let [_, read] = &mut work.local;
            if !hca.mrs.covers_local(read, sge.lkey, sge.addr, length) {
                return None;
            }
            (std::ptr::with_exposed_provenance(sge.addr as usize), length)
        }
    };
    // No entry has more than a packet inline.
    Some(Piece {
        from,
        len: length as usize,
    })
}
