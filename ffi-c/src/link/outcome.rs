//! The outcomes that a link reports.

use super::bw_link;
use crate::array::{Element, poll_older};
use crate::code::BW_ENULL;
use crate::failure::{Failure, guard, guard_poll};
use crate::handle::get_mut;
use crate::wc::came;
use hw::fault::outcome::{Doubt, Outcome};
use hw::link::LinkCompletion;
use std::ffi::{CStr, c_char, c_int};

/// The outcome of a request posted to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_outcome {
    /// Executed; the result of a READ or atomic has arrived.
    BW_OUTCOME_EXECUTED = 0,
    /// Failed with `bw_link_wc.status`, and not executed as a whole. A WRITE may have changed part of its
    /// target; a READ may have been executed, which has no lasting effect.
    BW_OUTCOME_FAILED = 1,
    /// Not executed, through no fault of the request: it may be posted again.
    BW_OUTCOME_NOT_EXECUTED = 2,
    /// Unknown, or the result is lost: `bw_link_wc.doubt` says why.
    BW_OUTCOME_IN_DOUBT = 3,
}

/// Why an outcome remains in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_doubt {
    /// It is not in doubt.
    BW_DOUBT_NONE = 0,
    /// Executed or not: no acknowledgement arrived. The request is after the last one that was
    /// certainly executed and before the first one that certainly was not.
    BW_DOUBT_NO_ANSWER = 1,
    /// A READ or atomic that was executed. Its result did not arrive, and that of an atomic is lost for
    /// good.
    BW_DOUBT_RESULT_LOST = 2,
    /// Executed or not: completions of the peer were lost, so that its count is a lower bound.
    BW_DOUBT_PEER_LOST_COUNT = 3,
    /// Executed or not: the peer's count contradicts the record of this end.
    BW_DOUBT_COUNT_CONTRADICTS = 4,
    /// Executed or not: the peer can no longer be asked.
    BW_DOUBT_PEER_GONE = 5,
    /// A local operation that may have been executed before the queue pair stopped.
    BW_DOUBT_LOCAL = 6,
    /// Executed or not: the program cancelled it before an acknowledgement arrived.
    BW_DOUBT_CANCELLED = 7,
    /// Executed or not: its deadline passed before an acknowledgement arrived.
    BW_DOUBT_DEADLINE_PASSED = 8,
}

fn doubt_number(doubt: Doubt) -> bw_doubt {
    use bw_doubt::*;
    match doubt {
        Doubt::NoAnswer => BW_DOUBT_NO_ANSWER,
        Doubt::ResultLost => BW_DOUBT_RESULT_LOST,
        Doubt::PeerLostCount => BW_DOUBT_PEER_LOST_COUNT,
        Doubt::CountContradicts => BW_DOUBT_COUNT_CONTRADICTS,
        Doubt::PeerGone => BW_DOUBT_PEER_GONE,
        Doubt::Local => BW_DOUBT_LOCAL,
        Doubt::Cancelled => BW_DOUBT_CANCELLED,
        Doubt::DeadlinePassed => BW_DOUBT_DEADLINE_PASSED,
    }
}

/// The outcome of a request posted to a link. Each signalled request, each receive, and each request
/// that did not complete successfully is reported once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_link_wc {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// A `bw_outcome`.
    pub outcome: u32,
    /// With BW_OUTCOME_IN_DOUBT, the reason: a `bw_doubt`. Otherwise BW_DOUBT_NONE.
    pub doubt: u32,
    /// With BW_OUTCOME_FAILED: a `bw_wc_status`. Otherwise 0.
    pub status: u32,
    /// The kind of request: a `bw_wc_opcode`. All receives have the bit BW_WC_RECV.
    pub opcode: u32,
    /// Bytes received, or returned by a READ or an atomic; otherwise 0. Also 0 if the request was
    /// executed, but its completion did not arrive.
    pub byte_len: u32,
    /// As `bw_wc.imm_data`.
    pub imm_data: u32,
    /// `bw_wc_flags`.
    pub wc_flags: u32,
    /// How many requests this outcome retires: its own, and unsignalled ones before it, which were
    /// executed. The sum over all outcomes is the number of posted requests.
    pub retired: u32,
}

const SIZE: usize = size_of::<bw_link_wc>();

// SAFETY: repr(C), integers only.
unsafe impl Element for bw_link_wc {
    const SIZES: &'static [usize] = &[SIZE];
}

impl From<LinkCompletion> for bw_link_wc {
    #[inline(always)]
    fn from(from: LinkCompletion) -> Self {
        // Requests posted from C have no block of a slab.
        let (outcome, doubt, status) = match from.outcome {
            Outcome::Done => (bw_outcome::BW_OUTCOME_EXECUTED, bw_doubt::BW_DOUBT_NONE, 0),
            Outcome::Failed(status) => (
                bw_outcome::BW_OUTCOME_FAILED,
                bw_doubt::BW_DOUBT_NONE,
                status.number().into(),
            ),
            Outcome::NotExecuted => (
                bw_outcome::BW_OUTCOME_NOT_EXECUTED,
                bw_doubt::BW_DOUBT_NONE,
                0,
            ),
            Outcome::InDoubt(doubt) => (bw_outcome::BW_OUTCOME_IN_DOUBT, doubt_number(doubt), 0),
        };
        let (byte_len, (imm_data, wc_flags)) = match &from.success {
            Some(success) => (success.byte_len().unwrap_or(0), came(success)),
            None => (0, (0, 0)),
        };
        Self {
            wr_id: from.wr_id,
            outcome: outcome as u32,
            doubt: doubt as u32,
            status,
            opcode: from.opcode.number().into(),
            byte_len,
            imm_data,
            wc_flags,
            retired: from.retired,
        }
    }
}

