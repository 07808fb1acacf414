//! Delivers the message of another process: takes a receive, places the data, and reports the receive. The data is in
//! the packet, or in memory of the other process that is mapped here.
//!
//! Only success is reported here. On any failure nothing has changed, except that a receive of a shared queue may be
//! held for the message. The packet stays where it is, and is read again under the device's lock.

use super::super::copy::{Fault, copy};
use super::super::hca::Hca;
use super::super::mr::LocalGrant;
use super::super::polled::PolledQueue;
use super::super::qp::Rights;
use super::super::respond::{allows, usual_place_of};
use super::{
    Claim, GRH_BYTES, Held, Lists, Origin, Placer, Receives, RecvWork, of_datagram, room_in,
};
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{Cqe64, CqeOpcode, PlainCqe};
use bellwire_core::wqe::SrqRing;
use bellwire_core::wr::Remote;

/// A message that has arrived from another process.
#[derive(Clone, Copy)]
pub(in super::super) struct Arrived<'d> {
    /// Opcode of the receive's completion.
    pub kind: CqeOpcode,
    pub imm: Be32,
    pub solicited: bool,
    pub length: usize,
    /// Readable, and all of the data together. The other process may change it at any time.
    pub data: &'d [(*const u8, usize)],
    /// Where the data of a WRITE goes; that of a SEND goes to the receive.
    pub target: Option<Remote>,
}

/// How the receive of a delivered message was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Reported {
    /// To the poll that has found the message, without a completion entry.
    ToPoll,
    /// By an entry in its completion queue.
    InQueue,
}

impl<'d> Arrived<'d> {
    /// A SEND of which its length says all.
    #[inline(always)]
    pub fn plain(length: usize, data: &'d [(*const u8, usize)]) -> Self {
        Self {
            kind: CqeOpcode::RespSend,
            imm: Be32::new(0),
            solicited: false,
            length,
            data,
            target: None,
        }
    }

    /// Whether it is a SEND of which its length says all.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.kind == CqeOpcode::RespSend && !self.solicited
    }

    /// # Safety
    /// `to` is writable for the message's length.
    #[inline(always)]
    unsafe fn copy_to(&self, mut to: *mut u8) -> Result<(), Fault> {
        for (at, &(from, len)) in self.data.iter().enumerate() {
            if at != 0 && len == 0 {
                break;
            }
            // SAFETY: the data is readable; the caller guarantees that there is room for it.
            unsafe {
                copy(from, to, len)?;
                to = to.add(len);
            }
        }
        Ok(())
    }
}

impl RecvWork {
    /// Delivers a message into the queue pair's own receive queue or its shared one. `rights` is the queue pair's. `valid`
    /// is asked once the data has been copied: whether it was the message's until then. A plain SEND is reported to this
    /// `poll`, if that polls the receive's completion queue. `None`: the message was not valid, or there is no receive, or
    /// the message does not fit. Also, if it may not be written to its target, or the completion queue is full.
    ///
    /// The data is not placed in the CQE: this thread may be the one that polls it.
    #[inline(always)]
    pub(in super::super) fn deliver(
        &mut self,
        hca: &Hca,
        rights: &Rights,
        message: &Arrived<'_>,
        valid: impl Fn() -> bool,
        poll: Option<&mut PolledQueue>,
    ) -> Option<Reported> {
        match &mut self.source {
            Receives::Own(queue) => {
                // No other thread claims from this queue meanwhile.
                let claim = queue.next(self.qpn, self.pd)?;
                let local = &mut queue.local;
                let reported = claim.fill_arrived(hca, rights, message, local, valid, poll)?;
                queue.pass();
                Some(reported)
            }
            Receives::Shared(_) => self.deliver_shared(
                #[inline(always)]
                |claim, local| claim.fill_arrived(hca, rights, message, local, valid, poll),
            ),
            Receives::Xrc { .. } => None,
        }
    }

    /// Consumes a receive of the queue pair's own queue or of its shared one for a datagram. `false`: there is none, or
    /// the datagram does not fit, or the completion queue is full; the receive is there as before, or held for the
    /// datagram.
    pub(in super::super) fn receive_arrived_datagram(
        &mut self,
        hca: &Hca,
        arrived: &Arrived<'_>,
        origin: &Origin,
    ) -> bool {
        match &mut self.source {
            Receives::Own(queue) => {
                let Some(claim) = queue.next(self.qpn, self.pd) else {
                    return false;
                };
                let received = claim.fill_arrived_datagram(hca, arrived, origin);
                if received {
                    queue.pass();
                }
                received
            }
            Receives::Shared(_) => {
                let fill = |claim: &Claim<_>, _: &mut LocalGrant| {
                    (claim.fill_arrived_datagram(hca, arrived, origin)).then_some(())
                };
                self.deliver_shared(fill).is_some()
            }
            Receives::Xrc { .. } => false,
        }
    }

