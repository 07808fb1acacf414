//! What a plain link and a link of a set have in common: everything but the completion queue.

use super::active_queues::ActiveQueues;
use super::completion::LinkError;
use super::handle::LinkState;
use super::monitor::{LinkMonitor, Phase, Published};
use super::state::RecoveryState;
use super::watch::KeepAlive;
use super::worker::{Command, Worker};
use crate::cq::Cq;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::fault::Fault;
use bellwire_core::queue::{Completion, PostError};
use std::sync::Arc;
use std::time::Duration;

/// How completions of a link go to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// By the link's state: it recovers, or one of its own is in flight.
    ByState,
    /// As they are.
    Direct,
    /// As they are, except that receives are of the shared receive queue.
    DirectOnSrq,
}

/// A link without its completion queue.
#[derive(Debug)]
pub(super) struct Member {
    /// The queue pair, while the link works.
    pub active: Option<ActiveQueues>,
    /// How completions go to the program.
    pub delivery: Delivery,
    /// Receives consumed on this connection.
    pub received: u64,
    pub recovery: StateOwner,
}

#[derive(Debug)]
pub(super) enum StateOwner {
    Here(Box<RecoveryState>),
    /// A recovery thread has it.
    Thread(Worker),
    /// Only while it is moved between the two.
    Moving,
}

impl StateOwner {
    fn published(&self) -> Arc<Published> {
        match self {
            Self::Here(state) => state.published.clone(),
            Self::Thread(worker) => worker.published().clone(),
            Self::Moving => Arc::default(),
        }
    }
}

impl Member {
    /// A link that connects for the first time.
    pub fn new(mut active: ActiveQueues, mut state: Box<RecoveryState>) -> Self {
        // The first connection is made like every other.
        state.connect_first(state.pd.device().now());
        state.published.set_queues(&mut active.qp);
        Self {
            active: Some(active),
            delivery: state.delivery(),
            received: 0,
            recovery: StateOwner::Here(state),
        }
    }

    /// A monitor; from the first one on, requests are counted by operation.
    pub fn monitor(&mut self) -> LinkMonitor {
        let published = self.recovery.published();
        let recovering = match &mut self.recovery {
            StateOwner::Here(state) => state.queues.as_mut().and_then(|queues| queues.qp.as_mut()),
            _ => None,
        };
        let active = self.active.as_mut().map(|active| &mut active.qp);
        published.count(active.or(recovering));
        LinkMonitor(published)
    }

    /// What other threads read.
    pub fn published(&self) -> Arc<Published> {
        self.recovery.published()
    }

    /// Brings what monitors read up to date, while the link works.
    pub fn count(&mut self) {
        if let Some(active) = &mut self.active {
            active.qp.count();
        }
    }

    /// The state, unless a thread has it.
    pub fn here(&self) -> Option<&RecoveryState> {
        match &self.recovery {
            StateOwner::Here(state) => Some(state),
            _ => None,
        }
    }

    /// As [`here`](Self::here), to change it.
    pub fn here_mut(&mut self) -> Option<&mut RecoveryState> {
        match &mut self.recovery {
            StateOwner::Here(state) => Some(state),
            _ => None,
        }
    }

    /// Bytes that it uses, without its exchange.
    pub fn bytes(&self) -> usize {
        let policies = self.active.as_ref().map(|active| active.policies.len());
        size_of::<RecoveryState>() + self.qp().map_or(0, Qp::bytes) + policies.unwrap_or(0)
    }

    pub fn state(&self) -> LinkState {
        let Some(state) = self.here() else {
            return LinkState::Recovering;
        };
        match state.protocol.ended() {
            Some(end) if !state.has_outcomes() => LinkState::Ended(end),
            None if self.active.is_some() && state.protocol.connected() => LinkState::Ready,
            _ => LinkState::Recovering,
        }
    }

    /// The queue pair, unless there is none, or a thread has it.
    pub fn qp(&self) -> Option<&Qp> {
        let active = self.active.as_ref().map(|active| &active.qp);
        active.or_else(|| self.here()?.queues.as_ref()?.qp.as_ref())
    }

    /// What the queue pair did last; `cq` is the completion queue, unless the state has it.
    pub fn dump(&mut self, cq: Option<&mut Cq>, options: &DumpOptions) -> Option<Record> {
        let Self {
            active, recovery, ..
        } = self;
        match (active, recovery) {
            (Some(active), StateOwner::Here(state)) => {
                let cq = cq.or(state.cq.as_mut())?;
                active.qp.dump(cq, options).ok()
            }
            (None, StateOwner::Here(state)) => {
                let cq = state.cq.as_mut().or(cq)?;
                state.queues.as_mut()?.dump(cq, options)
            }
            _ => None,
        }
    }

