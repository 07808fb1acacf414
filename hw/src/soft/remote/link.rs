//! Links to other nodes: reading what comes, and the thread that does when nobody else does.

use super::super::control::Control;
use super::super::hca::Hca;
use crate::fabric::{Agreed, Kind, MAX_NODES, Met, Node, Peer, lid};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Packets that are read before the peer is told how far we are.
const TOLD_EVERY: usize = 32;

/// Packets that are read of one peer before the others get their turn.
const AT_ONCE: usize = 256;

/// Empty looks between two rounds of looking after what waits.
const PATIENCE: u32 = 256;

/// How long it can take until a link that was agreed upon is there.
const AGREED: Duration = Duration::from_secs(2);

/// How often the thread looks while requests are sent, and how many looks without any it takes until
/// it sleeps.
const TICK: Duration = Duration::from_millis(1);
const QUIET: u32 = 100;

/// How often it looks while others do.
const SELDOM: Duration = Duration::from_millis(20);

/// The life of a node's thread.
pub(in super::super) fn run(hca: &Hca) {
    let Some(node) = &hca.node else { return };
    let (mut quiet, mut seen) = (0, 0);
    while !node.is_stopped() {
        let busy = node.is_awake() || node.is_waiting() || hca.waits_for_time();
        // Somebody who polls does it all, and needs the processor.
        let looks = node.idle.load(Ordering::Relaxed);
        let tick = if looks == seen || node.is_owing() {
            TICK
        } else {
            SELDOM
        };
        seen = looks;
        let woken = node.wait(busy.then_some(tick));
        let mut control = hca.control();
        hca.read_all(&mut control);
        for (slot, link) in &woken.gone {
            node.unlink_gone(*slot, link);
        }
        // Perhaps with a node that has the place of one that is gone.
        for agreed in woken.agreed {
            hca.begin_link(&control, agreed);
        }
        hca.read_all(&mut control);
        hca.pay_all(&mut control);
        hca.tend(&mut control);
        hca.drop_views(&control);
        hca.attend_or_not(&control);
        drop(control);
        quiet = if node.is_waiting() { 0 } else { quiet + 1 };
        if node.is_awake() && quiet >= QUIET {
            quiet = 0;
            node.set_awake(false);
            // Whoever has sent something and found us awake is seen now.
            hca.barriers.heavy();
            hca.tend(&mut hca.control());
        }
        hca.progress_timers();
    }
}

impl Hca {
    /// Connects to all nodes that are there.
    pub(in super::super) fn connect_all(&self) {
        for slot in 0..MAX_NODES {
            self.connect(slot);
        }
    }

    /// Connects to the node in a place, if there is one, and we have not. One that does not answer
    /// is tried again when a queue pair is connected to it.
    pub(in super::super) fn connect(&self, slot: usize) {
        let Some(node) = &self.node else { return };
        if node.slot_of(lid(slot)).is_none() {
            return;
        }
        match node.connect(slot) {
            Ok(Met::Agreed(agreed)) => {
                self.begin_link(&self.control(), agreed);
                // The thread waits for the new link's end too.
                node.wake();
            }
            Ok(Met::Linked) => {
                let start = Instant::now();
                while node.peer(slot).incarnation() == 0 && start.elapsed() < AGREED {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            // One that does not answer has no link.
            Ok(Met::Nobody) | Err(_) => {}
        }
    }

    /// By the lock's holder, as which the control shows.
    fn begin_link(&self, _held: &Control, agreed: Agreed) {
        if let Some(node) = &self.node
            // Without memory there is no link.
            && let Ok(slot) = node.link(agreed)
        {
            node.peer(slot).segments.set_attention(node.is_armed());
            node.peer(slot).segments.set_down(!self.port.is_up());
        }
    }

    /// Somebody polls, and has found nothing: looks at what other processes want.
    #[inline]
    pub(in super::super) fn look(&self, node: &Node) {
        // Relaxed: a count that may miss some.
        let idle = node.idle.load(Ordering::Relaxed).wrapping_add(1);
        node.idle.store(idle, Ordering::Relaxed);
        let tend = idle.is_multiple_of(PATIENCE);
        let ready = node.live().any(|slot| node.peer(slot).reader.ready());
        // An answer can wait until there is nothing more urgent: what the program has to say to a
        // message, say.
        if !tend && !ready && !node.is_owing() {
            return;
        }
        // Somebody else who has the lock will look, or is about to.
        let Some(mut control) = self.try_control() else {
            return;
        };
        if ready {
            self.read_all(&mut control);
        } else {
            self.pay_all(&mut control);
        }
        if tend {
            self.tend(&mut control);
        }
    }

    /// Reads what has come from everybody. Answers that nobody waits for are left for later.
    pub(super) fn read_all(&self, control: &mut Control) {
        let Some(node) = &self.node else { return };
        for slot in node.live() {
            let peer = node.peer(slot);
            if peer.reader.ready() && !self.read(control, slot, peer) {
                // A peer that makes no sense is as good as gone.
                node.unlink(slot);
            }
        }
        if std::mem::take(&mut control.asked) {
            self.pay_all(control);
        } else if !control.owing.is_empty() {
            node.set_owing(true);
            if !node.is_awake() {
                node.rouse();
            }
        }
        if !control.halted.is_empty() {
            self.go_on(control);
        }
    }

    /// Reads what has come from one peer. `false`: it makes no sense.
    fn read(&self, control: &mut Control, slot: usize, peer: &Peer) -> bool {
        let Some(mut copy) = control.inbox.take() else {
            return true;
        };
        let mut count = 0;
        let sense = loop {
            let packet = match peer.reader.next(&mut copy) {
                Ok(Some(packet)) => packet,
                Ok(None) => break true,
                Err(_) => break false,
            };
            let len = packet.bytes.len();
            match packet.header.kind {
                Kind::Request => {
                    self.told_taken(control, slot, &packet);
                    self.arrived(control, slot, &packet);
                }
                Kind::Answer => self.answered(control, slot, &packet),
                Kind::Probe => control.asked = true,
                Kind::Datagram => self.datagram_arrived(control, slot, &packet),
            }
            count += 1;
            let told = count % TOLD_EVERY == 0;
            peer.reader.done(len, told);
            if told {
                // The requester may go on.
                self.pay_all(control);
            }
            if count == AT_ONCE {
                break true;
            }
        };
        control.inbox = Some(copy);
        peer.reader.tell();
        sense
    }

    /// After a packet: wakes a peer that wants to be woken.
    #[inline]
    pub(in super::super) fn after_send(&self, peer: &Peer) {
        // The packet before the look: partner of the heavy barrier in `attend`.
        self.barriers.light();
        if peer.segments.wants_attention() {
            peer.kick();
        }
        // As above: partner of the barrier in `run`.
        if let Some(node) = &self.node
            && !node.is_awake()
        {
            node.rouse();
        }
    }

    /// Somebody is about to sleep until a completion queue's event: peers are to wake us from here on,
    /// and what has come by now is read.
    pub(crate) fn attend(&self) {
        let Some(node) = &self.node else { return };
        let mut control = self.control();
        for slot in node.live() {
            node.peer(slot).segments.set_attention(true);
        }
        self.barriers.heavy_everywhere();
        self.read_all(&mut control);
        self.tend(&mut control);
        drop(control);
        node.wake();
    }

    /// When nobody sleeps any more, peers need not wake us.
    fn attend_or_not(&self, _held: &Control) {
        let Some(node) = &self.node else { return };
        if node.is_armed() {
            return;
        }
        for slot in node.live() {
            node.peer(slot).segments.set_attention(false);
        }
    }
}
