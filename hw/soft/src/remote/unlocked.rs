//! Reads a peer's packets without the device's lock, as far as they are frequent and simple: SENDs and WRITEs with
//! immediate data to a reliable connection, whose data is in the packet, and acknowledgements. A message is copied
//! once, from the packet to its receive, or to where the WRITE says. Messages in one line are tried first, by code of
//! their own: see `line`.
//!
//! Whatever else arrives, or goes wrong, changes nothing here: the packet stays where it is, and is read again
//! under the lock. So both ways keep one order.
//!
//! The reader is in the peer's section. Whoever revokes something waits for that: see [`Inbound`].

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::qp::QpCtx;
use super::super::receive::{Arrived, RecvWork};
use super::super::record::connection_with;
use super::super::run::complete_on;
use super::answer::Verdict;
use super::requester::IN_PACKET;
use super::{ASKS, EAGER, Inbound, SPEAKING};
use crate::fabric::{CARRIES_ACK, InPlace, Kind, Line, Node, Peer, Reads};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT, SendWqe, fm_ce_se, opcode};
use bellwire_core::wr::Remote;
use std::sync::atomic::Ordering;

/// Packets that are read from one peer before the others get their turn.
const AT_ONCE: u32 = 256;

/// Packets that are read between two updates of the read position for the peer.
const PUBLISH_EVERY: u32 = 32;

/// A peer, for the thread that reads its packets.
pub(super) struct FromPeer<'a> {
    peer: &'a Peer,
    reads: Reads<'a>,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// It needs the lock, and nothing has changed.
    No,
    /// It was handled.
    Yes,
    /// It was handled, and acknowledgements are to be sent now: a requester waits, or no more can be noted.
    Asked,
}

/// What a request's packet says of the request.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// The responder's queue pair.
    pub dst: u32,
    /// The requester's.
    pub src: u32,
    /// Number of the request, and above 16 bits its life.
    pub number: u32,
    /// The requester waits for the response.
    pub asks: bool,
}

impl QpCtx {
    /// The queue pair takes requests from this node from now on, which no thread has seen yet.
    pub(in super::super) fn start_inbound(&self, incarnation: u64) {
        let Inbound {
            incarnation: of,
            listed,
            expected,
            ..
        } = &*self.inbound;
        // Relaxed, all: published by `accepts`. Acknowledgements are listed anew, perhaps with another peer.
        of.store(incarnation, Ordering::Relaxed);
        listed.store(false, Ordering::Relaxed);
        expected.forget();
        self.owes_nothing();
    }
}

impl Hca {
    /// Reads a peer's packets. `true`: the next one needs the device's lock.
    #[inline(always)]
    pub(super) fn read_unlocked(&self, node: &Node, peer: &Peer) -> bool {
        // Otherwise another thread is reading them.
        let Some(reads) = peer.reading.enter(self.barriers) else {
            return false;
        };
        let mut from = FromPeer { peer, reads };
        // Relaxed: ordered by the barrier on entering, which pairs with the one in `Hca::set_gate`.
        if self.receives_under_lock.load(Ordering::Relaxed) || !self.port.is_up() {
            return true;
        }
        let mut count = 0;
        let stopped = loop {
            let Some(line) = peer.reader.first() else {
                break false;
            };
            let mut read = self.receive_line(&mut from, line);
            if read == Read::No {
                read = self.read_one(&mut from);
            }
            if read == Read::No {
                break true;
            }
            count += 1;
            let publish = count % PUBLISH_EVERY == 0;
            if publish {
                // The requester may continue.
                peer.reader.publish();
            }
            if publish || read == Read::Asked {
                self.pay_acks(peer.slot, &mut from.reads);
            }
            if count == AT_ONCE {
                break false;
            }
        };
        if count != 0 {
            peer.reader.publish();
        }
        if !from.reads.owing().is_empty() {
            node.owes();
        }
        stopped || node.is_halted()
    }

    /// Sends the acknowledgements that are owed, without the device's lock.
    #[cold]
    #[inline(never)]
    pub(super) fn pay_unlocked(&self, node: &Node) {
        // Before the lists are read, so that a list that grows meanwhile sets it again.
        node.set_owing(false);
        let mut paid = true;
        for peer in node.live() {
            let reads = peer.reading.enter(self.barriers);
            paid &= reads.is_some_and(|mut reads| self.pay_acks(peer.slot, &mut reads));
        }
        if !paid {
            node.set_owing(true);
        }
    }