    /// Takes the queues from the program, to recover them, unless that was done before. `cq` is the
    /// completion queue, if it is this link's own.
    pub fn begin(
        &mut self,
        cq: &mut Option<Cq>,
        failed: impl IntoIterator<Item = Completion<'static>>,
    ) {
        let Self {
            active,
            delivery,
            received,
            recovery: StateOwner::Here(state),
            ..
        } = self
        else {
            return;
        };
        if let Some(active) = active.take() {
            state.published.set_phase(Phase::Recovering);
            *delivery = Delivery::ByState;
            if let Some(cq) = cq.take() {
                state.cq = Some(cq);
            }
            state.begin(active, *received, failed);
        }
    }

    /// Checks what the program asks to be watched, or to be taken back, while the link works. Returns the fault that
    /// was found.
    pub fn check(&mut self, now: Duration) -> Option<Fault> {
        let Self {
            active: Some(active),
            delivery,
            received,
            recovery: StateOwner::Here(state),
            ..
        } = self
        else {
            return None;
        };
        state.expire_grants(active, now);
        active.qp.count();
        if state.cancels.check(&mut active.qp, now, &state.published) {
            return Some(Fault::Cancelled);
        }
        let watch = state.watch.as_mut()?;
        let fault = watch.check(active, *received, now);
        if watch.keep_alive.is_some() {
            *delivery = Delivery::ByState;
        }
        fault
    }

    /// Takes in a completion of a link that works, which does not go to the program as it is. Returns it if
    /// it failed.
    pub fn take(&mut self, mut completion: Completion<'static>) -> Option<Completion<'static>> {
        let Self {
            active,
            received,
            recovery: StateOwner::Here(state),
            ..
        } = self
        else {
            return Some(completion);
        };
        let Ok(success) = completion.result else {
            return Some(completion);
        };
        let own = state.watch.as_mut().map(|watch| &mut watch.keep_alive);
        if success.opcode.is_recv() {
            *received += 1;
        } else if let Some(own) = own
            && KeepAlive::takes(own, &mut completion.retired)
        {
            state.carried += completion.retired;
            return None;
        }
        let report = state.done(completion, success);
        state.report(report);
        state.revoke_due(active.as_mut());
        None
    }

    /// After outcomes were delivered: lets completions go to the program as they are, if the link works, has
    /// none of its own in flight, and nothing is left to be reported with the next outcome.
    pub fn settle(&mut self) {
        let Self {
            active: Some(_),
            delivery,
            recovery: StateOwner::Here(state),
            ..
        } = self
        else {
            return;
        };
        let own = state.watch.as_ref().and_then(|watch| watch.keep_alive);
        let lent = state.grants.as_ref().is_some_and(|grants| grants.is_open());
        if own.is_none() && !lent && state.carried == 0 && !state.has_outcomes() {
            *delivery = state.delivery();
        }
    }

    /// Returns the queues to the program, if they work.
    pub fn resume(&mut self) {
        let resumed = self.here_mut().and_then(RecoveryState::resume);
        if let Some((mut active, received)) = resumed {
            let published = self.published();
            published.set_queues(&mut active.qp);
            published.set_phase(Phase::Ready);
            self.active = Some(active);
            self.received = received;
            self.settle();
        }
    }

    /// Has the command carried out where the state is: here, or by the recovery's thread. Returns whether
    /// the link has to recover from what it reports, and [`begin`](Self::begin) has to be called.
    pub fn ask(&mut self, command: Command) -> bool {
        match &mut self.recovery {
            StateOwner::Here(state) => {
                // Setting a hook does not disturb the queues: only a reported fault takes them from the
                // program.
                let reported = matches!(command, Command::Report(_));
                state.execute(command);
                reported && state.protocol.recovering()
            }
            StateOwner::Thread(worker) => {
                worker.send(command);
                false
            }
            StateOwner::Moving => false,
        }
    }

    /// Takes in a fault. Returns as [`ask`](Self::ask).
    pub fn fault(&mut self, fault: Fault) -> bool {
        self.ask(Command::Report(fault))
    }

    /// Refuses posts from here on; see [`Link::close`](super::Link::close). Returns as
    /// [`ask`](Self::ask).
    pub fn close(&mut self, within: Duration) -> bool {
        let Some(state) = self.here_mut() else {
            return false;
        };
        let now = state.pd.device().now();
        state.protocol.close(now.saturating_add(within));
        // Polls carry out the rest.
        state.init.recover_in = super::RecoverIn::Poll;
        state.protocol.busy()
    }

    /// Resumes a panic of a hook or of the exchange, now that the link is consistent.
    pub fn resume_panics(&mut self) {
        if let Some(state) = self.here_mut() {
            state.resume_panics();
        }
    }

    #[cold]
    #[inline(never)]
    pub fn refusal(&self) -> LinkError {
        match self.state() {
            LinkState::Ended(end) => LinkError::Ended(end),
            _ => LinkError::Recovering,
        }
    }

    /// Turns a refusal of the queue into the program's error.
    #[cold]
    #[inline(never)]
    pub fn refused(&self, error: PostError) -> LinkError {
        match error {
            // The queue pair was never connected, or the next poll begins a recovery.
            PostError::WrongState | PostError::CqFailed => LinkError::Recovering,
            error => LinkError::Post(error),
        }
    }
}
