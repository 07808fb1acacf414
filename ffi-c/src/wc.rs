//! What a poll tells.

use crate::code::BW_ENULL;
use crate::cq::bw_cq;
use crate::number::bw_wc_flags::{BW_WC_GRH, BW_WC_WITH_IMM, BW_WC_WITH_INV};
use hw::cqe::Source;
use hw::queue::{Completion, Imm, Plain, Success};
use std::ffi::c_int;

/// What became of a request (`ibv_wc`). Every request that was posted and rung is told exactly once:
/// by an entry of its own, or as one of those that a later entry retires.
///
/// When `status` is not BW_WC_SUCCESS the verbs define no more than `wr_id`, `status`, `vendor_err`
/// and `qp_num`: of the others only `retired`, which is bellwire's, is set, the rest is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_wc {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// A `bw_wc_status`.
    pub status: u32,
    /// What completed: a `bw_wc_opcode`.
    pub opcode: u32,
    /// Bytes received, or brought by a READ or atomic; otherwise 0.
    pub byte_len: u32,
    /// With BW_WC_WITH_IMM: immediate data, in network byte order. With BW_WC_WITH_INV: the key that
    /// the peer has invalidated. Otherwise 0.
    pub imm_data: u32,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// The device's own code of an error.
    pub vendor_err: u32,
    /// `bw_wc_flags`.
    pub wc_flags: u32,
    /// Requests that this entry tells of: itself, and the unsignalled ones of the same queue that
    /// were posted before it and not yet told. Those succeeded, whatever became of this one.
    pub retired: u32,
    /// The sender's queue pair of a received datagram; otherwise 0.
    pub src_qp: u32,
    /// The local identifier of a received datagram's sender; otherwise 0.
    pub slid: u16,
    /// Its service level.
    pub sl: u8,
    /// Which of the port's local identifiers it was sent to.
    pub dlid_path_bits: u8,
}

/// Where a completion came from that is not of a received message.
const NOBODY: Source = Source {
    qpn: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
    grh: false,
};

/// `imm_data` of a completion, and what of `wc_flags` says what it is.
#[inline(always)]
pub(crate) fn came(success: &Success) -> (u32, u32) {
    match success.imm() {
        Imm::None => (0, 0),
        Imm::Data(data) => (data.to_raw(), BW_WC_WITH_IMM as u32),
        Imm::Invalidated(key) => (key, BW_WC_WITH_INV as u32),
    }
}

impl bw_wc {
    /// Of an executed request.
    #[inline(always)]
    pub(crate) fn of_success(self, success: &Success) -> Self {
        let told = Self {
            opcode: success.opcode.number().into(),
            byte_len: success.byte_len().unwrap_or(0),
            ..self
        };
        if !success.opcode.is_recv() {
            // Nothing came with it.
            return told;
        }
        let (imm_data, came) = came(success);
        let from = success.source().unwrap_or(NOBODY);
        let grh = if from.grh { BW_WC_GRH as u32 } else { 0 };
        Self {
            imm_data,
            wc_flags: came | grh,
            src_qp: from.qpn,
            slid: from.slid,
            sl: from.sl,
            dlid_path_bits: from.dlid_path_bits,
            ..told
        }
    }
}

impl From<Completion<'_>> for bw_wc {
    #[inline(always)]
    fn from(completion: Completion<'_>) -> Self {
        // What C posts has no block of a slab.
        std::mem::forget(completion.block);
        let told = Self {
            wr_id: completion.wr_id,
            qp_num: completion.qp_num,
            retired: completion.retired,
            ..Self::default()
        };
        match completion.result {
            Ok(success) => told.of_success(&success),
            Err(failure) => Self {
                status: failure.status.number().into(),
                vendor_err: failure.vendor_err.into(),
                ..told
            },
        }
    }
}

/// The form in which completions are told.
pub(crate) trait Told: for<'c> From<Completion<'c>> {
    /// Writes a plain one.
    ///
    /// # Safety
    /// `to` is a place for one.
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>);
}

impl Told for bw_wc {
    #[inline(always)]
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>) {
        let told = Self {
            wr_id: plain.wr_id(),
            qp_num: plain.qp_num(),
            retired: 1,
            ..Self::default()
        };
        // SAFETY: the caller's promise.
        unsafe { to.write(told.of_success(&plain.success())) }
    }
}

/// Takes up to `max` completions into the array `to`, in the form of its elements.
///
/// # Safety
/// The header on handles and arrays; the caller owns the completion queue.
#[inline(always)]
pub(crate) unsafe fn poll<W: Told>(cq: *mut bw_cq, mut to: *mut W, max: c_int) -> c_int {
    if cq.is_null() || to.is_null() {
        return BW_ENULL as c_int;
    }
    let limit = usize::try_from(max).unwrap_or(0);
    // SAFETY: the caller's promise.
    let (entered, cq) = unsafe { (&(*cq).entered, &raw mut (*cq).cq) };
    let _inside = match entered.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: as above.
    let cq = unsafe { &mut *cq };
    let count = cq.poll(limit, |completion| {
        // SAFETY: the array has `max` places, and the queue gives no more.
        unsafe {
            to.write(completion.into());
            to = to.add(1);
        }
    });
    count as c_int
}

/// Takes one completion into `to`, in its form: 1, or 0 when there is none. What most polls find is
/// taken without a call, so that no register is saved for it; the rest is one function's, which has the
/// same arguments and is jumped to.
///
/// # Safety
/// As [`poll`].
#[inline(always)]
pub(crate) unsafe fn poll_one<W: Told>(cq: *mut bw_cq, to: *mut W) -> c_int {
    // Builds with debug assertions tell where two threads meet.
    if cfg!(not(debug_assertions)) && !cq.is_null() && !to.is_null() {
        // SAFETY: the caller's promise.
        if let Some(plain) = unsafe { (*cq).cq.plain() } {
            // SAFETY: a place for one.
            unsafe { W::put(to, &plain) };
            plain.take();
            return 1;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { poll_any(cq, to) }
}

/// As [`poll_one`].
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn poll_any<W: Told>(cq: *mut bw_cq, to: *mut W) -> c_int {
    if cq.is_null() || to.is_null() {
        return BW_ENULL as c_int;
    }
    // SAFETY: the caller's promise.
    let _inside = match unsafe { &(*cq).entered }.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: as above.
    match unsafe { (*cq).cq.poll_one() } {
        Some(completion) => {
            // SAFETY: a place for one.
            unsafe { to.write(completion.into()) };
            1
        }
        None => 0,
    }
}

/// Takes one completion: 1 when there was one, 0 when there was none.
///
/// Errors: `BW_ENULL`.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_one(cq: *mut bw_cq, wc: *mut bw_wc) -> c_int {
    // SAFETY: the header on handles; the caller owns the completion queue.
    unsafe { poll_one(cq, wc) }
}

/// Takes up to `max` completions into the array `wc`, and answers how many there were.
///
/// Errors: `BW_ENULL`. A `max` of 0 or less takes none.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll(cq: *mut bw_cq, wc: *mut bw_wc, max: c_int) -> c_int {
    // SAFETY: the header on handles and arrays; the caller owns the completion queue.
    unsafe { poll(cq, wc, max) }
}
