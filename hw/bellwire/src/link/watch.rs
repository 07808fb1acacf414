//! Watches a link while it works: whether its sends complete in time, and whether an idle peer is still there.
//!
//! This is done by the checks of polls, from the counters of the send queue: the data path knows nothing of
//! it.
//!
//! A check notes how much was posted, a few times within each deadline. Noted requests have to be retired within
//! the deadline. A keep-alive is a signalled empty WRITE among the program's sends. While it is in flight, the
//! link's completions take the slow path of a poll, which leaves its completion out and carries the unsignalled
//! sends that it retired to the next outcome.

use super::active_queues::ActiveQueues;
use super::init::LinkInit;
use crate::qp::RcSendQueue;
use bellwire_core::fault::Fault;
use bellwire_core::fault::outcome::Replay;
use bellwire_core::wqe::{RdmaWrite, SendWqe};
use bellwire_core::wr::{QpType, Remote, SendFlags};
use std::collections::VecDeque;
use std::time::Duration;

/// The parts of the deadline in which it is noted, at most once each, how much was posted.
const PARTS: u32 = 4;

/// Entries of a send queue between two counters, of which the first is that of an entry; `None` for one that
/// cannot be read.
pub(super) fn entries<'a>(
    sq: &'a RcSendQueue<'_>,
    from: u32,
    to: u32,
) -> impl Iterator<Item = (u32, Option<SendWqe<'a>>)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let counter = at;
        let is_before = to.wrapping_sub(counter) as i32 > 0;
        is_before.then(|| {
            let entry = sq.entry(counter);
            // An entry that cannot be read has a block at least.
            let blocks = entry.as_ref().map_or(1, SendWqe::blocks);
            at = counter.wrapping_add(blocks.max(1));
            (counter, entry)
        })
    })
}

/// A send of the link's own among those of the program: an empty WRITE, which needs no rkey and has no effect
/// at the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    pub counter: u32,
    /// Sends before it whose completions were not taken yet.
    before: u32,
    /// When it was posted.
    since: Duration,
}

impl KeepAlive {
    /// Takes in a completion of a send; all are taken in, in order. `retired` says how many sends it retires,
    /// and does not count this one when this returns. Returns whether the completion is of this one.
    pub fn takes(this: &mut Option<Self>, retired: &mut u32) -> bool {
        let Some(one) = this else {
            return false;
        };
        if *retired <= one.before {
            one.before -= *retired;
            return false;
        }
        // Otherwise its own completion was lost.
        let is_it = *retired == one.before + 1;
        *retired -= 1;
        *this = None;
        is_it
    }
}

/// What is known of the link since it works.
#[derive(Debug)]
pub(super) struct Watch {
    deadline: Option<Duration>,
    /// Half of the time within which the loss of the peer is detected.
    half: Option<Duration>,
    /// Counters behind the last sends posted by the checks, and the times of these, oldest first.
    posted: VecDeque<(u32, Duration)>,
    /// The oldest send in flight, and the number of receives consumed, at the last check.
    completed: Option<(u32, u64)>,
    /// The last check at which something had completed since the one before.
    quiet_since: Duration,
    /// The last check.
    checked: Duration,
    /// In flight.
    pub keep_alive: Option<KeepAlive>,
}

impl Watch {
    /// `None` if nothing is to be watched.
    pub fn new(init: &LinkInit) -> Option<Self> {
        let asked = init.request_deadline.is_some() || init.keep_alive.is_some();
        asked.then(|| Self {
            deadline: init.request_deadline,
            half: init
                .keep_alive
                .map(|time| (time / 2).max(Duration::from_nanos(1))),
            posted: VecDeque::new(),
            completed: None,
            quiet_since: Duration::ZERO,
            checked: Duration::ZERO,
            keep_alive: None,
        })
    }

    /// The queues are stopped: nothing is watched until they work again. Returns the keep-alive that is in
    /// flight.
    pub fn stop(&mut self) -> Option<KeepAlive> {
        self.posted.clear();
        self.completed = None;
        self.keep_alive.take()
    }

