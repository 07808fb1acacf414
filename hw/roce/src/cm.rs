//! Messages of the communication manager: datagrams to queue pair 1, by which two hosts connect queue pairs (IBTA volume
//! 1, chapter 12).
//!
//! The sizes of private data are those of the specification. Programs of `rdma_cm` begin theirs with [`IpHeader`]
//! (annex A11), and have the rest for themselves.

use crate::psn::Psn;
use bellwire_core::qp::Mtu;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The queue pair that gets these messages.
pub const QPN: u32 = 1;

/// Its Q_Key.
pub const QKEY: u32 = 0x8001_0000;

/// Bytes of a message.
pub const SIZE: usize = 256;

/// Bytes of the header that all management datagrams have.
const HEADER: usize = 24;

/// Base version, class of the communication manager, its version, and the method "send".
const CLASS: [u8; 4] = [1, 7, 2, 3];

/// A request to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The service that is asked for ([`service_id`]).
    pub service_id: u64,
    /// The sender's node.
    pub ca_guid: u64,
    /// The sender's queue pair.
    pub qpn: u32,
    /// READs and atomics that the sender takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender has under way at a time.
    pub initiator_depth: u8,
    /// The number that the sender of this message expects first: the receiver's first packet has it.
    pub psn: Psn,
    /// Code of the time in which the receiver is to answer: 4.096 us times a power of two, 5 bits.
    pub remote_response_timeout: u8,
    /// Code of the time in which the sender answers.
    pub local_response_timeout: u8,
    /// Whether the connection is unreliable.
    pub unreliable: bool,
    /// Retries of the sender's requests, 3 bits.
    pub retry_count: u8,
    /// Retries of the sender's requests without a receive, 3 bits.
    pub rnr_retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// The path's MTU.
    pub mtu: Mtu,
    /// How often the message is sent, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's GID.
    pub local_gid: [u8; 16],
    /// The receiver's GID.
    pub remote_gid: [u8; 16],
    /// Flow label of the path, 20 bits.
    pub flow_label: u32,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Local ACK timeout of the path, 5 bits.
    pub ack_timeout: u8,
    /// Private data.
    pub private: [u8; 92],
}

/// The answer to a request: the receiver accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's number of the connection.
    pub remote_id: u32,
    /// The sender's queue pair.
    pub qpn: u32,
    /// The number that the sender of this message expects first: the receiver's first packet has it.
    pub psn: Psn,
    /// READs and atomics that the sender takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender has under way at a time.
    pub initiator_depth: u8,
    /// Code of the sender's delay of an acknowledgement, 5 bits.
    pub target_ack_delay: u8,
    /// Retries of the sender's requests without a receive, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's node.
    pub ca_guid: u64,
    /// Private data.
    pub private: [u8; 196],
}

/// The numbers of a connection at both ends, in messages that say no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 before it has one.
    pub remote: u32,
}

/// Which message another message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum About {
    /// A request to connect.
    Req = 0,
    /// The answer to that.
    Rep = 1,
    /// Another one.
    Other = 2,
}

/// A message of the communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for a connection.
    Req(Req),
    /// Accepts a request.
    Rep(Rep),
    /// The connection is complete.
    Rtu(Ids),
    /// Refuses: a reason (IBTA volume 1, table "REJ Reason"), and private data.
    Rej(Ids, About, u16, [u8; 148]),
    /// Asks for patience: a code of the time, 5 bits.
    Mra(Ids, About, u8),
    /// Ends the connection of the receiver's queue pair.
    Dreq(Ids, u32),
    /// The answer to that.
    Drep(Ids),
}

/// A message, and the transaction that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// An answer has the number of what it answers.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// The bytes of a datagram are not a message of the communication manager, or one that this crate does not speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCm;

impl core::fmt::Display for NotCm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the datagram is not a message of the communication manager")
    }
}

impl core::error::Error for NotCm {}

/// Fields of a message, by their offsets behind the header.
struct Fields<'a>(&'a mut [u8; SIZE]);

