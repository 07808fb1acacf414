//! Polling what is read when it is asked for.

use crate::code::{BW_EINVAL, BW_ENULL, BW_OK};
use crate::cq::bw_cq;
use crate::fault_number::bw_wc_status::BW_WC_SUCCESS;
use crate::wc::{Told, bw_wc, poll, poll_one};
use hw::queue::{Completion, Plain, Success};
use std::ffi::c_int;

/// What became of a request, with what most programs ask for: quicker to poll than a `bw_wc`, and
/// `bw_completion_wc` makes one of it. `bw_completion_byte_len` says how many bytes came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_completion {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// As in `bw_wc`: requests that this tells of.
    pub retired: u32,
    /// A `bw_wc_status`.
    pub status: u32,
    /// The device's own code of an error.
    pub vendor_err: u32,
    /// What completed: a `bw_wc_opcode`. Of an error 0.
    pub opcode: u8,
    /// The library's, as all below: `bw_completion_wc` reads them.
    pub entry: u8,
    /// The library's.
    pub slid: u16,
    /// The library's.
    pub byte_cnt: u32,
    /// The library's.
    pub imm: u32,
    /// The library's.
    pub source: u32,
}

impl From<Completion<'_>> for bw_completion {
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
            Ok(success) => {
                let (opcode, entry, slid, [byte_cnt, imm, source]) = success.to_raw();
                Self {
                    opcode,
                    entry,
                    slid,
                    byte_cnt,
                    imm,
                    source,
                    ..told
                }
            }
            Err(failure) => Self {
                status: failure.status.number().into(),
                vendor_err: failure.vendor_err.into(),
                ..told
            },
        }
    }
}

impl Told for bw_completion {
    #[inline(always)]
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>) {
        // Field by field, so that no register waits for another.
        // SAFETY: the caller's promise.
        unsafe {
            (&raw mut (*to).wr_id).write(plain.wr_id());
            (&raw mut (*to).qp_num).write(plain.qp_num());
            (&raw mut (*to).retired).write(1);
            (&raw mut (*to).status).write(0);
            (&raw mut (*to).vendor_err).write(0);
            let (opcode, entry, slid) = plain.raw_head();
            (&raw mut (*to).opcode).write(opcode);
            (&raw mut (*to).entry).write(entry);
            (&raw mut (*to).slid).write(slid);
            (&raw mut (*to).byte_cnt).write(plain.raw_byte_cnt());
            (&raw mut (*to).imm).write(plain.raw_imm());
            (&raw mut (*to).source).write(plain.raw_source());
        }
    }
}

/// As `bw_poll_one`, and reads of the completion only what every one has.
///
/// Errors: `BW_ENULL`.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_completion(
    cq: *mut bw_cq,
    completion: *mut bw_completion,
) -> c_int {
    // SAFETY: the header on handles; the caller owns the completion queue.
    unsafe { poll_one(cq, completion) }
}

/// As `bw_poll`, and reads of the completions only what every one has.
///
/// Errors: `BW_ENULL`. A `max` of 0 or less takes none.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_completions(
    cq: *mut bw_cq,
    completions: *mut bw_completion,
    max: c_int,
) -> c_int {
    // SAFETY: the header on handles and arrays; the caller owns the completion queue.
    unsafe { poll(cq, completions, max) }
}

/// All that is known of a completion, in the form that `bw_poll` has.
///
/// Errors: `BW_ENULL`; `BW_EINVAL` for an `opcode` that no poll has written.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_completion_wc(
    completion: *const bw_completion,
    wc: *mut bw_wc,
) -> c_int {
    // SAFETY: NULL, or a completion.
    let Some(&told) = (unsafe { completion.as_ref() }) else {
        return BW_ENULL as c_int;
    };
    if wc.is_null() {
        return BW_ENULL as c_int;
    }
    let mut all = bw_wc {
        wr_id: told.wr_id,
        status: told.status,
        vendor_err: told.vendor_err,
        qp_num: told.qp_num,
        retired: told.retired,
        ..bw_wc::default()
    };
    if told.status == BW_WC_SUCCESS as u32 {
        let words = [told.byte_cnt, told.imm, told.source];
        let success = Success::from_raw(told.opcode, told.entry, told.slid, words);
        let Some(success) = success else {
            return BW_EINVAL as c_int;
        };
        all = all.of_success(&success);
    }
    // SAFETY: a place for one.
    unsafe { wc.write(all) };
    BW_OK as c_int
}
