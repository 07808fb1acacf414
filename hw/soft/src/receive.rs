//! Receives: claims a receive, places a message into it, and completes it. Runs on the sender's thread.
//!
//! The data of a message of up to 32 bytes is placed in the receiver's CQE (ConnectX: scatter to CQE), and
//! the poll copies it into the receive's memory. So one cache line moves between the cores instead of two.

mod deliver;
mod own;
mod placer;

pub(super) use deliver::{Arrived, Reported};

use super::copy::{Fault, Span, can_write};
use super::cq::CqCtx;
use super::hca::Hca;
use super::lists::{can_read_all, gather};
use super::mr::{LocalGrant, Reach};
use super::srq::SrqCtx;
use crate::event::EventType;
use arrayvec::ArrayVec;
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Source, Syndrome};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::Received;
use bellwire_core::wqe::{RecvRing, SgeList, SrqRing};
use bellwire_core::wr::Sge;
use placer::Placer;

/// Messages up to this length are placed in the receiver's CQE (inline scatter).
const INLINE_SCATTER: u64 = 32;

/// Bytes in front of the data in a datagram's receive: room for a GRH.
pub(super) const GRH_BYTES: usize = 40;

/// State of a responder.
#[derive(Clone, Copy, Debug)]
pub struct RecvWork {
    pub source: Receives,
    pub pd: u32,
    pub qpn: u32,
    /// A receive of a shared receive queue, which the next message consumes. A part of it may have been placed.
    pub held: Option<Held>,
}

/// A receive of a shared receive queue that was claimed before all of its message has arrived, or for a message that
/// then was not received.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    claim: Claim<SrqRing<'static>>,
    srq: &'static SrqCtx,
}

/// Source of a responder's receives.
#[derive(Clone, Copy, Debug)]
pub enum Receives {
    /// Its own receive queue.
    Own(OwnQueue),
    /// A shared receive queue; its receives complete on the queue pair's completion queue.
    Shared(SharedQueue),
    /// The shared receive queue of this XRC domain that each request names; its receives complete on its own
    /// completion queue.
    Xrc { domain: u32 },
}

/// A queue pair's own receive queue.
#[derive(Clone, Copy, Debug)]
pub struct OwnQueue {
    pub ring: RecvRing<'static>,
    pub record: &'static DoorbellRecord,
    /// 16-bit counter of the next receive, and the counter behind the last one known to be posted.
    pub consumer: u16,
    pub posted: u16,
    pub cq: &'static CqCtx,
    pub user_index: u32,
    /// The memory of receives.
    pub local: LocalGrant,
}

/// The shared receive queue of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct SharedQueue {
    pub srq: &'static SrqCtx,
    pub cq: &'static CqCtx,
    pub user_index: u32,
    /// The memory of receives.
    pub local: LocalGrant,
}

/// A receive that the claimant fills and completes.
#[derive(Clone, Copy, Debug)]
struct Claim<R> {
    ring: R,
    index: u32,
    completed: CompletedWqe,
    pd: u32,
    cq: &'static CqCtx,
}

/// A ring whose entries are lists of scatter elements.
trait Lists: Copy {
    /// The first of the elements. If there is none, one of length zero.
    ///
    /// # Safety
    /// The entry is claimed, so its poster does not write it.
    unsafe fn first(self, index: u32) -> Sge;

    /// # Safety
    /// The entry is claimed, so its poster does not write it.
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge>;

    /// How a poll is told of a receive of this ring.
    fn received(completed: &CompletedWqe, length: u32) -> Received;
}

impl Lists for RecvRing<'static> {
    #[inline(always)]
    unsafe fn first(self, index: u32) -> Sge {
        // SAFETY: the caller guarantees that the entry is claimed.
        unsafe { RecvRing::first(&self, index) }
    }

    #[inline(always)]
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge> {
        // SAFETY: the caller guarantees that the entry is claimed.
        unsafe { self.read(index) }
    }

    #[inline(always)]
    fn received(completed: &CompletedWqe, length: u32) -> Received {
        Received::new(completed, length)
    }
}

