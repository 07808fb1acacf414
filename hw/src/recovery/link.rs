//! The connection that programs hold.

use super::counters::Counters;
use super::exchange::{Exchange, ExchangeError};
use super::init::{FaultReport, LinkInit, RecoverIn, RecoveryReport};
use super::inside::Inside;
use super::live::{Live, done};
use super::told::{LinkEnd, Told};
use super::wake::Wake;
use super::worker::{Letter, Worker};
use crate::connect::RemoteMemory;
use crate::cq::Cq;
use crate::error::Error;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::fault::Fault;
use bellwire_core::queue::Completion;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// What a link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It connects, for the first time or again, or has not told everything before its end. Posts are
    /// refused; poll it.
    Recovering,
    /// It works.
    Ready,
    /// It has been given up, or closed, and everything has been told.
    Ended(LinkEnd),
}

/// A reliable connection that recovers from faults under the running program. See the
/// [module](super). One owner at a time: `Send`, not `Sync`.
///
/// Dropping it tells the peer. What was not told then is not told any more; blocks go back to their
/// slabs.
#[derive(Debug)]
pub struct Link {
    pub(super) live: Option<Live>,
    /// Polls that found nothing, since the last look at what else there is.
    misses: u32,
    look_every: u32,
    wake: Option<Wake>,
    inside: Whereabouts,
}

#[derive(Debug)]
enum Whereabouts {
    Here(Box<Inside>),
    /// A thread has it.
    Away(Worker),
    /// Between the two.
    Nowhere,
}

impl Link {
    /// A link that connects with the one at the other end of `exchange` as it is polled. Receives may
    /// be posted at once, and should be.
    ///
    /// # Errors
    /// As [`Device::create_cq`](crate::Device::create_cq) and [`Pd::create_qp`].
    pub fn new(pd: &Pd, init: LinkInit, exchange: impl Exchange + 'static) -> Result<Self, Error> {
        let look_every = init.look_every.max(1);
        let wake = match init.sleeps {
            true => Some(Wake::new(pd.device(), &exchange)?),
            false => None,
        };
        let live = Live::new(pd, &init, wake.as_ref())?;
        let mut inside = Box::new(Inside::new(pd, init, Box::new(exchange), wake.clone()));
        inside.watch(live.qp.qp_num(), live.cq.cqn());
        // The first connection is made as every other is.
        inside.connect_first(pd.device().now());
        Ok(Self {
            live: Some(live),
            misses: look_every,
            look_every,
            wake,
            inside: Whereabouts::Here(inside),
        })
    }

    /// What it does. Changes in polls only.
    pub fn state(&self) -> LinkState {
        match &self.inside {
            Whereabouts::Here(inside) => match inside.ended {
                Some(end) if inside.outbox.is_empty() => LinkState::Ended(end),
                None if self.live.is_some() && inside.connected() => LinkState::Ready,
                _ => LinkState::Recovering,
            },
            _ => LinkState::Recovering,
        }
    }

