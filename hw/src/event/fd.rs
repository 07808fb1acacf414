//! A descriptor that is readable while something is queued.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An eventfd(2) that counts what is queued.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

/// Makes a call again for as long as a signal interrupts it.
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
        // SAFETY: takes numbers only.
        let fd = retried(|| unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) })?;
        // SAFETY: a descriptor that was just made, and is nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Counts one up. Does not block: the count is 64 bits wide.
    pub fn add(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are readable.
        let wrote = retried(|| unsafe {
            libc::write(
                self.0.as_raw_fd(),
                (&raw const one).cast(),
                size_of::<u64>(),
            )
        });
        debug_assert_eq!(wrote.ok(), Some(8));
    }

    /// Counts one down. By the holder of the queue's lock, so that nobody else does between the look
    /// and the read. The look is for programs that read what they were asked not to: without it one
    /// would be waited for under the lock.
    pub fn take(&self) {
        let mut count = 0u64;
        if wait(self.as_fd(), Some(Duration::ZERO)).unwrap_or(false) {
            // SAFETY: eight bytes are writable.
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
/// milliseconds. The caller looks again in any case.
pub(crate) fn wait(fd: BorrowedFd<'_>, bound: Option<Duration>) -> io::Result<bool> {
    let bound = bound.map_or(-1, |bound| {
        i32::try_from(bound.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which is readable and writable.
    let ready = retried(|| unsafe { libc::poll(&raw mut poll, 1, bound) })?;
    Ok(ready != 0)
}

/// A descriptor's flags, as whoever has it may have set them.
fn flags(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: takes numbers only.
    retried(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

pub(super) fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(flags(fd)? & libc::O_NONBLOCK != 0)
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let flags = flags(fd)? & !libc::O_NONBLOCK;
    let flags = flags | if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: takes numbers only.
    retried(|| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
    Ok(())
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
