//! Posting and ringing: the data path.

use crate::code::*;
use crate::failure::post_code;
use crate::number::bw_send_flags::BW_SEND_INLINE;
use crate::qp::bw_qp;
use hw::be::Be32;
use hw::queue::PostError;
use hw::wqe::{
    AtomicCmpAndSwp, AtomicFetchAndAdd, Inline, InlineList, LocalInv, Nop, Operation, Payload, Rc,
    RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv, Supports,
};
use hw::wr::{Remote, SendFlags, Sge, WrOpcode};
use hw::{QpRecvQueue, RcSendQueue};
use std::ffi::{c_int, c_void};

/// A scatter/gather element (`ibv_sge`): `length` bytes at `addr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_sge {
    /// Address.
    pub addr: u64,
    /// Bytes, less than 2 GiB.
    pub length: u32,
    /// Local key of the memory; of inline data not looked at.
    pub lkey: u32,
}

// The library's own has the same layout: lists are passed on as they are.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<bw_sge>() == size_of::<Sge>() && align_of::<bw_sge>() == align_of::<Sge>());
    assert!(offset_of!(bw_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(bw_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(bw_sge, lkey) == offset_of!(Sge, lkey));
};

/// A send request (`ibv_send_wr`). Fields that the operation does not have are not looked at.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_send_wr {
    /// The program's identifier, which the completion has.
    pub wr_id: u64,
    /// The next request of the list, or NULL.
    pub next: *const bw_send_wr,
    /// The local memory: where data comes from, or goes to (READ, atomics).
    pub sg_list: *const bw_sge,
    /// Elements of `sg_list`.
    pub num_sge: u32,
    /// A `bw_wr_opcode`.
    pub opcode: u32,
    /// `bw_send_flags`.
    pub send_flags: u32,
    /// Immediate data, in network byte order.
    pub imm_data: u32,
    /// The peer's memory (WRITE, READ, atomics).
    pub remote_addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// The key to invalidate: of this side (LOCAL_INV) or of the peer's (SEND_WITH_INV).
    pub invalidate_rkey: u32,
    /// What to compare with (ATOMIC_CMP_AND_SWP) or to add (ATOMIC_FETCH_AND_ADD).
    pub compare_add: u64,
    /// What to put in its place (ATOMIC_CMP_AND_SWP).
    pub swap: u64,
}

/// A receive (`ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_recv_wr {
    /// The program's identifier, which the completion has.
    pub wr_id: u64,
    /// The next receive of the list, or NULL.
    pub next: *const bw_recv_wr,
    /// Where the message goes.
    pub sg_list: *const bw_sge,
    /// Elements of `sg_list`.
    pub num_sge: u32,
    /// 0.
    pub reserved: u32,
}

/// Strings of inline data that one request can have; no device takes more elements.
const MAX_INLINE_LIST: usize = 32;

/// # Safety
/// The header on handles; the caller owns the send queue.
#[inline(always)]
unsafe fn sq<'a>(qp: *mut bw_qp) -> Option<&'a mut RcSendQueue> {
    // SAFETY: the pointer within is good for as long as the handle is.
    unsafe { qp.as_ref().map(|qp| &mut *qp.sq) }
}

/// # Safety
/// The header on handles; the caller owns the receive queue.
#[inline(always)]
unsafe fn rq<'a>(qp: *mut bw_qp) -> Option<&'a mut QpRecvQueue> {
    // SAFETY: as above.
    unsafe { qp.as_ref().map(|qp| &mut *qp.rq) }
}

#[inline(always)]
fn done(result: Result<(), PostError>) -> c_int {
    match result {
        Ok(()) => BW_OK as c_int,
        Err(error) => post_code(error) as c_int,
    }
}

/// Flags but INLINE, which is a matter of the payload.
#[inline(always)]
fn flags(bits: u32) -> Option<SendFlags> {
    let bits = bits & !(BW_SEND_INLINE as u32);
    SendFlags::from_bits(u8::try_from(bits).ok()?)
}

/// Posts one request that has a function of its own.
///
/// # Safety
/// The header on posting.
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
{
    // SAFETY: the caller's promise.
    let (Some(sq), Some(payload)) = (unsafe { sq(qp) }, payload) else {
        return BW_ENULL as c_int;
    };
    let Some(flags) = flags(send_flags) else {
        return BW_EINVAL as c_int;
    };
    // SAFETY: the caller's promise about the memory.
    done(unsafe { sq.post(wr_id, (), operation, payload, flags) })
}

/// # Safety
/// `sge` is NULL or points to an element.
#[inline(always)]
unsafe fn element(sge: *const bw_sge) -> Option<Sge> {
    // SAFETY: the same layout.
    unsafe { sge.cast::<Sge>().as_ref().copied() }
}

