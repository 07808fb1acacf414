//! Posting by `ibv_wr_*`, on queue pairs that have these calls.
//!
//! rxe in libibverbs 44 has three bugs here, which this module works around. It takes inline data for
//! scatter/gather elements unless the flags contain IBV_SEND_INLINE, so the flags contain it. It takes the
//! length of the first element for that of all, so requests of several elements are posted by
//! `ibv_post_send`. It does not count the bytes of an inline list, so inline data that wrap around the end of
//! the ring are put together first.

use super::calls::Poster;
use super::chain::Chain;
use super::operation::Operation;
use super::qp::Qp;
use super::request::{Payload, Request, To, flags};
use super::sys;
use super::tag::Kind;
use bellwire_core::be::Be32;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::port::LastEntry;
use bellwire_core::wqe::{
    BASIC_BLOCK, DataSegment, RaddrSegment, SEGMENT, SendRing, SendWqe, data_offset,
};
use bellwire_core::wr::{QpType, Remote, Sge};
use std::ptr::{NonNull, null_mut};

const INLINE: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

/// Bytes of the longest entry: inline data are never longer.
const LONGEST: usize = 63 * 16;

/// Offset of the data in the entry of a request of a connected queue pair.
const fn data_at(opcode: u8) -> usize {
    match WrOpcode::of_opcode(opcode) {
        Some(operation) => data_offset(operation, QpType::Rc),
        None => SEGMENT,
    }
}

/// Whether an entry with this opcode, whose data are in one piece, holds them inline: within the first basic
/// block, which never wraps around the end of the ring. If not, it has one scatter/gather element. `None`:
/// its data are not in one piece.
#[inline(always)]
pub(super) fn in_one_piece<const OPCODE: u8>(known: LastEntry) -> Option<bool> {
    let room = const { BASIC_BLOCK - data_at(OPCODE) - size_of::<Be32>() };
    let one = match known.inline() {
        0 => usize::from(known.ds()) == const { data_at(OPCODE) / SEGMENT + 1 },
        bytes => usize::from(bytes) <= room && OPCODE != opcode::RDMA_READ,
    };
    one.then_some(known.inline() != 0)
}

/// Posts an entry of a connected queue pair with this opcode, whose data are [in one piece](in_one_piece):
/// `inline` bytes, or one element. Returns whether libibverbs took it.
///
/// # Safety
/// Those of [`post`], for `qp`; the opcode is SEND, RDMA_WRITE or RDMA_READ.
#[inline(always)]
pub(super) unsafe fn post_known<const OPCODE: u8, const IS_INLINE: bool>(
    own: &Qp,
    qp: Poster,
    entry: NonNull<u8>,
    counter: u32,
    fm_ce_se: u8,
    inline: u16,
) -> bool {
    let tag = match OPCODE {
        opcode::RDMA_READ => own.send_tag().with(Kind::Fetch),
        _ => own.send_tag(),
    };
    let flags = flags(fm_ce_se) | if IS_INLINE { INLINE } else { 0 };
    // SAFETY: the entry is staged, so its first block can be read, and has the segments of its operation; the
    // caller guarantees that this is the only poster, and that the queue pair is alive.
    unsafe {
        // From here on no other thread posts, not even the last request of a drain that posting a receive
        // begins.
        qp.start();
        (*qp.as_ptr()).wr_id = tag.of(counter);
        (*qp.as_ptr()).wr_flags = flags;
        let remote = || Remote::from(entry.add(SEGMENT).cast::<RaddrSegment>().read());
        match OPCODE {
            opcode::SEND => qp.send(),
            opcode::RDMA_WRITE => {
                let Remote { addr, rkey } = remote();
                qp.write(rkey, addr);
            }
            _ => {
                let Remote { addr, rkey } = remote();
                qp.read(rkey, addr);
            }
        }
        let data = entry.add(const { data_at(OPCODE) });
        if IS_INLINE {
            // libibverbs copies the bytes at once.
            let bytes = data.add(size_of::<Be32>());
            qp.set_inline(bytes.as_ptr().cast(), inline.into());
        } else {
            let sge = Sge::from(data.cast::<DataSegment>().read());
            qp.set_sge(sge.lkey, sge.addr, sge.length);
        }
        match qp.complete() {
            0 => true,
            answer => own.note_answer(answer),
        }
    }
}

