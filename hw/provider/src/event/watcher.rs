//! A thread that waits for a descriptor on behalf of several waiters.

use super::bell::Bell;
use crate::error::Error;
use crate::thread;
use bellwire_memory::fork::Own;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A thread that waits for a descriptor which concerns several waiters, and handles it when it is readable.
///
/// Each waiter could add the descriptor to its own epoll instance; but then every event would wake all of
/// them, and Linux lets at most a few hundred nested epoll instances wait for one descriptor (`path_limits`
/// in fs/eventpoll.c).
#[derive(Debug)]
pub struct Watcher {
    stop: Arc<Bell>,
    thread: Own<Option<JoinHandle<()>>>,
}

impl Watcher {
    /// Starts a thread with this name, of up to 15 characters, that calls `see_to` whenever the descriptor of `source` is readable,
    /// until the watcher is dropped or `see_to` returns `false`.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor or thread left.
    pub fn start(
        name: &str,
        source: impl AsFd + Send + 'static,
        mut see_to: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = Arc::new(Bell::new()?);
        let stopped = stop.clone();
        let watch = move || loop {
            let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut fds = [of(stopped.as_fd()), of(source.as_fd())];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The descriptors cannot be waited for.
                Err(_) => return,
            }
            let [stop, source] = fds.map(|fd| !fd.revents().is_empty());
            if stop || source && !see_to() {
                return;
            }
        };
        let thread = thread::start(name, watch)
            .map_err(|error| Error::io("start a thread that waits for events", error))?;
        Ok(Self {
            stop,
            thread: Some(thread).into(),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if Own::is_inherited(&self.thread) {
            return;
        }
        self.stop.ring();
        // SAFETY: pthread_self has no preconditions.
        let this = unsafe { libc::pthread_self() };
        // `see_to` may hold the last reference to its own watcher: then the thread ends by itself.
        if let Some(thread) = self.thread.take()
            // A number in the standard library, and in some C libraries a pointer.
            && thread.as_pthread_t() as usize != this as usize
        {
            // The thread does not panic.
            let _ended = thread.join();
        }
    }
}