/// # Safety
/// `data` is NULL or points to `length` bytes that nobody writes while the reference lives.
#[inline(always)]
unsafe fn bytes<'a>(data: *const c_void, length: u32) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: not NULL; the caller's promise.
    let bytes = || unsafe { std::slice::from_raw_parts(data.cast(), length as usize) };
    (!data.is_null()).then(bytes)
}

/// Posts an RDMA WRITE of the memory that `sge` names. Of the `bw_send_flags` BW_SEND_INLINE has no
/// effect on these functions: their names say it.
///
/// Errors: those of `bw_post_send`.
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
    let addr = remote_addr;
    let remote = Remote { addr, rkey };
    // SAFETY: the header on posting.
    unsafe { post(qp, wr_id, RdmaWrite { remote }, element(sge), send_flags) }
}

/// Posts an RDMA WRITE of `length` bytes at `data`, which travel within the request: the memory need
/// not be registered, and may be reused when this returns.
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
    let addr = remote_addr;
    let remote = Remote { addr, rkey };
    // SAFETY: the header on posting.
    unsafe {
        let payload = bytes(data, length).map(Inline);
        post(qp, wr_id, RdmaWrite { remote }, payload, send_flags)
    }
}

/// Posts an RDMA READ into the memory that `sge` names.
///
/// Errors: those of `bw_post_send`.
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
    let addr = remote_addr;
    let remote = Remote { addr, rkey };
    // SAFETY: the header on posting.
    unsafe { post(qp, wr_id, RdmaRead { remote }, element(sge), send_flags) }
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
    // SAFETY: the header on posting.
    unsafe { post(qp, wr_id, Send {}, element(sge), send_flags) }
}

/// Posts a SEND of `length` bytes at `data`, as `bw_post_write_inline`.
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
    // SAFETY: the header on posting.
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

