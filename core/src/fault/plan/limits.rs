//! Limits on the duration and the attempts of a recovery.

use super::Step;
use core::time::Duration;

/// Limits of a recovery. Together they give its longest duration: [`max_duration`](Self::max_duration).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Maximum number of attempts, including the first; at least one. Also the maximum number of runs caused
    /// by a device or the network that may follow one another within [`settle`](Self::settle). Recovered
    /// faults that a program caused, for example by a bad request, are not counted: each of them retires its
    /// request.
    pub attempts: u32,
    /// Maximum total duration, with every attempt and every delay: after it the recovery is given up,
    /// whatever the deadlines below allow. (If only steps remain that the queue pair works without, the
    /// recovery ends degraded instead.)
    pub recovery: Duration,
    /// How long the connection must work after a recovery before the earlier faults are forgotten.
    pub settle: Duration,
    /// Deadline of [`Step::Drain`] and [`Step::DrainSend`].
    pub drain: Duration,
    /// Deadline of [`Step::AwaitLastWqe`].
    pub last_wqe: Duration,
    /// Deadline of [`Step::AwaitTimewait`].
    pub timewait: Duration,
    /// Deadline of [`Step::AwaitPort`]: after it the recovery is given up.
    pub port: Duration,
    /// Deadline of [`Step::Exchange`]. It should be longer than the peer's longest
    /// [`backoff_max`](Self::backoff_max), drain and rebuild together.
    pub exchange: Duration,
    /// Deadline of [`Step::Ready`].
    pub ready: Duration,
    /// Deadline of every other step, and of all steps of giving up together.
    pub step: Duration,
    /// Delay before the second attempt; it doubles with each further attempt.
    pub backoff_first: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
    /// Seed of the jitter: the two ends should use different seeds.
    pub seed: u64,
}

impl Default for Limits {
    /// [`max_duration`](Self::max_duration) is 20 s: a storage engine whose requests are given up by the layers above after
    /// 30 s (SCSI commands on Linux) has the outcome by then, and time to use another path. Within this there
    /// are eight attempts with delays of 1 ms to 1 s; a peer has 5 s to reply, a port 10 s to come back.
    fn default() -> Self {
        Self {
            attempts: 8,
            recovery: Duration::from_secs(18),
            settle: Duration::from_secs(1),
            drain: Duration::from_secs(1),
            last_wqe: Duration::from_millis(500),
            timewait: Duration::from_secs(5),
            port: Duration::from_secs(10),
            exchange: Duration::from_secs(5),
            ready: Duration::from_secs(2),
            step: Duration::from_secs(2),
            backoff_first: Duration::from_millis(1),
            backoff_max: Duration::from_secs(1),
            seed: 0,
        }
    }
}

impl Limits {
    /// Deadline of a step, counted from when the plan first returns it.
    pub const fn deadline(&self, step: Step) -> Duration {
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

    /// The longest time from the fault that begins a recovery until everything works again, or the recovery
    /// has been given up and every outcome is ready to be reported. It holds in all cases, provided that
    /// [`Plan::next`](super::Plan::next) is called without delay and no step blocks. 20 s by default.
    pub const fn max_duration(&self) -> Duration {
        self.recovery.saturating_add(self.step)
    }

    /// The delay before attempt `attempt`, counted from one: between half and all of the nominal delay, as
    /// `random` determines.
    pub(super) fn backoff(&self, attempt: u32, random: u64) -> Duration {
        let doublings = attempt.saturating_sub(2).min(31);
        let whole = self
            .backoff_first
            .saturating_mul(1 << doublings)
            .min(self.backoff_max);
        let half = whole / 2;
        // 16 random bits are sufficient for jitter.
        half + half * (random as u16).into() / u32::from(u16::MAX)
    }
}
