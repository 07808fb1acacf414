//! The parts of a link that are used while it recovers, and how a recovery is driven.
//!
//! - **The count of consumed receives is of one connection.** Where a dead completion queue makes the count a lower
//!   bound, only requests of that connection are in doubt.
//! - **The drain ends with an empty WRITE of the link's own**, signalled and posted last, in ERR. It needs no key
//!   and consumes no receive, so a device that executes it does no harm. From the recovery's first own send on,
//!   everything that completes is the link's own.
//! - **Requests that were staged and not rung** are rung in ERR, flushed, and reported as not executed, whatever
//!   the peer's count says.
//! - **A dead completion queue** is polled to its end, then destroyed. Receives that it did not report are posted
//!   again.
//! - **A request that failed by itself** is posted again once, and reported if it fails again. Otherwise it would
//!   break every connection.
//! - **A peer that closes in good order** is no fault: no hook is called, and the end has a reason of its own.
//! - **A GID that was named by its index** is found again by its value, because a GID table that is filled anew may
//!   have it at another index. While it is absent the link waits, as for the port. A GID that has moved needs a new
//!   connection, because the queue pair keeps the index. If the GID has gone for good, the index is used.

use super::active_queues::{ActiveQueues, done};
use super::cancel::{Cancels, TakeBack};
use super::completion::LinkCompletion;
use super::exchange::Exchange;
use super::grant::Grants;
use super::in_flight::{InFlight, Pending};
use super::init::{FaultReport, Hooks, LinkInit, RecoveryReport};
use super::member::Delivery;
use super::monitor::{Phase, Published};
use super::on_srq::OnSrq;
use super::peer::Peer;
use super::recovering_queues::RecoveringQueues;
use super::repost::Receive;
use super::wake::Wake;
use super::watch::Watch;
use super::worker::Command;
use crate::cq::Cq;
use crate::error::Error;
use crate::event::{Element, EventType};
use crate::log::{Level, log, wants};
use crate::panics::Panics;
use crate::pd::Pd;
use crate::pinned::with_room;
use crate::recorder::Record;
use crate::srq::Srq;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::{End, EndReason, Setup, Step, StepResult};
use bellwire_core::fault::{Fault, Recovery, Scope, classify};
use bellwire_core::link::{Action, Protocol};
use bellwire_core::queue::{Completion, Success};
use bellwire_core::wr::QpType;
use bellwire_provider::attr::GidEntry;
use bellwire_provider::short::text;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything of a link except what the data path uses.
#[derive(Debug)]
pub(super) struct RecoveryState {
    pub pd: Pd,
    pub init: LinkInit,
    /// What this end and the peer have said, and the next step.
    pub protocol: Protocol,
    pub peer: Peer,
    /// The queues, while the link recovers.
    pub queues: Option<RecoveringQueues>,
    /// The completion queue, while the link recovers; of a link in a set, while the set drives it.
    pub cq: Option<Cq>,
    /// The shared receive queue of a link in a set that has one, while the set drives the link.
    pub srq: Option<Srq>,
    /// What the link shares with the others of its set, if it is in one.
    pub shared: Option<Shared>,
    /// Set for a link of a set with a shared receive queue.
    pub on_srq: Option<OnSrq>,
    /// Receives that were consumed on the last connection, and whether that count is complete.
    pub consumed: u64,
    pub exact: bool,
    /// Sends whose outcome is not known yet.
    pub in_flight: InFlight,
    /// Sends that are to be posted again, each with the outcome it had.
    pub again: VecDeque<(Pending, Outcome)>,
    /// Receives that are to be posted again.
    pub receives: VecDeque<Receive>,
    /// Receives posted by the program during the first connection, not yet in the queue pair.
    pub early: VecDeque<Receive>,
    /// Requests that are taken back.
    pub cancels: Cancels,
    /// Memory that is lent to the peer; `None` until the first of it is.
    pub grants: Option<Box<Grants>>,
    /// The link has ended: the receives that it has are the last outcomes.
    pub receives_end: bool,
    /// The link has worked once: from then on all posts are refused while it recovers.
    pub opened: bool,
    /// Executed requests without an outcome of their own: the next outcome retires them.
    pub carried: u32,
    /// Outcomes not yet reported to the program.
    pub outbox: VecDeque<LinkCompletion>,
    pub mailbox: u64,
    pub wake: Option<Wake>,
    pub hooks: Hooks,
    /// What the program asks to be watched while the link works.
    pub watch: Option<Watch>,
    /// Panics of the hooks.
    pub panics: Panics,
    /// Counters, and what else other threads read.
    pub published: Arc<Published>,
    /// When the first fault occurred, while the link recovers.
    since: Option<Duration>,
    /// Counts of this recovery.
    pub replayed: u32,
    reported: u32,
    /// The completion queue overran, or was reported as failed.
    pub cq_failed: bool,
    /// The GID table entry that the program named, as it was when the link was made; zero if it named
    /// none, or the entry was empty.
    pub named_gid: GidEntry,
    /// The port's LID and GID that the peer was sent for this end, and the GID's index.
    pub address: (u16, [u8; 16], u8),
    /// The starting PSN that the peer was sent.
    pub psn: u32,
    /// Device time of the last check.
    pub now: Duration,
    /// Faults to be noted with the queue pair, which is not here yet.
    unnoted: Vec<Fault>,
    /// The record of the queue pair of the last connection that failed, if the program asked for it.
    pub failure: Option<Record>,
    /// The queues were changed, or a poll stopped before all possible steps were taken: the program has
    /// to poll again before it sleeps.
    pub poll_again: bool,
}

