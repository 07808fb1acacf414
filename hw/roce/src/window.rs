//! How many packets a requester has under way: as TCP's congestion window, counted in packets.
//!
//! It doubles for each window that arrives whole until the first loss, and grows by one packet for each from then on.
//! It shrinks by half at a loss or a notification of congestion, once for all packets that are under way then. At a
//! time-out it shrinks to [`LEAST`].

use crate::psn::Psn;

/// Packets at the least: with fewer, an acknowledgement that waits for a second packet would be late.
pub(crate) const LEAST: u32 = 2;

/// Packets at the most: 16 MiB at the largest MTU, and far below half of all numbers.
pub(crate) const MOST: u32 = 4096;

/// Packets at the start.
const START: u32 = 32;

#[derive(Debug)]
pub(crate) struct Window {
    /// Packets that may be under way.
    size: u32,
    /// Up to this size it doubles.
    threshold: u32,
    /// Packets that arrived since it grew by one.
    arrived: u32,
    /// A loss before this number was answered already.
    answered: Option<Psn>,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self {
            size: START,
            threshold: MOST,
            arrived: 0,
            answered: None,
        }
    }

    /// Packets that may be under way.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// So many packets arrived; the first that did not is `first`.
    pub(crate) fn acknowledged(&mut self, packets: u32, first: Psn) {
        if self.answered.is_some_and(|end| first.since(end) >= 0) {
            self.answered = None;
        }
        if self.size < self.threshold {
            self.size = (self.size + packets).min(MOST);
            return;
        }
        self.arrived += packets;
        if self.arrived >= self.size {
            self.arrived -= self.size;
            self.size = (self.size + 1).min(MOST);
        }
    }

    /// A packet was lost, or met congestion, when all before `end` had been sent.
    pub(crate) fn lost(&mut self, end: Psn) {
        if self.answered.is_none() {
            self.answered = Some(end);
            self.shrink(self.size / 2);
        }
    }

    /// Nothing arrived for as long as an acknowledgement may take.
    pub(crate) fn timed_out(&mut self, end: Psn) {
        let half = self.size / 2;
        self.answered = Some(end);
        self.shrink(LEAST);
        self.threshold = half.max(LEAST);
    }

    fn shrink(&mut self, size: u32) {
        self.size = size.max(LEAST);
        self.threshold = self.size;
        self.arrived = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_until_a_loss_and_grows_slowly_afterwards() {
        let mut window = Window::new();
        window.acknowledged(32, Psn::new(32));
        assert_eq!(window.size(), 64);
        window.lost(Psn::new(96));
        assert_eq!(window.size(), 32);
        // Of the same packets.
        window.lost(Psn::new(96));
        assert_eq!(window.size(), 32);
        window.acknowledged(31, Psn::new(63));
        assert_eq!(window.size(), 32);
        window.acknowledged(1, Psn::new(64));
        assert_eq!(window.size(), 33);
        // All that were under way have arrived: the next loss is another one.
        window.acknowledged(32, Psn::new(96));
        window.lost(Psn::new(128));
        assert_eq!(window.size(), 16);
    }

    #[test]
    fn it_has_bounds() {
        let mut window = Window::new();
        let mut psn = Psn::new(0xff_fff0);
        for _ in 0..1000 {
            let size = window.size();
            psn = psn.plus(size);
            window.acknowledged(size, psn);
        }
        assert_eq!(window.size(), MOST);
        for _ in 0..20 {
            window.timed_out(psn);
        }
        assert_eq!(window.size(), LEAST);
        window.acknowledged(LEAST, psn);
        assert!(window.size() > LEAST);
    }
}
