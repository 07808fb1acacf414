//! Datagrams to and from other processes. They are not acknowledged: if there is no room, they are dropped.

use super::super::control::Control;
use super::super::datagram::{Address, MULTICAST_QPN, hand_over};
use super::super::hca::Hca;
use super::super::port::{Elsewhere, MTU};
use super::super::receive::{GRH_BYTES, Message, Origin};
use super::super::run::{Stop, gather};
use crate::fabric::{Header, Kind, MAX_PACKET, Packet, Peer, Room, lid};
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CqeOpcode, Source};

/// Bytes in front of the GRH and the data.
///
/// ```text
/// 0  source queue pair  4  Q_Key  8  immediate  12  flags  13  SL  14  MLID
/// ```
const FRONT: usize = 16;
const WITH_IMM: u8 = 1;
const SOLICITED: u8 = 2;
const WITH_GRH: u8 = 4;

/// Sends a datagram to a queue pair of another node, or to that node's members of a group.
pub(in super::super) fn send_datagram(
    hca: &Hca,
    there: Elsewhere,
    src: u32,
    message: &Message<'_>,
    to: &Address,
) {
    let Some(node) = &hca.node else { return };
    if let Some(peer) = node.known(there.slot) {
        send_to(hca, peer, src, message, to);
    }
}

/// Sends a datagram to the members of its group on all other nodes.
pub(in super::super) fn send_to_all(hca: &Hca, src: u32, message: &Message<'_>, to: &Address) {
    let Some(node) = &hca.node else { return };
    for peer in node.live() {
        send_to(hca, peer, src, message, to);
    }
}

fn send_to(hca: &Hca, peer: &Peer, src: u32, message: &Message<'_>, to: &Address) {
    let length = message.length as usize;
    let mut data = [0; MTU.bytes() as usize];
    if length > data.len() {
        return;
    }
    // SAFETY: the sender has checked the data in this section; its length fits in a packet.
    unsafe { gather(message.data, data.as_mut_ptr()) };
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
    let header = Header {
        kind: Kind::Datagram,
        dst: to.qpn,
        msn: 0,
        life: 0,
        taken: None,
        flags: 0,
    };
    let parts = [&front[..], group, grh, &data[..length]];
    let bytes = parts.iter().map(|part| part.len()).sum();
    debug_assert!(bytes <= MAX_PACKET);
    let fill = |room: &mut Room| {
        for part in parts {
            // SAFETY: the bytes of a slice.
            unsafe { room.put(part.as_ptr(), part.len()) };
        }
    };
    // If it cannot be sent, it is dropped, as on a wire.
    if peer
        .writer
        .send(peer.incarnation(), header, bytes, fill)
        .is_ok()
    {
        hca.after_send(peer);
    }
}

impl Hca {
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
        let link = self.node.as_ref()?.peer(slot).link()?;
        let (front, mut rest) = packet.bytes.split_first_chunk::<FRONT>()?;
        let word = |at: usize| front[at..at + 4].try_into().map(u32::from_be_bytes).ok();
        let (src, qkey, imm) = (word(0)? & 0xff_ffff, word(4)?, word(8)?);
        let [flags, sl, high, low] = front[12..] else {
            return None;
        };
        let dst = packet.header.dst;
        let mut receivers = vec![dst];
        if dst == MULTICAST_QPN {
            let (gid, behind) = rest.split_first_chunk::<16>()?;
            receivers = control.groups.members(gid, u16::from_be_bytes([high, low]));
            rest = behind;
        }
        let mut grh = None;
        if flags & WITH_GRH != 0 {
            let (header, behind) = rest.split_first_chunk::<GRH_BYTES>()?;
            let mut header = *header;
            // The source GID comes from the link, not from the sender.
            header[8..24].copy_from_slice(&link.gid);
            grh = Some(header);
            rest = behind;
        }
        if rest.len() > MTU.bytes() as usize {
            return None;
        }
        let origin = Origin {
            source: Source {
                qpn: src,
                slid: lid(slot),
                sl: sl & 0xf,
                dlid_path_bits: 0,
                grh: grh.is_some(),
            },
            grh,
        };
        let mut scratch = control.scratch.take()?;
        let message = Message {
            kind: if flags & WITH_IMM != 0 {
                CqeOpcode::RespSendImm
            } else {
                CqeOpcode::RespSend
            },
            length: rest.len() as u64,
            imm: Be32::new(imm),
            solicited: flags & SOLICITED != 0,
            data: scratch.hold(rest),
            fetch: None,
        };
        let failed = (receivers.into_iter())
            .filter_map(|qpn| match hand_over(self, &message, &origin, qkey, qpn) {
                Err(Stop::Receiver(blame)) => Some((qpn, blame)),
                _delivered_or_dropped => None,
            })
            .collect();
        control.scratch = Some(scratch);
        Some(failed)
    }
}
