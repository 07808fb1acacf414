//! How long and how often.

use super::Step;
use core::time::Duration;

/// Bounds of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How often it is tried, the first time included; at least one. Also how many runs may follow one
    /// another within [`settle`](Self::settle).
    pub attempts: u32,
    /// How long a recovery has to last for the faults before it to be forgotten.
    pub settle: Duration,
    /// Deadline of [`Step::Drain`] and [`Step::DrainSend`].
    pub drain: Duration,
    /// Deadline of [`Step::AwaitLastWqe`].
    pub last_wqe: Duration,
    /// Deadline of [`Step::AwaitTimewait`].
    pub timewait: Duration,
    /// Deadline of [`Step::AwaitPort`]: past it the recovery is given up.
    pub port: Duration,
    /// Deadline of [`Step::Exchange`]. To be longer than the peer's longest
    /// [`backoff_max`](Self::backoff_max), drain and rebuild.
    pub exchange: Duration,
    /// Deadline of [`Step::Ready`].
    pub ready: Duration,
    /// Deadline of every other step.
    pub step: Duration,
    /// Delay before the second attempt; it doubles with each.
    pub backoff_first: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
    /// Seed of the jitter: two ends should not have the same.
    pub seed: u64,
}

impl Default for Limits {
    /// Eight attempts; drain and ready within 2 s, a port within 30 s, an exchange within 10 s; delays
    /// of 1 ms to 1 s.
    fn default() -> Self {
        Self {
            attempts: 8,
            settle: Duration::from_secs(1),
            drain: Duration::from_secs(2),
            last_wqe: Duration::from_millis(500),
            timewait: Duration::from_secs(5),
            port: Duration::from_secs(30),
            exchange: Duration::from_secs(10),
            ready: Duration::from_secs(2),
            step: Duration::from_secs(2),
            backoff_first: Duration::from_millis(1),
            backoff_max: Duration::from_secs(1),
            seed: 0,
        }
    }
}

/// Kinds of faults, each of which may interrupt a pass once without counting as an attempt.
pub(super) const FREE_PASSES: u32 = 7;

impl Limits {
    /// Deadline of a step, from when it is first named.
    pub const fn of(&self, step: Step) -> Duration {
        match step {
            Step::Drain | Step::DrainSend => self.drain,
            Step::AwaitLastWqe => self.last_wqe,
            Step::AwaitTimewait => self.timewait,
            Step::AwaitPort => self.port,
            Step::Exchange => self.exchange,
            Step::Ready => self.ready,
            _ => self.step,
        }
    }

    /// The longest time from the first fault to the end, whatever happens, if the plan is asked
    /// without delay.
    pub fn bound(&self) -> Duration {
        let pass: Duration = Step::ALL.iter().map(|&step| self.of(step)).sum();
        let passes = self.attempts.max(1) + FREE_PASSES;
        let sides = 3 * self.attempts.max(1) * (self.step + self.backoff_max);
        // The last pass is the one that closes.
        (passes + 1) * (pass + self.backoff_max) + sides
    }

    /// The delay before attempt `attempt`, counted from one: between half of it and the whole,
    /// `random` says where.
    pub(super) fn backoff(&self, attempt: u32, random: u64) -> Duration {
        let doublings = attempt.saturating_sub(2).min(31);
        let whole = self
            .backoff_first
            .saturating_mul(1 << doublings)
            .min(self.backoff_max);
        let half = whole / 2;
        // 16 bits of it are jitter enough.
        half + half * (random as u16).into() / u32::from(u16::MAX)
    }
}
