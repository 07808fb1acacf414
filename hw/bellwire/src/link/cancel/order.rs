//! Finds the requests that a call is for: in the rings, and in the lists of a link that recovers.

use super::super::active_queues::ActiveQueues;
use super::super::completion::LinkCompletion;
use super::super::in_flight::Pending;
use super::super::member::{Member, StateOwner};
use super::super::repost::Receive;
use super::super::state::RecoveryState;
use super::super::worker::Command;
use super::{Cancel, CancelError, Cancels, How, Side, TakeBack, Taking, When};
use crate::qp::Qp;
use bellwire_core::queue::Past;
use std::collections::VecDeque;
use std::time::Duration;

/// Requests that an order has found.
#[derive(Clone, Copy, Debug, Default)]
struct Matches {
    changed: u64,
    before: bool,
}

impl Matches {
    /// Notes a request. Returns whether there may be others.
    fn note(&mut self, changed: bool, when: When) -> bool {
        self.changed += u64::from(changed);
        self.before |= !changed;
        when == When::Now
    }

    /// Whether the order is carried out.
    fn is_done(self, when: When) -> bool {
        (self.changed != 0 || self.before) && when != When::Now
    }
}

impl Cancels {
    /// Takes in an order for requests that are in the rings, except for the link's own.
    fn order(
        &mut self,
        qp: &mut Qp,
        is_own: impl Fn(u32) -> bool,
        order: &TakeBack,
        found: &mut Matches,
    ) {
        let marks = self.of(order.side);
        let each = |past: Past| {
            let is_it = past.wr_id == order.wr_id;
            if !is_it || order.side == Side::Send && is_own(past.counter) {
                return true;
            }
            found.note(marks.order(past.counter, order.when), order.when)
        };
        // SAFETY: the caller owns the link, and its completion queue with it: nobody polls.
        unsafe {
            match order.side {
                Side::Send => qp.sq().unreported(each),
                Side::Receive => qp.rq().unreported(each),
            }
        }
    }
}

impl Pending {
    /// Takes in an order. Returns whether it changes anything.
    fn order(&mut self, when: When) -> bool {
        self.taking.order(when)
    }
}

/// Takes in an order for requests in a list of the link, the last one first. Returns the requests that leave the list.
fn order_in<T>(
    list: &mut VecDeque<T>,
    order: &TakeBack,
    found: &mut Matches,
    parts: impl Fn(&mut T) -> (u64, &mut Taking),
) -> Vec<T> {
    let mut out = Vec::new();
    for at in (0..list.len()).rev() {
        if found.is_done(order.when) {
            break;
        }
        let Some((wr_id, taking)) = list.get_mut(at).map(&parts) else {
            continue;
        };
        if wr_id == order.wr_id {
            let changed = taking.order(order.when);
            found.note(changed, order.when);
            if changed && order.when == When::Now {
                out.extend(list.remove(at));
            }
        }
    }
    out
}

impl RecoveryState {
    /// Takes requests back, now or later; `active`: the queues of a link that works.
    pub fn take_back(
        &mut self,
        mut active: Option<&mut ActiveQueues>,
        order: &TakeBack,
    ) -> Result<Cancel, CancelError> {
        if order.side == Side::Receive && self.on_srq.is_some() {
            return Err(CancelError::NoRecvQueue);
        }
        let mut found = Matches::default();
        let when = order.when;
        if matches!(when, When::At(_)) {
            let queues = self
                .queues
                .as_ref()
                .map(|queues| (queues.policies.len(), queues.receives));
            let active = active
                .as_ref()
                .map(|active| (active.policies.len(), active.receives));
            let (sends, receives) = active.or(queues).unwrap_or_default();
            let slots = match order.side {
                Side::Send => sends,
                Side::Receive => receives as usize,
            };
            self.cancels.of(order.side).make_room(slots)?;
        }
        match order.side {
            Side::Receive => {
                self.order_receives(order, &mut found, |state| &mut state.early);
            }
            Side::Send => self.order_grants(active.as_deref_mut(), order, &mut found),
        }
        if !found.is_done(when) && when != When::Answered {
            self.order_in_rings(active, order, &mut found);
            match order.side {
                Side::Receive => {
                    self.order_receives(order, &mut found, |state| &mut state.receives);
                }
                Side::Send => self.order_sends(order, &mut found),
            }
        }
        let is_it = |completion: &LinkCompletion| {
            completion.wr_id == order.wr_id && completion.is_recv() == (order.side == Side::Receive)
        };
        if when == When::Now {
            self.published
                .update(|counters| counters.cancelled += found.changed);
        }
        match (found.changed != 0, self.protocol.ended()) {
            (true, _) => Ok(Cancel::Requested),
            _ if found.before => Ok(Cancel::Repeated),
            _ if self.outbox.iter().any(is_it) || self.ends_with(order) => Ok(Cancel::Completed),
            (false, Some(end)) if !self.has_outcomes() => Err(CancelError::Ended(end)),
            (false, _) => Err(CancelError::NotFound),
        }
    }

