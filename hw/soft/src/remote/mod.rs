//! Queue pairs whose peer is in another process of the fabric.
//!
//! ```text
//!  requester's process                            responder's process
//!  ring ─► requester: checks, packet ══ wire ══►  a poller: receives messages without the device's lock;
//!                                                 or a poller or the node's thread, under the lock:
//!                                                 responder, which executes the entry as if it had
//!                                                 been posted in this process
//!  a poller: responses, completes    ◄══ wire ══  responses, one for all requests taken so far
//! ```
//!
//! A requester sends without waiting for the previous response, and completes requests in order as they are
//! acknowledged. If a request is not accepted (because no receive is posted, for example), the requester
//! sends it and all later ones again. Each request has a number, so that none is executed twice.
//!
//! One-sided operations on memory that both processes have mapped need no packet: see `direct`.
//!
//! Nothing that arrives is trusted: a packet is copied before it is checked, its entry runs with no more
//! rights than its connection has, and a peer that writes invalid data loses its link.
//!
//! # Packets
//! A packet carries the send entry itself. Data of up to 768 bytes is in the entry, and data of up to 2 KiB follows
//! it. Longer data, of one piece or several, is copied by the responder from the requester's memory directly to its
//! destination, if it has that memory mapped: at most 1 MiB for each packet, and at most twice that from one peer
//! before the others have their turn and the lock is released. Otherwise up to 4 KiB follow the entry, and more does
//! in parts of up to 4 KiB, each in a packet of its own. A responder that cannot map the memory reports that, and is
//! sent the data from then on. The parts of a message are placed as they arrive; with the last one its receive is
//! completed, or the WRITE acknowledged. A READ that the requester cannot execute by itself is answered with such
//! packets, up to 32 at a time, and requested again from where they end.
//!
//! For a plain SEND of up to 32 bytes one cache line moves between the processors. It is written at once, its first word
//! last, because the reader polls that word all the time.
//!
//! # Who reads them
//! A thread that polls a completion queue of the responder's process and finds nothing reads the packets. One
//! thread at a time reads those of a peer; a thread that always does so takes its turn without a locked instruction
//! (see `turn::biased`). It handles frequent, simple packets without the device's lock (see `look` and
//! `unlocked`). It executes the other entries under the lock, if the lock is free. When no thread
//! polls, the node's thread reads them. A peer wakes it if packets stay unread for 20 µs, or at once if a completion
//! queue is armed.
//!
//! # Acknowledgements
//! A response acknowledges all requests before it. It travels with the next packet in the other direction. If the
//! requester waits, as for a signalled request, it travels at once, in a packet for up to five connections (see `acks`).
//!
//! Requests that are outstanding when their queue pair fails are flushed. A flushed request is not executed any more: the
//! responder checks the requester's life before and after it copies.
//!
//! # Memory
//! The keys and the memory that a peer exports are used to find an address in a mapping of this process,
//! within its bounds. Whether there is a mapping is never read from the peer.

mod accepted;
mod acks;
mod answer;
mod arrival;
mod data;
mod datagram;
mod direct;
mod eager;
mod entry;
mod inbound;
mod link;
mod look;
mod outgoing;
mod packet;
mod place;
mod plain;
mod post;
mod pulled;
mod read;
mod requester;
mod send;
mod unlocked;
mod views;
mod watch;

pub use accepted::{Accepted, Acknowledged};
pub(super) use arrival::Scratch;
pub(super) use datagram::{send_datagram, send_to_all};
pub use direct::{PeerGrant, PeerHandle, ShownMemory};
pub(super) use inbound::Completing;
pub use inbound::Inbound;
pub(super) use link::run as run_node;
pub(super) use look::Looks;
pub(super) use read::READ_AT_ONCE;
pub(super) use requester::run;
pub(super) use send::{PLAIN, WITH_IMM, reach_there};
pub(super) use views::Views;
pub use views::{Sources, View};
pub(super) use watch::{Round, Watch};

