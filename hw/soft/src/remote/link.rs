//! Links to other nodes: reading packets, and the thread that reads them when no other thread does.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::polled::Polling;
use super::plain::{ENTRY, with_entry};
use super::unlocked::{LONGER, SHORT_ONE, TO_SHARED, WITH_MORE};
use super::watch::Share;
use crate::fabric::{Agreed, Kind, Likely, Meetings, Node, Peer};
use bellwire_core::qp::QpState;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Packets that are read between two updates of the read position for the peer.
const PUBLISH_EVERY: usize = 32;

/// Packets that are read from one peer before the others get their turn.
const AT_ONCE: usize = 256;

/// Polls without packets between two checks of everything that waits.
const PATIENCE: u32 = 256;

/// How long a new node waits for links with existing nodes. Links with slower ones are made later.
const TO_MEET: Duration = Duration::from_millis(500);

/// How often the thread polls while requests are outstanding, and after how many idle rounds it sleeps.
const TICK: Duration = Duration::from_millis(1);
const QUIET: u32 = 100;

/// How often it polls while other threads poll.
const SELDOM: Duration = Duration::from_millis(20);

/// The loop of a node's thread.
pub(in super::super) fn run(hca: &Hca) {
    let Some(node) = &hca.node else { return };
    let (mut quiet, mut seen) = (0, 0);
    let mut meetings = Meetings::default();
    while !node.is_stopped() {
        let busy = node.is_awake() || node.is_waiting() || hca.waits_for_time();
        // A thread that polls does all the work, and needs the processor.
        let looks = node.looks();
        let tick = if looks == seen || node.is_owing() {
            TICK
        } else {
            SELDOM
        };
        seen = looks;
        let woken = node.wait(busy.then_some(tick), &mut meetings);
        let mut control = hca.control();
        hca.read_all(&mut control);
        for (slot, link) in &woken.gone {
            node.unlink_gone(*slot, link);
        }
        // Possibly with a node that has taken the place of one that is gone.
        for agreed in woken.agreed {
            hca.begin_link(&mut control, agreed);
        }
        hca.read_all(&mut control);
        hca.pay_all(&mut control);
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
        if let Some(node) = &self.node
            // Without memory, no link is made.
            && let Ok(slot) = node.link(agreed)
        {
            let peer = node.peer(slot);
            peer.segments.set_attention(node.attention.is_asked());
            peer.segments.set_down(!self.port.is_up());
            self.bind_to_link(control, slot);
        }
    }

    /// Binds queue pairs that were connected to a node before there was a link.
    fn bind_to_link(&self, control: &mut Control, slot: usize) {
        let Some(node) = &self.node else { return };
        let Some(link) = node.peer(slot).link() else {
            return;
        };
        let incarnation = link.incarnation;
        for qpn in control.qpns() {
            let Some(record) = control.record(qpn) else {
                continue;
            };
            let path = record.attr.ah_attr;
            // Another node has come to this place.
            if path.is_global && path.grh.dgid != link.gid {
                continue;
            }
            if let Some(responder) = &mut record.responder
                && (responder.slot, responder.incarnation) == (slot, 0)
            {
                responder.incarnation = incarnation;
                // Relaxed: read by who reads the peer's packets next.
                (record.ctx.inbound.incarnation).store(incarnation, Ordering::Relaxed);
                self.show_responder(record);
            }
            let waits = (record.requester.as_ref())
                .is_some_and(|requester| (requester.slot, requester.incarnation) == (slot, 0));
            if waits {
                self.bind_requester(control, qpn, incarnation);
            }
        }
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

    /// A thread polls and has found nothing: handles packets of other processes.
    #[inline(always)]
    pub(in super::super) fn look(&self, node: &Node, polled: Polling<'_>) {
        if node.next_look().is_multiple_of(PATIENCE) {
            return self.look_under_lock(true);
        }
        let places = node.some_live();
        if places.end.wrapping_sub(places.start) != 1 {
            return self.look_at(node, places, polled);
        }
        let peer = node.live_at(places.start);
        if !peer.reader.ready() {
            return self.found_nothing(node);
        }
        let likely = peer.reading.likely();
        // The most frequent by one comparison: a match of all takes four instructions more.
        if likely == Likely::Short {
            return self.read_only::<SHORT_ONE>(peer, polled);
        }
        match likely {
            Likely::Longer => self.read_only::<LONGER>(peer, polled),
            Likely::Inline => self.read_only::<WITH_MORE>(peer, polled),
            Likely::Short | Likely::Shared => self.read_only::<TO_SHARED>(peer, polled),
        }
    }

    #[inline(always)]
    fn found_nothing(&self, node: &Node) {
        if node.is_owing() {
            // A response can wait while there is something more urgent, for example the program's reply to a
            // message.
            self.pay_unlocked(node);
        }
    }

    /// Reads the packets of the only peer. A function of its own, so that a poll that finds
    /// nothing saves no registers.
    #[inline(never)]
    fn read_only<const LIKELY: u8>(&self, peer: &Peer, polled: Polling<'_>) {
        if self.read_unlocked::<LIKELY>(peer, polled) {
            self.look_under_lock(false);
        }
    }

    /// Reads the packets of one of several peers.
    #[inline(never)]
    fn read_of<const LIKELY: u8>(&self, peer: &Peer, polled: Polling<'_>) -> bool {
        self.read_unlocked::<LIKELY>(peer, polled)
    }

    /// Reads the packets of the peers at these places, the last one first.
    #[inline(never)]
    fn look_at(&self, node: &Node, places: Range<usize>, mut polled: Polling<'_>) {
        let (mut found, mut locked) = (false, false);
        for at in places.rev() {
            let peer = node.live_at(at);
            if !peer.reader.ready() {
                continue;
            }
            found = true;
            // One message at most is handed over.
            polled = polled.filter(|polled| !polled.has_received());
            let polled = polled.as_deref_mut();
            locked |= match peer.reading.likely() {
                Likely::Short => self.read_of::<SHORT_ONE>(peer, polled),
                Likely::Longer => self.read_of::<LONGER>(peer, polled),
                Likely::Inline => self.read_of::<WITH_MORE>(peer, polled),
                Likely::Shared => self.read_of::<TO_SHARED>(peer, polled),
            };
        }
        if locked {
            self.look_under_lock(false);
        }
        if !found {
            self.found_nothing(node);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_under_lock(&self, tend: bool) {
        // The thread that has the lock reads the packets, or is about to.
        let Some(mut control) = self.try_control() else {
            return;
        };
        self.read_all(&mut control);
        if tend {
            self.tend(&mut control, Share::Next);
        }
    }

    /// Reads the packets of all peers. Responses that no requester waits for are left for later.
    pub(super) fn read_all(&self, control: &mut Control) {
        let Some(node) = &self.node else { return };
        for peer in node.live() {
            if peer.reader.ready() && !self.read(control, peer) {
                // A peer that writes invalid data loses its link.
                node.unlink(peer.slot);
            }
        }
        if std::mem::take(&mut control.asked) {
            self.pay_all(control);
        } else if !control.owing.is_empty() {
            node.owes();
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
        let mut reads = peer.reading.take();
        let mut count = 0;
        control.turn = AT_ONCE;
        let sense = loop {
            let packet = match peer.reader.next(&mut copy) {
                Ok(Some(packet)) => packet,
                Ok(None) => break true,
                Err(_) => break false,
            };
            let len = packet.bytes.len();
            match packet.header.kind {
                Kind::Request => {
                    self.acknowledged(control, slot, &packet);
                    if let Some(packet) = with_entry(packet, &mut [0; ENTRY]) {
                        self.arrived(control, slot, reads.owing(), &packet);
                    }
                }
                Kind::Answer => self.answered(control, slot, &packet),
                Kind::Probe => control.asked = true,
                Kind::Data => self.brought(control, slot, &packet),
                Kind::Datagram => self.datagram_arrived(control, slot, &packet),
            }
            count += 1;
            let publish = count % PUBLISH_EVERY == 0;
            peer.reader.done(len, publish);
            if publish {
                // The requester may continue.
                self.pay_acks(slot, reads.owing());
            }
            if count >= control.turn {
                break true;
            }
        };
        control.inbox = Some(copy);
        peer.reader.publish();
        if control.asked {
            self.pay_acks(slot, reads.owing());
        }
        if !reads.owing().is_empty()
            && let Some(node) = &self.node
        {
            node.owes();
        }
        sense
    }

    /// Called after a packet is sent: wakes a peer that wants to be woken.
    #[inline]
    pub(in super::super) fn after_send(&self, peer: &Peer) {
        if self.wakes_after_send(peer) {
            self.wake_after_send(peer);
        }
    }

    /// Whether there is something to wake after a packet was sent.
    #[inline(always)]
    pub(super) fn wakes_after_send(&self, peer: &Peer) -> bool {
        // Orders the packet before the load. Pairs with the heavy barrier in `attend`.
        peer.barriers.light();
        // Ordered by the same barrier, which pairs with the heavy one in `run`.
        let sleeps = |node: &Node| !node.is_awake();
        peer.segments.wants_attention() || self.node.as_ref().is_some_and(sleeps)
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
        self.read_all(&mut control);
        self.tend(&mut control, Share::All);
        drop(control);
        node.wake();
    }

    /// Releases the peers from waking us when no thread sleeps.
    fn attend_or_not(&self, _held: &Control) {
        let Some(node) = &self.node else { return };
        if !node.attention.let_go() {
            return;
        }
        for peer in node.live() {
            peer.segments.set_attention(false);
        }
    }
}
