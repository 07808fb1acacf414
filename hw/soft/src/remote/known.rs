//! A short SEND to a connection of which everything that has to be checked was checked at an earlier message, and is still
//! true: see [`Checked`](super::accepted::Checked). It is handed to the poll that finds it. Few instructions, most of which
//! are those of any message: is it the next one of its connection, is there a receive, has that room?
//!
//! Whatever is otherwise changes nothing here, and [`unlocked`](super::unlocked) looks at the packet.

use super::super::copy::copy_short;
use super::super::hca::Hca;
use super::super::polled::{Looking, PolledQueue};
use super::super::qp::QpCtx;
use super::super::receive::{InlineMessage, OwnQueue, Receives, RecvWork};
use super::super::turn::Thread;
use super::ASKS;
use super::plain::{DATA, MOST_WITHOUT_ENTRY, without_entry};
use crate::fabric::{InPlace, Peer};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::queue::Received;
use std::hint::black_box;

/// The length of the data of a SEND's packet that has no entry, if its requester does not wait for the response and it carries
/// no acknowledgement.
#[inline(always)]
pub(super) fn without_entry_alone(line: InPlace<'_>) -> Option<usize> {
    let length = line.size().short_alone() as usize;
    (length.wrapping_sub(1) < MOST_WITHOUT_ENTRY).then_some(length)
}

/// The same, if its requester may wait for the response, and its packet may carry an acknowledgement.
#[inline(always)]
pub(super) fn without_entry_and_more(line: InPlace<'_>) -> Option<usize> {
    let size = line.size();
    without_entry(size).filter(|_| size.flags() & !ASKS == 0)
}

/// A message that may be received: nothing has changed yet.
struct KnownMessage<'m> {
    ctx: &'m QpCtx,
    queue: &'m mut OwnQueue,
    /// Where the data goes.
    place: *mut u8,
}

