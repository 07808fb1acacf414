//! The responder: how a peer's request is handled. Runs on the requester's thread, within its section (or
//! under the device's lock).

use super::connection::{UNTRIED, responder};
use super::copy::Span;
use super::hca::Hca;
use super::lists::can_read_all;
use super::mr::Reach;
use super::qp::{QpCtx, Rights, SendWork};
use super::receive::{Message, Receives, RecvWork, Unfilled};
use super::srq::SrqCtx;
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::SgeList;
use bellwire_core::wr::Remote;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Why a request is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// RNR NAK: no receive is posted. The timer code.
    Rnr(u8),
    /// No response: no responder accepts the request.
    Silent,
    /// The responder has to record the first request of its connection before it accepts it.
    First,
    /// NAK, with the requester's syndrome.
    Nak(Syndrome, Blame),
    /// No request: the requester cannot read its own data any more.
    Unread,
}

impl Answer {
    /// The responder's memory cannot be accessed any more.
    pub const FAULT: Self = Self::Nak(Syndrome::REMOTE_ACCESS, Blame::Access);

    /// What comes of a fault while this data was copied to memory of the responder's.
    #[cold]
    pub fn after_fault(data: SgeList<'_>) -> Self {
        match can_read_all(data) {
            true => Self::FAULT,
            false => Self::Unread,
        }
    }
}

/// What happened to a responder that refuses a request. It goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// One of its receives was completed in error, which reports the error.
    Receive,
    /// Its completion queue is full.
    Overrun,
    /// The request named memory that it may not access.
    Access,
    /// The responder does not accept this kind of request.
    Request,
}

/// The memory to which a key of the protection domain gives access: the usual case.
#[inline(always)]
fn covered(
    hca: &Hca,
    pd: u32,
    remote: Remote,
    length: u64,
    access: AccessFlags,
) -> Option<*mut u8> {
    let reach = Reach {
        key: remote.rkey,
        pd,
        qpn: 0,
        addr: remote.addr,
        length,
        access: access.bits(),
    };
    // Registration exposed the memory's provenance.
    let place = std::ptr::with_exposed_provenance_mut(remote.addr as usize);
    hca.mrs.covers(&reach).then_some(place)
}

/// The memory to which a key gives a reliable connection access, in the usual case, for an operation of this kind
/// and at least one byte. `None`: [`Responder`] finds out whether it is refused.
#[inline(always)]
pub(super) fn usual_place(
    hca: &Hca,
    work: &mut SendWork,
    remote: Remote,
    length: u64,
    access: AccessFlags,
) -> Option<*mut u8> {
    let rights = &work.peer.rights;
    // Acquire: as in `Responder::find`.
    if rights.accepts.load(Ordering::Acquire) != work.connection {
        return None;
    }
    let grant = &mut work.grants[usize::from(access != AccessFlags::REMOTE_READ)];
    let Remote { addr, rkey } = remote;
    let generation = hca.mrs.generation().now();
    if grant.covers(generation, rkey, addr, length) {
        return Some(std::ptr::with_exposed_provenance_mut(addr as usize));
    }
    let place = usual_place_of(hca, rights, remote, length, access);
    if place.is_some() {
        *grant = hca.mrs.grant(generation, rkey).unwrap_or(*grant);
    }
    place
}

/// Like [`usual_place`], for a responder that has been found to accept the requester's packets.
#[inline(always)]
pub(super) fn usual_place_of(
    hca: &Hca,
    rights: &Rights,
    remote: Remote,
    length: u64,
    access: AccessFlags,
) -> Option<*mut u8> {
    if !allows(rights, access) {
        return None;
    }
    // Relaxed: written before `accepts`.
    covered(
        hca,
        rights.pd.load(Ordering::Relaxed),
        remote,
        length,
        access,
    )
}

