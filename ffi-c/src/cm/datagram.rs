//! Datagram services, and multicast groups.

use super::bw_cm_id;
use super::literal;
use super::param::private_data;
use crate::code::BW_ETRANSPORT;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::qp::bw_qp;
use crate::transport::AnyQp;
use hw::Qp;
use hw::connect::cm::{Id, Membership};
use hw::wqe::Ud;
use std::ffi::{c_char, c_int, c_void};

/// Runs a call with an id and a queue pair for datagrams.
///
/// # Safety
/// The caller keeps the header's conventions on handles; the call is alone on the queue pair.
unsafe fn with(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    call: impl FnOnce(&Id, &mut Qp<Ud>) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller keeps the header's conventions on handles; the call is alone on the queue pair.
    guard(|| unsafe {
        let id = &get(id, "id")?.id;
        get_mut(qp, "queue pair")?.alone(|qp| match qp {
            AnyQp::Ud(qp) => call(id, qp),
            _ => Err(Failure::new(
                BW_ETRANSPORT,
                "datagrams are for queue pairs of BW_QPT_UD",
            )),
        })
    })
}

/// Moves a queue pair, of BW_QPT_UD and on the id's device, from RESET to RTS, with the id's port and
/// Q_Key.
///
/// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_start_qp(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    unsafe { with(id, qp, |id, qp| Ok(id.start_qp(qp)?)) }
}

/// Looks up a datagram service, with at most 180 bytes of private data (`rdma_connect` of an id for
/// datagrams). BW_CM_EVENT_ESTABLISHED reports its address; _REJECTED or _UNREACHABLE reports that
/// there is none.
///
/// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_lookup(
    id: *const bw_cm_id,
    data: *const c_void,
    length: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and memory.
    guard(|| unsafe { Ok(get(id, "id")?.id.lookup(private_data(data, length)?)?) })
}

/// Replies to a lookup, with at most 136 bytes of private data: this queue pair provides the service
/// (`rdma_accept` of an id for datagrams).
///
/// Errors: those of `bw_cm_lookup`, and `BW_EFOREIGN`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_reply(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    data: *const c_void,
    length: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles, threads and memory.
    unsafe {
        with(id, qp, |id, qp| {
            Ok(id.answer(qp, private_data(data, length)?)?)
        })
    }
}

/// Joins a multicast group by its address (`rdma_join_multicast`); if `send_only` is not 0, only to
/// send. The outcome is reported by BW_CM_EVENT_MULTICAST_JOIN or _MULTICAST_ERROR; then attach the
/// queue pair by `bw_qp_attach_mcast`.
///
/// Errors: `BW_ESTATE` if the id is not bound to a device, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_join(
    id: *const bw_cm_id,
    group: *const c_char,
    send_only: c_int,
) -> c_int {
    let membership = match send_only {
        0 => Membership::Full,
        _ => Membership::SendOnly,
    };
    // SAFETY: the header's conventions on handles and strings.
    guard(|| unsafe { Ok(get(id, "id")?.id.join(literal(group)?, membership)?) })
}

/// Leaves a multicast group (`rdma_leave_multicast`).
///
/// Errors: `BW_EINVAL`, `BW_ECONN` if it was not joined, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_leave(id: *const bw_cm_id, group: *const c_char) -> c_int {
    // SAFETY: the header's conventions on handles and strings.
    guard(|| unsafe { Ok(get(id, "id")?.id.leave(literal(group)?)?) })
}
