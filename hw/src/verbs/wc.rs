//! Completions of libibverbs, as entries in the ConnectX format. Only those fields are read that the
//! kind of request has.

use super::calls::Poller;
use super::sys;
use super::tag::Kind;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Source};
use bellwire_core::wqe::opcode;
use bellwire_core::wr::WcStatus;

/// The fields of a completion: of an `ibv_wc`, or of the one that an extended queue stands at.
pub(super) trait Fields {
    fn wr_id(&self) -> u64;
    fn status(&self) -> u32;
    fn opcode(&self) -> u32;
    fn vendor_err(&self) -> u32;
    fn byte_len(&self) -> u32;
    /// As it came.
    fn imm(&self) -> u32;
    fn qp_num(&self) -> u32;
    fn src_qp(&self) -> u32;
    fn flags(&self) -> u32;
    fn slid(&self) -> u16;
    fn sl(&self) -> u8;
    fn path_bits(&self) -> u8;
}

impl Fields for sys::ibv_wc {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn status(&self) -> u32 {
        self.status
    }

    fn opcode(&self) -> u32 {
        self.opcode
    }

    fn vendor_err(&self) -> u32 {
        self.vendor_err
    }

    fn byte_len(&self) -> u32 {
        self.byte_len
    }

    fn imm(&self) -> u32 {
        // SAFETY: both variants are 32 plain bits.
        unsafe { self.imm_data_invalidated_rkey_union.imm_data }
    }

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn src_qp(&self) -> u32 {
        self.src_qp
    }

    fn flags(&self) -> u32 {
        self.wc_flags
    }

    fn slid(&self) -> u16 {
        self.slid
    }

    fn sl(&self) -> u8 {
        self.sl
    }

    fn path_bits(&self) -> u8 {
        self.dlid_path_bits
    }
}

/// An extended queue between start and end of a poll, which stands at a completion.
pub(super) struct Extended(Poller);

impl Extended {
    /// The device's next completion.
    ///
    /// Without `ibv_next_poll`: where that finds none, rxe in libibverbs 44 unlocks the queue and moves
    /// on, and `ibv_end_poll` does so again, so that an entry is lost. More at once would be polls of
    /// their own, and cost a look too many where there are no more.
    ///
    /// # Safety
    /// The queue outlives this, was created with all fields, and nobody else polls it; `attr` has
    /// nothing in it.
    #[inline(always)]
    pub unsafe fn start(cq: Poller, attr: *mut sys::ibv_poll_cq_attr) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::try_start(cq, attr) }.ok()
    }

    /// As [`start`](Self::start); where nothing is there (`ENOENT`), or it failed, what libibverbs
    /// answers. There is nothing to end then.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn try_start(cq: Poller, attr: *mut sys::ibv_poll_cq_attr) -> Result<Self, i32> {
        // SAFETY: the caller's promise.
        match unsafe { cq.start(attr) } {
            0 => Ok(Self(cq)),
            answer => Err(answer),
        }
    }
}

impl Drop for Extended {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: started.
        unsafe { self.0.end() };
    }
}

macro_rules! extended {
    ($($name:ident: $ty:ty = $verb:ident;)*) => {$(
        #[inline(always)]
        fn $name(&self) -> $ty {
            // SAFETY: the queue stands at an entry, and was created with this field.
            unsafe { sys::$verb(self.0.as_ptr()) as $ty }
        }
    )*};
}

impl Fields for Extended {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        // SAFETY: the queue stands at an entry.
        unsafe { (*self.0.as_ptr()).wr_id }
    }

    #[inline(always)]
    fn status(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).status }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        // SAFETY: the queue stands at an entry, and was created with this field.
        unsafe { self.0.byte_len() }
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        // SAFETY: the queue stands at an entry.
        unsafe { self.0.wc_flags() }
    }

    extended! {
        opcode: u32 = ibv_wc_read_opcode;
        vendor_err: u32 = ibv_wc_read_vendor_err;
        imm: u32 = ibv_wc_read_imm_data;
        qp_num: u32 = ibv_wc_read_qp_num;
        src_qp: u32 = ibv_wc_read_src_qp;
        slid: u16 = ibv_wc_read_slid;
        sl: u8 = ibv_wc_read_sl;
        path_bits: u8 = ibv_wc_read_dlid_path_bits;
    }
}

