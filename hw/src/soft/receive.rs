//! Receives: claiming one, placing a message into it, completing it. Runs on the sender's thread.

use super::copy::copy;
use super::cq::CqCtx;
use super::hca::Hca;
use super::mr::Reach;
use super::run::gather;
use super::srq::SrqCtx;
use crate::event::EventType;
use arrayvec::ArrayVec;
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Source, Syndrome};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::wqe::{Data, RecvRing, SgeList, SrqRing};
use bellwire_core::wr::Sge;

/// Messages up to this long travel within the receiver's completion entry.
const INLINE_SCATTER: u64 = 32;

/// Bytes that a datagram's receive has in front: room for a global route header.
pub(super) const GRH_BYTES: usize = 40;

/// Where a responder stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWork {
    pub source: Receives,
    pub pd: u32,
    pub qpn: u32,
}

/// Where a responder's receives come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Receives {
    /// Its own queue.
    Own(OwnQueue),
    /// A shared receive queue; they complete on the queue pair's completion queue.
    Shared {
        srq: &'static SrqCtx,
        cq: &'static CqCtx,
        user_index: u32,
    },
    /// The shared receive queue of this domain that each request names; they complete on its
    /// completion queue.
    Xrc { domain: u32 },
}

/// A queue pair's own receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnQueue {
    pub ring: RecvRing<'static>,
    pub record: &'static DoorbellRecord,
    /// 16-bit counter of the next receive, and of the last one known to be posted.
    pub consumer: u16,
    pub posted: u16,
    pub cq: &'static CqCtx,
    pub user_index: u32,
}

/// A receive that is the claimant's, to fill and complete.
#[derive(Clone, Copy)]
struct Claim<R> {
    ring: R,
    index: u32,
    completed: CompletedWqe,
    pd: u32,
    cq: &'static CqCtx,
}

/// A ring whose entries list where bytes go.
trait Lists: Copy {
    /// # Safety
    /// The entry is claimed, so that its poster does not write it.
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge>;
}

impl Lists for RecvRing<'static> {
    #[inline(always)]
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge> {
        // SAFETY: the caller's promise.
        unsafe { self.read(index) }
    }
}

impl Lists for SrqRing<'static> {
    #[inline(always)]
    unsafe fn elements(self, index: u32) -> impl Iterator<Item = Sge> {
        // SAFETY: the caller's promise.
        unsafe { self.read(index) }
    }
}

/// Brings a message's data to places of these addresses and lengths, which were checked. `false`: it is
/// not to be had any more.
pub(super) type Fetch<'a> = dyn Fn(&[(u64, u64)]) -> bool + 'a;

/// A message that consumes a receive.
pub(super) struct Message<'a> {
    /// How the receive completes.
    pub kind: CqeOpcode,
    pub length: u64,
    /// Immediate data, or the key that was invalidated.
    pub imm: Be32,
    pub solicited: bool,
    /// What is to be placed: nothing for a WRITE.
    pub data: SgeList<'a>,
    /// Places the data in place of that, where it is in another process.
    pub fetch: Option<&'a Fetch<'a>>,
}

/// Where a datagram came from, and its route header.
pub(super) struct Origin {
    pub source: Source,
    pub grh: Option<[u8; GRH_BYTES]>,
}

/// Why a receive was not completed as the sender wished.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unfilled {
    /// None is posted.
    Empty,
    /// It completed in error; what a reliable requester is told.
    Failed(Syndrome),
    /// The completion queue is full.
    Overrun,
    /// The sender is gone with what it had to say: as if it had said nothing.
    Gone,
}

impl OwnQueue {
    #[inline(always)]
    fn claim(&mut self, qpn: u32, pd: u32) -> Option<Claim<RecvRing<'static>>> {
        if self.consumer == self.posted {
            self.posted = self.record.load() as u16;
            if self.consumer == self.posted {
                return None;
            }
        }
        let index = self.consumer;
        self.consumer = index.wrapping_add(1);
        let completed = CompletedWqe {
            qpn,
            user_index: self.user_index,
            wqe_counter: index,
        };
        Some(Claim {
            ring: self.ring,
            index: u32::from(index),
            completed,
            pd,
            cq: self.cq,
        })
    }
}

