//! Posting arrays of requests: the data path.

use crate::ah::bw_ah;
use crate::array::post_older;
use crate::code::*;
use crate::entered::Inside;
use crate::failure::post_code;
use crate::number::bw_send_flags::BW_SEND_INLINE;
use crate::qp::bw_qp;
use crate::srq::bw_srq;
use crate::transport::AnySq;
use crate::wr::{Request, bw_recv_wr, bw_send_wr, bw_sge};
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

/// Maximum number of inline buffers of a request; no device takes more elements.
const MAX_INLINE_LIST: usize = 32;

/// # Safety
/// The caller keeps the header's conventions on handles; the caller owns the receive queue.
#[inline(always)]
pub(crate) unsafe fn rq<'a>(
    qp: *mut bw_qp,
) -> Result<(&'a mut QpRecvQueue<'static>, Inside<'a>), bw_error> {
    // SAFETY: the caller keeps the header's conventions on handles; the caller owns the receive queue.
    let qp = unsafe { qp.as_ref() }.ok_or(BW_ENULL)?;
    let inside = qp.in_rq.enter()?;
    // SAFETY: the caller owns the receive queue, and `inside` detects a second thread in debug builds.
    let rq = unsafe { &mut *qp.rq.get() };
    Ok((rq.as_mut().ok_or(BW_ESTATE)?, inside))
}

/// # Safety
/// The caller keeps the header's conventions on handles; the caller owns the send queue.
#[inline(always)]
pub(crate) unsafe fn sq<'a>(qp: *mut bw_qp) -> Result<(&'a mut AnySq, Inside<'a>), bw_error> {
    // SAFETY: the caller keeps the header's conventions on handles; the caller owns the send queue.
    let qp = unsafe { qp.as_ref() }.ok_or(BW_ENULL)?;
    let inside = qp.in_sq.enter()?;
    // SAFETY: the caller owns the send queue, and `inside` detects a second thread in debug builds.
    let sq = unsafe { &mut *qp.sq.get() };
    Ok((sq.as_mut().ok_or(BW_ESTATE)?, inside))
}

/// All flags except INLINE, which the payload expresses.
#[inline(always)]
pub(crate) fn flags(bits: u32) -> Option<SendFlags> {
    let bits = bits & !(BW_SEND_INLINE as u32);
    SendFlags::from_bits(u8::try_from(bits).ok()?)
}

/// # Safety
/// `data` is NULL or points to `length` bytes that nothing writes while the reference lives.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: u32) -> Option<&'a [u8]> {
    /// Out of line, so that the compiler makes a branch here instead of a select.
    #[cold]
    #[inline(never)]
    fn nowhere<'a>(length: u32) -> Option<&'a [u8]> {
        (length == 0).then_some(&[])
    }
    if data.is_null() {
        return nowhere(length);
    }
    // SAFETY: not NULL; the caller guarantees `length` bytes that nothing writes meanwhile.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), length as usize) })
}

/// The elements of an array.
///
/// # Safety
/// `first` is NULL or points to `num` elements that nothing writes while the reference lives.
#[inline(always)]
pub(crate) unsafe fn array<'a, T>(first: *const T, num: u32) -> Result<&'a [T], bw_error> {
    if num == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(BW_ENULL);
    }
    // SAFETY: not NULL; the caller guarantees `num` elements that nothing writes meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(first, num as usize) })
}

/// # Safety
/// `sg_list` is NULL or points to `num` elements that nothing writes while the reference lives.
#[inline(always)]
pub(crate) unsafe fn list<'a>(sg_list: *const bw_sge, num: u32) -> Result<&'a [Sge], bw_error> {
    // SAFETY: both types have the same layout; the caller guarantees `num` elements.
    unsafe { array(sg_list.cast(), num) }
}

/// Writes which request was refused, and returns why.
///
/// # Safety
/// `bad_wr` is NULL or points to writable memory for a pointer.
#[inline(always)]
pub(crate) unsafe fn refuse<R>(wr: &R, bad_wr: *mut *const R, code: bw_error) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: not NULL; the caller guarantees that a pointer may be written.
        unsafe { bad_wr.write(wr) };
    }
    code as c_int
}

