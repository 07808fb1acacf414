//! libc's functions that libibverbs, libmlx5 and Rust's library call, and what is ours of them.
//!
//! Each is called by the whole process, so that what is none of ours is passed on after one look.

use crate::descriptors::{self, Descriptor};
use crate::{command, events, memory, real, sysfs, uar};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, off_t, size_t, ssize_t};
use rustix::io::Errno;
use std::ffi::CStr;

/// `RDMA_VERBS_IOCTL` (rdma_user_ioctl_cmds.h): _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr).
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;

/// `NETLINK_RDMA`, which the crate `libc` has not for every target.
const NETLINK_RDMA: c_int = 20;

fn fail(error: Errno) -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

/// What a call that gives a number answers.
fn answer(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => fail(error) as ssize_t,
    }
}

/// Runs one of our functions. Nothing unwinds into C.
pub fn guarded<T>(run: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(Err(Errno::IO))
}

/// Whether a path is the device's.
///
/// # Safety
/// `path` is null or a string.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: not null, so the caller guarantees a string that ends with a zero byte.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == sysfs::DEVICE_PATH
}

/// Has the folder made before somebody looks into it.
///
/// # Safety
/// As [`is_device`].
unsafe fn look_at(path: *const c_char) {
    if !path.is_null() {
        // SAFETY: not null, so the caller guarantees a string that ends with a zero byte.
        sysfs::look_at(unsafe { CStr::from_ptr(path) });
    }
}

/// `open(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: as open(2) requires, the caller guarantees that `path` is null or a string; `fd` was opened
    // here.
    unsafe {
        if !is_device(path) {
            look_at(path);
            return real::open(path, flags, mode);
        }
        if descriptors::disowned() {
            return fail(Errno::NODEV);
        }
        // A character device that is there on every machine, and has the number that sysfs says.
        let fd = real::open(sysfs::STANDS_IN.as_ptr(), flags, mode);
        if fd < 0 {
            return fd;
        }
        match guarded(|| descriptors::put(fd, Descriptor::opened())) {
            Ok(()) => fd,
            Err(error) => {
                real::close(fd);
                fail(error)
            }
        }
    }
}

/// `openat(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: as openat(2) requires, the caller guarantees that `path` is null or a string.
    unsafe {
        look_at(path);
        real::openat(dir, path, flags, mode)
    }
}

/// `opendir(3)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: as opendir(3) requires, the caller guarantees that `path` is null or a string.
    unsafe {
        look_at(path);
        real::opendir(path)
    }
}

/// `stat(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as stat(2) requires, the caller guarantees that `path` is null or a string, and that `to` can
    // be written.
    unsafe {
        if is_device(path) {
            return real::stat(sysfs::STANDS_IN.as_ptr(), to);
        }
        look_at(path);
        real::stat(path, to)
    }
}

/// `statx(2)`. The folder is not made for it: who makes that calls it.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: as statx(2) requires, the caller guarantees that `path` is null or a string, and that `to`
    // can be written.
    unsafe {
        if is_device(path) {
            return real::statx(dir, sysfs::STANDS_IN.as_ptr(), flags, mask, to);
        }
        real::statx(dir, path, flags, mask, to)
    }
}

/// `close(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(descriptor) = descriptors::take(fd) {
        // What it was the last use of goes, as with the kernel, before the call returns.
        let _ = guarded(|| {
            drop(descriptor);
            Ok(())
        });
    }
    // SAFETY: as close(2) requires, the caller guarantees that the descriptor is its own.
    unsafe { real::close(fd) }
}

/// `write(2)`: a command.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t {
    match descriptors::get(fd) {
        // SAFETY: as write(2) requires, the caller guarantees that `count` bytes at `from` can be read.
        None => unsafe { real::write(fd, from, count) },
        Some(Descriptor::Commands(file)) => answer(guarded(|| {
            let command = memory::read(from as u64, count, command::LONGEST)?;
            file.command(&command).map(|()| count)
        })),
        Some(_) => fail(Errno::INVAL) as ssize_t,
    }
}

/// `read(2)`: an event.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, count: size_t) -> ssize_t {
    match descriptors::get(fd) {
        // SAFETY: as read(2) requires, the caller guarantees that `count` bytes at `to` can be written.
        None => unsafe { real::read(fd, to, count) },
        Some(Descriptor::Commands(_) | Descriptor::Disowned) => fail(Errno::INVAL) as ssize_t,
        Some(Descriptor::Async(events)) => {
            answer(guarded(|| events::read_async(&events, to as u64, count)))
        }
        Some(Descriptor::Channel(channel)) => {
            answer(guarded(|| events::read_channel(&channel, to as u64, count)))
        }
    }
}

/// `ioctl(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request == RDMA_VERBS_IOCTL && descriptors::get(fd).is_some() {
        // As a kernel has it that only knows write().
        return fail(Errno::NOTTY);
    }
    // SAFETY: as ioctl(2) requires, the caller guarantees that `arg` is what this request takes.
    unsafe { real::ioctl(fd, request, arg) }
}

/// `socket(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        // It would list the machine's real devices.
        return fail(Errno::PROTONOSUPPORT);
    }
    // SAFETY: takes integers.
    unsafe { real::socket(domain, kind, protocol) }
}

/// `mmap(2)`: register pages.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    length: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let place = match descriptors::get(fd) {
        None => Ok((fd, offset)),
        Some(Descriptor::Commands(file)) => guarded(|| uar::place(&file, length, offset)),
        Some(_) => Err(Errno::INVAL),
    };
    match place {
        // SAFETY: as mmap(2) requires, the caller guarantees that no mapping in use is replaced; registers
        // are mapped from memory of our own.
        Ok((fd, offset)) => unsafe { real::mmap(addr, length, prot, flags, fd, offset) },
        Err(error) => {
            fail(error);
            libc::MAP_FAILED
        }
    }
}

/// Says where sysfs is, before the program asks.
extern "C" fn begin() {
    sysfs::announce();
}

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
