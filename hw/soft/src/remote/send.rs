//! A short entry to another process that is rung alone: see [`execute`](super::super::execute).

use super::super::copy::copy_short;
use super::super::execute::{Current, SEND_DATA, short_write};
use super::super::hca::Hca;
use super::super::one_sided::Transfer;
use super::super::qp::{QpCtx, SendWork, Sender};
use super::super::turn::Thread;
use super::post::{Heading, is_new};
use super::{ASKS, Remote, direct, plain};
use crate::fabric::{Front, Peer, Send, Sending};
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::port::LastEntry;
use bellwire_core::wqe::{FirstBlock, SEGMENT, fm_ce_se};
use std::sync::atomic::{Ordering, compiler_fence};

/// Size of a SEND that fits in the first line of a packet.
const SHORT: usize = SEND_DATA + SEGMENT;

impl Hca {
    /// Executes a WRITE to another process, if its memory is mapped here, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn write_there(&self, mut current: Current, last: LastEntry) {
        let (block, sender) = (current.block, &current.ctx.sender);
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        // A rewound queue pair has no grant, so that the entry is new.
        // SAFETY: its way is that.
        if !(is_idle(sender, work) && unsafe { wrote::<true>(work, block, last) }) {
            return self.transfer_there(current);
        }
        executed_here(sender, work);
        self.finish(current, Some(0));
    }

    /// Sends a SEND of this kind to another process, or of another one that has the same opcode, and leaves the section.
    #[inline(never)]
    pub(in super::super) fn send_there<const KIND: u8>(
        &self,
        mut current: Current,
        last: LastEntry,
    ) {
        let (ctx, block) = (current.ctx, current.block);
        // SAFETY: used before the section is left, and its way is that.
        let send = unsafe { ShortSend::<KIND>::of(current.work(), ctx, block, last) };
        let Some(send) = send else {
            return match KIND {
                PLAIN => self.send_there::<LONGER>(current, last),
                _ => self.send_eagerly_there(current),
            };
        };
        let peer = send.peer();
        // `run` takes the turn, which the thread keeps if it sends often.
        let Some(to) = peer.writer.held(Thread::current()) else {
            return self.execute_any(ctx);
        };
        // Whatever the reason is, who sends it otherwise finds it.
        if send.through(to).is_err() {
            return self.execute_any(ctx);
        }
        // Orders the packet before the loads, as `light` does: this thread could not hold the turn to send to a peer for which
        // that is a fence.
        compiler_fence(Ordering::SeqCst);
        ctx.sender.section.leave();
        // Last, so that this function calls nothing on its way.
        if self.wakes(peer) {
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
pub(super) unsafe fn wrote<const GRANTED: bool>(
    work: &mut SendWork,
    block: FirstBlock<'static>,
    last: LastEntry,
) -> bool {
    let Some((target, bytes)) = short_write(block, last) else {
        return false;
    };
    debug_assert!(work.remote.is_some());
    // SAFETY: the caller guarantees that there is one.
    let remote = unsafe { work.remote.as_mut().unwrap_unchecked() };
    let flags = AccessFlags::REMOTE_WRITE;
    direct::reach::<GRANTED>(
        remote,
        target,
        bytes.len() as u64,
        flags,
        #[inline(always)]
        |place| {
            // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left;
            // `short_write` returns no more data than that.
            unsafe { copy_short(bytes.as_ptr(), place, bytes.len()) }
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
fn reach_by<const GRANTED: bool>(remote: &mut Remote, transfer: &Transfer) -> bool {
    direct::reach::<GRANTED>(
        remote,
        transfer.target,
        transfer.len as u64,
        transfer.access(),
        #[inline(always)]
        |place| {
            // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left; the
            // local memory was checked in this section.
            unsafe { transfer.copy(place) }
        },
    )
}

/// Kinds of SENDs that fit in the first line of a packet: plain ones, whose data is in the first segment behind their entry's
/// first; plain ones that may be longer; and with immediate data.
pub(in super::super) const PLAIN: u8 = 0;
pub(super) const LONGER: u8 = 1;
pub(in super::super) const WITH_IMM: u8 = 2;

/// The current entry of a queue pair, a SEND on a reliable connection, of this kind. It waits for none before it.
pub(super) struct ShortSend<'w, const KIND: u8> {
    work: &'w mut SendWork,
    own: &'static QpCtx,
    block: FirstBlock<'static>,
    length: usize,
}

impl<'w, const KIND: u8> ShortSend<'w, KIND> {
    /// Most bytes of data.
    const MOST: usize = match KIND {
        LONGER => plain::MOST_WITHOUT_ENTRY,
        _ => SEGMENT - size_of::<Be32>(),
    };

    /// `None`: it is another one, with the same opcode.
    ///
    /// # Safety
    /// The work's way is [`Way::There`](super::super::gate::Way::There).
    #[inline(always)]
    pub unsafe fn of(
        work: &'w mut SendWork,
        own: &'static QpCtx,
        block: FirstBlock<'static>,
        last: LastEntry,
    ) -> Option<Self> {
        let length = usize::from(last.inline());
        if length.wrapping_sub(1) >= Self::MOST {
            return None;
        }
        debug_assert!(work.remote.is_some());
        let send = Self {
            work,
            own,
            block,
            length,
        };
        // Not solicited, and it waits for none before it.
        let other_flags = block.fm_ce_se() & !fm_ce_se::SIGNALED;
        (other_flags == 0 && !send.remote().asks).then_some(send)
    }

    #[inline(always)]
    fn remote(&self) -> &Remote {
        // SAFETY: the caller of `of` guarantees that there is one.
        unsafe { self.work.remote.as_ref().unwrap_unchecked() }
    }

    /// The peer's node.
    #[inline(always)]
    pub fn peer(&self) -> &'static Peer {
        self.remote().handle.peer()
    }

    /// Sends it, and passes the entry. `Err`: it cannot be sent now; nothing has changed.
    #[inline(always)]
    pub fn through(self, to: Sending<'_>) -> Result<(), Send> {
        // What is behind the data in its entry's last segment is sent, too.
        const ONE: usize = SEGMENT - size_of::<Be32>();
        const TWO: usize = ONE + SEGMENT;
        match KIND {
            PLAIN => self.send_plain::<ONE>(to),
            LONGER if self.length <= ONE => self.send_plain::<ONE>(to),
            LONGER if self.length <= TWO => self.send_plain::<TWO>(to),
            LONGER => self.send_plain::<{ plain::MOST_WITHOUT_ENTRY }>(to),
            _ => self.send(to, SHORT, |block, front| {
                for (at, pair) in block.words::<{ SHORT / 8 }>().into_iter().enumerate() {
                    front.set(at, pair);
                }
            }),
        }
    }

    #[inline(always)]
    fn send_plain<const BYTES: usize>(self, to: Sending<'_>) -> Result<(), Send> {
        self.send(to, plain::DATA + BYTES, |block, front| {
            front.set_word(0, block.word());
            front.put(plain::DATA, block.behind_word::<BYTES>(SEND_DATA));
        })
    }

    /// Sends a packet of this length, whose payload `fill` writes.
    #[inline(always)]
    fn send(
        self,
        to: Sending<'_>,
        len: usize,
        fill: impl FnOnce(FirstBlock<'static>, Front),
    ) -> Result<(), Send> {
        // It asks for its response if it is signalled, and both are the same bit.
        const _: () = assert!(fm_ce_se::SIGNALED == ASKS);
        let (own, block) = (self.own, self.block);
        to.send_line(
            self.remote().incarnation,
            len,
            #[inline(always)]
            |front| {
                fill(block, front);
                let heading = Heading::of(self.remote(), own, block.fm_ce_se());
                heading.header_of(if KIND == WITH_IMM {
                    0
                } else {
                    self.length as u8
                })
            },
        )?;
        own.sender.pass_number();
        self.work.consumer = self.work.consumer.wrapping_add(1);
        Ok(())
    }
}
