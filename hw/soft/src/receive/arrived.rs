//! Messages of any length that have arrived from another process, or are in memory of its that is mapped here. Whatever
//! is otherwise than usual is found here, and changes nothing.

use super::super::copy::{Fault, copy};
use super::super::hca::Hca;
use super::super::mr::Local;
use super::super::qp::Face;
use super::super::respond::{allows, usual_place_of};
use super::{
    Claim, GRH_BYTES, Held, Lists, Origin, Placer, Receives, RecvWork, of_datagram, room_in,
};
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{Cqe64, CqeOpcode, PlainCqe};
use bellwire_core::wqe::SrqRing;
use bellwire_core::wr::Remote;

/// A message that has arrived from another process, in so many pieces at the most.
pub(in super::super) struct Arrived<const PIECES: usize = 2> {
    /// Opcode of the receive's completion.
    pub kind: CqeOpcode,
    pub imm: Be32,
    pub solicited: bool,
    pub length: usize,
    /// Readable, and all of the data together. The other process may change it at any time.
    pub data: [(*const u8, usize); PIECES],
    /// Where the data of a WRITE goes; that of a SEND goes to the receive.
    pub target: Option<Remote>,
}

impl<const PIECES: usize> Arrived<PIECES> {
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
    /// Consumes a receive of the queue pair's own queue or of its shared one. `face` is the queue pair's. `valid` is
    /// asked once the data has been copied: whether it was the message's until then. `false`: it was not, or there is
    /// no receive, or the message does not fit or may not be written where it says, or the completion queue is full;
    /// the receive is there as before, or held for whoever receives the message next.
    ///
    /// The data is not placed in the CQE: this thread may be the one that polls it.
    #[inline(always)]
    pub(in super::super) fn receive_arrived<const PIECES: usize>(
        &mut self,
        hca: &Hca,
        face: &Face,
        arrived: &Arrived<PIECES>,
        valid: impl Fn() -> bool,
    ) -> bool {
        match &mut self.source {
            Receives::Own(queue) => {
                // No other thread claims from this queue meanwhile.
                let Some(claim) = queue.next(self.qpn, self.pd) else {
                    return false;
                };
                let received = claim.fill_arrived(hca, face, arrived, valid);
                queue.pass(received)
            }
            Receives::Shared(_) => self.receive_arrived_shared(hca, face, arrived, valid),
            Receives::Xrc { .. } => false,
        }
    }

    /// Consumes a receive of the queue pair's own queue or of its shared one for a datagram. `false`: there is none, or
    /// the datagram does not fit, or the completion queue is full; the receive is there as before, or held for the
    /// datagram.
    pub(in super::super) fn receive_arrived_datagram(
        &mut self,
        hca: &Hca,
        arrived: &Arrived,
        origin: &Origin,
    ) -> bool {
        match &mut self.source {
            Receives::Own(queue) => {
                let Some(claim) = queue.next(self.qpn, self.pd) else {
                    return false;
                };
                let received = claim.fill_arrived_datagram(hca, arrived, origin);
                queue.pass(received)
            }
            Receives::Shared(_) => {
                self.receive_by_shared(|claim, _| claim.fill_arrived_datagram(hca, arrived, origin))
            }
            Receives::Xrc { .. } => false,
        }
    }

    #[inline(never)]
    fn receive_arrived_shared<const PIECES: usize>(
        &mut self,
        hca: &Hca,
        face: &Face,
        arrived: &Arrived<PIECES>,
        valid: impl Fn() -> bool,
    ) -> bool {
        self.receive_by_shared(|claim, _| claim.fill_arrived(hca, face, arrived, valid))
    }

