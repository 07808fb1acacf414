//! Waiting for a link or a set: awake for a while, then asleep.

use super::bw_link;
use super::init::nanoseconds;
use super::life;
use super::outcome::{bw_link_poll_sized, bw_link_wc};
use super::set::bw_link_set;
use super::set::poll::{bw_link_set_poll_sized, bw_link_set_wc, waitable};
use crate::array::poll_older;
use crate::code::{BW_EINVAL, BW_ENULL};
use crate::failure::{Failure, guard};
use crate::sized::{self, Versioned};
use crate::waits::wake_owner;
use hw::link::Wait;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null;
use std::time::Duration;

/// How `bw_link_wait` and `bw_link_set_wait` wait. `bw_wait_default` fills it.
///
/// A thread that sleeps is woken some microseconds, or tens of them, after a completion. A thread
/// that polls takes it at once, and uses its processor up. So the thread polls first, for about as
/// long as waking takes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_wait {
    /// `sizeof(bw_wait)`.
    pub size: u32,
    /// Number of `fds`.
    pub num_fds: u32,
    /// How many nanoseconds to poll before sleeping, 50,000 by default; 0: sleeps unless there is something at
    /// once.
    pub spin_ns: u64,
    /// How many nanoseconds to wait in all; UINT64_MAX, the default: for ever.
    pub timeout_ns: u64,
    /// Descriptors of the program that end the wait when they are readable, such as a listener's. They are looked
    /// at only before sleeping, so a busy program looks at them itself from time to time.
    pub fds: *const c_int,
}

impl Default for bw_wait {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            num_fds: 0,
            spin_ns: nanoseconds(Wait::default().spin),
            timeout_ns: u64::MAX,
            fds: null(),
        }
    }
}

// SAFETY: repr(C), integers and a pointer, without padding; the size is the first field.
unsafe impl Versioned for bw_wait {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl bw_wait {
    /// # Safety
    /// `fds` points to as many open descriptors as it says, which stay open while the result is used.
    unsafe fn others<'a>(&self) -> Result<Vec<BorrowedFd<'a>>, Failure> {
        if self.num_fds == 0 {
            return Ok(Vec::new());
        }
        if self.fds.is_null() {
            return Err(Failure::null("bw_wait.fds"));
        }
        // SAFETY: the caller guarantees so many.
        let fds = unsafe { std::slice::from_raw_parts(self.fds, self.num_fds as usize) };
        if let Some(fd) = fds.iter().find(|fd| **fd < 0) {
            let text = format!("a descriptor of bw_wait.fds is {fd}");
            return Err(Failure::new(BW_EINVAL, text));
        }
        // SAFETY: not -1; the caller guarantees that they are open.
        let fds = (fds.iter()).map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
        Ok(fds.collect())
    }
}

/// Calls `act` with how to wait, and the number of outcomes that there is room for.
///
/// # Safety
/// `wait` is NULL or points to a struct as its type says, with open descriptors.
unsafe fn waiting(
    wait: *const bw_wait,
    max: c_int,
    act: impl FnOnce(&Wait<'_>, usize) -> Result<usize, Failure>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller guarantees a sized struct.
        let given = unsafe { sized::read_or_default(wait)? };
        // SAFETY: the caller guarantees the descriptors.
        let others = unsafe { given.others()? };
        let limit = usize::try_from(max).ok().filter(|max| *max != 0);
        let Some(limit) = limit else {
            let text = format!("there is room for {max} outcomes: a wait needs room for one");
            return Err(Failure::new(BW_EINVAL, text));
        };
        let wait = Wait {
            spin: Duration::from_nanos(given.spin_ns),
            timeout: (given.timeout_ns != u64::MAX).then(|| Duration::from_nanos(given.timeout_ns)),
            others: &others,
        };
        Ok(act(&wait, limit)? as c_int)
    })
}

/// Fills `wait`, of `size` bytes, with its size and the defaults: `bw_wait_default(&wait, sizeof(wait))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_wait_default(wait: *mut bw_wait, size: usize) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(wait, size) })
}

