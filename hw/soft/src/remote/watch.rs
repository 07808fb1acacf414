//! Watches the outstanding requests to other processes: wakes a peer that sleeps, and gives up on one that
//! does not respond. Under the device's lock.

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::record::QpRecord;
use super::super::run::Stop;
use super::super::turn::Thread;
use super::PeerGrant;
use super::acks::{AcksSent, UnsentAcks};
use super::link::Whose;
use super::unlocked::LookOutcome;
use crate::fabric::{Header, Kind, Name, Number, Peer};
use bellwire_core::qp::{AckTimeout, QpState, ack_timeout};
use bellwire_core::wr::{QpType, WcStatus};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long, over all retries, a live peer may be too busy to read.
const BUSY: Duration = Duration::from_millis(250);

/// Queue pairs that a thread that polls checks at a time, because it has other things to do, and how long it then does these
/// at least: each of the queue pairs is some cache lines. So timeouts are seen so much later.
const AT_ONCE: usize = 256;
const PART: Duration = Duration::from_micros(200);

/// How many queue pairs are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    All,
    Next,
}

/// A round over all queue pairs, in parts.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Round {
    /// The index of the next one.
    next: usize,
    /// One of them waits for another process.
    some: bool,
    /// Time of the next part.
    due: u64,
}

/// How long the outstanding requests have been without a response.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Watch {
    since: u64,
    retries_left: u8,
    /// Counter of the oldest unacknowledged entry.
    acked: u32,
}

impl QpRecord {
    /// Whether requests to another process are outstanding.
    pub(in super::super) fn under_way(&self) -> bool {
        self.requester.is_some() && self.unacknowledged() != 0
    }

    /// How many requests to another process are outstanding.
    pub(super) fn unacknowledged(&self) -> u16 {
        // Acquire: pairs with the Release of the sending thread in `post`. A request that is being sent now
        // is seen by the next call.
        let next = self.ctx.sender.number(Ordering::Acquire);
        next.msn().wrapping_sub(self.acked())
    }

    /// Number of the oldest unacknowledged request.
    pub(super) fn acked(&self) -> u16 {
        // Relaxed: a number that only grows in a life.
        self.ctx.inbound.acked.load(Ordering::Relaxed) as u16
    }

    /// Whether a request waits until another process makes room for it.
    fn waits_for_room(&self) -> bool {
        self.requester.as_ref().is_some_and(|it| it.full)
            && matches!(self.state, QpState::Rts | QpState::Sqd)
    }
}

impl Round {
    /// Goes on with the first queue pair, when the next part is due.
    fn begin(&mut self) {
        *self = Self {
            due: self.due,
            ..Self::default()
        };
    }
}

impl Control {
    /// Adds the queue pairs of the next part that wait for another process, if it is due. Whether the round is over.
    fn next_waiting(
        &mut self,
        share: Share,
        now: u64,
        is_virtual: bool,
        waiting: &mut Vec<u32>,
    ) -> bool {
        let Round { next, some, due } = self.round;
        let first = match share {
            Share::All => 0,
            // A virtual clock stands still meanwhile.
            Share::Next if now < due && !is_virtual => return false,
            Share::Next => next,
        };
        let most = match share {
            Share::All => usize::MAX,
            Share::Next => AT_ONCE,
        };
        let records = self.qps.get(first..).unwrap_or_default();
        let part = records.iter().take(most).flatten();
        waiting.extend(
            part.filter(|record| record.under_way() || record.waits_for_room())
                .map(|record| record.qpn),
        );
        self.round = Round {
            next: first.saturating_add(most),
            some: (first != 0 && some) || !waiting.is_empty(),
            due: now.saturating_add(PART.as_nanos() as u64),
        };
        self.round.next >= self.qps.len()
    }
}