/// What a link that shares its completion queue knows of the others: nothing but what it came across while
/// it was driven, until its set takes that.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The completion queue has room reserved for everything that can be in flight.
    pub reserve: bool,
    /// Completions of other links.
    pub completions: Vec<Completion<'static>>,
    /// Events of anything but this link's queue pair.
    pub events: Vec<(EventType, Element)>,
}

/// How a link hears of asynchronous events.
pub(super) enum Events {
    /// By a mailbox of its own.
    Own,
    /// By its set's.
    OfSet {
        mailbox: u64,
        /// See [`Shared::reserve`].
        reserve: bool,
        /// The queue pair receives from a shared receive queue.
        on_srq: bool,
    },
}

impl RecoveryState {
    /// # Errors
    /// Those of [`Dispatcher::join_asleep`](super::Dispatcher::join_asleep); [`Error::OutOfRange`] and
    /// [`Error::Unsupported`] for attributes by which no queue pair of the device can be connected.
    pub fn new(
        pd: &Pd,
        init: LinkInit,
        exchange: Box<dyn Exchange>,
        wake: Option<Wake>,
        events: Events,
    ) -> Result<Self, Error> {
        let device = pd.device();
        init.check()?;
        init.connect.check(device, QpType::Rc)?;
        let (port, named) = (init.connect.port_num, init.connect.gid_index);
        let named_gid = named.map_or_else(GidEntry::default, |at| device.hca.gid_entry(port, at));
        // The lists of a recovery: a link of its own has room for them from the beginning, so that it recovers, and
        // ends, when there is no memory. Thousands of links of a set cannot have that. Before anything is subscribed to.
        let (sends, recvs) = match events {
            Events::Own => init.qp.cq_entries(),
            Events::OfSet { .. } => (0, 0),
        };
        let (sends, recvs) = (sends as usize, recvs as usize);
        let requests = with_room(sends)?.into();
        let (again, outbox) = (with_room(sends)?.into(), with_room(sends)?.into());
        let receives = with_room(recvs)?.into();
        let links = &device.links;
        let mut receives_shared = false;
        let (mailbox, shared) = match (events, &wake) {
            (
                Events::OfSet {
                    mailbox,
                    reserve,
                    on_srq,
                },
                _,
            ) => {
                receives_shared = on_srq;
                let shared = Shared {
                    reserve,
                    ..Shared::default()
                };
                (mailbox, Some(shared))
            }
            (Events::Own, Some(wake)) => (links.join_asleep(device, wake.bell.clone())?, None),
            (Events::Own, None) => (links.join()?, None),
        };
        let peer = Peer::new(exchange, Some((device.clone(), init.connect.port_num)));
        let setup = Setup {
            srq: receives_shared,
            new_qp_per_connection: peer.needs_new_qp(),
            ..Setup::default()
        };
        let in_flight = InFlight {
            requests,
            // Devices round it up.
            read_depth: init.connect.max_rd_atomic.checked_next_power_of_two(),
            ..InFlight::default()
        };
        Ok(Self {
            pd: pd.clone(),
            protocol: Protocol::new(setup, init.limits),
            watch: Watch::new(&init),
            init,
            peer,
            queues: None,
            cq: None,
            srq: None,
            shared,
            on_srq: receives_shared.then(OnSrq::default),
            consumed: 0,
            exact: true,
            in_flight,
            again,
            receives,
            early: VecDeque::new(),
            cancels: Cancels::default(),
            grants: None,
            receives_end: false,
            opened: false,
            carried: 0,
            outbox,
            mailbox,
            wake,
            hooks: Hooks::default(),
            panics: Panics::default(),
            published: Arc::default(),
            since: None,
            replayed: 0,
            reported: 0,
            cq_failed: false,
            named_gid,
            address: (0, [0; 16], 0),
            psn: 0,
            now: Duration::ZERO,
            unnoted: Vec::new(),
            failure: None,
            poll_again: false,
        })
    }

