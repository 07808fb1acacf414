//! Posting arrays of requests of one operation: the data path.

use crate::array::{Element, post_older};
use crate::code::*;
use crate::failure::post_code;
use crate::post::{array, bytes, flags, refuse, sq};
use crate::qp::bw_qp;
use crate::transport::AnySq;
use crate::wr::bw_sge;
use hw::QpSendQueue;
use hw::queue::SendRequest;
use hw::wqe::{Inline, Operation, Payload, RdmaRead, RdmaWrite, Supports, Transport};
use hw::wr::{Remote, Sge};
use std::cell::Cell;
use std::ffi::c_int;

/// An RDMA WRITE or READ on a connection, with one element: smaller than a `bw_send_wr`, and faster to
/// post.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_rdma_wr {
    /// The program's identifier, which is in the completion.
    pub wr_id: u64,
    /// The local memory.
    pub sge: bw_sge,
    /// The peer's memory.
    pub remote_addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// `bw_send_flags`. BW_SEND_INLINE has no effect: the function decides whether the data is inline.
    pub send_flags: u32,
}

const SIZE: usize = size_of::<bw_rdma_wr>();

// SAFETY: repr(C), integers only.
unsafe impl Element for bw_rdma_wr {
    const SIZES: &'static [usize] = &[SIZE];
}

/// Posts an array to a queue whose requests need no address, and rings the doorbell.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_on<T, O: Operation, P: Payload>(
    sq: &mut QpSendQueue<'_, T>,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
    operation: impl Fn(Remote) -> O,
    payload: impl Fn(&bw_sge) -> Option<P>,
) -> c_int
where
    T: hw::Connected + Supports<O>,
    T: for<'a> Transport<Address<'a> = ()>,
{
    let request = |wr: &bw_rdma_wr| {
        let remote = Remote {
            addr: wr.remote_addr,
            rkey: wr.rkey,
        };
        Ok(SendRequest {
            wr_id: wr.wr_id,
            address: (),
            operation: operation(remote),
            payload: payload(&wr.sge).ok_or(BW_ENULL)?,
            flags: flags(wr.send_flags).ok_or(BW_EINVAL)?,
        })
    };
    // SAFETY: the caller keeps the header's conventions on posting, also for the memory of the
    // requests.
    unsafe {
        let list = match array(wr, num) {
            Ok(list) => list,
            Err(code) => return code as c_int,
        };
        let code = Cell::new(BW_OK);
        let posted = sq.post_list(list, |wr| request(wr).map_err(|bad| code.set(bad)).ok());
        sq.ring();
        let (index, code) = match posted {
            Ok(index) => (index, code.get()),
            Err(bad) => (bad.index, post_code(bad.error)),
        };
        match list.get(index) {
            Some(wr) => refuse(wr, bad_wr, code),
            None => BW_OK as c_int,
        }
    }
}

/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_writes<P: Payload>(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
    payload: impl Fn(&bw_sge) -> Option<P>,
) -> c_int {
    let write = |remote| RdmaWrite { remote };
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        match sq(qp) {
            Ok((AnySq::Rc(sq), _inside)) => post_on(sq, wr, num, bad_wr, write, payload),
            Ok((AnySq::Uc(sq), _inside)) => post_on(sq, wr, num, bad_wr, write, payload),
            Ok((AnySq::Ud(_) | AnySq::Xrc(_), _)) => BW_EOPCODE as c_int,
            Err(code) => code as c_int,
        }
    }
}

#[inline(always)]
#[allow(clippy::unnecessary_wraps, reason = "inline bytes may be NULL")]
fn element(sge: &bw_sge) -> Option<Sge> {
    Some(Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    })
}

/// `bw_post_writes` for requests of `size` bytes: posts the `num` RDMA WRITEs of the array `wr`, in
/// order, and notifies the device. Requests posted one by one before are notified too. Otherwise as
/// `bw_post_send`.
///
/// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC and BW_QPT_UC.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_writes_sized(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe { bw_post_writes_sized(qp, wr, SIZE, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on posting.
    unsafe { post_writes(qp, wr, num, bad_wr, element) }
}

/// `bw_post_writes_inline` for requests of `size` bytes: as `bw_post_writes`, with the bytes at
/// `sge.addr` inline. Their memory need not be registered, and may be reused when this returns.
/// `sge.lkey` is ignored.
///
/// Errors: those of `bw_post_writes`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_writes_inline_sized(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles and posting.
        let post =
            |wr, num, bad_wr| unsafe { bw_post_writes_inline_sized(qp, wr, SIZE, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    let data = |sge: &bw_sge| {
        let data = std::ptr::with_exposed_provenance(sge.addr as usize);
        // SAFETY: the header's conventions on posting: the bytes exist, and nothing writes them
        // meanwhile.
        unsafe { bytes(data, sge.length) }.map(Inline)
    };
    // SAFETY: the header's conventions on posting.
    unsafe { post_writes(qp, wr, num, bad_wr, data) }
}

/// `bw_post_reads` for requests of `size` bytes: as `bw_post_writes`, for RDMA READs into the memory that `sge` names.
///
/// Errors: those of `bw_post_writes`; `BW_EOPCODE` on other transports than BW_QPT_RC.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_reads_sized(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe { bw_post_reads_sized(qp, wr, SIZE, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    let read = |remote| RdmaRead { remote };
    // SAFETY: the header's conventions on posting.
    unsafe {
        match sq(qp) {
            Ok((AnySq::Rc(sq), _inside)) => post_on(sq, wr, num, bad_wr, read, element),
            Ok(_) => BW_EOPCODE as c_int,
            Err(code) => code as c_int,
        }
    }
}
