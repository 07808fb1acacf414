//! Handles: how objects are given to the program, found by their handles, and destroyed.

use crate::code::BW_ENULL;
use crate::failure::{Failure, guard};
use std::ffi::c_int;

/// Runs a set-up call that creates an object, and writes its handle to `to`, or NULL when it fails.
/// `make` also checks the call's other arguments, so that NULL is written for their errors as well.
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
/// `handle` is NULL, or came from [`give`] and was not destroyed; nothing changes the object meanwhile.
pub(crate) unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing changes the
    // object.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::null(what))
}

/// The object behind a handle, to be changed.
///
/// # Safety
/// `handle` is NULL, or came from [`give`] and was not destroyed; nothing else uses the object
/// meanwhile.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing else uses the
    // object.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::null(what))
}

/// Destroys the object behind a handle if `check` allows it.
///
/// # Safety
/// `handle` is NULL, or came from [`give`] and was not destroyed; nothing else uses the object any
/// more.
pub(crate) unsafe fn take<T>(
    handle: *mut T,
    what: &str,
    check: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing else uses the
    // object.
    unsafe { take_with(handle, what, check) }.map(drop)
}

/// As [`take`], but returns the object instead of dropping it.
///
/// # Safety
/// `handle` is NULL, or came from [`give`] and was not destroyed; nothing else uses the object any
/// more.
pub(crate) unsafe fn take_with<T>(
    handle: *mut T,
    what: &str,
    check: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Result<Box<T>, Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing else uses the
    // object.
    check(unsafe { get_mut(handle, what)? })?;
    // SAFETY: from `give`, and taken once.
    Ok(unsafe { Box::from_raw(handle) })
}

// The header's conventions on threads: any thread may use these, one thread at a time a queue, and one
// thread each the two queues of a queue pair.
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
    one::<hw::RcSendQueue<'static>>();
    one::<hw::QpRecvQueue<'static>>();
};
