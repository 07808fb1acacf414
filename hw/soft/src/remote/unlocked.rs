//! Reads a peer's packets without the device's lock, as far as they are frequent and simple: SENDs and WRITEs with
//! immediate data to a reliable connection, whose data is in the packet or in memory that is mapped here, and
//! acknowledgements. A message is copied once, from there to its receive, or to where the WRITE says. The most frequent
//! messages are tried first, by code of their own: see `plain`, `inline` and `pulled`. Datagrams to one queue pair are
//! received likewise: see `datagram`.
//!
//! A SEND with invalidate is not among them: it revokes the key of a window, which the device's lock protects, and then
//! waits until all sections have been left, so also that of the peer's reader.
//!
//! Whatever else arrives, or goes wrong, changes nothing here: the packet stays where it is, and is read again
//! under the lock. So both ways keep one order.
//!
//! The reader is in the section of the completion queue that it polls, or, if it polls none, in the peer's. Whoever revokes
//! something waits for both: see [`Inbound`].

use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::super::qp::QpCtx;
use super::super::receive::RecvWork;
use super::super::run::complete_on;
use super::super::turn::Thread;
use super::acks::{ACKS, Paid, Unpaid};
use super::entry::arrived;
use super::inline::is_send;
use super::plain::likely;
use super::{ASKS, FETCHED_AT_ONCE, PULLED, SPEAKING};
use crate::fabric::{InPlace, Kind, Likely, Name, Node, Number, Owing, Peer, Reads};
use bellwire_core::wqe::SendWqe;
use std::sync::atomic::Ordering;

/// Lines that are read between two updates of the read position for the peer, and such updates before the other peers
/// get their turn.
const PUBLISH_EVERY: u32 = 32;
const AT_ONCE: u32 = 8;

/// What a look has found.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    /// A receive was handed to the poll.
    pub handed: bool,
    /// Some packets need the device's lock.
    pub locked: bool,
    /// Those that another thread leaves, which holds the turn, too.
    pub unread: bool,
}

impl Found {
    const LOCKED: Self = Self {
        handed: false,
        locked: true,
        unread: false,
    };

    /// A packet that this thread may not read, or acknowledgements that it may not pay.
    #[cold]
    pub fn unread(peer: &Peer, me: Thread) -> Self {
        let unread = peer.reading.is_left(me, peer.reader.position());
        Self {
            handed: false,
            locked: unread,
            unread,
        }
    }

    /// Of this peer and of those before.
    pub fn and(self, other: Self) -> Self {
        Self {
            handed: self.handed || other.handed,
            locked: self.locked || other.locked,
            unread: self.unread || other.unread,
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// It needs the lock, and nothing has changed.
    No,
    /// It was handled.
    Yes,
    /// It was handled, and its requester waits for the acknowledgement.
    Asked,
}

impl Read {
    /// If it was handled: whether acknowledgements are to be sent now.
    #[inline(always)]
    pub fn asked(self) -> Option<bool> {
        match self {
            Self::No => None,
            Self::Yes => Some(false),
            Self::Asked => Some(true),
        }
    }
}

/// A message that was received, and its packet passed.
pub(super) struct Passed {
    /// Position of the next packet.
    pub next: u32,
    /// See [`Read::Asked`].
    pub asked: bool,
    /// It was handed to the poll.
    pub handed: bool,
}

impl From<Option<Passed>> for Read {
    #[inline(always)]
    fn from(passed: Option<Passed>) -> Self {
        match passed {
            None => Self::No,
            Some(Passed { asked: false, .. }) => Self::Yes,
            Some(Passed { asked: true, .. }) => Self::Asked,
        }
    }
}

/// What a request's packet says of the request.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// See [`InPlace::name`].
    pub name: Name,
    pub number: Number,
    /// The requester waits for the response.
    pub asks: bool,
}

impl Head {
    /// Of the packet that begins with this line.
    #[inline(always)]
    pub fn of(line: InPlace<'_>) -> Self {
        Self {
            name: line.name(),
            number: line.number(),
            asks: line.size().has(ASKS),
        }
    }
}

impl QpCtx {
    /// The queue pair takes requests from this node from now on, which no thread has seen yet.
    pub(in super::super) fn start_inbound(&self, incarnation: u64) {
        let (of, sources) = (&self.face.incarnation, &self.inbound.sources);
        let accepted = &self.receiver.accepted;
        // Relaxed, all: published by `accepts`. Acknowledgements are listed anew, perhaps with another peer.
        of.store(incarnation, Ordering::Relaxed);
        // SAFETY: the holder of the lock owns both while no peer is accepted.
        unsafe {
            (*sources.get()).forget();
            *accepted.listed.get() = false;
        }
        accepted.expected.forget();
    }
}

impl Hca {
    /// Reads a peer's packets, by this thread that has the turn, in the look of this number. The first one may be handed to
    /// the poll.
    #[inline(always)]
    pub(super) fn read_unlocked(
        &self,
        peer: &Peer,
        mut reads: Reads<'_>,
        look: u32,
        polled: Option<&mut PolledQueue>,
    ) -> Found {
        let Some(node) = &self.node else {
            return Found::default();
        };
        // Relaxed: ordered by the barrier on entering, which pairs with the one in `Hca::set_gate`. Also while the port
        // is down.
        if self.receives_under_lock.load(Ordering::Relaxed) {
            return Found::LOCKED;
        }
        let Some(line) = peer.reader.next_line() else {
            return Found::default();
        };
        let owing = reads.owing();
        // Each is handled where it was received, and not behind all of them: so what is found of it is not kept.
        match peer.reading.likely() {
            Likely::Short => {
                if let Some(first) = self.receive_plain::<true, true>(peer, line, owing, polled) {
                    return self.received_first(node, peer, reads, look, first);
                }
            }
            Likely::Longer => {
                if let Some(first) = self.receive_plain::<false, true>(peer, line, owing, polled) {
                    return self.received_first(node, peer, reads, look, first);
                }
            }
            Likely::Inline => {
                if let Some(first) = self.receive_inline::<false>(peer, line, owing, None) {
                    return self.received_first(node, peer, reads, look, first);
                }
            }
            Likely::Shared => {
                if let Some(first) = self.receive_inline::<true>(peer, line, owing, polled) {
                    return self.received_first(node, peer, reads, look, first);
                }
            }
        }
        Found {
            locked: self.read_on(node, peer, reads, look, Read::No),
            ..Found::default()
        }
    }

