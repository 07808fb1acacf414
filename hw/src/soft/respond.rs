//! The responder: what a peer's request meets. Runs on the requester's thread, within its section.

use super::hca::Hca;
use super::mr::Reach;
use super::qp::{QpCtx, RecvWork, SendWork};
use super::run::gather;
use bellwire_core::access::AccessFlags;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Syndrome};
use bellwire_core::wqe::SgeList;
use bellwire_core::wr::{Remote, Sge};
use std::sync::atomic::Ordering;

/// Messages up to this long travel within the receiver's completion entry.
const INLINE_SCATTER: u64 = 32;

/// Why a request is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// No receive is posted; the code of the time to wait.
    Rnr(u8),
    /// Nobody is there.
    Silent,
    /// Refused; what the requester is told, and whether the responder goes to the error state.
    Nak { syndrome: Syndrome, responder: bool },
}

impl Answer {
    const fn nak(syndrome: Syndrome) -> Self {
        Self::Nak {
            syndrome,
            responder: true,
        }
    }
}

/// A message that consumes a receive.
pub(super) struct Message<'a> {
    /// How the receive completes.
    pub kind: CqeOpcode,
    pub length: u64,
    pub imm: Be32,
    pub solicited: bool,
    /// What is to be placed: nothing for a WRITE.
    pub data: SgeList<'a>,
}

/// Whether the peer takes this requester's packets.
#[inline(always)]
fn accepted(work: &SendWork) -> Result<(), Answer> {
    // Acquire: partner of the release when the peer went to RTR; its receive side is ready then.
    if work.peer.face.accepts.load(Ordering::Acquire) != work.connection {
        return Err(Answer::Silent);
    }
    Ok(())
}

/// Whether the peer takes operations of this kind, on whatever memory.
#[inline(always)]
pub(super) fn allowed(work: &SendWork, access: AccessFlags) -> Result<(), Answer> {
    accepted(work)?;
    // Relaxed: written before `accepts`, which was loaded with acquire.
    if work.peer.face.access.load(Ordering::Relaxed) & access.bits() == 0 {
        return Err(Answer::nak(Syndrome::REMOTE_INVAL_REQ));
    }
    Ok(())
}

/// Finds memory of the peer that a key opens. What is empty needs no key (IBTA C9-88), and has no
/// place.
#[inline(always)]
pub(super) fn reach(
    hca: &Hca,
    peer: &QpCtx,
    remote: Remote,
    length: u64,
    access: AccessFlags,
) -> Result<*mut u8, Answer> {
    if length == 0 {
        return Ok(std::ptr::null_mut());
    }
    let reach = Reach {
        key: remote.rkey,
        // Relaxed: as above.
        pd: peer.face.pd.load(Ordering::Relaxed),
        addr: remote.addr,
        length,
        access,
    };
    hca.mrs
        .reach(reach)
        .ok_or(Answer::nak(Syndrome::REMOTE_ACCESS))
}

/// The receive queue of the peer, when it has a receive posted. It is this requester's as long as
/// its section (or the device's lock) lasts.
#[inline(always)]
fn next_receive(work: &SendWork) -> Result<*mut RecvWork, Answer> {
    accepted(work)?;
    // SAFETY: the peer accepts this requester, and it alone; this is its section (or the device's
    // lock is held), so that the receive side is its own.
    let Some(recv) = (unsafe { &mut *work.peer.receiver.work.get() }) else {
        return Err(Answer::Silent);
    };
    if recv.consumer == recv.posted {
        recv.posted = recv.record.load() as u16;
        if recv.consumer == recv.posted {
            // Relaxed: a number on its own.
            let code = work.peer.face.min_rnr_timer.load(Ordering::Relaxed);
            return Err(Answer::Rnr(code));
        }
    }
    Ok(recv)
}

/// Whether a receive is there to be consumed.
pub(super) fn ready(_: &Hca, work: &SendWork) -> Result<(), Answer> {
    next_receive(work).map(|_| ())
}

