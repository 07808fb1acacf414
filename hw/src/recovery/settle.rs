//! What became of everything that was in flight: told, or posted again.

use super::inside::Inside;
use super::ring;
use bellwire_core::fault::Fault;
use bellwire_core::fault::outcome::{Consumed, Doubt, Outcome, Replay};
use bellwire_core::fault::plan::StepResult;
use bellwire_core::queue::PostError;

impl Inside {
    /// What the peer's count is, of requests on the connection that failed.
    fn consumed_there(&self) -> Consumed {
        match self.peer.count() {
            Some((count, true)) => Consumed::Exactly(count),
            Some((count, false)) => Consumed::AtLeast(count),
            None => Consumed::Unknown,
        }
    }

    /// Settles what was in flight: tells it, or keeps it to be posted again.
    fn settle(&mut self) {
        let consumed = self.consumed_there();
        let Self { limbo, again, .. } = self;
        let mut told = Vec::new();
        limbo.resolve(
            consumed,
            |tell| told.push(tell),
            |pending, outcome| again.push_back((pending, outcome)),
        );
        told.into_iter().for_each(|told| self.surface(told));
    }

    pub fn replay(&mut self) -> StepResult {
        if self.peer.sent_on() == self.connection {
            // The connection is as it was: nothing failed.
            return StepResult::Done;
        }
        self.settle();
        self.peer.sends_on(self.connection);
        let Some(life) = &mut self.life else {
            return StepResult::Done;
        };
        // What they say has been read with the requests.
        life.doubts.clear();
        let mut unread = Vec::new();
        while let Some((mut pending, outcome)) = self.again.pop_front() {
            if let Outcome::Failed(_) = outcome {
                // Once: it would break the connection for ever.
                pending.policy = Replay::Surface;
            }
            if let Outcome::InDoubt(doubt) = outcome {
                pending.before = Some(doubt);
            }
            let consumes = pending.consumes();
            match ring::repost_send(life, pending) {
                Ok(()) => {}
                Err((PostError::NoEntry, pending)) => {
                    unread.push(pending.told(outcome));
                    continue;
                }
                // They were there before, so there is room.
                Err((_, pending)) => {
                    self.again.push_front((pending, outcome));
                    return StepResult::Failed(Fault::Errno(libc::ENOMEM));
                }
            }
            self.limbo.consuming += u64::from(consumes);
            self.counters.replayed += 1;
            self.replayed += 1;
        }
        if let Some(qp) = &mut life.qp {
            qp.sq().ring();
            life.rung = qp.sq().rung();
        }
        unread.into_iter().for_each(|told| self.surface(told));
        StepResult::Done
    }

    pub fn close(&mut self) -> StepResult {
        // A queue pair that cannot go to ERR is destroyed as it is.
        let _ = self.enter_error();
        self.drain();
        self.destroy_qp();
        self.destroy_cq();
        self.life = None;
        self.peer.close();
        StepResult::Done
    }

    pub fn surface_all(&mut self) -> StepResult {
        for pending in &mut self.limbo.requests {
            pending.policy = Replay::Surface;
        }
        // These are older.
        let again = std::mem::take(&mut self.again);
        for (pending, outcome) in again {
            self.surface(pending.told(outcome));
        }
        self.settle();
        for receive in std::mem::take(&mut self.receives) {
            let outcome = if receive.flushed {
                Outcome::NotExecuted
            } else {
                Outcome::InDoubt(Doubt::NoAnswer)
            };
            self.surface(receive.told(outcome));
        }
        if let Some(last) = self.outbox.back_mut() {
            last.retired += std::mem::take(&mut self.carried);
        }
        StepResult::Done
    }
}
