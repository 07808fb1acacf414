//! Packets: the payload of a UDP datagram, without the checksum at its end ([`icrc`](crate::icrc)).

use crate::opcode::{Operation, Transport};
use crate::psn::Psn;
use core::fmt;

/// The UDP port of RoCE v2.
pub const PORT: u16 = 4791;

/// The partition that every port is a member of.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The bits of a queue pair number.
const QPN: u32 = 0xff_ffff;

/// The most bytes that come before a payload: those of an atomic's request, which has none.
pub const MAX_HEADER: usize = Bth::SIZE + 28;

/// The base transport header, which begins each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The transport.
    pub transport: Transport,
    /// What the packet is for.
    pub operation: Operation,
    /// Whether its completion at the responder is a solicited event.
    pub solicited: bool,
    /// The partition.
    pub pkey: u16,
    /// Whether a switch marked the packet as having met congestion, in the fabric's own way.
    pub fecn: bool,
    /// Whether the receiver of this packet sends into congestion.
    pub becn: bool,
    /// The receiver's queue pair.
    pub dest_qp: u32,
    /// Whether the requester wants an acknowledgement.
    pub ack_request: bool,
    /// The packet's number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes.
    pub const SIZE: usize = 12;

    /// A header without any flag, in the default partition.
    pub const fn new(transport: Transport, operation: Operation, dest_qp: u32, psn: Psn) -> Self {
        Self {
            transport,
            operation,
            solicited: false,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }
}

/// The datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The receiver's Q_Key, as the sender knows it.
    pub qkey: u32,
    /// The sender's queue pair.
    pub src_qp: u32,
}

/// The RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The first byte's address.
    pub addr: u64,
    /// The key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// The atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The address of eight bytes.
    pub addr: u64,
    /// The key.
    pub rkey: u32,
    /// What to add, or what to store.
    pub swap_add: u64,
    /// What to compare with.
    pub compare: u64,
}

/// Why a responder does not acknowledge (IBTA volume 1, table "NAK Codes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// The packet's number is not the next one: packets before it were lost.
    PsnSequence,
    /// The responder does not take such a request.
    InvalidRequest,
    /// The key does not allow the access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
    /// Another code, which this crate does not know.
    Other(u8),
}

impl Nak {
    const fn decode(code: u8) -> Self {
        match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            code => Self::Other(code),
        }
    }

    const fn encode(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::Other(code) => code & 0x1f,
        }
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the packet was received. The number is a code of credits; [`Syndrome::UNLIMITED`] means none.
    Ack(u8),
    /// There is no receive: a code of the time to wait ([`bellwire_core::qp::rnr_timer`]).
    RnrNak(u8),
    /// An error.
    Nak(Nak),
}

impl Syndrome {
    /// The code of credits of a responder that does not count them.
    pub const UNLIMITED: u8 = 0x1f;

    const fn decode(byte: u8) -> Option<Self> {
        let value = byte & 0x1f;
        Some(match byte >> 5 {
            0b000 => Self::Ack(value),
            0b001 => Self::RnrNak(value),
            0b011 => Self::Nak(Nak::decode(value)),
            _ => return None,
        })
    }

    const fn encode(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(nak) => 0x60 | nak.encode(),
        }
    }
}

/// The acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
}

/// The headers of a packet: exactly the headers that its opcode asks for are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first header.
    pub bth: Bth,
    /// Of datagrams.
    pub deth: Option<Deth>,
    /// Of a WRITE's first packet, and of a READ's request.
    pub reth: Option<Reth>,
    /// Of atomics.
    pub atomic: Option<AtomicEth>,
    /// Of acknowledgements and answers.
    pub aeth: Option<Aeth>,
    /// What an atomic found, in the answer to it.
    pub original: Option<u64>,
    /// Immediate data, in the order of the wire.
    pub imm: Option<[u8; 4]>,
    /// The key that a SEND invalidates.
    pub invalidate: Option<u32>,
}

/// Why the bytes of a datagram are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It ends before its headers do.
    Truncated,
    /// A version of the transport header other than 0.
    Version,
    /// An opcode that this crate does not speak.
    Opcode,
    /// An acknowledgement with a reserved syndrome.
    Syndrome,
    /// More padding than bytes, padding that makes no multiple of four, or payload where none belongs.
    Length,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the packet ends before its headers do",
            Self::Version => "the packet has another version of the transport header",
            Self::Opcode => "the packet has an opcode that is not supported",
            Self::Syndrome => "the acknowledgement has a reserved syndrome",
            Self::Length => "the packet's length does not agree with its headers",
        })
    }
}

impl core::error::Error for Malformed {}

/// A packet as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub header: Header,
    /// Its payload, without padding.
    pub payload: &'a [u8],
}

/// Takes the bytes of a packet one field after another.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Takes a header that is there only if `present`.
fn optional<T>(
    present: bool,
    read: impl FnOnce() -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    present.then(read).transpose()
}

