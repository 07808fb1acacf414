//! The polling side of a completion queue, to which the device can hand a receive without a completion entry.

use super::cq::CqCtx;
use super::fabric::behind;
use super::hca::{Hca, Running};
use super::poll_history::PollHistory;
use super::polls::PollSection;
use crate::error::Error;
use bellwire_core::queue::{Completion, CompletionQueue, Received};
use bellwire_memory::fork::Own;
use bellwire_provider::quiesce::Section;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Polled {
    queue: PolledQueue,
    /// That of `_kept`.
    hca: &'static Hca,
    _kept: Own<(Arc<Hca>, PollSection)>,
}

/// What a poll passes to the device. In this order, whatever there is behind the queue: polls of other devices than nodes, too, take more
/// instructions if the compiler finds another one.
#[derive(Debug)]
#[repr(C)]
pub struct PolledQueue {
    core: CompletionQueue<'static>,
    /// The device's side.
    ctx: *const CqCtx,
    /// Is kept with the device.
    section: &'static Section,
    /// Looks until one looks after more than packets.
    left: u32,
    waiting: Waiting,
    turn: PeerTurn,
    /// For the poll, and for the flight recorder.
    history: PollHistory,
}

/// Whose turn it is where there are several peers: a look begins with that one.
#[derive(Clone, Copy, Debug, Default)]
struct PeerTurn {
    /// In the list of the peers with which there is a link.
    place: usize,
    /// How many looks more it may find something.
    left: u32,
}

/// Looks in succession that find something of one peer while others may have something, too.
const LOOKS_AT_ONE: u32 = 8;

impl PeerTurn {
    /// It is that of the peer behind this place.
    #[inline(always)]
    fn behind(place: usize) -> Self {
        Self {
            place: behind(place),
            left: LOOKS_AT_ONE,
        }
    }

    /// A look has found something there.
    #[inline(always)]
    fn after_packet_of(self, place: usize) -> Self {
        let left = match self.place == place {
            true => self.left,
            false => LOOKS_AT_ONE,
        };
        match left {
            0 | 1 => Self::behind(place),
            left => Self {
                place,
                left: left - 1,
            },
        }
    }
}

/// Requesters of messages that were reported to a poll, and wait until it looks no more to be acknowledged together. They are of
/// one peer.
#[derive(Debug, Default)]
struct Waiting {
    /// After how many more of them all are, at the latest. Zero outside of a poll that looks repeatedly.
    left: u32,
    /// The peer's place in the fabric.
    slot: usize,
}

/// As many as are acknowledged by one packet.
pub const TOGETHER: u32 = 5;

impl Waiting {
    #[inline(always)]
    fn begin(&mut self) {
        self.left = TOGETHER;
    }

    /// Whether one more of this peer waits; otherwise all of it are acknowledged now. So it does if there is a next packet, for
    /// which the poll looks next in any case, and none of another peer waits.
    #[inline(always)]
    fn one_more(&mut self, slot: usize, is_next: impl FnOnce() -> bool) -> bool {
        if self.left == 0 || self.left != TOGETHER && self.slot != slot {
            return false;
        }
        let waits = self.left > 1 && is_next();
        if waits {
            self.left -= 1;
            self.slot = slot;
        } else {
            self.begin();
        }
        waits
    }

    /// Whether some wait.
    #[inline(always)]
    fn end(&mut self) -> bool {
        std::mem::take(&mut self.left) != TOGETHER
    }
}

/// A poll that may look several times. Before it ends, also by a panic of the program's, each acknowledgement for which a
/// requester waits is sent.
#[derive(Debug)]
pub struct RepeatedLooks<'p>(&'p mut Polled);

/// A poll that has found the queue empty and looks for packets, in the queue's section until this is dropped.
#[derive(Debug)]
pub struct Looking<'q>(&'q mut PolledQueue);

// SAFETY: the context is only compared.
unsafe impl Send for PolledQueue {}
// SAFETY: as above.
unsafe impl Sync for PolledQueue {}

