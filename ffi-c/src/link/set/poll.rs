//! Polling a set, and sleeping on it.

use super::super::init::nanoseconds;
use super::super::life::state_of;
use super::super::outcome::bw_link_wc;
use super::{bw_link_id, bw_link_set};
use crate::array::{Element, poll_older};
use crate::code::{BW_ENULL, BW_EUNSUPPORTED};
use crate::failure::{Failure, guard, guard_poll};
use crate::handle::{get, get_mut};
use hw::link::{LinkCompletion, LinkId, LinkSet};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The outcome of a request posted to a link of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_link_set_wc {
    /// The link's handle.
    pub link: bw_link_id,
    /// The outcome.
    pub wc: bw_link_wc,
}

const SIZE: usize = size_of::<bw_link_set_wc>();

// SAFETY: repr(C), integers only.
unsafe impl Element for bw_link_set_wc {
    const SIZES: &'static [usize] = &[SIZE];
}

impl bw_link_set_wc {
    #[inline(always)]
    pub(in crate::link) fn new(link: LinkId, mut completion: LinkCompletion) -> Self {
        // A message in the shared receive queue's buffer, whose address is the `wr_id`: the
        // program's from here on. A request posted from C has no block.
        if let Some(block) = completion.block.take() {
            let _record = block.into_raw();
        }
        Self {
            link: link.to_raw(),
            wc: completion.into(),
        }
    }
}

/// `bw_link_set_poll` for outcomes of `size` bytes: polls up to `max` outcomes of all links of the
/// set into the array `wc`. Returns how many there were. Never waits. Polls also connect and
/// recover the links, a few in each: without polls none of this happens.
///
/// The link of a completion is found by a table, whatever the number of links.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_poll_sized(
    set: *mut bw_link_set,
    wc: *mut bw_link_set_wc,
    size: usize,
    max: c_int,
) -> c_int {
    if size != SIZE {
        // SAFETY: the header's conventions on handles; the caller owns the set.
        let mut poll = |wc, max| unsafe { bw_link_set_poll_sized(set, wc, SIZE, max) };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(wc, size, max, &mut poll) };
    }
    if set.is_null() || wc.is_null() {
        return BW_ENULL as c_int;
    }
    let mut place = wc;
    let limit = usize::try_from(max).unwrap_or(0);
    guard_poll(|| {
        // SAFETY: the header's conventions on handles; the caller owns the set.
        let set = unsafe { &mut (*set).set };
        // SAFETY: the array has room for `max` outcomes, and the set returns no more.
        let count = set.poll(limit, |link, completion| unsafe {
            place.write(bw_link_set_wc::new(link, completion));
            place = place.add(1);
        });
        Ok(count as c_int)
    })
}

/// Returns 1, and sets `*link` to a link whose state has changed since this last returned it, and
/// `*state` to its present state, a `bw_link_state`. The state is connected, for the first time or
/// again, recovering, or ended.
/// Returns 0 if there is none. Call it after polls; a link that has ended takes room until it is removed.
///
/// Errors: `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_next_change(
    set: *mut bw_link_set,
    link: *mut bw_link_id,
    state: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        if link.is_null() || state.is_null() {
            return Err(Failure::null("the place for the link or for its state"));
        }
        let Some((id, now)) = set.next_change() else {
            return Ok(0);
        };
        link.write(id.to_raw());
        state.write(state_of(now) as u32);
        Ok(1)
    })
}

/// Called by `bw_link_set_drain` for each request, with the `context` given there, and the outcome, which is
/// valid during the call. It has to return, and must not use the set.
pub type bw_link_set_wc_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, wc: *const bw_link_set_wc)>;

/// Closes all links of the set, and polls until each has ended and everything has been reported, or
/// the timeout expires. Then the rest ends at once, and the known outcomes are reported. When this
/// returns the memory of all requests belongs to the program again. The links stay in the set.
/// `report` and `retired` as for `bw_link_drain`.
///
/// Errors: `BW_ENULL`.
/// Thread: the set's owner. Not from a hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_drain(
    set: *mut bw_link_set,
    timeout_ms: u32,
    report: bw_link_set_wc_fn,
    context: *mut c_void,
    retired: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let set = unsafe { &mut get_mut(set, "set")?.set };
        let within = Duration::from_millis(timeout_ms.into());
        let drained = set.drain(within, |link, one| {
            if let Some(report) = report {
                let one = bw_link_set_wc::new(link, one);
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

fn sleepless() -> Failure {
    Failure::new(
        BW_EUNSUPPORTED,
        "the set was not made to sleep on: set bw_link_set_init.sleeps when it is created",
    )
}

pub(in crate::link) fn waitable(set: &LinkSet) -> Result<c_int, Failure> {
    set.fd().map(|fd| fd.as_raw_fd()).ok_or_else(sleepless)
}

/// Returns the descriptor that becomes readable when the set has to be polled, 0 or more. It requires
/// `bw_link_set_init.sleeps`, and the set has to be armed by `bw_link_set_arm`. For poll and epoll; it must
/// not be read or closed. It is the same for the life of the set.
///
/// Errors: `BW_EUNSUPPORTED`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_fd(set: *const bw_link_set) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { waitable(&get(set, "set")?.set) })
}

/// Prepares the set for sleep, as `bw_link_arm` does for one link. Arm it, poll it until a poll
/// finds nothing, and sleep until the descriptor is readable. Once for all links.
///
/// Errors: `BW_EUNSUPPORTED`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_arm(set: *mut bw_link_set) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        waitable(set)?;
        Ok::<_, Failure>(set.arm()?)
    })
}

/// Returns in `*time_left_ns` for how many nanoseconds the program may sleep until it polls the set, if it
/// sleeps on something other than `bw_link_set_fd`. UINT64_MAX if nothing has a deadline.
///
/// Errors: `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_time_left(
    set: *const bw_link_set,
    time_left_ns: *mut u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let left = get(set, "set")?.set.time_left();
        if time_left_ns.is_null() {
            return Err(Failure::null("the place for the time"));
        }
        time_left_ns.write(left.map_or(u64::MAX, nanoseconds));
        Ok(())
    })
}
