//! Building CQEs, as a device (the software one, or a test) writes them.

use super::entry::{LOW_24, STATUS_MARK, head};
use super::{Cqe64, Cqe128, CqeFormat, CqeOpcode, Syndrome};
use crate::be::{Be16, Be32, Be64};
use crate::wr::WcStatus;

/// The request that a CQE is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletedWqe {
    /// The number of the local queue pair (24 bits).
    pub qpn: u32,
    /// The user index that was configured for the queue (24 bits).
    pub user_index: u32,
    /// For a send queue: the counter of the request's first basic block. For a shared receive
    /// queue: the slot.
    pub wqe_counter: u16,
}

/// The source of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The source QP number (24 bits).
    pub qpn: u32,
    /// The source LID.
    pub slid: u16,
    /// Service level (4 bits).
    pub sl: u8,
    /// The destination path bits: which of the port's LIDs the message was sent to (7 bits).
    pub dlid_path_bits: u8,
    /// Whether the message came with a GRH.
    pub grh: bool,
}

/// What a CQE of a success says that has neither payload nor source: few values, which
/// [`Cqe64::publish_plain`] writes to their places without putting the CQE together first.
#[derive(Clone, Copy, Debug)]
pub struct PlainCqe {
    /// The request. The number of its queue pair has no more than 24 bits.
    pub wqe: CompletedWqe,
    /// As for [`Cqe64::requester`]; 0 for receives.
    pub send_opcode: u8,
    /// As for [`Cqe64::with_imm`].
    pub imm: Be32,
    /// The number of bytes moved.
    pub byte_cnt: u32,
    op_own: u8,
}

impl PlainCqe {
    /// The same as [`Cqe64::requester`].
    #[inline(always)]
    pub const fn requester(wqe: CompletedWqe, send_opcode: u8, byte_cnt: u32) -> Self {
        Self {
            wqe,
            send_opcode,
            imm: Be32::new(0),
            byte_cnt,
            op_own: CqeOpcode::Req.number() << 4,
        }
    }

    /// The same as [`Cqe64::responder`], with what [`Cqe64::with_imm`] and
    /// [`Cqe64::with_solicited`] set.
    #[inline(always)]
    pub const fn responder(
        opcode: CqeOpcode,
        wqe: CompletedWqe,
        byte_cnt: u32,
        imm: Be32,
        solicited: bool,
    ) -> Self {
        Self {
            wqe,
            send_opcode: 0,
            imm,
            byte_cnt,
            op_own: opcode.number() << 4 | (solicited as u8) << 1,
        }
    }

    /// The same, with inline payload of `byte_cnt` bytes in the first half:
    /// [`Cqe64::publish_inline`] writes it.
    #[inline(always)]
    pub const fn with_inline(mut self) -> Self {
        self.op_own |= (CqeFormat::Inline32 as u8) << 2;
        self
    }

    /// The last byte, without the owner bit.
    #[inline(always)]
    pub const fn op_own(&self) -> u8 {
        self.op_own
    }

    /// The last eight bytes, with this last one: a word whose bytes in memory they are.
    #[inline(always)]
    pub(super) const fn last_word(&self, op_own: u8) -> u64 {
        debug_assert!(self.wqe.qpn <= LOW_24);
        let qpn = (self.send_opcode as u32) << 24 | self.wqe.qpn;
        let low = qpn.swap_bytes() as u64;
        let counter = self.wqe.wqe_counter.swap_bytes() as u64;
        (low | counter << 32 | (op_own as u64) << 56).to_le()
    }
}

impl Cqe64 {
    #[inline(always)]
    const fn new(opcode: CqeOpcode, wqe: CompletedWqe, send_opcode: u8) -> Self {
        Self {
            head: [0; 32],
            srqn_uidx: Be32::new(wqe.user_index & LOW_24),
            imm_inval_pkey: Be32::new(0),
            app: 0,
            app_op: 0,
            app_info: Be16::new(0),
            byte_cnt: Be32::new(0),
            timestamp: Be64::new(0),
            sop_drop_qpn: Be32::new((send_opcode as u32) << 24 | wqe.qpn & LOW_24),
            wqe_counter: Be16::new(wqe.wqe_counter),
            signature: 0,
            op_own: opcode.number() << 4,
        }
    }