impl Deref for Polled {
    type Target = CompletionQueue<'static>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.queue.core
    }
}

impl DerefMut for Polled {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.queue.core
    }
}

impl PolledQueue {
    /// Whether this is the polling side of that queue, and nothing in it waits to be polled, because the entry that is
    /// written next has this index.
    #[inline(always)]
    pub(super) fn is_empty_at(&self, ctx: &CqCtx, produced: u32) -> bool {
        std::ptr::eq(self.ctx, ctx) && self.core.next_index() == produced
    }

    /// Reports this receive to the poll.
    ///
    /// # Safety
    /// It is executed, there is no entry of it, nor one of an older receive of its queue pair that was not polled. The poll
    /// returns it before anything else is reported.
    #[inline(always)]
    pub(super) unsafe fn report(&mut self, received: impl FnOnce() -> Received) {
        self.history.note(self.core.next_index(), received);
    }

    /// The receive that was reported last, if there is one.
    #[inline(always)]
    pub(super) fn last(&self) -> &Received {
        self.history.last()
    }

    /// Whether the requester, at this peer, of the message that was reported last waits for those of the next ones.
    #[inline(always)]
    pub(super) fn lets_wait(&mut self, slot: usize, is_next: impl FnOnce() -> bool) -> bool {
        self.waiting.one_more(slot, is_next)
    }

    /// Counts a look. Whether it looks after more than packets.
    #[inline(always)]
    pub(super) fn looks_after_more(&mut self) -> bool {
        let (left, over) = self.left.overflowing_sub(1);
        self.left = left;
        over
    }

    /// The place of the peer whose turn it is.
    #[inline(always)]
    pub(super) fn place(&self) -> usize {
        self.turn.place
    }

    /// The next look begins behind this place.
    #[inline(always)]
    pub(super) fn goes_on_behind(&mut self, place: usize) {
        self.turn = PeerTurn::behind(place);
    }

    /// This look has found something of the peer in this place.
    #[inline(always)]
    pub(super) fn finds(&mut self, place: usize) {
        self.turn = self.turn.after_packet_of(place);
    }

    /// The number of this look.
    pub(super) fn look(&self) -> u32 {
        self.left.wrapping_neg()
    }

    /// The next looks do not look after more than packets.
    pub(super) fn looks_again_in(&mut self, looks: u32) {
        self.left = looks;
    }
}

impl<'q> Looking<'q> {
    /// Where the light barrier is none of the compiler, nobody holds a turn.
    #[inline(always)]
    pub(super) fn enter(queue: &'q mut PolledQueue) -> Self {
        queue.section.enter_unfenced();
        Self(queue)
    }

    /// Leaves the section.
    #[inline(always)]
    pub(super) fn leave(self) -> &'q mut PolledQueue {
        self.section.leave();
        let this = ManuallyDrop::new(self);
        // SAFETY: it is not used again.
        unsafe { std::ptr::read(&this.0) }
    }
}

impl Drop for Looking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.section.leave();
    }
}

impl Deref for Looking<'_> {
    type Target = PolledQueue;

    #[inline(always)]
    fn deref(&self) -> &PolledQueue {
        self.0
    }
}

impl DerefMut for Looking<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut PolledQueue {
        self.0
    }
}

impl Polled {
    /// Of a queue of this device, with the device's side of it.
    ///
    /// # Errors
    /// There is no memory for the history of reports.
    pub fn new(core: CompletionQueue<'static>, ctx: &CqCtx, hca: &Running) -> Result<Self, Error> {
        // Only a node's device reports to polls.
        let count = hca.fabric().map_or(1, |_| core.capacity());
        let history = PollHistory::new(count as usize)?;
        let section = PollSection::default();
        hca.polls.begin(&section)?;
        let kept = (hca.shared(), section);
        // SAFETY: both are kept as long as this is.
        let (hca, section) = unsafe { (&*Arc::as_ptr(&kept.0), &*Arc::as_ptr(&kept.1)) };
        let queue = PolledQueue {
            core,
            ctx,
            section,
            left: 0,
            turn: PeerTurn::default(),
            waiting: Waiting::default(),
            history,
        };
        Ok(Self {
            queue,
            hca,
            _kept: kept.into(),
        })
    }

