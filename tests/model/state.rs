//! Two links at one moment. Whatever an end does without choice, such as waiting or transmitting, is done at
//! once: it makes no other state.

use crate::end::Qp;
use crate::fault::{EventType, Fault as Raised};
use crate::links::{Event, Fault, LIMITS, PROGRAMS, Scope};
use crate::world::{Disturbance, Progress, RETRY, World};
use crate::wrong::{Noted, Wrong};
use core::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub world: World,
    /// Ends that wait for something to happen.
    waits: [bool; 2],
    /// Ends whose step takes until the next deadline.
    pending: [bool; 2],
    /// Requests that each end may still post.
    left: [usize; 2],
    /// Faults that may still occur.
    faults: u8,
    /// An end was disturbed.
    disturbed: bool,
    /// What an end that does something wrong remembers for it.
    noted: Noted,
}

const BOTH: [usize; 2] = [0, 1];

impl State {
    pub fn new(scope: &Scope, new_qp_per_connection: bool) -> Self {
        let mut state = Self {
            world: World::new(LIMITS, new_qp_per_connection),
            waits: [false; 2],
            pending: [false; 2],
            left: [scope.window.min(PROGRAMS[0].len()); 2],
            faults: scope.faults,
            disturbed: false,
            noted: Noted::default(),
        };
        state.rest();
        // The ends take turns until they are connected.
        let mut events = Vec::new();
        while !scope.first && !state.at_rest() {
            state.progress(&mut events);
            state.take(events[0], None);
            events.clear();
        }
        state
    }

    /// What may happen without a fault, and has to at some time.
    pub fn progress(&self, events: &mut Vec<Event>) {
        for at in BOTH {
            let end = &self.world.ends[at];
            if !self.waits[at] {
                events.push(Event::Act(at));
            }
            if !end.inbox.is_empty() || end.cut && !end.protocol.peer_gone() {
                events.push(Event::Receive(at));
            }
            if !end.packets.is_empty() {
                events.push(Event::Execute(at));
            }
            if end.acknowledgement() {
                events.push(Event::Acknowledge(at));
            }
            if !end.port_up {
                events.push(Event::PortActive(at));
            }
        }
        if events.is_empty() && self.may_wait() {
            events.push(Event::Wait);
        }
    }

    /// Both ends wait for a time.
    fn may_wait(&self) -> bool {
        let busy = (self.world.ends.iter()).any(|end| end.protocol.busy());
        self.waits == [true; 2] && busy
    }

    /// Nothing is left that has to happen.
    pub fn at_rest(&self) -> bool {
        let mut events = Vec::new();
        self.progress(&mut events);
        events.is_empty()
    }

    pub fn posts(&self, events: &mut Vec<Event>) {
        for at in BOTH {
            if self.left[at] > 0 && self.world.ends[at].works() {
                events.push(Event::Post(at));
            }
        }
    }

    pub fn faults(&self, events: &mut Vec<Event>) {
        if self.faults == 0 {
            return;
        }
        if self.may_wait() {
            events.push(Event::Fault(Fault::Delay));
        }
        let inboxes = BOTH.map(|at| self.world.ends[at].inbox.len());
        if !self.world.ends[0].cut {
            for first in 0..=inboxes[0] {
                for second in 0..=inboxes[1] {
                    events.push(Event::Fault(Fault::Exchange(first, second)));
                }
            }
        }
        for at in BOTH {
            let end = &self.world.ends[at];
            if end.protocol.ended().is_some() {
                continue;
            }
            let mut may = |fault| events.push(Event::Fault(fault));
            if matches!(end.qp, Qp::Init | Qp::Connected(_) | Qp::Error) {
                may(Fault::Qp(at));
            }
            if end.cq {
                (0..=end.consumed.min(2)).for_each(|lost| may(Fault::Cq(at, lost)));
            }
            if end.port_up {
                may(Fault::Port(at));
            }
            may(Fault::Gid(at));
            if end.acknowledgement() {
                may(Fault::Acknowledgement(at));
            }
            if !self.waits[at] {
                for disturbance in [
                    Disturbance::Pending,
                    Disturbance::Failed,
                    Disturbance::Changed,
                ] {
                    may(Fault::Step(at, disturbance));
                }
            }
            if end.may_cancel().is_some() {
                may(Fault::Cancel(at));
            }
            if !end.protocol.closing() {
                may(Fault::Close(at));
            }
            may(Fault::Restart(at));
        }
    }