impl Hca {
    /// Checks everything that waits for another process; with [`Share::Next`], of very many queue pairs only the
    /// next ones.
    pub(super) fn tend(&self, control: &mut Control, share: Share) {
        let Some(node) = &self.node else { return };
        self.send_responses(control, Whose::Free);
        self.go_on(control);
        let now = self.clock.now();
        let mut waiting = std::mem::take(&mut control.waiting);
        let over = control.next_waiting(share, now, self.clock.is_virtual(), &mut waiting);
        let some = control.round.some;
        if over {
            control.round.begin();
        }
        let unread = (node.live()).filter(|peer| !peer.see_to_it(now)).count();
        let due = some || !control.pending_responses.is_empty() || !control.halted.is_empty();
        // Before a round is over, only what is found counts.
        if due || unread != 0 || over {
            node.set_waiting(unread != 0 || due);
        }
        for qpn in waiting.drain(..) {
            self.look_after(control, qpn, now);
        }
        control.waiting = waiting;
    }

    fn look_after(&self, control: &mut Control, qpn: u32, now: u64) {
        let Some(node) = &self.node else { return };
        let Some(record) = control.record(qpn) else {
            return;
        };
        let (timeout, retry_cnt) = (record.attr.timeout, record.attr.retry_cnt);
        let unreliable = record.parts.transport == QpType::Uc;
        // Relaxed: compared with itself only.
        let acked = record.ctx.sender.acked.load(Ordering::Relaxed);
        let Some(requester) = &mut record.requester else {
            return;
        };
        let peer = node.peer(requester.slot);
        let there = peer.incarnation() == requester.incarnation;
        if unreliable && !there {
            return self.let_go(control, qpn);
        }
        // A reader without the lock does not reset the watch.
        let same = requester.watch.take_if(|watch| watch.acked == acked);
        let watch = requester.watch.insert(same.unwrap_or(Watch {
            since: now,
            retries_left: retry_cnt,
            acked,
        }));
        let after = |from: u64, time: Duration| now >= from.saturating_add(time.as_nanos() as u64);
        let Some(AckTimeout::After(wait)) = ack_timeout(timeout) else {
            return;
        };
        // A device reads at once; a process needs a processor first.
        let unread = there && !peer.writer.all_read();
        let wait = if unread {
            wait.max(BUSY / (u32::from(retry_cnt) + 1))
        } else {
            wait
        };
        if !after(watch.since, wait) {
            return;
        }
        watch.since = now;
        if watch.retries_left != 0 {
            watch.retries_left -= 1;
            let retries_left = watch.retries_left;
            // The peer has read the requests without a response: it did not accept them.
            if there && !unread {
                self.halt(control, qpn);
                self.resume(control, qpn);
            }
            if let Some(record) = control.record(qpn)
                && let Some(requester) = &mut record.requester
            {
                requester.watch = Some(Watch {
                    since: now,
                    retries_left,
                    acked,
                });
            }
            return;
        }
        if unreliable {
            return self.let_go(control, qpn);
        }
        self.halt(control, qpn);
        self.fail(control, qpn, WcStatus::RetryExcErr, None);
    }

    /// The peer of a requester has responded.
    pub(super) fn heard(&self, control: &mut Control, qpn: u32) {
        let record = control.record(qpn);
        if let Some(requester) = record.and_then(|record| record.requester.as_mut()) {
            requester.watch = None;
        }
    }

    /// Completes the outstanding requests of an unreliable queue pair with success, whatever happens to them.
    /// If the peer reads one later, it sees another life and does not access the memory.
    fn let_go(&self, control: &mut Control, qpn: u32) {
        self.stop_sending(control, qpn);
        let Some(record) = control.record(qpn) else {
            return;
        };
        record.lives = record.lives.wrapping_add(1);
        let life = record.lives;
        let count = record.unacknowledged();
        let Some(requester) = &mut record.requester else {
            return;
        };
        let full = requester.full;
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the cell.
        if let Some(completing) = unsafe { &mut *record.ctx.inbound.completing.get() } {
            completing.life = life;
        }
        let sender = &record.ctx.sender;
        // Relaxed: nothing is being sent, and the lock is held.
        let next = sender.number(Ordering::Relaxed).msn();
        sender.set_number(Number::new(life, next), Ordering::Relaxed);
        self.speak(record);
        if self.acknowledge(control, qpn, count, 0) {
            if let Some(record) = control.record(qpn) {
                record.rewind();
            }
            // The request for which there was no room completes, too. The poster may have stopped at another entry
            // since, and not have taken the lock yet.
            if (!full || self.executed(control, qpn, 0)) && !self.settle(control, qpn) {
                self.resume(control, qpn);
            }
        }
    }

