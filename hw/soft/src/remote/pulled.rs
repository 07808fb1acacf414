//! Messages whose data is in memory of the sender's that its peer has mapped. The packet is the entry. Its last
//! segment says where the data is if it is one piece. The places of several pieces are behind the entry. The receiver copies the data
//! once, from there to the receive, or to where the WRITE says, without the device's lock.
//!
//! The receiver's queue pair remembers from which pieces of memory the last messages came. If the data is in another piece, or
//! the memory is no longer mapped, the message is received under the lock, which may map it: see `data`.

use super::super::hca::Hca;
use super::super::mr::{Reach, SHOWN};
use super::super::qp::SendWork;
use super::super::receive::Arrived;
use super::entry::{high, joined, low, operation, segments};
use super::post::post_packet;
use super::unlocked::Delivered;
use super::views::Sources;
use super::{ASKS, FETCHED_AT_ONCE, PULLED};
use crate::fabric::{Besides, Front, IN_LINE, InPlace, Peer};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::wqe::{Data, FirstBlock, SEGMENT, SgeList, fm_ce_se};
use bellwire_core::wr::{QpType, Remote, Sge};

/// Longest data that travels in a packet although the peer may copy it from this process's memory. For a packet both
/// sides copy: at the same time if messages follow each other, one after the other if each waits for the one before.
///
/// Measured of messages that are written anew and read each, carried and pulled, the best of 16 turns each between two
/// processors that share no cache: one way 512 B 1,018 and 867 ns, 1 KiB 1,144 and 1,081, 2 KiB 1,292 and 1,287, 4 KiB
/// 1,656 and 1,177; each of as many as the queue holds 537 and 459, 470 and 547, 524 and 630, 632 and 660. Of 8 turns
/// in which the processors shared a cache, as the times say: one way 530 and 432, 671 and 546, 869 and 775, 1,270 and
/// 1,068; each of many 84 and 134, 139 and 196, 243 and 267, 401 and 403. A source that does not change stays in the
/// peer's cache: without a shared one 4 KiB take 1,541 and 813 one way, each of many 559 and 425.
pub(super) const CARRIED: u64 = 2048;

/// Whether the peer may copy data from this process's memory. If it does not have the memory mapped, it responds with
/// that, and the request is sent again, which needs a reliable service.
#[inline(always)]
pub(super) fn pulls(work: &SendWork) -> bool {
    work.transport != QpType::Uc && work.remote.as_ref().is_some_and(|remote| !remote.carries)
}

/// Whether the peer may map all of the data's memory.
pub(super) fn is_shown(hca: &Hca, work: &SendWork, mut data: SgeList<'_>) -> bool {
    data.all(|piece| match piece {
        Data::Inline(..) => false,
        Data::Pointer(sge) => may_map(hca, work, &sge),
    })
}

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

/// Sends the place of the current entry's data, if the peer may map it and copies it at once. The data is this element,
/// behind `SEGMENTS` bytes. As [`sent_eagerly`](super::eager::sent_eagerly), which has found that the entry may be sent.
#[inline(never)]
pub(super) fn sent_place<const SEGMENTS: usize>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    sge: Sge,
) -> Option<&'static Peer> {
    if u64::from(sge.length) > FETCHED_AT_ONCE || !pulls(work) || !may_map(hca, work, &sge) {
        return None;
    }
    let whole = SEGMENTS + SEGMENT;
    let mut words = block.words::<6>();
    // Of the key the peer needs nothing.
    words[SEGMENTS / 8] &= u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    words[whole / 8..].fill(0);
    let asks = block.fm_ce_se() & fm_ce_se::SIGNALED != 0;
    let sent = post_packet::<true>(
        hca,
        work,
        asks,
        PULLED,
        #[inline(always)]
        |to, incarnation, heading| {
            let [first @ .., behind] = &words;
            let first = |front: Front| {
                (first.iter().enumerate()).for_each(|(at, pair)| front.set(at, *pair));
                heading.header()
            };
            let rest = (
                std::ptr::from_ref(behind).cast(),
                whole.saturating_sub(IN_LINE),
            );
            // SAFETY: the word, or nothing of it.
            unsafe { to.send_data(incarnation, whole, first, IN_LINE, &[rest]) }
        },
    );
    // Whatever the reason is, who sends it otherwise finds it.
    let peer = sent.ok()?;
    work.consumer = work.consumer.wrapping_add(1);
    Some(peer)
}

