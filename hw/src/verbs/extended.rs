//! Posting by `ibv_wr_*`, on queue pairs that have it.

use super::qp::Qp;
use super::request::{MAX_SGE, Operation, Request, elements};
use super::sys;
use bellwire_core::wqe::{Data, SendRing, SendWqe, SgeList};
use std::mem::MaybeUninit;

/// Posts the entries from `from` up to `to`; gives the first that was not taken.
///
/// # Safety
/// The caller is the queue pair's only poster, `qp` its extended form, and the entries are staged.
#[inline(always)]
pub(super) unsafe fn post(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    ring: SendRing<'static>,
    from: u32,
    to: u32,
) -> u32 {
    let (mut started, mut at) = (from, from);
    // SAFETY: alive, by the caller's promise.
    unsafe { sys::ibv_wr_start(qp) };
    while at != to {
        // SAFETY: staged, and not written before it completes.
        let wqe = unsafe { SendWqe::read(ring, at) };
        let Some(request) = Request::read(own, &wqe, at) else {
            break;
        };
        let next = at.wrapping_add(wqe.blocks());
        if let Operation::BindType1 { mw, info } = request.operation {
            // SAFETY: started.
            if unsafe { sys::ibv_wr_complete(qp) } != 0 {
                return started;
            }
            let taken = own.bind_type1(mw, info, &request);
            // SAFETY: completed before.
            unsafe { sys::ibv_wr_start(qp) };
            if !taken {
                break;
            }
            started = next;
        } else {
            // SAFETY: started.
            unsafe { build(qp, &request) };
        }
        at = next;
    }
    // SAFETY: started.
    match unsafe { sys::ibv_wr_complete(qp) } {
        0 => at,
        // None since the start was taken.
        _ => started,
    }
}

/// # Safety
/// Between start and complete; the queue pair was created with the operation.
#[inline(always)]
unsafe fn build(qp: *mut sys::ibv_qp_ex, request: &Request<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        (*qp).wr_id = request.wr_id;
        (*qp).wr_flags = request.flags | inline_flag(request.data);
        match request.operation {
            Operation::Send => sys::ibv_wr_send(qp),
            Operation::SendImm(imm) => sys::ibv_wr_send_imm(qp, imm),
            Operation::SendInv(key) => sys::ibv_wr_send_inv(qp, key),
            Operation::Write(to) => sys::ibv_wr_rdma_write(qp, to.rkey, to.addr),
            Operation::WriteImm(to, imm) => {
                sys::ibv_wr_rdma_write_imm(qp, to.rkey, to.addr, imm);
            }
            Operation::Read(from) => sys::ibv_wr_rdma_read(qp, from.rkey, from.addr),
            Operation::CmpSwp {
                remote,
                compare,
                swap,
            } => sys::ibv_wr_atomic_cmp_swp(qp, remote.rkey, remote.addr, compare, swap),
            Operation::FetchAdd(remote, add) => {
                sys::ibv_wr_atomic_fetch_add(qp, remote.rkey, remote.addr, add);
            }
            Operation::LocalInv(key) => return sys::ibv_wr_local_inv(qp, key),
            Operation::Bind { mw, rkey, ref info } => {
                sys::ibv_wr_bind_mw(qp, mw.as_ptr(), rkey, info);
                // libibverbs leaves that to the program.
                (*mw.as_ptr()).rkey = rkey;
                return;
            }
            Operation::BindType1 { .. } => return,
        }
        if let Some(to) = &request.to {
            sys::ibv_wr_set_ud_addr(qp, to.handle, to.qpn, to.qkey);
        }
        set_data(qp, request.data);
    }
}

/// What says that the data are bytes of the entry. By the setter alone rxe does not know it, and takes
/// the bytes for elements.
#[inline(always)]
fn inline_flag(mut data: SgeList<'_>) -> u32 {
    match data.next() {
        Some(Data::Inline(..)) => sys::ibv_send_flags::IBV_SEND_INLINE.0,
        _ => 0,
    }
}

/// # Safety
/// As [`build`], behind the operation.
#[inline(always)]
unsafe fn set_data(qp: *mut sys::ibv_qp_ex, data: SgeList<'_>) {
    let mut rest = data;
    match (rest.next(), rest.next()) {
        (Some(Data::Pointer(sge)), None) => {
            // SAFETY: the caller's promise.
            unsafe { sys::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length) };
        }
        (Some(Data::Inline(bytes, [])), None) => {
            let start = bytes.as_ptr().cast_mut().cast();
            // SAFETY: as above; the bytes are copied at once.
            unsafe { sys::ibv_wr_set_inline_data(qp, start, bytes.len()) };
        }
        // SAFETY: as above.
        _ => unsafe { set_list(qp, data) },
    }
}

/// # Safety
/// As [`set_data`].
#[inline(never)]
unsafe fn set_list(qp: *mut sys::ibv_qp_ex, data: SgeList<'_>) {
    let mut list = [const { MaybeUninit::<sys::ibv_sge>::uninit() }; MAX_SGE];
    let (count, is_inline) = elements(data, &mut list);
    if !is_inline {
        // SAFETY: the caller's promise; so many are written.
        return unsafe { sys::ibv_wr_set_sge_list(qp, count, list.as_ptr().cast()) };
    }
    let mut pieces = [const { MaybeUninit::<sys::ibv_data_buf>::uninit() }; 2];
    let count = count.min(pieces.len());
    for (piece, element) in pieces.iter_mut().zip(&list[..count]) {
        // SAFETY: as above.
        let element = unsafe { element.assume_init_ref() };
        piece.write(sys::ibv_data_buf {
            addr: std::ptr::with_exposed_provenance_mut(element.addr as usize),
            length: element.length as usize,
        });
    }
    // SAFETY: as above; the bytes are copied at once.
    unsafe { sys::ibv_wr_set_inline_data_list(qp, count, pieces.as_ptr().cast()) };
}
