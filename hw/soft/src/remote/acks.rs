//! Acknowledgements of requests of other processes, which are not carried by a packet of the other direction: those of up to
//! five queue pairs travel in one packet, of one line.

use super::super::connection::UNTRIED;
use super::super::control::Control;
use super::super::hca::Hca;
use super::super::polled::{PolledQueue, TOGETHER};
use super::super::qp::QpCtx;
use super::accepted::Owed;
use crate::fabric::{
    Front, Header, IN_LINE, InPlace, Kind, Name, Node, Number, Owing, Packet, Peer, Send, Size,
};
use std::sync::atomic::Ordering;

/// Bytes of an acknowledgement in a packet.
const BYTES: usize = 8;

/// Most of them in one packet.
pub(super) const ACKS: usize = IN_LINE / BYTES;
const _: () = assert!(ACKS == TOGETHER as usize);

/// One of them as it travels: the requester's queue pair, and the last of its requests that was taken.
///
/// ```text
/// 63‥56 zero   55‥32 queue pair   31‥0 `Number`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ack {
    qpn: u32,
    taken: Number,
}

impl Ack {
    fn bits(self) -> u64 {
        u64::from(self.qpn) << 32 | u64::from(self.taken.word())
    }

    /// Whatever a peer has written.
    fn of_bits(bits: u64) -> Self {
        Self {
            qpn: (bits >> 32) as u32 & 0xff_ffff,
            taken: Number::of_word(bits as u32),
        }
    }
}

/// An acknowledgement that is to be sent.
struct Due<'q> {
    /// The responder.
    ctx: &'q QpCtx,
    /// The requester's queue pair.
    to: u32,
    owed: Owed,
}

impl Due<'_> {
    /// Writes it into the packet, in this place.
    #[inline(always)]
    fn put(&self, front: Front, at: usize) {
        let ack = Ack {
            qpn: self.to,
            taken: self.owed.taken,
        };
        front.set(at, ack.bits());
        self.ctx.acknowledged(self.owed);
    }
}

/// What became of the acknowledgements that a peer was to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paid {
    All,
    /// Some are left, because there was no room.
    NoRoom,
    /// Some are left, because another thread holds the turn to send. Not under the device's lock.
    Held,
}

/// Which acknowledgements are still owed after peers were to be sent them.
#[derive(Default)]
pub(super) struct Unpaid {
    /// Some are.
    some: bool,
    /// Another thread had the list of some.
    busy: bool,
}

impl Unpaid {
    /// What became of those of one peer. `None`: another thread is reading its packets, and has the list of them.
    pub fn add(&mut self, paid: Option<Paid>) {
        self.some |= paid != Some(Paid::All);
        self.busy |= paid.is_none();
    }

    /// Notes it. The node's thread looks again at a list that another thread had: that thread may have found no packet,
    /// and leave the list as it was.
    pub fn note(&self, node: &Node) {
        if self.busy {
            node.owes();
        } else if self.some {
            node.set_owing(true);
        }
    }
}

impl Hca {
    /// Sends the acknowledgements that the queue pairs connected with a peer owe, as far as there is room. For the thread that
    /// has the turn to read the peer's packets.
    #[inline(never)]
    pub(super) fn pay_acks(&self, peer: &Peer, owing: &mut Owing) -> Paid {
        let mut listed = owing.iter();
        let mut next = || listed.find_map(|&qpn| self.no_longer_listed(peer, qpn));
        let unpaid = loop {
            let Some(first) = next() else {
                break None;
            };
            match self.send_acks(peer, &first, &mut next) {
                // Acknowledgements have no data of the program's.
                Ok(()) | Err(Send::Gone | Send::Unread) => {}
                Err(Send::Full) => break Some((first, Paid::NoRoom)),
                Err(Send::Held) => break Some((first, Paid::Held)),
            }
        };
        let mut left = listed.len();
        let paid = match unpaid {
            None => Paid::All,
            Some((first, why)) => {
                // It is in front of these.
                left += 1;
                // SAFETY: this thread reads the packets of the peer that is accepted.
                unsafe { *first.ctx.receiver.accepted.listed.get() = true };
                why
            }
        };
        owing.drain(..owing.len() - left);
        peer.reading.set_owes(!owing.is_empty());
        paid
    }