impl RecvWork {
    /// Consumes a receive. `claimed` runs when there is one, before it completes; what it refuses
    /// fails here and there. `named` is the
    /// shared receive queue of the responder's domain that an XRC request names.
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
            if matches!(filled, Err(Unfilled::Gone)) {
                // It is the next message's.
                queue.consumer = queue.consumer.wrapping_sub(1);
            }
            return filled;
        }
        let claim = self.claim_shared(named).ok_or(Unfilled::Empty)?;
        let filled = claim
            .unless(claimed())
            .and_then(|()| claim.fill(hca, message));
        if matches!(filled, Err(Unfilled::Gone)) {
            // As of a message of which only the beginning has come: a shared queue takes none back.
            claim.fail(Syndrome::WR_FLUSH);
            return Err(Unfilled::Failed(Syndrome::REMOTE_OP));
        }
        filled
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
            return claim.fill_datagram(hca, message, origin);
        }
        let claim = self.claim_shared(None).ok_or(Unfilled::Empty)?;
        claim.fill_datagram(hca, message, origin)
    }

    #[inline(never)]
    fn claim_shared(&self, named: Option<&'static SrqCtx>) -> Option<Claim<SrqRing<'static>>> {
        match self.source {
            Receives::Own(_) => None,
            Receives::Shared {
                srq,
                cq,
                user_index,
            } => claim_shared(srq, self.qpn, self.pd, cq, user_index),
            Receives::Xrc { .. } => {
                let srq = named?;
                let xrc = srq.xrc?;
                claim_shared(srq, self.qpn, srq.pd, xrc.cq, xrc.user_index)
            }
        }
    }
}

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
    /// Places a message and completes the receive.
    #[inline(always)]
    fn fill(&self, hca: &Hca, message: &Message<'_>) -> Result<(), Unfilled> {
        let mut entry = self.answer(message);
        if message.kind != CqeOpcode::RespWrImm && message.length != 0 {
            self.check(hca, message.length)?;
            if let Some(fetch) = message.fetch {
                self.fetch(fetch, message.length)?;
            } else if message.length <= INLINE_SCATTER {
                // SAFETY: 32 bytes are writable, and the data was checked in this section.
                unsafe { gather(message.data, entry.inline_room().as_mut_ptr()) };
            } else {
                // SAFETY: claimed; both were checked in this section, and the elements hold the
                // message.
                unsafe { Placer::new(self.ring.elements(self.index)).put_all(message.data) };
            }
        }
        self.complete(&entry)
    }

    /// Has a message placed that is somewhere else.
    #[cold]
    fn fetch(&self, fetch: &Fetch<'_>, length: u64) -> Result<(), Unfilled> {
        // More than the elements that a receive can have.
        let mut places = ArrayVec::<_, 64>::new();
        let mut fits = true;
        // SAFETY: claimed.
        Placer::new(unsafe { self.ring.elements(self.index) }).next(length as usize, |to, now| {
            let place = (to.expose_provenance() as u64, now as u64);
            fits &= places.try_push(place).is_ok();
        });
        if fits && fetch(&places) {
            return Ok(());
        }
        Err(Unfilled::Gone)
    }

    /// Places a datagram behind its route header, and completes the receive.
    fn fill_datagram(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        origin: &Origin,
    ) -> Result<(), Unfilled> {
        self.check(hca, message.length + GRH_BYTES as u64)?;
        // SAFETY: claimed; both were checked in this section, and the elements hold header and
        // message.
        unsafe {
            let mut placer = Placer::new(self.ring.elements(self.index));
            match &origin.grh {
                Some(grh) => placer.put(grh.as_ptr(), grh.len()),
                None => placer.skip(GRH_BYTES),
            }
            placer.put_all(message.data);
        }
        let entry = self
            .answer(message)
            .with_source(origin.source)
            .add_bytes(GRH_BYTES as u32);
        self.complete(&entry)
    }

    /// Completes the receive in error if something that goes before it failed.
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

    /// Whether the elements can take `length` bytes; else completes the receive in error.
    #[inline(always)]
    fn check(&self, hca: &Hca, length: u64) -> Result<(), Unfilled> {
        let (local, remote) = match self.room(hca, length) {
            Ok(()) => return Ok(()),
            Err(syndromes) => syndromes,
        };
        self.fail(local);
        Err(Unfilled::Failed(remote))
    }

    /// Whether the elements can take `length` bytes; else what fails here and there.
    #[inline(always)]
    fn room(&self, hca: &Hca, length: u64) -> Result<(), (Syndrome, Syndrome)> {
        let mut left = length;
        // SAFETY: claimed.
        for sge in unsafe { self.ring.elements(self.index) } {
            let used = left.min(u64::from(sge.length));
            let reach = Reach {
                key: sge.lkey,
                pd: self.pd,
                qpn: 0,
                addr: sge.addr,
                length: used,
                access: AccessFlags::LOCAL_WRITE.bits(),
            };
            if !hca.mrs.covers(&reach) {
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

/// Puts bytes into a receive's elements, one behind the other.
struct Placer<I> {
    sges: I,
    to: *mut u8,
    room: usize,
}

impl<I: Iterator<Item = Sge>> Placer<I> {
    #[inline(always)]
    fn new(sges: I) -> Self {
        Self {
            sges,
            to: std::ptr::null_mut(),
            room: 0,
        }
    }

    /// Hands the next `length` bytes of the elements to `each`, string by string.
    #[inline(always)]
    fn next(&mut self, mut length: usize, mut each: impl FnMut(*mut u8, usize)) {
        while length != 0 {
            if self.room == 0 {
                let Some(sge) = self.sges.next() else { return };
                self.to = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                self.room = sge.length as usize;
                continue;
            }
            let now = length.min(self.room);
            each(self.to, now);
            self.to = self.to.wrapping_add(now);
            self.room -= now;
            length -= now;
        }
    }

    #[inline(always)]
    fn skip(&mut self, length: usize) {
        self.next(length, |_, _| {});
    }

    /// # Safety
    /// The elements that the bytes fall on are writable, and `from` is readable.
    #[inline(always)]
    unsafe fn put(&mut self, mut from: *const u8, length: usize) {
        self.next(length, |to, now| {
            // SAFETY: the caller's promise.
            unsafe {
                copy(from, to, now);
                from = from.add(now);
            }
        });
    }

    /// # Safety
    /// As [`Self::put`], of a message's data.
    #[inline(always)]
    unsafe fn put_all(&mut self, data: SgeList<'_>) {
        for piece in data {
            // SAFETY: the caller's promise.
            unsafe {
                match piece {
                    Data::Inline(head, tail) => {
                        self.put(head.as_ptr(), head.len());
                        self.put(tail.as_ptr(), tail.len());
                    }
                    Data::Pointer(sge) => self.put(
                        std::ptr::with_exposed_provenance(sge.addr as usize),
                        sge.length as usize,
                    ),
                }
            }
        }
    }
}
