//! Links to other nodes: reading packets, and the thread that reads them when no other thread does.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::port::named;
use super::super::turn::{Biased, HeldByAnother, Hold, Thread};
use super::plain::{ENTRY, with_entry};
use super::watch::Share;
use crate::fabric::{Agreed, Kind, Meetings, Node, Peer, Reads, Send, Sending};
use bellwire_core::qp::QpState;
use bellwire_provider::quiesce::Barriers;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Packets that are read between two updates of the read position for the peer.
const PUBLISH_EVERY: usize = 32;

/// Packets that are read from one peer before the others get their turn.
const AT_ONCE: usize = 256;

/// How long a new node waits for links with existing nodes. Links with slower ones are made later.
const TO_MEET: Duration = Duration::from_millis(500);

/// How often the thread polls while requests are outstanding, and after how many idle rounds it sleeps.
const TICK: Duration = Duration::from_millis(1);
const QUIET: u32 = 100;

/// How often it polls while other threads poll.
const LONG_TICK: Duration = Duration::from_millis(20);

/// Whose packets the holder of the lock reads, and to whom it sends acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    All,
    /// The peers whose turn no other thread [holds](crate::turn::Biased): such a thread probably reads them.
    Free,
}

/// The loop of a node's thread.
pub(in super::super) fn run(hca: &Hca, mut meetings: Meetings) {
    let Some(node) = &hca.node else { return };
    let (mut quiet, mut seen) = (0, 0);
    while !node.is_stopped() {
        let busy = node.is_awake() || node.is_waiting() || hca.waits_for_time();
        // A thread that polls does all the work, and needs the processor.
        let looks = hca.looks();
        let tick = if looks == seen || node.has_pending_responses() {
            TICK
        } else {
            LONG_TICK
        };
        seen = looks;
        let woken = node.wait(busy.then_some(tick), &mut meetings);
        // What a thread that polls holds, it reads.
        let whose = match hca.looks() == seen {
            true => Whose::All,
            false => Whose::Free,
        };
        let mut control = hca.control();
        hca.read_all(&mut control, whose);
        for (slot, link) in &woken.gone {
            if node.is_link(*slot, link) {
                // All that it has sent.
                hca.read_all(&mut control, Whose::All);
                hca.unlink(node, *slot);
            }
        }
        // Possibly with a node that has taken the place of one that is gone.
        for agreed in woken.agreed {
            hca.begin_link(&mut control, agreed);
        }
        hca.read_all(&mut control, whose);
        hca.send_responses(&mut control, whose);
        hca.tend(&mut control, Share::Next);
        let gone = hca.drop_views(&control);
        hca.attend_or_not(&control);
        drop(control);
        drop(gone);
        quiet = if node.is_waiting() { 0 } else { quiet + 1 };
        if node.is_awake() && quiet >= QUIET {
            quiet = 0;
            node.set_awake(false);
            // A thread that has sent something while we were awake is seen now.
            hca.barriers.heavy();
            hca.tend(&mut hca.control(), Share::All);
        }
        hca.progress_timers();
    }
}

impl Hca {
    /// Waits, as a new node, for links with the existing nodes.
    pub fn meet(&self) {
        if let Some(node) = &self.node {
            node.await_links(TO_MEET);
        }
    }

    fn begin_link(&self, control: &mut Control, agreed: Agreed) {
        let Some(node) = &self.node else { return };
        self.unlink(node, agreed.slot());
        // Without memory, no link is made.
        if let Ok(slot) = node.link(agreed, |peer| self.turns(peer)) {
            self.note_looks();
            let peer = node.peer(slot);
            peer.segments.set_attention(node.attention.is_asked());
            peer.segments.set_down(!self.port.is_up());
            self.bind_to_link(control, slot);
        }
    }

    /// Ends a link, if there is one. Under the device's lock.
    pub(super) fn unlink(&self, node: &Node, slot: usize) {
        node.unlink(slot, |peer| self.turns(peer));
        self.note_looks();
    }

