//! A descriptor that wakes one sleeping thread.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

/// An eventfd(2) that one thread waits for, and that other threads make readable.
///
/// ```text
/// other threads                   the waiting thread
/// queue something                 silence the bell
/// ring                            check what is queued
/// ```
///
/// So the waiting thread either takes the queued event, or the bell is still readable. The kernel orders the
/// two calls by the lock of the eventfd; for loom, which does not model that, `order` does.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    #[cfg(loom)]
    order: loom::sync::atomic::AtomicU32,
}

impl Bell {
    /// Creates a bell that has not been rung.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|error| Error::io("make an eventfd", error.into()))?;
        Ok(Self {
            fd,
            #[cfg(loom)]
            order: Default::default(),
        })
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        #[cfg(loom)]
        self.order
            .fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
        // The write fails if the counter is at its maximum: then the descriptor is readable already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable until the next ring.
    pub fn silence(&self) {
        #[cfg(loom)]
        self.order
            .fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
        // The read fails if the counter is zero.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
