//! What faults need, the state of the queues, and the steps that lead to working queues.

use super::step::Steps;
use super::{Setup, Step};
use crate::fault::Recovery;
use bitflags::bitflags;

bitflags! {
    /// What faults need.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub(super) struct Needs: u16 {
        /// The queue pairs have to be reset and connected again.
        const RESET = 1 << 0;
        /// The queue pairs have to be destroyed and created instead.
        const QP = 1 << 1;
        /// The completion queue has to be rebuilt.
        const CQ = 1 << 2;
        /// The shared receive queue has to be rebuilt.
        const SRQ = 1 << 3;
        /// The send queue has stopped and has to be resumed.
        const SEND = 1 << 4;
        /// The port went down.
        const PORT = 1 << 5;
        /// Addresses may have changed.
        const RESOLVE = 1 << 6;
        const ALTERNATE = 1 << 7;
        const MULTICAST = 1 << 8;
        const REFILL = 1 << 9;

        const REBUILD = Self::QP.bits() | Self::CQ.bits() | Self::SRQ.bits();
        /// The connection is lost.
        const BREAK = Self::REBUILD.bits() | Self::RESET.bits();
        /// Needs that the connection works without.
        const SIDE = Self::ALTERNATE.bits() | Self::MULTICAST.bits() | Self::REFILL.bits();
    }
}

impl Needs {
    /// The needs of a recovery, with these objects.
    pub fn of(recovery: Recovery, setup: Setup) -> Self {
        let needs = match recovery {
            Recovery::None | Recovery::CloseDevice | Recovery::DestroyId | Recovery::CloseLink => {
                Self::empty()
            }
            Recovery::ResetQp | Recovery::Reconnect => Self::RESET,
            Recovery::RebuildCq => Self::RESET | Self::CQ,
            Recovery::RebuildSrq => Self::RESET | Self::SRQ,
            Recovery::SqeToRts => Self::SEND,
            Recovery::WaitForPort => Self::PORT | Self::RESOLVE,
            Recovery::Resolve => Self::RESOLVE,
            Recovery::RejoinMulticast => Self::MULTICAST,
            Recovery::LoadAlternatePath => Self::ALTERNATE,
            Recovery::RefillSrq => Self::REFILL,
        };
        if setup.srq {
            return needs;
        }
        needs - (Self::SRQ | Self::REFILL)
    }

    /// The need that is met once the step has succeeded.
    pub const fn met_by(step: Step) -> Self {
        match step {
            Step::CreateQp => Self::QP,
            Step::CreateCq => Self::CQ,
            Step::RebuildSrq => Self::SRQ,
            Step::Resolve => Self::RESOLVE,
            Step::LoadAlternatePath => Self::ALTERNATE,
            Step::RejoinMulticast => Self::MULTICAST,
            Step::RefillSrq => Self::REFILL,
            _ => Self::empty(),
        }
    }

    /// The step for the first of these side needs.
    pub fn side_step(self) -> Step {
        if self.contains(Self::ALTERNATE) {
            Step::LoadAlternatePath
        } else if self.contains(Self::MULTICAST) {
            Step::RejoinMulticast
        } else {
            Step::RefillSrq
        }
    }
}

/// The state of the queue pairs, as far as the plan knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum QpIs {
    /// In some state other than RESET.
    Live,
    /// In RESET: no request is in flight, and none can fail.
    Quiet,
    /// Destroyed.
    Gone,
}

/// The state of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queues {
    pub qp: QpIs,
    pub cq_gone: bool,
    /// Posts are refused.
    pub stopped: bool,
    pub port_down: bool,
    /// LAST_WQE_REACHED was reported in this life of the queue pairs.
    pub last_wqe: bool,
    /// DISCONNECTED was reported in this life, and TIMEWAIT_EXIT was not.
    pub timewait: bool,
    /// The peer knows these queue pairs.
    pub peer_knows: bool,
}