impl Lists for SrqRing<'static> {
    #[inline(always)]
    unsafe fn first(self, index: u32) -> Sge {
        // SAFETY: the caller guarantees that the entry is claimed.
        unsafe { SrqRing::first(&self, index) }
    }

    #[inline(always)]
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge> {
        // SAFETY: the caller guarantees that the entry is claimed.
        unsafe { self.read(index) }
    }

    #[inline(always)]
    fn received(completed: &CompletedWqe, length: u32) -> Received {
        Received::of_shared(completed, length)
    }
}

/// The memory of an element, if that has room for `length` bytes of this local memory.
#[inline(always)]
fn room_in(hca: &Hca, local: &mut LocalGrant, sge: &Sge, length: usize) -> Option<*mut u8> {
    let fits = length <= sge.length as usize
        && (hca.mrs).covers_local(local, sge.lkey, sge.addr, length as u64);
    fits.then(|| std::ptr::with_exposed_provenance_mut(sge.addr as usize))
}

/// Copies a message's data to places of these addresses and lengths, which were checked. `false`: the data is
/// no longer available.
pub(super) type Fetch<'a> = dyn Fn(&[(u64, u64)]) -> bool + 'a;

/// A message that consumes a receive.
pub(super) struct Message<'a> {
    /// Opcode of the receive's completion.
    pub kind: CqeOpcode,
    pub length: u64,
    /// Immediate data, or the rkey that was invalidated.
    pub imm: Be32,
    pub solicited: bool,
    /// The data to be placed: nothing for a WRITE.
    pub data: SgeList<'a>,
    /// If the data is in another process: places it, instead of `data`.
    pub fetch: Option<&'a Fetch<'a>>,
}

/// The source of a datagram, and its GRH.
pub(super) struct Origin {
    pub source: Source,
    pub grh: Option<[u8; GRH_BYTES]>,
}

/// Why a receive was not completed with success.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unfilled {
    /// No receive is posted.
    Empty,
    /// It completed in error; the syndrome for a reliable requester.
    Failed(Syndrome),
    /// The completion queue is full.
    Overrun,
    /// The sender is gone before its data was copied: as if no request had arrived.
    Gone,
    /// The sender cannot read its data any more: likewise.
    Unread,
}

impl OwnQueue {
    #[inline(always)]
    fn claim(&mut self, qpn: u32, pd: u32) -> Option<Claim<RecvRing<'static>>> {
        let claim = self.next(qpn, pd)?;
        self.pass();
        Some(claim)
    }

    /// The next receive, which stays in the queue.
    #[inline(always)]
    fn next(&mut self, qpn: u32, pd: u32) -> Option<Claim<RecvRing<'static>>> {
        self.is_ready().then(|| Claim {
            ring: self.ring,
            index: self.consumer.into(),
            completed: self.completed(qpn),
            pd,
            cq: self.cq,
        })
    }
}

impl SharedQueue {
    /// Claims a receive: the one that is held, if there is one.
    #[inline(always)]
    fn claim(&self, held: &mut Option<Held>, qpn: u32, pd: u32) -> Option<Claim<SrqRing<'static>>> {
        // Nothing is moved where none is held.
        if held.is_none() {
            return claim_shared(self.srq, qpn, pd, self.cq, self.user_index);
        }
        held.take().map(|held| held.claim)
    }
}

