//! Unreliable datagrams: each is one packet, which names its sender and a key that both ends know.

use crate::opcode::{Operation, Place, Trailer, Transport};
use crate::packet::{Bth, Deth, Header, Packet};
use crate::psn::Psn;

/// A datagram that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The receiver's queue pair.
    pub dest_qp: u32,
    /// The sender's queue pair.
    pub src_qp: u32,
    /// The receiver's Q_Key.
    pub qkey: u32,
    /// The packet's number. A receiver does not compare it with others.
    pub psn: Psn,
    /// Immediate data, in the order of the wire.
    pub imm: Option<[u8; 4]>,
    /// Whether the completion of its receive is a solicited event.
    pub solicited: bool,
}

impl Datagram {
    /// The headers of its packet.
    pub fn header(&self) -> Header {
        let trailer = match self.imm {
            Some(_) => Trailer::Immediate,
            None => Trailer::Nothing,
        };
        let operation = Operation::Send(Place::Only, trailer);
        let mut header = Header::new(Bth {
            solicited: self.solicited,
            ..Bth::new(Transport::Ud, operation, self.dest_qp, self.psn)
        });
        header.deth = Some(Deth {
            qkey: self.qkey,
            src_qp: self.src_qp,
        });
        header.imm = self.imm;
        header
    }

    /// The datagram of a packet, if the packet is one and names the Q_Key of the queue pair that receives it.
    pub fn of(packet: &Packet<'_>, qkey: u32) -> Option<Self> {
        let Header { bth, deth, imm, .. } = packet.header;
        let deth = deth.filter(|deth| deth.qkey == qkey && bth.transport == Transport::Ud)?;
        Some(Self {
            dest_qp: bth.dest_qp,
            src_qp: deth.src_qp,
            qkey,
            psn: bth.psn,
            imm,
            solicited: bth.solicited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_reads_what_was_sent_if_it_knows_the_key() {
        for imm in [None, Some([1, 2, 3, 4])] {
            let datagram = Datagram {
                dest_qp: 7,
                src_qp: 8,
                qkey: 0x8001_0000,
                psn: Psn::new(9),
                imm,
                solicited: imm.is_some(),
            };
            let header = datagram.header();
            let packet = Packet {
                header,
                payload: &[1, 2, 3],
            };
            assert_eq!(Datagram::of(&packet, 0x8001_0000), Some(datagram));
            assert_eq!(Datagram::of(&packet, 0x8001_0001), None);
        }
        // A packet of a connection.
        let operation = Operation::Send(Place::Only, Trailer::Nothing);
        let header = Header::new(Bth::new(Transport::Rc, operation, 7, Psn::new(9)));
        let payload = &[];
        assert_eq!(Datagram::of(&Packet { header, payload }, 0), None);
    }
}
