//! Queries of a link.

use super::counters::Counters;
use super::handle::{Link, StateOwner};
use crate::cq::Cq;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::link::RemoteMemory;
use bellwire_core::qp::QpAttr;

impl Link {
    /// Counts of faults, recoveries and outcomes. `None` while the link recovers in a thread.
    pub fn counters(&self) -> Option<Counters> {
        self.recovery_state().map(|state| state.counters)
    }

    /// The number of the connection, from 1: each recovery makes a new one.
    pub fn epoch(&self) -> u64 {
        self.recovery_state()
            .map_or(0, |state| state.protocol.epoch())
    }

    /// The memory that the peer has opened to this end, as sent for the last connection.
    pub fn peer_memory(&self) -> Option<RemoteMemory> {
        Some(self.recovery_state()?.protocol.peer_info()?.conn.memory)
    }

    /// Number of the queue pair. `None` while there is none, or a thread has it. A rebuilt queue pair has
    /// another number.
    pub fn qp_num(&self) -> Option<u32> {
        self.qp().map(Qp::qp_num)
    }

    /// State and attributes of the queue pair, as queried from the device; `None` as for
    /// [`qp_num`](Self::qp_num).
    pub fn qp_attr(&self) -> Option<QpAttr> {
        self.qp().map(Qp::query)
    }

    fn qp(&self) -> Option<&Qp> {
        let active = self.active.as_ref().map(|active| &active.qp);
        active.or_else(|| self.recovery_state()?.queues.as_ref()?.qp.as_ref())
    }

    /// Number of the completion queue; `None` while there is none, or a thread has it.
    pub fn cqn(&self) -> Option<u32> {
        let active = self.active.as_ref().map(|active| &active.cq);
        let cq = active.or_else(|| self.recovery_state()?.queues.as_ref()?.cq.as_ref());
        cq.map(Cq::cqn)
    }

    /// What the queue pair did last, as returned by [`Qp::dump`]; the link's faults are among the notes.
    /// `None` while there is no queue pair, or a thread has it.
    pub fn dump(&mut self, options: &DumpOptions) -> Option<Record> {
        match (&mut self.active, &mut self.recovery) {
            (Some(active), _) => active.qp.dump(&mut active.cq, options).ok(),
            (None, StateOwner::Here(state)) => state.queues.as_mut()?.dump(options),
            _ => None,
        }
    }

    /// What the queue pair of the last connection that failed had done by then; the queue pair itself has
    /// been reset or replaced since. `None` if none has failed, if
    /// [`LinkInit::dump`](super::LinkInit::dump) does not ask for it, and while a thread has it.
    pub fn failure(&self) -> Option<&Record> {
        self.recovery_state()?.failure.as_ref()
    }

    /// The protection domain.
    pub fn pd(&self) -> Option<&Pd> {
        self.recovery_state().map(|state| &state.pd)
    }
}
