//! What may happen to two links, and what has to hold.

use crate::end::Violation;
use crate::fault::outcome::{Doubt, Outcome};
use crate::fault::plan::Limits;
use crate::state::State;
use crate::world::Disturbance;
use crate::wr::WrOpcode;
use crate::wrong::Wrong;
use core::fmt;
use core::time::Duration;
use stateright::{Model, Property};

/// Short ones: fewer attempts make fewer states, and each deadline differs from the others.
pub const LIMITS: Limits = Limits {
    attempts: 2,
    recovery: Duration::from_secs(12),
    settle: Duration::from_secs(1),
    drain: Duration::from_millis(900),
    last_wqe: Duration::from_millis(500),
    timewait: Duration::from_secs(3),
    port: Duration::from_secs(6),
    exchange: Duration::from_secs(4),
    ready: Duration::from_secs(2),
    step: Duration::from_millis(1900),
    backoff_first: Duration::from_millis(100),
    backoff_max: Duration::from_millis(100),
    seed: 0,
};

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Faults that may occur, at most.
    pub faults: u8,
    /// Requests that each end may post.
    pub window: usize,
    /// Whether it begins with the first connection, rather than with ends that are connected.
    pub first: bool,
    /// An end that does something wrong.
    pub wrong: Option<Wrong>,
}

impl Scope {
    /// From connected ends on.
    pub const fn new(faults: u8, window: usize) -> Self {
        Self {
            faults,
            window,
            first: false,
            wrong: None,
        }
    }

    /// Faults and requests, and whether it begins with the first connection.
    pub fn from_text(text: &str) -> Option<Self> {
        let (numbers, first) = match text.strip_suffix(",first") {
            Some(numbers) => (numbers, true),
            None => (text, false),
        };
        let (faults, window) = numbers.split_once(',')?;
        let scope = Self::new(faults.parse().ok()?, window.parse().ok()?);
        Some(Self { first, ..scope })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { faults, window, .. } = self;
        write!(f, "{faults} faults, {window} requests of each end")?;
        if self.first {
            f.write_str(", from the first connection on")?;
        }
        match self.wrong {
            Some(wrong) => write!(f, ", an end that {wrong}"),
            None => Ok(()),
        }
    }
}

/// What each end posts, in this order.
pub const PROGRAMS: [[WrOpcode; 3]; 2] = [
    [
        WrOpcode::Send,
        WrOpcode::RdmaWrite,
        WrOpcode::AtomicFetchAndAdd,
    ],
    [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead],
];

/// What happens next; most of it at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It does what the protocol asks for.
    Act(usize),
    /// It takes in a message.
    Receive(usize),
    /// The program posts its next request.
    Post(usize),
    /// Its next request reaches the peer.
    Execute(usize),
    /// The acknowledgement of its requests arrives.
    Acknowledge(usize),
    /// Nothing else is under way: the next deadline comes.
    Wait,
    /// Its port is active again.
    PortActive(usize),
    Fault(Fault),
}

/// What counts as a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// QP_FATAL.
    Qp(usize),
    /// CQ_ERR, which loses so many of the receives that were consumed.
    Cq(usize, u64),
    /// PORT_ERR.
    Port(usize),
    /// GID_CHANGE.
    Gid(usize),
    /// An acknowledgement is lost, on every retry.
    Acknowledgement(usize),
    /// What the protocol asks for next is disturbed.
    Step(usize, Disturbance),
    /// The exchange breaks: of the messages to each end, so many still arrive.
    Exchange(usize, usize),
    /// The next deadline comes before what is under way between the ends.
    Delay,
    /// The program cancels its oldest request in flight.
    Cancel(usize),
    /// The program closes the link.
    Close(usize),
    /// Another process takes its place.
    Restart(usize),
}

pub struct Links {
    pub scope: Scope,
}

impl Model for Links {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let each = [false, true].into_iter();
        each.map(|new_qp| State::new(&self.scope, new_qp)).collect()
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        state.progress(events);
        state.posts(events);
        state.faults(events);
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        next.take(event, self.scope.wrong);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn never(state: &State, violation: Violation) -> bool {
            state.world.violation() != Some(violation)
        }
        vec![
            Property::always("no request is reported twice", |_, state: &State| {
                never(state, Violation::ReportedTwice)
            }),
            Property::always("no outcome is false", |_, state: &State| {
                never(state, Violation::FalseOutcome)
            }),
            Property::always("no request is executed twice", |_, state: &State| {
                never(state, Violation::ExecutedTwice)
            }),
            Property::always(
                "no request is executed after it was reported",
                |_, state: &State| never(state, Violation::ExecutedAfterReport),
            ),
            Property::always("each step has what it needs", |_, state: &State| {
                never(state, Violation::OutOfOrder)
            }),
            Property::always("a recovery ends within its limits", |_, state: &State| {
                never(state, Violation::TooLate)
            }),
            Property::always(
                "where nothing is left to do both ends agree, and each request has its outcome",
                |_, state: &State| {
                    !state.at_rest() || state.world.agrees() && state.world.all_reported()
                },
            ),
            Property::sometimes("links work again after a fault", |_, state: &State| {
                state.at_rest() && state.world.ended() == [None; 2] && state.recovered()
            }),
            Property::sometimes("a cancelled request is in doubt", |model, state: &State| {
                let all = state.world.ends.iter().flat_map(|end| &end.requests);
                let doubt = Some(Outcome::InDoubt(Doubt::Cancelled));
                model.scope.window == 0 || all.into_iter().any(|known| known.outcome == doubt)
            }),
            Property::sometimes("links end", |_, state: &State| {
                state.at_rest() && state.world.ended() != [None; 2]
            }),
        ]
    }
}
