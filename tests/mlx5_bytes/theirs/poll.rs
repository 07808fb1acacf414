//! Polling, by `ibv_poll_cq` and by `ibv_start_poll`.

use super::*;

/// What was polled, as libibverbs has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data as it lies in memory, or the key that was invalidated.
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub flags: u32,
    /// Of `ibv_poll_cq` only.
    pub pkey_index: u16,
    pub slid: u32,
    pub sl: u8,
    pub path_bits: u8,
}

/// What a field holds that was not written.
pub const UNSET: u32 = 0xa5a5_a5a5;

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    Nothing,
    /// An error of the call itself.
    Failed(c_int),
    Completion(Wc),
}

impl Theirs<'_> {
    /// Polls one.
    pub fn poll(&self) -> Polled {
        // SAFETY: polled by this thread alone.
        unsafe {
            match self.way {
                Way::Legacy => self.poll_cq(),
                Way::Extended => self.start_poll(),
            }
        }
    }

    unsafe fn poll_cq(&self) -> Polled {
        // SAFETY: numbers; the queue is alive.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            (wc.status, wc.opcode) = (UNSET, UNSET);
            match ibv_poll_cq(self.cq.as_ptr(), 1, &raw mut wc) {
                0 => Polled::Nothing,
                1 => Polled::Completion(Wc {
                    wr_id: wc.wr_id,
                    status: wc.status,
                    opcode: wc.opcode,
                    vendor_err: wc.vendor_err,
                    byte_len: wc.byte_len,
                    imm: wc.imm_data_invalidated_rkey_union.imm_data,
                    qp_num: wc.qp_num,
                    src_qp: wc.src_qp,
                    flags: wc.wc_flags,
                    pkey_index: wc.pkey_index,
                    slid: wc.slid.into(),
                    sl: wc.sl,
                    path_bits: wc.dlid_path_bits,
                }),
                error => Polled::Failed(error),
            }
        }
    }

    unsafe fn start_poll(&self) -> Polled {
        let cq: *mut ibv_cq_ex = self.cq.as_ptr().cast();
        // SAFETY: an extended queue, alive, made with these fields.
        unsafe {
            (*cq).status = UNSET;
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            match ibv_start_poll(cq, &raw mut attr) {
                libc::ENOENT => return Polled::Nothing,
                0 => {}
                error => return Polled::Failed(error),
            }
            let mut wc = Wc {
                wr_id: (*cq).wr_id,
                status: (*cq).status,
                ..Wc::default()
            };
            if wc.status != UNSET {
                wc.opcode = ibv_wc_read_opcode(cq);
                wc.vendor_err = ibv_wc_read_vendor_err(cq);
                wc.byte_len = ibv_wc_read_byte_len(cq);
                wc.imm = ibv_wc_read_imm_data(cq);
                wc.qp_num = ibv_wc_read_qp_num(cq);
                wc.src_qp = ibv_wc_read_src_qp(cq);
                wc.flags = ibv_wc_read_wc_flags(cq);
                wc.slid = ibv_wc_read_slid(cq);
                wc.sl = ibv_wc_read_sl(cq);
                wc.path_bits = ibv_wc_read_dlid_path_bits(cq);
            }
            ibv_end_poll(cq);
            Polled::Completion(wc)
        }
    }
}