    pub fn take(&mut self, event: Event, wrong: Option<Wrong>) {
        let now = self.world.now;
        match event {
            Event::Act(at) => {
                self.act(at, None, wrong);
            }
            Event::Receive(at) => _ = self.world.receive(at),
            Event::Post(at) => {
                let program = &PROGRAMS[at];
                let end = &mut self.world.ends[at];
                end.post(program[end.requests.len() % program.len()]);
                self.left[at] -= 1;
            }
            Event::Execute(at) => _ = self.world.execute(at),
            Event::Acknowledge(at) => self.world.ends[at].acknowledge(),
            Event::Wait => self.wait(),
            Event::PortActive(at) => {
                let end = &mut self.world.ends[at];
                end.port_up = true;
                end.protocol.fault(event_of(EventType::PortActive), now);
            }
            Event::Fault(fault) => {
                self.faults -= 1;
                self.disturbed = true;
                self.fault(fault, now, wrong);
            }
        }
        self.rest();
    }

    fn fault(&mut self, fault: Fault, now: Duration, wrong: Option<Wrong>) {
        let ends = &mut self.world.ends;
        match fault {
            Fault::Delay => self.wait(),
            Fault::Qp(at) => ends[at].fails(event_of(EventType::QpFatal), now),
            Fault::Cq(at, lost) => ends[at].loses_cq(lost, now),
            Fault::Port(at) => {
                ends[at].port_up = false;
                let event = event_of(EventType::PortErr);
                ends[at].protocol.fault(event, now);
            }
            Fault::Gid(at) => {
                let event = event_of(EventType::GidChange);
                ends[at].protocol.fault(event, now);
            }
            Fault::Acknowledgement(at) => ends[at].fails(RETRY, now),
            Fault::Step(at, disturbance) => {
                self.pending[at] = disturbance == Disturbance::Pending;
                self.act(at, Some(disturbance), wrong);
            }
            Fault::Exchange(first, second) => {
                for (end, arrive) in ends.iter_mut().zip([first, second]) {
                    end.inbox.truncate(arrive);
                    end.cut = true;
                }
            }
            Fault::Cancel(at) => {
                let reports = wrong == Some(Wrong::ReportsEarly);
                self.world.cancel(at, reports);
            }
            Fault::Close(at) => self.world.close(at, Duration::from_millis(700)),
            Fault::Restart(at) => self.world.restart(at),
        }
    }

    fn wait(&mut self) {
        let (now, deadline) = (self.world.now, self.world.deadline());
        self.world.now = deadline.map_or(now, |deadline| now.max(deadline));
        self.pending = [false; 2];
    }

    fn act(&mut self, at: usize, disturbance: Option<Disturbance>, wrong: Option<Wrong>) -> bool {
        let before = wrong.map(|wrong| (wrong, self.world.ends[1 - at].inbox.len()));
        let acted = self.world.act(at, disturbance) == Progress::Acted;
        if let Some((wrong, sent_before)) = before {
            wrong.falsify(&mut self.world, &mut self.noted, at, sent_before);
        }
        acted
    }

    /// Devices transmit what was posted, ends that have nothing to do wait, and programs drop links that have
    /// ended, with their exchange.
    fn rest(&mut self) {
        for at in BOTH {
            while self.world.transmit(at) {}
        }
        for at in BOTH {
            let disturbance = self.pending[at].then_some(Disturbance::Pending);
            let mut world = self.world.clone();
            self.waits[at] = world.act(at, disturbance) == Progress::Waits;
            if self.waits[at] {
                self.world = world;
                self.world.ends[1 - at].cut |= self.world.ended()[at].is_some();
            }
        }
    }

    /// Something had to be recovered from.
    pub fn recovered(&self) -> bool {
        self.disturbed && self.world.ends[0].protocol.epoch() > 1
    }
}

const fn event_of(event: EventType) -> Raised {
    Raised::Event(event)
}
