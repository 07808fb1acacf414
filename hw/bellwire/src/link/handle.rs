//! The connection as programs hold it.

use super::active_queues::{ActiveQueues, create_cq, done};
use super::completion::{LinkCompletion, LinkEnd};
use super::exchange::{Exchange, refuse};
use super::init::{LinkInit, RecoverIn};
use super::member::{Delivery, Member, StateOwner};
use super::state::{Events, RecoveryState};
use super::wake::Sleep;
use super::worker::Worker;
use crate::cq::Cq;
use crate::error::Error;
use crate::event::Waiters;
use crate::log::failed;
use crate::memory::fork::Life;
use crate::pd::Pd;
use crate::pinned::{boxed, headroom, place, with_room};
use bellwire_core::fault::Fault;
use bellwire_core::fault::plan::EndReason;
use bellwire_core::queue::Completion;
use bellwire_provider::backoff::Backoff;
use bellwire_provider::thread::Uncancelled;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It connects, for the first time or again, or has ended with outcomes still to be reported. Posts
    /// are refused, except receives during the first connection. Poll it.
    Recovering,
    /// It is connected.
    Ready,
    /// It has been given up or closed, and everything has been reported.
    Ended(LinkEnd),
}

impl LinkState {
    /// Why it was given up; `None` if it was not.
    pub fn why(self) -> Option<EndReason> {
        match self {
            Self::Ended(end) => end.why(),
            _ => None,
        }
    }
}

/// How many polls that find something count as one that finds nothing: a check takes system calls.
const BUSY_POLLS: u64 = 64;

/// A reliable connection that recovers from faults under the running program. See the [module](super).
/// One owner at a time: `Send`, not `Sync`.
///
/// Dropping it sends the peer a closing message. Outcomes not yet reported are lost; blocks go back to
/// their slabs.
#[derive(Debug)]
pub struct Link {
    pub(super) member: Member,
    /// The completion queue: here exactly while completions go to the program as they are.
    pub(super) cq: Option<Cq>,
    /// Failed completions that a poll found, until the poll ends.
    pub(super) failed: Vec<Completion<'static>>,
    /// Empty polls since the exchange and the events were last checked.
    misses: u32,
    check_every: u32,
    /// Polls that found something since then.
    busy_polls: u64,
    check_busy_every: u64,
    pub(super) sleep: Option<Sleep>,
    /// Of the process that made it.
    life: Life,
    pub(super) waiters: Waiters,
}

impl Link {
    /// Makes a link that connects, as it is polled, with the link at the other end of `exchange`.
    /// Receives may be posted at any time until it is connected, and should be posted at once.
    ///
    /// # Errors
    /// Those of [`Device::create_cq`](crate::Device::create_cq) and [`Pd::create_qp`].
    pub fn new(pd: &Pd, init: LinkInit, exchange: impl Exchange + 'static) -> Result<Self, Error> {
        failed("a link", Self::create(pd, init, exchange))
    }

    fn create(
        pd: &Pd,
        init: LinkInit,
        mut exchange: impl Exchange + 'static,
    ) -> Result<Self, Error> {
        let check_every = init.check_every.max(1);
        let (sends, receives) = init.qp.cq_entries();
        let made = Self::queues(pd, &init, &mut exchange)
            .and_then(|made| Ok((made, place()?)))
            .inspect_err(|error| refuse(&mut exchange, RecoveryState::fault_of(error)));
        let ((sleep, cq, active), room) = made?;
        let exchange = Box::write(room, exchange);
        let wake = sleep.as_ref().map(|sleep| sleep.wake.clone());
        let state = RecoveryState::new(pd, init, exchange, wake, Events::Own)?;
        let state = boxed(state)?;
        state.watch(active.qp.qp_num(), cq.cqn())?;
        Ok(Self {
            member: Member::new(active, state),
            cq: Some(cq),
            // All may fail at once, when there is no memory for a list.
            failed: with_room(sends as usize + receives as usize)?,
            misses: check_every,
            check_every,
            busy_polls: 0,
            check_busy_every: u64::from(check_every) * BUSY_POLLS,
            sleep,
            life: Life::current(),
            waiters: Waiters::default(),
        })
    }

    /// Makes what a link needs besides its exchange.
    fn queues(
        pd: &Pd,
        init: &LinkInit,
        exchange: &mut dyn Exchange,
    ) -> Result<(Option<Sleep>, Cq, ActiveQueues), Error> {
        headroom()?;
        let sleep = match init.waitable {
            true => {
                let sleep = Sleep::new(pd.device())?;
                sleep.listen(exchange)?;
                Some(sleep)
            }
            false => None,
        };
        let wake = sleep.as_ref().map(|sleep| sleep.wake.clone());
        let mut cq = create_cq(pd, init, wake.as_ref())?;
        let active = ActiveQueues::new(pd, init, &mut cq, None, init.cq_entries.is_none())?;
        Ok((sleep, cq, active))
    }

