//! Posting to a link: the data path.

use super::bw_link;
use super::code::link_code;
use crate::array::post_older;
use crate::code::*;
use crate::direct::{at, element};
use crate::post::{Stage, bytes, flags, list, post_all, post_each};
use crate::wr::{bw_recv_wr, bw_send_wr, bw_sge};
use hw::Mw;
use hw::fault::outcome::Replay;
use hw::link::{Link, LinkError, SetLink};
use hw::wqe::{Inline, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports};
use hw::wr::{SendFlags, Sge};
use std::ffi::{c_int, c_void};

/// What to do, once the link works again, with a request that did not complete successfully. A request
/// that was executed is reported as BW_OUTCOME_EXECUTED in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_replay {
    /// Report its outcome to the program.
    BW_REPLAY_NEVER = 0,
    /// Post it again if posting it twice has the same effect as posting it once. These are requests
    /// that were not executed, and READs in doubt after which nothing was executed.
    BW_REPLAY_IF_SAFE = 1,
    /// As BW_REPLAY_IF_SAFE, and also WRITEs and READs in doubt: their target and source do not change
    /// meanwhile, or a change does no harm. SENDs, WRITEs with immediate data, and atomics that may
    /// have been executed are never posted again.
    BW_REPLAY_ANYWAY = 2,
}

#[inline(always)]
fn policy(number: u32) -> Option<Replay> {
    match number {
        n if n == bw_replay::BW_REPLAY_NEVER as u32 => Some(Replay::Surface),
        n if n == bw_replay::BW_REPLAY_IF_SAFE as u32 => Some(Replay::IfSafe),
        n if n == bw_replay::BW_REPLAY_ANYWAY as u32 => Some(Replay::Anyway),
        _ => None,
    }
}

/// A plain link, or a link of a set.
pub(super) trait Target {
    /// # Safety
    /// That of [`Link::post`].
    unsafe fn post<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError>
    where
        Rc: Supports<O>;

    fn post_bind(
        &mut self,
        wr: &bw_send_wr,
        mw: &mut Mw,
        flags: SendFlags,
        replay: Replay,
    ) -> Result<(), LinkError>;

    /// # Safety
    /// That of [`Link::post_recv`].
    unsafe fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), LinkError>;

    fn ring(&mut self);

    fn ring_recv(&mut self);
}

macro_rules! target {
    ($link:ty) => {
        impl Target for $link {
            #[inline(always)]
            unsafe fn post<O: Operation, P: Payload>(
                &mut self,
                wr_id: u64,
                operation: O,
                payload: P,
                flags: SendFlags,
                replay: Replay,
            ) -> Result<(), LinkError>
            where
                Rc: Supports<O>,
            {
                // SAFETY: the caller keeps the same promise.
                unsafe { <$link>::post(self, wr_id, operation, payload, flags, replay) }
            }

            #[inline(always)]
            fn post_bind(
                &mut self,
                wr: &bw_send_wr,
                mw: &mut Mw,
                flags: SendFlags,
                replay: Replay,
            ) -> Result<(), LinkError> {
                <$link>::post_bind(self, wr.wr_id, mw, &(&wr.bind).into(), flags, replay)
            }

            #[inline(always)]
            unsafe fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), LinkError> {
                // SAFETY: the caller keeps the same promise.
                unsafe { <$link>::post_recv(self, wr_id, sges) }
            }

            #[inline(always)]
            fn ring(&mut self) {
                <$link>::ring(self);
            }

            #[inline(always)]
            fn ring_recv(&mut self) {
                <$link>::ring_recv(self);
            }
        }
    };
}

target!(Link);
target!(SetLink<'_>);

/// A link, and the replay policy of the requests that are posted to it.
struct Staging<'a, L> {
    link: &'a mut L,
    max_send_sge: u32,
    replay: Replay,
}

impl<L: Target> Stage for Staging<'_, L> {
    type Transport = Rc;

    #[inline(always)]
    unsafe fn stage<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        (): (),
        operation: O,
        payload: P,
        flags: SendFlags,
    ) -> Result<(), bw_error>
    where
        Rc: Supports<O>,
    {
        // SAFETY: the caller guarantees what [`Stage::stage`] requires of the memory.
        let posted = unsafe {
            self.link
                .post(wr_id, operation, payload, flags, self.replay)
        };
        posted.map_err(link_code)
    }

    #[inline(always)]
    fn bind(&mut self, wr: &bw_send_wr, mw: &mut Mw, flags: SendFlags) -> Result<(), bw_error> {
        self.link
            .post_bind(wr, mw, flags, self.replay)
            .map_err(link_code)
    }

    #[inline(always)]
    fn max_sge(&self) -> usize {
        self.max_send_sge as usize
    }
}

