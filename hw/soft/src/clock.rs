//! The device's clock: the machine's, or a virtual one that is advanced by calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Which clock a software HCA uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockKind {
    /// The machine's monotonic clock.
    #[default]
    Real,
    /// Stands still until `SoftDevice::advance`. With a single thread and inline execution, everything that
    /// the device does is then deterministic.
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

    /// Nanoseconds since the device was created.
    pub fn now(&self) -> u64 {
        match self {
            Self::Real(start) => start.elapsed().as_nanos() as u64,
            // Relaxed: the time orders no other data; what depends on it is under the device's lock.
            Self::Virtual(now) => now.load(Ordering::Relaxed),
        }
    }

    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Advances a virtual clock to `time`, if it is earlier. Under the device's lock.
    pub fn set(&self, time: u64) {
        if let Self::Virtual(now) = self {
            // Relaxed: the time orders no other data.
            now.fetch_max(time, Ordering::Relaxed);
        }
    }
}
