//! Polling work completions.

use crate::array::{Element, poll_older};
use crate::code::BW_ENULL;
use crate::cq::bw_cq;
use crate::number::bw_wc_flags::{BW_WC_GRH, BW_WC_WITH_IMM, BW_WC_WITH_INV};
use hw::cqe::Source;
use hw::queue::{Completion, Failure, Imm, Plain, Success};
use std::ffi::c_int;
use std::mem::offset_of;

/// A work completion (`ibv_wc`). Every posted request is reported exactly once. A completion of its
/// own, a later completion that retires it, or `bw_qp_reset` reports it.
///
/// If `status` is not BW_WC_SUCCESS the verbs define only `wr_id`, `status`, `vendor_err` and `qp_num`.
/// Of the other fields only `retired`, which is bellwire's, is set; the rest is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_wc {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// A `bw_wc_status`.
    pub status: u32,
    /// What completed: a `bw_wc_opcode`.
    pub opcode: u32,
    /// Bytes received, or returned by a READ or an atomic; otherwise 0.
    pub byte_len: u32,
    /// With BW_WC_WITH_IMM: immediate data, in network byte order. With BW_WC_WITH_INV: the key that
    /// the peer has invalidated. Otherwise 0.
    pub imm_data: u32,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// The device's own error code. For a request that a device of libibverbs did not take, the errno of the call
    /// that posts.
    pub vendor_err: u32,
    /// `bw_wc_flags`.
    pub wc_flags: u32,
    /// How many requests this completion retires: its own, and the unsignalled ones of the same queue
    /// that were posted before it and not reported yet. Those succeeded, whatever the status of this
    /// one. On a queue pair with `bw_qp_init_attr.suppress_flush`, however, those before a
    /// BW_WC_WR_FLUSH_ERR were flushed as well, or executed if they were posted before the first
    /// failure.
    pub retired: u32,
    /// The sender's queue pair of a received datagram; otherwise 0.
    pub src_qp: u32,
    /// The local identifier of a received datagram's sender; otherwise 0.
    pub slid: u16,
    /// Its service level.
    pub sl: u8,
    /// The port's local identifier, path bits, to which it was sent.
    pub dlid_path_bits: u8,
}

// SAFETY: repr(C), integers only.
unsafe impl Element for bw_wc {
    // The first size is that of a program that knows no datagrams.
    const SIZES: &'static [usize] = &[offset_of!(Self, src_qp), size_of::<Self>()];
}

/// The source in a completion that is not of a received message.
const NOBODY: Source = Source {
    qpn: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
    grh: false,
};

/// `imm_data` of a completion, and the flag in `wc_flags` that says what it holds.
#[inline(always)]
pub(crate) fn came(success: &Success) -> (u32, u32) {
    match success.imm() {
        Imm::None => (0, 0),
        Imm::Data(data) => (data.to_raw(), BW_WC_WITH_IMM as u32),
        Imm::Invalidated(key) => (key, BW_WC_WITH_INV as u32),
    }
}

impl bw_wc {
    /// Adds the fields of an executed request.
    #[inline(always)]
    pub(crate) fn of_success(self, success: &Success) -> Self {
        let common = Self {
            opcode: success.opcode.number().into(),
            byte_len: success.byte_len().unwrap_or(0),
            ..self
        };
        if !success.opcode.is_recv() {
            // Only receives have the fields below.
            return common;
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
            ..common
        }
    }
}

impl From<Completion<'_>> for bw_wc {
    #[inline(always)]
    fn from(completion: Completion<'_>) -> Self {
        // Requests posted from C have no block of a slab.
        std::mem::forget(completion.block);
        let common = Self {
            wr_id: completion.wr_id,
            qp_num: completion.qp_num,
            retired: completion.retired,
            ..Self::default()
        };
        match completion.result {
            Ok(success) => common.of_success(&success),
            Err(failure) => Self {
                status: failure.status.number().into(),
                vendor_err: failure.vendor_err.into(),
                ..common
            },
        }
    }
}

/// A form in which completions are written for the program.
pub(crate) trait Report: Element + for<'c> From<Completion<'c>> {
    /// Writes a completion that retires only its own request.
    ///
    /// # Safety
    /// `to` points to writable memory for one completion.
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>);
}

impl Report for bw_wc {
    #[inline(always)]
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>) {
        let common = Self {
            wr_id: plain.wr_id(),
            qp_num: plain.qp_num(),
            retired: 1,
            ..Self::default()
        };
        // SAFETY: the caller guarantees that `to` may be written.
        unsafe { to.write(common.of_success(&plain.success())) }
    }
}

