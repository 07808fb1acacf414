//! The 64-byte descriptor of a completion.

use super::{CqeFormat, CqeOpcode, Syndrome, WcFlags, opcode};
use crate::be::{Be16, Be32, Be64};
use crate::wr::{WcOpcode, WcStatus};
use core::fmt;
use static_assertions::{assert_impl_all, const_assert_eq};

/// The low 24 bits, which hold queue numbers and user indices.
pub(super) const LOW_24: u32 = 0xff_ffff;

/// A CQE (`mlx5_cqe64`; `mlx5_err_cqe` where the opcode is an error).
///
/// ```text
///        +0          +4            +8            +12
///   0  │ ·    id   │ ·           │ ·           │ rss_hash              │ ┐ or 32 bytes of payload
///  16  │ ht ml · · │ check  slid │ flags_rqpn  │ hds  l4  vlan         │ ┘ (format 1)
///  32  │ user_index│ imm/rkey/pk │ app op info │ byte_cnt              │
///  48  │ timestamp               │ sop_drop_qpn│ wqe_counter sig op_own│
///
///      error entries:  +52 hw_err_synd  +53 hw_synd_type  +54 vendor_err_synd  +55 syndrome
///
///  flags_rqpn   31‥30 ·   29‥28 grh   27‥24 sl   23‥0 src_qpn
///  sop_drop_qpn 31‥24 opcode of the send entry   23‥0 qpn (or flow tag)
///  op_own       7‥4 opcode   3‥2 format   1 solicited   0 owner
/// ```
///
/// Every bit pattern is valid; the reader has to check the contents. All accessors are a load and a
/// mask.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Cqe64 {
    /// Raw, because three layouts share these bytes in C.
    pub(super) head: [u8; 32],
    pub(super) srqn_uidx: Be32,
    pub(super) imm_inval_pkey: Be32,
    pub(super) app: u8,
    pub(super) app_op: u8,
    pub(super) app_info: Be16,
    pub(super) byte_cnt: Be32,
    pub(super) timestamp: Be64,
    pub(super) sop_drop_qpn: Be32,
    pub(super) wqe_counter: Be16,
    pub(super) signature: u8,
    pub(super) op_own: u8,
}

const_assert_eq!(size_of::<Cqe64>(), 64);
const_assert_eq!(core::mem::offset_of!(Cqe64, srqn_uidx), 32);
const_assert_eq!(core::mem::offset_of!(Cqe64, imm_inval_pkey), 36);
const_assert_eq!(core::mem::offset_of!(Cqe64, app), 40);
const_assert_eq!(core::mem::offset_of!(Cqe64, app_op), 41);
const_assert_eq!(core::mem::offset_of!(Cqe64, app_info), 42);
const_assert_eq!(core::mem::offset_of!(Cqe64, byte_cnt), 44);
const_assert_eq!(core::mem::offset_of!(Cqe64, timestamp), 48);
const_assert_eq!(core::mem::offset_of!(Cqe64, sop_drop_qpn), 56);
const_assert_eq!(core::mem::offset_of!(Cqe64, wqe_counter), 60);
const_assert_eq!(core::mem::offset_of!(Cqe64, signature), 62);
const_assert_eq!(core::mem::offset_of!(Cqe64, op_own), 63);
assert_impl_all!(Cqe64: Send, Sync);

/// Precedes the status in an error CQE of a software device, where the status has no syndrome.
pub(super) const STATUS_MARK: [u8; 8] = *b"bellwire";

/// Byte offsets within the first half.
pub(super) mod head {
    pub const RSS_HASH: usize = 12;
    pub const RSS_HASH_TYPE: usize = 16;
    pub const ML_PATH: usize = 17;
    pub const CHECK_SUM: usize = 20;
    pub const SLID: usize = 22;
    pub const FLAGS_RQPN: usize = 24;
    pub const HDS_IP_EXT: usize = 28;
    pub const L4_HDR_TYPE_ETC: usize = 29;
    pub const VLAN: usize = 30;
}