/// Most pieces of a message. Those of more are sent by [`step`](super::requester), and received under the device's lock.
pub(super) const MOST: usize = 8;

/// Bytes of a piece's address and length in a packet.
const PIECE: usize = size_of::<[u64; 2]>();

/// A message whose data is in the sender's memory.
struct PulledMessage<'p> {
    /// The packet's first line.
    line: InPlace<'p>,
    kind: CqeOpcode,
    target: Option<Remote>,
    /// Bytes of data.
    length: u32,
}

impl Hca {
    /// Receives the message of the next packet, and passes it.
    #[inline(never)]
    pub(super) fn receive_pulled(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        copied: &mut u64,
    ) -> Option<Delivered<'_>> {
        let (size, entry) = (line.size(), line.wide(0));
        let (kind, target) = operation(line, entry)?;
        let segments = segments(target);
        // One segment.
        let whole = segments + SEGMENT;
        let ds = (low(entry) & 0x3f) as usize;
        let length = high(line.wide(segments));
        // Without the flag of a packet that says where its data is, far too long.
        let bytes = size.len_if(PULLED, Besides::ack_and(ASKS).and_short());
        if ds * SEGMENT != whole || !(1..=FETCHED_AT_ONCE).contains(&length.into()) {
            return None;
        }
        let message = PulledMessage {
            line,
            kind,
            target,
            length,
        };
        let delivered = if bytes == whole {
            let addr = u64::from_be(match segments + 8 {
                at if at < IN_LINE => line.wide(at),
                at => line.wide_behind(at),
            });
            self.receive_from(peer, &message, |sources| {
                let place = sources.place(addr, length.into())?;
                Some([(place, length as usize)])
            })
        } else {
            self.receive_gathered(peer, &message, whole, bytes)
        }?;
        *copied += u64::from(length);
        Some(delivered)
    }

    /// Receives a message of several pieces, whose addresses and lengths are in the packet's bytes from `front` up to
    /// `end`.
    #[inline(never)]
    fn receive_gathered(
        &self,
        peer: &Peer,
        message: &PulledMessage<'_>,
        front: usize,
        end: usize,
    ) -> Option<Delivered<'_>> {
        let bytes = end.wrapping_sub(front);
        if bytes > MOST * PIECE || !bytes.is_multiple_of(PIECE) {
            return None;
        }
        let list = peer.reader.place(front, bytes)?;
        // SAFETY: the reader has found it readable.
        let list = unsafe { joined::<{ MOST * PIECE }>(list) };
        let word = |at: usize| {
            list[at..]
                .first_chunk()
                .map_or(0, |it| u64::from_ne_bytes(*it))
        };
        let list = (0..bytes).step_by(PIECE).map(|at| (word(at), word(at + 8)));
        self.receive_from(peer, message, |sources| {
            let mut pieces = [(std::ptr::dangling(), 0); MOST];
            let mut left = u64::from(message.length);
            for ((addr, length), piece) in list.zip(&mut pieces) {
                // None is empty: what is behind an empty one is not looked at.
                left = left.checked_sub(length).filter(|_| length != 0)?;
                *piece = (sources.place(addr, length)?, length as usize);
            }
            (left == 0).then_some(pieces)
        })
    }

    /// Receives a message whose data is in these pieces, if they are mapped.
    #[inline(always)]
    fn receive_from<const PIECES: usize>(
        &self,
        peer: &Peer,
        message: &PulledMessage<'_>,
        pieces: impl FnOnce(&Sources) -> Option<[(*const u8, usize); PIECES]>,
    ) -> Option<Delivered<'_>> {
        let &PulledMessage {
            line,
            kind,
            target,
            length,
        } = message;
        self.receive_by(
            peer,
            line,
            #[inline(always)]
            |ctx, work, requester| {
                // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn.
                let sources = unsafe { &*ctx.inbound.sources.get() };
                let data = pieces(sources)?;
                let flags = line.wide(8);
                let arrived = Arrived {
                    kind,
                    imm: Be32::from_raw((flags >> 32) as u32),
                    solicited: high(flags) as u8 & fm_ce_se::SOLICITED != 0,
                    length: length as usize,
                    // Mapped until this section is left: who unmaps it waits for that.
                    data,
                    target,
                };
                // If the requester is still in that life, the memory belonged to the request during the whole copy.
                work.deliver(self, &ctx.rights, &arrived, || requester.speaks(peer), None)
            },
        )
    }
}
