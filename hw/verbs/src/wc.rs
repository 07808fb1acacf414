//! Completions of libibverbs, converted to entries in the ConnectX format. Only the fields that are valid for
//! the kind of request are read.

use super::calls::Poller;
use super::sys;
use super::tag::Kind;
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Source};
use bellwire_core::wqe::opcode;
use bellwire_core::wr::WcStatus;

/// The fields of a completion: of an `ibv_wc`, or of the current completion of an extended queue.
pub(super) trait Fields {
    fn wr_id(&self) -> u64;
    fn status(&self) -> u32;
    fn opcode(&self) -> u32;
    fn vendor_err(&self) -> u32;
    fn byte_len(&self) -> u32;
    /// As received, in network byte order.
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

/// An extended queue between start and end of a poll, with a current completion.
pub(super) struct Extended(Poller);

impl Extended {
    /// Starts a poll of the device's next completion.
    ///
    /// `ibv_next_poll` is not used: when it finds no completion, rxe in libibverbs 44 unlocks the queue and
    /// advances it, and `ibv_end_poll` does both again, so that an entry is lost. Polling several completions
    /// would take several such polls anyway, and one poll too many when there are no more.
    ///
    /// # Safety
    /// The queue outlives this, was created with all fields, and is polled by nothing else; `attr` has no
    /// field set.
    #[inline(always)]
    pub unsafe fn start(cq: Poller, attr: *mut sys::ibv_poll_cq_attr) -> Option<Self> {
        // SAFETY: the caller guarantees that the queue is alive, has all fields, and is polled by nothing
        // else.
        unsafe { Self::try_start(cq, attr) }.ok()
    }

    /// Starts a poll as [`start`](Self::start) does. If the queue is empty (`ENOENT`), or polling fails, the
    /// error is what libibverbs returned, and the poll must not be ended.
    ///
    /// # Safety
    /// Those of [`start`](Self::start).
    #[inline(always)]
    pub unsafe fn try_start(cq: Poller, attr: *mut sys::ibv_poll_cq_attr) -> Result<Self, i32> {
        // SAFETY: the caller guarantees that the queue is alive, has all fields, and is polled by nothing
        // else.
        match unsafe { cq.start(attr) } {
            0 => Ok(Self(cq)),
            answer => Err(answer),
        }
    }
}

impl Drop for Extended {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a poll was started.
        unsafe { self.0.end() };
    }
}

macro_rules! extended {
    ($($name:ident: $ty:ty = $verb:ident;)*) => {$(
        #[inline(always)]
        fn $name(&self) -> $ty {
            // SAFETY: the queue has a current completion, and was created with this field.
            unsafe { sys::$verb(self.0.as_ptr()) as $ty }
        }
    )*};
}

impl Fields for Extended {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        // SAFETY: the queue has a current completion.
        unsafe { (*self.0.as_ptr()).wr_id }
    }

    #[inline(always)]
    fn status(&self) -> u32 {
        // SAFETY: the queue has a current completion.
        unsafe { (*self.0.as_ptr()).status }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        // SAFETY: the queue has a current completion, and was created with this field.
        unsafe { self.0.byte_len() }
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        // SAFETY: the queue has a current completion.
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
    // The ledger knows the queue pair number.
    of_qp(0, user_index, counter)
}

fn of_qp(qpn: u32, user_index: u32, counter: u32) -> CompletedWqe {
    CompletedWqe {
        qpn,
        user_index,
        wqe_counter: counter as u16,
    }
}

/// A send request whose completion has no byte count. The ledger knows its operation.
pub(super) fn sent(user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::requester(named(user_index, counter), opcode::NOP, 0)
}

/// A READ or an atomic.
pub(super) fn fetched(bytes: u32, user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::requester(named(user_index, counter), opcode::RDMA_READ, bytes)
}

const WITH_IMM: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
const WITH_INV: u32 = sys::ibv_wc_flags::IBV_WC_WITH_INV.0;

/// An invalidated rkey, at a connected queue pair. rxe passes on the kernel's flag, whose number is that of IP_CSUM_OK
/// here. Receives of connected queue pairs do not have IP_CSUM_OK.
const INVALIDATES: u32 = WITH_INV | 1 << 2;

/// Whether a receive of a connected queue pair has a byte count, and neither immediate data nor an invalidated rkey.
#[inline(always)]
pub(super) fn is_plain(wc: &impl Fields) -> bool {
    wc.flags() & (WITH_IMM | INVALIDATES) == 0
}

/// A [plain](is_plain) receive of a connected queue pair.
pub(super) fn plain(bytes: u32, user_index: u32, counter: u32) -> Cqe64 {
    Cqe64::responder(CqeOpcode::RespSend, named(user_index, counter), bytes)
}

/// A receive of a connected queue pair.
pub(super) fn received(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    received_by(wc, named(user_index, counter))
}

/// A receive through XRC, by the target that the completion names.
pub(super) fn received_by_target(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    received_by(wc, of_qp(wc.qp_num(), user_index, counter))
}

fn received_by(wc: &impl Fields, wqe: CompletedWqe) -> Cqe64 {
    const WRITTEN: u32 = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    if is_plain(wc) {
        return Cqe64::responder(CqeOpcode::RespSend, wqe, wc.byte_len());
    }
    if wc.flags() & INVALIDATES != 0 {
        let key = Be32::new(wc.imm());
        return Cqe64::responder(CqeOpcode::RespSendInv, wqe, wc.byte_len()).with_imm(key);
    }
    let opcode = match wc.opcode() {
        WRITTEN => CqeOpcode::RespWrImm,
        _ => CqeOpcode::RespSendImm,
    };
    Cqe64::responder(opcode, wqe, wc.byte_len()).with_imm(Be32::from_raw(wc.imm()))
}

/// A receive of a datagram.
pub(super) fn datagram(wc: &impl Fields, user_index: u32, counter: u32) -> Cqe64 {
    let wqe = named(user_index, counter);
    let cqe = match wc.flags() & WITH_IMM {
        0 => Cqe64::responder(CqeOpcode::RespSend, wqe, wc.byte_len()),
        _ => {
            let imm = Be32::from_raw(wc.imm());
            Cqe64::responder(CqeOpcode::RespSendImm, wqe, wc.byte_len()).with_imm(imm)
        }
    };
    cqe.with_source(Source {
        qpn: wc.src_qp(),
        slid: wc.slid(),
        sl: wc.sl(),
        dlid_path_bits: wc.path_bits(),
        grh: wc.flags() & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0,
    })
}

/// A request that failed. An unknown status is reported as a general error.
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

/// A request that could not be posted to the device.
#[cold]
pub(super) fn refused(
    kind: Kind,
    user_index: u32,
    counter: u32,
    status: WcStatus,
    errno: u8,
) -> Cqe64 {
    let opcode = match kind {
        Kind::Recv => CqeOpcode::RespErr,
        _ => CqeOpcode::ReqErr,
    };
    Cqe64::failed(opcode, named(user_index, counter), 0, status, errno)
}
