//! Looks for packets, of threads that have nothing else to do: a poll that has found its completion queue empty.

use super::super::hca::Hca;
use super::super::polled::{Looking, PolledQueue};
use super::super::turn::Thread;
use super::ASKS;
use super::known::{without_entry_alone, without_entry_and_more};
use super::link::Whose;
use super::unlocked::Found;
use super::watch::Share;
use crate::fabric::{Kind, Node, Peer};
use bellwire_core::queue::Received;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Looks of a thread without a check of everything that waits.
const PATIENCE: u32 = 256;

/// What each look needs to know.
#[derive(Debug)]
pub struct Looks {
    /// The peer, if there is only one with which there is a link, and nothing waits.
    only: AtomicPtr<Peer>,
    /// How many there have been of threads that poll no completion queue. Some may be missed.
    alone: AtomicU32,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            only: AtomicPtr::new(null_mut()),
            alone: AtomicU32::new(0),
        }
    }
}

impl Looks {
    /// Counts a look of a thread that polls no completion queue. Its number.
    fn next_alone(&self) -> u32 {
        // Relaxed, both: a count.
        let count = self.alone.load(Ordering::Relaxed).wrapping_add(1);
        self.alone.store(count, Ordering::Relaxed);
        count
    }

    /// The peers with which this node has a link have changed, or whether something `waits`. Under the device's lock.
    pub fn change(&self, node: &Node, waits: bool) {
        let mut live = node.live();
        let only = match (live.next(), live.next()) {
            (Some(peer), None) if !waits => from_ref(peer),
            _ => null(),
        };
        // Release: pairs with the Acquire in `only`.
        self.only.store(only.cast_mut(), Ordering::Release);
    }

    /// The only peer.
    ///
    /// # Safety
    /// The node lives as long as what is returned.
    #[inline(always)]
    unsafe fn only(&self) -> Option<&'static Peer> {
        // Acquire: pairs with the Release in `linked`: its link is there.
        let only = self.only.load(Ordering::Acquire);
        // SAFETY: peers live as long as their node.
        unsafe { only.as_ref() }
    }
}