    /// Takes a receive of the queue pair's shared receive queue by `fill`, which is given the queue's local memory.
    /// `None`: there is none, or it was not filled, and is held for the message.
    #[inline(always)]
    fn deliver_shared<T>(
        &mut self,
        fill: impl FnOnce(&Claim<SrqRing<'static>>, &mut LocalGrant) -> Option<T>,
    ) -> Option<T> {
        let Receives::Shared(queue) = &mut self.source else {
            return None;
        };
        let claim = queue.claim(&mut self.held, self.qpn, self.pd)?;
        let filled = fill(&claim, &mut queue.local);
        if filled.is_none() {
            let srq = queue.srq;
            self.held = Some(Held { claim, srq });
        }
        filled
    }
}

impl<R: Lists> Claim<R> {
    /// Places a message and reports the receive. `None`: as for [`deliver`](RecvWork::deliver).
    #[inline(always)]
    fn fill_arrived(
        &self,
        hca: &Hca,
        rights: &Rights,
        message: &Arrived<'_>,
        local: &mut LocalGrant,
        valid: impl Fn() -> bool,
        poll: Option<&mut PolledQueue>,
    ) -> Option<Reported> {
        let placed = match message.target {
            // Written before the completion has room. If it has none, the queue pair fails, and the result of a failed
            // WRITE is undefined.
            Some(target) => put(hca, rights, target, message),
            None => message.length == 0 || self.place(hca, message, local),
        };
        if !(placed && valid()) {
            return None;
        }
        let length = message.length as u32;
        // Order 10: no entry is left to be polled that a receive reported to the poll could overtake.
        if let Some(poll) = poll
            && message.is_plain()
            && self.cq.may_report_to(poll)
        {
            // SAFETY: the receive is executed, and there is no entry of an older one of the queue pair.
            unsafe { poll.report(|| R::received(&self.completed, length)) };
            return Some(Reported::ToPoll);
        }
        let produced = self.cq.produce_plain(
            #[inline(always)]
            || {
                let (imm, solicited) = (message.imm, message.solicited);
                PlainCqe::responder(message.kind, self.completed, length, imm, solicited)
            },
        );
        produced.then_some(Reported::InQueue)
    }

    /// Like [`fill_arrived`](Self::fill_arrived), for a datagram.
    fn fill_arrived_datagram(&self, hca: &Hca, arrived: &Arrived<'_>, origin: &Origin) -> bool {
        if (self.room(hca, (GRH_BYTES + arrived.length) as u64)).is_err() {
            return false;
        }
        // SAFETY: the receive is claimed; the elements were checked just before, and have room for header and data.
        let mut placer = unsafe { self.behind_header(origin) };
        for &(from, len) in arrived.data {
            // SAFETY: the data is readable; as above.
            unsafe { placer.put(from, len) };
        }
        if placer.done().is_err() {
            return false;
        }
        let entry = Cqe64::responder(arrived.kind, self.completed, arrived.length as u32)
            .with_imm(arrived.imm)
            .with_solicited(arrived.solicited);
        self.cq.produce(&of_datagram(entry, origin))
    }

    /// Places the data into the receive. `false`: it does not fit.
    #[inline(always)]
    fn place(&self, hca: &Hca, message: &Arrived<'_>, local: &mut LocalGrant) -> bool {
        // SAFETY: the receive is claimed. An empty list has an element of length zero.
        let first = unsafe { self.ring.first(self.index) };
        match room_in(hca, local, &first, message.length) {
            // SAFETY: checked in this section.
            Some(place) => unsafe { message.copy_to(place) }.is_ok(),
            // By value, so that neither has to be in memory for the usual case.
            None => self.scatter(hca, *message),
        }
    }

    /// Like [`place`](Self::place), into several elements.
    #[cold]
    #[inline(never)]
    fn scatter(self, hca: &Hca, arrived: Arrived<'_>) -> bool {
        if self.room(hca, arrived.length as u64).is_err() {
            return false;
        }
        // SAFETY: the receive is claimed.
        let mut placer = Placer::new(unsafe { self.ring.elements(self.index) });
        for &(from, len) in arrived.data {
            // SAFETY: the data is readable; the elements were checked in this section, and have room for it.
            unsafe { placer.put(from, len) };
        }
        placer.done().is_ok()
    }
}

/// Writes the data to where the requester says. `false`: the queue pair does not allow it.
#[inline(always)]
fn put(hca: &Hca, rights: &Rights, target: Remote, arrived: &Arrived<'_>) -> bool {
    let (length, access) = (arrived.length as u64, AccessFlags::REMOTE_WRITE);
    if length == 0 {
        // No key is needed (IBTA C9-88).
        return allows(rights, access);
    }
    let place = usual_place_of(hca, rights, target, length, access);
    // SAFETY: the target was checked in this section.
    place.is_some_and(|place| unsafe { arrived.copy_to(place) }.is_ok())
}
