//! The state of a queue pair that the device's lock protects.

use super::cq::CqCtx;
use super::gate::Way;
use super::qp::{QpCtx, SendWork};
use super::remote;
use super::srq::SrqCtx;
use crate::event::{AsyncQueue, Element, EventType};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpState};
use bellwire_core::wqe::{RecvRing, SendRing, SendWqe};
use bellwire_core::wr::{QpType, WcStatus};
use bellwire_provider::life::Life;
use bellwire_provider::quiesce::Barriers;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue pair's resources, which the program's side owns and keeps until the queue pair is destroyed.
#[derive(Clone, Debug)]
pub struct QpParts {
    /// The transport service.
    pub transport: QpType,
    /// Its protection domain.
    pub pd: u32,
    /// Send queue and its completion queue; an XRC target has none.
    pub send: Option<(SendRing<'static>, &'static CqCtx)>,
    /// Source of its receives.
    pub recv: RecvParts,
    /// The event queue of the context that it was created in.
    pub events: Arc<AsyncQueue>,
}

/// Source of a queue pair's receives, and their completion queue.
#[derive(Clone, Copy, Debug)]
pub enum RecvParts {
    /// An XRC initiator has none.
    None,
    /// A receive queue of its own.
    Own {
        /// Its entries.
        ring: RecvRing<'static>,
        /// The doorbell record, which says how far receives have been posted.
        record: &'static DoorbellRecord,
        /// The completion queue of its receives.
        cq: &'static CqCtx,
    },
    /// A shared receive queue.
    Shared {
        /// The queue.
        srq: &'static SrqCtx,
        /// The completion queue of its receives.
        cq: &'static CqCtx,
    },
    /// The shared receive queue that each request names.
    Xrc {
        /// The XRC domain that the shared receive queue has to belong to.
        domain: u32,
    },
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

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Distinguishes its timer from those of earlier stalls.
    pub id: u64,
    /// Counter of the entry that waits.
    pub counter: u32,
    pub rnr_left: u8,
    pub retries_left: u8,
    pub wait: Wait,
    /// The request was executed, with this many bytes; only its acknowledgement is missing.
    pub executed: Option<u32>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A receive at the peer.
    Rnr,
    Acknowledgement,
    /// Its packet, which is delayed.
    Delay,
}

/// The state of a queue pair that the device's lock protects.
#[derive(Debug)]
pub(super) struct QpRecord {
    pub qpn: u32,
    pub ctx: &'static QpCtx,
    pub parts: QpParts,
    pub life: Life,
    pub state: QpState,
    /// The data path is kept out of its sends: it is `closed`, and whoever may have seen it open has left since.
    /// So there is nothing to wait for until it is opened again.
    pub kept_out: bool,
    /// While it is taken out: the connection that it accepted until then, or zero.
    pub left_by: u64,
    pub attr: QpAttr,
    pub stall: Option<Stall>,
    /// Its completion queues that are known to have failed.
    pub dead_cqs: [Option<u32>; 2],
    /// Completion status of requests that are not executed: flushed, unless the device has failed.
    pub flush_status: WcStatus,
    /// Number of the current life: how many lives in which it sends have begun.
    pub lives: u16,
    /// Set while it sends to another process.
    pub requester: Option<remote::Requester>,
    /// Set while it takes requests from another process.
    pub responder: Option<remote::Responder>,
    /// A packet of the connection has arrived.
    pub established: bool,
}

impl QpRecord {
    /// Whether the next entry waits for something.
    pub fn waits(&self) -> bool {
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let work = unsafe { &*self.ctx.sender.work.get() };
        let at = work.as_ref().map(|work| work.consumer);
        self.stall.is_some_and(|stall| Some(stall.counter) == at)
    }

    /// The stall of the entry at this counter; a new one if the entry does not wait yet.
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

    /// The work of a closed queue pair, and the counter up to which its state allows execution.
    pub fn runnable(&mut self) -> Option<(&mut SendWork, u32)> {
        let sender = &self.ctx.sender;
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let work = unsafe { &mut *sender.work.get() }.as_mut()?;
        let end = if self.state == QpState::Rts {
            // Acquire: pairs with the Release in `Hca::ring`.
            sender.producer.load(Ordering::Acquire)
        } else if self.state == QpState::Sqd {
            // Draining: the entry that was started is finished, and no other is started.
            let stall = self.stall?;
            // SAFETY: posted, and either not completed or its completion not yet reported.
            let wqe = unsafe { SendWqe::read(work.ring, stall.counter) };
            stall.counter.wrapping_add(wqe.blocks())
        } else {
            return None;
        };
        Some((work, end))
    }

    /// Opens its sends to the data path.
    pub fn open(&mut self) {
        self.kept_out = false;
        let sender = &self.ctx.sender;
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let way = unsafe { &*sender.work.get() }
            .as_ref()
            .map_or(Way::Other, |work| work.way);
        sender.gate.open(way, Barriers::get());
    }

    /// Raises an asynchronous event in the queue pair's context. It may take a system call, so it is for rare
    /// events only (errors, drains and the like).
    pub fn raise(&self, event: EventType) {
        // Not delivered while the queue pair is being destroyed.
        let _known = self.parts.events.push(Element::Qp(self.qpn), event);
    }

    /// Whether its receives come from this shared receive queue.
    pub fn receives_from(&self, queue: &SrqCtx) -> bool {
        match self.parts.recv {
            RecvParts::Shared { srq, .. } => std::ptr::eq(srq, queue),
            _ => false,
        }
    }

    /// Whether it has a receive queue of its own, whose receives are flushed.
    pub fn has_receive_queue(&self) -> bool {
        matches!(self.parts.recv, RecvParts::Own { .. })
    }

    /// Whether the failure of the completion queue is new to this queue pair.
    pub fn fatal(&mut self, cqn: u32) -> bool {
        let first = !self.dead_cqs.contains(&Some(cqn));
        if first {
            self.dead_cqs = [self.dead_cqs[1], Some(cqn)];
        }
        first
    }

    /// Everything that was started before the queue pair went to SQD has been finished.
    pub fn drained(&self) {
        if self.attr.en_sqd_async_notify {
            self.raise(EventType::SqDrained);
        }
    }
}
