//! Handles: how objects are given to the program, found again, and taken back.

use crate::code::BW_ENULL;
use crate::failure::{Failure, guard};
use std::ffi::c_int;

/// A set-up call that makes an object, and gives its handle to the program; NULL when it fails, for
/// whatever reason: `make` looks at the call's other arguments, too.
///
/// # Safety
/// `to` is NULL, or a place for a pointer.
pub(crate) unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> c_int {
    guard(|| {
        if to.is_null() {
            return Err(Failure::new(BW_ENULL, "the place for the handle is NULL"));
        }
        // SAFETY: not NULL.
        unsafe {
            to.write(std::ptr::null_mut());
            to.write(Box::into_raw(Box::new(make()?)));
        }
        Ok(())
    })
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is NULL, or one that was given and not taken; nobody changes the object meanwhile.
pub(crate) unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::null(what))
}

/// As [`get`], to change it.
///
/// # Safety
/// As there; nobody else uses the object meanwhile.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::null(what))
}

/// Destroys the object behind a handle, if `check` lets it.
///
/// # Safety
/// `handle` is NULL, or one that was given and not taken; nobody uses the object any more.
pub(crate) unsafe fn take<T>(
    handle: *mut T,
    what: &str,
    check: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { take_with(handle, what, check) }.map(drop)
}

/// As [`take`], to end the object in another way than by dropping it.
///
/// # Safety
/// As there.
pub(crate) unsafe fn take_with<T>(
    handle: *mut T,
    what: &str,
    check: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Result<Box<T>, Failure> {
    // SAFETY: the caller's promise.
    check(unsafe { get_mut(handle, what)? })?;
    // SAFETY: from `give`, and taken once.
    Ok(unsafe { Box::from_raw(handle) })
}

// The header on threads: these may be used by any, queues by one at a time, a queue pair's two queues
// by one each.
const _: () = {
    const fn any<T: Send + Sync>() {}
    const fn one<T: Send>() {}
    any::<crate::device::bw_device>();
    any::<crate::memory::bw_pd>();
    any::<crate::memory::bw_mr>();
    any::<crate::memory::bw_region>();
    any::<crate::ah::bw_ah>();
    any::<crate::channel::bw_comp_channel>();
    any::<crate::xrc::bw_xrcd>();
    any::<crate::xrc::bw_xrc_target>();
    any::<crate::event::bw_async_event>();
    any::<crate::tcp::bw_tcp_listener>();
    any::<crate::cm::bw_cm_channel>();
    any::<crate::cm::bw_cm_id>();
    any::<crate::slab::bw_slab>();
    any::<crate::link::cm::bw_connector>();
    one::<crate::link::cm::bw_listener>();
    one::<crate::slab_cache::bw_slab_cache>();
    one::<crate::tcp::bw_tcp_conn>();
    one::<crate::link::bw_link>();
    one::<hw::Cq>();
    one::<hw::Mw>();
    one::<hw::Srq>();
    one::<hw::Qp>();
    one::<hw::Qp<hw::wqe::Uc>>();
    one::<hw::Qp<hw::wqe::Ud>>();
    one::<hw::Qp<hw::wqe::Xrc>>();
    one::<hw::RcSendQueue>();
    one::<hw::QpRecvQueue>();
};
