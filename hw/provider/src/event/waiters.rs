//! The threads that wait for an object: how they sleep, and how another thread or a signal ends that.
//!
//! ```text
//! a thread that waits                 a thread that wakes
//! make the bell, if there is none     awake = true
//! fence                               fence
//! awake? it does not sleep            ring the bell, if there is one
//! sleep on the bell
//! ```
//!
//! So either the first finds `awake`, or the second finds the bell: no wake-up is lost, whichever comes first. The
//! bell stays readable, because it wakes any number of threads. Where the process has no descriptor left for a bell, a
//! thread sleeps for [`WITHOUT_BELL`] at a time.

use super::bell::Bell;
use crate::error::Error;
use crate::pinned::collected;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a thread sleeps before it looks again, where there is no bell.
const WITHOUT_BELL: Duration = Duration::from_millis(10);

/// The threads that wait for an object, for instance an event channel. Clones are of the same object. Any thread
/// may use it.
///
/// A program that ends lets its threads return from their waits before it drops the object:
///
/// ```
/// use bellwire_provider::error::Error;
/// use bellwire_provider::event::Waiters;
/// use std::time::Duration;
///
/// let waiters = Waiters::default();
/// let wait = || waiters.sleep(&[], None, None);
/// std::thread::scope(|scope| {
///     let waiting = scope.spawn(wait);
///     waiters.wake();
///     assert!(matches!(waiting.join().unwrap(), Err(Error::Woken)));
/// });
/// // It comes too late to be woken, and does not sleep either.
/// assert!(matches!(wait(), Err(Error::Woken)));
/// waiters.let_sleep();
/// let passed = waiters.sleep(&[], Some(Duration::ZERO), None);
/// assert!(matches!(passed, Ok(None)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Waiters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Not zero: no wait for the object sleeps.
    awake: AtomicU32,
    /// Made by the first thread that sleeps: most objects have no such thread, and save the descriptor.
    bell: OnceLock<Bell>,
}

impl Waiters {
    /// Ends every wait for the object that sleeps, and every later one that would sleep, with
    /// [`Error::Woken`], until [`let_sleep`](Self::let_sleep) is called. What the object has already is still
    /// returned.
    ///
    /// It takes no lock and allocates nothing: a signal handler may call it.
    pub fn wake(&self) {
        // Relaxed: the fence orders it before the look at the bell, and the ring before what a woken thread reads.
        self.0.awake.store(1, Ordering::Relaxed);
        // Pairs with the fences in `sleep`.
        fence(Ordering::SeqCst);
        if let Some(bell) = self.0.bell.get() {
            bell.ring();
        }
    }

    /// Lets waits for the object sleep again. A wait that has not returned yet since [`wake`](Self::wake) may
    /// then go on.
    pub fn let_sleep(&self) {
        // Relaxed: it orders nothing. The bell is silenced by the next thread that it wakes.
        self.0.awake.store(0, Ordering::Relaxed);
    }

    /// Whether waits for the object end instead of sleeping.
    pub fn are_awake(&self) -> bool {
        // Relaxed: `sleep` has the fences where the order matters.
        self.0.awake.load(Ordering::Relaxed) != 0
    }

    /// `None`: the process has no descriptor left for one.
    fn bell(&self) -> Option<&Bell> {
        if let Some(bell) = self.0.bell.get() {
            return Some(bell);
        }
        let new = Bell::new().ok()?;
        Some(self.0.bell.get_or_init(|| new))
    }

