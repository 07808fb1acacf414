//! Posting arrays of requests of one operation: the data path.

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

/// An RDMA WRITE or READ of a connection, of one element: smaller than a `bw_send_wr`, and quicker to
/// post.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_rdma_wr {
    /// The program's identifier, which the completion has.
    pub wr_id: u64,
    /// The local memory.
    pub sge: bw_sge,
    /// The peer's memory.
    pub remote_addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// `bw_send_flags`. BW_SEND_INLINE has no effect: the functions' names say it.
    pub send_flags: u32,
}

/// Posts an array to a queue whose requests need no address, and rings.
///
/// # Safety
/// The header on posting; the queue is good and the caller's own.
#[inline(always)]
unsafe fn post_on<T, O: Operation, P: Payload>(
    sq: *mut QpSendQueue<T>,
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
    // SAFETY: the caller's promise, about the memory too.
    unsafe {
        let list = match array(wr, num) {
            Ok(list) => list,
            Err(code) => return code as c_int,
        };
        let sq = &mut *sq;
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
/// As [`post_on`].
#[inline(always)]
unsafe fn post_writes<P: Payload>(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
    payload: impl Fn(&bw_sge) -> Option<P>,
) -> c_int {
    let write = |remote| RdmaWrite { remote };
    // SAFETY: the caller's promise.
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

/// Posts the `num` RDMA WRITEs of the array `wr`, in order, and tells the device of them, and of what
/// was posted one by one before; else as `bw_post_send`.
///
/// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC and BW_QPT_UC.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_writes(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    // SAFETY: the header on posting.
    unsafe { post_writes(qp, wr, num, bad_wr, element) }
}

/// As `bw_post_writes`, of the bytes at `sge.addr`, which travel within the requests: their memory
/// need not be registered, and may be reused when this returns. `sge.lkey` is not looked at.
///
/// Errors: those of `bw_post_writes`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_writes_inline(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    let data = |sge: &bw_sge| {
        let data = std::ptr::with_exposed_provenance(sge.addr as usize);
        // SAFETY: the header on posting: the bytes are there, and nobody writes them meanwhile.
        unsafe { bytes(data, sge.length) }.map(Inline)
    };
    // SAFETY: the header on posting.
    unsafe { post_writes(qp, wr, num, bad_wr, data) }
}

/// As `bw_post_writes`, of RDMA READs into the memory that `sge` names.
///
/// Errors: those of `bw_post_writes`; `BW_EOPCODE` on other transports than BW_QPT_RC.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_reads(
    qp: *mut bw_qp,
    wr: *const bw_rdma_wr,
    num: u32,
    bad_wr: *mut *const bw_rdma_wr,
) -> c_int {
    let read = |remote| RdmaRead { remote };
    // SAFETY: the header on posting.
    unsafe {
        match sq(qp) {
            Ok((AnySq::Rc(sq), _inside)) => post_on(sq, wr, num, bad_wr, read, element),
            Ok(_) => BW_EOPCODE as c_int,
            Err(code) => code as c_int,
        }
    }
}
