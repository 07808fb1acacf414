//! What a link tells of requests.

use super::bw_link;
use crate::code::{BW_ENULL, BW_ESIZE};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::wc::came;
use hw::fault::outcome::{Doubt, Outcome};
use hw::recovery::Told;
use std::ffi::{c_char, c_int};

/// What became of a request of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_outcome {
    /// Executed; the result of a READ or atomic has come.
    BW_OUTCOME_DONE = 0,
    /// Failed with `bw_told.status`, and not executed as a whole. A WRITE may have changed a part of its
    /// target; a READ may have been executed, which leaves nothing.
    BW_OUTCOME_FAILED = 1,
    /// Not executed, by no fault of its own: it may be posted again.
    BW_OUTCOME_NOT_EXECUTED = 2,
    /// It cannot be known, or its result is lost: `bw_told.doubt` says why.
    BW_OUTCOME_IN_DOUBT = 3,
}

/// Why an outcome stays in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_doubt {
    /// It is not in doubt.
    BW_DOUBT_NONE = 0,
    /// Executed or not: no acknowledgement came, and it stands behind the last request known to be
    /// executed and before the first known not to be.
    BW_DOUBT_NO_ANSWER = 1,
    /// A READ or atomic that was executed. Its result did not arrive, and an atomic's is lost for good.
    BW_DOUBT_RESULT_LOST = 2,
    /// Executed or not: completions of the peer were lost, so that its count is a lower bound.
    BW_DOUBT_PEER_LOST_COUNT = 3,
    /// Executed or not: the peer's count contradicts what is known at this end.
    BW_DOUBT_COUNT_CONTRADICTS = 4,
    /// Executed or not: the peer cannot be asked any more.
    BW_DOUBT_PEER_GONE = 5,
    /// A local operation that was done or not before the queue pair stopped.
    BW_DOUBT_LOCAL = 6,
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
    }
}

/// What became of a request of a link. Each signalled request, each receive, and each request that did
/// not end well is told once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_told {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// A `bw_outcome`.
    pub outcome: u32,
    /// With BW_OUTCOME_IN_DOUBT why: a `bw_doubt`. Otherwise BW_DOUBT_NONE.
    pub doubt: u32,
    /// With BW_OUTCOME_FAILED: a `bw_wc_status`. Otherwise 0.
    pub status: u32,
    /// What it was: a `bw_wc_opcode`. All receives have the bit BW_WC_RECV.
    pub opcode: u32,
    /// Bytes received, or brought by a READ or atomic; otherwise 0. Also 0 when the request was
    /// executed, and its completion did not come.
    pub byte_len: u32,
    /// As `bw_wc.imm_data`.
    pub imm_data: u32,
    /// `bw_wc_flags`.
    pub wc_flags: u32,
    /// Requests that this tells of: itself, and unsignalled ones before it, which were executed. The
    /// sum over everything told is what was posted.
    pub retired: u32,
}

/// Bytes of a `bw_told` in its first version.
const FIRST: usize = 40;

impl From<Told> for bw_told {
    #[inline(always)]
    fn from(told: Told) -> Self {
        // What C posts has no block of a slab.
        let (outcome, doubt, status) = match told.outcome {
            Outcome::Done => (bw_outcome::BW_OUTCOME_DONE, bw_doubt::BW_DOUBT_NONE, 0),
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
        let (byte_len, (imm_data, wc_flags)) = match &told.success {
            Some(success) => (success.byte_len().unwrap_or(0), came(success)),
            None => (0, (0, 0)),
        };
        Self {
            wr_id: told.wr_id,
            outcome: outcome as u32,
            doubt: doubt as u32,
            status,
            opcode: told.opcode.number().into(),
            byte_len,
            imm_data,
            wc_flags,
            retired: told.retired,
        }
    }
}

/// Writes to the places of an array whose elements have `size` bytes: those of an older program are
/// shorter, those of a newer one longer.
struct Places {
    next: *mut u8,
    size: usize,
}

impl Places {
    /// # Safety
    /// There is a place left.
    #[inline(always)]
    unsafe fn put(&mut self, told: bw_told) {
        let known = self.size.min(size_of::<bw_told>());
        // SAFETY: the caller's promise; `known` bytes are in both.
        unsafe {
            let from = std::ptr::from_ref(&told).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, self.next, known);
            self.next.add(known).write_bytes(0, self.size - known);
            self.next = self.next.add(self.size);
        }
    }
}

