//! Queue pairs on ids.

use super::bw_cm_id;
use crate::code::{BW_EBUSY, BW_EFOREIGN, BW_ESTATE, BW_ETRANSPORT};
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::qp::{Away, bw_qp};
use crate::transport::{AnyQp, Kind};
use hw::connect::cm::Id;
use std::ffi::c_int;

/// Takes the queue pair off the id if it is the wanted one.
fn take(id: &Id, wanted: &Away) -> Option<AnyQp> {
    let qp = id.take_qp_if(|qp| wanted.is(qp)).map(AnyQp::Rc);
    qp.or_else(|| id.take_ud_qp_if(|qp| wanted.is(qp)).map(AnyQp::Ud))
}

/// Puts a queue pair on the id. The caller has checked its transport, and that the id has none.
fn put(id: &Id, qp: AnyQp) {
    match qp {
        AnyQp::Rc(qp) => drop(id.put_qp(qp)),
        AnyQp::Ud(qp) => drop(id.put_ud_qp(qp)),
        AnyQp::Uc(_) | AnyQp::Xrc(_) => {}
    }
}

/// Puts a queue pair of BW_QPT_RC on an id, which owns it from here on. `bw_cm_connect`,
/// `bw_cm_accept` and `bw_cm_disconnect` use it if they are called with NULL for the queue pair, as
/// librdmacm does after rdma_create_qp(3). Put it on the id in INIT, with receives posted, and take
/// it back by `bw_cm_detach_qp` when it is connected. Meanwhile `bw_cm_get_event` changes its
/// state:
///
/// The peer's reply moves it to RTS, and the event is BW_CM_EVENT_ESTABLISHED at this end, too, with
/// the contents of the reply. If the device refuses that change, the event is
/// BW_CM_EVENT_CONNECT_ERROR, the queue pair is in ERR, and the peer gets _REJECTED.
/// BW_CM_EVENT_REJECTED and _UNREACHABLE move it to ERR: posted requests are flushed, and reported.
///
/// A queue pair of BW_QPT_UD, on an id for datagrams, is attached to each group whose
/// BW_CM_EVENT_MULTICAST_JOIN is taken. If that is refused the event is _MULTICAST_ERROR, and the
/// program has to leave the group.
///
/// Owner: the id, which keeps what the queue pair keeps. The handle stays the caller's, and is valid
/// only for `bw_cm_detach_qp` and `bw_qp_destroy`: all other calls, posts and rings included, return
/// `BW_ESTATE`. A queue pair that is still on an id when the id is destroyed is destroyed with it,
/// except for the handle.
/// Errors: `BW_EBUSY` if another queue pair is on the id, `BW_ESTATE` if this one is on an id,
/// `BW_ETRANSPORT`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_attach_qp(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    guard(|| unsafe {
        let (id, qp) = (get(id, "id")?, get_mut(qp, "queue pair")?);
        // Locked, so that no other thread puts one on the id meanwhile.
        let mut users = id.qp_users();
        if id.id.has_qp() {
            let text = "another queue pair is on the id";
            return Err(Failure::new(BW_EBUSY, text));
        }
        if matches!(qp.kind(), Some(Kind::Uc | Kind::Xrc)) {
            let text = "the communication manager connects queue pairs of BW_QPT_RC and _UD";
            return Err(Failure::new(BW_ETRANSPORT, text));
        }
        put(&id.id, qp.send_away()?);
        *users = Some(qp.users());
        Ok(())
    })
}

/// Takes a queue pair off the id that it was put on, in any state. The connection is not changed; from
/// here on the caller changes the queue pair's state.
///
/// Errors: `BW_EFOREIGN` if another queue pair is on the id, which stays there, `BW_ESTATE` if none is,
/// `BW_ENULL`.
/// Thread: any; no other thread may use the queue pair's handle meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_detach_qp(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    guard(|| unsafe {
        let (id, qp) = (get(id, "id")?, get_mut(qp, "queue pair")?);
        let mut users = id.qp_users();
        if !id.id.has_qp() {
            return Err(Failure::new(BW_ESTATE, "no queue pair is on the id"));
        }
        let taken = qp.away().and_then(|away| take(&id.id, away));
        let Some(taken) = taken else {
            let text = "the queue pair that is on the id is another";
            return Err(Failure::new(BW_EFOREIGN, text));
        };
        qp.take_back(taken);
        *users = None;
        Ok(())
    })
}
