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

/// Finds the device through which the peer is reached, and binds the id to it (`rdma_resolve_addr`).
/// The outcome is reported by BW_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR. The peer is an IPv4 or IPv6
/// address, or a host name, which is resolved within this call and the timeout. `source` is a local
/// address, or NULL. A link-local address names its interface, as in "fe80::1%eth0".
///
/// If a name has several addresses, they are tried in the resolver's order. The next one is tried
/// when an address or its route cannot be resolved, or when nothing listens at it. It is also tried
/// when no peer responds to `bw_cm_connect` or `bw_cm_lookup`. They share the timeout. The id
/// delivers the events of one attempt only, and the failure of the last; `bw_cm_tried` returns all.
/// Meanwhile its channel's events have to be got, and the id's addresses change. An address that
/// leads to another device than the first one that was resolved is not used.
///
/// Errors: `BW_ECONN` if there is no route, or `source` is not an address of this host; `BW_ESTATE`,
/// `BW_EINVAL`, `BW_EOTHER` (also for a name that is not resolved), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_resolve_addr(
    id: *const bw_cm_id,
    source: *const c_char,
    host: *const c_char,
    port: u32,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and strings.
    guard(|| unsafe {
        let id = &get(id, "id")?.id;
        let source = match source.is_null() {
            true => None,
            false => Some(literal(source)?),
        };
        Ok(id.resolve_addr(source, peer(host, port)?, milliseconds(timeout_ms))?)
    })
}

/// Finds the path to the peer (`rdma_resolve_route`). The outcome is reported by
/// BW_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR.
///
/// Errors: `BW_ESTATE` if the address has not been resolved, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_resolve_route(id: *const bw_cm_id, timeout_ms: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(id, "id")?.id.resolve_route(milliseconds(timeout_ms))?) })
}

/// Binds the id to a local address (`rdma_bind_addr`): "0.0.0.0" or "::" means all addresses, port 0 a
/// free one. A name stands for the first of its addresses that the id can be bound to; a link-local address
/// names its interface, as in "fe80::1%eth0".
///
/// Errors: `BW_ECONN` (the port is in use, or the address is not one of this host), `BW_ESTATE`,
/// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_bind(id: *const bw_cm_id, host: *const c_char, port: u32) -> c_int {
    // SAFETY: the header's conventions on handles and strings.
    guard(|| unsafe { Ok(get(id, "id")?.id.bind(peer(host, port)?)?) })
}

/// Listens for peers (`rdma_listen`): each raises BW_CM_EVENT_CONNECT_REQUEST. Requests that wait to be
/// taken beyond `backlog` are rejected.
///
/// Errors: `BW_ESTATE`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_listen(id: *const bw_cm_id, backlog: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(id, "id")?.id.listen(backlog)?) })
}

/// Runs a call with an id and a queue pair of a reliable connection.
///
/// # Safety
/// The caller keeps the header's conventions on handles; the call is alone on the queue pair.
unsafe fn with(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    call: impl FnOnce(&Id, &mut Qp) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller keeps the header's conventions on handles; the call is alone on the queue pair.
    unsafe {
        with_or_own(id, qp, |id, qp| {
            call(id, qp.ok_or_else(|| Failure::null("queue pair"))?)
        })
    }
}

/// As [`with`], but NULL means the queue pair on the id.
///
/// # Safety
/// That of [`with`].
unsafe fn with_or_own(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    call: impl FnOnce(&Id, Option<&mut Qp>) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller guarantees valid handles, and that nothing else uses the queue pair meanwhile.
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

/// Moves a queue pair, of BW_QPT_RC and on the id's device, from RESET to INIT. Receives may be
/// posted from here on, and should be before `bw_cm_connect` or `bw_cm_accept`. `access_flags` say
/// what the peer may do.
///
/// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_init_qp(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    access_flags: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    unsafe { with(id, qp, |id, qp| Ok(id.init_qp(qp, access(access_flags)?)?)) }
}

/// Asks the peer to connect with a queue pair that stays in INIT (`rdma_connect`). The outcome is
/// reported by BW_CM_EVENT_CONNECT_RESPONSE, _REJECTED, _UNREACHABLE or _CONNECT_ERROR. If `param` is
/// NULL the defaults are used. If `qp` is NULL the queue pair on the id is used (`bw_cm_attach_qp`), and
/// success is reported by _ESTABLISHED.
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
    // SAFETY: the header's conventions on handles, threads and sized structs.
    unsafe {
        with_or_own(id, qp, |id, qp| {
            Ok(id.connect(qp.map(|qp| &*qp), &read(param)?)?)
        })
    }
}

/// Moves the queue pair to RTS after BW_CM_EVENT_CONNECT_RESPONSE, and informs the peer, which gets
/// BW_CM_EVENT_ESTABLISHED (`rdma_establish`).
///
/// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_establish(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    unsafe { with(id, qp, |id, qp| Ok(id.establish(qp)?)) }
}

/// Accepts the request that the id arrived with (`rdma_accept`), and moves the queue pair from INIT to
/// RTS. BW_CM_EVENT_ESTABLISHED reports that the peer is ready, too: do not send before. If `param` is
/// NULL the defaults are used; if `qp` is NULL the queue pair on the id is used.
///
/// Errors: those of `bw_cm_connect`; `BW_ESTATE` if the request was accepted or rejected before, or the
/// peer has gone.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_accept(
    id: *const bw_cm_id,
    qp: *mut bw_qp,
    param: *const bw_cm_param,
) -> c_int {
    // SAFETY: the header's conventions on handles, threads and sized structs.
    unsafe { with_or_own(id, qp, |id, qp| Ok(id.accept(qp, &read(param)?)?)) }
}

/// Rejects the request that the id arrived with (`rdma_reject`). The private data, at most 148 bytes,
/// can say why.
///
/// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE` if the request was accepted or rejected
/// before, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_reject(
    id: *const bw_cm_id,
    data: *const c_void,
    length: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and memory.
    guard(|| unsafe { Ok(get(id, "id")?.id.reject(private_data(data, length)?)?) })
}

/// Ends the connection, or this end of one that the peer has ended (`rdma_disconnect`). The queue
/// pair is moved to ERR, where everything in flight is flushed and reported.
/// BW_CM_EVENT_DISCONNECTED reports that the peer has ended it, too, BW_CM_EVENT_TIMEWAIT_EXIT that
/// the queue pair can be connected again. If `qp` is NULL the queue pair on the id is used.
///
/// Errors: `BW_ESTATE` if it is not connected: the queue pair is moved to ERR all the same.
/// `BW_ETRANSPORT`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_disconnect(id: *const bw_cm_id, qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles and threads.
    unsafe { with_or_own(id, qp, |id, qp| Ok(id.disconnect(qp)?)) }
}
