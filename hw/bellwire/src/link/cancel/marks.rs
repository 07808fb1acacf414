//! Marks and deadlines of requests: by their counters while they are in a ring, and with each request that the link
//! holds itself.

use super::super::monitor::Published;
use super::CancelError;
use crate::pinned::defaults;
use crate::qp::Qp;
use bellwire_core::fault::outcome::Doubt;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// The queue of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Side {
    Send,
    Receive,
}

/// When a request is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum When {
    Now,
    /// At this device time.
    At(Duration),
    /// The program has the answer to it: this ends the exchange of a request with a grant.
    Answered,
}

/// How a call takes requests back.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum How {
    Now,
    Within(Duration),
    /// See [`When::Answered`].
    Answered,
}

impl How {
    /// When that is; `now` returns the device's time.
    pub fn at(self, now: impl FnOnce() -> Duration) -> When {
        match self {
            Self::Now => When::Now,
            Self::Within(within) => When::At(now().saturating_add(within)),
            Self::Answered => When::Answered,
        }
    }
}

/// Requests to be taken back: each of this identifier, or the last one if there is a deadline.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TakeBack {
    pub side: Side,
    pub wr_id: u64,
    pub when: When,
}

/// What a request in the link's own lists knows of being taken back.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Taking {
    /// It is taken back, for this reason.
    pub why: Option<Doubt>,
    /// It is taken back then.
    pub deadline: Option<Duration>,
}

impl Taking {
    /// Takes in an order. Returns whether it changes anything.
    pub(super) fn order(&mut self, when: When) -> bool {
        if self.why.is_some() {
            return false;
        }
        match when {
            When::Now => self.why = Some(Doubt::Cancelled),
            When::At(at) => self.deadline = Some(at),
            When::Answered => return false,
        }
        true
    }

    /// Takes in a deadline that has passed, and counts it. Returns whether the request is taken back.
    pub fn is_due(&mut self, now: Duration, published: &Published) -> bool {
        if self.why.is_none() && self.deadline.is_some_and(|at| at <= now) {
            self.why = Some(Doubt::DeadlinePassed);
            published.deadlines_passed(1);
        }
        self.why.is_some()
    }
}

/// Counters of the requests of a queue that are not reported.
#[derive(Clone, Copy, Debug)]
struct Span {
    oldest: u32,
    behind: u32,
}

impl Span {
    fn of(qp: &mut Qp, side: Side) -> Self {
        let (behind, taken) = match side {
            Side::Send => {
                let sq = qp.sq();
                (sq.counter(), sq.slots() - sq.free_blocks())
            }
            Side::Receive => {
                let rq = qp.rq();
                (rq.counter(), rq.slots() - rq.free())
            }
        };
        Self {
            oldest: behind.wrapping_sub(taken),
            behind,
        }
    }

    fn contains(self, counter: u32) -> bool {
        counter.wrapping_sub(self.oldest) < self.behind.wrapping_sub(self.oldest)
    }
}

/// The requests of one queue that are to be taken back.
#[derive(Debug, Default)]
pub(in super::super) struct Marks {
    /// By counter.
    marked: HashMap<u32, Doubt>,
    /// By slot, with the counter of the request. Empty until the first deadline.
    deadlines: Box<[(u32, Option<Duration>)]>,
    /// No deadline comes before it.
    earliest: Option<Duration>,
}

impl Marks {
    /// The deadline and the cancellation of the request at this counter.
    pub fn taking(&self, counter: u32) -> Taking {
        let slot = counter as usize & self.deadlines.len().wrapping_sub(1);
        let deadline = self.deadlines.get(slot).filter(|(at, _)| *at == counter);
        Taking {
            why: self.marked.get(&counter).copied(),
            deadline: deadline.and_then(|(_, deadline)| *deadline),
        }
    }

    /// Takes in an order for the request at this counter. Returns whether it changes anything.
    pub(super) fn order(&mut self, counter: u32, when: When) -> bool {
        if self.marked.contains_key(&counter) {
            return false;
        }
        match when {
            When::Now => _ = self.marked.insert(counter, Doubt::Cancelled),
            When::At(at) => self.set(counter, at),
            When::Answered => return false,
        }
        true
    }

    /// Makes room for the deadlines of a queue with so many slots.
    pub(super) fn make_room(&mut self, slots: usize) -> Result<(), CancelError> {
        if self.deadlines.is_empty() {
            let slots = slots.next_power_of_two();
            self.deadlines = defaults(slots).map_err(|_| CancelError::NoMemory)?;
        }
        Ok(())
    }

    /// Sets the deadline of the request at this counter. There is room: the first call that set a deadline made it.
    pub fn set(&mut self, counter: u32, at: Duration) {
        let slot = counter as usize & self.deadlines.len().wrapping_sub(1);
        if let Some(place) = self.deadlines.get_mut(slot) {
            *place = (counter, Some(at));
            self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        }
    }

    /// Marks the requests whose deadlines have passed, and counts them. Returns whether a marked one is still in flight.
    fn check(&mut self, span: impl FnOnce() -> Span, now: Duration, count: &mut u64) -> bool {
        let passed = self.earliest.is_some_and(|at| at <= now);
        if !passed && self.marked.is_empty() {
            return false;
        }
        let span = span();
        if passed {
            self.earliest = None;
            for (counter, deadline) in &mut self.deadlines {
                let Some(at) = deadline.take_if(|at| *at <= now || !span.contains(*counter)) else {
                    self.earliest = self.earliest.into_iter().chain(*deadline).min();
                    continue;
                };
                if at <= now
                    && span.contains(*counter)
                    && let Entry::Vacant(place) = self.marked.entry(*counter)
                {
                    place.insert(Doubt::DeadlinePassed);
                    *count += 1;
                }
            }
        }
        self.marked.retain(|counter, _| span.contains(*counter));
        !self.marked.is_empty()
    }

    /// The queue has begun another life.
    fn renew(&mut self) {
        self.marked.clear();
        if self.earliest.take().is_some() {
            self.deadlines.fill((0, None));
        }
    }
}

/// The requests of a link's queues that are to be taken back.
#[derive(Debug, Default)]
pub(in super::super) struct Cancels {
    pub sends: Marks,
    pub receives: Marks,
}

impl Cancels {
    pub(super) fn of(&mut self, side: Side) -> &mut Marks {
        match side {
            Side::Send => &mut self.sends,
            Side::Receive => &mut self.receives,
        }
    }

    /// Takes in deadlines that have passed, and counts them. Returns whether the queue pair has a request that is
    /// taken back.
    pub fn check(&mut self, qp: &mut Qp, now: Duration, published: &Published) -> bool {
        let mut passed = 0;
        let sends = (self.sends).check(|| Span::of(qp, Side::Send), now, &mut passed);
        let receives = (self.receives).check(|| Span::of(qp, Side::Receive), now, &mut passed);
        published.deadlines_passed(passed);
        sends || receives
    }

    /// Whether a request waits to be taken back at the next check.
    pub fn wait(&self) -> bool {
        !(self.sends.marked.is_empty() && self.receives.marked.is_empty())
    }

    /// The device time of the next deadline, or an earlier one.
    pub fn next(&self) -> Option<Duration> {
        let deadlines = [self.sends.earliest, self.receives.earliest];
        deadlines.into_iter().flatten().min()
    }

    /// The queue pair was reset or replaced.
    pub fn renew(&mut self) {
        self.sends.renew();
        self.receives.renew();
    }
}