impl Fields<'_> {
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[HEADER + at..HEADER + at + N].copy_from_slice(&bytes);
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, value.to_be_bytes());
    }

    /// A number of 24 bits, and the byte behind it.
    fn put_u24(&mut self, at: usize, value: u32, last: u8) {
        self.put_u32(at, value << 8 | u32::from(last));
    }

    fn ids(&mut self, ids: Ids) {
        self.put_u32(0, ids.local);
        self.put_u32(4, ids.remote);
    }
}

/// The same, to be read.
struct Read<'a>(&'a [u8; SIZE]);

impl Read<'_> {
    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        core::array::from_fn(|byte| self.0[HEADER + at + byte])
    }

    fn u8(&self, at: usize) -> u8 {
        self.0[HEADER + at]
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.take(at))
    }

    fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.take(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.take(at))
    }

    fn ids(&self) -> Ids {
        Ids {
            local: self.u32(0),
            remote: self.u32(4),
        }
    }

    fn about(&self, at: usize) -> About {
        match self.u8(at) >> 6 {
            0 => About::Req,
            1 => About::Rep,
            _ => About::Other,
        }
    }
}

impl Message {
    /// The attribute by which the header names it.
    const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(..) => 0x11,
            Self::Rej(..) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(..) => 0x15,
            Self::Drep(_) => 0x16,
        }
    }
}

impl Mad {
    /// The bytes of the datagram.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&CLASS);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        let mut to = Fields(&mut bytes);
        match &self.message {
            Message::Req(req) => req.encode(&mut to),
            Message::Rep(rep) => rep.encode(&mut to),
            Message::Rtu(ids) | Message::Drep(ids) => to.ids(*ids),
            Message::Rej(ids, about, reason, private) => {
                to.ids(*ids);
                to.put(8, [(*about as u8) << 6]);
                to.put(10, reason.to_be_bytes());
                to.put(84, *private);
            }
            Message::Mra(ids, about, timeout) => {
                to.ids(*ids);
                to.put(8, [(*about as u8) << 6, timeout << 3]);
            }
            Message::Dreq(ids, qpn) => {
                to.ids(*ids);
                to.put_u24(8, *qpn, 0);
            }
        }
        bytes
    }

    /// Reads the bytes of a datagram.
    ///
    /// # Errors
    /// They are no message of the communication manager, or one that this crate does not speak.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotCm> {
        let bytes: &[u8; SIZE] = bytes.try_into().map_err(|_| NotCm)?;
        if bytes[..4] != CLASS {
            return Err(NotCm);
        }
        let from = Read(bytes);
        let message = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            0x10 => Message::Req(Req::decode(&from)?),
            0x11 => Message::Mra(from.ids(), from.about(8), from.u8(9) >> 3),
            0x12 => Message::Rej(from.ids(), from.about(8), from.u16(10), from.take(84)),
            0x13 => Message::Rep(Rep::decode(&from)),
            0x14 => Message::Rtu(from.ids()),
            0x15 => Message::Dreq(from.ids(), from.u24(8)),
            0x16 => Message::Drep(from.ids()),
            _ => return Err(NotCm),
        };
        let transaction = u64::from_be_bytes(core::array::from_fn(|at| bytes[8 + at]));
        Ok(Self {
            transaction,
            message,
        })
    }
}

impl Req {
    fn encode(&self, to: &mut Fields<'_>) {
        to.put_u32(0, self.local_id);
        to.put(8, self.service_id.to_be_bytes());
        to.put(16, self.ca_guid.to_be_bytes());
        to.put_u24(32, self.qpn, self.responder_resources);
        to.put_u24(36, 0, self.initiator_depth);
        // Flow control from end to end: the lowest bit, as hardware sets it.
        let service = u8::from(self.unreliable) << 1 | 1;
        to.put_u24(40, 0, self.remote_response_timeout << 3 | service);
        to.put_u24(
            44,
            self.psn.get(),
            self.local_response_timeout << 3 | self.retry_count & 7,
        );
        to.put(48, self.pkey.to_be_bytes());
        to.put(50, [self.mtu.number() << 4 | self.rnr_retry_count & 7]);
        to.put(51, [self.max_cm_retries << 4 | u8::from(self.srq) << 3]);
        // The path has GIDs alone: its LIDs are the permissive ones.
        to.put(52, [0xff; 4]);
        to.put(56, self.local_gid);
        to.put(72, self.remote_gid);
        to.put_u32(88, self.flow_label << 12);
        to.put(
            92,
            [self.traffic_class, self.hop_limit, 0, self.ack_timeout << 3],
        );
        to.put(140, self.private);
    }

