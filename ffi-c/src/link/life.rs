//! How a link stands, and how it ends.

use super::bw_link;
use super::code::away;
use super::hook::at_home;
use super::init::nanoseconds;
use crate::code::BW_EUNSUPPORTED;
use crate::device::text;
use crate::failure::{Failure, guard};
use crate::fault::bw_fault;
use crate::handle::{get, get_mut};
use crate::sized::{self, Versioned};
use hw::fault::plan::Why;
use hw::recovery::{Counters, Link, LinkEnd, LinkState};
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// What a link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_link_state {
    /// It connects, for the first time or again. Posts are refused; poll it.
    BW_LINK_RECOVERING = 0,
    /// It works.
    BW_LINK_READY = 1,
    /// The program has closed it.
    BW_LINK_CLOSED = 2,
    /// The peer has closed it, in good order.
    BW_LINK_PEER_CLOSED = 3,
    /// It could not be recovered: `bw_link_query` tells why.
    BW_LINK_GAVE_UP = 4,
}

fn state(link: &Link) -> bw_link_state {
    match link.state() {
        LinkState::Recovering => bw_link_state::BW_LINK_RECOVERING,
        LinkState::Ready => bw_link_state::BW_LINK_READY,
        LinkState::Ended(LinkEnd::Closed) => bw_link_state::BW_LINK_CLOSED,
        LinkState::Ended(LinkEnd::GaveUp(Why::PeerClosed)) => bw_link_state::BW_LINK_PEER_CLOSED,
        LinkState::Ended(LinkEnd::GaveUp(_)) => bw_link_state::BW_LINK_GAVE_UP,
    }
}

/// What the link does: a `bw_link_state`, 0 or more. Changes in polls, and when it is closed.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_get_state(link: *const bw_link) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { Ok(state(&get(link, "link")?.link) as c_int) })
}

/// Bytes of `bw_link_info.why`.
pub const BW_WHY_MAX: usize = 256;

/// How a link stands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_info {
    /// `sizeof(bw_link_info)`.
    pub size: u32,
    /// What it does: a `bw_link_state`.
    pub state: u32,
    /// Number of its queue pair, 0 while there is none. It may be another after each recovery.
    pub qp_num: u32,
    /// Number of its completion queue, likewise.
    pub cqn: u32,
    /// The number of the connection, from 1: each recovery makes another one.
    pub epoch: u64,
    /// Memory that the peer has opened to this end, as it said at the last connection: where it starts.
    pub peer_addr: u64,
    /// Its bytes; 0: there is none, or the link was not connected yet.
    pub peer_length: u64,
    /// Its key.
    pub peer_rkey: u32,
    /// Requests that were executed, and that nothing was told after: unsignalled ones. They count as
    /// retired when the link has ended.
    pub untold: u32,
    /// Why it has ended; empty while it has not.
    pub why: [c_char; BW_WHY_MAX],
}

impl Default for bw_link_info {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            state: 0,
            qp_num: 0,
            cqn: 0,
            epoch: 0,
            peer_addr: 0,
            peer_length: 0,
            peer_rkey: 0,
            untold: 0,
            why: [0; BW_WHY_MAX],
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_link_info {
    const FIRST: usize = 48 + BW_WHY_MAX;
}

fn why(link: &Link) -> String {
    let LinkState::Ended(end) = link.state() else {
        return String::new();
    };
    match link.exchange_error() {
        Some(error) => format!("{end}; {error}"),
        None => end.to_string(),
    }
}

/// Tells how a link stands. Set `info->size` before.
///
/// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_query(link: *mut bw_link, info: *mut bw_link_info) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let memory = link.peer_memory().unwrap_or_default();
        let told = bw_link_info {
            state: state(link) as u32,
            qp_num: link.qp_num().unwrap_or(0),
            cqn: link.cqn().unwrap_or(0),
            epoch: link.epoch(),
            peer_addr: memory.addr,
            peer_length: memory.length,
            peer_rkey: memory.rkey,
            untold: link.untold(),
            why: text(&why(link)),
            ..Default::default()
        };
        sized::write(info, &told)
    })
}

/// How often what happened to a link. What ends well at once is not counted: that would cost the data
/// path.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_link_counters {
    /// `sizeof(bw_link_counters)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Recoveries after which the link works; the first connection is one.
    pub recovered: u64,
    /// Of these, with something that is not as it was.
    pub degraded: u64,
    /// One, when the link was given up.
    pub gave_up: u64,
    /// Requests that were posted again.
    pub replayed: u64,
    /// Receives that were posted again.
    pub reposted: u64,
    /// Sends of a failed connection that turned out to have been executed.
    pub done: u64,
    /// Sends told as failed.
    pub failed: u64,
    /// Sends told as not executed.
    pub not_executed: u64,
    /// Sends told as in doubt.
    pub in_doubt: u64,
    /// Nanoseconds that the last recovery took, from its first fault on.
    pub last_ns: u64,
    /// What the longest took.
    pub longest_ns: u64,
    /// What all took.
    pub total_ns: u64,
    /// Faults, by `bw_scope`.
    pub faults: [u64; 9],
    /// Receives told as failed.
    pub recv_failed: u64,
    /// Receives told as not executed, at the end: no message came for them.
    pub recv_not_executed: u64,
    /// Receives told as in doubt: a message may have come for them, and its completion was lost.
    pub recv_in_doubt: u64,
}