/// Takes up to `max` outcomes into the array `told`, whose elements have `size` bytes
/// (`sizeof *told`), and answers how many there were. Never waits. Connects, recovers, and answers a
/// peer that does: a link that is not polled does none of it.
///
/// A poll that finds completions does nothing else, and costs what `bw_poll` does. One that finds a
/// fault, or carries a recovery on, makes system calls, and calls the hooks.
///
/// Errors: `BW_ENULL`; `BW_ESIZE` for a `size` that cannot be one. A `max` of 0 or less takes none.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_poll(
    link: *mut bw_link,
    told: *mut bw_told,
    size: usize,
    max: c_int,
) -> c_int {
    if link.is_null() || told.is_null() {
        return BW_ENULL as c_int;
    }
    if !(FIRST..=FIRST + 4096).contains(&size) {
        return BW_ESIZE as c_int;
    }
    let mut places = Places {
        next: told.cast(),
        size,
    };
    let limit = usize::try_from(max).unwrap_or(0);
    guard(|| {
        // SAFETY: the header on handles; the caller owns the link.
        let link = unsafe { &mut (*link).link };
        // SAFETY: the array has `max` places, and the link gives no more.
        let count = link.poll(limit, |told| unsafe { places.put(told.into()) });
        Ok(count as c_int)
    })
}

/// Called by `bw_link_drain` for each request: `context` as given there, and what became of the
/// request, which is there for the time of the call. It has to return, and must not use the link.
pub type bw_told_fn =
    Option<unsafe extern "C" fn(context: *mut std::ffi::c_void, told: *const bw_told)>;

/// Closes the link, and polls until everything has been told, or the time is up: then it ends at once,
/// and tells what it knows. What was posted goes on for up to three quarters of the time, a recovery
/// included; receives are told as BW_OUTCOME_NOT_EXECUTED. When this returns the memory of all requests
/// is the program's again. `told`, unless NULL, is called for each. `retired`, unless NULL, becomes how
/// many requests were told of: all that were posted and not told of before, those included that were
/// never signalled.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner. Not from a hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_drain(
    link: *mut bw_link,
    timeout_ms: u32,
    told: bw_told_fn,
    context: *mut std::ffi::c_void,
    retired: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        let within = std::time::Duration::from_millis(timeout_ms.into());
        let drained = link.drain(within, |one| {
            if let Some(told) = told {
                let one = bw_told::from(one);
                // SAFETY: the program's own.
                unsafe { told(context, &one) }
            }
        });
        if !retired.is_null() {
            // SAFETY: a place for a count.
            unsafe { retired.write(drained.retired) };
        }
        Ok::<_, Failure>(())
    })
}

/// What a `bw_outcome` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_outcome_str(outcome: u32) -> *const c_char {
    use bw_outcome::*;
    let text = match outcome {
        o if o == BW_OUTCOME_DONE as u32 => c"executed",
        o if o == BW_OUTCOME_FAILED as u32 => c"failed, and not executed as a whole",
        o if o == BW_OUTCOME_NOT_EXECUTED as u32 => c"not executed, by no fault of its own",
        o if o == BW_OUTCOME_IN_DOUBT as u32 => c"executed or not, or its result is lost",
        _ => c"not an outcome of this library",
    };
    text.as_ptr()
}

/// Bytes of a text of [`DOUBTS`], its end included.
const TEXT: usize = 96;

/// Core's texts of [`Doubt::ALL`], each with its end.
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
