//! Waiting for the other end, a thread or a process, without sleeping.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks between two looks at the alarm.
const ALARM: u32 = 1 << 12;
/// Looks before the processor is offered to others even if each thread has one: about a millisecond.
const PATIENCE: u32 = 1 << 20;

/// Raised when a thread ends early, so that the other does not wait for it for ever.
#[derive(Debug)]
pub struct Alarm<'a> {
    raised: &'a AtomicBool,
    armed: bool,
}

impl<'a> Alarm<'a> {
    /// Is raised when it is dropped, be it by an error or a panic, unless disarmed before.
    pub fn new(raised: &'a AtomicBool) -> Self {
        Self {
            raised,
            armed: true,
        }
    }

    /// All went well.
    pub fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if self.armed {
            // Relaxed: a flag on its own.
            self.raised.store(true, Ordering::Relaxed);
        }
    }
}

/// Says whether the other end has ended early.
pub trait Gone: fmt::Debug + Sync {
    /// Whether it has. Once it has, it stays so.
    fn is_gone(&self) -> bool;
}

/// What another thread's [`Alarm`] raises.
impl Gone for AtomicBool {
    fn is_gone(&self) -> bool {
        // Relaxed: a flag on its own.
        self.load(Ordering::Relaxed)
    }
}

/// The other end has ended early; it has the reason.
#[derive(Clone, Copy, Debug)]
pub struct PeerGone;

impl fmt::Display for PeerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other end has stopped")
    }
}

impl std::error::Error for PeerGone {}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// There are fewer processors than threads that poll: offer the processor after each look.
    pub crowded: bool,
    /// Whether there still is somebody to wait for.
    pub gone: &'a dyn Gone,
}

impl Wait<'_> {
    /// Looks again and again until there is something.
    ///
    /// # Errors
    /// [`PeerGone`] when the other end has ended early.
    #[inline(always)]
    pub fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> Result<T, PeerGone> {
        let mut looks = 0u32;
        let mut gone = false;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            // Looked at after that: what it left behind counts.
            if gone {
                return Err(PeerGone);
            }
            // Or the processor looks ahead several times, and discards all of that when the line changes.
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if self.crowded || looks.is_multiple_of(ALARM) {
                gone = self.pause(looks);
            }
        }
    }

    /// Whether the other end has gone.
    #[cold]
    fn pause(&self, looks: u32) -> bool {
        if self.crowded || looks > PATIENCE {
            std::thread::yield_now();
        }
        self.gone.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_raises_the_alarm_and_ends_the_wait() {
        let gone = AtomicBool::new(false);
        let wait = Wait {
            crowded: true,
            gone: &gone,
        };
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let _alarm = Alarm::new(&gone);
                panic!("on purpose");
            });
            assert!(wait.until(|| None::<()>).is_err());
            assert!(peer.join().is_err());
        });
    }

    #[test]
    fn a_good_end_raises_nothing() {
        let gone = AtomicBool::new(false);
        Alarm::new(&gone).disarm();
        assert!(!gone.into_inner());
    }
}
