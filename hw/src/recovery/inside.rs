//! What a link is made of while it recovers, and how a recovery is driven.

use super::closing::Closing;
use super::counters::Counters;
use super::exchange::Exchange;
use super::init::{FaultReport, Hooks, LinkInit, RecoveryReport};
use super::life::Life;
use super::limbo::{Limbo, Pending};
use super::live::Live;
use super::peer::Peer;
use super::ring::Receive;
use super::told::{LinkEnd, Told};
use super::wake::Wake;
use super::worker::Letter;
use crate::connect::RecoveryInfo;
use crate::error::Error;
use crate::event::{Element, EventType};
use crate::pd::Pd;
use crate::recorder::Record;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::{End, Next, Plan, Setup, StepResult, Why};
use bellwire_core::fault::{Fault, Recovery, Scope, classify};
use std::collections::VecDeque;
use std::time::Duration;

/// Everything of a link that the data path does not touch.
#[derive(Debug)]
pub(super) struct Inside {
    pub pd: Pd,
    pub init: LinkInit,
    pub plan: Plan,
    pub peer: Peer,
    /// The queues, while the link recovers.
    pub life: Option<Life>,
    /// The last connection on which this end could receive.
    pub connection: u64,
    /// Receives that were consumed on it, and whether these are all.
    pub consumed: u64,
    pub exact: bool,
    /// Sends whose outcome is not known.
    pub limbo: Limbo,
    /// Sends that are to be posted again, and what became of them before.
    pub again: VecDeque<(Pending, Outcome)>,
    /// Receives that are to be posted again.
    pub receives: VecDeque<Receive>,
    /// Told with the next: requests that were executed, and have nothing else to tell of them.
    pub carried: u32,
    /// What the program has not been told yet.
    pub outbox: VecDeque<Told>,
    pub mailbox: u64,
    pub wake: Option<Wake>,
    pub hooks: Hooks,
    pub counters: Counters,
    /// When the first fault came, while it recovers.
    since: Option<Duration>,
    /// Of this recovery.
    pub replayed: u32,
    surfaced: u32,
    pub ended: Option<LinkEnd>,
    pub closing: Option<Closing>,
    /// The completion queue lost entries, or was said to have failed.
    pub cq_failed: bool,
    /// What the peer said of itself for this epoch.
    pub theirs: Option<RecoveryInfo>,
    /// The port's LID and GID by which the peer was told to reach this end.
    pub address: (u16, [u8; 16]),
    /// First packet sequence number that the peer was told.
    pub psn: u32,
    /// The time of the last look.
    pub now: Duration,
    /// Faults that are to be noted with the queue pair, which is not here yet.
    unnoted: Vec<Fault>,
    /// What the queue pair of the connection that failed last had done, where that is asked for.
    pub failure: Option<Record>,
}

impl Inside {
    pub fn new(pd: &Pd, init: LinkInit, exchange: Box<dyn Exchange>, wake: Option<Wake>) -> Self {
        let setup = Setup {
            peer: true,
            srq: false,
        };
        let limbo = Limbo {
            // Devices round it up.
            read_depth: init.connect.max_rd_atomic.checked_next_power_of_two(),
            ..Limbo::default()
        };
        Self {
            pd: pd.clone(),
            plan: Plan::new(setup, init.limits),
            init,
            peer: Peer::new(exchange),
            life: None,
            connection: 0,
            consumed: 0,
            exact: true,
            limbo,
            again: VecDeque::new(),
            receives: VecDeque::new(),
            carried: 0,
            outbox: VecDeque::new(),
            mailbox: (pd.device().links).join(wake.as_ref().map(|wake| wake.bell.clone())),
            wake,
            hooks: Hooks::default(),
            counters: Counters::default(),
            since: None,
            replayed: 0,
            surfaced: 0,
            ended: None,
            closing: None,
            cq_failed: false,
            theirs: None,
            address: (0, [0; 16]),
            psn: 0,
            now: Duration::ZERO,
            unnoted: Vec::new(),
            failure: None,
        }
    }

    /// What the device's events are to be about that this link wants to know.
    pub fn watch(&self, qpn: u32, cqn: u32) {
        let elements = [
            Element::Qp(qpn),
            Element::Cq(cqn),
            Element::Port(self.init.connect.port_num),
            Element::Device,
        ];
        self.pd.device().links.watch(self.mailbox, &elements);
    }

    /// Looks at the events and at the exchange, while the link works; whether it does not any more.
    pub fn look(&mut self, now: Duration) -> bool {
        for event in self.events() {
            self.fault(Fault::Event(event), now);
        }
        if self.peer.listen() {
            self.fault(self.peer.says(), now);
        }
        self.plan.running()
    }

    /// The events that came.
    pub fn events(&mut self) -> Vec<EventType> {
        let device = self.pd.device();
        match device.links.collect(device, self.mailbox) {
            Ok(events) => events.into_iter().map(|(event, _)| event).collect(),
            // The system cannot say: there is nothing to go by.
            Err(_) => Vec::new(),
        }
    }

    /// Takes a fault in, or an event that breaks nothing.
    pub fn fault(&mut self, fault: Fault, now: Duration) {
        self.cq_failed |= fault == Fault::Event(EventType::CqErr);
        self.limbo.port_failed |= fault == Fault::Event(EventType::PortErr);
        self.plan.fault(fault, now);
        if fault == Fault::PeerClosed {
            // That is how a link ends, and no failure.
            return;
        }
        if self.plan.running() {
            self.since.get_or_insert(now);
        }
        let class = classify(fault);
        if class.scope == Scope::None {
            return;
        }
        self.counters.fault(class.scope);
        match self.life.as_mut().and_then(|life| life.qp.as_mut()) {
            Some(qp) => qp.note(fault.to_string()),
            None => self.unnoted.push(fault),
        }
        if let Some(hook) = &mut self.hooks.on_fault {
            hook(&FaultReport {
                fault,
                class,
                epoch: self.peer.epoch(),
            });
        }
    }

