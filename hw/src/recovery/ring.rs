//! Requests that are read back from the rings, and posted again.
//!
//! An entry stays in its ring until the poster overwrites it, and nobody posts while a link recovers:
//! so nothing is copied before something has failed.

use super::life::Life;
use super::limbo::Pending;
use super::told::Told;
use crate::qp::Qp;
use bellwire_core::fault::outcome::Outcome;
use bellwire_core::queue::PostError;
use bellwire_core::slab::Block;
use bellwire_core::wqe::fm_ce_se;
use bellwire_core::wr::{Sge, WcOpcode, WcStatus, WrOpcode};

/// A receive that was not consumed, with all that it takes to post it again.
#[derive(Debug)]
pub(super) struct Receive {
    pub wr_id: u64,
    pub block: Option<Block<'static>>,
    /// Its memory, where no block is.
    sges: Vec<Sge>,
    /// The device said that it was not consumed. Else its completion is missing.
    pub flushed: bool,
}

impl Receive {
    pub fn told(self, outcome: Outcome) -> Told {
        Told {
            wr_id: self.wr_id,
            opcode: WcOpcode::Recv,
            outcome,
            retired: 1,
            block: self.block,
            success: None,
        }
    }
}

/// The send whose entry is at `counter`. Before anything is posted.
pub(super) fn pending(
    life: &mut Life,
    counter: u32,
    wr_id: u64,
    block: Option<Block<'static>>,
    status: Option<WcStatus>,
) -> Pending {
    let slot = counter as usize & (life.policies.len() - 1);
    let policy = life.policies[slot];
    let rung = life.rung.wrapping_sub(counter) as i32 > 0;
    let entry = life.qp.as_mut().and_then(|qp| {
        let wqe = qp.sq().entry(counter)?;
        let (head, tail) = wqe.bytes();
        let fenced = wqe.fm_ce_se() & fm_ce_se::FENCE == fm_ce_se::FENCE;
        Some((wqe.operation()?, fenced, [head, tail].concat()))
    });
    debug_assert!(entry.is_some(), "nobody posts while a link recovers");
    // What cannot be read cannot be posted again either.
    let (operation, fenced, entry) = entry.unwrap_or((WrOpcode::Send, false, Vec::new()));
    Pending {
        wr_id,
        block,
        operation,
        fenced,
        policy,
        before: life.doubts.get(&counter).copied(),
        status,
        rung,
        entry,
    }
}

/// The receive whose entry is at `counter`. Before anything is posted.
pub(super) fn receive(
    life: &mut Life,
    counter: u32,
    wr_id: u64,
    block: Option<Block<'static>>,
    flushed: bool,
) -> Receive {
    let sges = match (&block, &mut life.qp) {
        (None, Some(qp)) => qp
            .rq()
            .entry(counter)
            .map_or_else(Vec::new, Iterator::collect),
        _ => Vec::new(),
    };
    Receive {
        wr_id,
        block,
        sges,
        flushed,
    }
}

/// Stages a send again.
///
/// # Errors
/// It, where the queue does not take it.
pub(super) fn repost_send(life: &mut Life, pending: Pending) -> Result<(), (PostError, Pending)> {
    let Some(qp) = &mut life.qp else {
        return Err((PostError::WrongState, pending));
    };
    let Pending {
        wr_id,
        block,
        entry,
        ..
    } = pending;
    let counter = qp.sq().counter();
    // SAFETY: the entry was read from this link's queue, where it had been posted; the memory that it
    // names is its poster's promise until the request is told, which it is not yet.
    let answer = unsafe { qp.sq().repost(wr_id, &entry, block) };
    match answer {
        Ok(()) => {
            let slot = counter as usize & (life.policies.len() - 1);
            life.policies[slot] = pending.policy;
            if let Some(doubt) = pending.before {
                life.doubts.insert(counter, doubt);
            }
            Ok(())
        }
        Err(rejected) => Err((
            rejected.error,
            Pending {
                block: rejected.block,
                entry,
                ..pending
            },
        )),
    }
}

/// Stages a receive again.
///
/// # Errors
/// It, where the queue does not take it.
pub(super) fn repost_receive(qp: &mut Qp, receive: Receive) -> Result<(), Receive> {
    let Receive {
        wr_id,
        block,
        sges,
        flushed,
    } = receive;
    let block = match block {
        Some(block) => qp
            .rq()
            .post_block(wr_id, block)
            .map_err(|it| Some(it.block)),
        // SAFETY: as posted before; the memory is its poster's promise until the receive is told.
        None => unsafe { qp.rq().post(wr_id, &sges) }.map_err(|_| None),
    };
    block.map_err(|block| Receive {
        wr_id,
        block,
        sges,
        flushed,
    })
}
