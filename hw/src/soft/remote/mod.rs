//! Queue pairs whose peer is another process of the fabric.
//!
//! ```text
//!  requester's process                            responder's process
//!  ring ─► requester: checks, packet ══ wire ══►  whoever polls, or the node's thread, under the
//!                                                 device's lock: responder, which executes the
//!                                                 entry as if it had been rung here
//!  whoever polls: answers, completes  ◄══ wire ══ answers, one for all that it has taken
//! ```
//!
//! A requester sends on without waiting, and completes what is acknowledged in order. What is not
//! taken (no receive posted, say) is sent again from there on; each request has a number, so that
//! none is executed twice.
//!
//! One-sided operations on memory that both have mapped need no packet: `direct`.
//!
//! Nothing that arrives is believed: a packet is a copy, an entry of it runs with no more rights
//! than its connection has, and a peer that writes what makes no sense loses its link.

mod answer;
mod arrival;
mod datagram;
mod direct;
mod link;
mod pull;
mod requester;
mod watch;

pub(super) use arrival::Scratch;
pub(super) use datagram::{send_datagram, send_to_all};
pub(super) use direct::Views;
pub(crate) use direct::{Door, ShownMemory, View};
pub(super) use link::run as run_node;
pub(super) use requester::run;
pub(super) use watch::Watch;

use super::control::Control;
use super::hca::Hca;
use super::qp::SendWork;
use super::record::QpRecord;
use answer::Answer;
use bellwire_core::wqe::{SEGMENT, opcode};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Where a requester's peer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub slot: usize,
    /// Which node is meant, of those that have that place one after the other.
    pub incarnation: u64,
    /// Tells this life of the queue pair from others.
    pub life: u16,
    /// Number of the next request.
    pub msn: u16,
    /// The last one sent brings something, which its own answer tells.
    pub asks: bool,
    /// Counter up to which entries have been sent: what was sent once may have been executed.
    pub sent_to: u32,
    pub door: Door,
    /// The peer's memory that was last reached.
    pub view: Option<View>,
}

/// What the lock's holder knows of a requester whose peer is another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    /// As it began. Where it stands is the data path's.
    pub work: SendWork,
    pub slot: usize,
    /// As in [`Remote`].
    pub incarnation: u64,
    /// Number of the first request that is not acknowledged.
    pub acked: u16,
    pub watch: Option<Watch>,
    /// The peer was asked for its answer since the last one.
    pub probed: bool,
}

/// What the lock's holder knows of a responder that takes requests from another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Responder {
    pub slot: usize,
    /// Which node it is connected to; zero: to the first that sends.
    pub incarnation: u64,
    /// Life of the requester, and number of the request that comes next.
    pub life: Option<u16>,
    pub expected: u16,
    /// What the requester is still to be told, if it is more than that requests were taken.
    pub owed: Option<Answer>,
    /// It is among those that owe.
    pub listed: bool,
    /// How often it came to owe that requests were taken: tells a debt from the one before it, which a
    /// packet may have told.
    pub debts: u32,
    /// What the last atomic found, should its answer be wanted again.
    pub result: u64,
    /// The requester's memory that a message was last taken from.
    pub view: Option<View>,
}

impl Responder {
    pub fn new(slot: usize, incarnation: u64) -> Self {
        Self {
            slot,
            incarnation,
            life: None,
            expected: 0,
            owed: None,
            listed: false,
            debts: 0,
            result: 0,
            view: None,
        }
    }
}

/// [`Sender::owed`](super::qp::Sender::owed), when this request of this life was taken. Never zero.
fn debt(count: u32, life: u16, msn: u16) -> u64 {
    u64::from(count.max(1)) << 32 | u64::from(life) << 16 | u64::from(msn)
}

impl Hca {
    /// A queue pair that sends to another process may have its memory looked at from here on.
    pub(super) fn speak(&self, record: &QpRecord) {
        self.show_life(record, |life| u32::from(life) | SPEAKING);
    }