impl Cqe64 {
    /// The CQE with these bytes in memory.
    #[inline(always)]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        // SAFETY: both are 64 bytes without padding, and every bit pattern of each is valid.
        unsafe { core::mem::transmute(bytes) }
    }

    /// The bytes in memory.
    #[inline(always)]
    pub const fn to_bytes(self) -> [u8; 64] {
        // SAFETY: both are 64 bytes without padding, and every bit pattern of each is valid.
        unsafe { core::mem::transmute(self) }
    }

    #[inline(always)]
    fn head_be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.head[at], self.head[at + 1]])
    }

    #[inline(always)]
    fn head_be32(&self, at: usize) -> u32 {
        let head = &self.head;
        u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
    }

    /// The last byte: opcode, format, solicited and owner bits.
    #[inline(always)]
    pub fn op_own(&self) -> u8 {
        self.op_own
    }

    /// The kind of completion.
    #[inline(always)]
    pub fn opcode(&self) -> CqeOpcode {
        CqeOpcode::from_bits(self.op_own >> 4)
    }

    /// What the CQE contains in addition to the descriptor.
    #[inline(always)]
    pub fn format(&self) -> CqeFormat {
        CqeFormat::from_bits(self.op_own >> 2)
    }

    /// Whether the sender asked for a solicited event.
    #[inline(always)]
    pub fn solicited(&self) -> bool {
        self.op_own & 2 != 0
    }

    /// The owner bit, which alternates with each lap; see [`is_sw_owned`](super::is_sw_owned).
    #[inline(always)]
    pub fn owner(&self) -> u8 {
        self.op_own & 1
    }

    /// For a send queue: the free-running counter of the request's first basic block. For a shared
    /// receive queue: the slot. Mask and check it before using it as an index.
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        self.wqe_counter.get()
    }

    /// Byte count, as the device wrote it. [`byte_len`](Self::byte_len) returns it only where it is
    /// valid.
    #[inline(always)]
    pub fn byte_cnt(&self) -> u32 {
        self.byte_cnt.get()
    }

    /// The 24-bit user index that was configured for the queue pair or shared receive queue.
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        self.srqn_uidx.get() & LOW_24
    }

    /// Number of the local queue pair.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.sop_drop_qpn.get() & LOW_24
    }

    /// The word with [`user_index`](Self::user_index) in the byte order of the memory, for
    /// comparisons only. Devices write zero to its other bits, which are reserved.
    #[inline(always)]
    pub(crate) fn raw_user_index(&self) -> u32 {
        self.srqn_uidx.to_raw()
    }

    /// [`qpn`](Self::qpn) in the byte order of the memory, for comparisons only.
    #[inline(always)]
    pub(crate) fn raw_qpn(&self) -> u32 {
        self.sop_drop_qpn.to_raw().to_le() >> 8
    }

    /// The tag of the steering rule that matched, for raw packets. Shares its field with
    /// [`qpn`](Self::qpn).
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.qpn()
    }

    /// In a requester's CQE: the opcode of the send WQE that completed.
    #[inline(always)]
    pub fn send_opcode(&self) -> u8 {
        (self.sop_drop_qpn.get() >> 24) as u8
    }

    /// Immediate data, in network byte order.
    #[inline(always)]
    pub fn imm(&self) -> Be32 {
        self.imm_inval_pkey
    }

    /// The rkey that the message invalidated. Shares its field with [`imm`](Self::imm).
    #[inline(always)]
    pub fn inval_rkey(&self) -> u32 {
        self.imm_inval_pkey.get()
    }

    /// The P_Key index. Shares its field with [`imm`](Self::imm).
    #[inline(always)]
    pub fn pkey_index(&self) -> u16 {
        self.imm_inval_pkey.get() as u16
    }

    /// The application of the CQE: 1 is tag matching (`MLX5_CQE_APP_TAG_MATCHING`).
    #[inline(always)]
    pub fn app(&self) -> u8 {
        self.app
    }

    /// The application's operation.
    #[inline(always)]
    pub fn app_op(&self) -> u8 {
        self.app_op
    }

    /// The application's information.
    #[inline(always)]
    pub fn app_info(&self) -> u16 {
        self.app_info.get()
    }

    /// When the request completed, in ticks of the device's clock (nanoseconds for a real-time
    /// clock).
    #[inline(always)]
    pub fn timestamp(&self) -> u64 {
        self.timestamp.get()
    }

    /// The receive side scaling (RSS) hash.
    #[inline(always)]
    pub fn rss_hash(&self) -> u32 {
        self.head_be32(head::RSS_HASH)
    }

    /// The fields over which the hash was computed; 0 is none.
    #[inline(always)]
    pub fn rss_hash_type(&self) -> u8 {
        self.head[head::RSS_HASH_TYPE]
    }

    /// The one's complement checksum of the packet.
    #[inline(always)]
    pub fn check_sum(&self) -> u16 {
        self.head_be16(head::CHECK_SUM)
    }

    /// The source LID.
    #[inline(always)]
    pub fn slid(&self) -> u16 {
        self.head_be16(head::SLID)
    }

    /// The destination path bits: which of the port's LIDs the packet was sent to (7 bits).
    #[inline(always)]
    pub fn dlid_path_bits(&self) -> u8 {
        self.head[head::ML_PATH] & 0x7f
    }

    /// GRH bits, service level and source QP number, in the byte order of the CQE.
    #[inline(always)]
    pub fn flags_rqpn(&self) -> Be32 {
        const AT: usize = head::FLAGS_RQPN;
        let head = &self.head;
        Be32::from_bytes([head[AT], head[AT + 1], head[AT + 2], head[AT + 3]])
    }

    /// The source QP number.
    #[inline(always)]
    pub fn src_qpn(&self) -> u32 {
        self.head_be32(head::FLAGS_RQPN) & LOW_24
    }

    /// Service level (over Ethernet: the packet type).
    #[inline(always)]
    pub fn sl(&self) -> u8 {
        self.head[head::FLAGS_RQPN] & 0xf
    }

    /// Two bits; not zero where the message came with a GRH.
    #[inline(always)]
    pub fn grh(&self) -> u8 {
        self.head[head::FLAGS_RQPN] >> 4 & 3
    }

    /// The header checks that passed: bit 0 link, 1 network, 2 transport.
    #[inline(always)]
    pub fn headers_ok(&self) -> u8 {
        self.head[head::HDS_IP_EXT] & 7
    }

    /// Type of network header: 0 none, 1 IPv6, 2 IPv4.
    #[inline(always)]
    pub fn l3_hdr_type(&self) -> u8 {
        self.head[head::L4_HDR_TYPE_ETC] >> 2 & 3
    }

    /// Whether the IPv4 and the transport checksum are correct. Valid only for queue pairs for
    /// which the device checks them (raw packets).
    #[inline(always)]
    pub fn checksum_ok(&self) -> bool {
        self.headers_ok() & 6 == 6 && self.l3_hdr_type() == 2
    }

    /// The customer VLAN tag that was stripped.
    #[inline(always)]
    pub fn vlan(&self) -> u16 {
        self.head_be16(head::VLAN)
    }

    /// In an error CQE: the error syndrome.
    #[inline(always)]
    pub fn syndrome(&self) -> Syndrome {
        Syndrome(self.timestamp.to_bytes()[7])
    }

    /// In an error CQE: the vendor's error code.
    #[inline(always)]
    pub fn vendor_err_synd(&self) -> u8 {
        self.timestamp.to_bytes()[6]
    }

    /// The status of the request. `None` where the opcode is not that of a completed request.
    #[inline(always)]
    pub fn status(&self) -> Option<WcStatus> {
        let opcode = self.opcode();
        if opcode == CqeOpcode::Req || opcode.is_received() {
            Some(WcStatus::Success)
        } else if opcode.is_error() {
            Some(self.failure())
        } else {
            None
        }
    }

    /// The status of an error CQE. ConnectX devices leave its first bytes zero.
    pub(crate) fn failure(&self) -> WcStatus {
        let marked = self.head[..8] == STATUS_MARK && self.syndrome() == Syndrome::NONE;
        marked
            .then(|| WcStatus::from_number(self.head[8]))
            .flatten()
            .unwrap_or(self.syndrome().status())
    }

    /// The operation that completed. `None` for errors, for send opcodes that bellwire does not post,
    /// and for UMR, which is used for both LOCAL_INV and BIND_MW: the queue knows what was posted.
    #[inline(always)]
    pub fn wc_opcode(&self) -> Option<WcOpcode> {
        match self.opcode() {
            CqeOpcode::Req => opcode::of_send(self.send_opcode()),
            CqeOpcode::RespWrImm => Some(WcOpcode::RecvRdmaWithImm),
            CqeOpcode::RespSend | CqeOpcode::RespSendImm | CqeOpcode::RespSendInv => {
                Some(WcOpcode::Recv)
            }
            _ => None,
        }
    }

    /// Bytes received, or returned by an RDMA READ or atomic (always 8 for an atomic). `None` where
    /// the verbs define no length: SEND, RDMA WRITE, errors.
    #[inline(always)]
    pub fn byte_len(&self) -> Option<u32> {
        self.wc_opcode()?.byte_len(self.byte_cnt())
    }

    /// Which of the other fields are valid. Without `IP_CSUM_OK`, which the queue pair adds
    /// according to [`checksum_ok`](Self::checksum_ok).
    #[inline(always)]
    pub fn wc_flags(&self) -> WcFlags {
        let opcode = self.opcode();
        let mut flags = match opcode {
            CqeOpcode::Req if opcode::send_has_imm(self.send_opcode()) => WcFlags::WITH_IMM,
            CqeOpcode::RespWrImm | CqeOpcode::RespSendImm => WcFlags::WITH_IMM,
            CqeOpcode::RespSendInv => WcFlags::WITH_INV,
            _ => WcFlags::empty(),
        };
        flags.set(WcFlags::GRH, opcode.is_received() && self.grh() != 0);
        flags
    }
}

