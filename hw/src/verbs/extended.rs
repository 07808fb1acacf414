//! Posting by `ibv_wr_*`, on queue pairs that have it.
//!
//! rxe in libibverbs 44 gets three things wrong here. It takes inline bytes for elements, unless the
//! flags say that they are inline; so they do. It takes the first element's length for that of all;
//! so requests of more elements go by `ibv_post_send`. It counts no bytes of an inline list; so what
//! runs over the ring's end is put together before.

use super::calls::Poster;
use super::qp::Qp;
use super::request::{Operation, Payload, Request, To, flags};
use super::send::SendDoorbell;
use super::sys;
use super::tag::Kind;
use bellwire_core::be::Be32;
use bellwire_core::port::LastEntry;
use bellwire_core::wqe::{BASIC_BLOCK, DataSegment, RaddrSegment, SEGMENT, SendWqe, opcode};
use bellwire_core::wr::{Remote, Sge};
use std::ptr::{NonNull, null_mut};

const INLINE: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

/// Bytes of the longest entry: no inline data are longer.
const LONGEST: usize = 63 * 16;

/// Where the data of a connection's request stand.
const fn data_at(opcode: u8) -> usize {
    match opcode {
        opcode::SEND => SEGMENT,
        _ => 2 * SEGMENT,
    }
}

/// Whether an entry of this operation code, which has data in one piece, carries them itself: bytes in
/// the first basic block, which is never over the ring's end. Else it names one element. `None`: its
/// data are not in one piece.
#[inline(always)]
pub(super) fn in_one_piece<const OPCODE: u8>(known: LastEntry) -> Option<bool> {
    let room = const { BASIC_BLOCK - data_at(OPCODE) - size_of::<Be32>() };
    let one = match known.inline {
        0 => usize::from(known.ds) == const { data_at(OPCODE) / SEGMENT + 1 },
        bytes => usize::from(bytes) <= room && OPCODE != opcode::RDMA_READ,
    };
    one.then_some(known.inline != 0)
}

/// Posts an entry of a connection, with this operation code, whose data are
/// [in one piece](in_one_piece), `inline` bytes or an element; whether it was taken.
///
/// # Safety
/// As [`post`], of `qp`; the opcode is SEND, RDMA_WRITE or RDMA_READ.
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
    // SAFETY: staged, so its first block can be read, and has segments where its operation has them;
    // the rest is the caller's promise.
    unsafe {
        // From here on nobody else posts: not the last request of a drain either, by whoever posts
        // receives.
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
            // The bytes are copied at once.
            let bytes = data.add(size_of::<Be32>());
            qp.set_inline(bytes.as_ptr().cast(), inline.into());
        } else {
            let sge = Sge::from(data.cast::<DataSegment>().read());
            qp.set_sge(sge.lkey, sge.addr, sge.length);
        }
        qp.complete() == 0
    }
}

/// Posts the entries from `from` up to `to`; gives the first that was not taken.
///
/// # Safety
/// The caller is the queue pair's only poster, `qp` its extended form, `ADDRESS` what its requests
/// say of where they go, and the entries are staged.
#[inline(always)]
pub(super) unsafe fn post<const ADDRESS: u8>(
    sender: &mut SendDoorbell,
    qp: *mut sys::ibv_qp_ex,
    from: u32,
    to: u32,
) -> u32 {
    // SAFETY: alive, by the caller's promise.
    unsafe { sys::ibv_wr_start(qp) };
    let SendDoorbell {
        qp: own,
        ring,
        chain: alone,
    } = sender;
    let (own, ring) = (&**own, *ring);
    let (mut started, mut at) = (from, from);
    while at != to {
        // SAFETY: staged, and not written before it completes.
        let wqe = unsafe { SendWqe::read(ring, at) };
        let next = at.wrapping_add(wqe.blocks());
        // SAFETY: started.
        match unsafe { post_entry::<ADDRESS>(own, qp, wqe, at) } {
            Posted::Built => {}
            Posted::Refused => break,
            Posted::Alone => {
                // SAFETY: started.
                if unsafe { sys::ibv_wr_complete(qp) } != 0 {
                    return started;
                }
                let taken = alone.post_alone(own, wqe, at);
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
/// Between start and complete.
#[inline(always)]
unsafe fn post_entry<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: SendWqe<'_>,
    counter: u32,
) -> Posted {
    // What there is most of has code of its own.
    // SAFETY: the caller's promise.
    unsafe {
        match wqe.opcode() {
            opcode::RDMA_WRITE => post_one::<ADDRESS>(own, qp, &wqe, opcode::RDMA_WRITE, counter),
            opcode::SEND => post_one::<ADDRESS>(own, qp, &wqe, opcode::SEND, counter),
            opcode::RDMA_READ => post_one::<ADDRESS>(own, qp, &wqe, opcode::RDMA_READ, counter),
            _ => post_other::<ADDRESS>(own, qp, wqe, counter),
        }
    }
}

/// # Safety
/// Between start and complete; the entry has this opcode.
#[inline(always)]
unsafe fn post_one<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: &SendWqe<'_>,
    opcode: u8,
    counter: u32,
) -> Posted {
    let Some(request) = Request::read_as::<ADDRESS>(own, wqe, opcode, counter) else {
        return Posted::Refused;
    };
    if matches!(request.operation, Operation::BindType1 { .. }) {
        return Posted::Alone;
    }
    // SAFETY: the caller's promise; the queue pair has the operations that `read_as` gives.
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
            // The bytes are copied at once.
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
/// Between start and complete.
#[inline(never)]
unsafe fn post_other<const ADDRESS: u8>(
    own: &Qp,
    qp: *mut sys::ibv_qp_ex,
    wqe: SendWqe<'_>,
    counter: u32,
) -> Posted {
    // SAFETY: the caller's promise.
    unsafe { post_one::<ADDRESS>(own, qp, &wqe, wqe.opcode(), counter) }
}

/// Begins a request; whether it has data, or a list without any.
///
/// # Safety
/// Between start and complete; the queue pair was created with the operation.
#[inline(always)]
unsafe fn build(qp: *mut sys::ibv_qp_ex, request: &Request<'_>, inline: u32) -> bool {
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
            Operation::LocalInv(key) => {
                sys::ibv_wr_local_inv(qp, key);
                return false;
            }
            Operation::Bind { mw, rkey, ref info } => {
                sys::ibv_wr_bind_mw(qp, mw.as_ptr(), rkey, info);
                // libibverbs leaves that to the program.
                (*mw.as_ptr()).rkey = rkey;
                return false;
            }
            Operation::BindType1 { .. } => return false,
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
