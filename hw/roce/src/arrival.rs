//! Messages as they arrive: the order of their packets, and what each does to the responder's memory. Reliable and
//! unreliable connections share it.

use crate::opcode::{Operation, Trailer};
use crate::packet::{Header, Nak, Packet, Reth};
use bellwire_core::qp::Mtu;

/// What a peer wants of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic.
    Atomic,
}

/// A range of registered memory, in a peer's words: nothing of it is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte's address.
    pub addr: u64,
    /// The key.
    pub rkey: u32,
    /// Bytes.
    pub length: u32,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` if the memory has `compare`.
    CompareSwap {
        /// The value to find.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds a number.
    FetchAdd(u64),
}

/// Why a responder does not do what a packet wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no receive. The peer may try again later.
    NotReady,
    /// The request is against the rules, not permitted on this queue pair, or longer than its receive.
    Invalid,
    /// The key does not allow the access.
    Access,
    /// This end failed: memory of a receive that may not be written, for example.
    Operational,
}

impl Refusal {
    /// What the peer reads; `None` if it may try again.
    pub(crate) const fn nak(self) -> Option<Nak> {
        Some(match self {
            Self::NotReady => return None,
            Self::Invalid => Nak::InvalidRequest,
            Self::Access => Nak::RemoteAccess,
            Self::Operational => Nak::RemoteOperational,
        })
    }
}

/// A message that completes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Whether it is a WRITE with immediate data, and not a SEND.
    pub is_write: bool,
    /// Bytes of the message.
    pub length: u32,
    /// Immediate data, in the order of the wire.
    pub imm: Option<[u8; 4]>,
    /// The key to invalidate.
    pub invalidate: Option<u32>,
    /// Whether it is a solicited event.
    pub solicited: bool,
}

/// The memory and the receives of a queue pair.
pub trait Target {
    /// Takes the next receive for a message, unless one was taken that has not been completed.
    ///
    /// # Errors
    /// [`Refusal::NotReady`] if there is none.
    fn take_receive(&mut self) -> Result<(), Refusal>;

    /// Writes bytes of a SEND into its receive, from `offset` on.
    ///
    /// # Errors
    /// The receive is shorter, or its memory may not be written.
    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal>;

    /// Completes the receive that was taken. A key that the message invalidates is invalid afterwards.
    ///
    /// # Errors
    /// The key may not be invalidated. The receive is completed with that error.
    fn deliver(&mut self, arrival: Arrival) -> Result<(), Refusal>;

    /// Checks that the peer may do this with the whole range. It is not asked about ranges without bytes.
    ///
    /// # Errors
    /// It may not.
    fn check(&mut self, range: Range, access: Access) -> Result<(), Refusal>;

    /// Writes to the start of a range, and checks it again: a key can be revoked between two packets.
    ///
    /// # Errors
    /// The peer may not write there.
    fn write(&mut self, range: Range, data: &[u8]) -> Result<(), Refusal>;

    /// Executes an atomic on eight bytes, and returns what they were.
    ///
    /// # Errors
    /// The peer may not do that, or the address is not a multiple of eight.
    fn atomic(&mut self, addr: u64, rkey: u32, atomic: Atomic) -> Result<u64, Refusal>;
}

/// A message whose last packet has not come.
#[derive(Clone, Copy, Debug)]
enum Begun {
    /// A SEND, and the bytes of it that came.
    Send(u32),
    /// A WRITE: the rest of its range, and its length.
    Write(Range, u32),
}

/// The message that is arriving.
#[derive(Debug)]
pub(crate) struct Assembly(Option<Begun>);

impl Assembly {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Executes the next packet of a SEND or a WRITE: whether its message is complete. After an error the packet has
    /// had no effect on the message, so that it can come again if the error was [`Refusal::NotReady`].
    pub(crate) fn take(
        &mut self,
        packet: &Packet<'_>,
        mtu: Mtu,
        target: &mut impl Target,
    ) -> Result<bool, Refusal> {
        let Header {
            bth,
            reth,
            imm,
            invalidate,
            ..
        } = packet.header;
        let (place, trailer) = match bth.operation {
            Operation::Send(place, trailer) | Operation::Write(place, trailer) => (place, trailer),
            _ => return Err(Refusal::Invalid),
        };
        let bytes = packet.payload.len() as u32;
        // Full packets, and then the rest.
        let full = bytes == mtu.bytes();
        if bytes > mtu.bytes() || !place.ends() && !full || !place.begins() && bytes == 0 {
            return Err(Refusal::Invalid);
        }
        let begun = match (bth.operation, place.begins(), self.0) {
            (Operation::Send(..), true, None) => Begun::Send(0),
            (Operation::Write(..), true, None) => {
                let Reth { addr, rkey, length } = reth.ok_or(Refusal::Invalid)?;
                let range = Range { addr, rkey, length };
                if length > 0 {
                    target.check(range, Access::Write)?;
                }
                Begun::Write(range, length)
            }
            (Operation::Send(..), false, Some(begun @ Begun::Send(_)))
            | (Operation::Write(..), false, Some(begun @ Begun::Write(..))) => begun,
            _ => return Err(Refusal::Invalid),
        };
        let (next, length) = match begun {
            Begun::Send(before) => {
                let length = before.checked_add(bytes).ok_or(Refusal::Invalid)?;
                target.take_receive()?;
                if bytes > 0 {
                    target.place(before, packet.payload)?;
                }
                (Begun::Send(length), length)
            }
            Begun::Write(range, length) => {
                let left = range.length.checked_sub(bytes).ok_or(Refusal::Invalid)?;
                if place.ends() != (left == 0) {
                    return Err(Refusal::Invalid);
                }
                if trailer == Trailer::Immediate {
                    target.take_receive()?;
                }
                if bytes > 0 {
                    target.write(range, packet.payload)?;
                }
                let addr = range.addr.wrapping_add(bytes.into());
                (
                    Begun::Write(
                        Range {
                            addr,
                            length: left,
                            ..range
                        },
                        length,
                    ),
                    length,
                )
            }
        };
        if !place.ends() {
            self.0 = Some(next);
            return Ok(false);
        }
        self.0 = None;
        let is_write = matches!(next, Begun::Write(..));
        if !is_write || trailer == Trailer::Immediate {
            let solicited = bth.solicited;
            target.deliver(Arrival {
                is_write,
                length,
                imm,
                invalidate,
                solicited,
            })?;
        }
        Ok(true)
    }

    /// Whether a message has begun whose last packet has not come.
    pub(crate) const fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Forgets the message that is arriving: packets of it were lost.
    pub(crate) fn abandon(&mut self) {
        self.0 = None;
    }
}
