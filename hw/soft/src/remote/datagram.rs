//! Datagrams to and from other processes. They are not acknowledged: if there is no room, they are dropped.
//!
//! A datagram to one queue pair that has a receive queue of its own is received without the device's lock, as other
//! messages are: see [`unlocked`](super::unlocked). The others, and each that fails, are received
//! under the lock.

use super::super::connection::datagrams;
use super::super::control::Control;
use super::super::datagram::{Address, MULTICAST_QPN, deliver_to};
use super::super::hca::Hca;
use super::super::port::{MTU, OtherNode};
use super::super::receive::{Arrived, GRH_BYTES, Message, Origin};
use super::super::run::Stop;
use super::entry::joined;
use super::packet::{Pieces, pieces_of};
use crate::fabric::{Besides, Header, InPlace, Kind, MAX_PACKET, Name, Number, Packet, Peer, Send};
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CqeOpcode, Source, Syndrome};
use std::sync::atomic::Ordering;

/// Bytes in front of the GRH and the data.
///
/// ```text
/// 0  source queue pair  4  Q_Key  8  immediate  12  flags  13  SL  14  MLID
/// ```
const FRONT: usize = 16;
const WITH_IMM: u8 = 1;
const SOLICITED: u8 = 2;
const WITH_GRH: u8 = 4;

/// What is in front of the GRH and the data.
struct Front {
    src: u32,
    qkey: u32,
    imm: Be32,
    flags: u8,
    sl: u8,
    mlid: u16,
}

impl Front {
    fn read(bytes: &[u8; FRONT]) -> Self {
        let [
            s0,
            s1,
            s2,
            s3,
            q0,
            q1,
            q2,
            q3,
            i0,
            i1,
            i2,
            i3,
            flags,
            sl,
            high,
            low,
        ] = *bytes;
        Self {
            src: u32::from_be_bytes([s0, s1, s2, s3]) & 0xff_ffff,
            qkey: u32::from_be_bytes([q0, q1, q2, q3]),
            imm: Be32::new(u32::from_be_bytes([i0, i1, i2, i3])),
            flags,
            sl: sl & 0xf,
            mlid: u16::from_be_bytes([high, low]),
        }
    }

    fn kind(&self) -> CqeOpcode {
        match self.flags & WITH_IMM {
            0 => CqeOpcode::RespSend,
            _ => CqeOpcode::RespSendImm,
        }
    }

    fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// Bytes of the GRH that follows.
    fn grh_bytes(&self) -> usize {
        match self.flags & WITH_GRH {
            0 => 0,
            _ => GRH_BYTES,
        }
    }

    /// Where it comes from, by this thread that has the turn to read the peer's packets.
    fn origin(&self, peer: &Peer, grh: Option<[u8; GRH_BYTES]>) -> Origin {
        let grh = grh.map(|mut grh| {
            // The source GID comes from the link, not from the sender.
            grh[8..24].copy_from_slice(&peer.gid());
            grh
        });
        Origin {
            source: Source {
                qpn: self.src,
                slid: peer.lid,
                sl: self.sl,
                dlid_path_bits: 0,
                grh: grh.is_some(),
            },
            grh,
        }
    }
}

/// Sends a datagram to a queue pair of another node, or to that node's members of a group.
pub(in super::super) fn send_datagram(
    hca: &Hca,
    there: OtherNode,
    src: u32,
    message: &Message<'_>,
    to: &Address,
) -> Result<(), Stop> {
    let peer = hca
        .node
        .as_ref()
        .and_then(|node| node.existing_peer(there.slot));
    match peer.map(|peer| send_to(hca, peer, src, message, to)) {
        Some(Err(Send::Held)) => Err(Stop::Held),
        // If it cannot be sent, it is dropped, as on a wire.
        Some(Ok(()) | Err(Send::Full | Send::Gone)) | None => Ok(()),
        Some(Err(Send::Unread)) => Err(Stop::local(Syndrome::LOCAL_PROT)),
    }
}

/// Sends a datagram to the members of its group on all other nodes. Under the device's lock.
pub(in super::super) fn send_to_all(hca: &Hca, src: u32, message: &Message<'_>, to: &Address) {
    let Some(node) = &hca.node else { return };
    for peer in node.live() {
        // If it cannot be sent, it is dropped.
        let _sent = send_to(hca, peer, src, message, to);
    }
}

