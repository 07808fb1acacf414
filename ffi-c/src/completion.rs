//! Polling completions whose details are decoded on request.

use crate::array::{Element, one, poll_older, write_one};
use crate::code::BW_EINVAL;
use crate::cq::bw_cq;
use crate::fault_number::bw_wc_status::BW_WC_SUCCESS;
use crate::wc::{Report, bw_wc, poll, poll_one};
use hw::queue::{Completion, Plain, Success};
use std::ffi::c_int;
use std::mem::offset_of;

/// The completion of a request, with the fields that most programs use: faster to poll than a `bw_wc`.
/// `bw_completion_wc` converts it to one; `bw_completion_byte_len` returns how many bytes were
/// received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_completion {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// As in `bw_wc`: how many requests this completion retires.
    pub retired: u32,
    /// A `bw_wc_status`.
    pub status: u32,
    /// The device's own error code. For a request that a device of libibverbs did not take, the errno of the call
    /// that posts.
    pub vendor_err: u32,
    /// What completed: a `bw_wc_opcode`. 0 for an error.
    pub opcode: u8,
    /// For the library only, like all fields below: `bw_completion_wc` decodes them.
    pub entry: u8,
    /// For the library only.
    pub slid: u16,
    /// For the library only.
    pub byte_cnt: u32,
    /// For the library only.
    pub imm: u32,
    /// For the library only.
    pub source: u32,
}

const SIZE: usize = size_of::<bw_completion>();

// SAFETY: repr(C), integers only.
unsafe impl Element for bw_completion {
    // The first size is that of a program that knows neither immediate data nor datagrams.
    const SIZES: &'static [usize] = &[offset_of!(Self, imm), SIZE];
}

impl From<Completion<'_>> for bw_completion {
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
            Ok(success) => {
                let (opcode, entry, slid, [byte_cnt, imm, source]) = success.to_raw();
                Self {
                    opcode,
                    entry,
                    slid,
                    byte_cnt,
                    imm,
                    source,
                    ..common
                }
            }
            Err(failure) => Self {
                status: failure.status.number().into(),
                vendor_err: failure.vendor_err.into(),
                ..common
            },
        }
    }
}

impl Report for bw_completion {
    #[inline(always)]
    unsafe fn put(to: *mut Self, plain: &Plain<'_, '_>) {
        // Field by field, so that no store waits for another.
        // SAFETY: the caller guarantees that `to` may be written.
        unsafe {
            (&raw mut (*to).wr_id).write(plain.wr_id());
            (&raw mut (*to).qp_num).write(plain.qp_num());
            (&raw mut (*to).retired).write(1);
            (&raw mut (*to).status).write(0);
            (&raw mut (*to).vendor_err).write(0);
            let raw = plain.raw();
            let (opcode, entry, slid) = raw.head();
            (&raw mut (*to).opcode).write(opcode);
            (&raw mut (*to).entry).write(entry);
            (&raw mut (*to).slid).write(slid);
            (&raw mut (*to).byte_cnt).write(raw.byte_cnt());
            (&raw mut (*to).imm).write(raw.imm());
            (&raw mut (*to).source).write(raw.source());
        }
    }
}

/// As `bw_poll_one`, but decodes only the fields that every completion has. It has no size, as
/// `bw_poll_one`.
///
/// Errors: `BW_ENULL`.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_completion(
    cq: *mut bw_cq,
    completion: *mut bw_completion,
) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the completion queue.
    unsafe { poll_one(cq, completion) }
}

/// `bw_poll_completions` for completions of `size` bytes: as `bw_poll`, but decodes only the fields that
/// every completion has.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
/// Thread: the completion queue's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_completions_sized(
    cq: *mut bw_cq,
    completions: *mut bw_completion,
    size: usize,
    max: c_int,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles; the caller owns the completion queue.
        let mut poll = |to, max| unsafe { bw_poll_completions_sized(cq, to, SIZE, max) };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(completions, size, max, &mut poll) };
    }
    // SAFETY: the header's conventions on handles and arrays; the caller owns the completion queue.
    unsafe { poll(cq, completions, max) }
}

impl bw_completion {
    fn decoded(&self) -> Option<bw_wc> {
        let all = bw_wc {
            wr_id: self.wr_id,
            status: self.status,
            vendor_err: self.vendor_err,
            qp_num: self.qp_num,
            retired: self.retired,
            ..bw_wc::default()
        };
        if self.status != BW_WC_SUCCESS as u32 {
            return Some(all);
        }
        let words = [self.byte_cnt, self.imm, self.source];
        let success = Success::from_raw(self.opcode, self.entry, self.slid, words)?;
        Some(all.of_success(&success))
    }
}

/// `bw_completion_wc` for structs of these sizes: converts a completion to the form that `bw_poll`
/// writes, with all its details.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`; `BW_EINVAL` for an `opcode` that no poll writes.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_completion_wc_sized(
    completion: *const bw_completion,
    completion_size: usize,
    wc: *mut bw_wc,
    wc_size: usize,
) -> c_int {
    // SAFETY: NULL, or a struct of this size.
    unsafe {
        write_one(wc, wc_size, || {
            one(completion, completion_size)?.decoded().ok_or(BW_EINVAL)
        })
    }
}