    /// How completions go to the program while the link works and has none of its own in flight.
    pub fn delivery(&self) -> Delivery {
        match self.on_srq {
            Some(_) => Delivery::DirectOnSrq,
            None => Delivery::Direct,
        }
    }

    /// Whether a poll would find something to do at once.
    pub fn wants_poll(&mut self) -> bool {
        // While the link recovers the requests are taken back by the recovery.
        let takes_back = self.queues.is_none() && self.cancels.wait();
        std::mem::take(&mut self.poll_again) || self.peer.has_more() || takes_back
    }

    /// The device time by which the link has to be polled again.
    pub fn deadline(&self) -> Option<Duration> {
        let protocol = self.protocol.deadline();
        protocol.into_iter().chain(self.next_check()).min()
    }

    /// The device time of the next check while the link works.
    pub fn next_check(&self) -> Option<Duration> {
        if self.protocol.recovering() || self.protocol.ended().is_some() {
            return None;
        }
        let works = self.queues.is_none();
        let watch = self.watch.as_ref().filter(|_| works);
        let watched = watch.and_then(Watch::next_check);
        let answers = self
            .grants
            .as_ref()
            .and_then(|grants| grants.next_deadline());
        let own = [watched, self.cancels.next(), answers];
        own.into_iter().flatten().min()
    }

