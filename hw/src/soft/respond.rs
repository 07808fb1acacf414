//! The responder: what a peer's request meets. Runs on the requester's thread, within its section
//! (or under the device's lock).

use super::hca::Hca;
use super::mr::Reach;
use super::qp::{QpCtx, SendWork};
use super::receive::{Message, Receives, RecvWork, Unfilled};
use super::record::UNTRIED;
use super::srq::SrqCtx;
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wr::Remote;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Why a request is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// No receive is posted; the code of the time to wait.
    Rnr(u8),
    /// Nobody is there.
    Silent,
    /// The responder is to be told first that somebody talks to it.
    First,
    /// Refused; what the requester is told.
    Nak(Syndrome, Blame),
}

/// What befalls a responder that refuses. It goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// A receive of its was completed in error, which says it all.
    Receive,
    /// Its completion queue is full.
    Overrun,
    /// The request wanted memory that it may not reach.
    Access,
    /// The request was not one that it takes.
    Request,
}

/// A responder that takes this requester's packets, for one request.
#[derive(Clone, Copy)]
pub(super) struct Responder<'a> {
    work: &'a SendWork,
    /// The shared receive queue that an XRC request names.
    srq: Option<&'static SrqCtx>,
}

impl<'a> Responder<'a> {
    /// Finds the peer; `xrc` is the number of the shared receive queue that the request names.
    #[inline(always)]
    pub fn find(hca: &Hca, work: &'a SendWork, xrc: Option<u32>) -> Result<Self, Answer> {
        // Acquire: partner of the release when the peer went to RTR; its receive side is ready then.
        if work.peer.face.accepts.load(Ordering::Acquire) != work.connection {
            return Err(not_yet(work));
        }
        let srq = match xrc {
            Some(srqn) => Some(named_srq(hca, work, srqn)?),
            None => None,
        };
        Ok(Self { work, srq })
    }

    /// Finds memory that a key opens to an operation of this kind. What is empty needs no key (IBTA
    /// C9-88), and has no place.
    #[inline(always)]
    pub fn reach(
        &self,
        hca: &Hca,
        remote: Remote,
        length: u64,
        access: AccessFlags,
    ) -> Result<*mut u8, Answer> {
        let face = &self.work.peer.face;
        // Relaxed: written before `accepts`, which was loaded with acquire.
        if face.access.load(Ordering::Relaxed) & access.bits() == 0 {
            return Err(Answer::Nak(Syndrome::REMOTE_INVAL_REQ, Blame::Request));
        }
        if length == 0 {
            return Ok(std::ptr::null_mut());
        }
        let reach = Reach {
            key: remote.rkey,
            pd: self.pd(),
            qpn: 0,
            addr: remote.addr,
            length,
            access: access.bits(),
        };
        if hca.mrs.covers(&reach) {
            // The registrar exposed the memory's provenance.
            return Ok(std::ptr::with_exposed_provenance_mut(remote.addr as usize));
        }
        match self.reach_otherwise(hca, remote, length, access) {
            Some(place) => Ok(place.as_ptr()),
            None => Err(Answer::Nak(Syndrome::REMOTE_ACCESS, Blame::Access)),
        }
    }

    /// Out of line, with as little to hand over as can be: the fast path is not to prepare for it.
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
            // It accepts a name that has its number.
            qpn: (self.work.connection >> 32) as u32,
            addr: remote.addr,
            length,
            access: access.bits(),
        })
    }

    /// The protection domain of the memory that the request may reach.
    #[inline(always)]
    pub fn pd(&self) -> u32 {
        match self.srq {
            // Relaxed: written before `accepts`, which was loaded with acquire.
            None => self.work.peer.face.pd.load(Ordering::Relaxed),
            // IBTA annex A14: the shared receive queue's domain protects its targets' memory.
            Some(srq) => srq.pd,
        }
    }

    /// Consumes a receive. `claimed` runs when there is one, before it completes.
    #[inline(always)]
    pub fn receive(
        &self,
        hca: &Hca,
        message: &Message<'_>,
        claimed: impl FnOnce() -> Result<(), Syndrome>,
    ) -> Result<(), Answer> {
        let peer = self.work.peer;
        // SAFETY: the peer accepts this requester, and it alone; this is its section (or the device's
        // lock is held), so that the receive side is its own.
        let Some(recv) = (unsafe { &mut *peer.receiver.work.get() }) else {
            return Err(Answer::Silent);
        };
        match recv.receive(hca, self.srq, message, claimed) {
            Ok(()) => Ok(()),
            Err(why) => Err(unfilled(peer, why)),
        }
    }
}

#[cold]
pub(super) fn unfilled(peer: &QpCtx, why: Unfilled) -> Answer {
    match why {
        // Relaxed: a number on its own.
        Unfilled::Empty => Answer::Rnr(peer.face.min_rnr_timer.load(Ordering::Relaxed)),
        Unfilled::Failed(syndrome) => Answer::Nak(syndrome, Blame::Receive),
        Unfilled::Gone => Answer::Silent,
        Unfilled::Overrun => Answer::Nak(Syndrome::REMOTE_OP, Blame::Overrun),
    }
}

/// Why a responder does not take this requester's packets.
#[cold]
fn not_yet(work: &SendWork) -> Answer {
    // Relaxed: the lock's holder looks again.
    let accepts = work.peer.face.accepts.load(Ordering::Relaxed);
    if accepts == work.connection | UNTRIED {
        Answer::First
    } else {
        Answer::Silent
    }
}

/// The shared receive queue that an XRC request names, when it is of the target's domain.
fn named_srq(hca: &Hca, work: &SendWork, srqn: u32) -> Result<&'static SrqCtx, Answer> {
    // SAFETY: as in `Responder::receive`.
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
