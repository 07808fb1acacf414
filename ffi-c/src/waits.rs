//! Ending waits: an object whose waits another thread can end.

use crate::code::{BW_EFORK, BW_ENULL, BW_OK, bw_error};
use crate::failure::Failure;
use crate::handle::{self, Handle, is_ours};
use hw::event::Waiters;
use hw::memory::fork::keep;
use std::ffi::c_int;

/// Ends the waits for an object from now on, or lets them sleep again. Allocates nothing and takes no lock.
pub(crate) fn wake(waiters: Result<&Waiters, bw_error>, awake: c_int) -> c_int {
    match (waiters, awake) {
        (Err(code), _) => return code as c_int,
        (Ok(waiters), 0) => waiters.let_sleep(),
        (Ok(waiters), _) => waiters.wake(),
    }
    BW_OK as c_int
}

/// An object that one thread owns and waits for.
pub(crate) trait Owned {
    fn waiters(&self) -> &Waiters;
}

/// What the handle of such an object points to. Other threads reach the waiters beside the object, to which the
/// owner has an exclusive reference.
#[derive(Debug)]
#[repr(C)]
struct Beside<T> {
    // First: its address is the handle.
    handle: Handle<T>,
    waiters: Waiters,
}

/// The handle of a new object.
pub(crate) fn handle_of<T: Owned>(object: T) -> *mut T {
    let waiters = object.waiters().clone();
    let handle = Handle::of(object);
    Box::into_raw(Box::new(Beside { handle, waiters })).cast()
}

/// As [`handle::give`], for such an object.
///
/// # Safety
/// `to` is NULL, or a place for a pointer.
pub(crate) unsafe fn give<T: Owned>(
    to: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { handle::give_by(to, || Ok(handle_of(make()?))) }
}

/// Destroys such an object. In a child of the process that made the object, nothing happens.
///
/// # Safety
/// `handle` is NULL, or came from [`handle_of`] and was not destroyed; nothing else uses the object any more.
pub(crate) unsafe fn take<T: Owned>(handle: *mut T, what: &str) -> Result<(), Failure> {
    if handle.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not NULL, so it is valid.
    match unsafe { is_ours(handle) } {
        // SAFETY: from `handle_of`, and taken once.
        true => drop(unsafe { Box::from_raw(handle.cast::<Beside<T>>()) }),
        // It is never freed, which leak checkers should know of.
        false => keep(handle),
    }
    Ok(())
}

/// As [`wake`], for such an object.
///
/// # Safety
/// `handle` is NULL, or came from [`handle_of`] and was not destroyed.
pub(crate) unsafe fn wake_owner<T: Owned>(handle: *const T, awake: c_int) -> c_int {
    if handle.is_null() {
        return BW_ENULL as c_int;
    }
    // SAFETY: not NULL, so it is valid.
    if !unsafe { is_ours(handle) } {
        return BW_EFORK as c_int;
    }
    // SAFETY: not NULL; the waiters are not part of what the owner has a reference to.
    wake(Ok(unsafe { &(*handle.cast::<Beside<T>>()).waiters }), awake)
}