impl Hca {
    /// Receives the message of the next packet, which begins with this line and has no entry, and hands it to the poll; or
    /// reads packets in the other way. `ALONE`: its requester does not wait for the response, and its packet carries no
    /// acknowledgement.
    #[inline(always)]
    pub(super) fn receive_known<'q, const ALONE: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        length: usize,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        let Some(message) = self.known::<ALONE>(peer, line, length, &looking) else {
            return self.receive_known_shared::<ALONE>(peer, looking);
        };
        let KnownMessage {
            ctx,
            queue: own,
            place,
        } = message;
        // SAFETY: the bytes of a packet, which is there until it is released, and no more than it can have; the place was
        // checked in this section.
        if unsafe { copy_short(line.bytes(DATA), place, length) }.is_err() {
            return self.receive_known_shared::<ALONE>(peer, looking);
        }
        let received = || Received::new(&own.completed(0), length as u32);
        // SAFETY: the receive is executed, and there is no entry of an older one.
        unsafe { looking.hand_over(received) };
        own.pass(true);
        self.pass_known::<ALONE>(peer, ctx, line, looking)
    }

    /// Passes a message that was handed to the poll.
    #[inline(always)]
    fn pass_known<'q, const ALONE: bool>(
        &self,
        peer: &Peer,
        ctx: &QpCtx,
        line: InPlace<'_>,
        looking: Looking<'q>,
    ) -> Option<&'q Received> {
        let accepted = &ctx.receiver.accepted;
        accepted.expected.pass();
        // Before the packet is released.
        let asks = !ALONE && line.size().has(ASKS);
        let next = line.done_alone();
        peer.reader.publish_at(next);
        if asks {
            return self.owe_asked_here(peer, ctx, looking, next);
        }
        // SAFETY: this thread reads the peer's packets.
        if !unsafe { *accepted.listed.get() } {
            // Last, so that this function calls nothing on its way.
            return self.owe_here(peer, ctx, looking);
        }
        Some(looking.leave().last())
    }

    /// Like [`receive_known`](Self::receive_known), into a shared receive queue.
    #[inline(never)]
    fn receive_known_shared<'q, const ALONE: bool>(
        &self,
        peer: &Peer,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        let received = peer.reader.next_line().and_then(|line| {
            let length = match ALONE {
                true => without_entry_alone(line),
                false => without_entry_and_more(line),
            }?;
            let ctx = self.known_connection::<ALONE, true>(peer, line)?;
            // SAFETY: the queue pair accepts only this peer, whose packets this thread reads, so it owns the receive side.
            let work = unsafe { &mut *ctx.receiver.work.get() };
            if !work.as_ref()?.hands_shared_to(&looking) {
                return None;
            }
            let message = InlineMessage {
                kind: CqeOpcode::RespSend,
                length,
                data: line.bytes(DATA),
            };
            let (polled, none) = (Some(&mut *looking), || (Be32::new(0), false));
            // SAFETY: the bytes of a packet, which is there until it is released, and no more than it can have.
            unsafe { RecvWork::receive_inline_shared(work, self, &message, polled, none) }
                .then_some((ctx, line))
        });
        match received {
            Some((ctx, line)) => self.pass_known::<ALONE>(peer, ctx, line, looking),
            None => self.read_peer(peer, looking),
        }
    }

    /// Whether the message of the next packet may be received so, by this thread in the section of its poll.
    #[inline(always)]
    fn known<'m, const ALONE: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        length: usize,
        polled: &PolledQueue,
    ) -> Option<KnownMessage<'m>> {
        let ctx: &'m QpCtx = self.known_connection::<ALONE, false>(peer, line)?;
        // SAFETY: the queue pair accepts only this peer, whose packets this thread reads, so it owns the receive side,
        // which has a queue of its own: it was checked.
        let queue = unsafe {
            match &mut (*ctx.receiver.work.get())
                .as_mut()
                .unwrap_unchecked()
                .source
            {
                Receives::Own(queue) => queue,
                Receives::Shared(_) | Receives::Xrc { .. } => std::hint::unreachable_unchecked(),
            }
        };
        let place = queue.known_room(length)?;
        (queue.cq.hands_to(polled)).then_some(KnownMessage { ctx, queue, place })
    }

    /// The queue pair of the next packet, if this is the next message of a known connection that receives into a queue of its
    /// own or, with `SHARED`, into a shared one. What its packet acknowledges is completed.
    #[inline(always)]
    fn known_connection<'m, const ALONE: bool, const SHARED: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
    ) -> Option<&'m QpCtx> {
        if !peer.reading.turn().is_held_by(Thread::current()) {
            return None;
        }
        let name = line.whole_name();
        // SAFETY: used within this section.
        let ctx: &'m QpCtx = unsafe { self.qps.find(line.place_of_dst()) }?;
        let accepted = &ctx.receiver.accepted;
        let generation = self.taken_away.now();
        let is_known = accepted.checked.is::<SHARED, _>(peer, name, generation)
            && accepted.expected.is_open_for(line.number())
            && accepted.checked.speaks();
        if !is_known {
            return None;
        }
        if !ALONE
            && let Some(taken) = line.taken()
            && !self.acknowledge_unlocked(peer, name.dst(), ctx, taken)
        {
            return None;
        }
        Some(ctx)
    }

    /// Notes, in the section of the poll, that a queue pair owes an acknowledgement for what was received.
    #[cold]
    #[inline(never)]
    fn owe_here<'q>(&self, peer: &Peer, ctx: &QpCtx, looking: Looking<'q>) -> Option<&'q Received> {
        // SAFETY: this thread has the turn.
        let owing = unsafe { peer.reading.owing() };
        self.owe_ack_known(peer, owing, ctx);
        // The compiler would pass what is returned, and then more had to be done behind the call.
        Some(black_box(looking.leave()).last())
    }

    /// Likewise, for what was received in front of this packet. Its requester waits.
    #[inline(never)]
    fn owe_asked_here<'q>(
        &self,
        peer: &Peer,
        ctx: &QpCtx,
        mut looking: Looking<'q>,
        next: u32,
    ) -> Option<&'q Received> {
        // SAFETY: this thread has the turn.
        let owing = unsafe { peer.reading.owing() };
        self.owe_asked(peer, owing, ctx, &mut looking, next);
        Some(black_box(looking.leave()).last())
    }
}