fn send_to(
    hca: &Hca,
    peer: &Peer,
    src: u32,
    message: &Message<'_>,
    to: &Address,
) -> Result<(), Send> {
    let length = message.length as usize;
    if length > MTU.bytes() as usize {
        return Ok(());
    }
    let grh = hca.port.route_header(&to.av, length);
    let with_imm = message.kind == CqeOpcode::RespSendImm;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let flags = flag(with_imm, WITH_IMM)
        | flag(message.solicited, SOLICITED)
        | flag(grh.is_some(), WITH_GRH);
    let mut front = [0; FRONT];
    front[..4].copy_from_slice(&src.to_be_bytes());
    front[4..8].copy_from_slice(&to.qkey.to_be_bytes());
    front[8..12].copy_from_slice(&message.imm.get().to_be_bytes());
    front[12..14].copy_from_slice(&[flags, to.av.stat_rate_sl & 0xf]);
    front[14..].copy_from_slice(&to.av.rlid.get().to_be_bytes());
    // The receiving node finds the group by its GID, so the packet carries it.
    let group: &[u8] = if to.qpn == MULTICAST_QPN {
        &to.av.rgid
    } else {
        &[]
    };
    let grh = grh.as_ref().map_or(&[][..], |grh| &grh[..]);
    let header = Header::of(Name::new(Kind::Datagram, to.qpn), Number::NONE);
    let parts = [&front[..], group, grh];
    let bytes = length + parts.iter().map(|part| part.len()).sum::<usize>();
    debug_assert!(bytes <= MAX_PACKET);
    let mut pieces: Pieces = (parts.iter())
        .map(|part| (part.as_ptr(), part.len()))
        .collect();
    pieces.extend(message.data.flat_map(pieces_of));
    // SAFETY: slices, and data that the sender has checked in this section.
    unsafe {
        hca.sending(peer)?
            .send(peer.incarnation(), bytes, |_| header, 0, &pieces)
    }?;
    hca.after_send(peer);
    Ok(())
}

impl Hca {
    /// Receives the datagram of the next packet, and passes it. `false`: it needs the lock, and nothing has changed.
    #[inline(never)]
    pub(super) fn receive_datagram(&self, peer: &Peer, line: InPlace<'_>) -> bool {
        let (name, size) = (line.name(), line.size());
        let qpn = name.dst();
        if !name.is(Kind::Datagram) || qpn == MULTICAST_QPN {
            return false;
        }
        let mut front = [0; FRONT];
        front[..8].copy_from_slice(&line.wide(0).to_ne_bytes());
        front[8..].copy_from_slice(&line.wide(8).to_ne_bytes());
        let front = Front::read(&front);
        let before = FRONT + front.grh_bytes();
        // With anything else, far too long.
        let whole = size.len_if(0, Besides::NOTHING);
        let Some(length) = whole.checked_sub(before) else {
            return false;
        };
        if length > MTU.bytes() as usize {
            return false;
        }
        // SAFETY: used within this section.
        let Some(ctx) = (unsafe { self.qps.find(qpn) }) else {
            return false;
        };
        // Acquire: pairs with the Release at the transition to RTR, so that the receive side is set up. A thread that
        // takes it away waits for this section.
        let accepts = ctx.rights.accepts.load(Ordering::Acquire) == datagrams(qpn)
            // Relaxed: written before `accepts`.
            && ctx.rights.qkey.load(Ordering::Relaxed) == front.qkey;
        let (true, Some(grh), Some(data)) = (
            accepts,
            peer.reader.place(FRONT, before - FRONT),
            peer.reader.place(before, length),
        ) else {
            return false;
        };
        let arrived = Arrived {
            kind: front.kind(),
            imm: front.imm,
            solicited: front.solicited(),
            length,
            data: &data,
            target: None,
        };
        let origin = front.origin(
            peer,
            (before != FRONT).then(||
            // SAFETY: the reader has found it readable.
            unsafe { joined(grh) }),
        );
        let _turn = ctx.receiver.turn.take();
        // SAFETY: the queue pair accepts datagrams, and this thread has the turn.
        let Some(recv) = (unsafe { &mut *ctx.receiver.work.get() }) else {
            return false;
        };
        if !recv.receive_arrived_datagram(self, &arrived, &origin) {
            return false;
        }
        line.done(whole);
        true
    }

    /// Handles a datagram from another node.
    pub(super) fn datagram_arrived(&self, control: &mut Control, slot: usize, packet: &Packet<'_>) {
        if !self.port.is_up() {
            return;
        }
        let failed = self.take_datagram(control, slot, packet);
        for (qpn, blame) in failed.unwrap_or_default() {
            self.blame(control, qpn, blame);
        }
    }

    /// Returns the queue pairs that fail. `None`: the packet is invalid.
    fn take_datagram(
        &self,
        control: &mut Control,
        slot: usize,
        packet: &Packet<'_>,
    ) -> Option<Vec<(u32, super::super::respond::Blame)>> {
        let peer = self.node.as_ref()?.peer(slot);
        let (front, mut rest) = packet.bytes.split_first_chunk()?;
        let front = Front::read(front);
        let dst = packet.header.name.dst();
        let mut receivers = vec![dst];
        if dst == MULTICAST_QPN {
            let (gid, behind) = rest.split_first_chunk::<16>()?;
            receivers = control.groups.members(gid, front.mlid);
            rest = behind;
        }
        let (grh, rest) = rest.split_at_checked(front.grh_bytes())?;
        if rest.len() > MTU.bytes() as usize {
            return None;
        }
        let origin = front.origin(peer, grh.try_into().ok());
        let mut scratch = control.scratch.take()?;
        let message = Message {
            kind: front.kind(),
            length: rest.len() as u64,
            imm: front.imm,
            solicited: front.solicited(),
            data: scratch.hold(rest),
            fetch: None,
        };
        let failed = (receivers.into_iter())
            .filter_map(
                |qpn| match deliver_to(self, &message, &origin, front.qkey, qpn) {
                    Err(Stop::Receiver(blame)) => Some((qpn, blame)),
                    _delivered_or_dropped => None,
                },
            )
            .collect();
        control.scratch = Some(scratch);
        Some(failed)
    }
}