    /// Handles the next packet, and passes it. Not inlined, so that messages in one line are received without its
    /// frame.
    #[inline(never)]
    fn read_one(&self, from: &mut FromPeer<'_>) -> Read {
        let Some(line) = from.peer.reader.first() else {
            return Read::No;
        };
        let size = line.size();
        let read = match line.to() {
            to if to >> 24 == Kind::Request as u32 => self.receive(from, line, to, size),
            to if to >> 24 == Kind::Answer as u32 && self.take_plain_answer(from, &line.copy()) => {
                Read::Yes
            }
            _ => Read::No,
        };
        if read != Read::No {
            line.done(size & 0xffff);
        }
        read
    }

    #[inline(always)]
    fn receive(&self, from: &mut FromPeer<'_>, line: InPlace<'_>, to: u32, size: u32) -> Read {
        let entry = line.wide(0);
        let Some(arrived) = arrived(from.peer, line, entry, size) else {
            return Read::No;
        };
        let head = Head {
            dst: to & 0xff_ffff,
            src: low(entry) >> 8,
            number: line.number(),
            asks: size & ASKED != 0,
        };
        let taken = || (size & CARRIES_ACK != 0).then(|| line.taken());
        self.receive_by(
            from,
            head,
            taken,
            #[inline(always)]
            |ctx, recv| recv.receive_arrived(self, &ctx.face, &arrived),
        )
    }

    /// Receives the message of a packet by `receive`, if the queue pair accepts it. `taken` is the
    /// acknowledgement that the packet carries.
    #[inline(always)]
    pub(super) fn receive_by(
        &self,
        from: &mut FromPeer<'_>,
        head: Head,
        taken: impl FnOnce() -> Option<(u16, u16)>,
        receive: impl FnOnce(&QpCtx, &mut RecvWork) -> bool,
    ) -> Read {
        let Head {
            dst, src, number, ..
        } = head;
        // SAFETY: used within this section.
        let Some(ctx) = (unsafe { self.qps.find(dst) }) else {
            return Read::No;
        };
        let name = connection_with(dst, src, from.peer.lid);
        let inbound = &ctx.inbound;
        // Acquire: pairs with the Release at the transition to RTR, so that its receive side is set up. The
        // first request of a connection is not accepted here.
        let accepted = ctx.face.accepts.load(Ordering::Acquire) == name
            // Relaxed, all: of the thread that has the turn.
            && inbound.incarnation.load(Ordering::Relaxed) == from.peer.incarnation()
            && inbound.expected.is_open_for(number)
            // A request that was flushed meanwhile is not executed.
            && from.peer.segments.life(src) == number >> 16 | SPEAKING;
        if !accepted {
            return Read::No;
        }
        if let Some((life, msn)) = taken()
            && !self.acknowledge_unlocked(from, dst, ctx, life, msn)
        {
            return Read::No;
        }
        // SAFETY: the queue pair accepts only this peer, whose packets this thread reads in turn, so it owns
        // the receive side.
        let Some(recv) = (unsafe { &mut *ctx.receiver.work.get() }) else {
            return Read::No;
        };
        if !receive(ctx, recv) {
            return Read::No;
        }
        inbound.expected.pass(number);
        let (life, msn) = ((number >> 16) as u16, number as u16);
        match !self.owe_ack(&mut from.reads, dst, ctx, life, msn) | head.asks {
            true => Read::Asked,
            false => Read::Yes,
        }
    }

    /// Handles a response that is only an acknowledgement.
    fn take_plain_answer(&self, from: &mut FromPeer<'_>, line: &Line) -> bool {
        let dst = line.dst();
        // SAFETY: used within this section.
        let Some(ctx) = (unsafe { self.qps.find(dst) }) else {
            return false;
        };
        Verdict::is_plain(line)
            && self.acknowledge_unlocked(from, dst, ctx, line.life(), line.msn())
    }

