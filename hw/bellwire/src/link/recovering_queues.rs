//! The queues of a link while it recovers.

use super::active_queues::ActiveQueues;
use super::in_flight::Again;
use crate::cq::Cq;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::fault::outcome::Replay;
use bellwire_core::wqe::BASIC_BLOCK;
use std::collections::HashMap;

/// The queues of a link while it recovers: from one connection to the next.
#[derive(Debug)]
pub(super) struct RecoveringQueues {
    pub qp: Option<Qp>,
    /// The policy of each send entry, by its slot.
    pub policies: Box<[Replay]>,
    /// What is known of the requests that were posted again, by counter.
    pub again: HashMap<u32, Again>,
    /// Slots of the receive queue.
    pub receives: u32,
    /// Scatter/gather elements of a receive, at most.
    pub max_recv_sge: u32,
    /// All kept receives have been posted: further ones may follow.
    pub receives_posted: bool,
    /// The queue pair was taken to ERR: nothing that the device was notified of from here on was
    /// executed.
    pub in_error: bool,
    /// Counter after the last entry that the device was notified of while it could still execute it.
    pub rung: u32,
    /// Counter of the first send of the recovery's own.
    own: Option<u32>,
    /// Sends before it whose completions were not taken yet.
    before_own: u32,
    /// The last of them ends the drain.
    pub beacon: bool,
    /// The last of them tests the path.
    pub probe: bool,
}

impl RecoveringQueues {
    pub fn new(active: ActiveQueues) -> Self {
        let ActiveQueues {
            mut qp,
            policies,
            again,
            receives,
            ..
        } = active;
        let rung = qp.sq().rung();
        let max_recv_sge = qp.rq().max_sge();
        Self {
            qp: Some(qp),
            policies,
            again,
            receives,
            max_recv_sge,
            receives_posted: false,
            in_error: false,
            rung,
            own: None,
            before_own: 0,
            beacon: false,
            probe: false,
        }
    }

    /// Returns the queues to the data path: all sends of the recovery's own have completed.
    pub fn into_active(self, sent: u64) -> Option<ActiveQueues> {
        Some(ActiveQueues {
            qp: self.qp?,
            policies: self.policies,
            again: self.again,
            receives: self.receives,
            sent,
        })
    }

    /// What the queue pair did last, if there is one.
    pub fn dump(&mut self, cq: &mut Cq, options: &DumpOptions) -> Option<Record> {
        self.qp.as_mut()?.dump(cq, options).ok()
    }

    /// The queue pair was replaced, or reset.
    pub fn renew(&mut self) {
        self.in_error = false;
        self.receives_posted = false;
        self.beacon = false;
        self.forget_own();
    }

    /// The recovery's own sends have completed.
    pub fn forget_own(&mut self) {
        self.own = None;
        self.probe = false;
    }

    /// Marks the next send as the recovery's own.
    pub fn posts_own(&mut self) {
        if self.own.is_none() {
            self.before_own = self.outstanding();
            self.own = self.qp.as_mut().map(|qp| qp.sq().counter());
        }
    }

    /// Number of outstanding sends.
    fn outstanding(&mut self) -> u32 {
        let mut at = self.oldest();
        let Some(qp) = &mut self.qp else {
            return 0;
        };
        let (end, mut count) = (qp.sq().counter(), 0);
        while (end.wrapping_sub(at) as i32) > 0 {
            let sq = qp.sq();
            // An entry that cannot be read has a block at least.
            let bytes = sq.entry(at).map_or(0, |entry| {
                let (head, tail) = entry.bytes();
                head.len() + tail.len()
            });
            at = at.wrapping_add((bytes.div_ceil(BASIC_BLOCK) as u32).max(1));
            count += 1;
        }
        count
    }

    /// Takes in a completion of a send that retires so many, in order. Returns whether it is the
    /// recovery's own. The queue itself may be further by then: a set polls for many links at once.
    pub fn takes_own(&mut self, retired: u32) -> bool {
        let own = self.own.is_some() && retired > self.before_own;
        self.before_own = self.before_own.saturating_sub(retired);
        own
    }

    /// Counter of the oldest outstanding send.
    pub fn oldest(&mut self) -> u32 {
        let slots = self.policies.len() as u32;
        self.qp.as_mut().map_or(0, |qp| {
            let in_flight = slots - qp.sq().free_blocks();
            qp.sq().counter().wrapping_sub(in_flight)
        })
    }

    /// Whether the last completed send is the recovery's own.
    pub fn own_completed(&mut self) -> bool {
        let oldest = self.oldest();
        self.own
            .is_some_and(|own| oldest.wrapping_sub(own) as i32 > 0)
    }

    /// Whether everything that was posted has completed.
    pub fn is_empty(&mut self) -> bool {
        let slots = self.policies.len() as u32;
        let receives = self.receives;
        self.qp
            .as_mut()
            .is_none_or(|qp| qp.sq().free_blocks() == slots && qp.rq().free() == receives)
    }

    /// Whether the send at `counter` is the recovery's own.
    pub fn is_own(&self, counter: u32) -> bool {
        self.own
            .is_some_and(|own| counter.wrapping_sub(own) as i32 >= 0)
    }
}
