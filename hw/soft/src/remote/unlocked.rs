//! Reads a peer's frequent, simple packets without the device's lock: messages, datagrams to one queue pair, and
//! acknowledgements. Such a message is a SEND, or a WRITE with immediate data, to a reliable connection. Its data is in the
//! packet or in memory that is mapped here, and is copied once: to the message's receive, or to the WRITE's target.
//!
//! A SEND with invalidate is not such a message. It revokes the key of a window, which the device's lock protects. Then it
//! waits until all sections have been left, that of the peer's reader, too.
//!
//! Any other packet, and any failure, changes nothing here: the packet stays in its place, and is read again
//! under the lock. So both ways keep one order.
//!
//! The reader is in the section of the completion queue that it polls, or, if it polls none, in the peer's. A thread that
//! revokes something waits for both: see [`Inbound`](super::inbound).

use super::super::connection::responder;
use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::super::qp::QpCtx;
use super::super::receive::{Arrived, RecvWork, Reported};
use super::super::run::complete_on;
use super::super::turn::Thread;
use super::acks::{ACKS, AcksSent, UnsentAcks};
use super::entry::decode;
use super::packet::NOWHERE;
use super::{ASKS, FETCHED_AT_ONCE, PULLED, SPEAKING};
use crate::fabric::{InPlace, Kind, Node, Number, Peer, PendingAcks, Reads};
use bellwire_core::wqe::SendWqe;
use std::sync::atomic::Ordering;

/// Lines that are read between two updates of the read position for the peer, and such updates before the other peers
/// get their turn.
const PUBLISH_EVERY: u32 = 32;
const AT_ONCE: u32 = 8;

/// What a look leaves to the holder of the device's lock.
#[derive(Clone, Copy, Default)]
pub(super) struct LookOutcome {
    /// Some packets need the device's lock.
    pub needs_lock: bool,
    /// Among them are packets that another thread leaves unread, although it holds the turn.
    pub unread: bool,
}

impl LookOutcome {
    const NEEDS_LOCK: Self = Self {
        needs_lock: true,
        unread: false,
    };

    /// A packet that this thread may not read, or acknowledgements that it may not send.
    #[cold]
    pub fn unread(peer: &Peer, me: Thread) -> Self {
        let unread = peer.reading.is_left(me, peer.reader.position());
        Self {
            needs_lock: unread,
            unread,
        }
    }

    /// Of this peer and of those before.
    pub fn and(self, other: Self) -> Self {
        Self {
            needs_lock: self.needs_lock || other.needs_lock,
            unread: self.unread || other.unread,
        }
    }
}

/// A message that was received. Its packet has been passed, and its acknowledgement is pending.
pub(super) struct Delivered<'c> {
    pub ctx: &'c QpCtx,
    /// Its requester waits for the acknowledgement.
    pub asks: bool,
    pub reported: Reported,
    /// Position of the next packet.
    pub next: u32,
}

/// The requester of a message, and what its life's word says while it still sends.
#[derive(Clone, Copy)]
pub(super) struct Requester {
    qpn: u32,
    speaks: u32,
}

impl Requester {
    /// Whether it is still in the life in which it sent the message.
    #[inline(always)]
    pub fn speaks(self, peer: &Peer) -> bool {
        peer.segments.life(self.qpn) == self.speaks
    }
}

/// A packet that was handled and passed.
struct Handled {
    /// Its requester waits for the acknowledgement.
    asks: bool,
}

