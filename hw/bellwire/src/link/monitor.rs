//! Counters of links and sets that other threads read. The owner stores them off the data path.

use super::counters::Counters;
#[cfg(doc)]
use super::handle::LinkState;
use super::set::LinkId;
use crate::monitor::QueueCounters;
use crate::qp::{Qp, QpMemory};
use bellwire_core::fault::Scope;
use bellwire_core::queue::Tally;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

// Relaxed, in all of this module: each word stands for itself, and one thread at a time writes it. A link that moves
// to another thread is passed on by what synchronises the two.
const ORDER: Ordering = Ordering::Relaxed;

const WORDS: usize = Scope::ALL.len() + 17;

/// [`Counters`] as words.
#[derive(Debug, Default)]
pub(super) struct Cells([AtomicU64; WORDS]);

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Recovering,
    Ready,
    Ended,
}

/// The published part of a link.
#[derive(Debug, Default)]
pub(super) struct Published {
    cells: Cells,
    phase: AtomicU8,
    stale: AtomicU64,
    held: AtomicU32,
    /// Number of the queue pair; the last one, while there is none.
    qpn: AtomicU32,
    /// Requests are counted by operation.
    counts: AtomicBool,
    pub tally: Arc<Tally>,
    /// The memory of the queue pair, which a recovery may replace.
    queues: Mutex<Weak<QpMemory>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Cells {
    /// The counters.
    pub fn read(&self) -> Counters {
        let mut words = self.0.iter().map(|word| word.load(ORDER));
        let mut next = || words.next().unwrap_or_default();
        Counters {
            faults: std::array::from_fn(|_| next()),
            recovered: next(),
            degraded: next(),
            gave_up: next(),
            replayed: next(),
            reposted: next(),
            done: next(),
            failed: next(),
            not_executed: next(),
            in_doubt: next(),
            recv_failed: next(),
            recv_not_executed: next(),
            recv_in_doubt: next(),
            cancelled: next(),
            deadlines_passed: next(),
            last: Duration::from_nanos(next()),
            longest: Duration::from_nanos(next()),
            total: Duration::from_nanos(next()),
        }
    }

    /// Changes the counters; only the link's owner calls this.
    pub fn update<R>(&self, change: impl FnOnce(&mut Counters) -> R) -> R {
        let mut counters = self.read();
        let result = change(&mut counters);
        let Counters {
            faults,
            recovered,
            degraded,
            gave_up,
            replayed,
            reposted,
            done,
            failed,
            not_executed,
            in_doubt,
            recv_failed,
            recv_not_executed,
            recv_in_doubt,
            cancelled,
            deadlines_passed,
            last,
            longest,
            total,
        } = counters;
        let [last, longest, total] = [last, longest, total].map(nanoseconds);
        let others = [
            recovered,
            degraded,
            gave_up,
            replayed,
            reposted,
            done,
            failed,
            not_executed,
            in_doubt,
            recv_failed,
            recv_not_executed,
            recv_in_doubt,
            cancelled,
            deadlines_passed,
            last,
            longest,
            total,
        ];
        let words = faults.into_iter().chain(others);
        for (cell, word) in self.0.iter().zip(words) {
            cell.store(word, ORDER);
        }
        result
    }
}

impl Published {
    pub fn counters(&self) -> Counters {
        self.cells.read()
    }

    /// Changes the counters; only the link's owner calls this.
    pub fn update<R>(&self, change: impl FnOnce(&mut Counters) -> R) -> R {
        self.cells.update(change)
    }

    pub fn deadlines_passed(&self, requests: u64) {
        if requests != 0 {
            self.update(|counters| counters.deadlines_passed += requests);
        }
    }

    /// Returns whether the phase has changed.
    pub fn set_phase(&self, phase: Phase) -> bool {
        let before = self.phase.load(ORDER);
        self.phase.store(phase as u8, ORDER);
        before != phase as u8
    }

    pub fn qp_num(&self) -> u32 {
        self.qpn.load(ORDER)
    }

    pub fn set_stale(&self, stale: u64) {
        self.stale.store(stale, ORDER);
    }

    pub fn set_held(&self, held: u32) {
        self.held.store(held, ORDER);
    }

    /// The link has this queue pair.
    pub fn set_queues(&self, qp: &mut Qp) {
        if self.counts.load(ORDER) {
            qp.count_into(&self.tally);
        }
        self.qpn.store(qp.qp_num(), ORDER);
        *lock(&self.queues) = Arc::downgrade(qp.memory());
    }

    /// Begins to count the requests of a link, which has this queue pair.
    pub fn count(&self, qp: Option<&mut Qp>) {
        self.counts.store(true, ORDER);
        if let Some(qp) = qp {
            qp.count_into(&self.tally);
        }
    }