    /// A request failed that this end had not ordered to. Whatever its status asks for by itself, its
    /// queue pair is in ERR: nothing that fails leaves a reliable connection as it was.
    pub fn broke(&mut self, fault: Fault, now: Duration) {
        self.fault(fault, now);
        if classify(fault).recovery == Recovery::None {
            self.fault(Fault::Event(EventType::QpFatal), now);
        }
    }

    /// Carries out what the program asks for.
    pub fn obey(&mut self, letter: Letter) {
        match letter {
            Letter::OnFault(hook) => self.hooks.on_fault = Some(hook),
            Letter::OnRecovered(hook) => self.hooks.on_recovered = Some(hook),
            Letter::Report(fault) => self.fault(fault, self.pd.device().now()),
        }
    }

    /// The queues stop, to be recovered.
    pub fn begin(&mut self, live: Live) {
        self.consumed = live.received;
        self.limbo.consuming = live.sent;
        let mut life = Life::of(live);
        for fault in self.unnoted.drain(..) {
            if let Some(qp) = &mut life.qp {
                qp.note(fault.to_string());
            }
        }
        self.life = Some(life);
    }

    /// Goes on as far as it goes without waiting.
    pub fn drive(&mut self, now: Duration) {
        if self.ended.is_some() {
            return;
        }
        self.now = now;
        self.take_news(now);
        if self.drive_close(now) {
            return;
        }
        for _ in 0..self.init.steps_at_once.max(1) {
            match self.plan.next(now) {
                Next::Step(step) => {
                    let result = self.carry_out(step);
                    let pending = result == StepResult::Pending;
                    self.plan.done(step, result, now);
                    if pending {
                        return;
                    }
                }
                Next::Idle | Next::WaitUntil(_) => return,
                Next::Ended(end) => return self.end(end, now),
            }
        }
    }

    /// What came since the last look: completions, events, messages.
    fn take_news(&mut self, now: Duration) {
        if let Some(fault) = self.collect() {
            self.broke(fault, now);
        }
        for event in self.events() {
            self.fault(Fault::Event(event), now);
        }
        // Before this end has heard the peer's Info, another epoch's will do.
        if self.peer.listen() && self.life.as_ref().is_some_and(|life| life.met_peer) {
            self.fault(self.peer.says(), now);
        }
    }

    fn end(&mut self, end: End, now: Duration) {
        if let End::GaveUp(why) = end {
            self.ended = Some(LinkEnd::GaveUp(why));
        }
        let since = self.since.take();
        if end == End::GaveUp(Why::PeerClosed) && since.is_none() {
            // Nothing had failed.
            return;
        }
        let took = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.limbo.port_failed = false;
        self.counters.ended(end, took);
        let report = RecoveryReport {
            end,
            took,
            epoch: self.peer.epoch(),
            replayed: std::mem::take(&mut self.replayed),
            surfaced: std::mem::take(&mut self.surfaced),
        };
        if let Some(hook) = &mut self.hooks.on_recovered {
            hook(&report);
        }
    }

    /// The program is to be told.
    pub fn tell(&mut self, mut told: Told) {
        told.retired += std::mem::take(&mut self.carried);
        self.outbox.push_back(told);
    }

    /// As [`tell`](Self::tell), of a request of a connection that failed.
    pub fn surface(&mut self, told: Told) {
        self.counters.told(&told);
        if told.outcome != Outcome::Done {
            self.surfaced += 1;
        }
        self.tell(told);
    }

    /// The first connection is made as every other is.
    pub fn connect_first(&mut self, now: Duration) {
        self.plan.fault(Fault::Peer, now);
        self.since = Some(now);
    }

    /// Whether there has been a connection.
    pub fn connected(&self) -> bool {
        self.connection != 0
    }

    /// Whether there is something to carry on.
    pub fn recovers(&self) -> bool {
        self.ended.is_none() && (self.plan.running() || self.closing.is_some())
    }

    /// Gives what was not told yet to the program.
    pub fn tell_program(&mut self, limit: usize, each: &mut dyn FnMut(Told)) -> usize {
        let count = limit.min(self.outbox.len());
        self.outbox.drain(..count).for_each(each);
        count
    }

    /// The queues, when they work and all was told.
    pub fn resume(&mut self) -> Option<Live> {
        if self.recovers() || self.ended.is_some() || !self.outbox.is_empty() {
            return None;
        }
        // Flushed ones, of a queue pair whose failure went unnoticed.
        debug_assert!(self.receives.is_empty(), "opened without its receives");
        let (sent, received) = (self.limbo.consuming, self.consumed);
        self.life.take()?.live(sent, received)
    }

    /// What the device says to a call that failed.
    pub fn fault_of(error: &Error) -> Fault {
        match error {
            Error::DeviceFatal => Fault::Event(EventType::DeviceFatal),
            Error::Io { error, .. } => Fault::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
            Error::Exhausted { .. } | Error::Attach(_) => Fault::Errno(libc::ENOMEM),
            _ => Fault::Errno(libc::EINVAL),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.peer.close();
        self.pd.device().links.leave(self.mailbox);
    }
}
