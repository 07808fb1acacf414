//! What happened, in numbers.

use super::lent::Lending;
use super::request::Request;
use bellwire::fault::outcome::Outcome;
use bellwire::link::{Counters, LinkCompletion, LinkEnd, LinkState};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub schedules: u64,
    pub requests: u64,
    pub receives: u64,
    pub faults_ordered: u64,
    pub faults_met: u64,
    pub recovered: u64,
    pub replayed: u64,
    pub talks: u64,
    /// Requests that were cancelled, or given a deadline, in time.
    pub cancelled: u64,
    pub longest: Duration,
    /// States at the end of a schedule, before it was closed: how many, and in which schedule first.
    pub states: BTreeMap<String, (u64, u64)>,
    /// Requests by outcome and operation.
    pub outcomes: BTreeMap<(String, &'static str), u64>,
    /// Exchanges for which memory was lent: answered, in doubt, others.
    pub lent: [u64; 3],
    /// Of those in doubt: how many were executed.
    pub doubts_executed: u64,
}

impl Tally {
    pub fn completed(&mut self, completion: &LinkCompletion) {
        self.receives += u64::from(completion.is_recv());
    }

    pub fn state(&mut self, state: LinkState, seed: u64) {
        let name = match state {
            LinkState::Recovering => "recovering".to_owned(),
            LinkState::Ready => "ready".to_owned(),
            LinkState::Ended(LinkEnd::Closed) => "closed".to_owned(),
            LinkState::Ended(LinkEnd::GaveUp { why, .. }) => format!("gave up: {why}"),
        };
        self.states.entry(name).or_insert((0, seed)).0 += 1;
    }

    pub fn outcome(&mut self, request: &Request) {
        self.requests += 1;
        let outcome = match request.outcome {
            None => "(by a later one)".to_owned(),
            Some(Outcome::Failed(_)) => "Failed".to_owned(),
            Some(Outcome::InDoubt(doubt)) => {
                self.doubts_executed += u64::from(request.executed > 0);
                format!("InDoubt({doubt:?})")
            }
            Some(outcome) => format!("{outcome:?}"),
        };
        *self
            .outcomes
            .entry((outcome, request.kind.name()))
            .or_default() += 1;
    }

    pub fn lent(&mut self, lending: &Lending) {
        for outcome in lending.outcomes() {
            self.lent[match outcome {
                Outcome::Done => 0,
                Outcome::InDoubt(_) => 1,
                _ => 2,
            }] += 1;
        }
    }

    pub fn recovered(&mut self, counters: &Counters) {
        self.faults_met += counters.faults.iter().sum::<u64>();
        self.recovered += counters.recovered;
        self.replayed += counters.replayed;
        self.longest = self.longest.max(counters.longest);
    }

    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.requests += other.requests;
        self.receives += other.receives;
        self.faults_ordered += other.faults_ordered;
        self.faults_met += other.faults_met;
        self.recovered += other.recovered;
        self.replayed += other.replayed;
        self.talks += other.talks;
        self.cancelled += other.cancelled;
        self.doubts_executed += other.doubts_executed;
        for (sum, other) in self.lent.iter_mut().zip(other.lent) {
            *sum += other;
        }
        self.longest = self.longest.max(other.longest);
        for (state, &(count, first)) in &other.states {
            let of = self.states.entry(state.clone()).or_insert((0, first));
            *of = (of.0 + count, of.1.min(first));
        }
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome.clone()).or_default() += count;
        }
    }

    /// Requests with an outcome that begins so.
    pub fn count(&self, outcome: &str) -> u64 {
        let of = |((name, _), count): (&(String, &str), &u64)| {
            name.starts_with(outcome).then_some(*count)
        };
        self.outcomes.iter().filter_map(of).sum()
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            schedules,
            requests,
            receives,
            faults_ordered,
            faults_met,
            recovered,
            replayed,
            talks,
            cancelled,
            longest,
            lent: [answered, unanswered, failed],
            ..
        } = self;
        writeln!(
            f,
            "{schedules} schedules: {faults_ordered} faults ordered, {faults_met} met, {recovered} \
             recoveries, the longest of {longest:?} of the device's time\n\
             {requests} sends and {receives} receives reported, {replayed} sends posted again, {cancelled} \
             cancelled or given a deadline, {talks} times a message at the end\n\
             memory lent: {answered} answered, {unanswered} in doubt, {failed} not"
        )?;
        writeln!(f, "\nat the end of the faults:")?;
        for (state, (count, first)) in &self.states {
            writeln!(f, "{count:>10}  {state} (first of seed {first})")?;
        }
        let doubts = self.count("InDoubt");
        writeln!(
            f,
            "\nin doubt: {doubts} of {requests}; {} of them had been executed",
            self.doubts_executed
        )?;
        for ((outcome, kind), count) in &self.outcomes {
            writeln!(f, "{count:>10}  {outcome:<26} {kind}")?;
        }
        Ok(())
    }
}
