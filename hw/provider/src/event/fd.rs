//! A descriptor that is readable while events are queued.
//!
//! System calls are made by the kernel's interface, not by the C library's: a device may raise an event while the
//! program posts, which must not be a cancellation point.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// An eventfd(2) that counts the queued events.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Increments the count. Does not block: the count has 64 bits.
    pub fn add(&self) {
        let wrote = retry_on_intr(|| rustix::io::write(&self.0, &1u64.to_ne_bytes()));
        debug_assert_eq!(wrote, Ok(8));
    }

    /// Decrements the count. The caller holds the queue's lock, so no other thread reads the descriptor
    /// between the check and the read. The check is needed because a program may have read the descriptor
    /// against its documentation: without it the read would then block under the lock.
    pub fn take(&self) {
        if wait(self.as_fd(), Some(Duration::ZERO)).unwrap_or(false) {
            let _counted = retry_on_intr(|| rustix::io::read(&self.0, &mut [0; 8]));
        }
    }
}

/// Waits until a descriptor is readable; `false`: it was not within `bound`, or a signal has interrupted the
/// wait. The caller checks again in either case, for the time that is left.
pub fn wait(fd: BorrowedFd<'_>, bound: Option<Duration>) -> io::Result<bool> {
    // A time longer than the system supports means no limit.
    let bound = bound.and_then(|bound| Timespec::try_from(bound).ok());
    let mut one = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut one, bound.as_ref()) {
        Ok(ready) => Ok(ready != 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(fcntl_getfl(fd)?.contains(OFlags::NONBLOCK))
}

/// Sets or clears O_NONBLOCK.
///
/// # Errors
/// The error of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    // Its other users may have changed the other flags.
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    Ok(fcntl_setfl(fd, flags)?)
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