    /// Passes up to `limit` outcomes to `each`, and returns their number. Advances a recovery that is
    /// under way, and never blocks; while the link recovers it has to be called from time to time.
    ///
    /// # Panics
    /// When `each` panics: the outcomes that it was not given are reported by the next poll. When a hook
    /// or the exchange panicked, in this poll or in the recovery's thread. The link goes on in either
    /// case; an exchange that panicked is not called again, and its peer is lost.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(LinkCompletion)) -> usize {
        if let Some(cq) = &mut self.cq {
            let Self { member, failed, .. } = self;
            let received = &mut member.received;
            // If `each` panicked in an earlier poll, some are left.
            let before = failed.len();
            let count = cq.poll(
                limit,
                #[inline(always)]
                |completion| match completion.result {
                    Ok(success) => {
                        *received += u64::from(success.opcode.is_recv());
                        each(done(completion, success));
                    }
                    Err(_) => failed.push(completion),
                },
            );
            if !failed.is_empty() {
                let reported = count - (failed.len() - before);
                self.fails();
                return reported + self.poll_slow(limit - reported, &mut each);
            }
            if count != 0 {
                self.busy_polls += 1;
                if self.busy_polls < self.check_busy_every {
                    return count;
                }
                return count + self.check_busy(limit - count, &mut each);
            }
            if limit == 0 {
                return 0;
            }
            self.misses += 1;
            if self.misses < self.check_every {
                return 0;
            }
        }
        self.poll_slow(limit, &mut each)
    }

    /// Checks a link that always has something to report.
    #[cold]
    #[inline(never)]
    fn check_busy(&mut self, limit: usize, each: &mut dyn FnMut(LinkCompletion)) -> usize {
        // A program that is about to sleep relies on the check of the poll that finds nothing.
        let misses = self.misses;
        let count = self.poll_slow(limit, each);
        self.misses = misses;
        count
    }

    /// Starts a recovery after requests failed.
    #[cold]
    #[inline(never)]
    pub(super) fn fails(&mut self) {
        let _whole = Uncancelled::new();
        self.member.begin(&mut self.cq, self.failed.drain(..));
    }

    /// The slow path of a poll.
    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self, limit: usize, each: &mut dyn FnMut(LinkCompletion)) -> usize {
        // The fast path makes no system call of the C library.
        let _whole = Uncancelled::new();
        let before = self.state();
        let count = self.advance(limit, each);
        self.update_sleep(before);
        self.member.resume_panics();
        count
    }

    /// After a poll: if the program armed the link, makes sure that it wakes for what this poll leaves to
    /// do. The completion queue that it armed may have been replaced, and the state may have changed.
    fn update_sleep(&mut self, before: LinkState) {
        let changed = self.state() != before;
        let (Some(sleep), Some(state)) = (&mut self.sleep, self.member.here_mut()) else {
            // The recovery thread rings the bell when it is done.
            return;
        };
        if !sleep.is_armed() {
            return;
        }
        if state.wants_poll() || changed {
            sleep.poll_again();
        }
        let time_left = match state.pd.device().has_virtual_time() {
            // A real timer cannot follow a virtual clock.
            true => None,
            false => state.time_left(),
        };
        sleep.wake_at(time_left.and_then(|left| Instant::now().checked_add(left)));
    }

    fn advance(&mut self, limit: usize, each: &mut dyn FnMut(LinkCompletion)) -> usize {
        self.fetch_state();
        self.collect();
        let works = self.member.active.is_some() && self.failed.is_empty();
        if works && self.cq.is_none() {
            // Not counted by the poll.
            self.misses += 1;
            if self.misses < self.check_every {
                return self.deliver(limit, each);
            }
        }
        self.misses = 0;
        self.busy_polls = 0;
        let cq = (self.cq.as_ref()).or_else(|| self.member.here()?.cq.as_ref());
        if let (Some(cq), Some(state)) = (cq, self.member.here()) {
            state.published.set_stale(cq.stale());
        }
        let Some(state) = self.member.here_mut() else {
            return 0;
        };
        let now = state.pd.device().now();
        if works && !state.look(now) {
            match self.member.check(now) {
                None => return self.deliver(limit, each),
                Some(fault) => _ = self.member.fault(fault),
            }
        }
        self.member.begin(&mut self.cq, self.failed.drain(..));
        let Some(state) = self.member.here_mut() else {
            return 0;
        };
        if state.protocol.busy() && state.init.recover_in == RecoverIn::Thread {
            self.start_thread();
            return 0;
        }
        state.drive(now);
        let count = state.deliver(limit, each);
        self.resume();
        count
    }

    /// Polls all completions of a link that works, where they do not go to the program as they are. Keeps
    /// the first that failed, and those behind it.
    fn collect(&mut self) {
        while self.cq.is_none()
            && self.member.active.is_some()
            && let Some(state) = self.member.here_mut()
            && let Some(completion) = state.cq.as_mut().and_then(Cq::poll_one)
        {
            match self.failed.is_empty() {
                true => self.failed.extend(self.member.take(completion)),
                false => self.failed.push(completion),
            }
        }
    }

    /// Passes the queued outcomes of a link that works to the program. Completions then go to the program as
    /// they are, unless a keep-alive is in flight.
    fn deliver(&mut self, limit: usize, each: &mut dyn FnMut(LinkCompletion)) -> usize {
        let Some(state) = self.member.here_mut() else {
            return 0;
        };
        let count = state.deliver(limit, each);
        self.member.settle();
        self.place_cq();
        count
    }

    /// Completions do not go to the program as they are from here on.
    pub(super) fn take_the_slow_path(&mut self) {
        self.place_cq();
    }

    /// Puts the completion queue of a link that works where the completions are to be taken from.
    fn place_cq(&mut self) {
        let direct = self.member.delivery == Delivery::Direct;
        if let Some(state) = self.member.here_mut() {
            let (to, from) = match direct {
                true => (&mut self.cq, &mut state.cq),
                false => (&mut state.cq, &mut self.cq),
            };
            *to = to.take().or_else(|| from.take());
        }
    }

    /// Returns the queues to the data path, if they work.
    fn resume(&mut self) {
        self.member.resume();
        self.place_cq();
        if self.member.here().is_some_and(|state| state.cancels.wait()) {
            self.check_next_poll();
        }
    }

    /// Takes the state back from a thread that is done.
    fn fetch_state(&mut self) {
        self.member.recovery =
            match std::mem::replace(&mut self.member.recovery, StateOwner::Moving) {
                StateOwner::Thread(worker) => match worker.fetch() {
                    Ok(state) => StateOwner::Here(state),
                    Err(worker) => StateOwner::Thread(worker),
                },
                other => other,
            };
    }

    fn start_thread(&mut self) {
        self.member.recovery =
            match std::mem::replace(&mut self.member.recovery, StateOwner::Moving) {
                StateOwner::Here(state) => match Worker::start(state) {
                    Ok(worker) => StateOwner::Thread(worker),
                    Err(mut state) => {
                        // The system has no thread: polls carry out the recovery.
                        state.init.recover_in = RecoverIn::Poll;
                        StateOwner::Here(state)
                    }
                },
                other => other,
            };
    }

    /// Stops the recovery's thread, if there is one, and waits for it.
    fn stop_thread(&mut self) {
        self.member.recovery =
            match std::mem::replace(&mut self.member.recovery, StateOwner::Moving) {
                StateOwner::Thread(worker) => StateOwner::Here(worker.stop()),
                other => other,
            };
    }

    /// Makes the link recover as if it had detected `fault` itself: for what the program knows and the
    /// link does not, such as an event of the communication manager. Also while a thread recovers the
    /// link, which takes the fault at its next check.
    pub fn report(&mut self, fault: Fault) {
        if self.member.fault(fault) {
            self.member.begin(&mut self.cq, []);
        }
        self.member.resume_panics();
        self.sleep.iter().for_each(Sleep::poll_again);
    }

    /// Has the next poll check everything.
    pub(super) fn check_next_poll(&mut self) {
        self.misses = self.check_every;
        self.busy_polls = self.check_busy_every;
    }

    /// Closes the link: posts are refused from here on. Posted requests may continue for `within`, in the
    /// device's time, a recovery included; then it is flushed. Poll until the state is
    /// [`Ended`](LinkState::Ended): everything has been reported by then, unconsumed receives as not
    /// executed.
    ///
    /// Stops the recovery's thread, if there is one, and waits for it.
    pub fn close(&mut self, within: Duration) {
        self.stop_thread();
        if self.member.close(within) {
            self.member.begin(&mut self.cq, []);
        }
        self.sleep.iter().for_each(Sleep::poll_again);
    }

    /// [Closes](Self::close) the link, and polls until everything has been reported or the time is up:
    /// then it ends at once, and reports what it knows. When this returns all buffers have come back:
    /// those of reported requests were passed to `each` with the outcome, and those of executed
    /// unsignalled requests went back to their slabs.
    ///
    /// The time is both the machine's and the device's: a virtual clock stands still meanwhile.
    ///
    /// # Panics
    /// Those of [`poll`](Self::poll): call it again for the rest.
    pub fn drain(&mut self, within: Duration, mut each: impl FnMut(LinkCompletion)) -> Drained {
        let start = Instant::now();
        // The last quarter is for the flush.
        self.close(within / 4 * 3);
        let mut drained = Drained::default();
        let mut count = |completion: LinkCompletion| {
            drained.reported += 1;
            drained.retired += u64::from(completion.retired);
            each(completion);
        };
        let mut backoff = Backoff::between_polls();
        loop {
            let ended = matches!(self.state(), LinkState::Ended(_));
            if self.poll(usize::MAX, &mut count) != 0 {
                backoff.reset();
            } else if ended {
                break;
            }
            if start.elapsed() >= within
                && let Some(state) = self.member.here_mut()
            {
                state.protocol.close_now();
            }
            backoff.wait();
        }
        drained.retired += u64::from(self.unreported());
        drained
    }

    /// A descriptor that is readable when a message of the peer arrives, if the exchange has one: for
    /// poll and epoll, beside [`Device::async_fd`](crate::Device::async_fd).
    pub fn exchange_fd(&self) -> Option<BorrowedFd<'_>> {
        self.member.here()?.peer.fd()
    }

    /// A descriptor for poll(2) and epoll(7), not to be read: with [`LinkInit::waitable`], and once the
    /// link was [armed](Self::arm), it is readable when the link has to be polled. It stays the same for
    /// the life of the link, through all recoveries. Any number of links may be in one epoll, and that
    /// epoll in others.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(Sleep::fd)
    }

    /// Prepares the link for sleep: arm it, poll it until a poll finds nothing, and sleep until
    /// [`fd`](Self::fd) is readable, whatever state the link is in. Everything that concerns the link
    /// after this call makes the descriptor readable, or is found by those polls: completions, messages
    /// of the peer, asynchronous events, the end of a recovery in a thread, a poll that leaves something
    /// to do, such as the one in which the link becomes [`Ready`](LinkState::Ready), and, unless the
    /// device's clock is virtual, the expiry of the link's [time](Self::time_left). What happened before
    /// this call does not make it readable. Makes system calls; not for the data path.
    ///
    /// An exchange that the program implements wakes the link by its descriptor, or by
    /// [`set_waker`](Exchange::set_waker).
    ///
    /// ```
    /// # use bellwire::fault::outcome::Replay;
    /// # use bellwire::link::{Link, LinkInit, LinkState, pair};
    /// # use bellwire::wqe::Nop;
    /// # use bellwire::wr::SendFlags;
    /// # let pd = bellwire::Device::soft(Default::default()).alloc_pd();
    /// let init = LinkInit { waitable: true, ..LinkInit::default() };
    /// # let (here, there) = pair();
    /// let mut link = Link::new(&pd, init, here)?;
    /// # let mut peer = Link::new(&pd, LinkInit::default(), there)?;
    /// # while [link.state(), peer.state()] != [LinkState::Ready; 2] {
    /// #     link.poll(16, |_| ());
    /// #     peer.poll(16, |_| ());
    /// # }
    /// # link.post_empty(1, Nop {}, SendFlags::SIGNALED, Replay::Surface)?;
    /// # link.ring();
    /// let mut completions = 0;
    /// while completions == 0 {
    ///     link.arm()?;
    ///     if link.poll(16, |_| completions += 1) == 0 {
    ///         let mut wait = libc::pollfd {
    ///             fd: std::os::fd::AsRawFd::as_raw_fd(&link.fd().expect("asked for")),
    ///             events: libc::POLLIN,
    ///             revents: 0,
    ///         };
    ///         // SAFETY: one entry.
    ///         unsafe { libc::poll(&mut wait, 1, 100) };
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoChannel`] without [`LinkInit::waitable`]; [`Error::Io`].
    pub fn arm(&mut self) -> Result<(), Error> {
        let Some(sleep) = &mut self.sleep else {
            let cqn = self.cqn().unwrap_or(0);
            return Err(Error::NoChannel { cqn });
        };
        // The next poll that finds nothing checks everything.
        self.misses = self.check_every;
        let recovering = match self.member.here_mut() {
            Some(state) => {
                // The polls that follow take the completions that are already there.
                state.poll_again = false;
                state.cq.as_mut()
            }
            None => None,
        };
        sleep.arm(self.cq.as_mut().or(recovering))
    }

    /// The device time by which the link has to be polled again; `None` while nothing has a deadline.
    pub fn deadline(&self) -> Option<Duration> {
        self.member.here()?.deadline()
    }

    /// How long a program that sleeps on something other than [`fd`](Self::fd) may sleep before it polls:
    /// until the [`deadline`](Self::deadline), or until the exchange or the device needs attention.
    /// `None` while neither has a deadline, and while a thread recovers the link.
    pub fn time_left(&self) -> Option<Duration> {
        self.member.here()?.time_left()
    }
}

/// What [`Link::drain`] has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Outcomes that were reported.
    pub reported: u64,
    /// Requests that these covered: all that were posted and not reported before.
    pub retired: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        self.stop_thread();
    }
}