    /// Nothing of it may be looked at any more: what fails is told next, and its memory used again.
    pub(super) fn fall_silent(&self, record: &QpRecord) {
        self.show_life(record, |_| 0);
    }

    /// What a peer may know of a queue pair that takes its requests.
    pub(super) fn show_responder(&self, record: &QpRecord) {
        if let (Some(node), Some(responder)) = (&self.node, &record.responder) {
            let peer = node.peer(responder.slot);
            let shown = peer.segments.our_face(record.qpn);
            let face = &record.ctx.face;
            // Relaxed: under the lock. What is shown stays what it was where another process has the
            // place by now.
            let mut accepts = face.accepts.load(Ordering::Relaxed);
            if peer.incarnation() != responder.incarnation {
                accepts = 0;
            }
            (shown.pd).store(face.pd.load(Ordering::Relaxed), Ordering::Relaxed);
            (shown.access).store(face.access.load(Ordering::Relaxed), Ordering::Relaxed);
            // Release: partner of the acquire in `direct::reach`. SeqCst where it is taken away: before
            // the barrier.
            shown.accepts.store(accepts, Ordering::SeqCst);
        }
    }

    /// Waits until the requester of a queue pair that was shut has let go of its memory.
    pub(super) fn wait_for_requester(&self, record: &QpRecord) {
        if let (Some(node), Some(responder)) = (&self.node, &record.responder) {
            let peer = node.peer(responder.slot);
            if peer.incarnation() == responder.incarnation {
                self.barriers.heavy_everywhere();
                let section = peer.segments.their_section(record.attr.dest_qp_num);
                let _left = section.wait_bounded(STUCK);
            }
        }
    }

    /// Waits until all requesters of other processes have let go of what was taken away.
    pub(super) fn wait_for_requesters(&self, control: &Control) {
        let Some(node) = &self.node else { return };
        node.live()
            .for_each(|slot| node.peer(slot).segments.note_revoked());
        if control
            .qps
            .iter()
            .flatten()
            .all(|record| record.responder.is_none())
        {
            return;
        }
        self.barriers.heavy_everywhere();
        // One that does not come out of it is waited for once, not for each of its connections.
        let mut stuck = 0u64;
        for record in control.qps.iter().flatten() {
            if let Some(responder) = &record.responder
                && stuck & 1 << responder.slot == 0
            {
                let peer = node.peer(responder.slot);
                let section = peer.segments.their_section(record.attr.dest_qp_num);
                if !section.wait_bounded(STUCK) {
                    stuck |= 1 << responder.slot;
                }
            }
        }
    }

    fn show_life(&self, record: &QpRecord, word: impl FnOnce(u16) -> u32) {
        if let (Some(node), Some(requester)) = (&self.node, &record.requester) {
            let peer = node.peer(requester.slot);
            // A window that shows another peer's memory by now would tell that one.
            if peer.incarnation() == requester.incarnation {
                peer.segments.set_life(record.qpn, word(record.lives));
            }
        }
    }
}

/// How long a process may be in the middle of an operation until it counts as stopped.
const STUCK: Duration = Duration::from_millis(250);

/// Bytes of the segments between an entry's remote address and its data, with the address.
const fn address_bytes(opcode: u8) -> usize {
    match opcode {
        opcode::ATOMIC_CS | opcode::ATOMIC_FA => 2 * SEGMENT,
        _ => SEGMENT,
    }
}

/// In a life's word: the queue pair sends.
const SPEAKING: u32 = 1 << 16;

/// In a packet's flags: the entry's data follows the entry.
const EAGER: u8 = 1;
/// In a packet's flags: where the entry's data is, in the requester's memory, follows the entry.
const PULLED: u8 = 2;
/// In a packet's flags: that is memory which may be mapped.
const MAPPED: u8 = 16;
/// In a packet's flags: it is acknowledged whether it is taken or not.
const UNRELIABLE: u8 = 4;
/// In a packet's flags: its requester waits for the answer (IBTA 9.7.5.1.1: AckReq).
const ASKS: u8 = 8;
