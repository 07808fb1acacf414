//! Waiting for a link, or for a set of links: awake for a while, then asleep.

use super::completion::LinkCompletion;
use super::handle::Link;
use super::set::{LinkId, LinkSet};
use crate::error::Error;
use crate::event::Waiters;
use bellwire_provider::backoff::Backoff;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How [`Link::wait`] and [`LinkSet::wait`] wait.
///
/// A thread that sleeps is woken some microseconds, or tens of them, after a completion; one that polls sees it
/// at once, and uses its processor up. So the thread polls first, for about as long as waking takes: what comes
/// within that time costs no system call, and at the worst the wait takes twice the processor time that the better
/// of both ways would have.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// How long to poll before sleeping. Zero: sleeps unless there is something at once.
    pub spin: Duration,
    /// How long to wait in all; `None`: for ever.
    pub timeout: Option<Duration>,
    /// Descriptors that end the wait when they are readable, such as a listener's. They are looked at only before
    /// sleeping, so a busy program looks at them itself from time to time.
    pub others: &'a [BorrowedFd<'a>],
}

impl Default for Wait<'_> {
    /// Polls for 50 µs, and waits for ever.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(50),
            timeout: None,
            others: &[],
        }
    }
}

/// What can be waited for.
trait Waitable {
    fn arm(&mut self) -> Result<(), Error>;
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    fn waiters(&self) -> &Waiters;
    /// How long it may be left alone; zero while the next poll has something to do.
    fn time_left(&self) -> Option<Duration>;

    fn has_work(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }
}

macro_rules! waitable {
    ($($of:ty),*) => {
        $(
            impl Waitable for $of {
                fn arm(&mut self) -> Result<(), Error> {
                    Self::arm(self)
                }

                fn fd(&self) -> Option<BorrowedFd<'_>> {
                    Self::fd(self)
                }

                fn waiters(&self) -> &Waiters {
                    Self::waiters(self)
                }

                fn time_left(&self) -> Option<Duration> {
                    Self::time_left(self)
                }
            }
        )*
    };
}

waitable!(Link, LinkSet);

impl Wait<'_> {
    /// Waits until `turn` finds something: it polls, and returns how many outcomes there were, or that the program
    /// has something else to see.
    #[inline]
    #[expect(
        clippy::disallowed_methods,
        reason = "for as long as the program has said"
    )]
    fn until<W: Waitable>(
        &self,
        of: &mut W,
        mut turn: impl FnMut(&mut W) -> Option<usize>,
    ) -> Result<usize, Error> {
        if let Some(found) = turn(of) {
            return Ok(found);
        }
        let start = Instant::now();
        let is_over = || self.timeout.is_some_and(|all| start.elapsed() >= all);
        loop {
            let mut backoff = Backoff::new();
            while !is_over() {
                if start.elapsed() < self.spin {
                    // The program has chosen for how long.
                    std::hint::spin_loop();
                } else if of.has_work() {
                    // Which another thread may have to go on with.
                    backoff.wait();
                } else {
                    break;
                }
                if let Some(found) = turn(of) {
                    return Ok(found);
                }
                // It may never come to sleep.
                if of.waiters().are_awake() {
                    return Err(Error::Woken);
                }
            }
            of.arm()?;
            // What came before it was armed wakes nobody.
            if let Some(found) = turn(of) {
                return Ok(found);
            }
            let left = self.timeout.map(|all| all.saturating_sub(start.elapsed()));
            if is_over() || !of.has_work() && self.sleep(of, left)? {
                return Ok(0);
            }
            if let Some(found) = turn(of) {
                return Ok(found);
            }
        }
    }

    /// Sleeps until one of the descriptors is readable; whether it is one of the program's.
    #[cold]
    fn sleep(&self, of: &impl Waitable, left: Option<Duration>) -> Result<bool, Error> {
        let others = self.others.iter().copied();
        let all: Vec<BorrowedFd<'_>> = others.chain(of.fd()).collect();
        let first = of.waiters().sleep(&all, left, self.timeout)?;
        Ok(first.is_some_and(|first| first < self.others.len()))
    }
}

