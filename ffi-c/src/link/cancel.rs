//! Taking requests back: cancelling them, and deadlines of single requests.

use super::bw_link;
use super::set::{bw_link_id, bw_link_set};
use crate::code::{BW_EENDED, BW_EMEMORY, BW_ENOLINK, BW_ENOREQUEST, BW_ENORQ, BW_EOTHER};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use hw::link::{Cancel, CancelError, LinkId};
use std::ffi::c_int;
use std::time::Duration;

/// What became of a call that cancels a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_cancel {
    /// The request is taken back, at once or at its deadline. Polls report it, once.
    BW_CANCEL_REQUESTED = 0,
    /// The request has an outcome, which the next polls report. The call changed nothing.
    BW_CANCEL_COMPLETED = 1,
    /// The request was taken back before, and is not reported yet. The call changed nothing.
    BW_CANCEL_REPEATED = 2,
    /// A thread recovers the link (BW_RECOVER_IN_THREAD), and takes the request back if it has one of this
    /// `wr_id`.
    BW_CANCEL_FORWARDED = 3,
}

impl From<CancelError> for Failure {
    fn from(error: CancelError) -> Self {
        let code = match error {
            CancelError::NotFound => BW_ENOREQUEST,
            CancelError::Ended(_) => BW_EENDED,
            CancelError::NoRecvQueue => BW_ENORQ,
            CancelError::NoLink => BW_ENOLINK,
            CancelError::NoMemory => BW_EMEMORY,
            _ => BW_EOTHER,
        };
        Self::new(code, error.to_string())
    }
}

pub(super) fn number(result: Result<Cancel, CancelError>) -> Result<c_int, Failure> {
    let cancel = match result? {
        Cancel::Requested => bw_cancel::BW_CANCEL_REQUESTED,
        Cancel::Completed => bw_cancel::BW_CANCEL_COMPLETED,
        Cancel::Repeated => bw_cancel::BW_CANCEL_REPEATED,
        Cancel::Forwarded => bw_cancel::BW_CANCEL_FORWARDED,
    };
    Ok(cancel as c_int)
}

/// Takes back each send with this `wr_id` that is not reported. Returns a `bw_cancel`, 0 or more. The polls that follow
/// report the send once. From then on neither this device nor the peer's accesses its memory, here or at the peer,
/// also where the outcome is in doubt.
///
/// A send that the device has makes the link recover (BW_CANCELLED), because no device gives one request back from a
/// queue. Both ends stop their queue pairs and connect again, which takes some messages between the ends. Other
/// requests in flight, of both ends, are posted again as their `bw_replay` says, or are reported. All requests that
/// are cancelled before the next poll cost one recovery. A send that completes before that poll is reported as
/// executed, and costs none. A send that the link holds while it recovers is not posted again. An unsignalled send
/// that turns out to be executed has no outcome of its own.
///
/// What may have happened at the peer, by outcome (E: BW_OUTCOME_EXECUTED, N: BW_OUTCOME_NOT_EXECUTED, D:
/// BW_OUTCOME_IN_DOUBT with BW_DOUBT_CANCELLED):
///
/// - SEND, with or without immediate data: E: its program got the message. N: it did not; a receive there may hold a
///   part. D does not happen.
/// - SEND_WITH_INV: as SEND. E: the key is invalid. N: the key may be invalid.
/// - WRITE_WITH_IMM: E: data written, and its program was notified. N: it was not notified; the data may be written,
///   in part or whole. D does not happen.
/// - WRITE: E: data written. N: nothing, or a part. D: not, in part or wholly written.
/// - READ: nothing changes at the peer. N, D: the memory here may hold a part of the data.
/// - Atomics: E: the word changed, and its old value is here. N: it did not change. D: either; the old value is lost.
/// - Bind, local invalidation: the peer is not involved. The doubt is BW_DOUBT_LOCAL.
///
/// Other reasons of doubt tell more, and stay: BW_DOUBT_RESULT_LOST says that a READ or an atomic was executed. If the
/// peer is lost while the link recovers, the link ends, and the doubt is BW_DOUBT_PEER_GONE. Then packets under way may
/// still change the peer's memory, until its end of the link has noticed.
///
/// Errors: `BW_ENOREQUEST`, `BW_EENDED` if the link has ended and everything was reported, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_cancel(link: *mut bw_link, wr_id: u64) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { number(get_mut(link, "link")?.link.cancel(wr_id)) })
}

