//! Acknowledgements of requests of other processes that no packet of the other direction carries. One packet, of one line,
//! has those of up to five queue pairs.

use super::super::connection::UNTRIED;
use super::super::control::Control;
use super::super::hca::Hca;
use super::super::polled::{PolledQueue, TOGETHER};
use super::super::qp::QpCtx;
use super::accepted::PendingAck;
use crate::fabric::{
    Front, Header, IN_LINE, InPlace, Kind, Name, Node, Number, Packet, Peer, PendingAcks, Send,
    Size,
};
use std::sync::atomic::Ordering;

/// Bytes of an acknowledgement in a packet.
const BYTES: usize = 8;

/// Most of them in one packet.
pub(super) const ACKS: usize = IN_LINE / BYTES;
const _: () = assert!(ACKS == TOGETHER as usize);

/// One of them as it travels: the requester's queue pair, and the last of its requests that was executed.
///
/// ```text
/// 63‥56 zero   55‥32 queue pair   31‥0 `Number`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ack {
    qpn: u32,
    last: Number,
}

impl Ack {
    fn bits(self) -> u64 {
        u64::from(self.qpn) << 32 | u64::from(self.last.word())
    }

    /// Whatever a peer has written.
    fn of_bits(bits: u64) -> Self {
        Self {
            qpn: (bits >> 32) as u32 & 0xff_ffff,
            last: Number::of_word(bits as u32),
        }
    }
}

/// An acknowledgement that is to be sent.
struct Due<'q> {
    /// The responder.
    ctx: &'q QpCtx,
    /// The requester's queue pair.
    to: u32,
    pending: PendingAck,
}

impl Due<'_> {
    /// Writes it into the packet, in this place.
    #[inline(always)]
    fn put(&self, front: Front, at: usize) {
        let ack = Ack {
            qpn: self.to,
            last: self.pending.last,
        };
        front.set(at, ack.bits());
        self.ctx.acknowledged(self.pending);
    }
}

/// What became of the acknowledgements that a peer was to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcksSent {
    All,
    /// Some are left, because there was no room.
    NoRoom,
    /// Some are left, because another thread holds the turn to send. Not under the device's lock.
    Held,
}

/// Which acknowledgements are still pending after peers were to be sent them.
#[derive(Default)]
pub(super) struct UnsentAcks {
    /// Some are.
    some: bool,
    /// Another thread had the list of some.
    busy: bool,
}

impl UnsentAcks {
    /// What became of those of one peer. `None`: another thread is reading its packets, and has the list of them.
    pub fn add(&mut self, sent: Option<AcksSent>) {
        self.some |= sent != Some(AcksSent::All);
        self.busy |= sent.is_none();
    }

    /// Notes it. If another thread had a list, the node's thread looks at the list again. The other thread may have found no
    /// packet, and left the list as it was.
    pub fn note(&self, node: &Node) {
        if self.busy {
            node.add_pending_response();
        } else if self.some {
            node.set_pending_responses(true);
        }
    }
}

impl Hca {
    /// Sends the pending acknowledgements of the queue pairs connected with a peer, as far as there is room. For the thread that
    /// has the turn to read the peer's packets.
    #[inline(never)]
    pub(super) fn send_pending_acks(&self, peer: &Peer, list: &mut PendingAcks) -> AcksSent {
        let mut listed = list.iter();
        let mut next = || listed.find_map(|&qpn| self.no_longer_listed(peer, qpn));
        let unsent = loop {
            let Some(first) = next() else {
                break None;
            };
            match self.send_acks(peer, &first, &mut next) {
                // Acknowledgements have no data of the program's.
                Ok(()) | Err(Send::Gone | Send::Unread) => {}
                Err(Send::Full) => break Some((first, AcksSent::NoRoom)),
                Err(Send::Held) => break Some((first, AcksSent::Held)),
            }
        };
        let mut left = listed.len();
        let sent = match unsent {
            None => AcksSent::All,
            Some((first, why)) => {
                // It is in front of these.
                left += 1;
                // SAFETY: this thread reads the packets of the peer that is accepted.
                unsafe { *first.ctx.receiver.accepted.listed.get() = true };
                why
            }
        };
        list.drain(..list.len() - left);
        peer.reading.set_has_pending(!list.is_empty());
        sent
    }

    /// Acknowledges a message that a poll has received, for which the requester waits. The next packet has the position
    /// `next`. The acknowledgement is sent now, or by the poll with those of the next such messages. For the thread that
    /// has the turn to read the peer's packets, in the section in which it has received this requester's message.
    pub(super) fn acknowledge_asked(
        &self,
        peer: &Peer,
        list: &mut PendingAcks,
        ctx: &QpCtx,
        polled: &mut PolledQueue,
        next: u32,
    ) {
        if polled.lets_wait(peer.slot, || peer.reader.is_at(next)) {
            return self.add_pending_ack(peer, list, ctx);
        }
        // Most often it is the only one, and need not be listed.
        if !list.is_empty() || !self.acknowledge_now(peer, ctx) {
            self.add_pending_ack(peer, list, ctx);
            self.send_pending_acks(peer, list);
        }
    }

