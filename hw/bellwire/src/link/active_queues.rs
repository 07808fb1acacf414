//! The queues, as used by the data path.

use super::completion::LinkCompletion;
use super::in_flight::Again;
use super::init::LinkInit;
use super::wake::Wake;
use crate::cq::{Cq, CqInit};
use crate::error::Error;
use crate::pd::Pd;
use crate::pinned::defaults;
use crate::qp::{Qp, QpInit};
use crate::srq::Srq;
use bellwire_core::fault::outcome::{Outcome, Replay};
use bellwire_core::queue::{Completion, Success};
use bellwire_core::wqe::Operation;
use std::collections::HashMap;

/// A working connection's queues.
#[derive(Debug)]
pub(super) struct ActiveQueues {
    pub qp: Qp,
    /// The policy of each send entry, by its slot.
    pub policies: Box<[Replay]>,
    /// Slots of the receive queue.
    pub receives: u32,
    /// A record of each request that was posted again, by counter.
    pub again: HashMap<u32, Again>,
    /// Requests posted on this connection that consume a receive.
    pub sent: u64,
}

/// The parameters of a link's queue pair. `reserve`: the completion queue has room for all of its requests.
fn qp_init(init: &LinkInit, reserve: bool) -> QpInit {
    QpInit {
        reserve_cq: reserve,
        suppress_flush: false,
        ..init.qp
    }
}

/// Creates a link's queue pair, which receives from `srq` if there is one.
pub(super) fn create_qp(
    pd: &Pd,
    init: &LinkInit,
    cq: &mut Cq,
    srq: Option<&Srq>,
    reserve: bool,
) -> Result<Qp, Error> {
    let init = qp_init(init, reserve);
    match srq {
        Some(srq) => pd.create_qp_on_srq(cq, srq, &init),
        None => pd.create_qp(cq, &init),
    }
}

/// Creates a completion queue for one link.
pub(super) fn create_cq(pd: &Pd, init: &LinkInit, wake: Option<&Wake>) -> Result<Cq, Error> {
    let (sends, receives) = init.qp.cq_entries();
    let entries = init.cq_entries.unwrap_or(sends.saturating_add(receives));
    pd.device().create_cq_with(&CqInit {
        qps: 1,
        channel: wake.map(|wake| &wake.channel),
        ..CqInit::new(entries)
    })
}

impl ActiveQueues {
    /// Creates queues that are not connected; receives may be posted.
    pub fn new(
        pd: &Pd,
        init: &LinkInit,
        cq: &mut Cq,
        srq: Option<&Srq>,
        reserve: bool,
    ) -> Result<Self, Error> {
        let mut qp = create_qp(pd, init, cq, srq, reserve)?;
        qp.init(&init.connect)?;
        let (sends, _) = init.qp.cq_entries();
        let receives = qp.rq().free();
        Ok(Self {
            qp,
            policies: defaults(sends as usize)?,
            again: HashMap::new(),
            receives,
            sent: 0,
        })
    }

    /// Stores the policy of the request whose entry is at `counter`.
    #[inline(always)]
    pub fn note<O: Operation>(&mut self, counter: u32, policy: Replay) {
        let slot = counter as usize & (self.policies.len() - 1);
        // The number of slots is a power of two.
        if let Some(place) = self.policies.get_mut(slot) {
            *place = policy;
        }
        if const { O::OPERATION.consumes_receive() } {
            self.sent += 1;
        }
    }
}

/// The report of a request that succeeded.
#[inline(always)]
pub(super) fn done(completion: Completion<'static>, success: Success) -> LinkCompletion {
    LinkCompletion {
        wr_id: completion.wr_id,
        opcode: success.opcode,
        outcome: Outcome::Done,
        retired: completion.retired,
        block: completion.block,
        success: Some(success),
    }
}