/// `bw_link_poll` for outcomes of `size` bytes: polls up to `max` outcomes into the array `wc`, and
/// returns how many there were. Never waits. Polls also connect and recover the link, and reply to
/// a peer that connects or recovers: without polls none of this happens.
///
/// A poll that finds completions does nothing else, and costs as much as `bw_poll`. A poll that finds a
/// fault, or continues a recovery, makes system calls, and calls the hooks.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_poll_sized(
    link: *mut bw_link,
    wc: *mut bw_link_wc,
    size: usize,
    max: c_int,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles; the caller owns the link.
        let mut poll = |wc, max| unsafe { bw_link_poll_sized(link, wc, SIZE, max) };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(wc, size, max, &mut poll) };
    }
    if link.is_null() || wc.is_null() {
        return BW_ENULL as c_int;
    }
    let mut place = wc;
    let limit = usize::try_from(max).unwrap_or(0);
    guard_poll(|| {
        // SAFETY: the header's conventions on handles; the caller owns the link.
        let link = unsafe { &mut (*link).link };
        // SAFETY: the array has room for `max` outcomes, and the link returns no more.
        let count = link.poll(limit, |completion| unsafe {
            place.write(completion.into());
            place = place.add(1);
        });
        Ok(count as c_int)
    })
}

/// Called by `bw_link_drain` for each request, with the `context` given there and the outcome of the
/// request, which is valid during the call. It has to return, and must not use the link.
pub type bw_link_wc_fn =
    Option<unsafe extern "C" fn(context: *mut std::ffi::c_void, wc: *const bw_link_wc)>;

/// Closes the link, and polls until everything has been reported, or the timeout expires: then the link
/// ends at once, and reports what it knows. Posted requests continue for up to three quarters of the
/// time, including a recovery; receives are reported as BW_OUTCOME_NOT_EXECUTED. When this returns the
/// memory of all requests belongs to the program again. `report`, unless NULL, is called for each
/// outcome. `retired`, unless NULL, is set to the number of requests that were reported: all that were
/// posted and not reported before, including unsignalled ones.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner. Not from a hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_drain(
    link: *mut bw_link,
    timeout_ms: u32,
    report: bw_link_wc_fn,
    context: *mut std::ffi::c_void,
    retired: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        let within = std::time::Duration::from_millis(timeout_ms.into());
        let drained = link.drain(within, |one| {
            if let Some(report) = report {
                let one = bw_link_wc::from(one);
                // SAFETY: the program's callback, with the context that it gave.
                unsafe { report(context, &one) }
            }
        });
        if !retired.is_null() {
            // SAFETY: not NULL; the program guarantees that a count may be written.
            unsafe { retired.write(drained.retired) };
        }
        Ok::<_, Failure>(())
    })
}

/// Name and text of each `bw_outcome`, by its number.
static OUTCOMES: [(&CStr, &CStr); 4] = [
    (c"EXECUTED", c"executed"),
    (c"FAILED", c"failed, and not executed as a whole"),
    (c"NOT_EXECUTED", c"not executed, by no fault of its own"),
    (
        c"IN_DOUBT",
        c"in doubt: executed or not, or its result is lost",
    ),
];

fn outcome_row(outcome: u32) -> Option<&'static (&'static CStr, &'static CStr)> {
    OUTCOMES.get(usize::try_from(outcome).ok()?)
}

/// What a `bw_outcome` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_outcome_str(outcome: u32) -> *const c_char {
    let unknown = c"not an outcome of this library";
    outcome_row(outcome).map_or(unknown, |row| row.1).as_ptr()
}

/// The name of a `bw_outcome`, without its prefix, for example "IN_DOUBT". "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_outcome_name(outcome: u32) -> *const c_char {
    outcome_row(outcome)
        .map_or(c"UNKNOWN", |row| row.0)
        .as_ptr()
}

/// Bytes of a text of [`DOUBTS`], including its NUL.
const TEXT: usize = 96;

/// Core's texts of [`Doubt::ALL`], each with its NUL.
static DOUBTS: [[u8; TEXT]; Doubt::ALL.len()] = {
    let mut texts = [[0; TEXT]; Doubt::ALL.len()];
    let mut row = 0;
    while row < texts.len() {
        let text = Doubt::ALL[row].text().as_bytes();
        assert!(text.len() < TEXT);
        let mut at = 0;
        while at < text.len() {
            texts[row][at] = text[at];
            at += 1;
        }
        row += 1;
    }
    texts
};

/// What a `bw_doubt` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_doubt_str(doubt: u32) -> *const c_char {
    if doubt == bw_doubt::BW_DOUBT_NONE as u32 {
        return c"it is not in doubt".as_ptr();
    }
    let known = Doubt::ALL
        .iter()
        .zip(&DOUBTS)
        .find(|(known, _)| doubt_number(**known) as u32 == doubt);
    known.map_or(c"not a doubt of this library".as_ptr(), |(_, text)| {
        text.as_ptr().cast()
    })
}

/// The name of a `bw_doubt`, without its prefix, for example "NO_ANSWER". "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_doubt_name(doubt: u32) -> *const c_char {
    const NAMES: [&CStr; 9] = [
        c"NONE",
        c"NO_ANSWER",
        c"RESULT_LOST",
        c"PEER_LOST_COUNT",
        c"COUNT_CONTRADICTS",
        c"PEER_GONE",
        c"LOCAL",
        c"CANCELLED",
        c"DEADLINE_PASSED",
    ];
    let name = usize::try_from(doubt).ok().and_then(|at| NAMES.get(at));
    name.copied().unwrap_or(c"UNKNOWN").as_ptr()
}
