//! The opcode, format and flags of a CQE.

use crate::op::{ImmField, WrOpcode};
use crate::wr::WcOpcode;
use bitflags::bitflags;

/// The opcode of a CQE. All values of its four bits have a name here, so that any opcode that a
/// device writes keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqeOpcode {
    /// A send request was executed.
    Req = 0,
    /// An RDMA WRITE with immediate data consumed a receive.
    RespWrImm = 1,
    /// A SEND consumed a receive.
    RespSend = 2,
    /// A SEND with immediate data consumed a receive.
    RespSendImm = 3,
    /// A SEND with invalidate consumed a receive.
    RespSendInv = 4,
    /// The following CQEs are in the new ring. Completes no request.
    ResizeCq = 5,
    /// A tag matching operation of the device. Reports no message.
    NoPacket = 6,
    /// Not assigned.
    Unknown7 = 7,
    /// Not assigned.
    Unknown8 = 8,
    /// Not assigned.
    Unknown9 = 9,
    /// Not assigned.
    Unknown10 = 10,
    /// Not assigned.
    Unknown11 = 11,
    /// A memory signature did not match. The CQE of the request follows.
    SigErr = 12,
    /// A send request failed.
    ReqErr = 13,
    /// A receive failed.
    RespErr = 14,
    /// Not yet written by the device.
    Invalid = 15,
}

impl CqeOpcode {
    /// The opcode with this number; only the low four bits are used.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0xf {
            0 => Self::Req,
            1 => Self::RespWrImm,
            2 => Self::RespSend,
            3 => Self::RespSendImm,
            4 => Self::RespSendInv,
            5 => Self::ResizeCq,
            6 => Self::NoPacket,
            7 => Self::Unknown7,
            8 => Self::Unknown8,
            9 => Self::Unknown9,
            10 => Self::Unknown10,
            11 => Self::Unknown11,
            12 => Self::SigErr,
            13 => Self::ReqErr,
            14 => Self::RespErr,
            _ => Self::Invalid,
        }
    }

    /// Its number.
    #[inline(always)]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The opcode with which the peer's receive completes that this operation consumes. `None`: it
    /// consumes none.
    #[inline(always)]
    pub const fn of_receive(operation: WrOpcode) -> Option<Self> {
        let row = operation.row();
        match (row.receive, row.imm) {
            (None, _) => None,
            (Some(WcOpcode::RecvRdmaWithImm), _) => Some(Self::RespWrImm),
            (Some(_), ImmField::Immediate) => Some(Self::RespSendImm),
            (Some(_), ImmField::RemoteKey) => Some(Self::RespSendInv),
            (Some(_), ImmField::Unused | ImmField::LocalKey) => Some(Self::RespSend),
        }
    }

    /// Whether a message consumed a receive.
    #[inline(always)]
    pub const fn is_received(self) -> bool {
        matches!(self.number(), 1..=4)
    }

    /// Whether a request failed, as requester or responder.
    #[inline(always)]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::ReqErr | Self::RespErr)
    }
}

/// What a CQE contains in addition to the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqeFormat {
    /// Nothing.
    None = 0,
    /// Up to 32 bytes of inline payload, in its first half.
    Inline32 = 1,
    /// Up to 64 bytes of inline payload, in the 64 bytes before it (entries of 128 bytes only).
    Inline64 = 2,
    /// The CQE is the title of a compressed block. See [`expand_in_place`](super::expand_in_place).
    Compressed = 3,
}

impl CqeFormat {
    /// The format with this number; only the low two bits are used.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Inline32,
            2 => Self::Inline64,
            _ => Self::Compressed,
        }
    }
}

bitflags! {
    /// Which fields of a completion are valid (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The message came with a GRH.
        const GRH = 1 << 0;
        /// There is immediate data.
        const WITH_IMM = 1 << 1;
        /// The checksums of the IPv4 and the transport header are correct.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// The completion opcode of a send WQE with this opcode (`MLX5_OPCODE_*`). UMR is absent because
/// both LOCAL_INV and BIND_MW are posted as UMR. LOCAL_INVAL (0x1b) is absent because neither bellwire
/// nor libmlx5 posts it: such a completion is of whatever the queue posted.
#[inline(always)]
pub(super) const fn of_send(send_opcode: u8) -> Option<WcOpcode> {
    match WrOpcode::of_opcode(send_opcode) {
        Some(operation) if !operation.is_registration() => Some(operation.completes_as()),
        _ => None,
    }
}

/// Whether a send WQE with this opcode carried immediate data.
#[inline(always)]
pub(super) const fn send_has_imm(send_opcode: u8) -> bool {
    match WrOpcode::of_opcode(send_opcode) {
        Some(operation) => matches!(operation.row().imm, ImmField::Immediate),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept() {
        for bits in 0..=u8::MAX {
            assert_eq!(CqeOpcode::from_bits(bits).number(), bits & 0xf);
            assert_eq!(CqeFormat::from_bits(bits) as u8, bits & 3);
        }
    }

    #[test]
    fn only_known_send_opcodes_have_a_meaning() {
        let known = (0..=u8::MAX).filter(|&opcode| of_send(opcode).is_some());
        assert!(known.eq([0, 1, 8, 9, 0xa, 0xb, 0xe, 0x10, 0x11, 0x12]));
        assert_eq!(of_send(0x25), None, "UMR: only the queue knows");
        assert_eq!(of_send(0x1b), None, "LOCAL_INVAL: nobody posts it");
        assert!(of_send(0x01) == Some(WcOpcode::Send) && of_send(0x0e) == Some(WcOpcode::Tso));
    }
}