impl fmt::Debug for Cqe64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Cqe64");
        out.field("opcode", &self.opcode())
            .field("format", &self.format())
            .field("owner", &self.owner())
            .field("qpn", &format_args!("{:#x}", self.qpn()))
            .field("user_index", &format_args!("{:#x}", self.user_index()))
            .field("wqe_counter", &self.wqe_counter());
        if self.opcode().is_error() {
            out.field("syndrome", &self.syndrome())
                .field("vendor_err_synd", &self.vendor_err_synd());
        } else {
            out.field("send_opcode", &format_args!("{:#x}", self.send_opcode()))
                .field("byte_cnt", &self.byte_cnt())
                .field("imm", &self.imm());
        }
        out.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CQE whose byte at offset `i` is `i`.
    fn counting() -> Cqe64 {
        Cqe64::from_bytes(core::array::from_fn(|i| i as u8))
    }

    #[test]
    fn every_field_stands_where_the_picture_says() {
        let cqe = counting();
        assert_eq!(cqe.rss_hash(), 0x0c0d_0e0f);
        assert_eq!(cqe.rss_hash_type(), 16);
        assert_eq!(cqe.dlid_path_bits(), 17);
        assert_eq!(cqe.check_sum(), 0x1415);
        assert_eq!(cqe.slid(), 0x1617);
        assert_eq!((cqe.grh(), cqe.sl(), cqe.src_qpn()), (1, 8, 0x19_1a1b));
        assert_eq!((cqe.headers_ok(), cqe.l3_hdr_type()), (28 & 7, 29 >> 2 & 3));
        assert_eq!(cqe.vlan(), 0x1e1f);
        assert_eq!(cqe.user_index(), 0x21_2223);
        assert_eq!((cqe.inval_rkey(), cqe.pkey_index()), (0x2425_2627, 0x2627));
        assert_eq!(cqe.imm().to_bytes(), [36, 37, 38, 39]);
        assert_eq!((cqe.app(), cqe.app_op(), cqe.app_info()), (40, 41, 0x2a2b));
        assert_eq!(cqe.byte_cnt(), 0x2c2d_2e2f);
        assert_eq!(cqe.timestamp(), 0x3031_3233_3435_3637);
        assert_eq!((cqe.vendor_err_synd(), cqe.syndrome()), (54, Syndrome(55)));
        assert_eq!((cqe.send_opcode(), cqe.qpn()), (56, 0x39_3a3b));
        assert_eq!(cqe.wqe_counter(), 0x3c3d);
        assert_eq!((cqe.op_own(), cqe.opcode()), (63, CqeOpcode::RespSendImm));
        assert_eq!(cqe.format(), CqeFormat::Compressed);
        assert!(cqe.solicited() && cqe.owner() == 1);
        assert_eq!(cqe.to_bytes(), counting().to_bytes());
    }
}