/// Whether a responder that accepts the requester's packets allows operations of this kind.
#[inline(always)]
pub(super) fn allows(rights: &Rights, access: AccessFlags) -> bool {
    // Relaxed: written before `accepts`.
    rights.access.load(Ordering::Relaxed) & access.bits() != 0
}

/// Whether a reliable connection accepts this requester's packets, and has a receive queue of its own.
#[inline(always)]
pub(super) fn takes_own_receives(work: &SendWork) -> bool {
    // Acquire: as in `Responder::find`.
    work.peer.rights.accepts.load(Ordering::Acquire) == work.connection
        // SAFETY: the peer accepts only this requester, whose section this is, so this thread owns the receive
        // side.
        && unsafe { &*work.peer.receiver.work.get() }
            .as_ref()
            .is_some_and(|receiver| matches!(receiver.source, Receives::Own(_)))
}

/// Delivers a short SEND to a reliable connection, in the usual case. `false`: nothing has changed, and
/// [`Responder`] finds out what becomes of it.
#[inline(always)]
pub(super) fn deliver_short(hca: &Hca, work: &SendWork, bytes: &[u8], solicited: bool) -> bool {
    // Acquire: as in `Responder::find`.
    if work.peer.rights.accepts.load(Ordering::Acquire) != work.connection {
        return false;
    }
    // SAFETY: the peer accepts only this requester, whose section this is, so this thread owns the receive side.
    match unsafe { &mut *work.peer.receiver.work.get() } {
        Some(receiver) => receiver.receive_short(hca, bytes, solicited),
        None => false,
    }
}

/// A responder that accepts this requester's packets, for one request.
#[derive(Clone, Copy)]
pub(super) struct Responder<'a> {
    work: &'a SendWork,
    /// The shared receive queue that an XRC request names.
    srq: Option<&'static SrqCtx>,
}

impl<'a> Responder<'a> {
    /// Finds the responder. `xrc` is the number of the shared receive queue that the request names.
    #[inline(always)]
    pub fn find(hca: &Hca, work: &'a SendWork, xrc: Option<u32>) -> Result<Self, Answer> {
        // Acquire: pairs with the Release at the peer's transition to RTR, so that its receive side is set
        // up.
        if work.peer.rights.accepts.load(Ordering::Acquire) != work.connection {
            return Err(not_yet(work));
        }
        let srq = match xrc {
            Some(srqn) => Some(named_srq(hca, work, srqn)?),
            None => None,
        };
        Ok(Self { work, srq })
    }

    /// The memory to which a key gives access for an operation of this kind. An operation of length zero
    /// needs no key (IBTA C9-88), and gets a null address.
    #[inline(always)]
    pub fn reach(
        &self,
        hca: &Hca,
        remote: Remote,
        length: u64,
        access: AccessFlags,
    ) -> Result<*mut u8, Answer> {
        if !allows(&self.work.peer.rights, access) {
            return Err(Answer::Nak(Syndrome::REMOTE_INVAL_REQ, Blame::Request));
        }
        if length == 0 {
            return Ok(std::ptr::null_mut());
        }
        if let Some(place) = covered(hca, self.pd(), remote, length, access) {
            return Ok(place);
        }
        match self.reach_otherwise(hca, remote, length, access) {
            Some(place) => Ok(place.as_ptr()),
            None => Err(Answer::Nak(Syndrome::REMOTE_ACCESS, Blame::Access)),
        }
    }

    /// Not inlined, and with few arguments, to keep the fast path short.
    #[cold]
    #[inline(never)]
    fn reach_otherwise(
        self,
        hca: &Hca,
        remote: Remote,
        length: u64,
        access: AccessFlags,
    ) -> Option<NonNull<u8>> {
        hca.mrs.reach(&Reach {
            key: remote.rkey,
            pd: self.pd(),
            // The connection that it accepts contains its queue pair number.
            qpn: responder(self.work.connection),
            addr: remote.addr,
            length,
            access: access.bits(),
        })
    }

