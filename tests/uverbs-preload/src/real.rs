//! libc's own functions, of which ours take the place.

use libc::{c_char, c_int, c_uint, c_ulong, c_void, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Finds the next function of this name behind ours, once.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    // Relaxed: the pointer says everything, and everybody finds the same.
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // A process without libc has not come here.
        std::process::abort();
    }
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($name:ident: $text:literal ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// libc's.
        ///
        /// # Safety
        /// As the manual page has it.
        pub unsafe fn $name($($arg: $type),*) -> $result {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let found = next(&CACHE, $text);
            // SAFETY: libc's function of this name has this signature. Arguments that C declares as
            // variable are passed as others are, on the machines that bellwire knows.
            unsafe {
                let function: unsafe extern "C" fn($($type),*) -> $result =
                    std::mem::transmute(found);
                function($($arg),*)
            }
        }
    )*};
}

real! {
    open: c"open" (path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    openat: c"openat" (dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    opendir: c"opendir" (path: *const c_char) -> *mut libc::DIR;
    stat: c"stat" (path: *const c_char, to: *mut libc::stat) -> c_int;
    statx: c"statx" (
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx
    ) -> c_int;
    close: c"close" (fd: c_int) -> c_int;
    read: c"read" (fd: c_int, to: *mut c_void, count: size_t) -> ssize_t;
    write: c"write" (fd: c_int, from: *const c_void, count: size_t) -> ssize_t;
    ioctl: c"ioctl" (fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int;
    socket: c"socket" (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    mmap: c"mmap" (
        addr: *mut c_void, length: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void;
}
