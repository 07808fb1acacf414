//! Handles: how objects are given to the program, found by their handles, and destroyed.

use crate::code::{BW_EFORK, BW_ENULL, bw_error};
use crate::failure::{Failure, guard};
use hw::memory::fork::{Life, keep};
use std::ffi::c_int;

/// What a handle points to: the object, and whose it is.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Handle<T> {
    // First: its address is the handle.
    object: T,
    life: Life,
}

impl<T> Handle<T> {
    /// Belongs to this process.
    pub fn of(object: T) -> Self {
        let life = Life::current();
        Self { object, life }
    }
}

/// A handle of an object, which belongs to this process.
pub(crate) fn new<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(Handle::of(object))).cast()
}

/// Whether the object behind a handle belongs to this process, and not to the one that it was forked from.
///
/// # Safety
/// `handle` came from [`new`] and was not destroyed.
pub(crate) unsafe fn is_ours<T>(handle: *const T) -> bool {
    // SAFETY: the caller guarantees a handle that was made by `new`. The life never changes.
    unsafe { (&raw const (*handle.cast::<Handle<T>>()).life).read() }.is_current()
}

fn of_the_parent(what: &str) -> Failure {
    let text = format!(
        "the {what} belongs to the process that this one was forked from: open the device again here"
    );
    Failure::new(BW_EFORK, text)
}

/// Runs a set-up call that creates an object, and writes its handle to `to`, or NULL when it fails.
/// `make` also checks the call's other arguments, so that NULL is written for their errors as well.
///
/// # Safety
/// `to` is NULL, or a place for a pointer.
pub(crate) unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give_by(to, || Ok(new(make()?))) }
}

/// As [`give`], but `make` returns the handle.
///
/// # Safety
/// `to` is NULL, or a place for a pointer.
pub(crate) unsafe fn give_by<T>(
    to: *mut *mut T,
    make: impl FnOnce() -> Result<*mut T, Failure>,
) -> c_int {
    guard(|| {
        if to.is_null() {
            return Err(Failure::new(BW_ENULL, "the place for the handle is NULL"));
        }
        // SAFETY: not NULL.
        unsafe {
            to.write(std::ptr::null_mut());
            to.write(make()?);
        }
        Ok(())
    })
}

/// The object behind a handle.
///
/// # Errors
/// `BW_ENULL`; `BW_EFORK`: it belongs to the parent of this process.
///
/// # Safety
/// `handle` is NULL, or came from [`new`] and was not destroyed; nothing changes the object meanwhile.
pub(crate) unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing changes the
    // object.
    let object = unsafe { handle.as_ref() }.ok_or_else(|| Failure::null(what))?;
    // SAFETY: not NULL, so it is valid.
    match unsafe { is_ours(handle) } {
        true => Ok(object),
        false => Err(of_the_parent(what)),
    }
}

/// The object behind a handle, for a signal handler: as [`get`], but the error is the code alone.
///
/// # Safety
/// That of [`get`].
pub(crate) unsafe fn peek<'a, T>(handle: *const T) -> Result<&'a T, bw_error> {
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing changes the object.
    let object = unsafe { handle.as_ref() }.ok_or(BW_ENULL)?;
    // SAFETY: not NULL, so it is valid.
    unsafe { is_ours(handle) }.then_some(object).ok_or(BW_EFORK)
}

/// The object behind a handle, to be changed.
///
/// # Errors
/// `BW_ENULL`; `BW_EFORK`: it belongs to the parent of this process.
///
/// # Safety
/// `handle` is NULL, or came from [`new`] and was not destroyed; nothing else uses the object
/// meanwhile.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    if handle.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not NULL, so it is valid.
    if !unsafe { is_ours(handle) } {
        return Err(of_the_parent(what));
    }
    // SAFETY: as above, and the caller guarantees that nothing else uses the object.
    Ok(unsafe { &mut *handle })
}

/// Destroys the object behind a handle if `check` allows it. In a child of the process that made the object,
/// nothing happens: its parent may use it.
///
/// # Safety
/// `handle` is NULL, or came from [`new`] and was not destroyed; nothing else uses the object any
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

/// As [`take`], but returns the object instead of dropping it. `None`: it belongs to the parent of this process.
///
/// # Safety
/// `handle` is NULL, or came from [`new`] and was not destroyed; nothing else uses the object any
/// more.
pub(crate) unsafe fn take_with<T>(
    handle: *mut T,
    what: &str,
    check: impl FnOnce(&mut T) -> Result<(), Failure>,
) -> Result<Option<T>, Failure> {
    // SAFETY: the caller guarantees a handle that is NULL or valid.
    if !handle.is_null() && !unsafe { is_ours(handle) } {
        // It is never freed, which leak checkers should know of.
        keep(handle);
        return Ok(None);
    }
    // SAFETY: the caller guarantees a handle that is NULL or valid, and that nothing else uses the
    // object.
    check(unsafe { get_mut(handle, what)? })?;
    // SAFETY: from `new`, and taken once.
    let handle = unsafe { Box::from_raw(handle.cast::<Handle<T>>()) };
    Ok(Some(handle.object))
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
    any::<crate::monitor::bw_monitor>();
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