    /// The receives that were reported last.
    pub fn poll_history(&self) -> &PollHistory {
        &self.queue.history
    }

    /// For a poll that has found nothing: makes requests proceed, and returns the receive that was reported to it. `Err`: none
    /// was; whether polling again may find something.
    #[inline(always)]
    pub fn look(&mut self) -> Result<Completion<'static>, bool> {
        if !self.hca.waiting() {
            return Err(false);
        }
        let Some(received) = self.hca.look(&mut self.queue).copied() else {
            return Err(true);
        };
        let PolledQueue { core, history, .. } = &mut self.queue;
        // SAFETY: the caller of `report` guarantees it; nothing was polled since. This queue alone uses the ledger, which is
        // kept as long.
        let completion = unsafe { core.complete_received(received, || history.ledger()) };
        completion.ok_or(true)
    }

    /// For a poll that may look several times.
    #[inline(always)]
    pub fn look_repeatedly(&mut self) -> RepeatedLooks<'_> {
        self.queue.waiting.begin();
        RepeatedLooks(self)
    }
}

impl RepeatedLooks<'_> {
    /// As [`Polled::look`].
    #[inline(always)]
    pub fn look(&mut self) -> Result<Completion<'static>, bool> {
        self.0.look()
    }
}

impl Drop for RepeatedLooks<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Polled { queue, hca, .. } = &mut *self.0;
        if queue.waiting.end() {
            hca.acknowledge_after_looks(queue);
        }
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if Own::is_inherited(&self._kept) {
            return;
        }
        self.hca.polls.end(&self._kept.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two peers.
    const ONE: usize = 3;
    const OTHER: usize = 7;

    #[test]
    fn as_many_wait_as_are_acknowledged_together() {
        let mut waiting = Waiting::default();
        assert!(!waiting.one_more(ONE, || panic!("not looked at")));
        waiting.begin();
        for message in 1..4 * TOGETHER {
            let waits = message % TOGETHER != 0;
            assert_eq!(waiting.one_more(ONE, || true), waits, "{message}");
        }
        assert!(waiting.end());
        assert!(!waiting.one_more(ONE, || panic!("not looked at")));
    }

    #[test]
    fn the_last_one_does_not_wait() {
        let mut waiting = Waiting::default();
        waiting.begin();
        assert!(!waiting.one_more(ONE, || false) && waiting.one_more(ONE, || true));
        assert!(!waiting.one_more(ONE, || false));
        // Then nobody waits.
        assert!(!waiting.end());
    }

    /// Otherwise those of one peer would be forgotten when the others are acknowledged.
    #[test]
    fn those_of_one_peer_wait() {
        let mut waiting = Waiting::default();
        waiting.begin();
        assert!(waiting.one_more(ONE, || true));
        assert!((0..2 * TOGETHER).all(|_| !waiting.one_more(OTHER, || true)));
        assert!(waiting.end());
        waiting.begin();
        assert!(waiting.one_more(OTHER, || true) && !waiting.one_more(ONE, || true));
        assert!(!waiting.one_more(OTHER, || false));
        assert!(waiting.one_more(ONE, || true) && waiting.end());
    }

    #[test]
    fn peers_have_their_turns() {
        let mut turn = PeerTurn::behind(3);
        for _ in 1..LOOKS_AT_ONE {
            turn = turn.after_packet_of(2);
            assert_eq!(turn.place, 2);
        }
        turn = turn.after_packet_of(2);
        assert_eq!((turn.place, turn.left), (1, LOOKS_AT_ONE));
        // What a peer has left of its turn is not that of another one.
        turn = turn.after_packet_of(1).after_packet_of(0);
        assert_eq!((turn.place, turn.left), (0, LOOKS_AT_ONE - 1));
    }
}