    /// Continues the queue pairs that wait for a response or for room.
    pub(super) fn go_on(&self, control: &mut Control) {
        if let Some(node) = &self.node {
            node.set_halted(false);
            self.note_looks();
        }
        let mut halted = std::mem::take(&mut control.going_on);
        std::mem::swap(&mut halted, &mut control.halted);
        for qpn in halted.drain(..) {
            let Some(record) = control.record(qpn) else {
                continue;
            };
            if matches!(record.state, QpState::Rts | QpState::Sqd)
                // Acquire: pairs with the Release of a poster that has just stopped at an entry, and is about
                // to leave its section.
                && record.ctx.sender.gate.is_closed(Ordering::Acquire)
            {
                record.ctx.sender.section.wait();
                // Its poster may have stopped at another entry since, and not have taken the lock yet.
                if !self.settle(control, qpn) {
                    self.resume(control, qpn);
                }
            }
        }
        control.going_on = halted;
    }

    /// Sends the pending responses, as far as there is room. Acknowledgements of a peer whose packets
    /// another thread reads are left to that thread.
    pub(super) fn send_responses(&self, control: &mut Control, whose: Whose) {
        let Some(node) = &self.node else { return };
        // Before the lists are read, so that a list that grows meanwhile sets it again.
        node.set_pending_responses(false);
        let mut at = 0;
        while let Some(&qpn) = control.pending_responses.get(at) {
            if self.send_response(control, qpn) {
                control.pending_responses.swap_remove(at);
            } else {
                at += 1;
            }
        }
        let mut unsent = UnsentAcks::default();
        unsent.add(Some(if at == 0 {
            AcksSent::All
        } else {
            AcksSent::NoRoom
        }));
        let me = Thread::current();
        for peer in node.live().filter(|peer| peer.reading.has_pending()) {
            let reads = peer.reading.try_take(me).or_else(|| {
                let taken = whose == Whose::All || LookOutcome::unread(peer, me).unread;
                taken.then(|| self.reads(peer))
            });
            unsent.add(reads.map(|mut reads| self.send_pending_acks(peer, reads.pending())));
        }
        unsent.note(node);
    }

    /// Keeps the data path out of a queue pair's sends, and rewinds it to the oldest unacknowledged request:
    /// that one and those behind it count as not sent.
    pub(super) fn halt(&self, control: &mut Control, qpn: u32) {
        self.stop_sending(control, qpn);
        if let Some(record) = control.record(qpn) {
            record.rewind();
        }
    }

    /// Keeps the data path out of a queue pair's sends, and waits until it has left.
    pub(super) fn stop_sending(&self, control: &mut Control, qpn: u32) {
        if let Some(record) = control.record(qpn) {
            self.keep_out(record);
        }
    }

    /// Keeps the data path out of a queue pair's sends, and waits until it has left.
    pub(in super::super) fn keep_out(&self, record: &mut QpRecord) {
        if !self.is_left(record) {
            // Relaxed: the barrier orders it before what follows.
            record.ctx.sender.gate.close(Ordering::Relaxed);
            self.barriers.heavy();
            self.wait_for_data_path(record);
        }
        record.kept_out = true;
    }

    /// Whether nobody executes a queue pair's sends, or acknowledges them, and nobody will before it is opened:
    /// known without a barrier.
    pub(in super::super) fn is_left(&self, record: &QpRecord) -> bool {
        if record.kept_out {
            return true;
        }
        let sender = &record.ctx.sender;
        // On a fabric a thread that reads packets may have seen it open, in a section that we do not see yet.
        //
        // Acquire: pairs with the Release in `Hca::stop`. The executing thread has closed it itself, in its section,
        // whose entry we therefore see; no other thread executes, and this one finds it closed if it comes back.
        // Model: `loom_who_closes_in_its_section_needs_no_barrier`.
        let left = self.node.is_none() && sender.gate.is_closed(Ordering::Acquire);
        if left {
            sender.section.wait();
        }
        left
    }