impl Hca {
    /// Handles packets of other processes, and continues what waits, for a poll that has found this queue empty. The
    /// receive that was handed to it, if there was one.
    #[inline(never)]
    pub fn look<'q>(&self, queue: &'q mut PolledQueue) -> Option<&'q Received> {
        let mut looking = Looking::enter(queue);
        if looking.looks_after_more() {
            return self.look_after_more(looking);
        }
        // SAFETY: used within this function.
        let Some(peer) = (unsafe { self.looks.only() }) else {
            return self.look_at_some(looking);
        };
        let Some(line) = peer.reader.next_line() else {
            return self.found_nothing(looking);
        };
        match without_entry_alone(line) {
            Some(length) => self.receive_known::<true>(peer, line, length, looking),
            None if line.size().carries_ack_or_has(ASKS) => self.receive_and_more(peer, looking),
            None if line.whole_name().is(Kind::Acks) => self.receive_acks(peer, looking),
            None => self.read_only(peer, looking),
        }
    }

    /// Receives a short message whose requester may wait, and whose packet may carry an acknowledgement; or reads packets in
    /// the other way.
    #[inline(never)]
    fn receive_and_more<'q>(&self, peer: &Peer, looking: Looking<'q>) -> Option<&'q Received> {
        let line = peer.reader.next_line();
        match line.and_then(|line| Some((line, without_entry_and_more(line)?))) {
            Some((line, length)) => self.receive_known::<false>(peer, line, length, looking),
            None => self.read_only(peer, looking),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_after_more<'q>(&self, mut looking: Looking<'q>) -> Option<&'q Received> {
        looking.looks_again_in(PATIENCE - 1);
        if self.node.is_none() {
            return self.look_at_some(looking);
        }
        // Packets first, and not those behind them: under the lock each takes far longer.
        let handed = self.look_at_some(looking);
        if let Some(mut control) = self.try_control() {
            self.tend(&mut control, Share::Next);
        }
        handed
    }

    #[inline(always)]
    fn found_nothing<'q>(&self, looking: Looking<'q>) -> Option<&'q Received> {
        match &self.node {
            Some(node) if node.is_owing() => self.look_at_some(looking),
            _ => None,
        }
    }

    /// Takes a packet of acknowledgements; or reads packets in the other way.
    #[inline(never)]
    fn receive_acks<'q>(&self, peer: &Peer, looking: Looking<'q>) -> Option<&'q Received> {
        self.barriers.light();
        if let Some(line) = peer.reader.next_line()
            && self.reads_unlocked(peer)
            && self.take_acks(peer, line)
        {
            peer.reader.publish_at(line.done_alone());
            return None;
        }
        self.read_only(peer, looking)
    }

    /// Reads the packets of the only peer.
    #[inline(never)]
    pub(super) fn read_only<'q>(
        &self,
        peer: &Peer,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        self.barriers.light();
        let found = self.read_in_section(peer, Some(&mut looking));
        self.after_look(looking, found)
    }

    /// Whether this thread holds the turn to read the peer's packets, and they may be read without the lock. Behind a light
    /// barrier on entering the section of its poll.
    #[inline(always)]
    fn reads_unlocked(&self, peer: &Peer) -> bool {
        // Relaxed: ordered by that barrier, which pairs with the one in `Hca::set_gate`.
        peer.reading.turn().is_held_by(Thread::current())
            && !self.receives_under_lock.load(Ordering::Relaxed)
    }

    /// Reads the packets of several peers, and continues what waits.
    #[inline(never)]
    fn look_at_some<'q>(&self, mut looking: Looking<'q>) -> Option<&'q Received> {
        let Some(node) = &self.node else {
            drop(looking);
            self.progress_timers();
            return None;
        };
        if self.waits_for_time() {
            let queue = looking.leave();
            self.progress_timers();
            looking = Looking::enter(queue);
        }
        self.barriers.light();
        let (mut all, mut some) = (Found::default(), false);
        for peer in node.some_live() {
            if peer.reader.ready() {
                some = true;
                // One message at most is handed over.
                let queue = (!all.handed).then_some(&mut *looking);
                all = all.and(self.read_in_section(peer, queue));
            }
        }
        // A response can wait while there is something more urgent, for example the program's reply to a message.
        if !some && node.is_owing() {
            all = self.pay_unlocked(node);
        }
        all.locked |= node.is_halted();
        self.after_look(looking, all)
    }

    /// For a poll that looks no more: sends the acknowledgements for which requesters were let wait.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn pay_after_looks(&self, queue: &mut PolledQueue) {
        let Some(node) = &self.node else { return };
        let looking = Looking::enter(queue);
        self.barriers.light();
        let found = self.pay_unlocked(node);
        drop(looking);
        self.after_reading(found);
    }

    /// Reads a peer's packets, in the section of a poll.
    #[inline(always)]
    fn read_in_section(&self, peer: &Peer, queue: Option<&mut PolledQueue>) -> Found {
        let me = Thread::current();
        match peer.reading.enter(me) {
            Some(reads) => {
                let look = queue.as_ref().map_or(0, |queue| queue.look());
                self.read_unlocked(peer, reads, look, queue)
            }
            None => Found::unread(peer, me),
        }
    }

    /// Leaves the section, handles what needs the lock, and returns what was handed over.
    #[inline(always)]
    fn after_look<'q>(&self, looking: Looking<'q>, found: Found) -> Option<&'q Received> {
        let queue = looking.leave();
        self.after_reading(found);
        found.handed.then(|| queue.last())
    }

    /// Like [`look`](Self::look), for a thread that polls no completion queue.
    pub(in super::super) fn look_alone(&self) {
        let Some(node) = &self.node else { return };
        let look = self.looks.next_alone();
        let tends = look.is_multiple_of(PATIENCE);
        if tends || node.is_halted() {
            self.look_under_lock(tends, Whose::Free);
        }
        let me = Thread::current();
        let mut all = Found::default();
        for peer in node.some_live().filter(|peer| peer.reader.ready()) {
            all = all.and(match peer.reading.enter_alone(me, self.barriers) {
                Some(reads) => self.read_unlocked(peer, reads, look, None),
                None => Found::unread(peer, me),
            });
        }
        self.after_reading(all);
    }

    /// Handles what needs the lock, in no section.
    #[inline(always)]
    fn after_reading(&self, found: Found) {
        if found.locked {
            let whose = if found.unread {
                Whose::All
            } else {
                Whose::Free
            };
            self.look_under_lock(false, whose);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_under_lock(&self, tends: bool, whose: Whose) {
        // The thread that has the lock reads the packets, or is about to.
        let Some(mut control) = self.try_control() else {
            return;
        };
        self.read_all(&mut control, whose);
        if self.node.as_ref().is_some_and(Node::is_owing) {
            self.pay_all(&mut control, whose);
        }
        if tends {
            self.tend(&mut control, Share::Next);
        }
    }

    /// A number that changes while threads look.
    pub(super) fn looks(&self) -> u32 {
        // Relaxed: a count.
        (self.polls.looks()).wrapping_add(self.looks.alone.load(Ordering::Relaxed))
    }

    /// Whether something waits for the time, or for a peer, has changed, or the peers with which there is a link have.
    /// Under the device's lock.
    pub(in super::super) fn note_looks(&self) {
        if let Some(node) = &self.node {
            self.looks
                .change(node, node.is_halted() || self.waits_for_time());
        }
    }
}