/// `bw_link_post_send` for requests of `size` bytes: posts the `num` send requests of the array
/// `wr`, in order, as `bw_post_send` does. `replay`, a `bw_replay`, applies to all of them. A
/// window bound by BIND_MW belongs to the queue pair, which a recovery resets or replaces. Create
/// another window then, bind it, and send the peer its key. Do the same after a bind whose outcome
/// is not BW_OUTCOME_EXECUTED, as the window's key is then unknown.
///
/// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`,
/// `BW_EOPCODE`, `BW_EINVAL` (unknown flags or `replay`; BW_SEND_INLINE with an operation that sends no
/// data; elements with an operation that has none; BIND_MW of a window of type 1; `reserved`, or that
/// of a bind, is not 0), `BW_ENULL` (also: a BIND_MW without `mw`), `BW_ESIZE`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_send_sized(
    link: *mut bw_link,
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
            bw_link_post_send_sized(link, wr, size_of, num, replay, bad_wr)
        };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles; the caller owns the link.
    let Some(link) = (unsafe { link.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the header's conventions on posting.
    unsafe { post_sends(&mut link.link, link.max_send_sge, wr, num, replay, bad_wr) }
}

/// Posts an array of send requests, and rings.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
pub(super) unsafe fn post_sends<L: Target>(
    link: &mut L,
    max_send_sge: u32,
    wr: *const bw_send_wr,
    num: u32,
    replay: u32,
    bad_wr: *mut *const bw_send_wr,
) -> c_int {
    let Some(replay) = policy(replay) else {
        return BW_EINVAL as c_int;
    };
    let mut staging = Staging {
        link,
        max_send_sge,
        replay,
    };
    // SAFETY: the caller keeps the header's conventions on posting.
    let code = unsafe { post_each(wr, num, bad_wr, |wr| post_all(&mut staging, wr)) };
    staging.link.ring();
    code
}

/// Posts an array of receives, and rings.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
pub(super) unsafe fn post_recvs<L: Target>(
    link: &mut L,
    wr: *const bw_recv_wr,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps the header's conventions on posting.
    let code = unsafe {
        post_each(wr, num, bad_wr, |wr| {
            let list = list(wr.sg_list, wr.num_sge)?;
            link.post_recv(wr.wr_id, list).map_err(link_code)
        })
    };
    link.ring_recv();
    code
}

/// Posts one request.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
pub(super) unsafe fn post_one<'a, L: Target + 'a, O: Operation, P: Payload>(
    link: Result<&'a mut L, bw_error>,
    wr_id: u64,
    operation: O,
    payload: Option<P>,
    send_flags: u32,
    replay: u32,
) -> c_int
where
    Rc: Supports<O>,
{
    let link = match link {
        Ok(link) => link,
        Err(code) => return code as c_int,
    };
    let Some(payload) = payload else {
        return BW_ENULL as c_int;
    };
    let (Some(flags), Some(replay)) = (flags(send_flags), policy(replay)) else {
        return BW_EINVAL as c_int;
    };
    // SAFETY: the caller keeps the header's conventions on posting, also for the memory of the request.
    match unsafe { link.post(wr_id, operation, payload, flags, replay) } {
        Ok(()) => BW_OK as c_int,
        Err(error) => link_code(error) as c_int,
    }
}

/// Posts one request.
///
/// # Safety
/// The caller keeps the header's conventions on posting.
#[inline(always)]
unsafe fn post<O: Operation, P: Payload>(
    link: *mut bw_link,
    wr_id: u64,
    operation: O,
    payload: Option<P>,
    send_flags: u32,
    replay: u32,
) -> c_int
where
    Rc: Supports<O>,
{
    // SAFETY: the header's conventions on handles; the caller owns the link.
    let link = unsafe { link.as_mut() }.map(|link| &mut link.link);
    // SAFETY: the caller keeps the header's conventions on posting.
    unsafe {
        post_one(
            link.ok_or(BW_ENULL),
            wr_id,
            operation,
            payload,
            send_flags,
            replay,
        )
    }
}

/// Posts an RDMA WRITE of the memory that `sge` names; the device is not notified before
/// `bw_link_ring_sq`. `replay` is a `bw_replay`. BW_SEND_INLINE in `send_flags` has no effect on this
/// and the following functions: the function decides whether the data is inline.
///
/// Errors: those of `bw_link_post_send`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_write(
    link: *mut bw_link,
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
    unsafe { post(link, wr_id, write, element(sge), send_flags, replay) }
}