fn named(user_index: u32, counter: u32) -> CompletedWqe {
    // The ledger knows.
    of_qp(0, user_index, counter)
}

fn of_qp(qpn: u32, user_index: u32, counter: u32) -> CompletedWqe {
    CompletedWqe {
        qpn,
        user_index,
        wqe_counter: counter as u16,
    }
}

/// A send request that brings nothing. What it was the ledger knows.
pub(super) fn sent(user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::requester(named(user_index, counter), opcode::NOP, 0)
}

/// A READ or an atomic.
pub(super) fn fetched(bytes: u32, user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::requester(named(user_index, counter), opcode::RDMA_READ, bytes)
}

const WITH_IMM: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
const WITH_INV: u32 = sys::ibv_wc_flags::IBV_WC_WITH_INV.0;

/// Whether a receive brings bytes and nothing else.
#[inline(always)]
pub(super) fn is_plain(wc: &impl Fields) -> bool {
    wc.flags() & (WITH_IMM | WITH_INV) == 0
}

/// A [plain](is_plain) receive of a connection.
pub(super) fn plain(bytes: u32, user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::responder(CqeOpcode::RespSend, named(user_index, counter), bytes)
}

/// A receive of a connection.
pub(super) fn received(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    received_by(wc, named(user_index, counter))
}

/// A receive of XRC, which came by the target that the completion names.
pub(super) fn received_by_target(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    received_by(wc, of_qp(wc.qp_num(), user_index, counter))
}

fn received_by(wc: &impl Fields, wqe: CompletedWqe) -> Cqe64 {
    const WRITTEN: u32 = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    if is_plain(wc) {
        return Cqe64::responder(CqeOpcode::RespSend, wqe, wc.byte_len());
    }
    if wc.flags() & WITH_INV != 0 {
        let key = Be32::new(wc.imm());
        return Cqe64::responder(CqeOpcode::RespSendInv, wqe, wc.byte_len()).with_imm(key);
    }
    let opcode = match wc.opcode() {
        WRITTEN => CqeOpcode::RespWrImm,
        _ => CqeOpcode::RespSendImm,
    };
    Cqe64::responder(opcode, wqe, wc.byte_len()).with_imm(Be32::from_raw(wc.imm()))
}

/// A receive of datagrams.
pub(super) fn datagram(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    received(wc, user_index, counter).with_source(Source {
        qpn: wc.src_qp(),
        slid: wc.slid(),
        sl: wc.sl(),
        dlid_path_bits: wc.path_bits(),
        grh: wc.flags() & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0,
    })
}

/// A request that failed. A status that is not known is told as a general error.
#[cold]
pub(super) fn failed(wc: &impl Fields, kind: Kind, user_index: u32, counter: u32) -> Cqe64 {
    let status = u8::try_from(wc.status())
        .ok()
        .and_then(WcStatus::from_number);
    let status = match status {
        Some(WcStatus::Success) | None => WcStatus::GeneralErr,
        Some(status) => status,
    };
    let opcode = match kind {
        Kind::Send | Kind::Fetch | Kind::LastSend => CqeOpcode::ReqErr,
        Kind::Recv | Kind::Datagram | Kind::Shared | Kind::LastRecv | Kind::Xrc => {
            CqeOpcode::RespErr
        }
    };
    let wqe = match kind {
        Kind::Xrc => of_qp(wc.qp_num(), user_index, counter),
        _ => named(user_index, counter),
    };
    Cqe64::failed(opcode, wqe, 0, status, wc.vendor_err() as u8)
}

/// A send request that the device did not take.
#[cold]
pub(super) fn refused(kind: Kind, user_index: u32, counter: u32, status: WcStatus) -> Cqe64 {
    let opcode = match kind {
        Kind::Recv => CqeOpcode::RespErr,
        _ => CqeOpcode::ReqErr,
    };
    Cqe64::failed(opcode, named(user_index, counter), 0, status, 0)
}
