//! Queue pairs on ids.

use super::bw_cm_id;
use crate::code::{BW_EBUSY, BW_EFOREIGN, BW_ESTATE};
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::qp::bw_qp;
use std::ffi::c_int;

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
        if let Some(other) = id.take_qp() {
            id.put_qp(other);
            let text = "another queue pair is on the id";
            return Err(Failure::new(BW_EBUSY, text));
        }
        id.put_qp(qp.send_away()?);
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
        let taken = id.take_qp();
        let taken = taken.ok_or_else(|| Failure::new(BW_ESTATE, "no queue pair is on the id"))?;
        if let Err(other) = qp.take_back(taken) {
            id.put_qp(*other);
            let text = "the queue pair that is on the id is another";
            return Err(Failure::new(BW_EFOREIGN, text));
        }
        Ok(())
    })
}