    /// Consumes a receive of the queue pair's shared receive queue by `fill`, which is given the memory that is known.
    /// `false`: there is none, or it was not filled, and is held for the message.
    #[inline(always)]
    pub(super) fn receive_by_shared(
        &mut self,
        fill: impl FnOnce(&Claim<SrqRing<'static>>, &mut Local) -> bool,
    ) -> bool {
        let Receives::Shared(queue) = &mut self.source else {
            return false;
        };
        let Some(claim) = queue.claim(&mut self.held, self.qpn, self.pd) else {
            return false;
        };
        let received = fill(&claim, &mut queue.local);
        if !received {
            let srq = queue.srq;
            self.held = Some(Held { claim, srq });
        }
        received
    }
}

impl<R: Lists> Claim<R> {
    /// Places a message and completes the receive. `false`: as for
    /// [`receive_arrived`](RecvWork::receive_arrived).
    #[inline(always)]
    fn fill_arrived<const PIECES: usize>(
        &self,
        hca: &Hca,
        face: &Face,
        arrived: &Arrived<PIECES>,
        valid: impl Fn() -> bool,
    ) -> bool {
        let placed = match arrived.target {
            // Written before it is known that the completion has room: if it has none, the queue pair fails, and what a
            // failed WRITE has written is undefined.
            Some(target) => put(hca, face, target, arrived),
            None => arrived.length == 0 || self.place(hca, arrived),
        };
        placed
            && valid()
            && self.cq.produce_plain(
                #[inline(always)]
                || {
                    let (length, imm) = (arrived.length as u32, arrived.imm);
                    let solicited = arrived.solicited;
                    PlainCqe::responder(arrived.kind, self.completed, length, imm, solicited)
                },
            )
    }

    /// Like [`fill_arrived`](Self::fill_arrived), for a datagram.
    fn fill_arrived_datagram(&self, hca: &Hca, arrived: &Arrived, origin: &Origin) -> bool {
        if (self.room(hca, (GRH_BYTES + arrived.length) as u64)).is_err() {
            return false;
        }
        // SAFETY: the receive is claimed; the elements were checked just before, and have room for header and data.
        let mut placer = unsafe { self.behind_header(origin) };
        for (from, len) in arrived.data {
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
    fn place<const PIECES: usize>(&self, hca: &Hca, arrived: &Arrived<PIECES>) -> bool {
        let Some(place) = self.first_room(hca, arrived.length) else {
            return self.scatter(hca, arrived);
        };
        // SAFETY: checked in this section.
        unsafe { arrived.copy_to(place) }.is_ok()
    }

    /// The memory of the first element, if that has room for `length` bytes.
    #[inline(always)]
    fn first_room(&self, hca: &Hca, length: usize) -> Option<*mut u8> {
        // SAFETY: the receive is claimed. An empty list has an element of length zero.
        let first = unsafe { self.ring.first(self.index) };
        room_in(
            &first,
            length,
            #[inline(always)]
            |sge, bytes| hca.mrs.covers(&self.reach(sge, bytes)),
        )
    }

    /// Like [`first_room`](Self::first_room), for at least one byte, by what its queue knows of its memory.
    #[inline(always)]
    pub(super) fn first_room_of(
        &self,
        hca: &Hca,
        local: &mut Local,
        length: usize,
    ) -> Option<*mut u8> {
        // SAFETY: as above.
        let first = unsafe { self.ring.first(self.index) };
        room_in(
            &first,
            length,
            #[inline(always)]
            |sge, bytes| hca.mrs.covers_local(local, sge.lkey, sge.addr, bytes),
        )
    }

    /// Like [`place`](Self::place), into several elements.
    #[cold]
    #[inline(never)]
    fn scatter<const PIECES: usize>(&self, hca: &Hca, arrived: &Arrived<PIECES>) -> bool {
        if self.room(hca, arrived.length as u64).is_err() {
            return false;
        }
        // SAFETY: the receive is claimed.
        let mut placer = Placer::new(unsafe { self.ring.elements(self.index) });
        for (from, len) in arrived.data {
            // SAFETY: the data is readable; the elements were checked in this section, and have room for it.
            unsafe { placer.put(from, len) };
        }
        placer.done().is_ok()
    }
}

/// Writes the data to where the requester says. `false`: the queue pair does not allow it.
#[inline(always)]
fn put<const PIECES: usize>(
    hca: &Hca,
    face: &Face,
    target: Remote,
    arrived: &Arrived<PIECES>,
) -> bool {
    let (length, access) = (arrived.length as u64, AccessFlags::REMOTE_WRITE);
    if length == 0 {
        // No key is needed (IBTA C9-88).
        return allows(face, access);
    }
    let place = usual_place_of(hca, face, target, length, access);
    // SAFETY: the target was checked in this section.
    place.is_some_and(|place| unsafe { arrived.copy_to(place) }.is_ok())
}