/// Posts the requests of an array up to the first one that is refused.
///
/// # Safety
/// `wr` is NULL or points to `num` requests; `bad_wr` is NULL or points to writable memory for a
/// pointer.
#[inline(always)]
pub(crate) unsafe fn post_each<R: Request>(
    wr: *const R,
    num: u32,
    bad_wr: *mut *const R,
    mut post: impl FnMut(&R) -> Result<(), bw_error>,
) -> c_int {
    // SAFETY: the caller guarantees that `wr` is NULL or points to `num` requests.
    let list = match unsafe { array(wr, num) } {
        Ok(list) => list,
        Err(code) => return code as c_int,
    };
    for wr in list {
        let posted = match wr.reserved() {
            0 => post(wr),
            _ => Err(BW_EINVAL),
        };
        if let Err(code) = posted {
            // SAFETY: the caller guarantees that `bad_wr` is NULL or may be written.
            return unsafe { refuse(wr, bad_wr, code) };
        }
    }
    BW_OK as c_int
}

/// `bw_post_send` for requests of `size` bytes: posts the `num` send requests of the array `wr`, in
/// order. Notifies the device of them and of requests posted before. A software device in
/// BW_SOFT_INLINE executes them in this call.
///
/// When it fails, the requests before the refused one are posted; the refused one and those after it
/// are not, and are left unchanged. `bad_wr`, unless NULL, is then set to the refused one. It is not
/// set if the array or the queue pair is NULL.
///
/// | transport | operations |
/// |---|---|
/// | BW_QPT_RC, BW_QPT_XRC_SEND | all |
/// | BW_QPT_UC | all but READ and the atomics |
/// | BW_QPT_UD | SEND, SEND_WITH_IMM, NOP |
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`
/// (unknown, or not supported by the transport), `BW_EINVAL` (unknown flags; BW_SEND_INLINE with an
/// operation that sends no data; elements with an operation that has none; BIND_MW of a window of type
/// 1; `reserved`, or that of a bind, is not 0), `BW_ENULL` (also: a datagram without `ah`, a BIND_MW
/// without `mw`), `BW_ESIZE`.
/// Thread: the send queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_send_sized(
    qp: *mut bw_qp,
    wr: *const bw_send_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_send_wr,
) -> c_int {
    if size != size_of::<bw_send_wr>() {
        let size_of = size_of::<bw_send_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe { bw_post_send_sized(qp, wr, size_of, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles.
    let (sq, _inside) = match unsafe { sq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header's conventions on posting.
    unsafe {
        match sq {
            AnySq::Rc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_all(sq, wr)),
            AnySq::Uc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| {
                post_writing(sq, wr, opcode(wr).ok_or(BW_EOPCODE)?)
            }),
            AnySq::Ud(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| {
                post_sending(sq, wr, opcode(wr).ok_or(BW_EOPCODE)?)
            }),
            AnySq::Xrc(sq) => post_sends(sq, wr, num, bad_wr, |sq, wr| post_all(sq, wr)),
        }
    }
}

/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_sends<T: QpTransport>(
    sq: &mut QpSendQueue<'_, T>,
    wr: *const bw_send_wr,
    num: u32,
    bad_wr: *mut *const bw_send_wr,
    post: impl Fn(&mut QpSendQueue<'_, T>, &bw_send_wr) -> Result<(), bw_error>,
) -> c_int {
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        let code = post_each(wr, num, bad_wr, |wr| post(sq, wr));
        sq.ring();
        code
    }
}

/// The address that a request names besides its operation.
pub(crate) trait Addressed: QpTransport {
    /// # Safety
    /// The caller keeps the header's conventions on handles.
    unsafe fn address(wr: &bw_send_wr) -> Result<Address<'_, Self>, bw_error>;

    /// The address of requests that have no destination.
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
        // SAFETY: the caller keeps the header's conventions on handles.
        let ah: &bw_ah = unsafe { wr.ah.as_ref() }.ok_or(BW_ENULL)?;
        Ok(ah.ah.to(wr.remote_qpn, wr.remote_qkey))
    }

    const NOBODY: UdAddress<'static> = UdAddress {
        av: &NOWHERE,
        remote_qpn: 0,
        remote_qkey: 0,
    };
}

/// The address of a NOP on a queue for datagrams. It is not written to the WQE.
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

/// What send requests are posted to: a queue pair or a link.
pub(crate) trait Stage {
    type Transport: Addressed;

    /// # Safety
    /// That of [`QpSendQueue::post`].
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

    /// Maximum number of scatter/gather elements of a request.
    fn max_sge(&self) -> usize;
}

impl<T: Addressed> Stage for QpSendQueue<'_, T> {
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
        // SAFETY: the caller guarantees what [`QpSendQueue::post`] requires of the memory.
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

/// Posts to a transport that supports every operation.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
pub(crate) unsafe fn post_all<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Supports<RdmaRead> + Supports<AtomicCmpAndSwp> + Supports<AtomicFetchAndAdd>,
    S::Transport: Supports<RdmaWrite> + Supports<RdmaWriteWithImm> + Supports<SendWithInv>,
    S::Transport: Binds + Supports<LocalInv>,
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let remote = remote(wr);
    let operation = opcode(wr).ok_or(BW_EOPCODE)?;
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        match operation {
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
            WrOpcode::RdmaWrite
            | WrOpcode::RdmaWriteWithImm
            | WrOpcode::SendWithInv
            | WrOpcode::BindMw
            | WrOpcode::LocalInv => post_writing(sq, wr, operation),
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::Nop | WrOpcode::Tso => {
                post_sending(sq, wr, operation)
            }
        }
    }
}

/// Posts to a transport without READs and atomics.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_writing<S: Stage>(
    sq: &mut S,
    wr: &bw_send_wr,
    operation: WrOpcode,
) -> Result<(), bw_error>
where
    S::Transport: Supports<RdmaWrite> + Supports<RdmaWriteWithImm> + Supports<SendWithInv>,
    S::Transport: Binds + Supports<LocalInv>,
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let remote = remote(wr);
    let imm = Be32::from_raw(wr.imm_data);
    let rkey = wr.invalidate_rkey;
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        match operation {
            WrOpcode::RdmaWrite => outgoing(sq, wr, RdmaWrite { remote }),
            WrOpcode::RdmaWriteWithImm => outgoing(sq, wr, RdmaWriteWithImm { remote, imm }),
            WrOpcode::SendWithInv => outgoing(sq, wr, SendWithInv { rkey }),
            WrOpcode::BindMw => bind(sq, wr),
            WrOpcode::LocalInv => without(sq, wr, LocalInv { rkey }),
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::Nop | WrOpcode::Tso => {
                post_sending(sq, wr, operation)
            }
            WrOpcode::RdmaRead | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                Err(BW_EOPCODE)
            }
        }
    }
}

/// Posts to a transport that supports messages only.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post_sending<S: Stage>(
    sq: &mut S,
    wr: &bw_send_wr,
    operation: WrOpcode,
) -> Result<(), bw_error>
where
    S::Transport: Supports<Send> + Supports<SendWithImm> + Supports<Nop>,
{
    let imm = Be32::from_raw(wr.imm_data);
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        match operation {
            WrOpcode::Send => outgoing(sq, wr, Send {}),
            WrOpcode::SendWithImm => outgoing(sq, wr, SendWithImm { imm }),
            WrOpcode::Nop => without(sq, wr, Nop {}),
            WrOpcode::RdmaWrite
            | WrOpcode::RdmaWriteWithImm
            | WrOpcode::SendWithInv
            | WrOpcode::BindMw
            | WrOpcode::LocalInv
            | WrOpcode::RdmaRead
            | WrOpcode::AtomicCmpAndSwp
            | WrOpcode::AtomicFetchAndAdd
            | WrOpcode::Tso => Err(BW_EOPCODE),
        }
    }
}

/// Posts an operation that carries data, inline or not.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
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
    // SAFETY: the caller keeps the header's conventions on posting.
    let (list, to) = unsafe { (list(wr.sg_list, wr.num_sge)?, S::Transport::address(wr)?) };
    if wr.send_flags & BW_SEND_INLINE as u32 == 0 {
        // SAFETY: the caller keeps the header's conventions on the memory of requests.
        return unsafe { sq.stage(wr.wr_id, to, operation, list, flags) };
    }
    // SAFETY: the header's conventions on posting: the bytes exist, and nothing writes them meanwhile.
    let string = |sge: &Sge| unsafe {
        let data = std::ptr::with_exposed_provenance(sge.addr as usize);
        bytes(data, sge.length).ok_or(BW_ENULL)
    };
    // Most requests have one element, for which no list is made.
    if let [sge] = list {
        let data = Inline(string(sge)?);
        // SAFETY: an inline WQE names no local memory.
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
    // SAFETY: an inline WQE names no local memory.
    unsafe { sq.stage(wr.wr_id, to, operation, InlineList(strings), flags) }
}

/// Posts an operation whose result goes to local memory.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
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
    // SAFETY: the caller keeps the header's conventions on posting; the payload is not inline.
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
/// The caller keeps the header's conventions on handles; the caller owns the window.
#[inline(always)]
unsafe fn bind<S: Stage>(sq: &mut S, wr: &bw_send_wr) -> Result<(), bw_error>
where
    S::Transport: Binds,
{
    let flags = flags_without_data(wr)?;
    if wr.bind.reserved != 0 {
        return Err(BW_EINVAL);
    }
    // SAFETY: the caller keeps the header's conventions on handles; the caller owns the window.
    let mw = &mut unsafe { wr.mw.as_mut() }.ok_or(BW_ENULL)?.mw;
    if mw.mw_type() != MwType::Type2 {
        return Err(BW_EINVAL);
    }
    sq.bind(wr, mw, flags)
}

/// Posts an operation that has neither data nor a destination.
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
    // SAFETY: the WQE names no local memory.
    unsafe { sq.stage(wr.wr_id, S::Transport::NOBODY, operation, NoPayload, flags) }
}

/// `bw_post_recv` for requests of `size` bytes: posts the `num` receives of the array `wr`, in
/// order. Notifies the device of them and of receives posted before. `bad_wr` is as in
/// `bw_post_send`.
///
/// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL` (`reserved` is not
/// 0), `BW_ENORQ` (an XRC initiator, or a queue pair with a shared receive queue), `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_recv_sized(
    qp: *mut bw_qp,
    wr: *const bw_recv_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    if size != size_of::<bw_recv_wr>() {
        let size_of = size_of::<bw_recv_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post = |wr, num, bad_wr| unsafe { bw_post_recv_sized(qp, wr, size_of, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles.
    let (rq, _inside) = match unsafe { rq(qp) } {
        Ok(found) => found,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header's conventions on posting.
    let code = unsafe {
        post_each(wr, num, bad_wr, |wr| {
            rq.post(wr.wr_id, list(wr.sg_list, wr.num_sge)?)
                .map_err(post_code)
        })
    };
    rq.ring();
    code
}

/// `bw_post_srq_recv` for requests of `size` bytes: as `bw_post_recv`, to a shared receive queue.
///
/// Errors: `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL` (`reserved` is not 0), `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the shared receive queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_srq_recv_sized(
    srq: *mut bw_srq,
    wr: *const bw_recv_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    if size != size_of::<bw_recv_wr>() {
        let size_of = size_of::<bw_recv_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post =
            |wr, num, bad_wr| unsafe { bw_post_srq_recv_sized(srq, wr, size_of, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles; the caller owns the queue.
    let Some(bw_srq { srq, entered, .. }) = (unsafe { srq.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    let _inside = match entered.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: the header's conventions on posting.
    let code = unsafe {
        post_each(wr, num, bad_wr, |wr| {
            srq.post(wr.wr_id, list(wr.sg_list, wr.num_sge)?)
                .map_err(post_code)
        })
    };
    srq.ring();
    code
}
