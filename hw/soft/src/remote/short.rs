//! A short entry to another process that is rung alone: see [`short`](super::super::short).

use super::super::copy::copy_short;
use super::super::hca::Hca;
use super::super::one_sided::Transfer;
use super::super::qp::{SendWork, Sender};
use super::super::short::{Current, SEND_DATA, short_write};
use super::post::{is_new, post_to};
use super::{ASKS, Remote, direct, plain};
use crate::fabric::{Peer, Send};
use bellwire_core::access::AccessFlags;
use bellwire_core::op::opcode;
use bellwire_core::wqe::{FirstBlock, SEGMENT, fm_ce_se};
use std::sync::atomic::Ordering;

/// Size of a SEND that fits in the first line of a packet.
const SHORT: usize = SEND_DATA + SEGMENT;

impl Hca {
    /// Executes a WRITE to another process, if its memory is mapped here, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn write_there(&self, mut current: Current) {
        let (block, sender) = (current.block, &current.ctx.sender);
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        // Of a rewound queue pair nothing is known, so that the entry is new.
        // SAFETY: its way is that.
        if !(is_idle(sender, work) && unsafe { wrote::<true>(work, block) }) {
            return self.find_and_write(current);
        }
        executed_here(sender, work);
        self.finish(current, true);
    }

    /// Like [`write_there`](Self::write_there), of memory that has to be looked for. A function of its own, so that the
    /// other one saves few registers.
    #[inline(never)]
    fn find_and_write(&self, mut current: Current) {
        let (block, sender) = (current.block, &current.ctx.sender);
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        let goes = is_idle(sender, work) && is_new(work);
        // SAFETY: its way is that.
        if !(goes && unsafe { wrote::<false>(work, block) }) {
            return self.transfer_there(current);
        }
        executed_here(sender, work);
        self.finish(current, true);
    }

    /// Sends a SEND to another process, with immediate data if it is not `PLAIN`, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn send_there<const PLAIN: bool>(&self, mut current: Current) {
        let block = current.block;
        // SAFETY: used before the section is left, and its way is that.
        let sent = unsafe { sent::<PLAIN>(current.work(), block) };
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

/// Whether there are no outstanding requests.
#[inline(always)]
fn is_idle(sender: &Sender, work: &SendWork) -> bool {
    // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
    sender.acked.load(Ordering::Acquire) == work.consumer
}

/// Nothing of the current entry, which takes one block, is left to be acknowledged.
#[inline(always)]
fn executed_here(sender: &Sender, work: &SendWork) {
    // Relaxed: no other thread completes requests while none is outstanding.
    (sender.acked).store(work.consumer.wrapping_add(1), Ordering::Relaxed);
}

/// Executes a WRITE on a reliable connection with one piece of inline data in its first block, if the peer's memory is
/// accessible: see [`direct::reach`]. There are no outstanding requests. `false`: it is not such a WRITE, or cannot be
/// executed so; nothing has changed.
///
/// # Safety
/// The work's way is [`Way::There`](super::super::gate::Way::There).
#[inline(always)]
pub(super) unsafe fn wrote<const KNOWN: bool>(
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> bool {
    let Some((target, bytes)) = short_write(block) else {
        return false;
    };
    debug_assert!(work.remote.is_some());
    // SAFETY: the caller guarantees that there is one.
    let remote = unsafe { work.remote.as_mut().unwrap_unchecked() };
    let flags = AccessFlags::REMOTE_WRITE;
    direct::reach::<KNOWN>(
        remote,
        target,
        bytes.len() as u64,
        flags,
        #[inline(always)]
        |place| {
            // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left;
            // `short_write` returns no more data than that.
            unsafe { copy_short(bytes.as_ptr(), place, bytes.len()) };
        },
    )
}

/// Executes the transfer of the current entry, if there are no outstanding requests and the peer's memory is
/// accessible from here. `false`: nothing has changed.
#[inline(always)]
pub(in super::super) fn reach_there(work: &mut SendWork, transfer: &Transfer) -> bool {
    let sender = &work.own.sender;
    let idle = is_idle(sender, work);
    let (new, Some(remote)) = (is_new(work), &mut work.remote) else {
        return false;
    };
    let done =
        idle && new && (reach_by::<true>(remote, transfer) || reach_by::<false>(remote, transfer));
    if done {
        executed_here(sender, work);
    }
    done
}

#[inline(always)]
fn reach_by<const KNOWN: bool>(remote: &mut Remote, transfer: &Transfer) -> bool {
    direct::reach::<KNOWN>(
        remote,
        transfer.target,
        transfer.len as u64,
        transfer.access(),
        #[inline(always)]
        |place| {
            // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left; the
            // local memory was checked in this section.
            unsafe { transfer.copy(place) };
        },
    )
}

/// Sends the current entry, a SEND on a reliable connection, if it fits in the first line of a packet and says nothing but
/// its data, and, if it is not `PLAIN`, immediate data, and passes it. The caller then calls [`Hca::after_send`] for the
/// peer. `None`: it does not, or cannot be sent now; nothing has changed.
///
/// # Safety
/// The work's way is [`Way::There`](super::super::gate::Way::There).
#[inline(always)]
pub(super) unsafe fn sent<const PLAIN: bool>(
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> Option<&'static Peer> {
    let flags = block.fm_ce_se();
    let of_kind = if PLAIN {
        opcode::SEND
    } else {
        opcode::SEND_IMM
    };
    // Not solicited, and it waits for none before it.
    let is_such = block.opcode() == of_kind && flags & !fm_ce_se::SIGNALED == 0;
    let length = block.inline_in_segment(SEND_DATA)?;
    if !is_such || work.remote.as_ref().is_some_and(|remote| remote.asks) {
        return None;
    }
    // It asks for its response if it is signalled, and both are the same bit.
    const _: () = assert!(fm_ce_se::SIGNALED == ASKS);
    let Some(remote) = &mut work.remote else {
        // SAFETY: the caller guarantees that there is one.
        unsafe { std::hint::unreachable_unchecked() }
    };
    let sent = post_to::<true>(
        remote,
        work.own,
        &work.connection,
        false,
        flags,
        #[inline(always)]
        |peer, incarnation, heading| {
            let sent = peer.writer.send_line(
                incarnation,
                // Of a plain one with what fits in the segment behind the word, whatever its length is.
                if PLAIN { SEGMENT } else { SHORT },
                #[inline(always)]
                |front| {
                    if PLAIN {
                        front.set_word(0, block.word());
                        front.put(plain::DATA, block.behind_word(SEND_DATA));
                        return heading.header_of(length as u8);
                    }
                    for at in 0..SHORT / 8 {
                        front.set(at, block.words::<{ SHORT / 8 }>()[at]);
                    }
                    heading.header()
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