impl QpCtx {
    /// The queue pair takes requests from this node from now on, which no thread has seen yet.
    pub(in super::super) fn start_inbound(&self, incarnation: u64) {
        let (of, sources) = (&self.rights.incarnation, &self.inbound.sources);
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
    /// Reads a peer's packets, by this thread that has the turn, in the look of this number. Receives are reported by
    /// completion entries.
    pub(super) fn read_unlocked(
        &self,
        peer: &Peer,
        mut reads: Reads<'_>,
        look: u32,
    ) -> LookOutcome {
        let Some(node) = &self.node else {
            return LookOutcome::default();
        };
        // Relaxed: ordered by the barrier on entering, which pairs with the one in `Hca::set_gate`. Also while the port
        // is down.
        if self.receives_under_lock.load(Ordering::Relaxed) {
            return LookOutcome::NEEDS_LOCK;
        }
        let Some(mut line) = peer.reader.next_line() else {
            return LookOutcome::default();
        };
        let more = reads.follows_a_packet_in(look);
        // Also, how many bytes were copied from the peer's memory.
        let (mut updates, mut copied) = (0, 0);
        // How many requesters wait for an acknowledgement, and how many may. The first does not: most often it is the only one.
        let (mut asked, mut most) = (0, 1);
        let mut published = peer.reader.position();
        let needs_lock = loop {
            let Some(handled) = self.read_next(peer, line, reads.pending(), &mut copied) else {
                break true;
            };
            let position = peer.reader.position();
            let update = position.wrapping_sub(published) >= PUBLISH_EVERY;
            if update {
                // The requester may continue.
                peer.reader.publish();
                published = position;
                updates += 1;
            }
            if update || handled.asks {
                asked += 1;
                if update || asked == most {
                    self.send_pending_acks(peer, reads.pending());
                    (asked, most) = (0, ACKS);
                }
            }
            if updates == AT_ONCE || copied >= FETCHED_AT_ONCE || !more {
                break false;
            }
            let Some(next) = peer.reader.next_line() else {
                break false;
            };
            line = next;
        };
        peer.reader.publish();
        if asked != 0 {
            self.send_pending_acks(peer, reads.pending());
        }
        if !reads.pending().is_empty() {
            node.add_pending_response();
        }
        LookOutcome {
            needs_lock,
            unread: false,
        }
    }

    /// Handles the next packet, which begins with this line, and passes it. `None`: it needs the device's lock, and
    /// nothing has changed.
    #[inline(always)]
    fn read_next(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        pending: &mut PendingAcks,
        copied: &mut u64,
    ) -> Option<Handled> {
        let name = line.whole_name();
        if name.is(Kind::Datagram) {
            return (self.receive_datagram(peer, line)).then_some(Handled { asks: false });
        }
        if name.is(Kind::Acks) {
            let handled = self.take_acks(peer, line);
            return handled.then_some(Handled { asks: false });
        }
        let delivered = if line.size().has(PULLED) {
            self.receive_pulled(peer, line, copied)?
        } else {
            let mut data = [NOWHERE; 2];
            self.receive_message(peer, line, &decode(peer, line, &mut data)?, None)?
        };
        self.add_pending_ack(peer, pending, delivered.ctx);
        let asks = delivered.asks;
        Some(Handled { asks })
    }

    /// Receives this message, which the next packet carries, and passes the packet. `poll`: the receive may be reported to
    /// it.
    #[inline(always)]
    pub(super) fn receive_message(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        message: &Arrived<'_>,
        poll: Option<&mut PolledQueue>,
    ) -> Option<Delivered<'_>> {
        self.receive_by(
            peer,
            line,
            // Otherwise 30 instructions a message more.
            #[inline(always)]
            |ctx, work, _| work.deliver(self, &ctx.rights, message, || true, poll),
        )
    }

    /// Sends the pending acknowledgements, without the device's lock, in the section of the poll. Whether some need the
    /// lock.
    #[cold]
    pub(super) fn send_pending_unlocked(&self, node: &Node) -> LookOutcome {
        // Before the lists are read, so that a list that grows meanwhile sets it again.
        node.set_pending_responses(false);
        let (me, mut all) = (Thread::current(), LookOutcome::default());
        let mut unsent = UnsentAcks::default();
        for peer in node.live().filter(|peer| peer.reading.has_pending()) {
            let reads = peer.reading.enter(me);
            let sent = reads.map(|mut reads| self.send_pending_acks(peer, reads.pending()));
            unsent.add(sent);
            all = all.and(match sent {
                None => LookOutcome::unread(peer, me),
                // Another thread holds the turn to send: who has the lock can take it away.
                Some(AcksSent::Held) => LookOutcome::NEEDS_LOCK,
                Some(AcksSent::All | AcksSent::NoRoom) => LookOutcome::default(),
            });
        }
        unsent.note(node);
        all
    }

