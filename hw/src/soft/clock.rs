//! The device's time: the machine's, or one that only moves when told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How a software HCA tells the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockKind {
    /// The machine's monotonic clock.
    #[default]
    Real,
    /// Stands still until [`Device::advance`](crate::Device::advance). With one thread and inline
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

    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Moves a virtual clock on to `time`, if it is not there yet. Under the device's lock.
    pub fn set(&self, time: u64) {
        if let Self::Virtual(now) = self {
            // Relaxed: as above.
            now.fetch_max(time, Ordering::Relaxed);
        }
    }
}
