//! The opcodes of packets, in one table: what each means, and which headers follow the base transport header.

/// The transports that RoCE v2 packets of this crate belong to: the upper three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, which is of no connection.
    Cnp,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The first of several.
    First,
    /// Between the first and the last.
    Middle,
    /// The last of several.
    Last,
    /// All of the message.
    Only,
}

impl Place {
    /// Whether a message begins with the packet.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with the packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// The place of a packet of a message.
    pub const fn of(begins: bool, ends: bool) -> Self {
        match (begins, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// What the last packet of a message carries beside the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trailer {
    /// Nothing. Packets that are not the last have this, too.
    Nothing,
    /// Immediate data.
    Immediate,
    /// An rkey that the responder invalidates.
    Invalidate,
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Part of a SEND.
    Send(Place, Trailer),
    /// Part of an RDMA WRITE.
    Write(Place, Trailer),
    /// Asks for an RDMA READ.
    ReadRequest,
    /// Part of the answer to an RDMA READ.
    ReadResponse(Place),
    /// Acknowledges requests, or says why the responder does not.
    Acknowledge,
    /// The answer to an atomic.
    AtomicAcknowledge,
    /// Asks for a compare and swap.
    CompareSwap,
    /// Asks for a fetch and add.
    FetchAdd,
    /// Says that packets of this receiver met congestion.
    CongestionNotification,
}

/// The headers that may follow the base transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Datagram extended transport header.
    pub deth: bool,
    /// RDMA extended transport header.
    pub reth: bool,
    /// Atomic extended transport header.
    pub atomic: bool,
    /// Acknowledge extended transport header.
    pub aeth: bool,
    /// Atomic acknowledge extended transport header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub imm: bool,
    /// Invalidate extended transport header.
    pub ieth: bool,
}

/// The operations with their numbers: the lower five bits of an opcode (IBTA volume 1, table "OpCode Field").
const TABLE: [(u8, Operation); 23] = {
    use Operation as O;
    use Place::{First, Last, Middle, Only};
    use Trailer::{Immediate, Invalidate, Nothing};
    [
        (0x00, O::Send(First, Nothing)),
        (0x01, O::Send(Middle, Nothing)),
        (0x02, O::Send(Last, Nothing)),
        (0x03, O::Send(Last, Immediate)),
        (0x04, O::Send(Only, Nothing)),
        (0x05, O::Send(Only, Immediate)),
        (0x06, O::Write(First, Nothing)),
        (0x07, O::Write(Middle, Nothing)),
        (0x08, O::Write(Last, Nothing)),
        (0x09, O::Write(Last, Immediate)),
        (0x0a, O::Write(Only, Nothing)),
        (0x0b, O::Write(Only, Immediate)),
        (0x0c, O::ReadRequest),
        (0x0d, O::ReadResponse(First)),
        (0x0e, O::ReadResponse(Middle)),
        (0x0f, O::ReadResponse(Last)),
        (0x10, O::ReadResponse(Only)),
        (0x11, O::Acknowledge),
        (0x12, O::AtomicAcknowledge),
        (0x13, O::CompareSwap),
        (0x14, O::FetchAdd),
        (0x16, O::Send(Last, Invalidate)),
        (0x17, O::Send(Only, Invalidate)),
    ]
};

/// The opcode of a congestion notification packet (IBTA volume 1, annex A17).
const CNP: u8 = 0x81;

/// The transports with their numbers.
const TRANSPORTS: [(u8, Transport); 3] = [
    (0x00, Transport::Rc),
    (0x20, Transport::Uc),
    (0x60, Transport::Ud),
];

impl Transport {
    /// Whether the transport has the operation.
    pub const fn has(self, operation: Operation) -> bool {
        match self {
            Self::Rc => !matches!(operation, Operation::CongestionNotification),
            Self::Uc => match operation {
                Operation::Send(_, trailer) | Operation::Write(_, trailer) => {
                    !matches!(trailer, Trailer::Invalidate)
                }
                _ => false,
            },
            Self::Ud => matches!(
                operation,
                Operation::Send(Place::Only, Trailer::Nothing | Trailer::Immediate)
            ),
            Self::Cnp => matches!(operation, Operation::CongestionNotification),
        }
    }
}

impl Operation {
    /// The meaning of an opcode; `None` of one that this crate does not speak.
    pub fn decode(opcode: u8) -> Option<(Transport, Self)> {
        if opcode == CNP {
            return Some((Transport::Cnp, Self::CongestionNotification));
        }
        let (transport, operation) = (opcode & 0xe0, opcode & 0x1f);
        let (_, transport) = TRANSPORTS.into_iter().find(|(n, _)| *n == transport)?;
        let (_, operation) = TABLE.into_iter().find(|(n, _)| *n == operation)?;
        transport.has(operation).then_some((transport, operation))
    }

