//! A descriptor that is readable while events are queued.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An eventfd(2) that counts the queued events.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

/// Repeats a call while a signal interrupts it.
fn retried<T: PartialEq + From<i8>>(mut call: impl FnMut() -> T) -> io::Result<T> {
    loop {
        let answer = call();
        if answer != T::from(-1) {
            return Ok(answer);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl EventFd {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes numbers only.
        let fd = retried(|| unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) })?;
        // SAFETY: the descriptor was just created, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Increments the count. Does not block: the count has 64 bits.
    pub fn add(&self) {
        let one = 1u64;
        // SAFETY: `one` is eight readable bytes.
        let wrote = retried(|| unsafe {
            libc::write(
                self.0.as_raw_fd(),
                (&raw const one).cast(),
                size_of::<u64>(),
            )
        });
        debug_assert_eq!(wrote.ok(), Some(8));
    }

    /// Decrements the count. The caller holds the queue's lock, so no other thread reads the descriptor
    /// between the check and the read. The check is needed because a program may have read the descriptor
    /// against its documentation: without it the read would then block under the lock.
    pub fn take(&self) {
        let mut count = 0u64;
        if wait(self.as_fd(), Some(Duration::ZERO)).unwrap_or(false) {
            // SAFETY: `count` is eight writable bytes.
            let _counted = retried(|| unsafe {
                libc::read(
                    self.0.as_raw_fd(),
                    (&raw mut count).cast(),
                    size_of::<u64>(),
                )
            });
        }
    }
}

/// Waits until a descriptor is readable; `false`: it was not within `bound`, which is rounded up to
/// milliseconds. The caller checks again in either case.
pub fn wait(fd: BorrowedFd<'_>, bound: Option<Duration>) -> io::Result<bool> {
    let bound = bound.map_or(-1, |bound| {
        i32::try_from(bound.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one entry, which is readable and writable.
    let ready = retried(|| unsafe { libc::poll(&raw mut poll, 1, bound) })?;
    Ok(ready != 0)
}

/// The flags of a descriptor, which its other users may have changed.
fn flags(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the call takes numbers only.
    retried(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

pub fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(flags(fd)? & libc::O_NONBLOCK != 0)
}

/// Sets or clears O_NONBLOCK.
///
/// # Errors
/// The error of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let flags = flags(fd)? & !libc::O_NONBLOCK;
    let flags = flags | if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the call takes numbers only.
    retried(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
    Ok(())
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