    /// Goes on behind the first message, if there may be more.
    #[inline(always)]
    fn received_first(
        &self,
        node: &Node,
        peer: &Peer,
        mut reads: Reads<'_>,
        look: u32,
        first: Passed,
    ) -> Found {
        let Passed {
            next,
            asked,
            handed,
        } = first;
        // The one behind a message that was handed over is read by the next look, which hands it over, too: that takes two
        // thirds of the time that a completion entry would take.
        if handed {
            peer.reader.publish_at(next);
            if asked {
                self.pay_acks(peer, reads.owing());
            }
            return Found {
                handed,
                ..Found::default()
            };
        }
        let is_last = !asked && (!reads.found_again_in(look) || !peer.reader.is_at(next));
        let locked = match is_last {
            true => {
                peer.reader.publish_at(next);
                false
            }
            false => self.read_on(node, peer, reads, look, Some(first).into()),
        };
        Found {
            locked,
            ..Found::default()
        }
    }

    /// Goes on reading a peer's packets, behind or at the first one. `true`: some need the device's lock.
    #[inline(never)]
    fn read_on(
        &self,
        node: &Node,
        peer: &Peer,
        mut reads: Reads<'_>,
        look: u32,
        mut read: Read,
    ) -> bool {
        let more = read != Read::No || reads.found_again_in(look);
        // Also, how many bytes were copied from the peer's memory.
        let (mut updates, mut copied) = (0, 0);
        // How many requesters wait for an acknowledgement, and how many may. The first does not: most often it is the only one.
        let (mut asked, mut most) = (0, 1);
        let mut published = peer.reader.position();
        let stopped = loop {
            if read == Read::No {
                let Some(line) = peer.reader.next_line() else {
                    break false;
                };
                read = self.read_next(peer, line, reads.owing(), &mut copied);
            }
            if read == Read::No {
                break true;
            }
            let position = peer.reader.position();
            let update = position.wrapping_sub(published) >= PUBLISH_EVERY;
            if update {
                // The requester may continue.
                peer.reader.publish();
                published = position;
                updates += 1;
            }
            if update || read == Read::Asked {
                asked += 1;
                if update || asked == most {
                    self.pay_acks(peer, reads.owing());
                    (asked, most) = (0, ACKS);
                }
            }
            if updates == AT_ONCE || copied >= FETCHED_AT_ONCE || !more {
                break false;
            }
            read = Read::No;
        };
        peer.reader.publish();
        if asked != 0 {
            self.pay_acks(peer, reads.owing());
        }
        if !reads.owing().is_empty() {
            node.owes();
        }
        stopped
    }