    /// The protection domain of the memory that the request may access.
    #[inline(always)]
    pub fn pd(&self) -> u32 {
        match self.srq {
            // Relaxed: written before `accepts`, which was loaded with Acquire.
            None => self.work.peer.rights.pd.load(Ordering::Relaxed),
            // IBTA annex A14: the protection domain of the shared receive queue applies to requests for it.
            Some(srq) => srq.pd,
        }
    }

    /// Consumes a receive. `claimed` runs once there is one, before it completes.
    #[inline(always)]
    pub fn receive(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Answer> {
        let peer = self.work.peer;
        // SAFETY: the peer accepts only this requester, whose section this is (or the device's lock is held),
        // so this thread owns the receive side.
        let Some(recv) = (unsafe { &mut *peer.receiver.work.get() }) else {
            return Err(Answer::Silent);
        };
        match recv.receive(hca, self.srq, message, claimed) {
            Ok(()) => Ok(()),
            Err(why) => Err(unfilled(peer, why)),
        }
    }
}

impl Responder<'_> {
    /// Runs `receive` on the receive side. Under the device's lock.
    fn have(
        &self,
        receive: impl FnOnce(&mut RecvWork) -> Result<(), Unfilled>,
    ) -> Result<(), Answer> {
        let peer = self.work.peer;
        // SAFETY: the peer accepts only this requester, and the lock is held.
        let recv = unsafe { &mut *peer.receiver.work.get() }.as_mut();
        receive(recv.ok_or(Answer::Silent)?).map_err(|why| unfilled(peer, why))
    }

    /// Like [`receive`](Self::receive), for a message of which parts may have been placed before. Under the
    /// device's lock.
    pub fn receive_rest(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Answer> {
        self.have(|recv| recv.receive_rest(hca, self.srq, message, claimed))
    }

    /// Places a part of a message: see [`RecvWork::receive_part`]. Under the device's lock.
    pub fn receive_part(&self, hca: &Hca, total: u64, at: u64, bytes: Span) -> Result<(), Answer> {
        self.have(|recv| recv.receive_part(hca, self.srq, total, at, bytes))
    }
}

#[cold]
pub(super) fn unfilled(peer: &QpCtx, why: Unfilled) -> Answer {
    match why {
        // Relaxed: the value orders no other data.
        Unfilled::Empty => Answer::Rnr(peer.rights.min_rnr_timer.load(Ordering::Relaxed)),
        Unfilled::Failed(syndrome) => Answer::Nak(syndrome, Blame::Receive),
        Unfilled::Gone => Answer::Silent,
        Unfilled::Unread => Answer::Unread,
        Unfilled::Overrun => Answer::Nak(Syndrome::REMOTE_OP, Blame::Overrun),
    }
}

/// Why a responder does not accept this requester's packets.
#[cold]
fn not_yet(work: &SendWork) -> Answer {
    // Relaxed: the holder of the lock checks again.
    let accepts = work.peer.rights.accepts.load(Ordering::Relaxed);
    if accepts == work.connection | UNTRIED {
        Answer::First
    } else {
        Answer::Silent
    }
}

/// The shared receive queue that an XRC request names, if it belongs to the target's domain.
fn named_srq(hca: &Hca, work: &SendWork, srqn: u32) -> Result<&'static SrqCtx, Answer> {
    // SAFETY: the peer accepts only this requester, whose section this is (or the device's lock is held).
    let target = unsafe { &*work.peer.receiver.work.get() };
    let Some(RecvWork {
        source: Receives::Xrc { domain },
        ..
    }) = target
    else {
        return Err(Answer::Silent);
    };
    // SAFETY: used within this section (or under the device's lock).
    unsafe { hca.srqs.get(srqn) }
        .filter(|srq| srq.xrc.is_some_and(|xrc| xrc.xrcd == *domain))
        .ok_or(Answer::Nak(Syndrome::REMOTE_INVAL_REQ, Blame::Request))
}