    /// Completes the requests up to the one with this number. `false`: some of them are left.
    #[inline(never)]
    fn acknowledge_unlocked(
        &self,
        from: &FromPeer<'_>,
        qpn: u32,
        ctx: &QpCtx,
        life: u16,
        msn: u16,
    ) -> bool {
        let sender = &ctx.sender;
        // Acquire: pairs with the Release with which the holder of the lock opened the queue pair.
        if sender.closed.load(Ordering::Acquire) {
            return false;
        }
        // SAFETY: the queue pair is open, and this thread is in the section for which its closer waits.
        let Some(completing) = (unsafe { &*ctx.inbound.completing.get() }) else {
            return false;
        };
        if (completing.qpn, completing.life, completing.slot) != (qpn, life, from.peer.slot)
            || completing.incarnation != from.peer.incarnation()
        {
            return false;
        }
        // Relaxed: only this thread changes it.
        let mut acked = ctx.inbound.acked.load(Ordering::Relaxed) as u16;
        // Acquire: pairs with the Release of the sending thread in `post`.
        let sent = sender.sent.load(Ordering::Acquire) as u16;
        let count = msn.wrapping_sub(acked).wrapping_add(1);
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
    pub(in super::super) fn wait_for_all(&self, control: &Control) {
        self.qps.wait_for_all(control.slots());
        if let Some(node) = &self.node {
            node.all_peers().for_each(|peer| peer.reading.wait());
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
            // If there is no room, the requester has to time out.
            let _sent = self.pay_ack(slot, qpn, ctx, accepted);
        }
    }
}

/// Flags of a packet, where its length is.
pub(super) const ASKED: u32 = (ASKS as u32) << 16;
const FOLLOWS: u32 = (EAGER as u32) << 16;

/// The second of two big-endian words.
#[inline(always)]
fn low(pair: u64) -> u32 {
    u64::from_be(pair) as u32
}

/// The first of two big-endian words.
#[inline(always)]
fn high(pair: u64) -> u32 {
    (u64::from_be(pair) >> 32) as u32
}

/// Offset of a SEND's inline data in its packet's payload.
pub(super) const INLINE: usize = SEGMENT + size_of::<Be32>();

/// The message of a SEND or a WRITE with immediate data, whose data is in the packet, as one piece. `entry` is the
/// beginning of the payload, and `size` the packet's length with its flags. `None`: it is another request.
#[inline(always)]
fn arrived(peer: &Peer, line: InPlace<'_>, entry: u64, size: u32) -> Option<Arrived> {
    let (kind, target) = match high(entry) as u8 {
        opcode::SEND => (const { CqeOpcode::of_receive(WrOpcode::Send) }, None),
        opcode::SEND_IMM => (const { CqeOpcode::of_receive(WrOpcode::SendWithImm) }, None),
        opcode::RDMA_WRITE_IMM => {
            let [addr, key] = [line.wide(SEGMENT), line.wide(SEGMENT + 8)];
            let target = Remote {
                addr: u64::from_be(addr),
                rkey: high(key),
            };
            (
                const { CqeOpcode::of_receive(WrOpcode::RdmaWriteWithImm) },
                Some(target),
            )
        }
        _ => return None,
    };
    let segments = if target.is_some() {
        2 * SEGMENT
    } else {
        SEGMENT
    };
    let whole = (low(entry) & 0x3f) as usize * SEGMENT;
    let flags = size & !(ASKED | CARRIES_ACK | 0xffff);
    let (at, len, length) = if whole == segments && flags == 0 {
        (whole, whole, 0)
    } else {
        let count = high(line.wide(segments));
        let length = (count & !INLINE_FLAG) as usize;
        let inline = segments + size_of::<Be32>();
        match flags {
            // Inline data, padded to whole segments.
            0 if count & INLINE_FLAG != 0
                && inline.saturating_add(length).next_multiple_of(SEGMENT) == whole =>
            {
                (inline, whole, length)
            }
            // The data follows the entry.
            FOLLOWS if whole == segments + SEGMENT && u64::from(count) <= IN_PACKET => {
                (whole, whole + length, length)
            }
            _ => return None,
        }
    };
    if (size & 0xffff) as usize != len {
        return None;
    }
    let flags = line.wide(8);
    Some(Arrived {
        kind: kind?,
        imm: Be32::from_raw((flags >> 32) as u32),
        solicited: high(flags) as u8 & fm_ce_se::SOLICITED != 0,
        length,
        data: peer.reader.place(at, length)?,
        target,
    })
}
