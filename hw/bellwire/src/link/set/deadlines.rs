//! When the links that wait have to be looked at: the first time is found at once, however many there are.

use super::super::state::RecoveryState;
use super::LinkId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The times of a link that waits. They change only when it is looked at, or has something that wakes the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Of its protocol, by the device's clock.
    device: Option<Duration>,
    /// Of its exchange.
    exchange: Option<Instant>,
}

impl Due {
    pub fn of(state: &RecoveryState) -> Self {
        let peer = (!state.protocol.peer_gone()).then_some(&state.peer);
        Self {
            device: state.deadline(),
            exchange: peer.and_then(|peer| peer.deadline()),
        }
    }
}

/// The times of all links, in order.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    device: BTreeSet<(Duration, LinkId)>,
    exchanges: BTreeSet<(Instant, LinkId)>,
}

impl Deadlines {
    /// Replaces the times of a link.
    pub fn replace(&mut self, id: LinkId, before: Due, after: Due) {
        if before.device != after.device {
            before.device.map(|at| self.device.remove(&(at, id)));
            after.device.map(|at| self.device.insert((at, id)));
        }
        if before.exchange != after.exchange {
            before.exchange.map(|at| self.exchanges.remove(&(at, id)));
            after.exchange.map(|at| self.exchanges.insert((at, id)));
        }
    }

    /// Links whose time has come, up to a limit of each clock's; `now` is the device's time. They stay listed
    /// until they have been looked at.
    pub fn due(&self, now: Duration, limit: usize) -> Vec<LinkId> {
        let here = Instant::now();
        let device = self.device.iter().take(limit);
        let device = device.take_while(|(at, _)| *at <= now).map(|(_, id)| *id);
        let exchanges = self.exchanges.iter().take(limit);
        let exchanges = exchanges.take_while(|(at, _)| *at <= here);
        device.chain(exchanges.map(|(_, id)| *id)).collect()
    }

    /// How long until the first; `now` is the device's time.
    pub fn time_left(&self, now: Duration) -> Option<Duration> {
        let device = self.device.first().map(|(at, _)| at.saturating_sub(now));
        let exchange = self.exchanges.first();
        let exchange = exchange.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        device.into_iter().chain(exchange).min()
    }
}