    /// The turns to read a peer's packets, and to send it some. Under the device's lock.
    fn turns<'p>(&self, peer: &'p Peer) -> (Reads<'p>, Sending<'p>) {
        let me = Thread::current();
        let take = |turn: &'p Biased| turn.take_away_once(me, || self.wait_for_all());
        let (reading, writer) = (&peer.reading, &peer.writer);
        (
            reading.with(take(reading.turn())),
            writer.with(take(writer.turn())),
        )
    }

    /// Binds queue pairs that were connected to a node before there was a link.
    fn bind_to_link(&self, control: &mut Control, slot: usize) {
        let Some(node) = &self.node else { return };
        let Some(link) = node.peer(slot).link() else {
            return;
        };
        let incarnation = link.incarnation;
        let all = control.qpns();
        for &qpn in &all {
            let Some(record) = control.record(qpn) else {
                continue;
            };
            let path = record.attr.ah_attr;
            // Another node has come to this place.
            if named(&path).is_some_and(|gid| gid != link.gid) {
                continue;
            }
            if let Some(responder) = &mut record.responder
                && (responder.slot, responder.incarnation) == (slot, 0)
            {
                responder.incarnation = incarnation;
                // Relaxed: read by who reads the peer's packets next.
                (record.ctx.rights.incarnation).store(incarnation, Ordering::Relaxed);
                self.show_responder(record);
            }
            let waits = (record.requester.as_ref())
                .is_some_and(|requester| (requester.slot, requester.incarnation) == (slot, 0));
            if waits {
                self.bind_requester(control, qpn, incarnation);
            }
        }
        control.listed = all;
    }

    fn bind_requester(&self, control: &mut Control, qpn: u32, incarnation: u64) {
        // Its poster may have stopped at an entry, and not have taken the lock yet.
        self.close(control, qpn);
        let Some(record) = control.record(qpn) else {
            return;
        };
        if let Some(requester) = &mut record.requester {
            requester.incarnation = incarnation;
            if let Some(remote) = &mut requester.work.remote {
                remote.incarnation = incarnation;
            }
        }
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() }
            && let Some(remote) = &mut work.remote
        {
            remote.incarnation = incarnation;
        }
        // SAFETY: likewise.
        if let Some(completing) = unsafe { &mut *record.ctx.inbound.completing.get() } {
            completing.incarnation = incarnation;
        }
        if matches!(record.state, QpState::Rts | QpState::Sqd) {
            self.speak(record);
            self.resume(control, qpn);
        }
    }

    /// The turn to read a peer's packets. Under the device's lock.
    pub(super) fn reads<'p>(&self, peer: &'p Peer) -> Reads<'p> {
        let turn = (peer.reading.turn()).take_away(Thread::current(), || self.wait_for_all());
        peer.reading.with(turn)
    }

    /// The turn to send to a peer.
    ///
    /// The calling thread is in the section of a queue pair or of a poll, or holds the device's lock.
    ///
    /// # Errors
    /// [`Send::Held`], if another thread holds it; but never for the holder of the lock, who takes it away.
    #[inline(always)]
    pub(super) fn sending<'p>(&self, peer: &'p Peer) -> Result<Sending<'p>, Send> {
        let (me, turn) = (Thread::current(), peer.writer.turn());
        match turn.take(me) {
            Ok(hold) => Ok(peer.writer.with(hold)),
            Err(HeldByAnother) => self.take_away(turn, me).map(|hold| peer.writer.with(hold)),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_away<'t>(&self, turn: &'t Biased, me: Thread) -> Result<Hold<'t>, Send> {
        match self.is_locked_by(me) {
            true => Ok(turn.take_away(me, || self.wait_for_all())),
            false => Err(Send::Held),
        }
    }

    /// Reads the packets of all peers. Responses that no requester waits for are left for later.
    pub(super) fn read_all(&self, control: &mut Control, whose: Whose) {
        let Some(node) = &self.node else { return };
        let me = Thread::current();
        for peer in node.live().filter(|peer| peer.reader.ready()) {
            if whose == Whose::Free && peer.reading.turn().is_held_by_another(me) {
                continue;
            }
            if !self.read(control, peer) {
                // A peer that writes invalid data loses its link.
                self.unlink(node, peer.slot);
            }
        }
        if std::mem::take(&mut control.asked) {
            self.send_responses(control, whose);
        } else if !control.pending_responses.is_empty() {
            node.add_pending_response();
        }
        if !control.halted.is_empty() {
            self.go_on(control);
        }
    }

    /// Reads the packets of one peer. `false`: they are invalid.
    fn read(&self, control: &mut Control, peer: &Peer) -> bool {
        let slot = peer.slot;
        let Some(mut copy) = control.inbox.take() else {
            return true;
        };
        let mut reads = self.reads(peer);
        let mut count = 0;
        control.turn = AT_ONCE;
        let sense = loop {
            let packet = match peer.reader.next(&mut copy) {
                Ok(Some(packet)) => packet,
                Ok(None) => break true,
                Err(_) => break false,
            };
            let len = packet.bytes.len();
            match packet.kind {
                Kind::Request => {
                    if let Some(last) = packet.header.ack {
                        self.acknowledged(control, slot, packet.header.name.dst(), last);
                    }
                    if let Some(packet) = with_entry(packet, &mut [0; ENTRY]) {
                        self.arrived(control, slot, reads.pending(), &packet);
                    }
                }
                Kind::Answer => self.answered(control, slot, &packet),
                Kind::Acks => self.acks_arrived(control, slot, &packet),
                Kind::Probe => control.asked = true,
                Kind::Data => self.brought(control, slot, &packet),
                Kind::Datagram => self.datagram_arrived(control, slot, &packet),
            }
            count += 1;
            let publish = count % PUBLISH_EVERY == 0;
            peer.reader.done(len, publish);
            if publish {
                // The requester may continue.
                self.send_pending_acks(peer, reads.pending());
            }
            if count >= control.turn {
                break true;
            }
        };
        control.inbox = Some(copy);
        peer.reader.publish();
        if control.asked {
            self.send_pending_acks(peer, reads.pending());
        }
        if !reads.pending().is_empty()
            && let Some(node) = &self.node
        {
            node.add_pending_response();
        }
        sense
    }

    /// Called after a packet is sent: wakes a peer that wants to be woken.
    #[inline]
    pub(in super::super) fn after_send(&self, peer: &Peer) {
        // Orders the packet before the loads.
        peer.barriers.light();
        if self.wakes(peer) {
            self.wake_after_send(peer);
        }
    }

    /// Whether there is something to wake after a packet was sent, and a light barrier behind it. That pairs with the heavy one
    /// in `attend`.
    #[inline(always)]
    pub(super) fn wakes(&self, peer: &Peer) -> bool {
        let awake = match &self.node {
            // Ordered by the same barrier, which pairs with the heavy one in `run`.
            Some(node) => node.is_awake(),
            // SAFETY: a peer is one of a node's.
            None => unsafe { std::hint::unreachable_unchecked() },
        };
        !awake || peer.segments.wants_attention()
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wake_after_send(&self, peer: &Peer) {
        if peer.segments.wants_attention() {
            peer.kick();
        }
        if let Some(node) = &self.node
            && !node.is_awake()
        {
            node.rouse();
        }
    }

    /// A thread is about to sleep until a completion event: from here on, peers wake us, and packets that
    /// have arrived are read.
    pub fn attend(&self) {
        let Some(node) = &self.node else { return };
        if node.attention.is_asked() {
            // The peers have been asked earlier, and packets since then have woken the node's thread.
            if self.waits_for_time() && !node.is_awake() {
                node.rouse();
            }
            return;
        }
        let mut control = self.control();
        for peer in node.live() {
            peer.segments.set_attention(true);
        }
        self.barriers.heavy_everywhere();
        node.attention.asked();
        self.read_all(&mut control, Whose::All);
        self.tend(&mut control, Share::All);
        drop(control);
        node.wake();
    }

    /// Releases the peers from waking us when no thread sleeps.
    fn attend_or_not(&self, _held: &Control) {
        let Some(node) = &self.node else { return };
        // Asking for it again would take a barrier.
        if Barriers::are_slow() || !node.attention.let_go() {
            return;
        }
        for peer in node.live() {
            peer.segments.set_attention(false);
        }
    }
}