    fn decode(from: &Read<'_>) -> Result<Self, NotCm> {
        Ok(Self {
            local_id: from.u32(0),
            service_id: from.u64(8),
            ca_guid: from.u64(16),
            qpn: from.u24(32),
            responder_resources: from.u8(35),
            initiator_depth: from.u8(39),
            remote_response_timeout: from.u8(43) >> 3,
            // Reliable, unreliable, and two that no device has.
            unreliable: match from.u8(43) >> 1 & 3 {
                0 => false,
                1 => true,
                _ => return Err(NotCm),
            },
            psn: Psn::new(from.u24(44)),
            local_response_timeout: from.u8(47) >> 3,
            retry_count: from.u8(47) & 7,
            pkey: from.u16(48),
            mtu: Mtu::from_number(from.u8(50) >> 4).ok_or(NotCm)?,
            rnr_retry_count: from.u8(50) & 7,
            max_cm_retries: from.u8(51) >> 4,
            srq: from.u8(51) >> 3 & 1 == 1,
            local_gid: from.take(56),
            remote_gid: from.take(72),
            flow_label: from.u32(88) >> 12,
            traffic_class: from.u8(92),
            hop_limit: from.u8(93),
            ack_timeout: from.u8(95) >> 3,
            private: from.take(140),
        })
    }
}

impl Rep {
    fn encode(&self, to: &mut Fields<'_>) {
        to.ids(Ids {
            local: self.local_id,
            remote: self.remote_id,
        });
        to.put_u24(12, self.qpn, 0);
        to.put_u24(20, self.psn.get(), 0);
        let flow_control = 1;
        to.put(24, [self.responder_resources, self.initiator_depth]);
        to.put(26, [self.target_ack_delay << 3 | flow_control]);
        to.put(27, [self.rnr_retry_count << 5 | u8::from(self.srq) << 4]);
        to.put(28, self.ca_guid.to_be_bytes());
        to.put(36, self.private);
    }

    fn decode(from: &Read<'_>) -> Self {
        let Ids { local, remote } = from.ids();
        Self {
            local_id: local,
            remote_id: remote,
            qpn: from.u24(12),
            psn: Psn::new(from.u24(20)),
            responder_resources: from.u8(24),
            initiator_depth: from.u8(25),
            target_ack_delay: from.u8(26) >> 3,
            rnr_retry_count: from.u8(27) >> 5,
            srq: from.u8(27) >> 4 & 1 == 1,
            ca_guid: from.u64(28),
            private: from.take(36),
        }
    }
}

/// The service of a port number of TCP, as `rdma_cm` names it (annex A11).
pub const fn service_id(port: u16) -> u64 {
    0x0000_0000_0106_0000 | port as u64
}

/// What private data of `rdma_cm` begins with: the IP addresses of both ends (annex A11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender's port.
    pub port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same family.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes. The rest of a [`Req`]'s private data is the program's.
    pub const SIZE: usize = 36;

    /// The bytes.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[1] = match self.source {
            IpAddr::V4(_) => 4 << 4,
            IpAddr::V6(_) => 6 << 4,
        };
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }

    /// Reads private data; `None` if it does not begin so.
    pub fn decode(private: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = private.first_chunk()?;
        let address = |at: usize| {
            let bytes: [u8; 16] = core::array::from_fn(|byte| bytes[at + byte]);
            let [.., a, b, c, d] = bytes;
            Some(match family(private[1])? {
                Family::V4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from(bytes)),
            })
        };
        // The version of the header itself.
        if bytes[0] != 0 {
            return None;
        }
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self {
            port,
            source: address(4)?,
            destination: address(20)?,
        })
    }
}

/// The families of addresses.
enum Family {
    V4,
    V6,
}

const fn family(byte: u8) -> Option<Family> {
    match byte >> 4 {
        4 => Some(Family::V4),
        6 => Some(Family::V6),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
