//! Queue pairs on ids.

use super::bw_cm_id;
use crate::code::{BW_EBUSY, BW_EFOREIGN, BW_ESTATE, BW_ETRANSPORT};
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::qp::bw_qp;
use crate::transport::{AnyQp, Kind};
use hw::connect::cm::Id;
use std::ffi::c_int;

fn take(id: &Id) -> Option<AnyQp> {
    let datagrams = || id.take_ud_qp().map(AnyQp::Ud);
    id.take_qp().map(AnyQp::Rc).or_else(datagrams)
}

/// It is of a kind that can be there, and nothing else is.
fn put(id: &Id, qp: AnyQp) {
    match qp {
        AnyQp::Rc(qp) => drop(id.put_qp(qp)),
        AnyQp::Ud(qp) => drop(id.put_ud_qp(qp)),
        AnyQp::Uc(_) | AnyQp::Xrc(_) => {}
    }
}

/// Puts a queue pair of BW_QPT_RC on an id, which owns it from here on: `bw_cm_connect`,
/// `bw_cm_accept` and `bw_cm_disconnect` take it where they get NULL for a queue pair, as librdmacm does
/// after rdma_create_qp(3). Put it there in INIT, with receives posted, and take it back by
/// `bw_cm_take_qp` when it is connected. Meanwhile `bw_cm_get_event` moves it:
///
/// The peer's answer takes it to RTS, and the event is BW_CM_EVENT_ESTABLISHED at this end, too, with
/// what the peer said; or BW_CM_EVENT_CONNECT_ERROR when the device refuses that: the queue pair is in
/// ERR then, and the peer is told by _REJECTED. BW_CM_EVENT_REJECTED and _UNREACHABLE take it to ERR:
/// what was posted is flushed, and told.
///
/// One of BW_QPT_UD, on an id of datagrams, is attached to each group whose BW_CM_EVENT_MULTICAST_JOIN is
/// got; the event is _MULTICAST_ERROR when that is refused, and the group is to be left.
///
/// Owner: the id. The handle stays the caller's, and is good for `bw_cm_take_qp` and `bw_qp_destroy`
/// alone; calls other than those that post and ring answer `BW_ESTATE`. What is still on an id that is
/// destroyed is destroyed with it, but for the handle.
/// Errors: `BW_EBUSY` when another is there, `BW_ESTATE` when this one is on an id, `BW_ETRANSPORT`,
/// `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_put_qp(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles and threads.
    guard(|| unsafe {
        let (id, qp) = (&get(id, "id")?.id, get_mut(qp, "queue pair")?);
        if let Some(other) = take(id) {
            put(id, other);
            let text = "another queue pair is on the id";
            return Err(Failure::new(BW_EBUSY, text));
        }
        if matches!(qp.kind(), Some(Kind::Uc | Kind::Xrc)) {
            let text = "the communication manager connects queue pairs of BW_QPT_RC and _UD";
            return Err(Failure::new(BW_ETRANSPORT, text));
        }
        put(id, qp.send_away()?);
        Ok(())
    })
}

/// Takes a queue pair off the id that it was put on, in whatever state it is. The connection stays as it
/// is; from here on the caller moves the queue pair.
///
/// Errors: `BW_EFOREIGN` when another queue pair is on the id, `BW_ESTATE` when none is, `BW_ENULL`.
/// Thread: any; nobody uses the queue pair's handle meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_take_qp(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles and threads.
    guard(|| unsafe {
        let (id, qp) = (&get(id, "id")?.id, get_mut(qp, "queue pair")?);
        let taken = take(id);
        let taken = taken.ok_or_else(|| Failure::new(BW_ESTATE, "no queue pair is on the id"))?;
        if let Err(other) = qp.take_back(taken) {
            put(id, *other);
            let text = "the queue pair that is on the id is another";
            return Err(Failure::new(BW_EFOREIGN, text));
        }
        Ok(())
    })
}