    /// Time until that deadline, or until the exchange or the device needs attention.
    pub fn time_left(&self) -> Option<Duration> {
        let device = self.pd.device();
        let own = (self.deadline()).map(|deadline| deadline.saturating_sub(device.now()));
        let exchange = (self.peer.deadline())
            .filter(|_| !self.protocol.peer_gone())
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        [own, exchange, device.has_to_be_polled()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Number of the queue pair, while the link recovers and has one.
    pub fn qp_num(&self) -> Option<u32> {
        Some(self.queues.as_ref()?.qp.as_ref()?.qp_num())
    }

    /// Subscribes to the device's events on these queues, the port and the device: at once when a queue pair was
    /// created, because another thread of the device may look for events at any time.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn watch(&self, qpn: u32, cqn: u32) -> Result<(), Error> {
        if self.shared.is_some() {
            // Its set does the others.
            let links = &self.pd.device().links;
            return links.watch_also(self.mailbox, Element::Qp(qpn));
        }
        let elements = [
            Element::Qp(qpn),
            Element::Cq(cqn),
            Element::Port(self.init.connect.port_num),
            Element::Device,
        ];
        self.pd.device().links.watch(self.mailbox, &elements)
    }

    /// The queue pair was destroyed: its events are of no interest any more. A plain link's next subscription
    /// replaces this one.
    pub fn unwatch(&self, qpn: u32) {
        if self.shared.is_some() {
            let links = &self.pd.device().links;
            links.unwatch(self.mailbox, Element::Qp(qpn));
        }
    }

    /// Checks the events and the exchange while the link works. Returns whether it has to recover.
    pub fn look(&mut self, now: Duration) -> bool {
        self.take_events(now);
        self.take_messages(now);
        self.protocol.recovering()
    }

    /// Takes the events that were delivered to this link.
    pub fn take_events(&mut self, now: Duration) {
        let device = self.pd.device();
        let own = self.qp_num().map(Element::Qp);
        for (event, of) in device.links.collect(device, self.mailbox) {
            match &mut self.shared {
                Some(shared) if own != Some(of) => shared.events.push((event, of)),
                _ => self.fault(Fault::Event(event), now),
            }
        }
    }

    fn take_messages(&mut self, now: Duration) {
        self.peer.receive_all(&mut self.protocol);
        if let Some(fault) = self.protocol.peer_fault() {
            self.fault(fault, now);
        }
    }

    /// Takes in a fault, or an event that breaks nothing.
    pub fn fault(&mut self, fault: Fault, now: Duration) {
        self.cq_failed |= fault == Fault::Event(EventType::CqErr);
        self.in_flight.port_failed |= fault == Fault::Event(EventType::PortErr);
        if let Some(on_srq) = &mut self.on_srq {
            on_srq.fault(fault);
        }
        self.protocol.fault(fault, now);
        if fault == Fault::PeerClosed {
            // A link is ended this way: it is not a failure.
            return;
        }
        if self.protocol.recovering() {
            self.since.get_or_insert(now);
        }
        let class = classify(fault);
        if class.scope == Scope::None {
            return;
        }
        self.published
            .update(|counters| counters.fault(class.scope));
        match self.queues.as_mut().and_then(|queues| queues.qp.as_mut()) {
            Some(qp) => qp.note(text(format_args!("{fault}"))),
            // A fault that is not noted is missing in a dump only.
            None if self.unnoted.try_reserve(1).is_ok() => self.unnoted.push(fault),
            None => {}
        }
        if wants(Level::Warn) {
            let (name, text, recovery) = (self.name(), fault.text(), class.recovery.text());
            let advice = class.advice;
            log(
                Level::Warn,
                format_args!("{name}: {fault}: {text} To recover: {recovery} Look at: {advice}"),
            );
        }
        if let Some(hook) = &mut self.hooks.on_fault {
            let report = FaultReport {
                fault,
                class,
                epoch: self.protocol.epoch(),
            };
            self.panics.catch(|| hook(&report));
        }
    }

    /// Takes in the failure of a request that this end did not flush itself. Whatever recovery the status
    /// itself calls for, the queue pair is in ERR: every failed request breaks a reliable connection.
    pub fn broke(&mut self, fault: Fault, now: Duration) {
        self.fault(fault, now);
        if classify(fault).recovery == Recovery::None {
            self.fault(Fault::Event(EventType::QpFatal), now);
        }
    }

    /// Carries out a request of the program.
    pub fn execute(&mut self, command: Command) {
        match command {
            Command::OnFault(hook) => {
                let replaced = self.hooks.on_fault.replace(hook);
                self.panics.catch(|| drop(replaced));
            }
            Command::OnRecovered(hook) => {
                let replaced = self.hooks.on_recovered.replace(hook);
                self.panics.catch(|| drop(replaced));
            }
            Command::Report(fault) => self.fault(fault, self.pd.device().now()),
            Command::Receive(receive) => self.receive(receive),
            Command::TakeBack { side, wr_id, how } => {
                let when = how.at(|| self.pd.device().now());
                let _ = self.take_back(None, &TakeBack { side, wr_id, when });
            }
        }
    }

    /// Stops the queues to recover them: `received` receives were consumed on this connection, and each
    /// request that `failed` on it is a fault.
    pub fn begin(
        &mut self,
        active: ActiveQueues,
        received: u64,
        failed: impl IntoIterator<Item = Completion<'static>>,
    ) {
        self.poll_again = true;
        self.consumed = received;
        self.in_flight.consuming = active.sent;
        let keep_alive = self.watch.as_mut().and_then(Watch::stop);
        let mut queues = RecoveringQueues::new(active, keep_alive);
        for fault in self.unnoted.drain(..) {
            if let Some(qp) = &mut queues.qp {
                qp.note(text(format_args!("{fault}")));
            }
        }
        self.queues = Some(queues);
        let mut first = None;
        for completion in failed {
            let fault = self.take(completion);
            // The other failures follow from the first.
            first = first.or(fault);
        }
        if let Some(fault) = first {
            self.broke(fault, self.pd.device().now());
        }
    }

    /// Does what the protocol asks for, until it has to wait.
    pub fn drive(&mut self, now: Duration) {
        if self.protocol.ended().is_some() {
            return;
        }
        self.now = now;
        if let Some(fault) = self.collect() {
            self.broke(fault, now);
        }
        self.take_events(now);
        self.take_messages(now);
        if self.has_to_take_back(now) {
            self.fault(Fault::Cancelled, now);
        }
        let mut steps_left = self.init.max_steps_per_poll.max(1);
        while steps_left != 0 {
            match self.protocol.next(now) {
                Action::Step(step) => {
                    let result = self.carry_out(step);
                    self.protocol.done(step, result, now);
                    self.publish_end();
                    if result == StepResult::Pending {
                        return;
                    }
                    steps_left -= 1;
                }
                Action::Describe => self.describe(),
                Action::Send(message) => self.peer.send(&message, &mut self.protocol),
                Action::Wait => return,
                Action::Ended(end) => return self.end(end, now),
            }
        }
        self.poll_again = true;
    }

    fn publish_end(&self) {
        if let Some(end) = self.protocol.ended()
            && self.published.set_phase(Phase::Ended)
        {
            let level = match end.why() {
                None | Some(EndReason::PeerClosed) => Level::Info,
                Some(_) => Level::Error,
            };
            log(level, format_args!("{}: {end}", self.name()));
        }
    }

    /// Names the link in the log.
    fn name(&self) -> impl fmt::Display {
        Name {
            qpn: self.published.qp_num(),
            epoch: self.protocol.epoch(),
            peer: self.peer.addr(),
        }
    }

    fn log_end(&self, report: &RecoveryReport) {
        let (name, took) = (self.name(), report.took);
        match (report.end, report.first) {
            (End::Recovered, None) => {
                log(Level::Info, format_args!("{name}: connected in {took:?}"))
            }
            (End::Recovered, Some(first)) => log(
                Level::Info,
                format_args!(
                    "{name}: recovered from {first} in {took:?}; {} requests posted again, {} reported as not executed, failed or in doubt",
                    report.replayed, report.reported
                ),
            ),
            (End::Degraded(why), first) => log(
                Level::Warn,
                format_args!(
                    "{name}: works again after {took:?}, but {why}; it began with {}",
                    first.map_or_else(
                        || "the first connection".to_owned(),
                        |first| first.to_string()
                    )
                ),
            ),
            // Logged with its reason when the link ends.
            (End::GaveUp(_), _) => {}
        }
    }

    fn end(&mut self, end: End, now: Duration) {
        self.publish_end();
        let since = self.since.take();
        if end == End::GaveUp(EndReason::PeerClosed) && since.is_none() {
            // Nothing had failed.
            return;
        }
        if end == End::GaveUp(EndReason::TimedOut(Step::Exchange)) {
            self.peer.give_up();
        }
        let took = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.in_flight.port_failed = false;
        self.published.update(|counters| counters.ended(end, took));
        let report = RecoveryReport {
            end,
            took,
            epoch: self.protocol.epoch(),
            replayed: std::mem::take(&mut self.replayed),
            reported: std::mem::take(&mut self.reported),
            first: self.protocol.first(),
        };
        self.log_end(&report);
        if let Some(hook) = &mut self.hooks.on_recovered {
            self.panics.catch(|| hook(&report));
        }
    }

    /// The report of a request that succeeded. A receive of the shared receive queue is none of the program's
    /// requests: it retires none.
    pub fn done(&self, completion: Completion<'static>, success: Success) -> LinkCompletion {
        let mut report = done(completion, success);
        if self.on_srq.is_some() && success.opcode.is_recv() {
            report.retired = 0;
        }
        report
    }

    /// Takes in an outcome, and queues it for the program. The link keeps outcomes of its own entries, and of requests
    /// whose memory is lent.
    pub fn report(&mut self, completion: LinkCompletion) {
        let open = self.grants.as_mut().filter(|grants| grants.is_open());
        let passed = match open {
            Some(grants) => grants.take(completion, &mut self.carried),
            None => Some(completion),
        };
        passed.into_iter().for_each(|passed| self.push(passed));
        if self.queues.is_some() {
            self.revoke_due(None);
        }
    }

    /// Queues an outcome for the program.
    pub fn push(&mut self, mut completion: LinkCompletion) {
        completion.retired += std::mem::take(&mut self.carried);
        self.outbox.push_back(completion);
    }

    /// Queues the outcome of a request of a failed connection.
    pub fn report_outcome(&mut self, completion: LinkCompletion) {
        if self
            .grants
            .as_ref()
            .is_some_and(|grants| grants.has(&completion))
        {
            // Counted when it is reported.
            return self.report(completion);
        }
        let (is_recv, outcome) = (completion.is_recv(), completion.outcome);
        self.published
            .update(|counters| counters.outcome(is_recv, outcome));
        if completion.outcome != Outcome::Done {
            self.reported += 1;
        }
        self.report(completion);
    }

    /// The first connection is made like every other.
    pub fn connect_first(&mut self, now: Duration) {
        self.protocol.connect(now);
        self.since = Some(now);
    }

    /// Sends the peer the closing message, unless that was done.
    pub fn leave(&mut self) {
        if let Some(message) = self.protocol.leave() {
            self.peer.send(&message, &mut self.protocol);
        }
    }

    /// Counts outcomes that are reported.
    pub fn count_reported(&mut self, outcomes: u32) {
        self.reported += outcomes;
    }

    /// Whether there are outcomes that were not reported to the program yet.
    pub fn has_outcomes(&self) -> bool {
        !self.outbox.is_empty() || self.receives_end && !self.receives.is_empty()
    }

    /// The next outcome for the program. The receives of a link that has ended are reported from where they are: no memory
    /// is needed for them.
    pub fn next_outcome(&mut self) -> Option<LinkCompletion> {
        if let Some(queued) = self.outbox.pop_front() {
            return Some(queued);
        }
        let receive = self.receives_end.then(|| self.receives.pop_front())??;
        let outcome = receive.outcome();
        let mut completion = receive.completion(outcome);
        completion.retired += std::mem::take(&mut self.carried);
        Some(completion)
    }

    /// Passes queued outcomes to the program.
    pub fn deliver(&mut self, limit: usize, each: &mut dyn FnMut(LinkCompletion)) -> usize {
        let mut count = 0;
        // One by one: if `each` panics, the rest stays queued.
        while count < limit
            && let Some(completion) = self.next_outcome()
        {
            count += 1;
            each(completion);
        }
        count
    }

    /// Resumes a panic of a hook or of the exchange, if there was one.
    pub fn resume_panics(&mut self) {
        self.panics.resume();
        self.peer.panics.resume();
    }

    /// The queues, and the count of receives consumed on them, when they work and everything has been
    /// reported.
    pub fn resume(&mut self) -> Option<(ActiveQueues, u64)> {
        if self.protocol.busy() || self.protocol.ended().is_some() || self.has_outcomes() {
            return None;
        }
        // Otherwise: flushed receives of a queue pair whose failure went unnoticed.
        debug_assert!(
            self.receives.is_empty() && self.early.is_empty(),
            "opened without its receives"
        );
        let queues = self.queues.take()?;
        // If the queue pair worked all the time, a keep-alive may still be in flight.
        if let Some(watch) = &mut self.watch {
            watch.keep_alive = queues.keep_alive;
        }
        let active = queues.into_active(self.in_flight.consuming)?;
        self.opened = true;
        Some((active, self.consumed))
    }

    /// The fault that a failed call of the device amounts to.
    pub fn fault_of(error: &Error) -> Fault {
        match error {
            Error::DeviceFatal => Fault::Event(EventType::DeviceFatal),
            Error::Io { error, .. } => Fault::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
            Error::Exhausted { .. } | Error::Attach(_) | Error::Memory(_) => {
                Fault::Errno(libc::ENOMEM)
            }
            _ => Fault::Errno(libc::EINVAL),
        }
    }
}

/// A link in the log.
struct Name {
    qpn: u32,
    epoch: u64,
    peer: Option<SocketAddr>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, epoch, peer } = self;
        write!(f, "link on queue pair {qpn:#x}, connection {epoch}")?;
        match peer {
            Some(peer) => write!(f, ", to {peer}"),
            None => Ok(()),
        }
    }
}

impl Drop for RecoveryState {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        self.leave();
        if self.shared.is_none() {
            self.pd.device().links.leave(self.mailbox);
        }
    }
}
