//! What a poll tells.

use crate::be::Be32;
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode, Source, Syndrome};
use crate::slab::Block;
use crate::wr::{WcOpcode, WcStatus};
use core::fmt;
use core::hint::black_box;
use core::mem::ManuallyDrop;

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
    /// succeeded; or, where this one was flushed on a queue pair that
    /// [suppresses](super::SendQueue::suppress_flush) their completions, were flushed as well. (Those that
    /// were posted before the first failure, or before the state ERR, may have been executed.)
    pub retired: u32,
    /// Executed or not.
    pub result: Result<Success, Failure>,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
}

static_assertions::const_assert!(size_of::<Completion<'static>>() <= 40);

impl Completion<'_> {
    /// The same, read field by field, by an address that the compiler knows nothing of. What a function
    /// that is not inlined gives is in memory; moved as a whole, it would keep there, too, what inlined
    /// code gives in its stead.
    #[doc(hidden)]
    #[inline(always)]
    pub fn unpacked(self) -> Self {
        let told = ManuallyDrop::new(self);
        let told = black_box(&raw const *told);
        // SAFETY: of the local above; each field is read once, and the whole is not dropped.
        unsafe {
            Self {
                wr_id: (&raw const (*told).wr_id).read(),
                qp_num: (&raw const (*told).qp_num).read(),
                retired: (&raw const (*told).retired).read(),
                result: (&raw const (*told).result).read(),
                block: (&raw const (*told).block).read(),
            }
        }
    }

    /// The status as the verbs number it.
    #[inline]
    pub fn status(&self) -> WcStatus {
        match &self.result {
            Ok(_) => WcStatus::Success,
            Err(failure) => failure.status,
        }
    }
}

/// What is known of an executed request. Read from the entry when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Success {
    /// What completed.
    pub opcode: WcOpcode,
    /// The entry's last byte: opcode, format, solicited, owner.
    op_own: u8,
    slid: u16,
    byte_cnt: Be32,
    imm: Be32,
    flags_rqpn: Be32,
}

impl Success {
    #[inline(always)]
    pub(super) fn new(opcode: WcOpcode, cqe: &Cqe64) -> Self {
        Self {
            opcode,
            op_own: cqe.op_own(),
            slid: cqe.slid(),
            byte_cnt: Be32::new(cqe.byte_cnt()),
            imm: cqe.imm(),
            flags_rqpn: cqe.flags_rqpn(),
        }
    }

    /// Of what brings nothing but bytes.
    #[inline(always)]
    pub(super) fn plain(entry: CqeOpcode, opcode: WcOpcode, byte_cnt: u32) -> Self {
        Self {
            opcode,
            op_own: entry.number() << 4,
            slid: 0,
            byte_cnt: Be32::new(byte_cnt),
            imm: Be32::new(0),
            flags_rqpn: Be32::new(0),
        }
    }

    /// All of it, for who keeps it in a form of their own: the number of the opcode, the last byte of
    /// the entry, the sender's local identifier; the bytes in big-endian order, what came with them, and
    /// the sender's queue pair and more, as the entry has them.
    #[inline(always)]
    pub fn to_raw(self) -> (u8, u8, u16, [u32; 3]) {
        let Self {
            opcode,
            op_own,
            slid,
            byte_cnt,
            imm,
            flags_rqpn,
        } = self;
        let words = [byte_cnt.to_raw(), imm.to_raw(), flags_rqpn.to_raw()];
        (opcode.number(), op_own, slid, words)
    }

    /// What [`to_raw`](Self::to_raw) gave. `None`: there is no such opcode.
    pub fn from_raw(opcode: u8, op_own: u8, slid: u16, words: [u32; 3]) -> Option<Self> {
        let [byte_cnt, imm, flags_rqpn] = words.map(Be32::from_raw);
        Some(Self {
            opcode: WcOpcode::from_number(opcode)?,
            op_own,
            slid,
            byte_cnt,
            imm,
            flags_rqpn,
        })
    }

    /// Bytes received, or brought by a READ or atomic. SENDs and WRITEs have none.
    #[inline]
    pub fn byte_len(&self) -> Option<u32> {
        match self.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm | WcOpcode::RdmaRead => {
                Some(self.byte_cnt.get())
            }
            // Whatever the entry says.
            WcOpcode::CompSwap | WcOpcode::FetchAdd => Some(8),
            _ => None,
        }
    }

    /// What came with a received message.
    #[inline]
    pub fn imm(&self) -> Imm {
        match CqeOpcode::from_bits(self.op_own >> 4) {
            CqeOpcode::RespWrImm | CqeOpcode::RespSendImm => Imm::Data(self.imm),
            CqeOpcode::RespSendInv => Imm::Invalidated(self.imm.get()),
            _ => Imm::None,
        }
    }

    /// Whether a received message asked for a solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.opcode.is_recv() && self.op_own & 2 != 0
    }

    /// Whether the first 40 bytes of a received datagram are the global route header.
    #[inline]
    pub fn grh(&self) -> bool {
        self.source().is_some_and(|source| source.grh)
    }

    /// The sender's queue pair of a received message; not known where payload stands in its place.
    #[inline]
    pub fn src_qp(&self) -> Option<u32> {
        self.source().map(|source| source.qpn)
    }

    /// Where a received message came from; not known where payload stands in its place. Devices tell
    /// it of datagrams, and of no others the whole of it. The path bits are not kept: zero, which
    /// they are on ports of one local identifier.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        // Payload in the descriptor stands where the source would be.
        let sourced = CqeFormat::from_bits(self.op_own >> 2) != CqeFormat::Inline32;
        (sourced && self.opcode.is_recv()).then(|| {
            let flags_rqpn = self.flags_rqpn.get();
            Source {
                qpn: flags_rqpn & 0xff_ffff,
                slid: self.slid,
                sl: (flags_rqpn >> 24) as u8 & 0xf,
                dlid_path_bits: 0,
                grh: flags_rqpn >> 28 & 3 != 0,
            }
        })
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
    /// The request's counter in its send or receive queue: its entry can be read by it
    /// ([`SendQueue::entry`](super::SendQueue::entry)). Of a shared receive queue the entry's index.
    pub counter: u32,
    /// Whether it is of a receive queue.
    pub is_recv: bool,
}

/// A request that was not told when the life of its queue ended.
#[derive(Debug)]
#[must_use = "it holds the request's buffer"]
pub struct Unfinished<'m> {
    /// The caller's identifier of the request.
    pub wr_id: u64,
    /// Its counter in its queue: its entry can be read by it up to the next post.
    pub counter: u32,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (vendor code {:#04x})", self.status, self.vendor_err)
    }
}

impl core::error::Error for Failure {}