    /// Waits, after a heavy barrier, until the threads have left that may have seen a queue pair open: the one
    /// that executes its sends, and those that read packets. Any peer can send an acknowledgement, whoever the queue
    /// pair is connected to.
    pub(in super::super) fn wait_for_data_path(&self, record: &QpRecord) {
        record.ctx.sender.section.wait();
        self.wait_for_readers();
    }

    /// For a queue pair that drains: sends the oldest outstanding request again, so that it is finished.
    pub(in super::super) fn send_again(&self, control: &mut Control, qpn: u32) {
        if let Some(record) = control.record(qpn) {
            let at = record.ctx.sender.acked.load(Ordering::Relaxed);
            let stall = record.stall_at(at);
            record.stall = Some(stall);
            self.resume(control, qpn);
        }
    }

    /// Asks a peer for its pending responses. If there is no room, the peer has to read first, and the
    /// packets in the ring make it respond.
    fn probe(&self, peer: &Peer) {
        let header = Header::of(Name::new(Kind::Probe, 0), Number::NONE);
        let sent =
            (self.sending(peer)).and_then(|to| to.send_line(peer.incarnation(), 0, |_| header));
        if sent.is_ok() {
            self.after_send(peer);
        }
    }

    /// Registers an entry that cannot be sent yet, to be tried again soon. `true`: what it waits for has
    /// happened already.
    pub(in super::super) fn wait_for_peer(
        &self,
        control: &mut Control,
        qpn: u32,
        stop: Stop,
    ) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        if stop == Stop::Unacknowledged && !record.under_way() {
            return true;
        }
        if stop == Stop::Full
            && let Some(requester) = &mut record.requester
            // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
            && let Some(work) = unsafe { &*record.ctx.sender.work.get() }
        {
            let carried = work.remote.as_ref().map_or(0, |remote| remote.carried);
            requester.full = true;
            // Some parts were sent, so the peer is reading.
            if std::mem::replace(&mut requester.carried, carried) != carried {
                requester.watch = None;
            }
        }
        // Relaxed: compared with itself only.
        let acked = record.ctx.sender.acked.load(Ordering::Relaxed);
        let asked = (record.requester.as_mut()).map(|requester| {
            let before = requester.probed.replace(acked);
            (requester.slot, before == Some(acked))
        });
        control.halted.push(qpn);
        if let (Some(node), Some((slot, before))) = (&self.node, asked) {
            node.set_waiting(true);
            node.set_halted(true);
            self.note_looks();
            if !before {
                self.probe(node.peer(slot));
            }
        }
        false
    }
}

impl QpRecord {
    /// Rewinds a closed queue pair's work to the oldest unacknowledged request. `true`: some were
    /// outstanding.
    pub(in super::super) fn rewind(&mut self) -> bool {
        let (under_way, acked) = (self.under_way(), self.acked());
        let Some(requester) = &mut self.requester else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work.
        let Some(work) = (unsafe { &mut *self.ctx.sender.work.get() }) else {
            return false;
        };
        if matches!(work.stop, Some(Stop::Unacknowledged | Stop::Full)) {
            work.stop = None;
        }
        if let Some(remote) = &mut work.remote
            && (work.consumer.wrapping_sub(remote.sent_to) as i32) > 0
        {
            remote.sent_to = work.consumer;
        }
        // Relaxed: nothing is being sent, and the lock is held.
        work.consumer = self.ctx.sender.acked.load(Ordering::Relaxed);
        let number = Number::new(self.lives, acked);
        self.ctx.sender.set_number(number, Ordering::Relaxed);
        requester.asked_from = requester.got;
        if let Some(remote) = &mut work.remote {
            // So that an entry that is executed by a grant is new: see `is_new`.
            remote.grants = [PeerGrant::NOTHING; 2];
            remote.carried = 0;
            remote.got = requester.got;
        }
        under_way
    }
}
