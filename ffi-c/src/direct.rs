//! Posting single requests, each by a function of its own, and ringing the doorbell: the data path.

use crate::code::*;
use crate::failure::post_code;
use crate::post::{bytes, flags, rq, sq};
use crate::qp::bw_qp;
use crate::transport::{AnySq, each};
use crate::wr::bw_sge;
use hw::QpSendQueue;
use hw::queue::PostError;
use hw::wqe::{Inline, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports, Transport, Uc};
use hw::wr::{Remote, Sge};
use std::ffi::{c_int, c_void};

#[inline(always)]
fn done(result: Result<(), PostError>) -> c_int {
    match result {
        Ok(()) => BW_OK as c_int,
        Err(error) => post_code(error) as c_int,
    }
}

/// Posts to a queue whose requests need no address.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_on<T, O: Operation, P: Payload>(
    sq: &mut QpSendQueue<'_, T>,
    wr_id: u64,
    operation: O,
    payload: Option<P>,
    send_flags: u32,
) -> c_int
where
    T: hw::Connected + Supports<O>,
    T: for<'a> Transport<Address<'a> = ()>,
{
    let Some(payload) = payload else {
        return BW_ENULL as c_int;
    };
    let Some(flags) = flags(send_flags) else {
        return BW_EINVAL as c_int;
    };
    // SAFETY: the caller keeps the header's conventions on posting, also for the memory of the request.
    done(unsafe { sq.post(wr_id, (), operation, payload, flags) })
}

/// Posts one request to a connection, RC or UC.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post<O: Operation, P: Payload>(
    qp: *mut bw_qp,
    wr_id: u64,
    operation: O,
    payload: Option<P>,
    send_flags: u32,
) -> c_int
where
    Rc: Supports<O>,
    Uc: Supports<O>,
{
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        match sq(qp) {
            Ok((AnySq::Rc(sq), _inside)) => post_on(sq, wr_id, operation, payload, send_flags),
            Ok((AnySq::Uc(sq), _inside)) => post_on(sq, wr_id, operation, payload, send_flags),
            Ok((AnySq::Ud(_) | AnySq::Xrc(_), _)) => BW_EOPCODE as c_int,
            Err(code) => code as c_int,
        }
    }
}

/// The peer's memory that a request names.
#[inline(always)]
pub(crate) const fn at(addr: u64, rkey: u32) -> Remote {
    Remote { addr, rkey }
}

/// # Safety
/// `sge` is NULL or points to a scatter/gather element.
#[inline(always)]
pub(crate) unsafe fn element(sge: *const bw_sge) -> Option<Sge> {
    // SAFETY: both types have the same layout; the caller guarantees NULL or an element.
    unsafe { sge.cast::<Sge>().as_ref().copied() }
}

/// Posts an RDMA WRITE of the memory that `sge` names; the device is not notified before `bw_ring_sq`.
/// This and the following functions are for connections, BW_QPT_RC and BW_QPT_UC, whose requests need
/// no address. BW_SEND_INLINE in `send_flags` has no effect on them: the function decides whether the
/// data is inline.
///
/// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_write(
    qp: *mut bw_qp,
    wr_id: u64,
    sge: *const bw_sge,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    // SAFETY: the header's conventions on posting.
    unsafe { post(qp, wr_id, RdmaWrite { remote }, element(sge), send_flags) }
}

/// Posts an RDMA WRITE of `length` bytes at `data` inline: the memory need not be registered, and may
/// be reused when this returns.
///
/// Errors: those of `bw_post_send`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_write_inline(
    qp: *mut bw_qp,
    wr_id: u64,
    data: *const c_void,
    length: u32,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    // SAFETY: the header's conventions on posting.
    unsafe {
        let payload = bytes(data, length).map(Inline);
        post(qp, wr_id, RdmaWrite { remote }, payload, send_flags)
    }
}

/// Posts an RDMA READ into the memory that `sge` names.
///
/// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_read(
    qp: *mut bw_qp,
    wr_id: u64,
    sge: *const bw_sge,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    // SAFETY: the header's conventions on posting.
    unsafe {
        match sq(qp) {
            Ok((AnySq::Rc(sq), _inside)) => {
                post_on(sq, wr_id, RdmaRead { remote }, element(sge), send_flags)
            }
            Ok(_) => BW_EOPCODE as c_int,
            Err(code) => code as c_int,
        }
    }
}

/// Posts a SEND of the memory that `sge` names.
///
/// Errors: those of `bw_post_send`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_send_one(
    qp: *mut bw_qp,
    wr_id: u64,
    sge: *const bw_sge,
    send_flags: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe { post(qp, wr_id, Send {}, element(sge), send_flags) }
}

/// Posts a SEND of `length` bytes at `data` inline, as `bw_post_write_inline` does.
///
/// Errors: those of `bw_post_send`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_send_inline(
    qp: *mut bw_qp,
    wr_id: u64,
    data: *const c_void,
    length: u32,
    send_flags: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe {
        post(
            qp,
            wr_id,
            Send {},
            bytes(data, length).map(Inline),
            send_flags,
        )
    }
}

/// Posts a receive into the memory that `sge` names. The device is not notified before `bw_ring_rq`.
///
/// Errors: those of `bw_post_recv`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_recv_one(qp: *mut bw_qp, wr_id: u64, sge: *const bw_sge) -> c_int {
    // SAFETY: the header's conventions on posting.
    let (rq, _inside) = match unsafe { rq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header's conventions on posting.
    let Some(sge) = (unsafe { element(sge) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the header's conventions on posting.
    done(unsafe { rq.post(wr_id, &[sge]) })
}

/// Notifies the device of the send requests posted one by one since the last ring. A software device in
/// BW_SOFT_INLINE executes them in this call.
///
/// Errors: `BW_ESTATE` while the queue pair is on an id, `BW_ENULL`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ring_sq(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    let (sq, _inside) = match unsafe { sq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    each!(AnySq, sq, sq => sq.ring());
    BW_OK as c_int
}

/// Notifies the device of the receives posted one by one since the last ring.
///
/// Errors: `BW_ESTATE` while the queue pair is on an id, `BW_ENULL`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ring_rq(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    let (rq, _inside) = match unsafe { rq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    rq.ring();
    BW_OK as c_int
}