    fn add_to(&self, sum: &mut QueueCounters) {
        sum.add_tally(&self.tally);
        sum.add_depths(&lock(&self.queues));
    }
}

/// Reads the counters of a link, from any thread: see the [module](crate::monitor). It stays usable when the link is
/// gone, and has its last counters then.
#[derive(Clone, Debug)]
pub struct LinkMonitor(pub(super) Arc<Published>);

impl LinkMonitor {
    /// Faults, recoveries and outcomes; also while a thread recovers the link.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Requests, and depths of the queues.
    pub fn queues(&self) -> QueueCounters {
        let mut queues = QueueCounters::default();
        self.0.add_to(&mut queues);
        queues
    }

    /// Whether it is connected, as [`LinkState::Ready`].
    pub fn is_ready(&self) -> bool {
        self.0.phase.load(ORDER) == Phase::Ready as u8
    }

    /// Whether its connection has ended for good. Outcomes may be left to be reported.
    pub fn has_ended(&self) -> bool {
        self.0.phase.load(ORDER) == Phase::Ended as u8
    }

    /// Late entries that its completion queue dropped, of earlier lives of queues; at the link's last check. 0 for a
    /// link of a set: see [`LinkSetMonitor::stale`].
    pub fn stale(&self) -> u64 {
        self.0.stale.load(ORDER)
    }

    /// Buffers of the set's shared receive queue that its messages hold, at a recent check of the set. 0 without a
    /// limit ([`LinkSetSrq::max_held`](super::LinkSetSrq::max_held)).
    pub fn held(&self) -> u32 {
        self.0.held.load(ORDER)
    }
}

/// The published part of a set.
#[derive(Debug, Default)]
pub(super) struct PublishedSet {
    /// Links that are in the set, by the addresses of their published parts.
    links: Mutex<BTreeMap<usize, (LinkId, Arc<Published>)>>,
    gone: Mutex<(Counters, QueueCounters)>,
    stale: AtomicU64,
    /// Requests are counted by operation.
    counts: AtomicBool,
}

impl PublishedSet {
    pub fn add(&self, id: LinkId, link: &Arc<Published>) {
        lock(&self.links).insert(Arc::as_ptr(link).addr(), (id, link.clone()));
    }

    /// The link is gone: its counters stay in the sums.
    pub fn remove(&self, link: &Arc<Published>) {
        let mut links = lock(&self.links);
        if links.remove(&Arc::as_ptr(link).addr()).is_some() {
            let mut gone = lock(&self.gone);
            gone.0.add(&link.counters());
            gone.1.add_tally(&link.tally);
        }
    }

    pub fn set_stale(&self, stale: u64) {
        self.stale.store(stale, ORDER);
    }

    /// Whether requests are counted by operation.
    pub fn counts(&self) -> bool {
        self.counts.load(ORDER)
    }

    pub fn count(&self) {
        self.counts.store(true, ORDER);
    }
}

/// Reads the counters of a set, from any thread: see the [module](crate::monitor). While it adds up, a join or a
/// removal of a link waits.
#[derive(Clone, Debug)]
pub struct LinkSetMonitor(pub(super) Arc<PublishedSet>);

impl LinkSetMonitor {
    /// The links that are in the set, ended ones included.
    pub fn links(&self) -> Vec<(LinkId, LinkMonitor)> {
        let links = lock(&self.0.links);
        let monitor = |(id, link): &(LinkId, Arc<Published>)| (*id, LinkMonitor(link.clone()));
        links.values().map(monitor).collect()
    }

    /// The sums over all links, removed ones included. [`Counters::last`] and [`Counters::longest`] are the longest of
    /// any link.
    pub fn counters(&self) -> Counters {
        let links = lock(&self.0.links);
        let mut sum = lock(&self.0.gone).0;
        (links.values()).for_each(|(_, link)| sum.add(&link.counters()));
        sum
    }

    /// Requests of all links, removed ones included, and the depths of their queues together.
    pub fn queues(&self) -> QueueCounters {
        let links = lock(&self.0.links);
        let mut sum = lock(&self.0.gone).1;
        (links.values()).for_each(|(_, link)| link.add_to(&mut sum));
        sum
    }

    /// Late entries that the present completion queues dropped, of earlier lives of queues; at the set's last check.
    pub fn stale(&self) -> u64 {
        self.0.stale.load(ORDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_read_as_it_was_stored() {
        let cells = Cells::default();
        let mut expected = Counters::default();
        let changes: [fn(&mut Counters); 5] = [
            |counters| counters.faults[Scope::ALL.len() - 1] = 7,
            |counters| counters.recovered = 8,
            |counters| counters.recv_in_doubt = 9,
            |counters| counters.deadlines_passed = 10,
            |counters| counters.total = Duration::from_nanos(11),
        ];
        for change in changes {
            change(&mut expected);
            cells.update(change);
            assert_eq!(cells.read(), expected);
        }
    }
}
