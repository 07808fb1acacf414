//! What a poll tells.

use crate::be::Be32;
use crate::cqe::Syndrome;
use crate::slab::Block;
use crate::wr::{WcOpcode, WcStatus};
use core::fmt;

/// What became of one request.
///
/// On an error the verbs define no more than `wr_id`, `qp_num`, status and vendor code; the rest is
/// in [`Success`] and cannot be reached then.
#[derive(Debug)]
#[must_use = "a completion holds the request's outcome and its buffer"]
pub struct Completion<'m> {
    /// The caller's identifier of the request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// Requests that this completion tells of: itself, and the unsignalled ones before it, which
    /// succeeded.
    pub retired: u32,
    /// Executed or not.
    pub result: Result<Success, Failure>,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
}

impl Completion<'_> {
    /// The status as the verbs number it.
    #[inline]
    pub fn status(&self) -> WcStatus {
        match &self.result {
            Ok(_) => WcStatus::Success,
            Err(failure) => failure.status,
        }
    }
}

/// What is known of an executed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success {
    /// What completed.
    pub opcode: WcOpcode,
    /// The message raised a solicited event.
    pub solicited: bool,
    /// A datagram's first 40 bytes are the global route header.
    pub grh: bool,
    /// Data that came with the message.
    pub imm: Imm,
    pub(super) byte_len: u32,
    pub(super) src_qp: u32,
}

impl Success {
    /// Bytes received, or brought by a READ or atomic. SENDs and WRITEs have none.
    #[inline]
    pub fn byte_len(&self) -> Option<u32> {
        match self.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm | WcOpcode::RdmaRead => Some(self.byte_len),
            // Whatever the entry says.
            WcOpcode::CompSwap | WcOpcode::FetchAdd => Some(8),
            _ => None,
        }
    }

    /// The sender's queue pair of a received datagram.
    #[inline]
    pub fn src_qp(&self) -> Option<u32> {
        self.opcode.is_recv().then_some(self.src_qp)
    }
}

/// What came with a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imm {
    /// Nothing.
    None,
    /// Immediate data, as the sender's memory had it.
    Data(Be32),
    /// This key of ours was invalidated.
    Invalidated(u32),
}

/// What is known of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The verbs' status.
    pub status: WcStatus,
    /// The device's own code for it.
    pub vendor_err: u8,
    /// What the status was made from, kept because it may tell more.
    pub syndrome: Syndrome,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (vendor code {:#04x})", self.status, self.vendor_err)
    }
}

impl core::error::Error for Failure {}