    /// Handles the next packet by the code for its kind, and passes it.
    #[inline(always)]
    fn read_next(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
        copied: &mut u64,
    ) -> Read {
        if line.whole_name().is(Kind::Datagram) {
            return self.receive_datagram(peer, line);
        }
        if line.size().has(PULLED) {
            return self.receive_pulled(peer, line, owing, copied);
        }
        if !is_send(line) {
            return self.read_one(peer, line, owing);
        }
        let likely = match peer.reading.likely() {
            Likely::Shared => Some(Likely::Shared),
            Likely::Short | Likely::Longer | Likely::Inline => {
                let likely = likely(line.size());
                peer.reading.set_likely(likely.unwrap_or(Likely::Inline));
                likely
            }
        };
        let passed = match likely {
            Some(Likely::Short) => self.receive_another_plain::<true>(peer, line, owing),
            Some(Likely::Longer) => self.receive_another_plain::<false>(peer, line, owing),
            Some(Likely::Shared) => self.receive_another_inline::<true>(peer, line, owing),
            Some(Likely::Inline) | None => self.receive_another_inline::<false>(peer, line, owing),
        };
        match passed {
            None => self.read_one(peer, line, owing),
            passed => passed.into(),
        }
    }

    /// Sends the acknowledgements that are owed, without the device's lock, in the section of the poll. Whether some need the
    /// lock.
    #[cold]
    #[inline(never)]
    pub(super) fn pay_unlocked(&self, node: &Node) -> Found {
        // Before the lists are read, so that a list that grows meanwhile sets it again.
        node.set_owing(false);
        let (me, mut all) = (Thread::current(), Found::default());
        let mut unpaid = Unpaid::default();
        for peer in node.live().filter(|peer| peer.reading.owes()) {
            let reads = peer.reading.enter(me);
            let paid = reads.map(|mut reads| self.pay_acks(peer, reads.owing()));
            unpaid.add(paid);
            all = all.and(match paid {
                None => Found::unread(peer, me),
                // Another thread holds the turn to send: who has the lock can take it away.
                Some(Paid::Held) => Found::LOCKED,
                Some(Paid::All | Paid::NoRoom) => Found::default(),
            });
        }
        unpaid.note(node);
        all
    }

    /// Handles the next packet, and passes it. Not inlined, so that the most frequent messages are received without its
    /// frame.
    #[inline(never)]
    fn read_one(&self, peer: &Peer, line: InPlace<'_>, owing: &mut Owing) -> Read {
        let read = match line.whole_name() {
            name if name.is(Kind::Request) => self.receive(peer, owing, line),
            name if name.is(Kind::Acks) && self.take_acks(peer, line) => Read::Yes,
            _ => Read::No,
        };
        if read != Read::No {
            line.done(line.size().len());
        }
        read
    }

    #[inline(always)]
    fn receive(&self, peer: &Peer, owing: &mut Owing, line: InPlace<'_>) -> Read {
        let entry = line.wide(0);
        let Some(arrived) = arrived(peer, line, entry, line.size()) else {
            return Read::No;
        };
        self.receive_by(
            peer,
            owing,
            Head::of(line),
            || line.taken(),
            #[inline(always)]
            |ctx, work, _| match work {
                Some(recv) => {
                    if recv.is_shared() {
                        peer.reading.set_likely(Likely::Shared);
                    } else if peer.reading.likely() == Likely::Shared {
                        peer.reading.set_likely(Likely::Short);
                    }
                    recv.receive_arrived(self, &ctx.face, &arrived, || true)
                }
                None => false,
            },
        )
    }

    /// Receives the message of a packet by `receive`, if the queue pair accepts it. `taken` is the
    /// acknowledgement that the packet carries. `receive` is given the number of the requester's queue pair.
    #[inline(always)]
    pub(super) fn receive_by(
        &self,
        peer: &Peer,
        owing: &mut Owing,
        head: Head,
        taken: impl FnOnce() -> Option<Number>,
        receive: impl FnOnce(&QpCtx, &mut Option<RecvWork>, u32) -> bool,
    ) -> Read {
        let Head { name, number, .. } = head;
        let (dst, src) = (name.dst(), name.src());
        // SAFETY: used within this section.
        let Some(ctx) = (unsafe { self.qps.find(dst) }) else {
            return Read::No;
        };
        // Acquire: pairs with the Release at the transition to RTR, so that its receive side is set up.
        let accepts = ctx.face.accepts.load(Ordering::Acquire);
        let expected = &ctx.receiver.accepted.expected;
        // The first request of a connection is not accepted here.
        let accepted = peer.is_accepted(accepts, name)
            // Relaxed, all: of the thread that has the turn.
            && ctx.face.incarnation.load(Ordering::Relaxed) == peer.incarnation()
            && expected.is_open_for(number)
            // A request that was flushed meanwhile is not executed.
            && peer.segments.life(src) == u32::from(number.life()) | SPEAKING;
        if !accepted {
            return Read::No;
        }
        if let Some(taken) = taken()
            && !self.acknowledge_unlocked(peer, dst, ctx, taken)
        {
            return Read::No;
        }
        // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn, so it owns
        // the receive side.
        let work = unsafe { &mut *ctx.receiver.work.get() };
        if !receive(ctx, work, src) {
            return Read::No;
        }
        expected.pass();
        self.owe_ack(peer, owing, ctx);
        match head.asks {
            true => Read::Asked,
            false => Read::Yes,
        }
    }

