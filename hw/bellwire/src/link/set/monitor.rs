//! What other threads read of a set.

use super::super::monitor::LinkSetMonitor;
use super::LinkSet;
use crate::cq::Cq;

impl LinkSet {
    /// A monitor, by which any thread reads the counters of the set and of its links: see
    /// [`monitor`](crate::monitor). From the first one on, the requests of all links are counted by operation.
    pub fn monitor(&mut self) -> LinkSetMonitor {
        if !self.published.counts() {
            self.published.count();
            let ids: Vec<_> = self.slots.ids().collect();
            for id in ids {
                if let Some(joined) = self.slots.get_mut(id) {
                    joined.member.monitor();
                }
            }
        }
        LinkSetMonitor(self.published.clone())
    }

    /// Brings what monitors read up to date, of a few links each time.
    pub(super) fn count(&mut self) {
        if !self.published.counts() {
            return;
        }
        let cqs = self.queues.iter().filter_map(|queue| queue.cq.as_ref());
        self.published.set_stale(cqs.map(Cq::stale).sum());
        let links = self.slots.capacity() as u32;
        for _ in 0..self.init.links_per_poll.min(links) {
            if let Some((_, joined)) = self.slots.at(self.counted) {
                joined.member.count();
                if let Some(state) = joined.member.here() {
                    state.published.set_held(joined.held.count);
                }
            }
            self.counted = match self.counted + 1 < links {
                true => self.counted + 1,
                false => 0,
            };
        }
    }
}
