//! Messages whose data is gathered from several elements, as a header and a page are. Up to 2 KiB the data is in the
//! packet, as if it had been one piece. Longer data the peer copies, if it can map all of it. The packet is the entry with
//! one segment, which says how long the data is. Behind it are the address and the length of each piece.

use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::carried::{sent_pieces, with_second};
use super::post::{IN_PACKET, post_packet};
use super::pulled::{CARRIED, MOST, may_map, pulls};
use super::{FETCHED_AT_ONCE, PULLED};
use crate::fabric::{Front, Peer};
use arrayvec::ArrayVec;
use bellwire_core::wqe::{BASIC_BLOCK, FirstBlock, SEGMENT, fm_ce_se};
use bellwire_core::wr::Sge;

/// Sends the current entry, whose data is in elements behind `SEGMENTS` bytes, if it fits in `blocks` blocks that lie one
/// behind the other. As [`sent_eagerly`](super::eager::sent_eagerly), which has found that the entry may be sent.
#[inline(never)]
pub(super) fn sent_gathered<const SEGMENTS: usize>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    blocks: u32,
) -> Option<&'static Peer> {
    // SAFETY: posted, up to the ring's end.
    let elements = unsafe { block.elements(SEGMENTS, blocks) }?;
    let mut list = ArrayVec::<Sge, MOST>::new();
    let mut length = 0;
    for element in elements {
        length += u64::from(element.length);
        list.try_push(element).ok()?;
    }
    if length > CARRIED && pulls(work) && list.iter().all(|sge| may_map(hca, work, sge)) {
        return match length {
            ..=FETCHED_AT_ONCE => sent_places::<SEGMENTS>(hca, work, block, &list, length as u32),
            _ => None,
        };
    }
    if length > IN_PACKET {
        return None;
    }
    let mut pieces = ArrayVec::<_, MOST>::new();
    for sge in &list {
        let (addr, length) = (sge.addr, u64::from(sge.length));
        if !hca
            .mrs
            .covers_local(&mut work.local[1], sge.lkey, addr, length)
        {
            return None;
        }
        pieces.push((
            std::ptr::with_exposed_provenance(addr as usize),
            length as usize,
        ));
    }
    // SAFETY: checked in this section.
    unsafe { sent_pieces::<SEGMENTS>(hca, work, block, length as usize, &pieces) }
}

/// Sends where the data of the current entry is: in these elements, of `length` bytes in all.
#[inline(always)]
fn sent_places<const SEGMENTS: usize>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    list: &[Sge],
    length: u32,
) -> Option<&'static Peer> {
    let entry = SEGMENTS + SEGMENT;
    let qpn_ds = work.qpn << 8 | (entry / SEGMENT) as u32;
    // The address of the entry's one segment, which says nothing, and the pieces.
    let mut words = ArrayVec::<u64, { 1 + 2 * MOST }>::new();
    words.push(0);
    for sge in list {
        words.extend([sge.addr, sge.length.into()]);
    }
    let (bytes, asks) = (
        size_of_val(&words[..]),
        block.fm_ce_se() & fm_ce_se::SIGNALED != 0,
    );
    let sent = post_packet::<true>(
        hca,
        work,
        asks,
        PULLED,
        #[inline(always)]
        |to, incarnation, heading| {
            let first = |front: Front| {
                let mut first = block.words::<{ BASIC_BLOCK / 8 }>();
                first[0] = with_second(first[0], qpn_ds);
                for (at, pair) in first[..SEGMENTS / 8].iter().enumerate() {
                    front.set(at, *pair);
                }
                front.set_word(SEGMENTS / 4, length.to_be());
                front.set_word(SEGMENTS / 4 + 1, 0);
                heading.header()
            };
            let (at, rest) = (entry - size_of::<u64>(), (words.as_ptr().cast(), bytes));
            // SAFETY: the words.
            unsafe { to.send_data(incarnation, at + bytes, first, at, &[rest]) }
        },
    );
    // Whatever the reason is, who sends it otherwise finds it.
    let peer = sent.ok()?;
    let blocks = (block.ds() as usize * SEGMENT).div_ceil(BASIC_BLOCK);
    work.consumer = work.consumer.wrapping_add(blocks as u32);
    Some(peer)
}
