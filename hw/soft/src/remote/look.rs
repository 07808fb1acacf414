//! Looks for packets, of threads that have nothing else to do: a poll that has found its completion queue empty.

use super::super::hca::Hca;
use super::super::polled::{Looking, PolledQueue};
use super::super::qp::QpCtx;
use super::super::receive::{Arrived, Receives, RecvWork, Reported};
use super::super::turn::Thread;
use super::ASKS;
use super::entry::decode;
use super::link::Whose;
use super::packet::NOWHERE;
use super::plain::{DATA, without_entry};
use super::unlocked::{Delivered, LookOutcome};
use super::watch::Share;
use crate::fabric::{IN_LINE, InPlace, Kind, Node, Peer, Size, behind};
use bellwire_core::queue::Received;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Looks of a thread without a check of everything that waits.
const PATIENCE: u32 = 256;

/// What each look needs to know.
#[derive(Debug)]
pub struct Looks {
    /// The peer, if there is only one with which there is a link, and nothing waits.
    only: AtomicPtr<Peer>,
    /// Whether something waits.
    waits: AtomicBool,
    /// How many there have been of threads that poll no completion queue. Some may be missed.
    alone: AtomicU32,
    /// The place of the peer at which the next one of those begins.
    next: AtomicUsize,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            only: AtomicPtr::new(null_mut()),
            waits: AtomicBool::new(true),
            alone: AtomicU32::new(0),
            next: AtomicUsize::new(0),
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
        // Relaxed: a hint.
        self.waits.store(waits, Ordering::Relaxed);
        // Release: pairs with the Acquire in `only`.
        self.only.store(only.cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn something_waits(&self) -> bool {
        // Relaxed: a hint.
        self.waits.load(Ordering::Relaxed)
    }

    /// The only peer.
    ///
    /// # Safety
    /// The node lives as long as the returned peer.
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
    /// receive that was reported to it, if there was one.
    #[inline(never)]
    pub fn look<'q>(&self, queue: &'q mut PolledQueue) -> Option<&'q Received> {
        let mut looking = Looking::enter(queue);
        if looking.looks_after_more() {
            return self.look_after_more(looking);
        }
        // SAFETY: used within this function.
        let Some(peer) = (unsafe { self.looks.only() }) else {
            return self.look_at_several(looking);
        };
        match peer.reader.next_line() {
            Some(line) => self.receive_next(peer, line, looking),
            None => self.look_for_responses(looking),
        }
    }

    /// Handles the next packet of several peers, from the one whose turn it is on. As a poll of a single one, unless something
    /// waits, the program may sleep if nothing is found, or this thread does not hold the turn to read.
    #[inline(never)]
    fn look_at_several<'q>(&self, mut looking: Looking<'q>) -> Option<&'q Received> {
        let node = match &self.node {
            Some(node) if !self.looks.something_waits() && !node.attention.are_asked() => node,
            Some(_) | None => return self.look_at_some(looking),
        };
        let (me, first) = (Thread::current(), looking.place());
        let (mut last, mut others) = (first, false);
        for (place, peer) in node.some_live(first) {
            last = place;
            let Some(line) = peer.reader.next_line() else {
                continue;
            };
            let turn = peer.reading.turn();
            if turn.is_held_by(me) {
                looking.finds(place);
                return self.receive_next(peer, line, looking);
            }
            // One that another thread reads has time until there is nothing else, or until each 256th look.
            others = true;
            if !turn.is_held_by_another(me) {
                break;
            }
        }
        if others {
            return self.look_at_some(looking);
        }
        looking.goes_on_behind(last);
        self.look_for_responses(looking)
    }

    /// Handles the next packet of a peer, which begins with this line.
    ///
    /// The most frequent message is received here, by code that calls nothing: that takes 90 instructions less. Such a
    /// message has one line and no requester that waits, and goes to a queue pair's own receive queue, to memory of the last
    /// grant.
    #[inline(always)]
    fn receive_next<'q>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        if !self.reads_unlocked(peer) {
            return self.read_peer(peer, looking);
        }
        let size = line.size();
        let Some(length) = without_entry(size) else {
            return self.receive_longer(peer, size, looking);
        };
        let Some((ctx, _)) = self.accepting(peer, line) else {
            return self.read_peer(peer, looking);
        };
        let accepted = &ctx.receiver.accepted;
        if size.short_alone() as usize == length
            // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn, so it owns the
            // receive side.
            && let Some(RecvWork { source: Receives::Own(queue), .. }) = unsafe { &mut *ctx.receiver.work.get() }
            // SAFETY: the bytes of a packet, which is there until it is released, and no more than it can have.
            && unsafe { queue.deliver_line(self, line.bytes(DATA), length, &mut looking) }
        {
            accepted.expected.pass();
            peer.reader.publish_at(line.done(IN_LINE));
            // SAFETY: this thread has the turn.
            if !unsafe { *accepted.listed.get() } {
                return self.add_first_pending(peer, ctx, looking);
            }
            return Some(looking.leave().last());
        }
        self.receive_line(peer, ctx, size, looking)
    }

    /// Lists the queue pair of a message that was reported to the poll, whose acknowledgement is pending.
    #[cold]
    #[inline(never)]
    fn add_first_pending<'q>(
        &self,
        peer: &Peer,
        ctx: &QpCtx,
        looking: Looking<'q>,
    ) -> Option<&'q Received> {
        // SAFETY: this thread has the turn.
        self.add_pending_ack(peer, unsafe { peer.reading.pending() }, ctx);
        Some(looking.leave().last())
    }

    /// Receives any other message of one line, of this size, which this queue pair accepts. With more flags than
    /// that its requester waits, it is read as without a poll.
    #[inline(never)]
    fn receive_line<'q>(
        &self,
        peer: &Peer,
        ctx: &QpCtx,
        size: Size,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        if size.has(!ASKS) {
            return self.read_peer(peer, looking);
        }
        let line = peer.reader.line_of(size);
        let data = [(line.bytes(DATA), size.short())];
        let message = Arrived::plain(size.short(), &data);
        let delivered = self.receive_accepted(
            peer,
            line,
            ctx,
            #[inline(always)]
            |work| work.deliver(self, &ctx.rights, &message, || true, Some(&mut looking)),
        );
        match delivered {
            Some(delivered) => self.delivered(peer, delivered, looking),
            None => self.read_peer(peer, looking),
        }
    }

    /// Handles a packet of acknowledgements, or receives a message of several lines. Others are read as without a poll.
    #[inline(never)]
    fn receive_longer<'q>(
        &self,
        peer: &Peer,
        size: Size,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        let line = peer.reader.line_of(size);
        if line.whole_name().is(Kind::Acks) && self.take_acks(peer, line) {
            peer.reader.publish();
            return None;
        }
        let mut data = [NOWHERE; 2];
        if let Some(message) = decode(peer, line, &mut data)
            && let Some(delivered) = self.receive_message(peer, line, &message, Some(&mut looking))
        {
            return self.delivered(peer, delivered, looking);
        }
        self.read_peer(peer, looking)
    }

    /// Notes or sends the acknowledgement of a message, and returns its receive if that was reported to the poll.
    #[inline(always)]
    fn delivered<'q>(
        &self,
        peer: &Peer,
        delivered: Delivered<'_>,
        mut looking: Looking<'q>,
    ) -> Option<&'q Received> {
        let Delivered {
            ctx,
            asks,
            reported,
            next,
        } = delivered;
        peer.reader.publish_at(next);
        // SAFETY: this thread has the turn.
        let pending = unsafe { peer.reading.pending() };
        match asks {
            true => self.acknowledge_asked(peer, pending, ctx, &mut looking, next),
            false => self.add_pending_ack(peer, pending, ctx),
        }
        let queue = looking.leave();
        (reported == Reported::ToPoll).then(|| queue.last())
    }

    #[cold]
    #[inline(never)]
    fn look_after_more<'q>(&self, mut looking: Looking<'q>) -> Option<&'q Received> {
        looking.looks_again_in(PATIENCE - 1);
        if self.node.is_none() {
            return self.look_at_some(looking);
        }
        // Packets first, and not those behind them: under the lock each takes far longer.
        let received = self.look_at_some(looking);
        if let Some(mut control) = self.try_control() {
            self.tend(&mut control, Share::Next);
        }
        received
    }

    #[inline(always)]
    fn look_for_responses<'q>(&self, looking: Looking<'q>) -> Option<&'q Received> {
        match &self.node {
            Some(node) if node.has_pending_responses() => self.look_at_some(looking),
            _ => None,
        }
    }

    /// Reads the packets of one peer.
    #[inline(never)]
    pub(super) fn read_peer<'q>(&self, peer: &Peer, looking: Looking<'q>) -> Option<&'q Received> {
        self.barriers.light();
        let outcome = self.read_in_section(peer, &looking);
        drop(looking);
        self.after_reading(outcome);
        None
    }

    /// Whether this thread, in the section of its poll, holds the turn to read the peer's packets, and they may be read
    /// without the lock. Where the light barrier is more than one of the compiler, no thread holds a turn.
    #[inline(always)]
    fn reads_unlocked(&self, peer: &Peer) -> bool {
        // Relaxed: ordered by the barrier on entering, which pairs with the one in `Hca::set_gate`.
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
        let (mut all, mut some) = (LookOutcome::default(), false);
        for (place, peer) in node.some_live(looking.place()) {
            looking.goes_on_behind(place);
            if peer.reader.ready() {
                some = true;
                all = all.and(self.read_in_section(peer, &looking));
            }
        }
        // A response can wait while there is something more urgent, for example the program's reply to a message.
        if !some && node.has_pending_responses() {
            all = self.send_pending_unlocked(node);
        }
        all.needs_lock |= node.is_halted();
        drop(looking);
        self.after_reading(all);
        None
    }

    /// For a poll that looks no more: sends the acknowledgements for which requesters were let wait.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn acknowledge_after_looks(&self, queue: &mut PolledQueue) {
        let Some(node) = &self.node else { return };
        let looking = Looking::enter(queue);
        self.barriers.light();
        let outcome = self.send_pending_unlocked(node);
        drop(looking);
        self.after_reading(outcome);
    }

    /// Reads a peer's packets, in the section of a poll.
    #[inline(always)]
    fn read_in_section(&self, peer: &Peer, queue: &PolledQueue) -> LookOutcome {
        let me = Thread::current();
        match peer.reading.enter(me) {
            Some(reads) => self.read_unlocked(peer, reads, queue.look()),
            None => LookOutcome::unread(peer, me),
        }
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
        let mut all = LookOutcome::default();
        // Relaxed, both: threads that look at once may visit the same peers.
        let mut next = self.looks.next.load(Ordering::Relaxed);
        for (place, peer) in node.some_live(next) {
            next = behind(place);
            if !peer.reader.ready() {
                continue;
            }
            all = all.and(match peer.reading.enter_alone(me, self.barriers) {
                Some(reads) => self.read_unlocked(peer, reads, look),
                None => LookOutcome::unread(peer, me),
            });
        }
        self.looks.next.store(next, Ordering::Relaxed);
        self.after_reading(all);
    }

    /// Handles what needs the lock, in no section.
    #[inline(always)]
    fn after_reading(&self, outcome: LookOutcome) {
        if outcome.needs_lock {
            let whose = if outcome.unread {
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
        if self.node.as_ref().is_some_and(Node::has_pending_responses) {
            self.send_responses(&mut control, whose);
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
