//! Decoding send WQEs, as a device does: the one place that knows where an entry has what. It reads the
//! [table of operations](crate::op), and so has no list of them.

use super::segment::{AddressVector, SEGMENT, fm_ce_se};
use super::transport::address_bytes;
use super::umr::Umr;
use super::view::{SendWqe, SgeList};
use crate::be::Be32;
use crate::op::{Carries, ImmField, Layout, WrOpcode};
use crate::wr::{QpType, Remote};
use core::fmt;

/// A send request, as its entry has it. Its fields are decoded when they are read; each is `None` where
/// the operation has none.
#[derive(Clone, Copy, Debug)]
pub struct Request<'m> {
    wqe: SendWqe<'m>,
    operation: WrOpcode,
    transport: QpType,
}

/// Why an entry is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No operation has this opcode.
    Opcode(u8),
    /// The transport does not support the operation.
    Transport(WrOpcode),
    /// Its size in segments is too small for the operation, or too large for the ring.
    Size(u32),
    /// Registration work that this crate does not post.
    Registration,
}

/// The operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Write `swap` if the old value is `compare`.
    CompareAndSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to write.
        swap: u64,
    },
    /// Add this number.
    FetchAndAdd(u64),
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub enum Destination {
    /// To the queue pair's peer.
    Peer,
    /// To the shared receive queue with this number, at the peer.
    Srq(u32),
    /// To the queue pair that this address names.
    Address(AddressVector),
}

/// Byte offset, in entries on this transport, of what follows the address: the operation's own segments.
#[inline(always)]
pub const fn operation_offset(transport: QpType) -> usize {
    SEGMENT + address_bytes(transport)
}

/// Byte offset of the data in an entry of this operation, which is not registration work.
#[inline(always)]
pub const fn data_offset(operation: WrOpcode, transport: QpType) -> usize {
    let layout = operation.row().layout;
    let before = match layout {
        Layout::Control | Layout::Registration => SEGMENT,
        Layout::Message | Layout::Memory | Layout::CompareAndSwap | Layout::FetchAndAdd => {
            operation_offset(transport)
        }
    };
    before + layout.segments() * SEGMENT
}

impl<'m> SendWqe<'m> {
    /// The operation, by the entry's opcode alone: [`BindMw`](WrOpcode::BindMw) for all registration work
    /// ([`WrOpcode::of_opcode`]).
    #[inline(always)]
    pub fn operation(&self) -> Option<WrOpcode> {
        WrOpcode::of_opcode(self.opcode())
    }

    /// Decodes the entry, of a queue on this transport.
    ///
    /// # Errors
    /// It is no request that this crate posts. What its data segments say is not checked, but never leads
    /// outside the entry.
    pub fn request(self, transport: QpType) -> Result<Request<'m>, Malformed> {
        let code = self.opcode();
        let mut operation = WrOpcode::of_opcode(code).ok_or(Malformed::Opcode(code))?;
        let ds = self.ds();
        if !self.is_in_ring() || (ds as usize) * SEGMENT < data_offset(operation, transport) {
            return Err(Malformed::Size(ds));
        }
        if operation.is_registration() {
            operation = self.umr().ok_or(Malformed::Registration)?.operation();
        }
        if !operation.runs_on(transport) {
            return Err(Malformed::Transport(operation));
        }
        Ok(self.request_of(operation, transport))
    }

    /// The entry as a request that is known to be of this operation, on this transport. If it is of another
    /// one, what is read of it is meaningless. For code that is made for each operation and transport.
    #[inline(always)]
    pub fn request_of(self, operation: WrOpcode, transport: QpType) -> Request<'m> {
        Request {
            wqe: self,
            operation,
            transport,
        }
    }
}

impl<'m> Request<'m> {
    /// Its entry.
    #[inline(always)]
    pub fn wqe(&self) -> &SendWqe<'m> {
        &self.wqe
    }

    /// Its operation.
    #[inline(always)]
    pub fn operation(&self) -> WrOpcode {
        self.operation
    }

    /// Whether it is signalled.
    #[inline(always)]
    pub fn is_signaled(&self) -> bool {
        self.wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0
    }

    /// Whether it raises a solicited event at the receiver.
    #[inline(always)]
    pub fn is_solicited(&self) -> bool {
        self.wqe.fm_ce_se() & fm_ce_se::SOLICITED != 0
    }

    /// Whether it waits for all earlier READs and atomics.
    #[inline(always)]
    pub fn is_fenced(&self) -> bool {
        self.wqe.fm_ce_se() & fm_ce_se::FENCE != 0
    }

    /// The immediate data.
    #[inline(always)]
    pub fn imm(&self) -> Option<Be32> {
        matches!(self.operation.row().imm, ImmField::Immediate).then(|| self.wqe.imm())
    }

    /// The key that it invalidates at the peer.
    #[inline(always)]
    pub fn invalidates(&self) -> Option<u32> {
        matches!(self.operation.row().imm, ImmField::RemoteKey).then(|| self.wqe.imm().get())
    }

    /// Where it goes.
    #[inline(always)]
    pub fn destination(&self) -> Option<Destination> {
        let addressed = !self.operation.row().layout.is_local();
        addressed.then(|| match self.transport {
            QpType::Rc | QpType::Uc | QpType::XrcRecv => Destination::Peer,
            QpType::XrcSend => Destination::Srq(self.wqe.xrc_srqn()),
            QpType::Ud | QpType::Dci => Destination::Address(self.wqe.address_vector()),
        })
    }

    /// The peer's memory.
    #[inline(always)]
    pub fn remote(&self) -> Option<Remote> {
        let at = operation_offset(self.transport);
        match self.operation.row().layout {
            Layout::Control | Layout::Registration | Layout::Message => None,
            Layout::Memory | Layout::CompareAndSwap | Layout::FetchAndAdd => {
                Some(self.wqe.remote(at))
            }
        }
    }

    /// The operands of an atomic.
    #[inline(always)]
    pub fn atomic(&self) -> Option<Atomic> {
        let operands = || self.wqe.atomic(operation_offset(self.transport) + SEGMENT);
        match self.operation.row().layout {
            Layout::Control | Layout::Registration | Layout::Message | Layout::Memory => None,
            Layout::CompareAndSwap => {
                let (swap, compare) = operands();
                Some(Atomic::CompareAndSwap { compare, swap })
            }
            Layout::FetchAndAdd => Some(Atomic::FetchAndAdd(operands().0)),
        }
    }

    /// What it binds or invalidates.
    pub fn registration(&self) -> Option<Umr> {
        self.wqe.umr()
    }

    /// Byte offset of its data; the end of the entry where the operation has none.
    #[inline(always)]
    pub fn data_offset(&self) -> usize {
        match self.operation.row().carries {
            Carries::Nothing => self.wqe.ds() as usize * SEGMENT,
            Carries::Data | Carries::Result => data_offset(self.operation, self.transport),
        }
    }

    /// Its data, or the memory for its result.
    #[inline(always)]
    pub fn data(&self) -> SgeList<'m> {
        self.wqe.data(self.data_offset())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(code) => write!(f, "no operation has the opcode {code:#04x}"),
            Self::Transport(operation) => write!(f, "the transport does not support {operation}"),
            Self::Size(ds) => write!(f, "the entry cannot have {ds} segments"),
            Self::Registration => f.write_str("registration work of an unknown form"),
        }
    }
}

impl core::error::Error for Malformed {}