/// Posts the entries from `from` up to `to`; returns the counter of the first one that was not taken.
///
/// # Safety
/// The caller is the queue pair's only poster, `qp` is its extended form, `ADDRESS` is the kind of address
/// that its requests have, and the entries are staged. For datagrams, the caller holds what
/// [`uses_address_handles`](Qp::uses_address_handles) returns.
#[inline(always)]
pub(super) unsafe fn post<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    ring: SendRing<'static>,
    alone: &mut Chain,
    from: u32,
    to: u32,
) -> u32 {
    // SAFETY: the caller guarantees that the queue pair is alive and that nothing else posts.
    unsafe { sys::ibv_wr_start(qp) };
    let (mut started, mut at) = (from, from);
    while at != to {
        // SAFETY: the entry is staged, and is not written before it completes.
        let wqe = unsafe { SendWqe::read(ring, at) };
        let next = at.wrapping_add(wqe.blocks());
        // SAFETY: posting was started.
        match unsafe { post_entry::<ADDRESS>(own, qp, wqe, at) } {
            Posted::Built => {}
            Posted::Refused => break,
            Posted::Alone => {
                // SAFETY: posting was started.
                let answer = unsafe { sys::ibv_wr_complete(qp) };
                if answer != 0 {
                    own.note_answer(answer);
                    return started;
                }
                let taken = alone.post_alone(own, wqe, at);
                // SAFETY: the previous posting is complete.
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
    // SAFETY: posting was started.
    match unsafe { sys::ibv_wr_complete(qp) } {
        0 => at,
        // No request since the start was taken.
        answer => {
            own.note_answer(answer);
            started
        }
    }
}

/// The result of posting an entry.
enum Posted {
    Built,
    /// It has to be posted by itself, outside of `ibv_wr_start` and `ibv_wr_complete`.
    Alone,
    Refused,
}

/// # Safety
/// Posting was started, and is not complete.
#[inline(always)]
unsafe fn post_entry<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: SendWqe<'_>,
    counter: u32,
) -> Posted {
    // The most frequent operations have code of their own.
    // SAFETY: the caller guarantees that posting was started.
    unsafe {
        match wqe.opcode() {
            opcode::RDMA_WRITE => post_one::<ADDRESS>(own, qp, &wqe, WrOpcode::RdmaWrite, counter),
            opcode::SEND => post_one::<ADDRESS>(own, qp, &wqe, WrOpcode::Send, counter),
            opcode::RDMA_READ => post_one::<ADDRESS>(own, qp, &wqe, WrOpcode::RdmaRead, counter),
            _ => post_other::<ADDRESS>(own, qp, wqe, counter),
        }
    }
}

/// # Safety
/// Posting was started, and is not complete; the entry is of this operation.
#[inline(always)]
unsafe fn post_one<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: &SendWqe<'_>,
    operation: WrOpcode,
    counter: u32,
) -> Posted {
    let Some(request) = Request::read_as::<ADDRESS>(own, wqe, operation, counter) else {
        return Posted::Refused;
    };
    if matches!(request.operation, Operation::BindType1 { .. }) {
        return Posted::Alone;
    }
    // SAFETY: the caller guarantees that posting was started; the queue pair has the operations that
    // `read_as` returns.
    unsafe {
        match Payload::of(request.data) {
            Payload::List => return Posted::Alone,
            Payload::Empty => {
                if build(qp, &request, 0) {
                    sys::ibv_wr_set_sge_list(qp, 0, null_mut());
                }
            }
            Payload::One(sge) => {
                build(qp, &request, 0);
                sys::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
            }
            // libibverbs copies the bytes at once.
            Payload::Inline(bytes, []) => {
                build(qp, &request, INLINE);
                sys::ibv_wr_set_inline_data(qp, bytes.as_ptr().cast_mut().cast(), bytes.len());
            }
            Payload::Inline(head, tail) => {
                build(qp, &request, INLINE);
                set_inline(qp, head, tail);
            }
        }
    }
    Posted::Built
}

/// # Safety
/// Posting was started, and is not complete.
#[inline(never)]
unsafe fn post_other<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: SendWqe<'_>,
    counter: u32,
) -> Posted {
    let Some(operation) = wqe.operation() else {
        return Posted::Refused;
    };
    // SAFETY: the caller guarantees that posting was started; the operation is read from the entry.
    unsafe { post_one::<ADDRESS>(own, qp, &wqe, operation, counter) }
}

/// Begins a request; returns whether its data are to be set, which may be an empty list.
///
/// # Safety
/// Posting was started, and is not complete; the queue pair was created with the operation.
#[inline(always)]
unsafe fn build(qp: *mut sys::ibv_qp_ex, request: &Request<'_>, inline: u32) -> bool {
    // SAFETY: the caller guarantees that posting was started, and that the queue pair has the operation.
    unsafe {
        (*qp).wr_id = request.wr_id;
        (*qp).wr_flags = request.flags | inline;
        if !request.operation.begin(qp) {
            return false;
        }
        match &request.to {
            To::Peer => {}
            To::Datagram(to) => sys::ibv_wr_set_ud_addr(qp, to.handle, to.qpn, to.qkey),
            To::Srq(number) => sys::ibv_wr_set_xrc_srqn(qp, *number),
        }
    }
    true
}

/// # Safety
/// Those of [`build`], which was called for the request.
#[inline(never)]
unsafe fn set_inline(qp: *mut sys::ibv_qp_ex, head: &[u8], tail: &[u8]) {
    let mut bytes = [0; LONGEST];
    let (tail_at, length) = (head.len(), head.len() + tail.len());
    // Both are parts of one entry, so they fit.
    bytes[..tail_at].copy_from_slice(head);
    bytes[tail_at..length].copy_from_slice(tail);
    // SAFETY: the caller guarantees that the request was begun; libibverbs copies the bytes at once.
    unsafe { sys::ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), length) };
}