impl RecvWork {
    /// Consumes a receive. `claimed` runs once there is one, before it completes; if it fails, requester and
    /// responder fail. `named` is the shared receive queue of the responder's domain that an XRC request
    /// names.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        hca: &Hca,
        named: Option<&'static SrqCtx>,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Unfilled> {
        if let Receives::Own(queue) = &mut self.source {
            let claim = queue.claim(self.qpn, self.pd).ok_or(Unfilled::Empty)?;
            let filled = claim
                .unless(claimed())
                .and_then(|()| claim.fill(hca, message));
            if matches!(filled, Err(Unfilled::Gone | Unfilled::Unread)) {
                // The receive stays for the next message.
                queue.consumer = queue.consumer.wrapping_sub(1);
            }
            return filled;
        }
        let claim = self.claim_shared(named).ok_or(Unfilled::Empty)?;
        claim.consume(hca, message, claimed)
    }

    /// Like [`receive`](Self::receive), for a message of which parts may have been placed before.
    pub(super) fn receive_rest(
        &mut self,
        hca: &Hca,
        named: Option<&'static SrqCtx>,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Unfilled> {
        match self.held.take() {
            Some(held) => held.claim.consume(hca, message, claimed),
            None => self.receive(hca, named, message, claimed),
        }
    }

    /// Places bytes at offset `at` of a message of `total` bytes into the receive that the whole message will
    /// consume. Errors here are not reported: they occur again, and are reported, when the message is
    /// complete.
    pub(super) fn receive_part(
        &mut self,
        hca: &Hca,
        named: Option<&'static SrqCtx>,
        total: u64,
        at: u64,
        bytes: Span,
    ) -> Result<(), Unfilled> {
        let srq = match &mut self.source {
            Receives::Own(queue) => {
                // No other thread claims from this queue meanwhile.
                let claim = queue.next(self.qpn, self.pd).ok_or(Unfilled::Empty)?;
                return claim.put_part(hca, total, at, bytes);
            }
            Receives::Shared(queue) => queue.srq,
            Receives::Xrc { .. } => named.ok_or(Unfilled::Empty)?,
        };
        let held = match self.held {
            Some(held) => held,
            None => {
                let claim = self.claim_shared(named).ok_or(Unfilled::Empty)?;
                Held { claim, srq }
            }
        };
        self.held = Some(held);
        held.claim.put_part(hca, total, at, bytes)
    }

    /// Flushes the receive into which a message was being placed part by part. With `of`, only if it belongs
    /// to that queue. A shared receive queue does not take receives back.
    pub(super) fn release(&mut self, of: Option<&SrqCtx>) {
        let is_of = |held: &mut Held| of.is_none_or(|srq| std::ptr::eq(srq, held.srq));
        if let Some(held) = self.held.take_if(is_of) {
            held.claim.fail(Syndrome::WR_FLUSH);
        }
    }

    /// Consumes a receive for a datagram.
    pub(super) fn receive_datagram(
        &mut self,
        hca: &Hca,
        message: &Message<'_>,
        origin: &Origin,
    ) -> Result<(), Unfilled> {
        if let Receives::Own(queue) = &mut self.source {
            let claim = queue.claim(self.qpn, self.pd).ok_or(Unfilled::Empty)?;
            let filled = claim.fill_datagram(hca, message, origin);
            if matches!(filled, Err(Unfilled::Unread)) {
                // The receive stays for the next message.
                queue.consumer = queue.consumer.wrapping_sub(1);
            }
            return filled;
        }
        let claim = self.claim_shared(None).ok_or(Unfilled::Empty)?;
        let filled = claim.fill_datagram(hca, message, origin);
        if matches!(filled, Err(Unfilled::Unread)) {
            claim.fail(Syndrome::WR_FLUSH);
        }
        filled
    }

    /// Claims a receive of a shared receive queue: the one that is held, if there is one.
    #[inline(never)]
    fn claim_shared(&mut self, named: Option<&'static SrqCtx>) -> Option<Claim<SrqRing<'static>>> {
        match self.source {
            Receives::Own(_) => None,
            Receives::Shared(queue) => queue.claim(&mut self.held, self.qpn, self.pd),
            Receives::Xrc { .. } => {
                let srq = named?;
                let xrc = srq.xrc?;
                claim_shared(srq, self.qpn, srq.pd, xrc.cq, xrc.user_index)
            }
        }
    }
}

#[inline(always)]
fn claim_shared(
    srq: &'static SrqCtx,
    qpn: u32,
    pd: u32,
    cq: &'static CqCtx,
    user_index: u32,
) -> Option<Claim<SrqRing<'static>>> {
    let popped = srq.pop()?;
    if popped.limit_reached {
        srq.raise(EventType::SrqLimitReached);
    }
    let completed = CompletedWqe {
        qpn,
        user_index,
        wqe_counter: popped.index,
    };
    Some(Claim {
        ring: *srq.queue.ring(),
        index: u32::from(popped.index),
        completed,
        pd,
        cq,
    })
}