    /// The last CQE of this ring: the completion queue continues in another one.
    pub const fn resized() -> Self {
        let nothing = CompletedWqe {
            qpn: 0,
            user_index: 0,
            wqe_counter: 0,
        };
        Self::new(CqeOpcode::ResizeCq, nothing, 0)
    }

    /// A send request was executed. `send_opcode` is the opcode of the send WQE, `byte_cnt` the
    /// number of bytes moved.
    #[inline(always)]
    pub const fn requester(wqe: CompletedWqe, send_opcode: u8, byte_cnt: u32) -> Self {
        let mut cqe = Self::new(CqeOpcode::Req, wqe, send_opcode);
        cqe.byte_cnt = Be32::new(byte_cnt);
        cqe
    }

    /// A message of `byte_cnt` bytes consumed a receive; `opcode` is one of the four `Resp` opcodes.
    #[inline(always)]
    pub const fn responder(opcode: CqeOpcode, wqe: CompletedWqe, byte_cnt: u32) -> Self {
        let mut cqe = Self::new(opcode, wqe, 0);
        cqe.byte_cnt = Be32::new(byte_cnt);
        cqe
    }

    /// A request failed; `opcode` is `ReqErr` or `RespErr`, `send_opcode` as in
    /// [`requester`](Self::requester) (0 for receives).
    #[inline(always)]
    pub const fn error(
        opcode: CqeOpcode,
        wqe: CompletedWqe,
        send_opcode: u8,
        syndrome: Syndrome,
        vendor_err_synd: u8,
    ) -> Self {
        let mut cqe = Self::new(opcode, wqe, send_opcode);
        cqe.timestamp = Be64::from_bytes([0, 0, 0, 0, 0, 0, vendor_err_synd, syndrome.0]);
        cqe
    }

    /// A request failed with this status, for callers that have a status and not a syndrome. The
    /// few statuses without a syndrome are stored in reserved bytes of the error CQE.
    #[inline]
    pub fn failed(
        opcode: CqeOpcode,
        wqe: CompletedWqe,
        send_opcode: u8,
        status: WcStatus,
        vendor_err_synd: u8,
    ) -> Self {
        let syndrome = Syndrome::of(status);
        let number = syndrome.unwrap_or(Syndrome::NONE);
        let mut cqe = Self::error(opcode, wqe, send_opcode, number, vendor_err_synd);
        if syndrome.is_none() {
            cqe.head[..8].copy_from_slice(&STATUS_MARK);
            cqe.head[8] = status.number();
        }
        cqe
    }

    /// Sets the immediate data, or (as a host value in a [`Be32`]) the invalidated rkey or the
    /// P_Key index.
    #[inline(always)]
    pub const fn with_imm(mut self, imm: Be32) -> Self {
        self.imm_inval_pkey = imm;
        self
    }

    /// Sets whether the sender requested a solicited event.
    #[inline(always)]
    pub const fn with_solicited(mut self, solicited: bool) -> Self {
        self.op_own = self.op_own & !2 | (solicited as u8) << 1;
        self
    }

    /// Sets the time of completion. Not for errors, whose syndrome is in the same field.
    #[inline(always)]
    pub const fn with_timestamp(mut self, ticks: u64) -> Self {
        self.timestamp = Be64::new(ticks);
        self
    }

    /// Sets the source. Shares its bytes with the payload of [`with_inline`](Self::with_inline).
    #[inline(always)]
    pub fn with_source(mut self, source: Source) -> Self {
        let flags = u32::from(source.grh) << 28 | u32::from(source.sl & 0xf) << 24;
        let flags_rqpn = flags | source.qpn & LOW_24;
        self.head[head::ML_PATH] = source.dlid_path_bits & 0x7f;
        self.head[head::SLID..][..2].copy_from_slice(&source.slid.to_be_bytes());
        self.head[head::FLAGS_RQPN..][..4].copy_from_slice(&flags_rqpn.to_be_bytes());
        self
    }