/// Posts a receive into the memory that `sge` names.
///
/// Errors: those of `bw_post_recv`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_recv_one(qp: *mut bw_qp, wr_id: u64, sge: *const bw_sge) -> c_int {
    // SAFETY: the header on posting.
    let (Some(rq), Some(sge)) = (unsafe { (rq(qp), element(sge)) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: as above.
    done(unsafe { rq.post(wr_id, &[sge]) })
}

/// Posts a list of send requests, in order. Nothing is sent before `bw_ring_sq`.
///
/// When it fails, the requests before the one that was refused are posted; that one and those behind
/// it are not. `bad_wr`, unless NULL, then points to the refused one.
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`,
/// `BW_EINVAL` (unknown flags; BW_SEND_INLINE of an operation that sends no data; elements of one
/// that has none), `BW_ENULL`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_send(
    qp: *mut bw_qp,
    wr: *const bw_send_wr,
    bad_wr: *mut *const bw_send_wr,
) -> c_int {
    // SAFETY: the header on posting.
    let (Some(sq), Some(mut wr)) = (unsafe { (sq(qp), wr.as_ref()) }) else {
        return BW_ENULL as c_int;
    };
    loop {
        // SAFETY: the header on posting.
        if let Err(code) = unsafe { post_wr(sq, wr) } {
            if !bad_wr.is_null() {
                // SAFETY: a place for a pointer.
                unsafe { bad_wr.write(wr) };
            }
            return code as c_int;
        }
        // SAFETY: NULL or the next one.
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => return BW_OK as c_int,
        }
    }
}

/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn post_wr(sq: &mut RcSendQueue, wr: &bw_send_wr) -> Result<(), bw_error> {
    let opcode = u8::try_from(wr.opcode).ok().and_then(WrOpcode::from_number);
    let remote = Remote {
        addr: wr.remote_addr,
        rkey: wr.rkey,
    };
    let imm = Be32::from_raw(wr.imm_data);
    let rkey = wr.invalidate_rkey;
    // SAFETY: the caller's promise.
    unsafe {
        match opcode.ok_or(BW_EOPCODE)? {
            WrOpcode::RdmaWrite => outgoing(sq, wr, RdmaWrite { remote }),
            WrOpcode::RdmaWriteWithImm => outgoing(sq, wr, RdmaWriteWithImm { remote, imm }),
            WrOpcode::Send => outgoing(sq, wr, Send {}),
            WrOpcode::SendWithImm => outgoing(sq, wr, SendWithImm { imm }),
            WrOpcode::SendWithInv => outgoing(sq, wr, SendWithInv { rkey }),
            WrOpcode::RdmaRead => incoming(sq, wr, RdmaRead { remote }),
            WrOpcode::AtomicCmpAndSwp => {
                let (compare, swap) = (wr.compare_add, wr.swap);
                let operation = AtomicCmpAndSwp {
                    remote,
                    compare,
                    swap,
                };
                incoming(sq, wr, operation)
            }
            WrOpcode::AtomicFetchAndAdd => {
                let add = wr.compare_add;
                incoming(sq, wr, AtomicFetchAndAdd { remote, add })
            }
            WrOpcode::LocalInv => without(sq, wr, LocalInv { rkey }),
            WrOpcode::Nop => without(sq, wr, Nop {}),
            WrOpcode::BindMw | WrOpcode::Tso => Err(BW_EOPCODE),
        }
    }
}

/// # Safety
/// The list has `num` elements.
#[inline(always)]
unsafe fn list<'a>(sg_list: *const bw_sge, num: u32) -> Result<&'a [Sge], bw_error> {
    if num == 0 {
        return Ok(&[]);
    }
    if sg_list.is_null() {
        return Err(BW_ENULL);
    }
    // SAFETY: the same layout; the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(sg_list.cast(), num as usize) })
}

/// An operation that carries data, inline or not.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn outgoing<O: Operation>(
    sq: &mut RcSendQueue,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    Rc: Supports<O>,
{
    let flags = flags(wr.send_flags).ok_or(BW_EINVAL)?;
    // SAFETY: the caller's promise.
    let list = unsafe { list(wr.sg_list, wr.num_sge)? };
    if wr.send_flags & BW_SEND_INLINE as u32 == 0 {
        // SAFETY: the caller's promise about the memory.
        let posted = unsafe { sq.post(wr.wr_id, (), operation, list, flags) };
        return posted.map_err(post_code);
    }
    if list.len() > MAX_INLINE_LIST.min(sq.limits().max_sge as usize) {
        return Err(BW_ETOOMANYSGE);
    }
    let mut strings: [&[u8]; MAX_INLINE_LIST] = [&[]; MAX_INLINE_LIST];
    for (string, sge) in strings.iter_mut().zip(list) {
        let data = std::ptr::with_exposed_provenance(sge.addr as usize);
        // SAFETY: the header on posting: the bytes are there, and nobody writes them meanwhile.
        *string = unsafe { bytes(data, sge.length) }.ok_or(BW_ENULL)?;
    }
    let strings = strings.get(..list.len()).unwrap_or_default();
    // SAFETY: an inline entry names no local memory.
    let posted = unsafe { sq.post(wr.wr_id, (), operation, InlineList(strings), flags) };
    posted.map_err(post_code)
}

/// An operation whose result goes to local memory.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn incoming<O: Operation>(
    sq: &mut RcSendQueue,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    Rc: Supports<O>,
{
    if wr.send_flags & BW_SEND_INLINE as u32 != 0 {
        return Err(BW_EINVAL);
    }
    // SAFETY: the caller's promise; not inline.
    unsafe { outgoing(sq, wr, operation) }
}

/// An operation without data.
#[inline(always)]
fn without<O: Operation>(
    sq: &mut RcSendQueue,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    Rc: Supports<O>,
{
    let inline = wr.send_flags & BW_SEND_INLINE as u32 != 0;
    if inline || wr.num_sge != 0 {
        return Err(BW_EINVAL);
    }
    let flags = flags(wr.send_flags).ok_or(BW_EINVAL)?;
    sq.post_empty(wr.wr_id, (), operation, flags)
        .map_err(post_code)
}

/// Posts a list of receives, in order. None can be used before `bw_ring_rq`. `bad_wr` as in
/// `bw_post_send`.
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENULL`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_recv(
    qp: *mut bw_qp,
    wr: *const bw_recv_wr,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    // SAFETY: the header on posting.
    let (Some(rq), Some(mut wr)) = (unsafe { (rq(qp), wr.as_ref()) }) else {
        return BW_ENULL as c_int;
    };
    loop {
        // SAFETY: the header on posting.
        let posted = unsafe {
            list(wr.sg_list, wr.num_sge).and_then(|list| rq.post(wr.wr_id, list).map_err(post_code))
        };
        if let Err(code) = posted {
            if !bad_wr.is_null() {
                // SAFETY: a place for a pointer.
                unsafe { bad_wr.write(wr) };
            }
            return code as c_int;
        }
        // SAFETY: NULL or the next one.
        match unsafe { wr.next.as_ref() } {
            Some(next) => wr = next,
            None => return BW_OK as c_int,
        }
    }
}

/// Tells the device of the send requests posted since the last ring. A software device in
/// BW_SOFT_INLINE executes them here.
///
/// Errors: `BW_ENULL`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ring_sq(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles.
    let Some(sq) = (unsafe { sq(qp) }) else {
        return BW_ENULL as c_int;
    };
    sq.ring();
    BW_OK as c_int
}

/// Tells the device of the receives posted since the last ring.
///
/// Errors: `BW_ENULL`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ring_rq(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles.
    let Some(rq) = (unsafe { rq(qp) }) else {
        return BW_ENULL as c_int;
    };
    rq.ring();
    BW_OK as c_int
}
