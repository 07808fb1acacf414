//! A descriptor that becomes readable at a given time.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// A timerfd(2).
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Makes the descriptor readable from this time on, and not before; `None`: never.
    pub fn set(&self, at: Option<Instant>) {
        let it_value = match at {
            // Zero would disarm the timer.
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()).max(1),
                }
            }
            None => Timespec::default(),
        };
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        // The call fails for invalid times only, and this one is valid.
        let _set = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec);
    }

    /// Makes the descriptor not readable until the timer expires again.
    pub fn silence(&self) {
        let _counted = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