use super::connection::{UNTRIED, in_life};
use super::hca::Hca;
use super::packets::Packets;
use super::qp::SendWork;
use super::record::QpRecord;
use crate::fabric::Name;
use answer::Answer;
use bellwire_provider::pinned::collected;
use bellwire_provider::quiesce::{Section, wait_until_left};
use data::Partial;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Where a requester's peer is. What a short message needs is in front.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Remote {
    pub handle: PeerHandle,
    /// Incarnation of the node there, because several nodes can have that place one after the other.
    /// Zero: the next node there with which a link is made.
    pub incarnation: u64,
    /// Of the packets of requests.
    pub name: Name,
    /// The last request sent returns data, in a response of its own.
    pub asks: bool,
    /// The peer cannot map our memory: data travels in packets.
    pub carries: bool,
    /// Counter up to which entries have been sent. An entry that was sent may have been executed.
    pub sent_to: u32,
    /// Where the last WRITE and the last READ went.
    pub grants: [PeerGrant; 2],
    pub slot: usize,
    /// The peer's memory that was accessed last.
    pub view: Option<View>,
    /// Bytes of the current entry that were sent in packets before the room ran out.
    pub carried: u64,
    /// Bytes of the current READ that have arrived.
    pub got: u64,
}

/// What the device's lock protects of a requester whose peer is in another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    /// Its state at the start of this life. The current state belongs to the data path.
    pub work: SendWork,
    pub slot: usize,
    /// See [`Remote::incarnation`].
    pub incarnation: u64,
    pub watch: Option<Watch>,
    /// Counter of the oldest unacknowledged entry when the peer was last asked for an acknowledgement.
    pub probed: Option<u32>,
    /// It waits for room in the wire; `carried` is how much of the current entry it had sent when it last
    /// waited.
    pub full: bool,
    pub carried: u64,
    /// Bytes of the oldest request that have arrived, if it is a READ, and how many had arrived when it was
    /// last requested.
    pub got: u64,
    pub asked_from: u64,
}

/// What the device's lock protects of a responder that takes requests from another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Responder {
    pub slot: usize,
    /// Incarnation of the node that it is connected to. Zero: the next node there with which a link is made.
    pub incarnation: u64,
    /// The requester's life whose requests it takes, once the first has arrived.
    pub life: Option<u16>,
    /// The response still to be sent to the requester, if it is more than an acknowledgement.
    pub answer: Option<Answer>,
    /// Result of the last atomic, in case its response has to be repeated.
    pub result: u64,
    /// The message whose data arrives in several packets.
    pub partial: Partial,
}

impl Responder {
    pub fn new(slot: usize, incarnation: u64) -> Self {
        Self {
            slot,
            incarnation,
            life: None,
            answer: None,
            result: 0,
            partial: Partial::default(),
        }
    }
}

/// A requester in another process, which may be in the section in which it accesses memory of this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    section: &'static Section,
    slot: usize,
    incarnation: u64,
}

impl Entered {
    /// Whether it is in its section, or says so.
    fn is_inside(&self) -> bool {
        !self.section.count().is_multiple_of(2)
    }

    /// With the count of its section as it is now.
    pub(super) fn with_count(self) -> (Self, u32) {
        (self, self.section.count())
    }
}

impl AsRef<Section> for Entered {
    fn as_ref(&self) -> &Section {
        self.section
    }
}

impl Hca {
    /// From here on peers may access memory on behalf of a queue pair that sends to another process.
    pub(super) fn speak(&self, record: &QpRecord) {
        self.show_life(record, |life| u32::from(life) | SPEAKING);
    }

    /// Peers may no longer access its memory: its requests are flushed next, and their memory may then be
    /// reused.
    pub(super) fn fall_silent(&self, record: &QpRecord) {
        self.show_life(record, |_| 0);
    }

    /// Publishes to the peer what it may know of a queue pair that takes its requests.
    pub(super) fn show_responder(&self, record: &QpRecord) {
        if let (Some(node), Some(responder)) = (&self.node, &record.responder) {
            let peer = node.peer(responder.slot);
            let shown = peer.segments.published_here(record.qpn);
            let rights = &record.ctx.rights;
            // Relaxed: under the lock. If another process has the place by now, `accepts` is published as
            // zero.
            let mut accepts = rights.accepts.load(Ordering::Relaxed);
            if peer.incarnation() != responder.incarnation || !peer.is_trusted() {
                accepts = 0;
            }
            if let Some(life) = responder.life
                && accepts != 0
                && accepts & UNTRIED == 0
            {
                accepts = in_life(accepts, life);
            }
            let [pd, access] =
                [&rights.pd, &rights.access].map(|word| word.load(Ordering::Relaxed));
            let before = [
                shown.pd.swap(pd, Ordering::Relaxed),
                shown.access.swap(access, Ordering::Relaxed),
            ];
            if before != [pd, access] {
                self.mrs.generation().pass();
            }
            // Release: pairs with the Acquire in `direct::place`. SeqCst for when access is taken away: the
            // store has to come before the barrier.
            shown.accepts.store(accepts, Ordering::SeqCst);
        }
    }