/// `bw_link_wait` for outcomes of `size` bytes: polls the link, and waits until there is an
/// outcome, or the link's state has changed. It polls for a while, then arms the link and sleeps,
/// and so on until the time is over.
/// Returns the number of outcomes, as `bw_link_poll` does. It is 0 when the state has changed, a
/// descriptor of the program is readable, or the time is over. It requires `bw_link_init.sleeps`.
/// If `wait` is NULL the defaults are used.
///
/// Errors: `BW_EINVAL` (a `max` of 0 or less, a negative descriptor), `BW_EUNSUPPORTED` (a link that was not made
/// to sleep on), `BW_EINTR` when a signal handler has interrupted the sleep of a wait that has no limit (one with a
/// limit goes on for the time that is left), `BW_EWOKEN` by `bw_link_wake`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_wait_sized(
    link: *mut bw_link,
    wc: *mut bw_link_wc,
    size: usize,
    max: c_int,
    wait: *const bw_wait,
) -> c_int {
    const SIZE: usize = size_of::<bw_link_wc>();
    if size != SIZE {
        let mut waits = true;
        // What the first part does not wait for, no other does.
        let mut poll = |wc, max| match std::mem::take(&mut waits) {
            // SAFETY: the header's conventions on handles; the caller owns the link.
            true => unsafe { bw_link_wait_sized(link, wc, SIZE, max, wait) },
            // SAFETY: as above.
            false => unsafe { bw_link_poll_sized(link, wc, SIZE, max) },
        };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(wc, size, max, &mut poll) };
    }
    if link.is_null() || wc.is_null() {
        return BW_ENULL as c_int;
    }
    let mut place = wc;
    // SAFETY: the header's conventions on sized structs.
    unsafe {
        waiting(wait, max, |wait, limit| {
            // The header's conventions on handles; the caller owns the link.
            let link = &mut (*link).link;
            if link.fd().is_none() {
                return Err(life::sleepless());
            }
            // The array has room for `max` outcomes, and the link returns no more.
            Ok(link.wait(limit, wait, |completion| {
                place.write(completion.into());
                place = place.add(1);
            })?)
        })
    }
}

/// If `awake` is not 0, ends every wait of `bw_link_wait` on the link, and every later one that
/// would sleep, with `BW_EWOKEN`. Outcomes that are there are still returned. If it is 0, waits
/// sleep again. So a program lets the link's owner return before it destroys the link, whichever
/// comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any; the link has to exist, and its owner may be in a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_wake(link: *const bw_link, awake: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    unsafe { wake_owner(link, awake) }
}

/// `bw_link_set_wait` for outcomes of `size` bytes: as `bw_link_wait`, for all links of the set. It returns 0 also
/// when `bw_link_set_next_change` has something, at once as long as that is not taken. It requires
/// `bw_link_set_init.sleeps`.
///
/// Errors: those of `bw_link_wait`; `BW_EWOKEN` by `bw_link_set_wake`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_wait_sized(
    set: *mut bw_link_set,
    wc: *mut bw_link_set_wc,
    size: usize,
    max: c_int,
    wait: *const bw_wait,
) -> c_int {
    const SIZE: usize = size_of::<bw_link_set_wc>();
    if size != SIZE {
        let mut waits = true;
        let mut poll = |wc, max| match std::mem::take(&mut waits) {
            // SAFETY: the header's conventions on handles; the caller owns the set.
            true => unsafe { bw_link_set_wait_sized(set, wc, SIZE, max, wait) },
            // SAFETY: as above.
            false => unsafe { bw_link_set_poll_sized(set, wc, SIZE, max) },
        };
        // SAFETY: the header's conventions on arrays.
        return unsafe { poll_older(wc, size, max, &mut poll) };
    }
    if set.is_null() || wc.is_null() {
        return BW_ENULL as c_int;
    }
    let mut place = wc;
    // SAFETY: the header's conventions on sized structs.
    unsafe {
        waiting(wait, max, |wait, limit| {
            // The header's conventions on handles; the caller owns the set.
            let set = &mut (*set).set;
            waitable(set)?;
            // The array has room for `max` outcomes, and the set returns no more.
            Ok(set.wait(limit, wait, |link, completion| {
                place.write(bw_link_set_wc::new(link, completion));
                place = place.add(1);
            })?)
        })
    }
}

/// If `awake` is not 0, ends every wait of `bw_link_set_wait` on the set, and every later one that
/// would sleep, with `BW_EWOKEN`. Outcomes and changes that are there are still returned. If it is
/// 0, waits sleep again. So a program lets the set's owner return before it destroys the set,
/// whichever comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any; the set has to exist, and its owner may be in a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_wake(set: *const bw_link_set, awake: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    unsafe { wake_owner(set, awake) }
}
