//! The device's time: the machine's, or one that only moves when told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a software HCA tells the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockKind {
    /// The machine's monotonic clock.
    #[default]
    Real,
    /// Stands still until [`Hca::advance`](super::Hca::advance). With one thread and inline
    /// execution everything that the device does is then deterministic.
    Virtual,
}

#[derive(Debug)]
pub(super) enum Clock {
    Real(Instant),
    Virtual(AtomicU64),
}

impl Clock {
    pub fn new(kind: ClockKind) -> Self {
        match kind {
            ClockKind::Real => Self::Real(Instant::now()),
            ClockKind::Virtual => Self::Virtual(AtomicU64::new(0)),
        }
    }

    /// Nanoseconds since the device was made.
    pub fn now(&self) -> u64 {
        match self {
            Self::Real(start) => start.elapsed().as_nanos() as u64,
            // Relaxed: a number on its own; what it leads to is under the device's lock.
            Self::Virtual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Moves a virtual clock on; `false` for a real one.
    pub fn advance(&self, by: Duration) -> bool {
        match self {
            Self::Real(_) => false,
            Self::Virtual(now) => {
                // Relaxed: as above.
                now.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
                true
            }
        }
    }
}