    /// Sends the pending acknowledgement of a queue pair that has received a message of this peer in this section.
    /// `false`: it is still pending.
    #[inline(always)]
    fn acknowledge_now(&self, peer: &Peer, ctx: &QpCtx) -> bool {
        // Relaxed: accepted in this section. If it is zero meanwhile, the holder of the lock stops the queue pair. It waits
        // for this section, and then sends the acknowledgement.
        let accepts = ctx.rights.accepts.load(Ordering::Relaxed);
        let due = ctx.pending_ack().map(|pending| Due {
            ctx,
            to: requester_of(accepts),
            pending,
        });
        accepts != 0 && due.is_none_or(|due| self.send_acks(peer, &due, || None).is_ok())
    }

    /// The pending acknowledgement of a queue pair, which leaves the list.
    #[inline(always)]
    fn no_longer_listed(&self, peer: &Peer, qpn: u32) -> Option<Due<'_>> {
        // SAFETY: used by the caller only.
        let ctx = unsafe { self.qps.find(qpn) }?;
        // Acquire: pairs with the Release at the transition to RTR.
        let accepts = ctx.rights.accepts.load(Ordering::Acquire);
        // It may be connected with another peer by now, whose list it is in.
        if !is_with(accepts, qpn, peer) {
            return None;
        }
        // SAFETY: this thread reads the packets of the peer that is accepted.
        unsafe { *ctx.receiver.accepted.listed.get() = false };
        due(peer, ctx, accepts)
    }

    /// Sends the pending acknowledgement of a queue pair, if the queue pair still `accepts` this peer. A packet may have
    /// carried the acknowledgement meanwhile.
    pub(in super::super) fn send_pending_ack(
        &self,
        slot: usize,
        qpn: u32,
        ctx: &QpCtx,
        accepts: u64,
    ) -> Result<(), Send> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        let peer = node.peer(slot);
        match due(peer, ctx, accepts).filter(|_| is_with(accepts, qpn, peer)) {
            Some(due) => self.send_acks(peer, &due, || None),
            None => Ok(()),
        }
    }

    /// Sends this one, and as many of the `next` ones as fit in the same packet.
    #[inline(always)]
    fn send_acks<'q>(
        &self,
        peer: &Peer,
        first: &Due<'q>,
        mut next: impl FnMut() -> Option<Due<'q>>,
    ) -> Result<(), Send> {
        (self.sending(peer)?).answer_line(peer.incarnation(), |front| {
            first.put(front, 0);
            let mut count = 1;
            while count < ACKS
                && let Some(due) = next()
            {
                due.put(front, count);
                count += 1;
            }
            let header = Header::of(Name::new(Kind::Acks, 0), Number::NONE);
            (count * BYTES, header)
        })?;
        self.after_send(peer);
        Ok(())
    }

    /// Handles a packet of acknowledgements, without the device's lock, and passes it. `false`: some are left, or it is no
    /// such packet. The acknowledgements before these may be handled again.
    pub(super) fn take_acks(&self, peer: &Peer, line: InPlace<'_>) -> bool {
        let size = line.size();
        let count = size.len() / BYTES;
        if size != Size::new(count * BYTES, 0, 0) || count > ACKS {
            return false;
        }
        let all = (0..count).all(|at| {
            let Ack { qpn, last } = Ack::of_bits(line.wide(at * BYTES));
            // SAFETY: used within this section.
            let ctx = unsafe { self.qps.find(qpn) };
            ctx.is_some_and(|ctx| self.acknowledge_unlocked(peer, qpn, ctx, last))
        });
        if all {
            line.done(size.len());
        }
        all
    }

    /// The same, under the lock.
    pub(super) fn acks_arrived(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        for bits in packet.bytes.as_chunks::<BYTES>().0 {
            let Ack { qpn, last } = Ack::of_bits(u64::from_ne_bytes(*bits));
            self.acknowledged(control, slot, qpn, last);
        }
    }
}

/// The pending acknowledgement of a queue pair to the peer that it `accepts`, if that is the one with which there is a link.
#[inline(always)]
fn due<'q>(peer: &Peer, ctx: &'q QpCtx, accepts: u64) -> Option<Due<'q>> {
    let pending = ctx.pending_ack()?;
    // Relaxed: by the thread that has the turn.
    let same = ctx.rights.incarnation.load(Ordering::Relaxed) == peer.incarnation();
    same.then(|| Due {
        ctx,
        to: requester_of(accepts),
        pending,
    })
}

/// The requester's queue pair in another process, of a connection that is accepted.
fn requester_of(accepts: u64) -> u32 {
    accepts as u32 & 0xff_ffff
}

/// Whether the queue pair of this number, which accepts this, is connected with this peer.
fn is_with(accepts: u64, qpn: u32, peer: &Peer) -> bool {
    let name = Name::request(qpn, requester_of(accepts));
    peer.is_accepted(accepts & !UNTRIED, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_read_as_it_was_written() {
        let ack = Ack {
            qpn: 0xab_cdef,
            last: Number::new(7, u16::MAX),
        };
        assert_eq!(Ack::of_bits(ack.bits()), ack);
        // Whatever a peer writes beside the number.
        assert_eq!(Ack::of_bits(ack.bits() | 0xff << 56), ack);
    }
}