    /// Sleeps until one of the descriptors is readable, and returns the first that is; `None`: none is, because
    /// `bound` has passed or for no reason. `limit` is that of the whole wait, of which this is a part.
    ///
    /// The handler of a signal interrupts the sleep. A wait without a limit ends then, so that the program can
    /// look at what its handler has set; a wait with a limit goes on for the time that is left of it.
    ///
    /// # Errors
    /// [`Error::Woken`]; [`Error::Interrupted`] if `limit` is `None`; [`Error::Io`] when the system cannot wait.
    pub fn sleep(
        &self,
        fds: &[BorrowedFd<'_>],
        bound: Option<Duration>,
        limit: Option<Duration>,
    ) -> Result<Option<usize>, Error> {
        let bell = self.bell();
        let bound = match bell {
            Some(_) => bound,
            None => Some(bound.map_or(WITHOUT_BELL, |bound| bound.min(WITHOUT_BELL))),
        };
        // Pairs with the fence in `wake`: either this thread finds `awake`, or that one finds the bell.
        fence(Ordering::SeqCst);
        if self.are_awake() {
            return Err(Error::Woken);
        }
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let more = bell.iter().map(|bell| bell.as_fd());
        let mut all = collected(fds.iter().copied().chain(more).map(readable))?;
        // A time longer than the system supports means no limit.
        let bound = bound.and_then(|bound| Timespec::try_from(bound).ok());
        // By the kernel's interface, not by the C library's, which would be a cancellation point.
        match poll(&mut all, bound.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) if limit.is_some() => return Ok(None),
            Err(Errno::INTR) => return Err(Error::Interrupted),
            Err(error) => return Err(Error::io("wait", error.into())),
        }
        let first = all.iter().position(|fd| !fd.revents().is_empty());
        let is_readable = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let rung = bell.filter(|_| all.get(fds.len()).is_some_and(is_readable));
        if rung.is_some_and(|bell| self.heard(bell)) {
            return Err(Error::Woken);
        }
        Ok(first.filter(|first| *first < fds.len()))
    }

    /// The bell rings: whether waits are to end.
    fn heard(&self, bell: &Bell) -> bool {
        if self.are_awake() {
            return true;
        }
        // It was rung before `let_sleep`.
        bell.silence();
        // Pairs with the fence in `wake`: if that one rang before the silence, `awake` is seen here.
        fence(Ordering::SeqCst);
        let awake = self.are_awake();
        if awake {
            // The ring was silenced, and other threads may not have heard it.
            bell.ring();
        }
        awake
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn waking_ends_each_wait_whenever_it_begins() {
        for _ in 0..100 {
            let waiters = Waiters::default();
            thread::scope(|scope| {
                let waiting = [(); 3].map(|()| scope.spawn(|| waiters.sleep(&[], None, None)));
                waiters.wake();
                for one in waiting {
                    assert!(matches!(one.join().unwrap(), Err(Error::Woken)));
                }
            });
        }
    }

    #[test]
    fn a_wake_up_that_was_taken_back_wakes_nobody() {
        let waiters = Waiters::default();
        let none = || waiters.sleep(&[], Some(Duration::from_millis(1)), Some(Duration::MAX));
        assert!(matches!(none(), Ok(None)));
        for _ in 0..3 {
            waiters.wake();
            assert!(matches!(none(), Err(Error::Woken)));
            waiters.let_sleep();
            // The first finds the bell ringing, and silences it.
            assert!(matches!([none(), none()], [Ok(None), Ok(None)]));
        }
    }

    #[test]
    fn the_first_descriptor_that_is_readable_is_named() {
        let waiters = Waiters::default();
        let bells = [(); 3].map(|()| Bell::new().unwrap());
        let fds = bells.each_ref().map(|bell| bell.as_fd());
        let first = || waiters.sleep(&fds, Some(Duration::ZERO), None).unwrap();
        assert_eq!(first(), None);
        bells[2].ring();
        assert_eq!(first(), Some(2));
        bells[1].ring();
        assert_eq!(first(), Some(1));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::thread;

    /// What a thread does until it sleeps; whether it would be woken.
    fn is_woken(waiters: &Waiters) -> bool {
        match waiters.sleep(&[], Some(Duration::ZERO), None) {
            Err(Error::Woken) => true,
            slept => {
                assert!(matches!(slept, Ok(None)), "{slept:?}");
                false
            }
        }
    }

    fn rings(waiters: &Waiters) -> bool {
        let bell = waiters.0.bell.get().expect("made by who sleeps");
        super::super::wait(bell.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| {
            let waiters = Waiters::default();
            let other = waiters.clone();
            let waking = thread::spawn(move || other.wake());
            let woken = is_woken(&waiters);
            waking.join().unwrap();
            assert!(woken || rings(&waiters), "slept through");
        });
    }

    /// A thread that silences an old ring does not take a new one away from the others.
    #[test]
    fn loom_silencing_takes_no_wake_up_away() {
        loom::model(|| {
            let waiters = Waiters::default();
            assert!(!is_woken(&waiters));
            waiters.wake();
            waiters.let_sleep();
            let other = waiters.clone();
            let waking = thread::spawn(move || other.wake());
            is_woken(&waiters);
            waking.join().unwrap();
            assert!(rings(&waiters), "a thread that slept before sleeps on");
        });
    }
}
