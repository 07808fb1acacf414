//! A short entry to another process that is rung alone: see [`short`](super::super::short).

use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::super::short::{Current, SEND_DATA, short_write};
use super::direct;
use super::requester::{is_new, post};
use bellwire_core::op::opcode;
use bellwire_core::wqe::{FirstBlock, SEGMENT, fm_ce_se};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Size of a SEND that fits in the first line of a packet, with up to 12 bytes of data.
const SHORT: usize = SEND_DATA + SEGMENT;

impl Hca {
    /// Executes a WRITE to another process, if its memory is mapped here, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn write_there(&self, mut current: Current) {
        let (block, acked) = (current.block, &current.ctx.sender.acked);
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
        let idle = acked.load(Ordering::Acquire) == work.consumer;
        let written = idle && wrote(work, block);
        if written {
            // Relaxed: no other thread completes requests while none is outstanding.
            acked.store(work.consumer.wrapping_add(1), Ordering::Relaxed);
        }
        self.finish(current, written);
    }

    /// Sends a SEND to another process, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn send_there(&self, mut current: Current) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let sent = sent(self, unsafe { current.work() }, block);
        match sent {
            true => current.ctx.sender.section.leave(),
            false => self.execute_any(current.ctx),
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
    is_new(work) && direct::write_inline(remote, target, bytes)
}

/// Sends the current entry if it is a SEND on a reliable connection that fits in the first line of a packet, and
/// passes it. `false`: it is not, or cannot be sent now; nothing has changed.
#[inline(always)]
pub(super) fn sent(hca: &Hca, work: &mut SendWork, block: FirstBlock<'static>) -> bool {
    // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
    let idle = work.own.sender.acked.load(Ordering::Acquire) == work.consumer;
    let flags = block.fm_ce_se();
    let held = flags & fm_ce_se::FENCE == fm_ce_se::FENCE
        || work.remote.as_ref().is_some_and(|remote| remote.asks);
    let is_short = block.opcode() == opcode::SEND
        && work.transport == QpType::Rc
        && (block.inline(SEND_DATA)).is_some_and(|bytes| bytes.len() <= SHORT - SEND_DATA - 4)
        && (idle || !held);
    if !is_short {
        return false;
    }
    let [a, b, c, d] = block.words();
    let asks = flags & fm_ce_se::SIGNALED != 0;
    let sent = post::<true>(
        hca,
        work,
        idle,
        asks,
        0,
        #[inline(always)]
        |peer, incarnation, header| {
            (peer.writer).send_line(incarnation, header, SHORT, [a, b, c, d, 0])
        },
    );
    if sent.is_ok() {
        work.consumer = work.consumer.wrapping_add(1);
    }
    sent.is_ok()
}
