//! Posting lists of requests: the data path.

use crate::ah::bw_ah;
use crate::code::*;
use crate::entered::Inside;
use crate::failure::post_code;
use crate::number::bw_send_flags::BW_SEND_INLINE;
use crate::qp::bw_qp;
use crate::srq::bw_srq;
use crate::transport::AnySq;
use crate::wr::{bw_recv_wr, bw_send_wr, bw_sge};
use hw::be::{Be16, Be32};
use hw::wqe::{
    Address, AddressVector, AtomicCmpAndSwp, AtomicFetchAndAdd, Inline, InlineList, LocalInv,
    NoPayload, Nop, Operation, Payload, Rc, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send,
    SendWithImm, SendWithInv, Supports, Uc, Ud, UdAddress, Xrc,
};
use hw::wr::MwType;
use hw::wr::{Remote, SendFlags, Sge, WrOpcode};
use hw::{Binds, Mw, QpRecvQueue, QpSendQueue, QpTransport};
use std::ffi::{c_int, c_void};

/// Strings of inline data that one request can have; no device takes more elements.
const MAX_INLINE_LIST: usize = 32;

/// # Safety
/// The header on handles; the caller owns the receive queue.
#[inline(always)]
pub(crate) unsafe fn rq<'a>(qp: *mut bw_qp) -> Result<(&'a mut QpRecvQueue, Inside<'a>), bw_error> {
    // SAFETY: the caller's promise.
    let qp = unsafe { qp.as_ref() }.ok_or(BW_ENULL)?;
    let inside = qp.in_rq.enter()?;
    // SAFETY: the pointer within is good for as long as the handle is.
    Ok((unsafe { &mut *qp.rq }, inside))
}

/// # Safety
/// The header on handles; the caller owns the send queue.
#[inline(always)]
pub(crate) unsafe fn sq<'a>(qp: *mut bw_qp) -> Result<(AnySq, Inside<'a>), bw_error> {
    // SAFETY: the caller's promise.
    let qp = unsafe { qp.as_ref() }.ok_or(BW_ENULL)?;
    let inside = qp.in_sq.enter()?;
    Ok((qp.sq, inside))
}

/// Flags but INLINE, which is a matter of the payload.
#[inline(always)]
pub(crate) fn flags(bits: u32) -> Option<SendFlags> {
    let bits = bits & !(BW_SEND_INLINE as u32);
    SendFlags::from_bits(u8::try_from(bits).ok()?)
}

/// # Safety
/// `data` is NULL or points to `length` bytes that nobody writes while the reference lives.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: u32) -> Option<&'a [u8]> {
    /// A branch, where the compiler would select.
    #[cold]
    #[inline(never)]
    fn nowhere<'a>(length: u32) -> Option<&'a [u8]> {
        (length == 0).then_some(&[])
    }
    if data.is_null() {
        return nowhere(length);
    }
    // SAFETY: not NULL; the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), length as usize) })
}

/// What stands in an array.
///
/// # Safety
/// It is NULL or has `num` elements, which nobody writes while the reference lives.
#[inline(always)]
pub(crate) unsafe fn array<'a, T>(first: *const T, num: u32) -> Result<&'a [T], bw_error> {
    if num == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(BW_ENULL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, num as usize) })
}

/// # Safety
/// As [`array`].
#[inline(always)]
pub(crate) unsafe fn list<'a>(sg_list: *const bw_sge, num: u32) -> Result<&'a [Sge], bw_error> {
    // SAFETY: the same layout; the caller's promise.
    unsafe { array(sg_list.cast(), num) }
}

/// Tells which request was refused, and why.
///
/// # Safety
/// `bad_wr` is NULL or a place for a pointer.
#[inline(always)]
pub(crate) unsafe fn refuse<R>(wr: &R, bad_wr: *mut *const R, code: bw_error) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(wr) };
    }
    code as c_int
}

/// Posts a list up to the first request that is refused.
///
/// # Safety
/// `wr` is NULL or has `num` requests; `bad_wr` is NULL or a place for a pointer.
#[inline(always)]
pub(crate) unsafe fn post_each<R>(
    wr: *const R,
    num: u32,
    bad_wr: *mut *const R,
    mut post: impl FnMut(&R) -> Result<(), bw_error>,
) -> c_int {
    // SAFETY: the caller's promise.
    let list = match unsafe { array(wr, num) } {
        Ok(list) => list,
        Err(code) => return code as c_int,
    };
    for wr in list {
        if let Err(code) = post(wr) {
            // SAFETY: as above.
            return unsafe { refuse(wr, bad_wr, code) };
        }
    }
    BW_OK as c_int
}