impl<R: Lists> Claim<R> {
    /// Fills a receive of a shared receive queue, which does not take it back.
    #[inline(always)]
    fn consume(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Unfilled> {
        let filled = self
            .unless(claimed())
            .and_then(|()| self.fill(hca, message));
        if matches!(filled, Err(Unfilled::Unread)) {
            self.fail(Syndrome::WR_FLUSH);
        }
        if matches!(filled, Err(Unfilled::Gone)) {
            // As for a message of which only the beginning has arrived.
            self.fail(Syndrome::WR_FLUSH);
            return Err(Unfilled::Failed(Syndrome::REMOTE_OP));
        }
        filled
    }

    /// Places a part of a message of `total` bytes, if the elements have room for the whole.
    fn put_part(&self, hca: &Hca, total: u64, at: u64, bytes: Span) -> Result<(), Unfilled> {
        if let Err((_, remote)) = self.room(hca, total) {
            return Err(Unfilled::Failed(remote));
        }
        // SAFETY: the receive is claimed; the elements were checked just before, and have room for the whole
        // message.
        let placed = unsafe {
            let mut placer = Placer::new(self.ring.elements(self.index));
            placer.skip(at as usize);
            placer.put(bytes.start(), bytes.len());
            placer.done()
        };
        placed.map_err(|Fault| Unfilled::Failed(Syndrome::REMOTE_OP))
    }

    /// Places a message, and completes the receive.
    #[inline(always)]
    fn fill(&self, hca: &Hca, message: &Message<'_>) -> Result<(), Unfilled> {
        let mut entry = self.answer(message);
        if message.kind != CqeOpcode::RespWrImm && message.length != 0 {
            self.check(hca, message.length)?;
            if let Some(fetch) = message.fetch {
                self.fetch(fetch, message.length)?;
            } else if message.length <= INLINE_SCATTER {
                // SAFETY: 32 bytes are writable, and the data was checked in this section.
                unsafe { gather(message.data, entry.inline_room().as_mut_ptr()) }
                    .map_err(|Fault| Unfilled::Unread)?;
            } else {
                // SAFETY: the receive is claimed; data and elements were checked in this section, and the
                // elements have room for the message.
                let mut placer = Placer::new(unsafe { self.ring.elements(self.index) });
                // SAFETY: as above.
                unsafe { placer.put_all(message.data) };
                (placer.done()).map_err(|Fault| self.after_fault(message.data))?;
            }
        }
        self.complete(&entry)
    }

    /// Places a message whose data is in another process.
    #[cold]
    fn fetch(&self, fetch: &Fetch<'_>, length: u64) -> Result<(), Unfilled> {
        // More than the maximum number of elements of a receive.
        let mut places = ArrayVec::<_, 64>::new();
        let mut fits = true;
        // SAFETY: the receive is claimed.
        Placer::new(unsafe { self.ring.elements(self.index) }).next(length as usize, |to, now| {
            let place = (to.expose_provenance() as u64, now as u64);
            fits &= places.try_push(place).is_ok();
        });
        if fits && fetch(&places) {
            return Ok(());
        }
        let writable = places.iter().all(|&(addr, length)| {
            let place = std::ptr::with_exposed_provenance_mut(addr as usize);
            can_write(place, length as usize)
        });
        if fits && !writable {
            self.fail(Syndrome::LOCAL_PROT);
            return Err(Unfilled::Failed(Syndrome::REMOTE_OP));
        }
        Err(Unfilled::Gone)
    }

    /// What comes of a fault while this data was copied to the receive's memory. If it is that of the receive, the
    /// receive completes in error.
    #[cold]
    fn after_fault(&self, data: SgeList<'_>) -> Unfilled {
        if !can_read_all(data) {
            return Unfilled::Unread;
        }
        self.fail(Syndrome::LOCAL_PROT);
        Unfilled::Failed(Syndrome::REMOTE_OP)
    }

    /// Places a datagram after its GRH, and completes the receive.
    fn fill_datagram(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        origin: &Origin,
    ) -> Result<(), Unfilled> {
        self.check(hca, message.length + GRH_BYTES as u64)?;
        // SAFETY: the receive is claimed; data and elements were checked in this section, and the elements
        // have room for header and message.
        let placed = unsafe {
            let mut placer = self.behind_header(origin);
            placer.put_all(message.data);
            placer.done()
        };
        placed.map_err(|Fault| self.after_fault(message.data))?;
        self.complete(&of_datagram(self.answer(message), origin))
    }

    /// Places a datagram's GRH, or leaves room for it; the data goes behind it.
    ///
    /// # Safety
    /// The elements were checked in this section, and have room for it.
    #[inline(always)]
    unsafe fn behind_header(&self, origin: &Origin) -> Placer<impl Iterator<Item = Sge>> {
        // SAFETY: the receive is claimed; the caller guarantees the rest.
        unsafe {
            let mut placer = Placer::new(self.ring.elements(self.index));
            match &origin.grh {
                Some(grh) => placer.put(grh.as_ptr(), grh.len()),
                None => placer.skip(GRH_BYTES),
            }
            placer
        }
    }

    /// Completes the receive in error if `before` failed.
    #[inline(always)]
    fn unless(&self, before: Result<(), Syndrome>) -> Result<(), Unfilled> {
        before.map_err(|syndrome| {
            if syndrome == Syndrome::WR_FLUSH {
                return Unfilled::Gone;
            }
            self.fail(syndrome);
            Unfilled::Failed(syndrome)
        })
    }

    /// Completes the receive in error.
    #[cold]
    fn fail(&self, syndrome: Syndrome) {
        let failed = Cqe64::error(CqeOpcode::RespErr, self.completed, 0, syndrome, 0);
        let _dead_anyway = self.cq.produce(&failed);
    }

    #[inline(always)]
    fn answer(&self, message: &Message<'_>) -> Cqe64 {
        Cqe64::responder(message.kind, self.completed, message.length as u32)
            .with_imm(message.imm)
            .with_solicited(message.solicited)
    }

    #[inline(always)]
    fn complete(&self, entry: &Cqe64) -> Result<(), Unfilled> {
        if self.cq.produce(entry) {
            Ok(())
        } else {
            Err(Unfilled::Overrun)
        }
    }

    /// Checks that the elements have room for `length` bytes; otherwise completes the receive in error.
    #[inline(always)]
    fn check(&self, hca: &Hca, length: u64) -> Result<(), Unfilled> {
        let (local, remote) = match self.room(hca, length) {
            Ok(()) => return Ok(()),
            Err(syndromes) => syndromes,
        };
        self.fail(local);
        Err(Unfilled::Failed(remote))
    }

    /// The first `length` bytes of an element.
    #[inline(always)]
    fn reach(&self, sge: &Sge, length: u64) -> Reach {
        Reach {
            key: sge.lkey,
            pd: self.pd,
            qpn: 0,
            addr: sge.addr,
            length,
            access: AccessFlags::LOCAL_WRITE.bits(),
        }
    }

    /// Checks that the elements have room for `length` bytes; otherwise returns the responder's and the
    /// requester's syndrome.
    #[inline(always)]
    fn room(&self, hca: &Hca, length: u64) -> Result<(), (Syndrome, Syndrome)> {
        let mut left = length;
        // SAFETY: the receive is claimed.
        for sge in unsafe { self.ring.elements(self.index) } {
            let used = left.min(u64::from(sge.length));
            if !hca.mrs.covers(&self.reach(&sge, used)) {
                return Err((Syndrome::LOCAL_PROT, Syndrome::REMOTE_OP));
            }
            left -= used;
            if left == 0 {
                return Ok(());
            }
        }
        Err((Syndrome::LOCAL_LENGTH, Syndrome::REMOTE_INVAL_REQ))
    }
}

/// The completion entry of a datagram's receive, of which this one knows the message.
#[inline(always)]
fn of_datagram(entry: Cqe64, origin: &Origin) -> Cqe64 {
    (entry.with_source(origin.source)).add_bytes(GRH_BYTES as u32)
}