/// Takes back each receive with this `wr_id` that is not reported, as `bw_link_cancel` does a send. Returns a
/// `bw_cancel`, 0 or more. One that the device has costs a recovery, too. It is reported as BW_OUTCOME_EXECUTED if a
/// message came for it, otherwise as BW_OUTCOME_NOT_EXECUTED. A message under way waits for the next receive; this one's
/// memory may hold a part of it. If its completion was lost with a completion queue it is in doubt.
///
/// Errors: those of `bw_link_cancel`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_cancel_recv(link: *mut bw_link, wr_id: u64) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { number(get_mut(link, "link")?.link.cancel_recv(wr_id)) })
}

/// Gives the send with this `wr_id` a deadline of its own, beside `bw_link_init.request_deadline_ns`. If the send is not
/// reported within `within_ns` nanoseconds of the device's clock, it is taken back as by `bw_link_cancel`. Its doubt, if
/// any, is BW_DOUBT_DEADLINE_PASSED. Returns a `bw_cancel`, 0 or more. Of several sends with this `wr_id` the
/// deadline is of the one posted last. Replaces a deadline set before.
///
/// A deadline that has passed is found by the checks of polls (`bw_link_init.check_every`). While the link recovers it
/// is found when the request would be posted again. So the request is reported within the time that a recovery may
/// take. Other requests, and the data path, pay nothing for it. The first deadline of a queue allocates memory; the
/// call finds a request that was just posted at once.
///
/// Errors: those of `bw_link_cancel`, `BW_EMEMORY`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_cancel_after(
    link: *mut bw_link,
    wr_id: u64,
    within_ns: u64,
) -> c_int {
    let within = Duration::from_nanos(within_ns);
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { number(get_mut(link, "link")?.link.cancel_after(wr_id, within)) })
}

/// Gives the receive with this `wr_id` a deadline, as `bw_link_cancel_after` does a send. Returns a `bw_cancel`, 0 or
/// more.
///
/// Errors: those of `bw_link_cancel_after`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_cancel_recv_after(
    link: *mut bw_link,
    wr_id: u64,
    within_ns: u64,
) -> c_int {
    let within = Duration::from_nanos(within_ns);
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        number(link.cancel_recv_after(wr_id, within))
    })
}

/// Takes back sends of a link of the set, as `bw_link_cancel` does. Returns a `bw_cancel`, 0 or more.
///
/// Errors: those of `bw_link_cancel`, `BW_ENOLINK`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_cancel(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        number(set.cancel(LinkId::from_raw(link), wr_id))
    })
}

/// Takes back receives of a link of the set, as `bw_link_cancel_recv` does. Returns a `bw_cancel`, 0 or more.
///
/// Errors: those of `bw_link_cancel`, `BW_ENOLINK`; `BW_ENORQ` with `bw_link_set_init.srq_slab`: a receive there is of no
/// link before a message comes for it.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_cancel_recv(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        number(set.cancel_recv(LinkId::from_raw(link), wr_id))
    })
}

/// Gives a send of a link of the set a deadline, as `bw_link_cancel_after` does. Returns a `bw_cancel`, 0 or more.
///
/// Errors: those of `bw_link_cancel_after`, `BW_ENOLINK`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_cancel_after(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    within_ns: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let within = Duration::from_nanos(within_ns);
        number(set.cancel_after(LinkId::from_raw(link), wr_id, within))
    })
}

/// Gives a receive of a link of the set a deadline, as `bw_link_cancel_recv_after` does. Returns a `bw_cancel`, 0 or
/// more.
///
/// Errors: those of `bw_link_set_cancel_recv`, `BW_EMEMORY`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_cancel_recv_after(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    within_ns: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let within = Duration::from_nanos(within_ns);
        number(set.cancel_recv_after(LinkId::from_raw(link), wr_id, within))
    })
}