/// Posts the `num` send requests of the array `wr`, in order, and tells the device of them, and of
/// what was posted one by one before. A software device in BW_SOFT_INLINE executes them here.
///
/// When it fails, the requests before the one that was refused are posted; that one and those behind
/// it are not, and are left as they are. `bad_wr`, unless NULL, then points to the refused one. A
/// NULL in place of the array, or of the queue pair, is not told there.
///
/// | transport | operations |
/// |---|---|
/// | BW_QPT_RC, BW_QPT_XRC_SEND | all |
/// | BW_QPT_UC | all but READ and the atomics |
/// | BW_QPT_UD | SEND, SEND_WITH_IMM, NOP |
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`
/// (unknown, or one that the transport does not have), `BW_EINVAL` (unknown flags; BW_SEND_INLINE of
/// an operation that sends no data; elements of one that has none; BIND_MW of a window of type 1),
/// `BW_ENULL` (also: a datagram without `ah`, a BIND_MW without `mw`).
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_send(
    qp: *mut bw_qp,
    wr: *const bw_send_wr,
    num: u32,
    bad_wr: *mut *const bw_send_wr,
) -> c_int {
    // SAFETY: the header on handles.
    let (sq, _inside) = match unsafe { sq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header on posting; the pointers are good for as long as the handle is.
    unsafe {
        match sq {
            AnySq::Rc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_all(sq, wr)),
            AnySq::Uc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_writing(sq, wr)),
            AnySq::Ud(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_sending(sq, wr)),
            AnySq::Xrc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_all(sq, wr)),
        }
    }
}

/// # Safety
/// The header on posting; the queue is good and the caller's own.
#[inline(always)]
unsafe fn post_sends<T: QpTransport>(
    sq: *mut QpSendQueue<T>,
    wr: *const bw_send_wr,
    num: u32,
    bad_wr: *mut *const bw_send_wr,
    post: impl Fn(&mut QpSendQueue<T>, &bw_send_wr) -> Result<(), bw_error>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let sq = &mut *sq;
        let code = post_each(wr, num, bad_wr, |wr| post(sq, wr));
        sq.ring();
        code
    }
}

/// What a request names beside its operation.
pub(crate) trait Addressed: QpTransport {
    /// # Safety
    /// The header on handles.
    unsafe fn address(wr: &bw_send_wr) -> Result<Address<'_, Self>, bw_error>;

    /// Of requests that go to nobody.
    const NOBODY: Address<'static, Self>;
}

impl Addressed for Rc {
    #[inline(always)]
    unsafe fn address(_: &bw_send_wr) -> Result<(), bw_error> {
        Ok(())
    }

    const NOBODY: () = ();
}

impl Addressed for Uc {
    #[inline(always)]
    unsafe fn address(_: &bw_send_wr) -> Result<(), bw_error> {
        Ok(())
    }

    const NOBODY: () = ();
}

impl Addressed for Xrc {
    #[inline(always)]
    unsafe fn address(wr: &bw_send_wr) -> Result<u32, bw_error> {
        Ok(wr.remote_srqn)
    }

    const NOBODY: u32 = 0;
}

impl Addressed for Ud {
    #[inline(always)]
    unsafe fn address(wr: &bw_send_wr) -> Result<UdAddress<'_>, bw_error> {
        // SAFETY: the caller's promise.
        let ah: &bw_ah = unsafe { wr.ah.as_ref() }.ok_or(BW_ENULL)?;
        Ok(ah.ah.to(wr.remote_qpn, wr.remote_qkey))
    }

    const NOBODY: UdAddress<'static> = UdAddress {
        av: &NOWHERE,
        remote_qpn: 0,
        remote_qkey: 0,
    };
}

/// Where a NOP of a datagram queue goes. Not written.
const NOWHERE: AddressVector = AddressVector {
    qkey: Be32::from_raw(0),
    reserved: Be32::from_raw(0),
    dqp_dct: Be32::from_raw(0),
    stat_rate_sl: 0,
    fl_mlid: 0,
    rlid: Be16::from_raw(0),
    reserved0: [0; 4],
    rmac: [0; 6],
    tclass: 0,
    hop_limit: 0,
    grh_gid_fl: Be32::from_raw(0),
    rgid: [0; 16],
};

/// What send requests are posted to.
pub(crate) trait Stage {
    type Transport: Addressed;

    /// # Safety
    /// As [`QpSendQueue::post`].
    unsafe fn stage<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        to: Address<'_, Self::Transport>,
        operation: O,
        payload: P,
        flags: SendFlags,
    ) -> Result<(), bw_error>
    where
        Self::Transport: Supports<O>;

    /// Binds a window of type 2.
    fn bind(&mut self, wr: &bw_send_wr, mw: &mut Mw, flags: SendFlags) -> Result<(), bw_error>
    where
        Self::Transport: Binds;

    /// Scatter/gather elements of a request.
    fn max_sge(&self) -> usize;
}

impl<T: Addressed> Stage for QpSendQueue<T> {
    type Transport = T;

    #[inline(always)]
    unsafe fn stage<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        to: Address<'_, T>,
        operation: O,
        payload: P,
        flags: SendFlags,
    ) -> Result<(), bw_error>
    where
        T: Supports<O>,
    {
        // SAFETY: the caller's promise.
        unsafe { self.post(wr_id, to, operation, payload, flags) }.map_err(post_code)
    }

    #[inline(always)]
    fn bind(&mut self, wr: &bw_send_wr, mw: &mut Mw, flags: SendFlags) -> Result<(), bw_error>
    where
        T: Binds,
    {
        mw.post_bind(self, wr.wr_id, T::NOBODY, &(&wr.bind).into(), flags)
            .map_err(post_code)
    }

    #[inline(always)]
    fn max_sge(&self) -> usize {
        self.limits().max_sge as usize
    }
}

#[inline(always)]
fn opcode(wr: &bw_send_wr) -> Option<WrOpcode> {
    u8::try_from(wr.opcode).ok().and_then(WrOpcode::from_number)
}

#[inline(always)]
fn remote(wr: &bw_send_wr) -> Remote {
    Remote {
        addr: wr.remote_addr,
        rkey: wr.rkey,
    }
}

/// Posts to a transport that has every operation.
///
/// # Safety
/// The header on posting.
#[inline(always)]
pub(crate) unsafe fn post_all<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Supports<RdmaRead> + Supports<AtomicCmpAndSwp> + Supports<AtomicFetchAndAdd>,
    S::Transport: Supports<RdmaWrite> + Supports<RdmaWriteWithImm> + Supports<SendWithInv>,
    S::Transport: Binds + Supports<LocalInv>,
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let remote = remote(wr);
    // SAFETY: the caller's promise.
    unsafe {
        match opcode(wr) {
            Some(WrOpcode::RdmaRead) => incoming(sq, wr, RdmaRead { remote }),
            Some(WrOpcode::AtomicCmpAndSwp) => {
                let (compare, swap) = (wr.compare_add, wr.swap);
                let operation = AtomicCmpAndSwp {
                    remote,
                    compare,
                    swap,
                };
                incoming(sq, wr, operation)
            }
            Some(WrOpcode::AtomicFetchAndAdd) => {
                let add = wr.compare_add;
                incoming(sq, wr, AtomicFetchAndAdd { remote, add })
            }
            _ => post_writing(sq, wr),
        }
    }
}

/// Posts to a transport without acknowledgements, which brings nothing back.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn post_writing<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Supports<RdmaWrite> + Supports<RdmaWriteWithImm> + Supports<SendWithInv>,
    S::Transport: Binds + Supports<LocalInv>,
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let remote = remote(wr);
    let imm = Be32::from_raw(wr.imm_data);
    let rkey = wr.invalidate_rkey;
    // SAFETY: the caller's promise.
    unsafe {
        match opcode(wr) {
            Some(WrOpcode::RdmaWrite) => outgoing(sq, wr, RdmaWrite { remote }),
            Some(WrOpcode::RdmaWriteWithImm) => outgoing(sq, wr, RdmaWriteWithImm { remote, imm }),
            Some(WrOpcode::SendWithInv) => outgoing(sq, wr, SendWithInv { rkey }),
            Some(WrOpcode::BindMw) => bind(sq, wr),
            Some(WrOpcode::LocalInv) => without(sq, wr, LocalInv { rkey }),
            _ => post_sending(sq, wr),
        }
    }
}

/// Posts to a transport of messages only.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn post_sending<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let imm = Be32::from_raw(wr.imm_data);
    // SAFETY: the caller's promise.
    unsafe {
        match opcode(wr) {
            Some(WrOpcode::Send) => outgoing(sq, wr, Send {}),
            Some(WrOpcode::SendWithImm) => outgoing(sq, wr, SendWithImm { imm }),
            Some(WrOpcode::Nop) => without(sq, wr, Nop {}),
            _ => Err(BW_EOPCODE),
        }
    }
}

/// An operation that carries data, inline or not.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn outgoing<S: Stage, O: Operation>(
    sq: &mut S,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    S::Transport: Supports<O>,
{
    let flags = flags(wr.send_flags).ok_or(BW_EINVAL)?;
    // SAFETY: the caller's promise.
    let (list, to) = unsafe { (list(wr.sg_list, wr.num_sge)?, S::Transport::address(wr)?) };
    if wr.send_flags & BW_SEND_INLINE as u32 == 0 {
        // SAFETY: the caller's promise about the memory.
        return unsafe { sq.stage(wr.wr_id, to, operation, list, flags) };
    }
    // SAFETY: the header on posting: the bytes are there, and nobody writes them meanwhile.
    let string = |sge: &Sge| unsafe {
        let data = std::ptr::with_exposed_provenance(sge.addr as usize);
        bytes(data, sge.length).ok_or(BW_ENULL)
    };
    // Most have one, for which no list is made.
    if let [sge] = list {
        let data = Inline(string(sge)?);
        // SAFETY: an inline entry names no local memory.
        return unsafe { sq.stage(wr.wr_id, to, operation, data, flags) };
    }
    if list.len() > MAX_INLINE_LIST.min(sq.max_sge()) {
        return Err(BW_ETOOMANYSGE);
    }
    let mut strings: [&[u8]; MAX_INLINE_LIST] = [&[]; MAX_INLINE_LIST];
    for (place, sge) in strings.iter_mut().zip(list) {
        *place = string(sge)?;
    }
    let strings = strings.get(..list.len()).unwrap_or_default();
    // SAFETY: an inline entry names no local memory.
    unsafe { sq.stage(wr.wr_id, to, operation, InlineList(strings), flags) }
}

/// An operation whose result goes to local memory.
///
/// # Safety
/// The header on posting.
#[inline(always)]
unsafe fn incoming<S: Stage, O: Operation>(
    sq: &mut S,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    S::Transport: Supports<O>,
{
    if wr.send_flags & BW_SEND_INLINE as u32 != 0 {
        return Err(BW_EINVAL);
    }
    // SAFETY: the caller's promise; not inline.
    unsafe { outgoing(sq, wr, operation) }
}

/// The flags of an operation that has no data.
#[inline(always)]
fn flags_without_data(wr: &bw_send_wr) -> Result<SendFlags, bw_error> {
    let inline = wr.send_flags & BW_SEND_INLINE as u32 != 0;
    if inline || wr.num_sge != 0 {
        return Err(BW_EINVAL);
    }
    flags(wr.send_flags).ok_or(BW_EINVAL)
}

/// Binds a window of type 2.
///
/// # Safety
/// The header on handles; the caller owns the window.
#[inline(always)]
unsafe fn bind<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Binds,
{
    let flags = flags_without_data(wr)?;
    // SAFETY: the caller's promise.
    let mw = &mut unsafe { wr.mw.as_mut() }.ok_or(BW_ENULL)?.mw;
    if mw.mw_type() != MwType::Type2 {
        return Err(BW_EINVAL);
    }
    sq.bind(wr, mw, flags)
}

/// An operation without data, which goes to nobody.
#[inline(always)]
fn without<S: Stage, O: Operation>(
    sq: &mut S,
    wr: &bw_send_wr,
    operation: O,
) -> Result<(), bw_error>
where
    S::Transport: Supports<O>,
{
    let flags = flags_without_data(wr)?;
    // SAFETY: the entry names no local memory.
    unsafe { sq.stage(wr.wr_id, S::Transport::NOBODY, operation, NoPayload, flags) }
}

/// Posts the `num` receives of the array `wr`, in order, and tells the device of them, and of those
/// posted one by one before. `bad_wr` as in `bw_post_send`.
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENORQ` (an XRC initiator,
/// or a queue pair on a shared receive queue), `BW_ENULL`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_recv(
    qp: *mut bw_qp,
    wr: *const bw_recv_wr,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    // SAFETY: the header on handles.
    let (rq, _inside) = match unsafe { rq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header on posting.
    let code = unsafe {
        post_each(wr, num, bad_wr, |wr| {
            rq.post(wr.wr_id, list(wr.sg_list, wr.num_sge)?)
                .map_err(post_code)
        })
    };
    rq.ring();
    code
}

/// As `bw_post_recv`, to a shared receive queue.
///
/// Errors: `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENULL`.
/// Thread: the shared receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_srq_recv(
    srq: *mut bw_srq,
    wr: *const bw_recv_wr,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    // SAFETY: the header on handles; the caller owns the queue.
    let Some(bw_srq { srq, entered, .. }) = (unsafe { srq.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    let _inside = match entered.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header on posting.
    let code = unsafe {
        post_each(wr, num, bad_wr, |wr| {
            srq.post(wr.wr_id, list(wr.sg_list, wr.num_sge)?)
                .map_err(post_code)
        })
    };
    srq.ring();
    code
}
