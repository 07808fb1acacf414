//! Messages for a reliable connection, by few instructions: short ones within this process, for a receive queue of its own,
//! and those that arrive in one piece, also for a shared one. The first element of the receive has room for the message.
//! Whatever is otherwise is found here, and changes nothing, but that a receive of a shared queue is held for the message.

use super::super::copy::{copy, copy_short};
use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::{INLINE_SCATTER, OwnQueue, Receives, RecvWork, room_in};
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, CqeOpcode, PlainCqe};
use bellwire_core::queue::Received;

/// A message that has arrived from another process, with its data in one piece.
#[derive(Clone, Copy)]
pub(in super::super) struct InlineMessage {
    /// Opcode of the receive's completion.
    pub kind: CqeOpcode,
    pub length: usize,
    /// Readable for `length` bytes. The other process may change them at any time.
    pub data: *const u8,
}

impl RecvWork {
    /// Consumes a receive for a SEND within this process, whose data travels in the completion entry. `false`: the
    /// data is longer than that allows, there is no receive, or its first element has no room; nothing has
    /// changed. If the completion queue is full, the receive is there as before.
    #[inline(always)]
    pub(in super::super) fn receive_short(
        &mut self,
        hca: &Hca,
        bytes: &[u8],
        solicited: bool,
    ) -> bool {
        let Receives::Own(queue) = &mut self.source else {
            return false;
        };
        if bytes.len() as u64 > INLINE_SCATTER
            || queue.first_room::<false>(hca, bytes.len()).is_none()
        {
            return false;
        }
        let produced = queue.cq.produce_inline(
            #[inline(always)]
            || {
                let (kind, none) = (CqeOpcode::RespSend, Be32::new(0));
                let completed = queue.completed(self.qpn);
                PlainCqe::responder(kind, completed, bytes.len() as u32, none, solicited)
                    .with_inline()
            },
            #[inline(always)]
            |room| {
                // Between rings, which are there.
                // SAFETY: 32 bytes are writable; there are no more, as was checked.
                let _there =
                    unsafe { copy_short(bytes.as_ptr(), room.cast().as_ptr(), bytes.len()) };
            },
        );
        queue.pass(produced)
    }

    /// Consumes a receive for a message from another process. `imm` returns its immediate data and whether its completion
    /// is solicited, and is called last, so that few values are held meanwhile. `false`: as for
    /// [`receive_short`](Self::receive_short).
    ///
    /// # Safety
    /// The message's data is readable.
    #[inline(always)]
    pub(in super::super) unsafe fn receive_inline(
        work: &mut Option<Self>,
        hca: &Hca,
        message: &InlineMessage,
        imm: impl FnOnce() -> (Be32, bool),
    ) -> bool {
        // Both at once, which is one comparison.
        let Some(Self {
            source: Receives::Own(queue),
            qpn,
            ..
        }) = work
        else {
            return false;
        };
        let Some(place) = queue.first_room::<false>(hca, message.length) else {
            return false;
        };
        // SAFETY: the data is readable, and the place was checked in this section.
        if unsafe { copy(message.data, place, message.length) }.is_err() {
            return false;
        }
        let produced = queue.cq.produce_plain(
            #[inline(always)]
            || {
                let completed = queue.completed(*qpn);
                let (imm, solicited) = imm();
                PlainCqe::responder(
                    message.kind,
                    completed,
                    message.length as u32,
                    imm,
                    solicited,
                )
            },
        );
        queue.pass(produced)
    }

    /// Consumes a receive for a SEND from another process, whose data is these bytes, and hands it to the poll, or writes
    /// its completion entry. Whether it was handed over; `None`: as for [`receive_short`](Self::receive_short), or, with
    /// `FIRST`, its memory's key is not the one that was used last. `FIRST`: it is the first message of a look, which is
    /// handed over in most cases.
    ///
    /// # Safety
    /// The bytes are readable. With `SHORT` there are no more than 32.
    #[inline(always)]
    pub(in super::super) unsafe fn receive_plain<const SHORT: bool, const FIRST: bool>(
        work: &mut Option<Self>,
        hca: &Hca,
        data: *const u8,
        length: usize,
        polled: Option<&mut PolledQueue>,
    ) -> Option<bool> {
        // Both at once, which is one comparison.
        let Some(Self {
            source: Receives::Own(queue),
            qpn,
            ..
        }) = work
        else {
            return None;
        };
        let place = queue.first_room::<FIRST>(hca, length)?;
        // SAFETY: the data is readable, there is no more than that, and the place was checked in this section.
        let placed = unsafe {
            match SHORT {
                true => copy_short(data, place, length),
                false => copy(data, place, length),
            }
        };
        placed.ok()?;
        let (kind, none) = (CqeOpcode::RespSend, Be32::new(0));
        let completed = queue.completed(*qpn);
        let entry = PlainCqe::responder(kind, completed, length as u32, none, false);
        let (produced, handed) = match polled {
            Some(polled) if queue.cq.hands_to(polled) => {
                // SAFETY: the receive is executed, and there is no entry of an older one.
                unsafe { polled.hand_over(|| Received::new(&completed, length as u32)) };
                (true, true)
            }
            _ if FIRST => (queue.cq.produce_out_of_line(&entry), false),
            _ => (queue.cq.produce_plain(|| entry), false),
        };
        queue.pass(produced).then_some(handed)
    }