    /// Whether the order is for a receive that a link reports because it has ended.
    fn ends_with(&self, order: &TakeBack) -> bool {
        let is_it = |receive: &Receive| receive.wr_id == order.wr_id;
        self.receives_end && order.side == Side::Receive && self.receives.iter().any(is_it)
    }

    /// Requests with grants.
    fn order_grants(
        &mut self,
        mut active: Option<&mut ActiveQueues>,
        order: &TakeBack,
        found: &mut Matches,
    ) {
        let Some(mut grants) = self.grants.take() else {
            return;
        };
        grants.order(order, |request| match request {
            Ok(changed) => found.note(changed, order.when),
            Err(wr_id) if order.when != When::Answered => {
                let order = TakeBack { wr_id, ..*order };
                self.order_in_rings(active.as_deref_mut(), &order, found);
                self.order_sends(&order, found);
                !found.is_done(order.when)
            }
            Err(_) => true,
        });
        self.grants = Some(grants);
        self.revoke_due(active);
    }

    fn order_in_rings(
        &mut self,
        active: Option<&mut ActiveQueues>,
        order: &TakeBack,
        found: &mut Matches,
    ) {
        let Self {
            cancels,
            queues,
            watch,
            ..
        } = self;
        if let Some(active) = active {
            let own = watch.as_ref().and_then(|watch| watch.keep_alive);
            let is_own = |counter| own.is_some_and(|own| own.counter == counter);
            cancels.order(&mut active.qp, is_own, order, found);
        } else if let Some(queues) = queues
            && let Some(mut qp) = queues.qp.take()
        {
            cancels.order(&mut qp, |counter| queues.is_own(counter), order, found);
            queues.qp = Some(qp);
        }
    }

    /// Sends that the link holds while it recovers. A send that is not settled yet stays until it is: the peer's count
    /// says whether it was executed.
    fn order_sends(&mut self, order: &TakeBack, found: &mut Matches) {
        for pending in self.in_flight.requests.iter_mut().rev() {
            if found.is_done(order.when) {
                return;
            }
            if pending.wr_id == order.wr_id {
                found.note(pending.order(order.when), order.when);
            }
        }
        let taken = order_in(&mut self.again, order, found, |(pending, _)| {
            (pending.wr_id, &mut pending.taking)
        });
        for (pending, outcome) in taken {
            self.report_outcome(pending.completion(outcome));
        }
    }

    /// Receives that the link holds while it recovers.
    fn order_receives(
        &mut self,
        order: &TakeBack,
        found: &mut Matches,
        list: impl Fn(&mut Self) -> &mut VecDeque<Receive>,
    ) {
        if self.receives_end {
            // They are outcomes already.
            return;
        }
        let taken = order_in(list(self), order, found, |receive| {
            (receive.wr_id, &mut receive.taking)
        });
        taken
            .into_iter()
            .for_each(|receive| self.report_receive(receive));
    }

    /// Keeps a receive to be posted again, unless it is taken back.
    pub fn keep_receive(&mut self, receive: Receive) {
        match receive.taking.why {
            Some(_) => self.report_receive(receive),
            None => self.receives.push_back(receive),
        }
    }

    /// Reports a receive that is not posted again.
    pub fn report_receive(&mut self, receive: Receive) {
        let outcome = receive.outcome();
        self.report_outcome(receive.completion(outcome));
    }

    /// Whether queues that are connected, and are the recovery's still, have a request that is taken back.
    pub fn has_to_take_back(&mut self, now: Duration) -> bool {
        if self.protocol.recovering() {
            return false;
        }
        let Self {
            cancels,
            queues,
            published,
            ..
        } = self;
        let queues = queues.as_mut().filter(|queues| !queues.in_error);
        let qp = queues.and_then(|queues| queues.qp.as_mut());
        qp.is_some_and(|qp| cancels.check(qp, now, published))
    }
}

impl Member {
    /// Takes requests back, as [`Link::cancel`](super::super::Link::cancel) does.
    pub fn take_back(&mut self, side: Side, wr_id: u64, how: How) -> Result<Cancel, CancelError> {
        let Self {
            active, recovery, ..
        } = self;
        match recovery {
            StateOwner::Here(state) => {
                let when = how.at(|| state.pd.device().now());
                state.take_back(active.as_mut(), &TakeBack { side, wr_id, when })
            }
            StateOwner::Thread(worker) => {
                worker.send(Command::TakeBack { side, wr_id, how });
                Ok(Cancel::Forwarded)
            }
            StateOwner::Moving => Err(CancelError::NotFound),
        }
    }
}