    /// Sets the inline payload in the first half. `None` if it is longer than 32 bytes.
    #[inline(always)]
    pub fn with_inline(mut self, payload: &[u8]) -> Option<Self> {
        self.head.get_mut(..payload.len())?.copy_from_slice(payload);
        self.set_inline(CqeFormat::Inline32, payload.len());
        Some(self)
    }

    /// Increases the byte count: for a datagram, the GRH counts too.
    #[inline(always)]
    pub const fn add_bytes(mut self, bytes: u32) -> Self {
        self.byte_cnt = Be32::new(self.byte_cnt.get().wrapping_add(bytes));
        self
    }

    /// The first half, for inline payload of as many bytes as the CQE already counts. Fill it
    /// before the CQE is published.
    #[inline(always)]
    pub fn inline_room(&mut self) -> &mut [u8; 32] {
        self.op_own = self.op_own & !0xc | (CqeFormat::Inline32 as u8) << 2;
        &mut self.head
    }

    #[inline(always)]
    fn set_inline(&mut self, format: CqeFormat, len: usize) {
        self.byte_cnt = Be32::new(len as u32);
        self.op_own = self.op_own & !0xc | (format as u8) << 2;
    }
}

impl Cqe128 {
    /// The CQE with its inline payload in front. `None` if it is longer than 64 bytes.
    #[inline(always)]
    pub fn with_inline(mut cqe: Cqe64, data: &[u8]) -> Option<Self> {
        let mut payload = [0; 64];
        payload.get_mut(..data.len())?.copy_from_slice(data);
        cqe.set_inline(CqeFormat::Inline64, data.len());
        Some(Self { payload, cqe })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::{WcOpcode, WcStatus};

    const WQE: CompletedWqe = CompletedWqe {
        qpn: 0xff12_3456,
        user_index: 0xff65_4321,
        wqe_counter: 0xfedc,
    };

    #[test]
    fn what_is_written_is_read() {
        let cqe = Cqe64::responder(CqeOpcode::RespSendImm, WQE, 4096)
            .with_imm(Be32::new(0xaabb_ccdd))
            .with_solicited(true)
            .with_timestamp(77)
            .with_source(Source {
                qpn: 0x77_8899,
                slid: 0x1234,
                sl: 0xb,
                dlid_path_bits: 0x55,
                grh: true,
            });
        assert_eq!(cqe.wc_opcode(), Some(WcOpcode::Recv));
        assert_eq!(cqe.status(), Some(WcStatus::Success));
        assert_eq!((cqe.qpn(), cqe.user_index()), (0x12_3456, 0x65_4321));
        assert_eq!((cqe.wqe_counter(), cqe.send_opcode()), (0xfedc, 0));
        assert_eq!((cqe.byte_len(), cqe.timestamp()), (Some(4096), 77));
        assert_eq!(cqe.imm().get(), 0xaabb_ccdd);
        assert_eq!((cqe.src_qpn(), cqe.slid()), (0x77_8899, 0x1234));
        assert_eq!((cqe.sl(), cqe.dlid_path_bits(), cqe.grh()), (0xb, 0x55, 1));
        assert!(cqe.solicited() && cqe.format() == CqeFormat::None && cqe.owner() == 0);
    }

    #[test]
    fn every_failure_has_an_entry() {
        for &status in WcStatus::ALL {
            if status == WcStatus::Success {
                continue;
            }
            let cqe = Cqe64::failed(CqeOpcode::RespErr, WQE, 0, status, 0x93);
            assert_eq!(cqe.status(), Some(status));
            assert_eq!((cqe.vendor_err_synd(), cqe.qpn()), (0x93, 0x12_3456));
        }
    }

    #[test]
    fn errors_have_their_syndrome() {
        for &syndrome in Syndrome::ALL {
            let cqe = Cqe64::error(CqeOpcode::ReqErr, WQE, 0x08, syndrome, 0x93);
            assert_eq!(cqe.status(), Some(syndrome.status()));
            assert_eq!((cqe.syndrome(), cqe.vendor_err_synd()), (syndrome, 0x93));
            assert_eq!((cqe.send_opcode(), cqe.wc_opcode()), (0x08, None));
            assert_eq!((cqe.byte_len(), cqe.qpn()), (None, 0x12_3456));
        }
    }
}
