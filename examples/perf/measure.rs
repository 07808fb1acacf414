//! How much is measured, and the figures that come of it.

use super::bounce::{Bounce, Raw};
use super::clock::Clock;
use super::page::{Order, Page};
use super::stats::{Percentiles, Samples, median};
use super::workload::Workload;
use anyhow::Result;
use bellwire_examples::{Progress, Wait};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rounds: in each of them everything is measured once, so that what disturbs the machine for a
/// while disturbs all alike, and medians leave it out.
pub const ROUNDS: u64 = 11;
/// Round trips of which the time is taken together, for figures without the clock in them.
const BLOCK: u64 = 1000;
/// What of the time goes to the bare bounce, and to blocks of the operation; the rest goes to
/// operations that are timed one by one.
const RAW_SHARE: f64 = 0.2;
const BLOCK_SHARE: f64 = 0.3;
/// How long to warm up when nothing was said.
const WARM: Duration = Duration::from_millis(20);
/// Runs of it at least: one that the system interrupts says nothing of how long operations take.
const WARM_RUNS: u32 = 4;

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Operations, or seconds.
    pub amount: Amount,
    /// Operations before; `None`: for a while.
    pub warmup: Option<u64>,
}

/// Operations, or seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Iters(u64),
    Seconds(f64),
}

impl Amount {
    /// Operations of a round that take this share of the time, if one takes `each` seconds.
    fn of_round(self, share: f64, each: f64) -> u64 {
        let count = match self {
            Self::Iters(iters) => iters.div_ceil(ROUNDS),
            Self::Seconds(seconds) => (seconds * share / ROUNDS as f64 / each) as u64,
        };
        count.max(1)
    }
}

/// Does something a number of times, first to warm up, and returns how many seconds each took, in the run in
/// which they took least.
fn warm(count: Option<u64>, mut run: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let mut now = count.unwrap_or(1).max(1);
    let mut least = f64::INFINITY;
    for runs in 1.. {
        let start = Instant::now();
        run(now)?;
        least = least.min(start.elapsed().as_secs_f64().max(1e-9) / now as f64);
        // A run that took long only because it was interrupted is not the last.
        if count.is_some() || (least * now as f64 > WARM.as_secs_f64() && runs >= WARM_RUNS) {
            break;
        }
        now *= 2;
    }
    Ok(least)
}

/// How long operations take.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// `one_way`: half of a round trip. `operation`: from posting to the completion.
    pub kind: &'static str,
    /// Operations timed one by one, nanoseconds; a reading of the clock is in each (in `one_way`,
    /// half of one).
    pub single: Percentiles,
    /// Operations timed by the thousand, nanoseconds: the median round's median block.
    pub block_ns: f64,
    /// The bare bounce of a cache line, measured the same way in between: one way, nanoseconds.
    pub bounce_ns: f64,
    /// `block_ns` over `bounce_ns`.
    pub ratio: f64,
    /// Each round's medians.
    pub rounds: Vec<Round>,
    /// Quantiles and nanoseconds, for the plot.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
    /// Nanoseconds, and how many operations took so long, for the plot.
    #[serde(skip)]
    pub counts: Vec<(f64, u64)>,
}

/// A round's medians, nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    pub block_ns: f64,
    pub bounce_ns: f64,
}

/// One end's part in a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What it shares with the other end.
    pub page: &'a Page,
    pub wait: Wait<'a>,
    /// `None`: it follows.
    pub lead: Option<Lead<'a>>,
}

/// What the end that leads measures with.
#[derive(Clone, Copy, Debug)]
pub struct Lead<'a> {
    pub clock: &'a Clock,
    pub effort: Effort,
    pub progress: &'a Progress,
}

impl Part<'_> {
    fn start(&self, order: Order) -> Result<()> {
        Ok(self.page.start(order, self.wait)?)
    }

    fn next(&self, idle: impl FnMut()) -> Result<Order> {
        Ok(self.page.next(self.wait, idle)?)
    }
}

/// Measures an operation's latency against the bare bounce, in turns. The end that leads has figures
/// of it.
pub fn latency<B: Bounce>(part: Part<'_>, mut ours: B, one_way: bool) -> Result<Option<Latency>> {
    let [leaders, followers] = &part.page.bounce;
    if let Some(lead) = part.lead {
        let raw = Raw::new(leaders, followers, part.wait);
        return lead_latency(part, lead, raw, ours, one_way).map(Some);
    }
    let mut raw = Raw::new(followers, leaders, part.wait);
    loop {
        match part.next(|| ours.idle())? {
            Order::Raw(count) => (0..count).try_for_each(|_| raw.pong())?,
            Order::Op(count) => (0..count).try_for_each(|_| ours.pong())?,
            Order::End => return Ok(None),
        }
    }
}

