//! Messages that travel whole in one packet, and whose data is one piece of up to 4 KiB. Each is a SEND with or without
//! immediate data, or a WRITE with immediate data, on a reliable connection. Of longer data in memory that the peer can map,
//! from 2 KiB on, the packet only says where it is: see [`pulled`](super::pulled). Of data in several pieces: see
//! [`gather`](super::gather).
//!
//! Any other request changes nothing here, and [`step`](super::requester) executes it.

use super::super::execute::{Current, SEND_DATA};
use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::carried::{WRITE_DATA, sent_pieces};
use super::gather::sent_gathered;
use super::post::{IN_PACKET, is_held};
use super::pulled::{CARRIED, sent_place};
use crate::fabric::Peer;
use bellwire_core::op::opcode;
use bellwire_core::wqe::{Data, FirstBlock, SEGMENT};

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
    /// Sends a message to another process, and leaves the section: 95 instructions less than [`run`](super::requester::run).
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
    unsafe { sent_pieces::<SEGMENTS>(hca, work, block, piece.len, &[(piece.from, piece.len)]) }
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
