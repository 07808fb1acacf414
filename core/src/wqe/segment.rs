//! The 16-byte segments that entries are made of, laid out as the device reads them.

use crate::be::{Be16, Be32, Be64};
use crate::wr::{Remote, Sge};
use static_assertions::const_assert_eq;

/// Bytes of a basic block, the unit in which a send queue is counted.
pub const BASIC_BLOCK: usize = 64;

/// Bytes of a segment, the unit of the entry's `ds` field.
pub const SEGMENT: usize = 16;

/// In `byte_count`: the bytes follow in the entry.
pub const INLINE_FLAG: u32 = 1 << 31;

/// Operation codes of send entries (`MLX5_OPCODE_*`).
pub mod opcode {
    use crate::wr::WrOpcode;

    /// Does nothing.
    pub const NOP: u8 = 0x00;
    /// SEND with invalidate.
    pub const SEND_INVAL: u8 = 0x01;
    /// RDMA WRITE.
    pub const RDMA_WRITE: u8 = 0x08;
    /// RDMA WRITE with immediate.
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate.
    pub const SEND_IMM: u8 = 0x0b;
    /// TCP segmentation; not posted by bellwire.
    pub const TSO: u8 = 0x0e;
    /// RDMA READ.
    pub const RDMA_READ: u8 = 0x10;
    /// Compare and swap.
    pub const ATOMIC_CS: u8 = 0x11;
    /// Fetch and add.
    pub const ATOMIC_FA: u8 = 0x12;
    /// Invalidation of a key in the form of older devices; bellwire posts UMR.
    pub const LOCAL_INVAL: u8 = 0x1b;
    /// Memory registration: LOCAL_INV and BIND_MW.
    pub const UMR: u8 = 0x25;

    /// The operation, as the verbs call it. `None` for what this crate does not post, and for [`UMR`],
    /// whose entry says which it is.
    pub const fn operation(code: u8) -> Option<WrOpcode> {
        Some(match code {
            NOP => WrOpcode::Nop,
            SEND_INVAL => WrOpcode::SendWithInv,
            RDMA_WRITE => WrOpcode::RdmaWrite,
            RDMA_WRITE_IMM => WrOpcode::RdmaWriteWithImm,
            SEND => WrOpcode::Send,
            SEND_IMM => WrOpcode::SendWithImm,
            RDMA_READ => WrOpcode::RdmaRead,
            ATOMIC_CS => WrOpcode::AtomicCmpAndSwp,
            ATOMIC_FA => WrOpcode::AtomicFetchAndAdd,
            _ => return None,
        })
    }
}

/// Bits of the control segment's `fm_ce_se`.
pub mod fm_ce_se {
    /// Solicited event at the receiver.
    pub const SOLICITED: u8 = 1 << 1;
    /// Completion mode 1: an entry when the request fails, but none when it is flushed. (Mode 0 writes one
    /// then, too.) SPDK calls it `CE_CQ_NO_FLUSH_ERROR`.
    pub const NO_FLUSH: u8 = 1 << 2;
    /// Completion mode 2: write a completion entry.
    pub const SIGNALED: u8 = 2 << 2;
    /// Wait for registration work before this entry.
    pub const INITIATOR_SMALL_FENCE: u8 = 1 << 5;
    /// Wait for all earlier READs and atomics.
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
    /// Modifier, free-running 16-bit block counter, operation code.
    pub opmod_idx_opcode: Be32,
    /// Queue pair number, and the entry's size in segments.
    pub qpn_ds: Be32,
    /// Entry checksum (unused), 16 reserved bits, and [`fm_ce_se`].
    pub signature_flags: Be32,
    /// Immediate, or key to invalidate.
    pub imm: Be32,
}

/// Target of a WRITE, READ or atomic.
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

/// Two words that follow each other, to be stored at once: a post is bound by how many stores it makes.
#[inline(always)]
fn pair(first: Be32, second: Be32) -> Be64 {
    Be64::new(u64::from(first.get()) << 32 | u64::from(second.get()))
}

impl CtrlSegment {
    /// The same, to be written in two stores.
    #[inline(always)]
    pub(super) fn words(self) -> [Be64; 2] {
        let flags_imm = pair(self.signature_flags, self.imm);
        [pair(self.opmod_idx_opcode, self.qpn_ds), flags_imm]
    }
}

impl RaddrSegment {
    /// As [`CtrlSegment::words`].
    #[inline(always)]
    pub(super) fn words(self) -> [Be64; 2] {
        [self.raddr, pair(self.rkey, self.reserved)]
    }
}

impl DataSegment {
    /// As [`CtrlSegment::words`].
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

/// The shared receive queue that an XRC request goes to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct XrcSegment {
    /// SRQ number, 24 bits.
    pub xrc_srqn: Be32,
    /// Reserved.
    pub reserved: [u8; 12],
}

/// Where a datagram goes (`mlx5_wqe_av`): key, queue pair, path, global route.
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
    /// Path bits of the source LID; on Ethernet bits of the source port.
    pub fl_mlid: u8,
    /// Destination LID; on Ethernet the source UDP port.
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
    /// In `dqp_dct`: the vector has its full 48 bytes.
    pub const EXTENDED: u32 = 1 << 31;
}

const_assert_eq!(size_of::<CtrlSegment>(), SEGMENT);
const_assert_eq!(size_of::<RaddrSegment>(), SEGMENT);
const_assert_eq!(size_of::<AtomicSegment>(), SEGMENT);
const_assert_eq!(size_of::<DataSegment>(), SEGMENT);
const_assert_eq!(size_of::<XrcSegment>(), SEGMENT);
const_assert_eq!(size_of::<AddressVector>(), 3 * SEGMENT);