impl Queues {
    pub const WORKING: Self = Self {
        qp: QpIs::Live,
        cq_gone: false,
        stopped: false,
        port_down: false,
        last_wqe: false,
        timewait: false,
        peer_knows: true,
    };

    /// Called before the step is taken.
    pub fn named(&mut self, step: Step) {
        match step {
            Step::Exchange => self.peer_knows = true,
            // Late events of the previous life do not count for this one.
            Step::Init => (self.qp, self.last_wqe, self.timewait) = (QpIs::Live, false, false),
            _ => {}
        }
    }

    /// Called after the step was taken.
    pub fn finished(&mut self, step: Step) {
        match step {
            Step::StopPosting => self.stopped = true,
            Step::Open => self.stopped = false,
            Step::AwaitPort => self.port_down = false,
            Step::AwaitTimewait => self.timewait = false,
            Step::Reset => self.qp = QpIs::Quiet,
            Step::CreateQp => (self.qp, self.peer_knows) = (QpIs::Quiet, false),
            Step::DestroyQp => self.qp = QpIs::Gone,
            Step::DestroyCq => self.cq_gone = true,
            Step::CreateCq => self.cq_gone = false,
            _ => {}
        }
    }

    /// Whether an event has ended this wait.
    pub fn is_over(&self, step: Step) -> bool {
        match step {
            Step::AwaitPort => !self.port_down,
            Step::AwaitLastWqe => self.last_wqe,
            Step::AwaitTimewait => !self.timewait,
            _ => false,
        }
    }

    /// The steps from the current state to working queues.
    pub fn steps(&self, needs: Needs, setup: Setup) -> Steps {
        use Step::*;
        let mut todo = Steps::default();
        if needs.intersects(Needs::BREAK) {
            self.disconnect(needs, setup, &mut todo);
            if setup.peer {
                todo.add(&[Exchange, Ready]);
            }
            todo.add(&[Init, RepostReceives, Connect, Replay, Open]);
        } else if needs.contains(Needs::SEND) {
            todo.add(&[StopPosting, DrainSend, ResumeSend, Replay, Open]);
        }
        if needs.contains(Needs::PORT) {
            todo.add(&[AwaitPort]);
            if !needs.intersects(Needs::BREAK) {
                todo.add(&[StopPosting, Probe, Open]);
            }
        }
        for step in [Resolve, LoadAlternatePath, RejoinMulticast, RefillSrq] {
            if needs.contains(Needs::met_by(step)) {
                todo.add(&[step]);
            }
        }
        if self.stopped {
            todo.remove(StopPosting);
            todo.add(&[Open]);
        }
        todo
    }

    /// The steps that lead to queue pairs in RESET on working queues.
    fn disconnect(&self, needs: Needs, setup: Setup, todo: &mut Steps) {
        use Step::*;
        let rebuild =
            needs.intersects(Needs::REBUILD) || setup.new_qp_per_connection && self.peer_knows;
        if self.qp == QpIs::Live {
            todo.add(&[StopPosting, ToError, AckEvents]);
            if setup.srq {
                todo.add(&[AwaitLastWqe]);
            }
            // The entries of a failed completion queue cannot be trusted.
            if !needs.contains(Needs::CQ) {
                todo.add(&[Drain]);
            }
            if self.timewait {
                todo.add(&[AwaitTimewait]);
            }
            todo.add(if rebuild { &[DestroyQp] } else { &[Reset] });
        } else if rebuild && self.qp == QpIs::Quiet {
            todo.add(&[AckEvents, DestroyQp]);
        }
        if rebuild || self.qp == QpIs::Gone {
            todo.add(&[CreateQp]);
        }
        if needs.contains(Needs::CQ) {
            todo.add(&[CreateCq]);
            if !self.cq_gone {
                todo.add(&[AckEvents, DestroyCq]);
            }
        }
        if needs.contains(Needs::SRQ) {
            todo.add(&[RebuildSrq]);
        }
    }
}
