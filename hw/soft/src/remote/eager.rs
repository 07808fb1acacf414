//! Messages that travel whole in one packet. Each is a SEND with or without immediate data, or a WRITE with immediate data,
//! on a reliable connection. Its data is inline, or in some elements.
//!
//! Any other request changes nothing here, and [`step`](super::requester) executes it.

use super::super::execute::{Current, SEND_DATA};
use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::packet::{Carriage, Form, MOST, Piece, may_map, piece_of, place_of, pulls};
use super::post::{is_held, post_packet};
use crate::fabric::{IN_LINE, MOST_SHORT, Peer};
use arrayvec::ArrayVec;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::wqe::{
    BASIC_BLOCK, Data, DataSegment, FirstBlock, SEGMENT, data_offset, fm_ce_se,
};
use bellwire_core::wr::{QpType, Sge};

/// Offset of a WRITE's data.
const WRITE_DATA: usize = data_offset(WrOpcode::RdmaWriteWithImm, QpType::Rc);

/// What is in front of the data and means something is in the packet's first line.
const _: () = assert!(SEND_DATA < WRITE_DATA && WRITE_DATA + size_of::<u32>() <= IN_LINE);

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
    let message = Eager::<SEGMENTS> {
        block,
        asks: flags & fm_ce_se::SIGNALED != 0,
        plain: block.opcode() == opcode::SEND && flags & fm_ce_se::SOLICITED == 0,
    };
    let blocks = work.ring.contiguous(work.consumer).min(posted);
    // SAFETY: posted, up to the ring's end.
    match unsafe { block.piece(SEGMENTS, blocks) } {
        Some(Data::Pointer(sge)) => message.send(hca, work, &[sge], &[piece_of(&sge)]),
        Some(Data::Inline(bytes, _)) => {
            message.send(hca, work, &[], &[(bytes.as_ptr(), bytes.len())])
        }
        None => message.send_list(hca, work, blocks),
    }
}

/// A message whose entry may be sent now, and has so many bytes in front of its data: 28 instructions less than as a value.
#[derive(Clone, Copy)]
struct Eager<const SEGMENTS: usize> {
    block: FirstBlock<'static>,
    /// It is signalled.
    asks: bool,
    /// It is a SEND of which its length says all.
    plain: bool,
}

impl<const SEGMENTS: usize> Eager<SEGMENTS> {
    /// Sends a message of several elements, or of none.
    #[inline(never)]
    fn send_list(self, hca: &Hca, work: &mut SendWork, blocks: u32) -> Option<&'static Peer> {
        let mut elements = ArrayVec::<Sge, MOST>::new();
        // SAFETY: posted, up to the ring's end.
        for element in unsafe { self.block.elements(SEGMENTS, blocks) }? {
            elements.try_push(element).ok()?;
        }
        let pieces: ArrayVec<Piece, MOST> = elements.iter().map(piece_of).collect();
        self.send(hca, work, &elements, &pieces)
    }

    /// Sends the data in these elements, or inline data. The pieces are the same.
    #[inline(always)]
    fn send(
        self,
        hca: &Hca,
        work: &mut SendWork,
        elements: &[Sge],
        pieces: &[Piece],
    ) -> Option<&'static Peer> {
        let plain = self.plain;
        let length = pieces.iter().map(|piece| piece.1).sum::<usize>();
        let carriage = Carriage::of(length as u64, plain, || {
            !elements.is_empty()
                && pulls(work)
                && elements.iter().all(|sge| may_map(hca, work, sge))
        });
        if length as u64 > carriage.most() {
            return None;
        }
        let places: ArrayVec<DataSegment, MOST>;
        let sent = if carriage == Carriage::Place {
            places = pieces.iter().copied().map(place_of).collect();
            let bytes = size_of_val(&places[..]);
            self.post(
                hca,
                work,
                Form::new(carriage, SEGMENTS, bytes),
                &[(places.as_ptr().cast(), bytes)],
            )
        } else {
            let read = &mut work.local[1];
            let covers = |sge: &Sge| {
                hca.mrs
                    .covers_local(read, sge.lkey, sge.addr, sge.length.into())
            };
            if !elements.iter().all(covers) {
                return None;
            }
            let mut form = Form::new(carriage, SEGMENTS, length);
            if plain && length <= MOST_SHORT {
                form.short = length as u8;
            }
            self.post(hca, work, form, pieces)
        };
        // On any failure the caller tries it otherwise, and reports the error.
        let peer = sent?;
        let bytes = self.block.ds() as usize * SEGMENT;
        let blocks = ((bytes + BASIC_BLOCK - 1) >> BASIC_BLOCK.ilog2()) as u32;
        work.consumer = work.consumer.wrapping_add(blocks);
        Some(peer)
    }

    #[inline(always)]
    fn post(
        self,
        hca: &Hca,
        work: &mut SendWork,
        form: Form,
        pieces: &[Piece],
    ) -> Option<&'static Peer> {
        // SAFETY: the segments, or data that was checked in this section.
        let sent = unsafe {
            post_packet(
                hca,
                work,
                self.asks,
                true,
                &form,
                &self.block.words(),
                pieces,
            )
        };
        sent.ok()
    }
}
