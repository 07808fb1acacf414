//! Decides for everything that was in flight whether it is reported or posted again.

use super::in_flight::Again;
use super::repost;
use super::state::RecoveryState;
use bellwire_core::fault::Fault;
use bellwire_core::fault::outcome::{Outcome, Replay};
use bellwire_core::fault::plan::StepResult;
use bellwire_core::queue::PostError;

impl RecoveryState {
    /// Settles the requests in flight: reports each, or keeps it to be posted again.
    fn settle(&mut self) {
        let consumed = self.protocol.consumed();
        self.in_flight
            .expire(self.now, self.init.limits.recovery, &self.published);
        // Out of place, as reporting changes the rest; its room is kept.
        let mut in_flight = std::mem::take(&mut self.in_flight);
        let mut again = std::mem::take(&mut self.again);
        in_flight.resolve(
            consumed,
            |completion| self.report_outcome(completion),
            |pending, outcome| again.push_back((pending, outcome)),
        );
        (self.in_flight, self.again) = (in_flight, again);
        self.end_grants(false);
    }

    pub fn replay(&mut self) -> StepResult {
        self.settle();
        let Some(queues) = &mut self.queues else {
            return StepResult::Done;
        };
        // They were read together with the requests.
        queues.again.clear();
        let mut reported = Vec::new();
        while let Some((mut pending, outcome)) = self.again.pop_front() {
            if pending.taking.is_due(self.now, &self.published) {
                reported.push(pending.completion(outcome));
                continue;
            }
            if let Outcome::Failed(_) = outcome {
                // Only once: otherwise it would break every connection.
                pending.policy = Replay::Surface;
            }
            let mut known = pending.before.unwrap_or(Again {
                since: self.now,
                doubt: None,
            });
            if let Outcome::InDoubt(doubt) = outcome {
                known.doubt = Some(doubt);
            }
            pending.before = Some(known);
            let consumes = pending.consumes();
            match repost::repost_send(queues, &mut self.cancels.sends, pending) {
                Ok(()) => {}
                Err((PostError::NoEntry, pending)) => {
                    reported.push(pending.completion(outcome));
                    continue;
                }
                // They were in the queue before, so there is room.
                Err((_, pending)) => {
                    self.again.push_front((pending, outcome));
                    return StepResult::Failed(Fault::Errno(libc::ENOMEM));
                }
            }
            self.in_flight.consuming += u64::from(consumes);
            self.published.update(|counters| counters.replayed += 1);
            self.replayed += 1;
        }
        if let Some(qp) = &mut queues.qp {
            qp.sq().ring();
            queues.rung = qp.sq().rung();
        }
        reported
            .into_iter()
            .for_each(|completion| self.report_outcome(completion));
        StepResult::Done
    }

    pub fn close(&mut self) -> StepResult {
        // If the queue pair cannot go to ERR, it is destroyed as it is.
        let _ = self.enter_error();
        self.drain();
        if self.takes_receives() {
            return StepResult::Pending;
        }
        self.close_now();
        StepResult::Done
    }

    /// As [`close`](Self::close), without waiting for anything.
    pub fn close_now(&mut self) {
        let _ = self.enter_error();
        self.drain();
        self.destroy_qp();
        self.destroy_cq();
        self.queues = None;
    }

    pub fn report_all(&mut self) -> StepResult {
        if self.queues.is_some() {
            // The close has not ended in time.
            self.close_now();
        }
        for pending in &mut self.in_flight.requests {
            pending.policy = Replay::Surface;
        }
        // These are older than those in flight.
        while let Some((pending, outcome)) = self.again.pop_front() {
            self.report_outcome(pending.completion(outcome));
        }
        self.settle();
        self.end_grants(true);
        self.report_receives();
        if let Some(last) = self.outbox.back_mut() {
            last.retired += std::mem::take(&mut self.carried);
        }
        StepResult::Done
    }

    /// Reports the remaining receives when the link has ended.
    pub fn report_receives(&mut self) {
        let before = match std::mem::replace(&mut self.receives_end, true) {
            true => self.receives.len(),
            false => 0,
        };
        self.receives.append(&mut self.early);
        for receive in self.receives.iter().skip(before) {
            let outcome = receive.last_outcome();
            (self.published).update(|counters| counters.outcome(true, outcome));
        }
        self.count_reported((self.receives.len() - before) as u32);
    }
}