    /// Completes the requests up to the one with this number. `false`: some of them are left.
    #[inline(never)]
    pub(super) fn acknowledge_unlocked(
        &self,
        peer: &Peer,
        qpn: u32,
        ctx: &QpCtx,
        taken: Number,
    ) -> bool {
        let sender = &ctx.sender;
        // Acquire: pairs with the Release with which the holder of the lock opened the queue pair.
        if sender.gate.is_closed(Ordering::Acquire) {
            return false;
        }
        // SAFETY: the queue pair is open, and this thread is in the section for which its closer waits.
        let Some(completing) = (unsafe { &*ctx.inbound.completing.get() }) else {
            return false;
        };
        if (completing.qpn, completing.life, completing.slot) != (qpn, taken.life(), peer.slot)
            || completing.incarnation != peer.incarnation()
        {
            return false;
        }
        // Relaxed: only this thread changes it.
        let mut acked = ctx.inbound.acked.load(Ordering::Relaxed) as u16;
        // Acquire: pairs with the Release of the sending thread in `post`.
        let sent = sender.number(Ordering::Acquire).msn();
        let count = taken.msn().wrapping_sub(acked).wrapping_add(1);
        // Of a packet that is looked at again, for example.
        if count == 0 {
            return true;
        }
        // It is stale, or the sending thread has not counted its request yet.
        if count.wrapping_sub(1) >= sent.wrapping_sub(acked) {
            return false;
        }
        // Relaxed: while requests are outstanding, only this thread changes it. Not read before they are known
        // to be: until then the sending thread may have changed it, whatever the peer acknowledges.
        let mut counter = sender.acked.load(Ordering::Relaxed);
        let mut left = count;
        while left != 0 {
            // SAFETY: sent, so posted, and not completed.
            let wqe = unsafe { SendWqe::read(completing.ring, counter) };
            let plain = wqe.operation().is_some_and(|it| !it.has_result());
            let (cq, user_index) = (completing.cq, completing.user_index);
            // If the completion queue is full, the holder of the lock finds that again.
            if !plain || !complete_on(cq, qpn, user_index, &wqe, counter, 0) {
                break;
            }
            counter = counter.wrapping_add(wqe.blocks());
            acked = acked.wrapping_add(1);
            left -= 1;
        }
        // Relaxed: published by the counter.
        ctx.inbound.acked.store(acked.into(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `run`.
        sender.acked.store(counter, Ordering::Release);
        left == 0
    }

    /// Packets of other processes are read under the lock only, or also without it. The caller waits for the
    /// readers' sections.
    pub(in super::super) fn receives_under_lock(&self, only: bool) {
        // Relaxed: ordered by the caller's barrier.
        self.receives_under_lock.store(only, Ordering::Relaxed);
        self.taken_away.pass();
    }

    /// Waits until each thread of this process has left the section in which it may have seen what was
    /// revoked. Call it after a heavy barrier, under the lock.
    pub(in super::super) fn wait_for_all(&self) {
        self.qps.wait_for_all();
        self.wait_for_readers();
    }

    /// Likewise, each thread that reads packets.
    pub(in super::super) fn wait_for_readers(&self) {
        if let Some(node) = &self.node {
            node.all_peers().for_each(|peer| peer.reading.wait());
            self.polls.wait();
        }
    }

    /// Waits, after a heavy barrier, until no thread receives for a queue pair that accepts no peer any more.
    /// It acknowledges what it has received from the peer that it `accepted`.
    pub(in super::super) fn stop_reading(
        &self,
        slot: Option<usize>,
        qpn: u32,
        ctx: &QpCtx,
        accepted: u64,
    ) {
        if let (Some(node), Some(slot)) = (&self.node, slot) {
            node.peer(slot).reading.wait();
            self.polls.wait();
            // If there is no room, the requester has to time out.
            let _sent = self.pay_ack(slot, qpn, ctx, accepted);
        }
    }
}
