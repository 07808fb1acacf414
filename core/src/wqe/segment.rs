//! The segments of a WQE, in the layout that the device reads.

use crate::be::{Be16, Be32, Be64};
use crate::wr::{Remote, Sge};
use static_assertions::const_assert_eq;

/// Bytes of a basic block, the unit of a send queue's counters.
pub const BASIC_BLOCK: usize = 64;

/// Bytes of a segment, the unit of a WQE's `ds` field.
pub const SEGMENT: usize = 16;

/// Flag in `byte_count`: the bytes follow inline.
pub const INLINE_FLAG: u32 = 1 << 31;

/// Bits of the control segment's `fm_ce_se`.
pub mod fm_ce_se {
    /// Raise a solicited event at the receiver.
    pub const SOLICITED: u8 = 1 << 1;
    /// Completion mode 1: write a CQE when the request fails, but not when it is flushed. (Mode 0
    /// writes one then, too.) SPDK calls it `CE_CQ_NO_FLUSH_ERROR`.
    pub const NO_FLUSH: u8 = 1 << 2;
    /// Completion mode 2: always write a CQE.
    pub const SIGNALED: u8 = 2 << 2;
    /// Wait for earlier UMR work before this WQE.
    pub const INITIATOR_SMALL_FENCE: u8 = 1 << 5;
    /// Wait for all earlier RDMA READs and atomics.
    pub const FENCE: u8 = 4 << 5;
}

/// ```text
///  0            4            8          9      11         12          16
///  │ opmod idx  │ qpn ds     │ signature│  -   │ fm_ce_se │ imm       │
///  │ 8   16  op8│ 24   8     │          │      │          │ or key    │
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct CtrlSegment {
    /// Modifier, free-running 16-bit block counter, opcode.
    pub opmod_idx_opcode: Be32,
    /// Queue pair number, and the size of the WQE in segments.
    pub qpn_ds: Be32,
    /// WQE checksum (unused), 16 reserved bits, and [`fm_ce_se`].
    pub signature_flags: Be32,
    /// Immediate data, or key to invalidate.
    pub imm: Be32,
}

/// Target of an RDMA WRITE, RDMA READ or atomic.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct RaddrSegment {
    /// Remote address.
    pub raddr: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// Zero.
    pub reserved: Be32,
}

/// Operands of an atomic.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct AtomicSegment {
    /// Value to swap in, or to add.
    pub swap_add: Be64,
    /// Value to compare with.
    pub compare: Be64,
}

/// Pointer to local memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct DataSegment {
    /// Bytes.
    pub byte_count: Be32,
    /// Local key.
    pub lkey: Be32,
    /// Local address.
    pub addr: Be64,
}

/// Joins two adjacent words so that they are stored at once: the number of stores limits how fast
/// requests are posted.
#[inline(always)]
pub(super) fn pair(first: Be32, second: Be32) -> Be64 {
    Be64::new(u64::from(first.get()) << 32 | u64::from(second.get()))
}

impl RaddrSegment {
    /// The segment as two words, to be written by two stores.
    #[inline(always)]
    pub(super) fn words(self) -> [Be64; 2] {
        [self.raddr, pair(self.rkey, self.reserved)]
    }
}

impl DataSegment {
    /// The segment as two words, to be written by two stores.
    #[inline(always)]
    pub(super) fn words(self) -> [Be64; 2] {
        [pair(self.byte_count, self.lkey), self.addr]
    }
}

impl From<&Sge> for DataSegment {
    #[inline(always)]
    fn from(sge: &Sge) -> Self {
        Self {
            byte_count: Be32::new(sge.length),
            lkey: Be32::new(sge.lkey),
            addr: Be64::new(sge.addr),
        }
    }
}

impl From<RaddrSegment> for Remote {
    #[inline(always)]
    fn from(segment: RaddrSegment) -> Self {
        Self {
            addr: segment.raddr.get(),
            rkey: segment.rkey.get(),
        }
    }
}

impl From<DataSegment> for Sge {
    #[inline(always)]
    fn from(segment: DataSegment) -> Self {
        Self {
            addr: segment.addr.get(),
            length: segment.byte_count.get(),
            lkey: segment.lkey.get(),
        }
    }
}

/// The shared receive queue that an XRC request is for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct XrcSegment {
    /// SRQ number, 24 bits.
    pub xrc_srqn: Be32,
    /// Reserved.
    pub reserved: [u8; 12],
}

/// The destination of a datagram (`mlx5_wqe_av`): Q_Key, queue pair, path, global route.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct AddressVector {
    /// Q_Key (or the first half of a DC key).
    pub qkey: Be32,
    /// Zero (or the second half of a DC key).
    pub reserved: Be32,
    /// Destination queue pair, and [`AddressVector::EXTENDED`].
    pub dqp_dct: Be32,
    /// Static rate and service level.
    pub stat_rate_sl: u8,
    /// Path bits of the source LID; on Ethernet, bits of the UDP source port.
    pub fl_mlid: u8,
    /// Destination LID; on Ethernet, the UDP source port.
    pub rlid: Be16,
    /// Zero.
    pub reserved0: [u8; 4],
    /// Destination MAC address.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GRH present (bit 30), source GID index, flow label.
    pub grh_gid_fl: Be32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

impl AddressVector {
    /// Flag in `dqp_dct`: the vector has its full 48 bytes.
    pub const EXTENDED: u32 = 1 << 31;
}

const_assert_eq!(size_of::<CtrlSegment>(), SEGMENT);
const_assert_eq!(size_of::<RaddrSegment>(), SEGMENT);
const_assert_eq!(size_of::<AtomicSegment>(), SEGMENT);
const_assert_eq!(size_of::<DataSegment>(), SEGMENT);
const_assert_eq!(size_of::<XrcSegment>(), SEGMENT);
const_assert_eq!(size_of::<AddressVector>(), 3 * SEGMENT);