    /// Gives up to `limit` outcomes to `each`, and returns how many there were. Carries on what there
    /// is to carry on, but never waits; while the link recovers it has to be called from time to time.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Told)) -> usize {
        if let Some(Live { cq, received, .. }) = &mut self.live {
            // Allocates when something fails.
            let mut failed = Vec::new();
            let count = cq.poll(limit, |completion| match completion.result {
                Ok(success) => {
                    *received += u64::from(success.opcode.is_recv());
                    each(done(completion, success));
                }
                Err(_) => failed.push(completion),
            });
            if !failed.is_empty() {
                let told = count - failed.len();
                self.fails(failed);
                return told + self.carry_on(limit - told, &mut each);
            }
            if count != 0 || limit == 0 {
                return count;
            }
            self.misses += 1;
            if self.misses < self.look_every {
                return 0;
            }
        }
        self.carry_on(limit, &mut each)
    }

    /// Requests failed: the link recovers.
    #[cold]
    #[inline(never)]
    fn fails(&mut self, failed: Vec<Completion<'static>>) {
        let (Whereabouts::Here(inside), Some(live)) = (&mut self.inside, self.live.take()) else {
            return;
        };
        inside.begin(live);
        let now = inside.pd.device().now();
        // The others follow from the first.
        let faults: Vec<_> = failed
            .into_iter()
            .filter_map(|completion| inside.take(completion))
            .collect();
        if let Some(&fault) = faults.first() {
            inside.broke(fault, now);
        }
    }

    /// What is not the plain case of a poll.
    #[cold]
    #[inline(never)]
    fn carry_on(&mut self, limit: usize, each: &mut dyn FnMut(Told)) -> usize {
        self.misses = 0;
        self.fetch_inside();
        let Whereabouts::Here(inside) = &mut self.inside else {
            return 0;
        };
        let now = inside.pd.device().now();
        if self.live.is_some() {
            if !inside.look(now) {
                return 0;
            }
            if let Some(live) = self.live.take() {
                inside.begin(live);
            }
        }
        if inside.recovers() && inside.init.recover_in == RecoverIn::Thread {
            self.send_away();
            return 0;
        }
        inside.drive(now);
        let count = inside.tell_program(limit, each);
        self.live = inside.resume();
        count
    }

    /// Takes back what the thread is done with.
    fn fetch_inside(&mut self) {
        self.inside = match std::mem::replace(&mut self.inside, Whereabouts::Nowhere) {
            Whereabouts::Away(worker) => match worker.fetch() {
                Ok(inside) => Whereabouts::Here(inside),
                Err(worker) => Whereabouts::Away(worker),
            },
            other => other,
        };
    }

    fn send_away(&mut self) {
        self.inside = match std::mem::replace(&mut self.inside, Whereabouts::Nowhere) {
            Whereabouts::Here(inside) => match Worker::start(inside) {
                Ok(worker) => Whereabouts::Away(worker),
                Err(mut inside) => {
                    // The system has no thread: the poller has to do it.
                    inside.init.recover_in = RecoverIn::Poller;
                    Whereabouts::Here(inside)
                }
            },
            other => other,
        };
    }

    /// Waits until the recovery's thread is done, if there is one.
    fn bring_home(&mut self) {
        self.inside = match std::mem::replace(&mut self.inside, Whereabouts::Nowhere) {
            Whereabouts::Away(worker) => Whereabouts::Here(worker.stop()),
            other => other,
        };
    }

    fn inside(&self) -> Option<&Inside> {
        match &self.inside {
            Whereabouts::Here(inside) => Some(inside),
            _ => None,
        }
    }

    /// Calls the program at each fault, as it is met, under no lock: from a poll, or from the recovery's
    /// thread. Events that break nothing (`PORT_ACTIVE`, `COMM_EST`) are none, nor is a peer that closes
    /// its link in good order. Replaces what was called before; while a thread recovers the link, from its next look on. The hook cannot use the link.
    pub fn on_fault(&mut self, hook: impl FnMut(&FaultReport) + Send + 'static) {
        self.ask(Letter::OnFault(Box::new(hook)));
    }

    /// Calls the program when a recovery has ended, well or not, and when the first connection is
    /// made; as [`on_fault`](Self::on_fault). Not when the peer closes a link that works: polls find it
    /// [`Ended`](LinkState::Ended) then, with
    /// [`Why::PeerClosed`](bellwire_core::fault::plan::Why::PeerClosed).
    pub fn on_recovered(&mut self, hook: impl FnMut(&RecoveryReport) + Send + 'static) {
        self.ask(Letter::OnRecovered(Box::new(hook)));
    }

    /// Has whoever has the inside carry something out.
    fn ask(&mut self, letter: Letter) {
        match &mut self.inside {
            Whereabouts::Here(inside) => {
                inside.obey(letter);
                if inside.plan.running()
                    && let Some(live) = self.live.take()
                {
                    inside.begin(live);
                }
            }
            Whereabouts::Away(worker) => worker.send(letter),
            Whereabouts::Nowhere => {}
        }
    }

    /// How often what happened. `None` while it recovers in a thread.
    pub fn counters(&self) -> Option<Counters> {
        self.inside().map(|inside| inside.counters)
    }

    /// The number of the connection, from 1: each recovery makes another one.
    pub fn epoch(&self) -> u64 {
        self.inside().map_or(0, |inside| inside.peer.epoch())
    }

    /// Memory that the peer has opened to this end, as it said at the last connection.
    pub fn peer_memory(&self) -> Option<RemoteMemory> {
        Some(self.inside()?.theirs?.conn.memory)
    }

    /// Number of the queue pair. `None` while there is none, or a thread has it. A rebuilt one has
    /// another.
    pub fn qp_num(&self) -> Option<u32> {
        let live = self.live.as_ref().map(|live| &live.qp);
        let qp = live.or_else(|| self.inside()?.life.as_ref()?.qp.as_ref());
        qp.map(Qp::qp_num)
    }

    /// Number of the completion queue; as [`qp_num`](Self::qp_num).
    pub fn cqn(&self) -> Option<u32> {
        let live = self.live.as_ref().map(|live| &live.cq);
        let cq = live.or_else(|| self.inside()?.life.as_ref()?.cq.as_ref());
        cq.map(Cq::cqn)
    }

    /// What its queue pair did last, as [`Qp::dump`] has it; faults of the link are among its notes.
    /// `None` while there is no queue pair, or a thread has it.
    pub fn dump(&mut self, options: &DumpOptions) -> Option<Record> {
        match (&mut self.live, &mut self.inside) {
            (Some(live), _) => live.qp.dump(&mut live.cq, options).ok(),
            (None, Whereabouts::Here(inside)) => inside.life.as_mut()?.dump(options),
            _ => None,
        }
    }

    /// What the queue pair of the connection that failed last had done by then: it does something else
    /// now. `None` while none has failed, [`LinkInit::dump`] does not ask for it, or a thread has it.
    pub fn failure(&self) -> Option<&Record> {
        self.inside()?.failure.as_ref()
    }

    /// The protection domain.
    pub fn pd(&self) -> Option<&Pd> {
        self.inside().map(|inside| &inside.pd)
    }

    /// Has it recover as if `fault` had been seen: what a program knows that the link does not, such as
    /// an event of the communication manager. Also while a thread recovers it, which takes it in at its
    /// next look.
    pub fn report(&mut self, fault: Fault) {
        self.ask(Letter::Report(fault));
    }

    /// Ends it: posts are refused from here on. What was posted may go on for as long as `within`, of
    /// the device's time, a recovery included; then it is flushed. Poll until the state is
    /// [`Ended`](LinkState::Ended): everything is told by then, receives as not executed.
    ///
    /// Waits for the recovery's thread to stop, if there is one.
    pub fn close(&mut self, within: Duration) {
        self.bring_home();
        if let Whereabouts::Here(inside) = &mut self.inside {
            let now = inside.pd.device().now();
            inside.close_within(within, now);
            // What is left of it belongs to the poller.
            inside.init.recover_in = RecoverIn::Poller;
            if inside.recovers()
                && let Some(live) = self.live.take()
            {
                inside.begin(live);
            }
        }
    }

    /// [Closes](Self::close) it, and polls until everything has been told, or the time is up: then it
    /// ends at once, and tells what it knows. When this returns all buffers have come back: those of
    /// requests that are told to `each`, and of unsignalled ones that were executed, to their slabs.
    ///
    /// The time is the machine's as well as the device's: a virtual clock stands still meanwhile.
    pub fn drain(&mut self, within: Duration, mut each: impl FnMut(Told)) -> Drained {
        let start = Instant::now();
        // The rest is for the flush.
        self.close(within / 4 * 3);
        let mut drained = Drained::default();
        let mut count = |told: Told| {
            drained.told += 1;
            drained.retired += u64::from(told.retired);
            each(told);
        };
        loop {
            let ended = matches!(self.state(), LinkState::Ended(_));
            if self.poll(usize::MAX, &mut count) == 0 && ended {
                break;
            }
            if start.elapsed() >= within
                && let Whereabouts::Here(inside) = &mut self.inside
            {
                inside.close_now();
            }
            std::thread::yield_now();
        }
        drained.retired += u64::from(self.untold());
        drained
    }

    /// Requests that were executed, and that nothing has been told of because nothing was told after
    /// them: unsignalled ones. They count as retired.
    pub fn untold(&self) -> u32 {
        self.inside().map_or(0, |inside| inside.carried)
    }

    /// Why the peer cannot be reached any more; `None`: it can, or it has closed its link.
    pub fn exchange_error(&self) -> Option<&ExchangeError> {
        self.inside()?.peer.error()
    }

    /// A descriptor that is readable when the peer says something, if the exchange has one: for poll
    /// and epoll, beside [`Device::async_fd`](crate::Device::async_fd).
    pub fn exchange_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inside()?.peer.fd()
    }

    /// For poll(2) and epoll(7), not to be read: readable when the link wants to be polled, with
    /// [`LinkInit::sleeps`]. The same for as long as the link lives, whatever it recovers from.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(Wake::fd)
    }

    /// Before the program sleeps: from here on the link's next completion makes [`fd`](Self::fd)
    /// readable, as do asynchronous events of its device and what the peer says over an exchange that has
    /// a descriptor. What is there already does not. So arm it, poll it until it finds nothing, and sleep
    /// if it is [`Ready`](LinkState::Ready) then: while it recovers in polls it has to be polled all the
    /// time. System calls; not for the data path.
    ///
    /// ```
    /// # use bellwire::fault::outcome::Replay;
    /// # use bellwire::recovery::{Link, LinkInit, LinkState, pair};
    /// # use bellwire::wqe::Nop;
    /// # use bellwire::wr::SendFlags;
    /// # let pd = bellwire::Device::soft(Default::default()).alloc_pd();
    /// let init = LinkInit { sleeps: true, ..LinkInit::default() };
    /// # let (here, there) = pair();
    /// let mut link = Link::new(&pd, init, here)?;
    /// # let mut peer = Link::new(&pd, LinkInit::default(), there)?;
    /// # while [link.state(), peer.state()] != [LinkState::Ready; 2] {
    /// #     link.poll(16, |_| ());
    /// #     peer.poll(16, |_| ());
    /// # }
    /// # link.post_empty(1, Nop {}, SendFlags::SIGNALED, Replay::Surface)?;
    /// # link.ring();
    /// let mut told = 0;
    /// while told == 0 {
    ///     link.arm()?;
    ///     if link.poll(16, |_| told += 1) == 0 && link.state() == LinkState::Ready {
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
    /// [`Error::NoChannel`] without [`LinkInit::sleeps`]; [`Error::Io`].
    pub fn arm(&mut self) -> Result<(), Error> {
        let Some(wake) = &self.wake else {
            let cqn = self.cqn().unwrap_or(0);
            return Err(Error::NoChannel { cqn });
        };
        // The next poll that finds nothing looks at everything.
        self.misses = self.look_every;
        wake.forget()?;
        match &mut self.live {
            Some(live) => live.cq.req_notify(false),
            None => Ok(()),
        }
    }

    /// When it wants to be polled again at the latest, in the device's time since some moment; `None`
    /// while nothing has a deadline.
    pub fn deadline(&self) -> Option<Duration> {
        self.inside()?.plan.deadline()
    }

    /// How long the program may sleep at the most before it polls; `None` while nothing has a
    /// [`deadline`](Self::deadline). What the device itself has to be polled for is not in it.
    pub fn time_left(&self) -> Option<Duration> {
        let inside = self.inside()?;
        let deadline = inside.plan.deadline()?;
        Some(deadline.saturating_sub(inside.pd.device().now()))
    }
}

/// What [`Link::drain`] has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were told.
    pub told: u64,
    /// Requests that these told of: all that were posted and not told before.
    pub retired: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.bring_home();
    }
}