impl<'a> Packet<'a> {
    /// Takes a packet apart: a datagram's payload without the checksum at its end.
    ///
    /// # Errors
    /// It is not a packet of RoCE v2, or of a kind that this crate does not speak.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let [opcode, flags] = reader.take()?;
        let pkey = u16::from_be_bytes(reader.take()?);
        let (destination, numbers) = (reader.u32()?, reader.u32()?);
        if flags & 0x0f != 0 {
            return Err(Malformed::Version);
        }
        let (transport, operation) = Operation::decode(opcode).ok_or(Malformed::Opcode)?;
        let bth = Bth {
            transport,
            operation,
            solicited: flags & 0x80 != 0,
            pkey,
            fecn: destination & 1 << 31 != 0,
            becn: destination & 1 << 30 != 0,
            dest_qp: destination & QPN,
            ack_request: numbers & 1 << 31 != 0,
            psn: Psn::new(numbers),
        };
        let has = operation.headers(transport);
        let header = Header {
            bth,
            deth: optional(has.deth, || {
                Ok(Deth {
                    qkey: reader.u32()?,
                    src_qp: reader.u32()? & QPN,
                })
            })?,
            reth: optional(has.reth, || {
                Ok(Reth {
                    addr: reader.u64()?,
                    rkey: reader.u32()?,
                    length: reader.u32()?,
                })
            })?,
            atomic: optional(has.atomic, || {
                Ok(AtomicEth {
                    addr: reader.u64()?,
                    rkey: reader.u32()?,
                    swap_add: reader.u64()?,
                    compare: reader.u64()?,
                })
            })?,
            aeth: optional(has.aeth, || {
                let word = reader.u32()?;
                let syndrome = Syndrome::decode((word >> 24) as u8).ok_or(Malformed::Syndrome)?;
                let msn = word & QPN;
                Ok(Aeth { syndrome, msn })
            })?,
            original: optional(has.atomic_ack, || reader.u64())?,
            imm: optional(has.imm, || reader.take())?,
            invalidate: optional(has.ieth, || reader.u32())?,
        };
        let (rest, padding) = (reader.0, usize::from(flags >> 4 & 3));
        // A notification has 16 reserved bytes.
        if operation == Operation::CongestionNotification {
            return Ok(Self {
                header,
                payload: &[],
            });
        }
        let length = rest.len().checked_sub(padding).ok_or(Malformed::Length)?;
        if rest.len() % 4 != 0 || length != 0 && !operation.has_payload() {
            return Err(Malformed::Length);
        }
        let payload = &rest[..length];
        Ok(Self { header, payload })
    }
}

/// Puts the bytes of a packet one field after another.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }
}

impl Header {
    /// A packet without other headers.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            imm: None,
            invalidate: None,
        }
    }

    /// Writes the headers of a packet with so many bytes of payload, and returns their length. Behind them come the
    /// payload, [`padding`] and the checksum.
    ///
    /// # Panics
    /// If the transport does not have the operation; in debug builds also if a header is missing or there is one too
    /// many.
    pub fn encode(&self, payload: usize, bytes: &mut [u8; MAX_HEADER]) -> usize {
        let Bth {
            transport,
            operation,
            ..
        } = self.bth;
        let opcode = operation
            .encode(transport)
            .expect("the transport has the operation");
        debug_assert_eq!(
            self.present(),
            operation.headers(transport),
            "{operation:?}"
        );
        let flag = |set: bool, bit: u32| u32::from(set) << bit;
        // Bit 6: migrated, as it is without automatic path migration.
        let flags = flag(self.bth.solicited, 7) as u8 | 1 << 6 | (padding(payload) as u8) << 4;
        let bth = &self.bth;
        let destination = flag(bth.fecn, 31) | flag(bth.becn, 30) | bth.dest_qp & QPN;
        let mut writer = Writer { bytes, at: 0 };
        writer.put([opcode, flags]);
        writer.put(bth.pkey.to_be_bytes());
        writer.put(destination.to_be_bytes());
        writer.put((flag(bth.ack_request, 31) | bth.psn.get()).to_be_bytes());
        if let Some(Deth { qkey, src_qp }) = self.deth {
            writer.put(qkey.to_be_bytes());
            writer.put((src_qp & QPN).to_be_bytes());
        }
        if let Some(Reth { addr, rkey, length }) = self.reth {
            writer.put(addr.to_be_bytes());
            writer.put(rkey.to_be_bytes());
            writer.put(length.to_be_bytes());
        }
        if let Some(AtomicEth {
            addr,
            rkey,
            swap_add,
            compare,
        }) = self.atomic
        {
            writer.put(addr.to_be_bytes());
            writer.put(rkey.to_be_bytes());
            writer.put(swap_add.to_be_bytes());
            writer.put(compare.to_be_bytes());
        }
        if let Some(Aeth { syndrome, msn }) = self.aeth {
            writer.put((u32::from(syndrome.encode()) << 24 | msn & QPN).to_be_bytes());
        }
        if let Some(original) = self.original {
            writer.put(original.to_be_bytes());
        }
        if let Some(imm) = self.imm {
            writer.put(imm);
        }
        if let Some(rkey) = self.invalidate {
            writer.put(rkey.to_be_bytes());
        }
        if operation == Operation::CongestionNotification {
            writer.put([0; 16]);
        }
        writer.at
    }

    const fn present(&self) -> crate::opcode::Headers {
        crate::opcode::Headers {
            deth: self.deth.is_some(),
            reth: self.reth.is_some(),
            atomic: self.atomic.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack: self.original.is_some(),
            imm: self.imm.is_some(),
            ieth: self.invalidate.is_some(),
        }
    }
}

/// Bytes of zeros behind a payload, so that the checksum is at a multiple of four.
pub const fn padding(payload: usize) -> usize {
    payload.wrapping_neg() % 4
}

#[cfg(test)]
mod tests;
