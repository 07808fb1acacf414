//! The steps of a connection.

use super::bw_cm_id;
use super::param::{bw_cm_param, private_data, read};
use super::{literal, milliseconds, peer};
use crate::code::BW_ETRANSPORT;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::memory::access;
use crate::qp::bw_qp;
use crate::transport::AnyQp;
use hw::Qp;
use hw::connect::cm::Id;
use std::ffi::{c_char, c_int, c_void};

/// Finds the device by which the peer is reached, and binds the id to it (`rdma_resolve_addr`):
/// BW_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR tells. The peer is an address of IPv4 or IPv6, or a name: of
/// a host, with the software device one of the programs' choosing. `source` is an address of this side,
/// or NULL.
///
/// Errors: `BW_ECONN` when there is no route, `BW_ESTATE`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_resolve_addr(
    id: *const bw_cm_id,
    source: *const c_char,
    host: *const c_char,
    port: u32,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the header on handles and strings.
    guard(|| unsafe {
        let id = &get(id, "id")?.id;
        let source = match source.is_null() {
            true => None,
            false => Some(literal(source)?),
        };
        Ok(id.resolve_addr(source, peer(host, port)?, milliseconds(timeout_ms))?)
    })
}

/// Finds the path to the peer (`rdma_resolve_route`): BW_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR tells.
///
/// Errors: `BW_ESTATE` when the address has not been resolved, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_resolve_route(id: *const bw_cm_id, timeout_ms: u32) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { Ok(get(id, "id")?.id.resolve_route(milliseconds(timeout_ms))?) })
}

/// Gives the id an address of this side (`rdma_bind_addr`): "0.0.0.0" or "::" is all there are, port 0
/// one that is free.
///
/// Errors: `BW_ECONN` (the port is in use, or the address none of this host's), `BW_ESTATE`,
/// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_bind(id: *const bw_cm_id, host: *const c_char, port: u32) -> c_int {
    // SAFETY: the header on handles and strings.
    guard(|| unsafe { Ok(get(id, "id")?.id.bind(peer(host, port)?)?) })
}

/// Waits for peers (`rdma_listen`): each is a BW_CM_EVENT_CONNECT_REQUEST. Those that wait to be got
/// beyond `backlog` are rejected.
///
/// Errors: `BW_ESTATE`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_listen(id: *const bw_cm_id, backlog: u32) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { Ok(get(id, "id")?.id.listen(backlog)?) })
}

/// Runs a call with an id and a queue pair of a reliable connection.
///
/// # Safety
/// The header on handles; the call is alone on the queue pair.
unsafe fn with(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    call: impl FnOnce(&Id, &mut Qp) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_or_own(id, qp, |id, qp| {
            call(id, qp.ok_or_else(|| Failure::null("queue pair"))?)
        })
    }
}

/// As [`with`]; NULL is the queue pair on the id.
///
/// # Safety
/// As there.
unsafe fn with_or_own(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    call: impl FnOnce(&Id, Option<&mut Qp>) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let id = &get(id, "id")?.id;
        if qp.is_null() {
            return call(id, None);
        }
        get_mut(qp, "queue pair")?.alone(|qp| match qp {
            AnyQp::Rc(qp) => call(id, Some(qp)),
            _ => Err(Failure::new(
                BW_ETRANSPORT,
                "the communication manager connects queue pairs of BW_QPT_RC",
            )),
        })
    })
}

/// Takes a queue pair, of BW_QPT_RC and on the id's device, from RESET to INIT: receives may be posted
/// from here on, and should be before `bw_cm_connect` or `bw_cm_accept`. `access_flags` are what the
/// peer may do.
///
/// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_init_qp(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    access_flags: u32,
) -> c_int {
    // SAFETY: the header on handles and threads.
    unsafe { with(id, qp, |id, qp| Ok(id.init_qp(qp, access(access_flags)?)?)) }
}

/// Asks the peer to connect with a queue pair that stays in INIT (`rdma_connect`).
/// BW_CM_EVENT_CONNECT_RESPONSE, _REJECTED, _UNREACHABLE or _CONNECT_ERROR tells. `param` may be NULL:
/// the default. `qp` may be NULL: the one on the id (`bw_cm_put_qp`), of which _ESTABLISHED tells.
///
/// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`,
/// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_connect(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    param: *const bw_cm_param,
) -> c_int {
    // SAFETY: the header on handles, threads and sized structs.
    unsafe {
        with_or_own(id, qp, |id, qp| {
            Ok(id.connect(qp.map(|qp| &*qp), &read(param)?)?)
        })
    }
}

/// After BW_CM_EVENT_CONNECT_RESPONSE: takes the queue pair to RTS, and tells the peer, whose
/// BW_CM_EVENT_ESTABLISHED it is (`rdma_establish`).
///
/// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_establish(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles and threads.
    unsafe { with(id, qp, |id, qp| Ok(id.establish(qp)?)) }
}

/// Accepts the request that the id came with (`rdma_accept`), and takes the queue pair from INIT to RTS.
/// BW_CM_EVENT_ESTABLISHED tells that the peer is ready, too: send nothing before. `param` may be NULL:
/// the default; and `qp`: the one on the id.
///
/// Errors: as `bw_cm_connect`; `BW_ESTATE` when it was accepted or rejected before, or the peer has
/// gone.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_accept(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    param: *const bw_cm_param,
) -> c_int {
    // SAFETY: the header on handles, threads and sized structs.
    unsafe { with_or_own(id, qp, |id, qp| Ok(id.accept(qp, &read(param)?)?)) }
}

/// Refuses the request that the id came with, and says why by private data, 148 bytes of it at the most
/// (`rdma_reject`).
///
/// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE` when it was accepted or rejected before,
/// `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_reject(
    id: *const bw_cm_id,
    data: *const c_void,
    length: u32,
) -> c_int {
    // SAFETY: the header on handles and memory.
    guard(|| unsafe { Ok(get(id, "id")?.id.reject(private_data(data, length)?)?) })
}

/// Ends the connection, or this end of one whose peer has ended it (`rdma_disconnect`): the queue pair
/// goes to ERR, where everything in flight is flushed and told. BW_CM_EVENT_DISCONNECTED tells when the
/// peer has ended it, too, BW_CM_EVENT_TIMEWAIT_EXIT when the queue pair can be connected again. `qp`
/// may be NULL: the one on the id.
///
/// Errors: `BW_ESTATE` when it is not connected: the queue pair is in ERR all the same. `BW_ETRANSPORT`,
/// `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_disconnect(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles and threads.
    unsafe { with_or_own(id, qp, |id, qp| Ok(id.disconnect(qp)?)) }
}
