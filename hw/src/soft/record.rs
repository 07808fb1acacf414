//! A queue pair as the lock's holder sees it.

use super::cq::CqCtx;
use super::qp::{QpCtx, SendWork};
use super::remote;
use super::srq::SrqCtx;
use crate::event::{AsyncQueue, Element, EventType};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpState};
use bellwire_core::wqe::{RecvRing, SendRing, SendWqe};
use bellwire_core::wr::{QpType, WcStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue pair's resources, which the program's side owns and keeps until it is destroyed.
#[derive(Clone, Debug)]
pub(crate) struct QpParts {
    pub transport: QpType,
    pub pd: u32,
    /// Send queue and its completion queue; an XRC target has none.
    pub send: Option<(SendRing<'static>, &'static CqCtx)>,
    pub recv: RecvParts,
    /// Those of the context that it was created in.
    pub events: Arc<AsyncQueue>,
}

/// Where a queue pair's receives come from, and where they complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecvParts {
    /// An XRC initiator has none.
    None,
    Own {
        ring: RecvRing<'static>,
        record: &'static DoorbellRecord,
        cq: &'static CqCtx,
    },
    Shared {
        srq: &'static SrqCtx,
        cq: &'static CqCtx,
    },
    /// What each request names, of this domain.
    Xrc { domain: u32 },
}

impl QpParts {
    /// The completion queues of its sends, and of its receives.
    pub fn cqs(&self) -> [Option<&'static CqCtx>; 2] {
        let recv = match self.recv {
            RecvParts::Own { cq, .. } | RecvParts::Shared { cq, .. } => Some(cq),
            RecvParts::None | RecvParts::Xrc { .. } => None,
        };
        [self.send.map(|(_, cq)| cq), recv]
    }
}

/// What tells one life of a queue pair from the next: where its counters start, and how its
/// completions name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub send_start: u32,
    pub send_user_index: u32,
    pub recv_user_index: u32,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Tells its timer from those of earlier stalls.
    pub id: u64,
    /// Counter of the entry that waits.
    pub counter: u32,
    pub rnr_left: u8,
    pub retries_left: u8,
    pub wait: Wait,
    /// It was executed already, bringing so many bytes, and only its acknowledgement is missing.
    pub executed: Option<u32>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A receive at the peer.
    Rnr,
    Acknowledgement,
    /// Its packet, which takes longer.
    Delay,
}

/// A queue pair as the lock's holder sees it.
#[derive(Debug)]
pub(super) struct QpRecord {
    pub qpn: u32,
    pub ctx: &'static QpCtx,
    pub parts: QpParts,
    pub life: Life,
    pub state: QpState,
    pub attr: QpAttr,
    pub stall: Option<Stall>,
    /// Its completion queues that are known to be dead.
    pub dead_cqs: [Option<u32>; 2],
    /// How what is not executed is told: flushed, unless the device is dead.
    pub flush_status: WcStatus,
    /// Lives that it has begun to send in: the number of the one that it is in.
    pub lives: u16,
    /// Set while it sends to another process.
    pub requester: Option<remote::Requester>,
    /// Set while it takes requests from another process.
    pub responder: Option<remote::Responder>,
}

impl QpRecord {
    /// Whether the next entry waits for something.
    pub fn waits(&self) -> bool {
        // SAFETY: closed, and the lock is held: the work is ours.
        let work = unsafe { &*self.ctx.sender.work.get() };
        let at = work.as_ref().map(|work| work.consumer);
        self.stall.is_some_and(|stall| Some(stall.counter) == at)
    }

    /// What is known of the entry at this counter, should it wait already.
    pub fn stall_at(&self, counter: u32) -> Stall {
        match self.stall {
            Some(stall) if stall.counter == counter => stall,
            _ => Stall {
                id: 0,
                counter,
                rnr_left: self.attr.rnr_retry,
                retries_left: self.attr.retry_cnt,
                wait: Wait::Delay,
                executed: None,
            },
        }
    }

    /// A closed queue pair's work, and the counter up to which its state lets it be executed.
    pub fn runnable(&mut self) -> Option<(&mut SendWork, u32)> {
        let sender = &self.ctx.sender;
        // SAFETY: closed, and the lock is held: the work is ours.
        let work = unsafe { &mut *sender.work.get() }.as_mut()?;
        let end = if self.state == QpState::Rts {
            // Acquire: partner of the release in `Hca::ring`.
            sender.producer.load(Ordering::Acquire)
        } else if self.state == QpState::Sqd {
            // Draining: what was started is finished, and nothing else begun.
            let stall = self.stall?;
            // SAFETY: rung and not completed, or just completed and not yet told.
            let wqe = unsafe { SendWqe::read(work.ring, stall.counter) };
            stall.counter.wrapping_add(wqe.blocks())
        } else {
            return None;
        };
        Some((work, end))
    }

    /// Tells the queue pair's context of an event. For errors, drains and the like: it may take a
    /// system call.
    pub fn raise(&self, event: EventType) {
        // Between its destruction and its last event nobody wants to know.
        let _known = self.parts.events.push(Element::Qp(self.qpn), event);
    }

    /// Whether its receives come from this shared receive queue.
    pub fn receives_from(&self, queue: &SrqCtx) -> bool {
        match self.parts.recv {
            RecvParts::Shared { srq, .. } => std::ptr::eq(srq, queue),
            _ => false,
        }
    }

    /// Whether this is the first that is heard of the completion queue's death.
    pub fn fatal(&mut self, cqn: u32) -> bool {
        let first = !self.dead_cqs.contains(&Some(cqn));
        if first {
            self.dead_cqs = [self.dead_cqs[1], Some(cqn)];
        }
        first
    }

    /// What was started before the queue pair went to SQD has been finished.
    pub fn drained(&self) {
        if self.attr.en_sqd_async_notify {
            self.raise(EventType::SqDrained);
        }
    }
}

/// How a responder, and the requester that it takes requests from, name their connection. Queue pair
/// numbers have 24 bits.
pub(super) fn connection(responder: u32, requester: u32) -> u64 {
    u64::from(responder) << 32 | u64::from(requester)
}

/// As [`connection`], of a requester in another process, whose node has this identifier: at most 64,
/// so that it fits above a queue pair number and the bit of [`datagrams`].
pub(super) fn connection_with(responder: u32, requester: u32, lid: u16) -> u64 {
    connection(responder, requester) | u64::from(lid) << 25
}

/// The number of the requester in this process that a connection names.
pub(super) fn requester(connection: u64) -> Option<u32> {
    let low = connection as u32;
    (low >> 24 == 0).then_some(low)
}

/// In [`Face::accepts`](super::qp::Face::accepts): nothing has arrived on the connection yet.
pub(super) const UNTRIED: u64 = 1 << 63;

/// How a responder says that it takes anybody's datagrams.
pub(super) fn datagrams(responder: u32) -> u64 {
    u64::from(responder) << 32 | 1 << 24
}
