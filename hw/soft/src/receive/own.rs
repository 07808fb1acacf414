//! A queue pair's own receive queue, and how a short message within this process is delivered to it: its data travels in
//! the completion entry, and the first element of the receive has room for it. Otherwise nothing changes.

use super::super::copy::copy_short;
use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::{INLINE_SCATTER, OwnQueue, Receives, RecvWork, room_in};
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, CqeOpcode, PlainCqe};
use bellwire_core::queue::Received;

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
        if bytes.len() as u64 > INLINE_SCATTER || queue.first_room(hca, bytes.len()).is_none() {
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
        if produced {
            queue.pass();
        }
        produced
    }
}

impl OwnQueue {
    /// Delivers a plain SEND of another process, whose data has at most [`SHORT`](super::super::copy::SHORT) bytes, and
    /// reports the receive to this poll. `false`: nothing has changed. There is no receive, or its first element has no room
    /// in memory of the last grant. Or the receive may not be reported so.
    ///
    /// # Safety
    /// The data is readable.
    #[inline(always)]
    pub(in super::super) unsafe fn deliver_line(
        &mut self,
        hca: &Hca,
        data: *const u8,
        length: usize,
        poll: &mut PolledQueue,
    ) -> bool {
        if !self.is_ready() {
            return false;
        }
        // SAFETY: posted and not completed, so the poster does not write it. An empty list has an element of
        // length zero.
        let sge = unsafe { self.ring.first(self.consumer.into()) };
        let fits = length <= sge.length as usize
            && (hca.mrs).is_granted(&self.local, sge.lkey, sge.addr, length as u64)
            && self.cq.may_report_to(poll);
        let place = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
        // SAFETY: the caller guarantees the data; the place was checked in this section.
        if !fits || unsafe { copy_short(data, place, length) }.is_err() {
            return false;
        }
        // SAFETY: the receive is executed, and there is no entry of an older one.
        unsafe { poll.report(|| Received::new(&self.completed(0), length as u32)) };
        self.pass();
        true
    }

    /// The memory of the next receive's first element, if there is one that has room for `length` bytes.
    #[inline(always)]
    fn first_room(&mut self, hca: &Hca, length: usize) -> Option<*mut u8> {
        if !self.is_ready() {
            return None;
        }
        // SAFETY: posted and not completed, so the poster does not write it. An empty list has an element of
        // length zero.
        let sge = unsafe { self.ring.first(self.consumer.into()) };
        room_in(hca, &mut self.local, &sge, length)
    }

    /// Whether there is a receive.
    #[inline(always)]
    pub(super) fn is_ready(&mut self) -> bool {
        if self.consumer == self.posted {
            self.posted = self.record.load() as u16;
        }
        self.consumer != self.posted
    }

    /// The next receive, as its completion names it.
    #[inline(always)]
    pub(super) fn completed(&self, qpn: u32) -> CompletedWqe {
        CompletedWqe {
            qpn,
            user_index: self.user_index,
            wqe_counter: self.consumer,
        }
    }

    /// The next receive was consumed.
    #[inline(always)]
    pub(super) fn pass(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
    }
}
