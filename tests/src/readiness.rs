//! Whether descriptors are readable, by poll(2) and by epoll(7).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

fn milliseconds(within: Duration) -> i32 {
    i32::try_from(within.as_millis()).unwrap_or(i32::MAX)
}

/// Whether a descriptor is or becomes readable, by poll(2).
///
/// # Panics
/// When the system refuses.
pub fn readable(fd: impl AsFd, within: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which is readable and writable.
    let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds(within)) };
    assert!(ready >= 0, "{}", std::io::Error::last_os_error());
    assert!(ready == 0 || poll.revents == libc::POLLIN, "{poll:?}");
    ready == 1
}

/// Descriptors that are waited for together.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// How an [`Epoll`] reports a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// While it is readable.
    Level,
    /// Each time that something is added.
    Edge,
}

impl Epoll {
    /// Of none.
    ///
    /// # Panics
    /// When the system refuses.
    #[expect(clippy::new_without_default, reason = "makes a descriptor")]
    pub fn new() -> Self {
        // SAFETY: takes a number.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: just made, and nobody else's.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Adds a descriptor, reported by `name`.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn add(&self, fd: impl AsFd, name: u64, trigger: Trigger) {
        let edge = match trigger {
            Trigger::Level => 0,
            Trigger::Edge => libc::EPOLLET as u32,
        };
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32 | edge,
            u64: name,
        };
        let (epoll, fd) = (self.0.as_raw_fd(), fd.as_fd().as_raw_fd());
        // SAFETY: the event is readable.
        let done = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// The names of those that are or become readable, sorted.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn wait(&self, within: Duration) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: as many events are writable.
        let count = unsafe {
            let room = events.len() as i32;
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                room,
                milliseconds(within),
            )
        };
        assert!(count >= 0, "{}", std::io::Error::last_os_error());
        let mut names: Vec<u64> = events[..count as usize].iter().map(|e| e.u64).collect();
        names.sort_unstable();
        names
    }
}