    /// A queue pair owes an acknowledgement for which its requester waits: of a message that a poll has received, and the
    /// next packet has this position. It is sent now, or by the poll with those of the next such messages. For the thread that
    /// has the turn to read the peer's packets, in the section in which it has received this requester's message.
    pub(super) fn owe_asked(
        &self,
        peer: &Peer,
        owing: &mut Owing,
        ctx: &QpCtx,
        polled: &mut PolledQueue,
        next: u32,
    ) {
        if polled.lets_wait(peer.slot, || peer.reader.is_at(next)) {
            return self.owe_ack(peer, owing, ctx);
        }
        // Most often it is the only one, and need not be listed.
        if !owing.is_empty() || !self.pay_received(peer, ctx) {
            self.owe_ack(peer, owing, ctx);
            self.pay_acks(peer, owing);
        }
    }

    /// Sends the acknowledgement that a queue pair owes this peer, of whose requester it has received a message in this section.
    /// `false`: it is still owed.
    #[inline(always)]
    fn pay_received(&self, peer: &Peer, ctx: &QpCtx) -> bool {
        // Relaxed: accepted in this section. Meanwhile it may only have become zero: the holder of the lock who stops the queue
        // pair then waits for this section, and sends the acknowledgement.
        let accepts = ctx.face.accepts.load(Ordering::Relaxed);
        let due = ctx.owed().map(|owed| Due {
            ctx,
            to: requester_of(accepts),
            owed,
        });
        accepts != 0 && due.is_none_or(|due| self.send_acks(peer, &due, || None).is_ok())
    }

    /// What a queue pair that leaves the list still owes.
    #[inline(always)]
    fn no_longer_listed(&self, peer: &Peer, qpn: u32) -> Option<Due<'_>> {
        // SAFETY: used by the caller only.
        let ctx = unsafe { self.qps.find(qpn) }?;
        // Acquire: pairs with the Release at the transition to RTR.
        let accepts = ctx.face.accepts.load(Ordering::Acquire);
        // It may be connected with another peer by now, whose list it is in.
        if !is_with(accepts, qpn, peer) {
            return None;
        }
        // SAFETY: this thread reads the packets of the peer that is accepted.
        unsafe { *ctx.receiver.accepted.listed.get() = false };
        due(peer, ctx, accepts)
    }

    /// Sends the acknowledgement that a queue pair owes the peer that it `accepts`, unless a packet has
    /// carried it, or that is another peer by now.
    pub(in super::super) fn pay_ack(
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
    /// such packet. Those that were handled may be handled again.
    pub(super) fn take_acks(&self, peer: &Peer, line: InPlace<'_>) -> bool {
        let size = line.size();
        let count = size.len() / BYTES;
        if size != Size::new(count * BYTES, 0, 0) || count > ACKS {
            return false;
        }
        let all = (0..count).all(|at| {
            let Ack { qpn, taken } = Ack::of_bits(line.wide(at * BYTES));
            // SAFETY: used within this section.
            let ctx = unsafe { self.qps.find(qpn) };
            ctx.is_some_and(|ctx| self.acknowledge_unlocked(peer, qpn, ctx, taken))
        });
        if all {
            line.done(size.len());
        }
        all
    }

    /// The same, under the lock.
    pub(super) fn acks_arrived(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        for bits in packet.bytes.as_chunks::<BYTES>().0 {
            let Ack { qpn, taken } = Ack::of_bits(u64::from_ne_bytes(*bits));
            self.acknowledged(control, slot, qpn, taken);
        }
    }
}

/// What a queue pair owes the peer that it `accepts`, if that is the one with which there is a link.
#[inline(always)]
fn due<'q>(peer: &Peer, ctx: &'q QpCtx, accepts: u64) -> Option<Due<'q>> {
    let owed = ctx.owed()?;
    // Relaxed: by the thread that has the turn.
    let same = ctx.face.incarnation.load(Ordering::Relaxed) == peer.incarnation();
    same.then(|| Due {
        ctx,
        to: requester_of(accepts),
        owed,
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
            taken: Number::new(7, u16::MAX),
        };
        assert_eq!(Ack::of_bits(ack.bits()), ack);
        // Whatever a peer writes beside the number.
        assert_eq!(Ack::of_bits(ack.bits() | 0xff << 56), ack);
    }
}
