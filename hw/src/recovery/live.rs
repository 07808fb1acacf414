//! What the data path touches.

use super::init::LinkInit;
use super::told::Told;
use super::wake::Wake;
use crate::cq::{Cq, CqInit};
use crate::error::Error;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use bellwire_core::fault::outcome::{Doubt, Outcome, Replay, consumes_receive};
use bellwire_core::queue::{Completion, Success};
use bellwire_core::wqe::{Operation, opcode};
use std::collections::HashMap;

/// A working connection's queues.
#[derive(Debug)]
pub(super) struct Live {
    pub qp: Qp,
    pub cq: Cq,
    /// Of each send entry, by the slot that it stands in.
    pub policies: Box<[Replay]>,
    /// Slots of the receive queue.
    pub receives: u32,
    /// Of requests that were posted again though they may have been executed, by their counters.
    pub doubts: HashMap<u32, Doubt>,
    /// Requests posted on this connection that consume a receive.
    pub sent: u64,
    /// Receives consumed on it.
    pub received: u64,
}

/// Whether the operation of this opcode consumes a receive at the peer.
const fn consumes(code: u8) -> bool {
    match opcode::operation(code) {
        Some(operation) => consumes_receive(operation),
        None => false,
    }
}

/// How the queue pair of a link is made.
pub(super) fn qp_init(init: &LinkInit) -> QpInit {
    QpInit {
        reserve_cq: init.cq_entries.is_none(),
        suppress_flush: false,
        ..init.qp
    }
}

/// A completion queue for it.
pub(super) fn create_cq(pd: &Pd, init: &LinkInit, wake: Option<&Wake>) -> Result<Cq, Error> {
    let (sends, receives) = init.qp.cq_entries();
    let entries = init.cq_entries.unwrap_or(sends.saturating_add(receives));
    pd.device().create_cq_with(&CqInit {
        qps: 1,
        channel: wake.map(|wake| &wake.channel),
        ..CqInit::new(entries)
    })
}

impl Live {
    /// Queues that are not connected; receives may be posted.
    pub fn new(pd: &Pd, init: &LinkInit, wake: Option<&Wake>) -> Result<Self, Error> {
        let mut cq = create_cq(pd, init, wake)?;
        let mut qp = pd.create_qp(&mut cq, &qp_init(init))?;
        qp.init(&init.connect)?;
        let (sends, receives) = init.qp.cq_entries();
        Ok(Self {
            qp,
            cq,
            policies: vec![Replay::default(); sends as usize].into(),
            doubts: HashMap::new(),
            receives,
            sent: 0,
            received: 0,
        })
    }

    /// Notes what is to become of a request, should the connection fail; `counter` is its entry's.
    #[inline(always)]
    pub fn note<O: Operation>(&mut self, counter: u32, policy: Replay) {
        let slot = counter as usize & (self.policies.len() - 1);
        // The number of slots is a power of two.
        if let Some(place) = self.policies.get_mut(slot) {
            *place = policy;
        }
        if const { consumes(O::OPCODE) } {
            self.sent += 1;
        }
    }
}

/// A request that ended well.
#[inline(always)]
pub(super) fn done(completion: Completion<'static>, success: Success) -> Told {
    Told {
        wr_id: completion.wr_id,
        opcode: success.opcode,
        outcome: Outcome::Done,
        retired: completion.retired,
        block: completion.block,
        success: Some(success),
    }
}