    /// The opcode; `None` if the transport does not have the operation.
    pub fn encode(self, transport: Transport) -> Option<u8> {
        if !transport.has(self) {
            return None;
        }
        if transport == Transport::Cnp {
            return Some(CNP);
        }
        let (upper, _) = TRANSPORTS.into_iter().find(|(_, t)| *t == transport)?;
        let (lower, _) = TABLE.into_iter().find(|(_, o)| *o == self)?;
        Some(upper | lower)
    }

    /// The headers of its packets.
    pub fn headers(self, transport: Transport) -> Headers {
        let trailer = match self {
            Self::Send(_, trailer) | Self::Write(_, trailer) => trailer,
            _ => Trailer::Nothing,
        };
        Headers {
            deth: transport == Transport::Ud,
            reth: matches!(self, Self::ReadRequest)
                || matches!(self, Self::Write(place, _) if place.begins()),
            atomic: matches!(self, Self::CompareSwap | Self::FetchAdd),
            aeth: matches!(
                self,
                Self::Acknowledge
                    | Self::AtomicAcknowledge
                    | Self::ReadResponse(Place::First | Place::Last | Place::Only)
            ),
            atomic_ack: matches!(self, Self::AtomicAcknowledge),
            imm: trailer == Trailer::Immediate,
            ieth: trailer == Trailer::Invalidate,
        }
    }

    /// Whether a requester sends it. A responder sends the others, but for notifications of congestion.
    pub const fn is_request(self) -> bool {
        !matches!(
            self,
            Self::ReadResponse(_)
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::CongestionNotification
        )
    }

    /// Whether its packets may carry payload.
    pub const fn has_payload(self) -> bool {
        matches!(
            self,
            Self::Send(..) | Self::Write(..) | Self::ReadResponse(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_is_itself_again() {
        let mut known = 0;
        for opcode in 0..=u8::MAX {
            let Some((transport, operation)) = Operation::decode(opcode) else {
                continue;
            };
            assert_eq!(operation.encode(transport), Some(opcode), "{opcode:#x}");
            known += 1;
        }
        // 23 of RC, 12 of UC, 2 of UD, and the notification.
        assert_eq!(known, 38);
    }

    #[test]
    fn opcodes_of_the_specification() {
        use Operation as O;
        for (opcode, transport, operation) in [
            (0x04, Transport::Rc, O::Send(Place::Only, Trailer::Nothing)),
            (
                0x0b,
                Transport::Rc,
                O::Write(Place::Only, Trailer::Immediate),
            ),
            (0x0c, Transport::Rc, O::ReadRequest),
            (0x11, Transport::Rc, O::Acknowledge),
            (
                0x17,
                Transport::Rc,
                O::Send(Place::Only, Trailer::Invalidate),
            ),
            (
                0x26,
                Transport::Uc,
                O::Write(Place::First, Trailer::Nothing),
            ),
            (0x64, Transport::Ud, O::Send(Place::Only, Trailer::Nothing)),
            (
                0x65,
                Transport::Ud,
                O::Send(Place::Only, Trailer::Immediate),
            ),
            (0x81, Transport::Cnp, O::CongestionNotification),
        ] {
            assert_eq!(
                Operation::decode(opcode),
                Some((transport, operation)),
                "{opcode:#x}"
            );
        }
        for opcode in [0x15, 0x18, 0x2c, 0x31, 0x36, 0x60, 0x66, 0x80, 0xa4] {
            assert_eq!(Operation::decode(opcode), None, "{opcode:#x}");
        }
        assert_eq!(O::ReadRequest.encode(Transport::Uc), None);
    }
}