fn lead_latency<B: Bounce>(
    part: Part<'_>,
    lead: Lead<'_>,
    mut raw: Raw<'_>,
    mut ours: B,
    one_way: bool,
) -> Result<Latency> {
    let Lead {
        clock,
        effort: Effort { amount, warmup },
        progress,
    } = lead;
    let share = if one_way { 0.5 } else { 1.0 };
    let each_raw = warm(None, |count| {
        part.start(Order::Raw(count))?;
        trips(&mut raw, count)
    })?;
    let each = warm(warmup, |count| {
        part.start(Order::Op(count))?;
        trips(&mut ours, count)
    })?;
    let raw_count = match amount {
        Amount::Iters(_) => BLOCK * 10,
        Amount::Seconds(_) => amount.of_round(RAW_SHARE, each_raw),
    };
    let block_count = amount.of_round(BLOCK_SHARE, each);
    let single_count = amount.of_round(1.0 - RAW_SHARE - BLOCK_SHARE, each);

    let mut samples = Samples::new();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        part.start(Order::Raw(raw_count))?;
        let bounce = blocks(raw_count, || raw.ping())?;
        part.start(Order::Op(block_count))?;
        let block = blocks(block_count, || ours.ping())?;
        rounds.push(Round {
            block_ns: block * share,
            bounce_ns: bounce * 0.5,
        });
        part.start(Order::Op(single_count))?;
        for _ in 0..single_count {
            let from = clock.now();
            ours.ping()?;
            samples.record(clock.now().wrapping_sub(from));
        }
        progress.add(1);
    }
    part.start(Order::End)?;
    let of_rounds = |what: fn(&Round) -> f64| median(&rounds.iter().map(what).collect::<Vec<_>>());
    let block_ns = of_rounds(|round| round.block_ns);
    let bounce_ns = of_rounds(|round| round.bounce_ns);
    let scale = clock.tick * share;
    Ok(Latency {
        kind: if one_way { "one_way" } else { "operation" },
        single: samples.percentiles(scale),
        block_ns,
        bounce_ns,
        ratio: block_ns / bounce_ns,
        rounds,
        curve: samples.curve(scale),
        counts: samples.counts(scale),
    })
}

fn trips<B: Bounce>(bounce: &mut B, count: u64) -> Result<()> {
    (0..count).try_for_each(|_| bounce.ping())
}

/// Does something `count` times and gives the nanoseconds of one: the median over blocks.
fn blocks(count: u64, mut one: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut means = Vec::with_capacity(count.div_ceil(BLOCK) as usize);
    let mut left = count;
    while left != 0 {
        // The remainder joins the last block.
        let now = if left < 2 * BLOCK { left } else { BLOCK };
        let start = Instant::now();
        for _ in 0..now {
            one()?;
        }
        means.push(start.elapsed().as_nanos() as f64 / now as f64);
        left -= now;
    }
    Ok(median(&means))
}

/// How many operations there are in a second.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Messages in all.
    pub messages: u64,
    /// Messages a second: the median round.
    pub per_second: f64,
    /// Payload bytes a second: the median round.
    pub bytes_per_second: f64,
    /// Messages a second, of each round.
    pub rounds: Vec<f64>,
}

/// Measures the rate of `run`, which sends so many messages each way.
pub fn rate(
    part: Part<'_>,
    lead: Lead<'_>,
    work: &Workload,
    mut run: impl FnMut(u64) -> Result<()>,
) -> Result<Rate> {
    let ways = work.ways();
    let Effort { amount, warmup } = lead.effort;
    let each = warm(warmup, |count| {
        part.start(Order::Op(count))?;
        run(count)
    })?;
    let count = amount.of_round(1.0, each);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        part.start(Order::Op(count))?;
        let start = Instant::now();
        run(count)?;
        rounds.push((count * ways) as f64 / start.elapsed().as_secs_f64().max(1e-9));
        lead.progress.add(1);
    }
    part.start(Order::End)?;
    let per_second = median(&rounds);
    Ok(Rate {
        messages: count * ways * ROUNDS,
        per_second,
        bytes_per_second: per_second * work.size as f64,
        rounds,
    })
}

/// The other end of [`rate`]: does its part of so many messages, and `idle` while there are none.
pub fn keep_up<T>(
    part: Part<'_>,
    end: &mut T,
    mut run: impl FnMut(&mut T, u64) -> Result<()>,
    mut idle: impl FnMut(&mut T),
) -> Result<()> {
    loop {
        match part.next(|| idle(end))? {
            Order::Op(count) => run(end, count)?,
            Order::Raw(_) => {}
            Order::End => return Ok(()),
        }
        part.page.done();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_spread_over_the_rounds() {
        assert_eq!(Amount::Iters(1100).of_round(0.5, 1.0), 100);
        assert_eq!(Amount::Iters(1).of_round(0.5, 1.0), 1);
    }

    #[test]
    fn seconds_become_iterations() {
        assert_eq!(Amount::Seconds(11.0).of_round(0.5, 1e-3), 500);
        assert_eq!(Amount::Seconds(0.001).of_round(0.5, 1.0), 1);
    }

    #[test]
    fn blocks_cover_the_count() {
        for count in [1, 999, 1000, 1001, 1999, 2000, 2001, 5500] {
            let mut done = 0;
            let each = blocks(count, || {
                done += 1;
                Ok(())
            });
            assert_eq!(done, count);
            assert!(each.unwrap() >= 0.0);
        }
    }

    #[test]
    fn warming_up_does_what_was_said() {
        let mut done = 0;
        let mut add = |count| {
            done += count;
            Ok(())
        };
        assert!(warm(Some(7), &mut add).unwrap() > 0.0);
        assert_eq!(done, 7);
    }
}