    /// The requester in another process that may be executing against this queue pair.
    pub(super) fn requester_of(&self, record: &QpRecord) -> Option<Entered> {
        let (node, responder) = (self.node.as_ref()?, record.responder.as_ref()?);
        let peer = node.peer(responder.slot);
        // It ended with its link; or it is shown nothing to execute against.
        let may = peer.incarnation() == responder.incarnation && peer.is_trusted();
        may.then(|| Entered {
            section: peer.segments.their_section(record.attr.dest_qp_num),
            slot: responder.slot,
            incarnation: responder.incarnation,
        })
    }

    /// Waits, after a barrier everywhere, until requesters in other processes have left the sections that may use what
    /// was taken away.
    /// Other processes may be slow, so never call this under the device's lock. The wait is bounded by
    /// `STUCK`, for a process that is stopped or malicious. Such a process loses its links, so that it is waited for once,
    /// and with it all others that were stuck during the same wait.
    pub(super) fn wait_for_requesters(&self, requesters: &mut [(Entered, u32)]) {
        // Most requesters are in no section, or leave it soon.
        let inside = wait_until_left(requesters, SOON);
        if inside == 0 {
            return;
        }
        // Without memory for the list, each of the others is waited for when its turn comes.
        let watched: Vec<(Entered, u32)> = {
            let control = self.control();
            let others = (control.qps.iter().flatten())
                .filter_map(|record| self.requester_of(record))
                .filter(Entered::is_inside);
            collected(others.map(Entered::with_count)).unwrap_or_default()
        };
        let stuck = wait_until_left(&mut requesters[..inside], STUCK);
        if stuck == 0 {
            return;
        }
        let waited_for = requesters[..stuck].iter().map(|(of, _)| *of);
        let others = (watched.iter()).filter(|(of, seen)| of.section.count() == *seen);
        self.part_with(waited_for.chain(others.map(|(of, _)| *of)));
    }

    /// Ends the links with the processes of these requesters, which do not leave their sections. From now on each of the
    /// processes is shown no memory, so that nothing waits for it.
    #[cold]
    fn part_with(&self, stuck: impl Iterator<Item = Entered>) {
        let Some(node) = &self.node else { return };
        let _control = self.control();
        for of in stuck {
            let peer = node.peer(of.slot);
            if peer.incarnation() == of.incarnation {
                for slot in node.distrust(peer) {
                    self.unlink(node, slot);
                }
            }
        }
    }

    fn show_life(&self, record: &QpRecord, word: impl FnOnce(u16) -> u32) {
        if let (Some(node), Some(requester)) = (&self.node, &record.requester) {
            let peer = node.peer(requester.slot);
            // If the slot belongs to another peer by now, that peer must not see this life.
            if peer.incarnation() == requester.incarnation {
                let packets = Packets::of(&record.attr).word();
                peer.segments.set_packets(record.qpn, packets);
                peer.segments.set_life(record.qpn, word(record.lives));
            }
        }
    }
}

/// Most bytes fetched from a peer's memory while the device's lock is held, because other threads wait for
/// the lock meanwhile. As many as the packets that are read at once can carry.
const FETCHED_AT_ONCE: u64 = 1 << 20;

/// How long a process may stay in a section before it counts as stopped.
const STUCK: Duration = Duration::from_millis(250);

/// How long is waited before the other queue pairs' requesters are looked at, too.
const SOON: Duration = Duration::from_millis(1);

/// In a life's word: the queue pair sends, and its memory may be accessed.
const SPEAKING: u32 = 1 << 16;

/// Packet flag: the entry's data follows the entry.
const EAGER: u8 = 1;
/// Packet flag: the entry's data is in the requester's memory, which the responder can map. The entry's data segments say
/// where. At most [`FETCHED_AT_ONCE`] bytes.
const PULLED: u8 = 2;
/// Packet flag: the packet carries a part of the data. The entry is followed by the part's offset, the total
/// length, and the part itself. With [`PULLED`] the entry says where the part is. The last part counts as the request.
const PART: u8 = 16;
/// Packet flag: this is part of a request, and more parts follow.
const MORE: u8 = 32;
/// Packet flag: the request is acknowledged whether it is accepted or not.
const UNRELIABLE: u8 = 4;
/// Packet flag: the requester waits for the response (IBTA 9.7.5.1.1: AckReq).
const ASKS: u8 = 8;