/// Polls up to `max` completions into the array `to`, in the form of its elements.
///
/// # Safety
/// The caller keeps the header's conventions on handles and arrays, and owns the completion queue.
#[inline(always)]
pub(crate) unsafe fn poll<W: Report>(cq: *mut bw_cq, mut to: *mut W, max: c_int) -> c_int {
    if cq.is_null() || to.is_null() {
        return BW_ENULL as c_int;
    }
    let limit = usize::try_from(max).unwrap_or(0);
    // SAFETY: the caller keeps the header's conventions on handles and arrays, and owns the completion
    // queue.
    let (entered, cq) = unsafe { (&(*cq).entered, &raw mut (*cq).cq) };
    let _inside = match entered.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: the caller owns the completion queue.
    let cq = unsafe { &mut *cq };
    let count = cq.poll(limit, |completion| {
        // SAFETY: the array has room for `max` completions, and the queue returns no more.
        unsafe {
            write(to, completion);
            to = to.add(1);
        }
    });
    count as c_int
}

/// Writes a completion. Failures are written by a call: if both shared the stores, the values of
/// successes would take registers from the loop of a poll.
///
/// # Safety
/// `to` points to writable memory for one completion.
#[inline(always)]
unsafe fn write<W: Report>(to: *mut W, completion: Completion<'_>) {
    if let Err(failure) = completion.result {
        let (wr_id, qp_num, retired) = (completion.wr_id, completion.qp_num, completion.retired);
        // Requests posted from C have no block of a slab.
        std::mem::forget(completion.block);
        // SAFETY: the caller guarantees that `to` may be written.
        return unsafe { write_failed(to, wr_id, qp_num, retired, &failure) };
    }
    // SAFETY: the caller guarantees that `to` may be written.
    unsafe { to.write(completion.into()) };
}

/// # Safety
/// That of [`write`].
#[cold]
#[inline(never)]
unsafe fn write_failed<W: Report>(
    to: *mut W,
    wr_id: u64,
    qp_num: u32,
    retired: u32,
    failure: &Failure,
) {
    let failed = Completion {
        wr_id,
        qp_num,
        retired,
        result: Err(*failure),
        block: None,
    };
    // SAFETY: the caller guarantees that `to` may be written.
    unsafe { to.write(failed.into()) }
}

/// Polls one completion into `to`, in its form: returns 1, or 0 if there is none. The most frequent
/// completions are written without a call, so that no register is saved for them; the rest is done by
/// one function with the same arguments, which is reached by a jump.
///
/// # Safety
/// That of [`poll`].
#[inline(always)]
pub(crate) unsafe fn poll_one<W: Report>(cq: *mut bw_cq, to: *mut W) -> c_int {
    // Builds with debug assertions check here that two threads do not meet.
    if cfg!(not(debug_assertions)) && !cq.is_null() && !to.is_null() {
        // SAFETY: the caller keeps the header's conventions on handles, and owns the completion queue.
        if let Some(plain) = unsafe { (*cq).cq.plain() } {
            // SAFETY: not NULL; points to one completion.
            unsafe { W::put(to, &plain) };
            plain.take();
            return 1;
        }
    }
    // SAFETY: the caller guarantees what [`poll`] requires.
    unsafe { poll_any(cq, to) }
}

/// Does what [`poll_one`] does, for completions of any kind.
///
/// # Safety
/// That of [`poll`].
#[inline(never)]
unsafe extern "C" fn poll_any<W: Report>(cq: *mut bw_cq, to: *mut W) -> c_int {
    if cq.is_null() || to.is_null() {
        return BW_ENULL as c_int;
    }
    // SAFETY: not NULL, and a handle by the header's conventions.
    let _inside = match unsafe { &(*cq).entered }.enter() {
        Ok(inside) => inside,
        Err(code) => return code as c_int,
    };
    // SAFETY: the caller owns the completion queue.
    match unsafe { (*cq).cq.poll_one() } {
        Some(completion) => {
            // SAFETY: not NULL; points to one completion.
            unsafe { to.write(completion.into()) };
            1
        }
        None => 0,
    }
}

/// Polls one completion: returns 1, or 0 if there is none. It has no size: when `bw_wc` grows, a program
/// that is compiled with the header of that version calls another function by this name.
///
/// Errors: `BW_ENULL`.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_one(cq: *mut bw_cq, wc: *mut bw_wc) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the completion queue.
    unsafe { poll_one(cq, wc) }
}

/// `bw_poll` for completions of `size` bytes: polls up to `max` completions into the array `wc`, and
/// returns how many there were.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_sized(
    cq: *mut bw_cq,
    wc: *mut bw_wc,
    size: usize,
    max: c_int,
) -> c_int {
    if size != size_of::<bw_wc>() {
        // SAFETY: the header's conventions on handles; the caller owns the completion queue.
        let mut poll = |wc, max| unsafe { bw_poll_sized(cq, wc, size_of::<bw_wc>(), max) };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(wc, size, max, &mut poll) };
    }
    // SAFETY: the header's conventions on handles and arrays; the caller owns the completion queue.
    unsafe { poll(cq, wc, max) }
}