    /// Checks the queues, which work; `received` receives were consumed on this connection. Returns their
    /// fault.
    pub fn check(
        &mut self,
        queues: &mut ActiveQueues,
        received: u64,
        now: Duration,
    ) -> Option<Fault> {
        self.checked = now;
        let sq = queues.qp.sq();
        let behind = sq.rung();
        let oldest = behind.wrapping_sub(sq.in_flight());
        if self.completed != Some((oldest, received)) {
            self.completed = Some((oldest, received));
            self.quiet_since = now;
        }
        if let Some(deadline) = self.deadline
            && self.misses(&sq, oldest, behind, deadline, now)
        {
            return Some(Fault::DeadlineMissed);
        }
        let half = self.half?;
        match self.keep_alive {
            // What was received since shows as much as its acknowledgement.
            Some(own) if now.saturating_sub(own.since.max(self.quiet_since)) >= half => {
                return Some(Fault::KeepAliveMissed);
            }
            Some(_) => {}
            None if now.saturating_sub(self.quiet_since) < half => {}
            // The outcome of a request in flight tells as much, and what is staged is about to be posted.
            None if self.waits(&sq, oldest, behind)
                || sq.staged() != 0
                || sq.free_blocks() == 0 =>
            {
                self.quiet_since = now;
            }
            None => self.post(queues, oldest, behind, now),
        }
        None
    }

    /// Whether a send has missed its deadline.
    fn misses(
        &mut self,
        sq: &RcSendQueue<'_>,
        oldest: u32,
        behind: u32,
        deadline: Duration,
        now: Duration,
    ) -> bool {
        while let Some(&(first, since)) = self.posted.front() {
            let is_done = first.wrapping_sub(oldest) as i32 <= 0;
            if !is_done && now.saturating_sub(since) < deadline {
                break;
            }
            if !is_done && self.waits(sq, oldest, first) {
                return true;
            }
            self.posted.pop_front();
        }
        let last = self.posted.back();
        let is_due = |&(last, since): &(u32, Duration)| {
            last != behind && now.saturating_sub(since) >= deadline / PARTS
        };
        if behind != oldest && last.is_none_or(is_due) {
            self.posted.push_back((behind, now));
        }
        false
    }

    /// Whether the program waits for the completion of one of the sends between two counters: of unsignalled
    /// ones there is none.
    fn waits(&self, sq: &RcSendQueue<'_>, from: u32, to: u32) -> bool {
        let own = self.keep_alive.map(|own| own.counter);
        entries(sq, from, to).any(|(counter, entry)| {
            let request = entry.and_then(|entry| entry.request(QpType::Rc).ok());
            own != Some(counter) && request.is_some_and(|request| request.is_signaled())
        })
    }

    /// Posts a keep-alive.
    fn post(&mut self, queues: &mut ActiveQueues, oldest: u32, behind: u32, now: Duration) {
        let mut sq = queues.qp.sq();
        let before = entries(&sq, oldest, behind).count() as u32;
        let counter = sq.counter();
        let remote = Remote::default();
        let posted = sq.post_empty(0, (), RdmaWrite { remote }, SendFlags::SIGNALED);
        // There is room, and the queue pair works.
        debug_assert_eq!(posted, Ok(()));
        if posted.is_ok() {
            sq.ring();
            queues.note::<RdmaWrite>(counter, Replay::Surface);
            self.keep_alive = Some(KeepAlive {
                counter,
                before,
                since: now,
            });
        }
    }

    /// When the next check may find something.
    pub fn next_check(&self) -> Option<Duration> {
        let first = self.posted.front().map_or(self.checked, |(_, at)| *at);
        let deadline = self.deadline.map(|time| first.saturating_add(time));
        let own = self.keep_alive.map_or(Duration::ZERO, |own| own.since);
        let silence = (self.half).map(|half| own.max(self.quiet_since).saturating_add(half));
        deadline.into_iter().chain(silence).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keep_alive_is_found_among_the_completions_and_never_counted() {
        let posted = |before| {
            Some(KeepAlive {
                counter: 0,
                before,
                since: Duration::ZERO,
            })
        };
        for (before, completions) in [
            // Alone.
            (0, &[(1, true, 0), (3, false, 3)][..]),
            // Behind unsignalled sends.
            (3, &[(4, true, 3), (1, false, 1)]),
            // Behind two completions, the second of which retires an unsignalled send.
            (
                3,
                &[(1, false, 1), (2, false, 2), (1, true, 0), (1, false, 1)],
            ),
            // Its completion is lost.
            (2, &[(2, false, 2), (3, false, 2), (3, false, 3)]),
        ] {
            let mut keep_alive = posted(before);
            for &(mut retired, is_it, left) in completions {
                let found = KeepAlive::takes(&mut keep_alive, &mut retired);
                assert_eq!((found, retired), (is_it, left), "{before}: {completions:?}");
            }
            assert!(keep_alive.is_none());
        }
    }
}
