//! What a link has to know of a queue pair that receives from a shared receive queue.
//!
//! The failed queue pair's receives are not flushed: they stay in the shared receive queue for the others.
//! Only a receive that it consumed completes on it, so the count that the peer is sent is that of these
//! completions. It is exact if the device says that the queue pair takes no more receives
//! (`LAST_WQE_REACHED`), or was given the time to take them, and everything that completed was polled.

use super::state::RecoveryState;
use bellwire_core::event::EventType;
use bellwire_core::fault::Fault;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct OnSrq {
    /// The shared receive queue failed, and the set has not replaced it yet.
    pub failed: bool,
    /// The queue pair was connected, so it may have taken receives.
    pub connected: bool,
    /// Everything that was posted to the queue pair has completed, and was polled.
    pub drained: bool,
    /// `LAST_WQE_REACHED` was reported in this life of the queue pair.
    last_wqe: bool,
    /// The device time until which it is waited for.
    wait_until: Option<Duration>,
}

impl OnSrq {
    /// Takes in a fault, or an event that breaks nothing.
    pub fn fault(&mut self, fault: Fault) {
        self.failed |= fault == Fault::Event(EventType::SrqErr);
        self.last_wqe |= fault == Fault::Event(EventType::QpLastWqeReached);
    }

    /// The queue pair goes to INIT: late events of its previous life do not count for this one.
    pub fn begin_life(&mut self) {
        self.last_wqe = false;
        self.wait_until = None;
        self.drained = false;
    }

    /// The queue pair was reset or destroyed. Returns whether all receives that it consumed are known.
    pub fn end_life(&mut self) -> bool {
        !std::mem::take(&mut self.connected) || self.drained
    }
}

impl RecoveryState {
    /// Whether a failure of a queue that the link shares with the others of its set is known.
    pub fn knows_failed(&self, event: EventType) -> bool {
        match event {
            EventType::SrqErr => self.on_srq.as_ref().is_none_or(|on_srq| on_srq.failed),
            _ => self.cq_failed,
        }
    }

    /// The set has replaced the queues that had failed.
    pub fn queues_replaced(&mut self) {
        self.cq_failed = false;
        if let Some(on_srq) = &mut self.on_srq {
            on_srq.failed = false;
        }
    }

    /// Whether the queue pair, which is in ERR, may still take receives from the shared receive queue. It is
    /// waited for no longer than the limit, and half of the time that ending the link may take.
    pub fn takes_receives(&mut self) -> bool {
        let limits = &self.init.limits;
        let limit = limits.last_wqe.min(limits.step / 2);
        let now = self.pd.device().now();
        let has_qp = (self.queues.as_ref()).is_some_and(|queues| queues.qp.is_some());
        let waits = |on_srq: &mut OnSrq| {
            let until = *(on_srq.wait_until).get_or_insert(now.saturating_add(limit));
            on_srq.connected && !on_srq.last_wqe && now < until
        };
        if !has_qp || !self.on_srq.as_mut().is_some_and(waits) {
            return false;
        }
        // It may have been reported since.
        self.take_events(now);
        self.on_srq.as_mut().is_some_and(waits)
    }
}