// SAFETY: as above.
unsafe impl Versioned for bw_link_counters {
    const FIRST: usize = 176;
}

impl From<Counters> for bw_link_counters {
    fn from(counters: Counters) -> Self {
        Self {
            size: 0,
            reserved: 0,
            recovered: counters.recovered,
            degraded: counters.degraded,
            gave_up: counters.gave_up,
            replayed: counters.replayed,
            reposted: counters.reposted,
            done: counters.done,
            failed: counters.failed,
            not_executed: counters.not_executed,
            in_doubt: counters.in_doubt,
            last_ns: nanoseconds(counters.last),
            longest_ns: nanoseconds(counters.longest),
            total_ns: nanoseconds(counters.total),
            faults: counters.faults,
            recv_failed: counters.recv_failed,
            recv_not_executed: counters.recv_not_executed,
            recv_in_doubt: counters.recv_in_doubt,
        }
    }
}

/// Tells how often what happened to a link. Set `counters->size` before.
///
/// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_query_counters(
    link: *const bw_link,
    counters: *mut bw_link_counters,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let told = get(link, "link")?.link.counters().ok_or_else(away)?;
        sized::write(counters, &told.into())
    })
}

/// The descriptor by which the peer is heard, 0 or more: readable when it says something. For poll and
/// epoll, beside `bw_async_fd`; not to be read or closed.
///
/// Errors: `BW_EUNSUPPORTED` for a link of `bw_link_create_pair`, `BW_ERECOVERING` while a thread
/// recovers it, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_exchange_fd(link: *mut bw_link) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        at_home(link)?.exchange_fd().ok_or_else(|| {
            Failure::new(
                BW_EUNSUPPORTED,
                "the link's peer is in this process, and is not heard by a descriptor: poll",
            )
        })
    })
}

/// The descriptor that is readable when the link wants to be polled, 0 or more, with
/// `bw_link_init.sleeps`: for poll and epoll, not to be read or closed. The same for as long as the link
/// lives, whatever it recovers from.
///
/// Errors: `BW_EUNSUPPORTED` without `sleeps`, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_fd(link: *const bw_link) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { get(link, "link")?.link.fd().ok_or_else(sleepless) })
}

/// Before the program sleeps: from here on the link's next completion makes the descriptor of
/// `bw_link_fd` readable, as do asynchronous events of its device and what the peer says over TCP. What is
/// there already does not. So arm it, poll it until it finds nothing, and sleep if it is BW_LINK_READY
/// then; with BW_RECOVER_IN_THREAD also while it recovers, but not in polls. While it recovers in polls,
/// sleep no longer than `bw_link_time_left` says. The peer of
/// `bw_link_create_pair` says things without a wake-up: sleep for a limited time only.
///
/// Errors: `BW_EUNSUPPORTED` without `bw_link_init.sleeps`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_arm(link: *mut bw_link) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        if link.fd().is_none() {
            return Err(sleepless());
        }
        link.arm()?;
        Ok(())
    })
}

/// Writes for how many nanoseconds of the device's clock the program may sleep at the most before it
/// polls the link: a step of a recovery has to be given up by then, or tried again. UINT64_MAX while
/// there is nothing of the kind, as for a link that is BW_LINK_READY or that a thread recovers.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_time_left(link: *const bw_link, time_left_ns: *mut u64) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let left = get(link, "link")?.link.time_left();
        if time_left_ns.is_null() {
            return Err(Failure::null("the place for the time"));
        }
        time_left_ns.write(left.map_or(u64::MAX, nanoseconds));
        Ok(())
    })
}

fn sleepless() -> Failure {
    Failure::new(
        BW_EUNSUPPORTED,
        "the link was not made to sleep on: set bw_link_init.sleeps when it is created",
    )
}

/// Has the link recover as if `fault` had been seen: what a program knows that the link does not, such
/// as an event of the communication manager. Also while a thread recovers it, which takes it in at its
/// next look.
///
/// Errors: `BW_EINVAL` as `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_report(link: *mut bw_link, fault: *const bw_fault) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        link.report(sized::read(fault)?.checked()?);
        Ok(())
    })
}

/// Closes a link: posts are refused from here on. What was posted may go on for so many milliseconds, of
/// the device's time, a recovery included; then it is flushed. Poll until the state is BW_LINK_CLOSED, or
/// more, and a poll finds nothing: everything is told by then, receives as
/// BW_OUTCOME_NOT_EXECUTED. Waits for the recovery's thread to stop, if there is one.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_close(link: *mut bw_link, timeout_ms: u32) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        link.close(Duration::from_millis(timeout_ms.into()));
        Ok(())
    })
}