    /// Like [`receive_inline`](Self::receive_inline), of a shared receive queue. `false`: the receive may be held for the
    /// message. A message without immediate data, whose completion is not solicited, may be handed to a poll to which
    /// [that is possible](Self::hands_shared_to).
    ///
    /// # Safety
    /// The message's data is readable.
    #[inline(always)]
    pub(in super::super) unsafe fn receive_inline_shared(
        work: &mut Option<Self>,
        hca: &Hca,
        message: &InlineMessage,
        polled: Option<&mut PolledQueue>,
        imm: impl FnOnce() -> (Be32, bool),
    ) -> bool {
        let Some(work) = work else { return false };
        let (length, kind) = (message.length, message.kind);
        work.receive_by_shared(
            #[inline(always)]
            |claim, local| {
                let Some(place) = claim.first_room_of(hca, local, length) else {
                    return false;
                };
                // SAFETY: the data is readable, and the place was checked in this section.
                if unsafe { copy(message.data, place, length) }.is_err() {
                    return false;
                }
                if let Some(polled) = polled {
                    let received = || Received::of_shared(&claim.completed, length as u32);
                    // SAFETY: the receive is executed, and there is no entry of an older one of the queue pair.
                    unsafe { polled.hand_over(received) };
                    return true;
                }
                claim.cq.produce_plain(
                    #[inline(always)]
                    || {
                        let (imm, solicited) = imm();
                        PlainCqe::responder(kind, claim.completed, length as u32, imm, solicited)
                    },
                )
            },
        )
    }

    /// Whether a receive of the queue pair's shared receive queue may be handed to this poll.
    #[inline(always)]
    pub(in super::super) fn hands_shared_to(&self, polled: &PolledQueue) -> bool {
        matches!(&self.source, Receives::Shared(queue) if queue.cq.hands_to(polled))
    }
}

impl OwnQueue {
    /// The memory of the next receive's first element, if there is one that has room for `length` bytes. `KNOWN`: only if
    /// its key is the one that was used last.
    #[inline(always)]
    fn first_room<const KNOWN: bool>(&mut self, hca: &Hca, length: usize) -> Option<*mut u8> {
        if !self.is_ready() {
            return None;
        }
        let next = self.consumer;
        // SAFETY: posted and not completed, so the poster does not write it. An empty list has an element of
        // length zero.
        let sge = unsafe { self.ring.first(next.into()) };
        let local = &mut self.local;
        room_in(
            &sge,
            length,
            #[inline(always)]
            |sge, bytes| match KNOWN {
                true => (hca.mrs).knows_local(local, sge.lkey, sge.addr, bytes),
                false => (hca.mrs).covers_local(local, sge.lkey, sge.addr, bytes),
            },
        )
    }

    /// Like [`first_room`](Self::first_room), in memory that is still known. There is at least one byte.
    #[inline(always)]
    pub(in super::super) fn known_room(&mut self, length: usize) -> Option<*mut u8> {
        let next = self.ready()?;
        // SAFETY: posted and not completed, so the poster does not write it. An empty list has an element of
        // length zero.
        let sge = unsafe { self.ring.first(next.into()) };
        room_in(
            &sge,
            length,
            #[inline(always)]
            |sge, bytes| self.local.covers(sge.lkey, sge.addr, bytes),
        )
    }

    /// Whether there is a receive.
    #[inline(always)]
    pub(super) fn is_ready(&mut self) -> bool {
        self.ready().is_some()
    }

    /// The counter of the next receive, if there is one.
    #[inline(always)]
    fn ready(&mut self) -> Option<u16> {
        let next = self.consumer;
        if next == self.posted {
            self.posted = self.record.load() as u16;
        }
        (next != self.posted).then_some(next)
    }

    /// The next receive, as its completion names it.
    #[inline(always)]
    pub(in super::super) fn completed(&self, qpn: u32) -> CompletedWqe {
        CompletedWqe {
            qpn,
            user_index: self.user_index,
            wqe_counter: self.consumer,
        }
    }

    /// Consumes the next receive, if its completion was `produced`. `false`: the completion queue is full.
    #[inline(always)]
    pub(in super::super) fn pass(&mut self, produced: bool) -> bool {
        if produced {
            self.consumer = self.consumer.wrapping_add(1);
        }
        produced
    }
}