    /// Receives the message of a packet by `receive`, if the queue pair accepts it, and passes the packet.
    #[inline(always)]
    pub(super) fn receive_by(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        receive: impl FnOnce(&QpCtx, &mut RecvWork, Requester) -> Option<Reported>,
    ) -> Option<Delivered<'_>> {
        let (ctx, requester) = self.accepting(peer, line)?;
        self.receive_accepted(
            peer,
            line,
            ctx,
            #[inline(always)]
            |work| receive(ctx, work, requester),
        )
    }

    /// Likewise, for the queue pair that was found [to accept](Self::accepting) the request in this section.
    #[inline(always)]
    pub(super) fn receive_accepted<'c>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        ctx: &'c QpCtx,
        receive: impl FnOnce(&mut RecvWork) -> Option<Reported>,
    ) -> Option<Delivered<'c>> {
        // Order 8: an acknowledgement may be applied again. It is, if the packet is left to the lock's holder.
        if let Some(last) = line.ack() {
            // Relaxed: accepted in this section. Of a queue pair that was stopped meanwhile it is zero, which no request has.
            let qpn = responder(ctx.rights.accepts.load(Ordering::Relaxed));
            if !self.acknowledge_unlocked(peer, qpn, ctx, last) {
                return None;
            }
        }
        // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn, so it owns
        // the receive side.
        let work = unsafe { &mut *ctx.receiver.work.get() }.as_mut()?;
        let reported = receive(work)?;
        ctx.receiver.accepted.expected.pass();
        let size = line.size();
        Some(Delivered {
            ctx,
            asks: size.has(ASKS),
            reported,
            next: line.done(size.len()),
        })
    }

    /// The queue pair that accepts the request in the packet that begins with this line. For the thread that has the turn
    /// to read the peer's packets. Each request is checked anew: nothing of an earlier one is kept.
    #[inline(always)]
    pub(super) fn accepting(&self, peer: &Peer, line: InPlace<'_>) -> Option<(&QpCtx, Requester)> {
        // Without anything beside the numbers: it could stand for another node.
        let (name, number) = (line.name(), line.number());
        let requester = Requester {
            qpn: name.src(),
            speaks: u32::from(number.life()) | SPEAKING,
        };
        // SAFETY: used within this section.
        let ctx = unsafe { self.qps.find(name.dst()) }?;
        // Acquire: pairs with the Release at the transition to RTR, so that its receive side is set up.
        let accepts = ctx.rights.accepts.load(Ordering::Acquire);
        // The first request of a connection is not accepted here.
        let accepted = peer.is_accepted(accepts, name)
            // Relaxed, all: of the thread that has the turn.
            && ctx.rights.incarnation.load(Ordering::Relaxed) == peer.incarnation()
            // Order 7: only the expected request is taken.
            && ctx.receiver.accepted.expected.is_open_for(number)
            // A request that was flushed meanwhile is not executed.
            && requester.speaks(peer);
        accepted.then_some((ctx, requester))
    }

    /// Completes the requests up to the one with this number. `false`: some of them are left.
    #[inline(never)]
    pub(super) fn acknowledge_unlocked(
        &self,
        peer: &Peer,
        qpn: u32,
        ctx: &QpCtx,
        last: Number,
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
        if (completing.qpn, completing.life, completing.slot) != (qpn, last.life(), peer.slot)
            || completing.incarnation != peer.incarnation()
        {
            return false;
        }
        // Relaxed: only this thread changes it.
        let mut acked = ctx.inbound.acked.load(Ordering::Relaxed) as u16;
        // Acquire: pairs with the Release of the sending thread in `post`.
        let sent = sender.number(Ordering::Acquire).msn();
        let count = last.msn().wrapping_sub(acked).wrapping_add(1);
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
            let _sent = self.send_pending_ack(slot, qpn, ctx, accepted);
        }
    }
}