/// Posts an RDMA WRITE of `length` bytes at `data` inline: the memory need not be registered, and may
/// be reused when this returns.
///
/// Errors: those of `bw_link_post_send`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_write_inline(
    link: *mut bw_link,
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
        post(link, wr_id, write, payload, send_flags, replay)
    }
}

/// Posts an RDMA READ into the memory that `sge` names.
///
/// Errors: those of `bw_link_post_send`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_read(
    link: *mut bw_link,
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
    unsafe { post(link, wr_id, read, element(sge), send_flags, replay) }
}

/// Posts a SEND of the memory that `sge` names, into the peer's next receive.
///
/// Errors: those of `bw_link_post_send`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_send_one(
    link: *mut bw_link,
    wr_id: u64,
    sge: *const bw_sge,
    send_flags: u32,
    replay: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe { post(link, wr_id, Send {}, element(sge), send_flags, replay) }
}

/// Posts a SEND of `length` bytes at `data` inline, as `bw_link_post_write_inline` does.
///
/// Errors: those of `bw_link_post_send`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_send_inline(
    link: *mut bw_link,
    wr_id: u64,
    data: *const c_void,
    length: u32,
    send_flags: u32,
    replay: u32,
) -> c_int {
    // SAFETY: the header's conventions on posting.
    unsafe {
        let payload = bytes(data, length).map(Inline);
        post(link, wr_id, Send {}, payload, send_flags, replay)
    }
}

/// Notifies the device of the send requests that were posted one by one. Does nothing while the link
/// recovers: requests posted before are reported.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_ring_sq(link: *mut bw_link) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the link.
    let Some(link) = (unsafe { link.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    link.link.ring();
    BW_OK as c_int
}

/// `bw_link_post_recv` for requests of `size` bytes: posts the `num` receives of the array `wr`, in
/// order, as `bw_post_recv` does. A link posts them again when it recovers: each is reported once,
/// when a message has arrived, or when the link ends. They may be posted before the link is
/// connected for the first time, and should be. They may be posted at any time, even after it has
/// been polled, and as many as the receive queue has room for. Until then the link rings the
/// doorbell for them itself. During later recoveries they are refused, as sends are.
///
/// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL`
/// (`reserved` is not 0), `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_recv_sized(
    link: *mut bw_link,
    wr: *const bw_recv_wr,
    size: usize,
    num: u32,
    bad_wr: *mut *const bw_recv_wr,
) -> c_int {
    if size != size_of::<bw_recv_wr>() {
        let size_of = size_of::<bw_recv_wr>();
        // SAFETY: the header's conventions on handles and posting.
        let post =
            |wr, num, bad_wr| unsafe { bw_link_post_recv_sized(link, wr, size_of, num, bad_wr) };
        // SAFETY: the header's conventions on posting.
        return unsafe { post_older(wr, size, num, bad_wr, &post) };
    }
    // SAFETY: the header's conventions on handles; the caller owns the link.
    let Some(link) = (unsafe { link.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the header's conventions on posting.
    unsafe { post_recvs(&mut link.link, wr, num, bad_wr) }
}

/// Posts a receive into the memory that `sge` names; the device is not notified before
/// `bw_link_ring_rq`.
///
/// Errors: those of `bw_link_post_recv`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_recv_one(
    link: *mut bw_link,
    wr_id: u64,
    sge: *const bw_sge,
) -> c_int {
    // SAFETY: the header's conventions on handles and posting; the caller owns the link.
    let (Some(link), Some(sge)) = (unsafe { (link.as_mut(), element(sge)) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the header's conventions on handles and posting; the caller owns the link.
    match unsafe { link.link.post_recv(wr_id, &[sge]) } {
        Ok(()) => BW_OK as c_int,
        Err(error) => link_code(error) as c_int,
    }
}

/// Notifies the device of the receives that were posted one by one.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_ring_rq(link: *mut bw_link) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the link.
    let Some(link) = (unsafe { link.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    link.link.ring_recv();
    BW_OK as c_int
}
