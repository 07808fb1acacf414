//! Requests, and the packets that each is cut into.

use crate::opcode::{Operation, Place, Trailer, Transport};
use crate::packet::{AtomicEth, Bth, Header, Reth};
use crate::psn::Psn;
use bellwire_core::qp::Mtu;

/// What a SEND carries beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    Nothing,
    /// Immediate data, in the order of the wire.
    Immediate([u8; 4]),
    /// An rkey that the responder invalidates.
    Invalidate(u32),
}

/// What a requester is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND, SEND_WITH_IMM or SEND_WITH_INV.
    Send(Extra),
    /// RDMA WRITE or WRITE_WITH_IMM.
    Write {
        /// The address at the responder.
        addr: u64,
        /// Its key.
        rkey: u32,
        /// Immediate data, in the order of the wire.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// The address at the responder.
        addr: u64,
        /// Its key.
        rkey: u32,
    },
    /// Compare eight bytes, and store `swap` if they equal `compare`.
    CompareSwap {
        /// The address at the responder.
        addr: u64,
        /// Its key.
        rkey: u32,
        /// The value to find.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Add to eight bytes.
    FetchAdd {
        /// The address at the responder.
        addr: u64,
        /// Its key.
        rkey: u32,
        /// The number to add.
        add: u64,
    },
}

/// A request as it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the caller knows it by.
    pub id: u64,
    /// What to do.
    pub verb: Verb,
    /// Bytes of local memory: the payload of a SEND or a WRITE, or the place for what a READ brings. An atomic has 8.
    pub length: u32,
    /// Whether the completion of its receive is a solicited event.
    pub solicited: bool,
    /// Whether it waits for READs and atomics that were posted before it.
    pub fence: bool,
}

/// A range of a request's local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub offset: u32,
    /// How many.
    pub length: u32,
}

impl Request {
    /// Whether the responder answers it with data.
    pub const fn is_answered(&self) -> bool {
        !matches!(self.verb, Verb::Send(_) | Verb::Write { .. })
    }

    /// Packet sequence numbers that it takes: one for each packet that carries its payload, in either direction.
    pub const fn packets(&self, mtu: Mtu) -> u32 {
        match self.verb {
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 1,
            _ if self.length == 0 => 1,
            _ => self.length.div_ceil(mtu.bytes()),
        }
    }

    /// The payload of its packet number `at`.
    pub const fn span(&self, at: u32, mtu: Mtu) -> Span {
        let offset = at * mtu.bytes();
        let rest = self.length - offset;
        let length = if rest < mtu.bytes() {
            rest
        } else {
            mtu.bytes()
        };
        Span { offset, length }
    }

    /// The headers of packet number `at` of a SEND or a WRITE, or of a request for `count` packets of a READ from there.
    pub(crate) fn header(&self, base: &Base, psn: Psn, at: u32, count: u32) -> Header {
        let mtu = base.mtu;
        let place = Place::of(at == 0, at + 1 == self.packets(mtu));
        let trailer = |trailer| {
            if place.ends() {
                trailer
            } else {
                Trailer::Nothing
            }
        };
        let operation = match self.verb {
            Verb::Send(Extra::Nothing) | Verb::Write { imm: None, .. } => Trailer::Nothing,
            Verb::Send(Extra::Immediate(_)) | Verb::Write { imm: Some(_), .. } => {
                trailer(Trailer::Immediate)
            }
            Verb::Send(Extra::Invalidate(_)) => trailer(Trailer::Invalidate),
            _ => Trailer::Nothing,
        };
        let operation = match self.verb {
            Verb::Send(_) => Operation::Send(place, operation),
            Verb::Write { .. } => Operation::Write(place, operation),
            Verb::Read { .. } => Operation::ReadRequest,
            Verb::CompareSwap { .. } => Operation::CompareSwap,
            Verb::FetchAdd { .. } => Operation::FetchAdd,
        };
        let mut header = Header::new(Bth {
            solicited: self.solicited && place.ends(),
            ..Bth::new(base.transport, operation, base.dest_qp, psn)
        });
        match self.verb {
            Verb::Send(Extra::Immediate(imm)) if place.ends() => header.imm = Some(imm),
            Verb::Send(Extra::Invalidate(rkey)) if place.ends() => header.invalidate = Some(rkey),
            Verb::Send(_) => {}
            Verb::Write { addr, rkey, imm } => {
                let length = self.length;
                header.reth = (at == 0).then_some(Reth { addr, rkey, length });
                header.imm = imm.filter(|_| place.ends());
            }
            Verb::Read { addr, rkey } => {
                let first = self.span(at, mtu).offset;
                let end = self.span(at + count - 1, mtu);
                header.reth = Some(Reth {
                    addr: addr.wrapping_add(u64::from(first)),
                    rkey,
                    length: end.offset + end.length - first,
                });
            }
            Verb::CompareSwap {
                addr,
                rkey,
                compare,
                swap,
            } => {
                header.atomic = Some(AtomicEth {
                    addr,
                    rkey,
                    swap_add: swap,
                    compare,
                });
            }
            Verb::FetchAdd { addr, rkey, add } => {
                header.atomic = Some(AtomicEth {
                    addr,
                    rkey,
                    swap_add: add,
                    compare: 0,
                });
            }
        }
        header
    }
}

/// What all packets of a connection have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    /// Reliable or unreliable.
    pub transport: Transport,
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// The largest payload.
    pub mtu: Mtu,
}

/// Where the payload of a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    Nothing,
    /// The local memory of a request.
    Request {
        /// The request's number.
        id: u64,
        /// Which part.
        span: Span,
    },
    /// Registered memory that a peer reads.
    Memory {
        /// The first byte's address, as the peer knows it.
        addr: u64,
        /// The key.
        rkey: u32,
        /// Bytes.
        length: u32,
    },
}

impl Payload {
    /// Bytes.
    pub const fn length(&self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Request { span, .. } => span.length,
            Self::Memory { length, .. } => *length,
        }
    }
}

/// A packet to be sent: the caller writes the headers ([`Header::encode`]), copies the payload behind them, and seals
/// both ([`icrc::seal`](crate::icrc::seal)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its headers.
    pub header: Header,
    /// Its payload.
    pub payload: Payload,
}
