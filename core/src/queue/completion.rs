//! Completions, as a poll returns them.

use crate::be::Be32;
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode, Source, Syndrome};
use crate::fault::{Fault, WorkQueue};
use crate::slab::Block;
use crate::wr::{QpType, WcOpcode, WcStatus};
use core::fmt;
use core::hint::black_box;
use core::mem::ManuallyDrop;

/// The outcome of one request.
///
/// On an error the verbs define only `wr_id`, `qp_num`, the status and the vendor code. Everything
/// else is in [`Success`], which is absent then.
#[derive(Debug)]
#[must_use = "a completion holds the request's outcome and its buffer"]
pub struct Completion<'m> {
    /// The caller's identifier of the request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// Number of requests that this completion reports: its own, and the unsignalled ones before
    /// it. Those succeeded; or, where this request was flushed on a queue pair that
    /// [suppresses](super::SendQueue::suppress_flush) their flush completions, were flushed as
    /// well. (Those posted before the first failure, or before the ERR state, may have been
    /// executed.)
    ///
    /// Where a device's completions are reported by [`complete`](super::CompletionQueue::complete), a flush
    /// behind a signalled request that was not reported means that the completion of that request
    /// was lost. The flush is dropped as [stale](super::CompletionQueue::stale), and
    /// [`clear`](super::SendQueue::clear) reports all requests from the signalled one on. For the
    /// case that the failure of an unsignalled request may be among the lost completions, see
    /// [`entries_lost`](super::CompletionQueue::entries_lost).
    pub retired: u32,
    /// Success or failure.
    pub result: Result<Success, Failure>,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'m>>,
}

static_assertions::const_assert!(size_of::<Completion<'static>>() <= 40);

impl Completion<'_> {
    /// Copies the completion field by field, through a pointer that is opaque to the compiler. A
    /// function that is not inlined returns its result in memory; moved as a whole, it would force
    /// the results of inlined code in other branches into memory too.
    #[inline(always)]
    pub(super) fn unpacked(self) -> Self {
        let completion = ManuallyDrop::new(self);
        let completion = black_box(&raw const *completion);
        // SAFETY: points to the local above; each field is read once, and the whole is not dropped.
        unsafe {
            Self {
                wr_id: (&raw const (*completion).wr_id).read(),
                qp_num: (&raw const (*completion).qp_num).read(),
                retired: (&raw const (*completion).retired).read(),
                result: (&raw const (*completion).result).read(),
                block: (&raw const (*completion).block).read(),
            }
        }
    }

    /// The status, by its verbs number.
    #[inline]
    pub fn status(&self) -> WcStatus {
        match &self.result {
            Ok(_) => WcStatus::Success,
            Err(failure) => failure.status,
        }
    }
}

/// The outcome of an executed request. Its fields are decoded when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Success {
    /// The operation that completed.
    pub opcode: WcOpcode,
    /// The last byte of the CQE: opcode, format, solicited, owner.
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

    /// The outcome of a request whose completion has only a byte count.
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

    /// Returns all fields, for callers that store them in a format of their own: opcode number,
    /// last byte of the CQE, source LID; then the byte count in big-endian order, the immediate
    /// data or invalidated key, and the word with the source QP number, both as in the CQE.
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

    /// Rebuilds what [`to_raw`](Self::to_raw) returned. `None`: there is no such opcode.
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

    /// Bytes received, or returned by an RDMA READ or atomic. `None` for SENDs and RDMA WRITEs.
    #[inline]
    pub fn byte_len(&self) -> Option<u32> {
        self.opcode.byte_len(self.byte_cnt.get())
    }

    /// The immediate data or invalidated key of a received message.
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

    /// The source QP number of a received message. `None` where inline payload takes its place in
    /// the CQE.
    #[inline]
    pub fn src_qp(&self) -> Option<u32> {
        self.source().map(|source| source.qpn)
    }

    /// The source of a received message. `None` where inline payload takes its place in the CQE.
    /// Devices report the full source only for datagrams. The destination path bits are not kept:
    /// they read as zero, which they are on ports with a single LID.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        // Payload inline in the CQE overwrites the source fields.
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

/// What [`Success::to_raw`] returns, of a completion that is still in its queue: each method reads its
/// fields from the CQE, so that a caller stores them one by one and holds none of them.
#[derive(Clone, Copy, Debug)]
pub struct RawSuccess<'q> {
    opcode: WcOpcode,
    cqe: &'q Cqe64,
}

impl<'q> RawSuccess<'q> {
    #[inline(always)]
    pub(super) fn new(opcode: WcOpcode, cqe: &'q Cqe64) -> Self {
        Self { opcode, cqe }
    }

    /// Opcode number, last byte of the CQE, source LID.
    #[inline(always)]
    pub fn head(&self) -> (u8, u8, u16) {
        (self.opcode.number(), self.cqe.op_own(), self.cqe.slid())
    }

    /// The byte count, in big-endian order.
    #[inline(always)]
    pub fn byte_cnt(&self) -> u32 {
        self.cqe.byte_cnt().to_be()
    }

    /// The immediate data or invalidated key, as in the CQE.
    #[inline(always)]
    pub fn imm(&self) -> u32 {
        self.cqe.imm().to_raw()
    }

    /// The word with the source QP number, as in the CQE.
    #[inline(always)]
    pub fn source(&self) -> u32 {
        self.cqe.flags_rqpn().to_raw()
    }
}

/// The immediate data or invalidated key of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imm {
    /// Nothing.
    None,
    /// Immediate data, in the byte order of the sender's memory.
    Data(Be32),
    /// The local key that was invalidated.
    Invalidated(u32),
}

/// The outcome of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The verbs status.
    pub status: WcStatus,
    /// The device's own error code. For a request that a device of libibverbs did not take, the error number of the
    /// call that posts.
    pub vendor_err: u8,
    /// The syndrome from which the status was derived, which may be more precise.
    pub syndrome: Syndrome,
    /// The request's counter in its send or receive queue, by which its entry can be read
    /// ([`SendQueue::entry`](super::SendQueue::entry)). In a shared receive queue, the index of the
    /// entry.
    pub counter: u32,
    /// Whether it is a receive request.
    pub is_recv: bool,
}

/// A request that was not reported when the life of its queue ended.
#[derive(Debug)]
#[must_use = "it holds the request's buffer"]
pub struct Unfinished<'m> {
    /// The caller's identifier of the request.
    pub wr_id: u64,
    /// Its counter in its queue, by which its entry can be read until the next post.
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

impl Fault {
    /// A failed completion that a poll reported, on a queue pair of this transport.
    pub const fn completion(failure: &Failure, transport: QpType, queue: WorkQueue) -> Self {
        Self::Status {
            status: failure.status,
            transport,
            queue,
            vendor: None,
        }
    }
}
