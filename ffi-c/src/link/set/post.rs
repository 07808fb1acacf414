//! Posting to a link of a set: the data path.

use super::super::code::link_code;
use super::super::post::{post_one, post_recvs, post_sends};
use super::{bw_link_id, bw_link_set};
use crate::array::post_older;
use crate::code::*;
use crate::direct::{at, element};
use crate::post::bytes;
use crate::wr::{bw_recv_wr, bw_send_wr, bw_sge};
use hw::link::{LinkId, SetLink};
use hw::wqe::{Inline, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports};
use std::ffi::{c_int, c_void};

/// The link of a handle, and the elements that its requests can have.
///
/// # Safety
/// The caller keeps the header's conventions on handles, and owns the set.
#[inline(always)]
unsafe fn find<'a>(
    set: *mut bw_link_set,
    link: bw_link_id,
) -> Result<(SetLink<'a>, u32), bw_error> {
    // SAFETY: the caller keeps the header's conventions on handles, and owns the set.
    let set = unsafe { set.as_mut() }.ok_or(BW_ENULL)?;
    match set.set.link(LinkId::from_raw(link)) {
        Ok(link) => Ok((link, set.max_send_sge)),
        Err(_) => Err(BW_ENOLINK),
    }
}

/// Posts one request.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post<O: Operation, P: Payload>(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    operation: O,
    payload: Option<P>,
    send_flags: u32,
    replay: u32,
) -> c_int
where
    Rc: Supports<O>,
{
    // SAFETY: the header's conventions on handles; the caller owns the set.
    let mut link = unsafe { find(set, link) }.map(|(link, _)| link);
    let link = link.as_mut().map_err(|code| *code);
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe { post_one(link, wr_id, operation, payload, send_flags, replay) }
}

/// `bw_link_set_post_send` for requests of `size` bytes: as `bw_link_post_send`, on a link of the set.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_send_sized(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr: *const bw_send_wr,
    size: usize,
    num: u32,
    replay: u32,
    bad_wr: *mut *const bw_send_wr,
) -> c_int {
    if size != size_of::<bw_send_wr>() {
        let size_of = size_of::<bw_send_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe {
            bw_link_set_post_send_sized(set, link, wr, size_of, num, replay, bad_wr)
        };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles; the caller owns the set.
    match unsafe { find(set, link) } {
        // SAFETY: the header's conventions on posting.
        Ok((mut link, max_send_sge)) => unsafe {
            post_sends(&mut link, max_send_sge, wr, num, replay, bad_wr)
        },
        Err(code) => code as c_int,
    }
}

/// Posts an RDMA WRITE to a link of the set, as `bw_link_post_write` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_write(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    sge: *const bw_sge,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
    replay: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    let write = RdmaWrite { remote };
    // SAFETY: the header's conventions on posting.
    unsafe { post(set, link, wr_id, write, element(sge), send_flags, replay) }
}

/// Posts an RDMA WRITE of inline data to a link of the set, as `bw_link_post_write_inline` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_write_inline(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    data: *const c_void,
    length: u32,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
    replay: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    let write = RdmaWrite { remote };
    // SAFETY: the header's conventions on posting.
    unsafe {
        let payload = bytes(data, length).map(Inline);
        post(set, link, wr_id, write, payload, send_flags, replay)
    }
}

/// Posts an RDMA READ to a link of the set, as `bw_link_post_read` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_read(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    sge: *const bw_sge,
    remote_addr: u64,
    rkey: u32,
    send_flags: u32,
    replay: u32,
) -> c_int {
    let remote = at(remote_addr, rkey);
    let read = RdmaRead { remote };
    // SAFETY: the header's conventions on posting.
    unsafe { post(set, link, wr_id, read, element(sge), send_flags, replay) }
}

/// Posts a SEND to a link of the set, as `bw_link_post_send_one` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_send_one(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    sge: *const bw_sge,
    send_flags: u32,
    replay: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe { post(set, link, wr_id, Send {}, element(sge), send_flags, replay) }
}

/// Posts a SEND of inline data to a link of the set, as `bw_link_post_send_inline` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_send_inline(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    data: *const c_void,
    length: u32,
    send_flags: u32,
    replay: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe {
        let payload = bytes(data, length).map(Inline);
        post(set, link, wr_id, Send {}, payload, send_flags, replay)
    }
}

/// Notifies the device of the send requests of a link of the set that were posted one by one.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_ring_sq(set: *mut bw_link_set, link: bw_link_id) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the set.
    match unsafe { find(set, link) } {
        Ok((mut link, _)) => {
            link.ring();
            BW_OK as c_int
        }
        Err(code) => code as c_int,
    }
}

/// `bw_link_set_post_recv` for requests of `size` bytes: as `bw_link_post_recv`, on a link of the set.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_recv`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_recv_sized(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr: *const bw_recv_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    if size != size_of::<bw_recv_wr>() {
        let size_of = size_of::<bw_recv_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe {
            bw_link_set_post_recv_sized(set, link, wr, size_of, num, bad_wr)
        };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles; the caller owns the set.
    match unsafe { find(set, link) } {
        // SAFETY: the header's conventions on posting.
        Ok((mut link, _)) => unsafe { post_recvs(&mut link, wr, num, bad_wr) },
        Err(code) => code as c_int,
    }
}

/// Posts a receive to a link of the set, as `bw_link_post_recv_one` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_recv`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_recv_one(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    sge: *const bw_sge,
) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the set.
    let (mut link, _) = match unsafe { find(set, link) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header's conventions on posting.
    let Some(sge) = (unsafe { element(sge) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the header's conventions on posting.
    match unsafe { link.post_recv(wr_id, &[sge]) } {
        Ok(()) => BW_OK as c_int,
        Err(error) => link_code(error) as c_int,
    }
}

/// Notifies the device of the receives of a link of the set that were posted one by one.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_ring_rq(set: *mut bw_link_set, link: bw_link_id) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the set.
    match unsafe { find(set, link) } {
        Ok((mut link, _)) => {
            link.ring_recv();
            BW_OK as c_int
        }
        Err(code) => code as c_int,
    }
}
