//! The queues of a link while it recovers.

use super::active_queues::ActiveQueues;
use super::in_flight::Again;
use super::watch::{KeepAlive, entries};
use crate::cq::Cq;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::fault::outcome::Replay;
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
    /// A keep-alive that was in flight when the link stopped.
    pub keep_alive: Option<KeepAlive>,
    /// The last of them ends the drain.
    pub beacon: bool,
    /// The last of them tests the path.
    pub probe: bool,
}

impl RecoveringQueues {
    pub fn new(active: ActiveQueues, keep_alive: Option<KeepAlive>) -> Self {
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
            keep_alive,
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
        self.keep_alive = None;
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
        let from = self.oldest();
        self.qp.as_mut().map_or(0, |qp| {
            let sq = qp.sq();
            entries(&sq, from, sq.counter()).count() as u32
        })
    }

    /// Takes in a completion of a send, in order, that retires so many. Returns whether it is the link's
    /// own, and how many of the program's it retires. The queue itself may be further by then: a set polls
    /// for many links at once.
    pub fn takes_own(&mut self, retired: u32) -> (bool, u32) {
        let own = self.own.is_some() && retired > self.before_own;
        self.before_own = self.before_own.saturating_sub(retired);
        let mut programs = retired;
        let is_keep_alive = KeepAlive::takes(&mut self.keep_alive, &mut programs);
        (own || is_keep_alive, programs - u32::from(own))
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

    /// Whether the send at `counter` is the link's own.
    pub fn is_own(&self, counter: u32) -> bool {
        let is_keep_alive = (self.keep_alive).is_some_and(|own| own.counter == counter);
        let of_recovery = |own| counter.wrapping_sub(own) as i32 >= 0;
        is_keep_alive || self.own.is_some_and(of_recovery)
    }
}