/// Consumes a receive: places the data, and completes it.
#[inline(always)]
pub(super) fn receive(hca: &Hca, work: &SendWork, message: &Message<'_>) -> Result<(), Answer> {
    // SAFETY: nobody else has it in this section, and this is the only reference.
    let recv = unsafe { &mut *next_receive(work)? };
    let index = u32::from(recv.consumer);
    recv.consumer = recv.consumer.wrapping_add(1);
    let completed = CompletedWqe {
        qpn: recv.qpn,
        user_index: recv.user_index,
        wqe_counter: index as u16,
    };
    let mut entry = Cqe64::responder(message.kind, completed, message.length as u32)
        .with_imm(message.imm)
        .with_solicited(message.solicited);
    if message.kind != CqeOpcode::RespWrImm && message.length != 0 {
        // SAFETY: the poster does not write a receive that is in flight.
        let sges = unsafe { recv.ring.read(index) };
        if let Err((local, remote)) = check(hca, recv, sges, message.length) {
            // The receive fails here, the request there.
            let failed = Cqe64::error(CqeOpcode::RespErr, completed, 0, local, 0);
            let _dead_anyway = recv.cq.produce(&failed);
            return Err(Answer::nak(remote));
        }
        if message.length <= INLINE_SCATTER {
            // SAFETY: 32 bytes are writable, and the data was checked in this section.
            unsafe { gather(message.data, entry.inline_room().as_mut_ptr()) };
        } else {
            // SAFETY: as above; the elements were just checked.
            unsafe { place(message.data, recv.ring.read(index)) };
        }
    }
    if !recv.cq.produce(&entry) {
        return Err(Answer::nak(Syndrome::REMOTE_OP));
    }
    Ok(())
}

/// Whether a receive's elements can take `length` bytes; else what fails here and there.
#[inline(always)]
fn check(
    hca: &Hca,
    recv: &RecvWork,
    sges: impl Iterator<Item = Sge>,
    length: u64,
) -> Result<(), (Syndrome, Syndrome)> {
    let mut left = length;
    for sge in sges {
        let used = left.min(u64::from(sge.length));
        let reach = Reach {
            key: sge.lkey,
            pd: recv.pd,
            addr: sge.addr,
            length: used,
            access: AccessFlags::LOCAL_WRITE,
        };
        if hca.mrs.reach(reach).is_none() {
            return Err((Syndrome::LOCAL_PROT, Syndrome::REMOTE_OP));
        }
        left -= used;
        if left == 0 {
            return Ok(());
        }
    }
    Err((Syndrome::LOCAL_LENGTH, Syndrome::REMOTE_INVAL_REQ))
}

/// Copies a message from its pieces to a receive's elements.
///
/// # Safety
/// Both were checked in this section, and the elements hold all of the data.
unsafe fn place(data: SgeList<'_>, sges: impl Iterator<Item = Sge>) {
    use super::copy::copy;
    use bellwire_core::wqe::Data;

    let mut sges = sges.filter(|sge| sge.length != 0);
    let mut to: *mut u8 = std::ptr::null_mut();
    let mut room = 0;
    let mut put = |mut from: *const u8, mut length: usize| {
        while length != 0 {
            if room == 0 {
                let Some(sge) = sges.next() else { return };
                to = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                room = sge.length as usize;
            }
            let now = length.min(room);
            // SAFETY: the caller's promise.
            unsafe {
                copy(from, to, now);
                from = from.add(now);
                to = to.add(now);
            }
            length -= now;
            room -= now;
        }
    };
    for piece in data {
        match piece {
            Data::Inline(head, tail) => {
                put(head.as_ptr(), head.len());
                put(tail.as_ptr(), tail.len());
            }
            Data::Pointer(sge) => put(
                std::ptr::with_exposed_provenance(sge.addr as usize),
                sge.length as usize,
            ),
        }
    }
}
