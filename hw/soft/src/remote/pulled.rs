//! Messages whose data is in memory of the sender's that this process has mapped. The packet is the entry, whose segments
//! say where the data is. The receiver copies the data once, from there to the receive, or to where the WRITE says,
//! without the device's lock.
//!
//! The receiver's queue pair remembers from which pieces of memory the last messages came. If the data is in another piece, or
//! the memory is no longer mapped, the message is received under the lock, which may map it: see `data`.

use super::super::hca::Hca;
use super::super::receive::Arrived;
use super::entry::{high, low, operation, segments};
use super::packet::{MOST, Piece};
use super::unlocked::Delivered;
use super::{ASKS, FETCHED_AT_ONCE, PULLED};
use crate::fabric::{Besides, InPlace, Peer};
use arrayvec::ArrayVec;
use bellwire_core::be::Be32;
use bellwire_core::wqe::{SEGMENT, fm_ce_se};

impl Hca {
    /// Receives the message of the next packet, and passes it.
    #[inline(never)]
    pub(super) fn receive_pulled(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        copied: &mut u64,
    ) -> Option<Delivered<'_>> {
        let entry = line.wide(0);
        let (kind, target) = operation(line, entry)?;
        let segments = segments(target);
        let end = (low(entry) & 0x3f) as usize * SEGMENT;
        // Without the flag of a packet that says where its data is, far too long.
        let bytes = (line.size()).len_if(PULLED, Besides::ack_and(ASKS).and_short());
        if bytes != end || end.wrapping_sub(segments) > MOST * SEGMENT {
            return None;
        }
        self.receive_by(
            peer,
            line,
            #[inline(always)]
            |ctx, work, requester| {
                // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn.
                let sources = unsafe { &*ctx.inbound.sources.get() };
                // Mapped until this section is left: a thread that unmaps it waits for that.
                let (mut data, mut length) = (ArrayVec::<Piece, MOST>::new(), 0);
                let mut at = segments;
                while at < end {
                    let bytes = high(line.wide_in(at));
                    let addr = u64::from_be(line.wide_in(at + 8));
                    data.push((sources.place(addr, bytes.into())?, bytes as usize));
                    length += u64::from(bytes);
                    at += SEGMENT;
                }
                if !(1..=FETCHED_AT_ONCE).contains(&length) {
                    return None;
                }
                *copied += length;
                let flags = line.wide(8);
                let arrived = Arrived {
                    kind,
                    imm: Be32::from_raw((flags >> 32) as u32),
                    solicited: high(flags) as u8 & fm_ce_se::SOLICITED != 0,
                    length: length as usize,
                    data: &data,
                    target,
                };
                // If the requester is still in that life, the memory belonged to the request during the whole copy.
                work.deliver(self, &ctx.rights, &arrived, || requester.speaks(peer), None)
            },
        )
    }
}
