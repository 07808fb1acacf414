//! A short entry to another process that is rung alone: see [`short`](super::super::short).

use super::super::hca::Hca;
use super::super::one_sided::Transfer;
use super::super::qp::SendWork;
use super::super::short::{Current, SEND_DATA, short_write};
use super::direct;
use super::requester::{is_held, is_new, post_packet};
use crate::fabric::{Peer, Send};
use bellwire_core::be::Be32;
use bellwire_core::wqe::{FirstBlock, SEGMENT, fm_ce_se};
use std::sync::atomic::Ordering;

/// Size of a SEND that fits in the first line of a packet, and most bytes of its data.
const SHORT: usize = SEND_DATA + SEGMENT;
const MOST: usize = SEGMENT - size_of::<Be32>();

impl Hca {
    /// Executes a WRITE to another process, if its memory is mapped here, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn write_there(&self, mut current: Current) {
        let (block, acked) = (current.block, &current.ctx.sender.acked);
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
        let idle = acked.load(Ordering::Acquire) == work.consumer;
        if !(idle && wrote(work, block)) {
            return self.transfer_there(current);
        }
        // Relaxed: no other thread completes requests while none is outstanding.
        acked.store(work.consumer.wrapping_add(1), Ordering::Relaxed);
        self.finish(current, true);
    }

    /// Sends a SEND to another process, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn send_there(&self, mut current: Current) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let sent = sent(self, unsafe { current.work() }, block);
        let Some(peer) = sent else {
            return self.send_eagerly_there(current);
        };
        current.ctx.sender.section.leave();
        // Last, so that this function calls nothing on its way.
        if self.wakes_after_send(peer) {
            self.wake_after_send(peer);
        }
    }
}

/// Executes a WRITE on a reliable connection with one piece of inline data in its first block, if the memory is
/// mapped here. There are no outstanding requests. `false`: it is not such a WRITE, or cannot be executed here;
/// nothing has changed.
#[inline(always)]
pub(super) fn wrote(work: &SendWork, block: FirstBlock<'static>) -> bool {
    let (Some(remote), Some((target, bytes))) = (&work.remote, short_write(block)) else {
        return false;
    };
    // SAFETY: `short_write` returns no more data than that.
    is_new(work) && unsafe { direct::write_inline(remote, target, bytes) }
}

/// Executes the transfer of the current entry, if there are no outstanding requests and the peer's memory is
/// accessible from here. `false`: nothing has changed.
#[inline(always)]
pub(in super::super) fn reach_there(work: &SendWork, transfer: &Transfer) -> bool {
    let acked = &work.own.sender.acked;
    // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
    let idle = acked.load(Ordering::Acquire) == work.consumer;
    let done = idle
        && is_new(work)
        && work.remote.as_ref().is_some_and(|remote| {
            // SAFETY: the local memory was checked in this section.
            unsafe { direct::transfer(remote, transfer) }
        });
    if done {
        // Relaxed: no other thread completes requests while none is outstanding.
        acked.store(work.consumer.wrapping_add(1), Ordering::Relaxed);
    }
    done
}

/// Sends the current entry, a SEND on a reliable connection with or without immediate data, if it fits in the first
/// line of a packet, and passes it. The caller then calls [`Hca::after_send`] for the peer. `None`: it does not, or cannot be sent now; nothing
/// has changed.
#[inline(always)]
pub(super) fn sent(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> Option<&'static Peer> {
    let flags = block.fm_ce_se();
    let is_short = |bytes: &[u8]| bytes.len() <= MOST;
    if is_held(work, flags) || !block.inline(SEND_DATA).is_some_and(is_short) {
        return None;
    }
    let asks = flags & fm_ce_se::SIGNALED != 0;
    let sent = post_packet::<true>(
        hca,
        work,
        asks,
        0,
        #[inline(always)]
        |peer, incarnation, heading| {
            let sent = peer.writer.send_line(
                incarnation,
                SHORT,
                #[inline(always)]
                || {
                    let [a, b, c, d] = block.words();
                    (heading.header(), [a, b, c, d, 0])
                },
            );
            // Whatever the reason is, who sends it otherwise finds it.
            if sent { Ok(()) } else { Err(Send::Full) }
        },
    );
    let peer = sent.ok()?;
    work.consumer = work.consumer.wrapping_add(1);
    Some(peer)
}
