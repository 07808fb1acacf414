//! Posting by `ibv_wr_*`, on queue pairs that have it.
//!
//! rxe in libibverbs 44 gets three things wrong here. It takes inline bytes for elements, unless the
//! flags say that they are inline; so they do. It takes the first element's length for that of all;
//! so requests of more elements go by `ibv_post_send`. It counts no bytes of an inline list; so what
//! runs over the ring's end is put together before.

use super::chain::Chain;
use super::qp::Qp;
use super::request::{Operation, Payload, Request};
use super::sys;
use bellwire_core::wqe::{SendRing, SendWqe, opcode};
use std::ptr::null_mut;

/// Bytes of the longest entry: no inline data are longer.
const LONGEST: usize = 63 * 16;

/// Posts the entries from `from` up to `to`; gives the first that was not taken. `alone` posts those
/// that cannot be posted so.
///
/// # Safety
/// The caller is the queue pair's only poster, `qp` its extended form, and the entries are staged.
#[inline(always)]
pub(super) unsafe fn post(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    alone: &mut Chain,
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
        let next = at.wrapping_add(wqe.blocks());
        // What there is most of has code of its own.
        // SAFETY: started.
        let posted = unsafe {
            match wqe.opcode() {
                opcode::RDMA_WRITE => post_one(own, qp, &wqe, opcode::RDMA_WRITE, at),
                opcode::SEND => post_one(own, qp, &wqe, opcode::SEND, at),
                opcode::RDMA_READ => post_one(own, qp, &wqe, opcode::RDMA_READ, at),
                other => post_one(own, qp, &wqe, other, at),
            }
        };
        match posted {
            Posted::Built => {}
            Posted::Refused => break,
            Posted::Alone => {
                // SAFETY: started.
                if unsafe { sys::ibv_wr_complete(qp) } != 0 {
                    return started;
                }
                let taken = alone.post_alone(own, &wqe, at);
                // SAFETY: completed before.
                unsafe { sys::ibv_wr_start(qp) };
                started = at;
                if !taken {
                    break;
                }
                started = next;
            }
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

/// What became of an entry.
enum Posted {
    Built,
    /// It cannot be posted so.
    Alone,
    Refused,
}

/// # Safety
/// Between start and complete; the entry has this opcode.
#[inline(always)]
unsafe fn post_one(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: &SendWqe<'_>,
    opcode: u8,
    counter: u32,
) -> Posted {
    let Some(request) = Request::read(own, wqe, opcode, counter) else {
        return Posted::Refused;
    };
    let payload = Payload::of(request.data);
    if matches!(payload, Payload::List) || matches!(request.operation, Operation::BindType1 { .. })
    {
        return Posted::Alone;
    }
    // SAFETY: the caller's promise; the queue pair has the operations that `read` gives.
    unsafe { build(qp, &request, payload) };
    Posted::Built
}

/// # Safety
/// Between start and complete; the queue pair was created with the operation.
#[inline(always)]
unsafe fn build(qp: *mut sys::ibv_qp_ex, request: &Request<'_>, payload: Payload<'_>) {
    let inline = match payload {
        Payload::Inline(..) => sys::ibv_send_flags::IBV_SEND_INLINE.0,
        _ => 0,
    };
    // SAFETY: the caller's promise.
    unsafe {
        (*qp).wr_id = request.wr_id;
        (*qp).wr_flags = request.flags | inline;
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
        match payload {
            Payload::One(sge) => sys::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length),
            // The bytes are copied at once.
            Payload::Inline(bytes, []) => {
                sys::ibv_wr_set_inline_data(qp, bytes.as_ptr().cast_mut().cast(), bytes.len());
            }
            Payload::Inline(head, tail) => set_inline(qp, head, tail),
            Payload::Empty | Payload::List => sys::ibv_wr_set_sge_list(qp, 0, null_mut()),
        }
    }
}

/// # Safety
/// As [`build`], behind the operation.
#[inline(never)]
unsafe fn set_inline(qp: *mut sys::ibv_qp_ex, head: &[u8], tail: &[u8]) {
    let mut bytes = [0; LONGEST];
    let (tail_at, length) = (head.len(), head.len() + tail.len());
    // Parts of one entry.
    bytes[..tail_at].copy_from_slice(head);
    bytes[tail_at..length].copy_from_slice(tail);
    // SAFETY: the caller's promise; the bytes are copied at once.
    unsafe { sys::ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), length) };
}