impl Link {
    /// The thread that waits in [`wait`](Self::wait): another thread, or a signal handler, can end its wait.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// [Polls](Self::poll), and waits until there is an outcome, or the link's state has changed: it polls for a
    /// while, then [arms](Self::arm) the link and sleeps, and so on until the time is over. Returns the number of
    /// outcomes, which is 0 when the state has changed, one of the program's descriptors is readable, or the time
    /// is over. A `limit` of 0 counts as 1.
    ///
    /// On a device with a virtual clock nothing moves the clock while the thread sleeps.
    ///
    /// ```
    /// use bellwire::fault::outcome::Replay;
    /// use bellwire::link::{Link, LinkInit, LinkState, Wait, pair};
    /// use bellwire::wqe::Nop;
    /// use bellwire::wr::SendFlags;
    /// # use bellwire::Device;
    /// use std::time::Duration;
    ///
    /// # let pd = Device::soft(Default::default()).alloc_pd();
    /// # let (here, there) = pair();
    /// let init = LinkInit { waitable: true, ..LinkInit::default() };
    /// let mut link = Link::new(&pd, init, here)?;
    /// # let mut peer = Link::new(&pd, LinkInit::default(), there)?;
    /// # while [link.state(), peer.state()] != [LinkState::Ready; 2] {
    /// #     link.poll(16, |_| ());
    /// #     peer.poll(16, |_| ());
    /// # }
    /// link.post_empty(1, Nop {}, SendFlags::SIGNALED, Replay::Surface)?;
    /// link.ring();
    /// let wait = Wait { timeout: Some(Duration::from_secs(1)), ..Wait::default() };
    /// assert_eq!(link.wait(16, &wait, |completion| assert_eq!(completion.wr_id, 1))?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`arm`](Self::arm); [`Error::Interrupted`] when a signal handler has interrupted the sleep of a wait
    /// without a time-out; [`Error::Woken`] by [`waiters`](Self::waiters); [`Error::Io`] when the system cannot
    /// wait.
    ///
    /// # Panics
    /// Those of [`poll`](Self::poll).
    #[inline]
    pub fn wait(
        &mut self,
        limit: usize,
        wait: &Wait<'_>,
        mut each: impl FnMut(LinkCompletion),
    ) -> Result<usize, Error> {
        let before = self.state();
        wait.until(self, |link| {
            let found = link.poll(limit.max(1), &mut each);
            (found != 0 || link.state() != before).then_some(found)
        })
    }
}

impl LinkSet {
    /// The thread that waits in [`wait`](Self::wait): another thread, or a signal handler, can end its wait.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// [Polls](Self::poll), and waits until there is an outcome, or a link's state has changed: it polls for a
    /// while, then [arms](Self::arm) the set and sleeps, and so on until the time is over. Returns the number of
    /// outcomes, which is 0 when [`next_change`](Self::next_change) has something, one of the program's
    /// descriptors is readable, or the time is over. A `limit` of 0 counts as 1. Changes that are not taken end
    /// every wait at once.
    ///
    /// ```no_run
    /// use bellwire::connect::cm::{Listener, Retry};
    /// use bellwire::link::{LinkInit, LinkSet, LinkSetInit, LinkState, Wait};
    /// use bellwire::Device;
    /// use std::os::fd::AsFd;
    ///
    /// let device = Device::open("auto")?;
    /// let mut listener = Listener::bind(&device, ("0.0.0.0", 7471), 64, Retry::default())?;
    /// let init = LinkSetInit { waitable: true, ..LinkSetInit::default() };
    /// let mut set = LinkSet::new(&device.alloc_pd(), init)?;
    /// loop {
    ///     while let Some(incoming) = listener.accept()? {
    ///         set.join(LinkInit::default(), incoming)?;
    ///     }
    ///     let others = [listener.as_fd()];
    ///     let wait = Wait { others: &others, ..Wait::default() };
    ///     set.wait(64, &wait, |id, completion| println!("{id:?}: {:?}", completion.outcome))?;
    ///     while let Some((id, state)) = set.next_change() {
    ///         if let LinkState::Ended(_) = state {
    ///             set.remove(id)?;
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`arm`](Self::arm); [`Error::Interrupted`] when a signal handler has interrupted the sleep of a wait
    /// without a time-out; [`Error::Woken`] by [`waiters`](Self::waiters); [`Error::Io`] when the system cannot
    /// wait.
    ///
    /// # Panics
    /// Those of [`poll`](Self::poll).
    #[inline]
    pub fn wait(
        &mut self,
        limit: usize,
        wait: &Wait<'_>,
        mut each: impl FnMut(LinkId, LinkCompletion),
    ) -> Result<usize, Error> {
        wait.until(self, |set| {
            let found = set.poll(limit.max(1), &mut each);
            (found != 0 || set.has_changes()).then_some(found)
        })
    }
}
