//! Requests that are read back from the rings, and posted again.
//!
//! An entry stays in its ring until a later post overwrites it, and nothing is posted while a link
//! recovers: so nothing is copied before something has failed. Receives that are posted during the first
//! connection overwrite only entries of requests that were reported, which were read when they were.

use super::cancel::{Cancels, Marks, Taking};
use super::completion::LinkCompletion;
use super::in_flight::Pending;
use super::recovering_queues::RecoveringQueues;
use crate::error::Error;
use crate::pinned::collected;
use crate::qp::Qp;
use bellwire_core::fault::outcome::{Doubt, Outcome};
use bellwire_core::queue::PostError;
use bellwire_core::slab::Block;
use bellwire_core::wr::{QpType, Sge, WcOpcode, WcStatus, WrOpcode};

/// A receive that was not consumed, with everything that is needed to post it.
#[derive(Debug)]
pub(super) struct Receive {
    pub wr_id: u64,
    pub block: Option<Block<'static>>,
    /// Its memory, if it has no block. `None`: there was no memory for a copy of its entry.
    sges: Option<Vec<Sge>>,
    /// The device reported that it was not consumed, or never had it. Otherwise its completion is
    /// missing.
    pub unconsumed: bool,
    /// Whether and when it is taken back.
    pub taking: Taking,
}

impl Receive {
    /// A receive that was never in a queue.
    pub fn of_block(wr_id: u64, block: Block<'static>) -> Self {
        Self {
            wr_id,
            block: Some(block),
            sges: Some(Vec::new()),
            unconsumed: true,
            taking: Taking::default(),
        }
    }

    /// A receive that was never in a queue, without a block.
    ///
    /// # Safety
    /// The memory that `sges` refer to stays valid, and the program does not access it until the receive
    /// is reported.
    ///
    /// # Errors
    /// There is not enough memory.
    pub unsafe fn of_memory(wr_id: u64, sges: &[Sge]) -> Result<Self, Error> {
        Ok(Self {
            wr_id,
            block: None,
            sges: Some(collected(sges.iter().copied())?),
            unconsumed: true,
            taking: Taking::default(),
        })
    }

    /// Its outcome if it is not posted again, and not taken back.
    pub fn outcome(&self) -> Outcome {
        match self.unconsumed {
            true => Outcome::NotExecuted,
            false => Outcome::InDoubt(Doubt::NoAnswer),
        }
    }

    /// The outcome that [`completion`](Self::completion) has.
    pub fn last_outcome(&self) -> Outcome {
        let outcome = self.outcome();
        let why = self.taking.why;
        why.map_or(outcome, |why| outcome.taken_back(why))
    }

    pub fn completion(self, outcome: Outcome) -> LinkCompletion {
        let outcome = match self.taking.why {
            Some(why) => outcome.taken_back(why),
            None => outcome,
        };
        LinkCompletion {
            wr_id: self.wr_id,
            opcode: WcOpcode::Recv,
            outcome,
            retired: 1,
            block: self.block,
            success: None,
        }
    }
}

/// Reads back the send whose entry is at `counter`. Call it before anything is posted.
pub(super) fn pending(
    queues: &mut RecoveringQueues,
    cancels: &Cancels,
    counter: u32,
    wr_id: u64,
    block: Option<Block<'static>>,
    status: Option<WcStatus>,
) -> Pending {
    let slot = counter as usize & (queues.policies.len() - 1);
    let policy = queues.policies[slot];
    let rung = queues.rung.wrapping_sub(counter) as i32 > 0;
    let entry = queues.qp.as_mut().and_then(|qp| {
        let sq = qp.sq();
        let wqe = sq.entry(counter)?;
        let (head, tail) = wqe.bytes();
        let request = wqe.request(QpType::Rc).ok()?;
        // Without memory for a copy the entry is not posted again: the link ends, and reports it.
        let mut entry = Vec::new();
        if entry.try_reserve_exact(head.len() + tail.len()).is_ok() {
            entry.extend_from_slice(head);
            entry.extend_from_slice(tail);
        }
        Some((request.operation(), request.is_fenced(), entry))
    });
    debug_assert!(entry.is_some(), "nobody posts while a link recovers");
    // An entry that cannot be read cannot be posted again either.
    let (operation, fenced, entry) = entry.unwrap_or((WrOpcode::Send, false, Vec::new()));
    Pending {
        wr_id,
        block,
        operation,
        fenced,
        policy,
        before: queues.again.get(&counter).copied(),
        status,
        rung,
        taking: cancels.sends.taking(counter),
        entry,
    }
}

/// Reads back the receive whose entry is at `counter`. Call it before anything is posted.
pub(super) fn receive(
    queues: &mut RecoveringQueues,
    cancels: &Cancels,
    counter: u32,
    wr_id: u64,
    block: Option<Block<'static>>,
    unconsumed: bool,
) -> Receive {
    let sges = match (&block, &mut queues.qp) {
        (None, Some(qp)) => match qp.rq().entry(counter) {
            Some(sges) => collected(sges).ok(),
            None => Some(Vec::new()),
        },
        _ => Some(Vec::new()),
    };
    Receive {
        wr_id,
        block,
        sges,
        unconsumed,
        taking: cancels.receives.taking(counter),
    }
}

/// Stages a send again.
///
/// # Errors
/// Returns the send if the queue refuses it.
pub(super) fn repost_send(
    queues: &mut RecoveringQueues,
    sends: &mut Marks,
    pending: Pending,
) -> Result<(), (PostError, Pending)> {
    // Without memory to note it, or for its entry, the link ends, and reports it.
    if pending.entry.is_empty() {
        return Err((PostError::QueueFull, pending));
    }
    if pending.before.is_some() && queues.again.try_reserve(1).is_err() {
        return Err((PostError::QueueFull, pending));
    }
    let Some(qp) = &mut queues.qp else {
        return Err((PostError::WrongState, pending));
    };
    let Pending {
        wr_id,
        block,
        entry,
        ..
    } = pending;
    let counter = qp.sq().counter();
    // SAFETY: the entry was read from this link's queue, where it had been posted; its poster guaranteed
    // that the memory it refers to stays valid until the request is reported, which has not happened yet.
    let answer = unsafe { qp.sq().repost(wr_id, &entry, block) };
    match answer {
        Ok(()) => {
            let slot = counter as usize & (queues.policies.len() - 1);
            queues.policies[slot] = pending.policy;
            if let Some(again) = pending.before {
                queues.again.insert(counter, again);
            }
            if let Some(at) = pending.taking.deadline {
                sends.set(counter, at);
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

/// Stages a receive, again or for the first time.
///
/// # Errors
/// Returns the receive if the queue refuses it.
pub(super) fn post_receive(
    qp: &mut Qp,
    receives: &mut Marks,
    receive: Receive,
) -> Result<(), Receive> {
    let Receive {
        wr_id,
        block,
        sges,
        unconsumed,
        taking,
    } = receive;
    let counter = qp.rq().counter();
    let block = match block {
        Some(block) => qp
            .rq()
            .post_block(wr_id, block)
            .map_err(|it| Some(it.block)),
        None => match &sges {
            // SAFETY: the poster guaranteed that the memory stays valid until the receive is reported.
            Some(sges) => unsafe { qp.rq().post(wr_id, sges) }.map_err(|_| None),
            None => Err(None),
        },
    };
    if let (Ok(()), Some(at)) = (&block, taking.deadline) {
        receives.set(counter, at);
    }
    block.map_err(|block| Receive {
        wr_id,
        block,
        sges,
        unconsumed,
        taking,
    })
}
