//! The state of a link, and its end.

use super::bw_link;
use super::code::away;
use super::hook::at_home;
use super::init::nanoseconds;
use crate::cm::write_addr;
use crate::code::BW_EUNSUPPORTED;
use crate::failure::{Failure, guard};
use crate::fault::bw_fault;
use crate::handle::{get, get_mut};
use crate::sized::{self, Versioned};
use hw::fault::Scope;
use hw::fault::plan::EndReason;
use hw::link::{Counters, ExchangeError, Link, LinkEnd, LinkState};
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::time::Duration;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_link_state {
    /// It is connecting, for the first time or again. Posts are refused, except for receives while it
    /// connects for the first time; poll it.
    BW_LINK_RECOVERING = 0,
    /// It is connected.
    BW_LINK_READY = 1,
    /// The program has closed it.
    BW_LINK_CLOSED = 2,
    /// The peer has closed it, in an orderly shutdown.
    BW_LINK_PEER_CLOSED = 3,
    /// It could not be recovered: `bw_link_query` gives the reason.
    BW_LINK_GAVE_UP = 4,
}

fn state(link: &Link) -> bw_link_state {
    state_of(link.state())
}

pub(super) fn state_of(state: LinkState) -> bw_link_state {
    match state {
        LinkState::Recovering => bw_link_state::BW_LINK_RECOVERING,
        LinkState::Ready => bw_link_state::BW_LINK_READY,
        LinkState::Ended(LinkEnd::Closed) => bw_link_state::BW_LINK_CLOSED,
        LinkState::Ended(LinkEnd::GaveUp {
            why: EndReason::PeerClosed,
            ..
        }) => bw_link_state::BW_LINK_PEER_CLOSED,
        LinkState::Ended(LinkEnd::GaveUp { .. }) => bw_link_state::BW_LINK_GAVE_UP,
    }
}

/// Returns the link's state: a `bw_link_state`, 0 or more. It changes in polls, and when the link is
/// closed.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_get_state(link: *const bw_link) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(state(&get(link, "link")?.link) as c_int) })
}

/// Bytes of `bw_link_info.why`.
pub const BW_WHY_MAX: usize = 256;

/// State of a link.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_info {
    /// `sizeof(bw_link_info)`.
    pub size: u32,
    /// Its state: a `bw_link_state`.
    pub state: u32,
    /// Number of its queue pair, 0 while there is none. It may change with each recovery.
    pub qp_num: u32,
    /// Number of its completion queue. It may change with each recovery.
    pub cqn: u32,
    /// The number of the connection, from 1: each recovery makes a new one.
    pub epoch: u64,
    /// First address of the memory that the peer lets this end access, as of the last connection.
    pub peer_addr: u64,
    /// Length of that memory in bytes; 0: there is none, or the link has not been connected yet.
    pub peer_length: u64,
    /// Its rkey.
    pub peer_rkey: u32,
    /// Unsignalled requests that were executed, and that no later outcome has retired. They count as
    /// retired when the link has ended.
    pub unreported: u32,
    /// Why the link has ended; empty while it has not.
    pub why: [c_char; BW_WHY_MAX],
    /// Of a link of a set with `srq_max_held`: blocks of the shared receive queue that its messages
    /// hold. They include returned blocks that the set has not posted again yet. Otherwise 0.
    pub held: u32,
    /// 0.
    pub reserved: u32,
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
            unreported: 0,
            why: [0; BW_WHY_MAX],
            held: 0,
            reserved: 0,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_link_info {
    const SIZES: &'static [usize] = &[offset_of!(Self, held), size_of::<Self>()];
}

pub(super) fn why(state: LinkState, exchange: Option<&ExchangeError>) -> String {
    match (state, exchange) {
        (LinkState::Ended(end), Some(error)) => format!("{end}; {error}"),
        (LinkState::Ended(end), None) => end.to_string(),
        _ => String::new(),
    }
}

/// What `bw_link_query` returns, of either kind of link.
macro_rules! info {
    ($link:expr, $cqn:expr, $held:expr) => {{
        let link = $link;
        let memory = link.peer_memory().unwrap_or_default();
        $crate::link::life::bw_link_info {
            state: $crate::link::life::state_of(link.state()) as u32,
            qp_num: link.qp_num().unwrap_or(0),
            cqn: $cqn.unwrap_or(0),
            epoch: link.epoch(),
            peer_addr: memory.addr,
            peer_length: memory.length,
            peer_rkey: memory.rkey,
            unreported: link.unreported(),
            held: $held,
            why: $crate::device::text(&$crate::link::life::why(
                link.state(),
                link.exchange_error(),
            )),
            ..Default::default()
        }
    }};
}
pub(super) use info;

/// Returns the state of a link. Set `info->size` before the call.
///
/// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_query(link: *mut bw_link, info: *mut bw_link_info) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let cqn = link.cqn();
        sized::write(info, &info!(&*link, cqn, 0))
    })
}

/// Writes the address of the link's peer, of at most `BW_ADDR_MAX` characters including its NUL,
/// and its port. It is the address of its end of the TCP connection, or the address that the
/// communication manager connects with.
///
/// Errors: `BW_ESTATE` for a link of `bw_link_create_pair`, or if it is not known yet or not any more,
/// `BW_ERECOVERING` while a thread recovers the link, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_peer_addr(
    link: *mut bw_link,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles; the program passes the places.
    guard(|| unsafe { write_addr(at_home(link)?.peer_addr(), host, port) })
}

/// Entries of `bw_link_counters.faults`: more than there are scopes, so that scopes can be added.
pub const BW_SCOPE_MAX: usize = 16;

/// Counters of a link. Requests that succeed at once are not counted, because that would slow the data
/// path: `bw_queue_counters` has the requests that were posted.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_link_counters {
    /// `sizeof(bw_link_counters)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Recoveries after which the link works; the first connection counts as one.
    pub recovered: u64,
    /// Those after which something is not as it was before.
    pub degraded: u64,
    /// 1 if the link was given up, which it is not if the peer closed a link that worked.
    pub gave_up: u64,
    /// Requests that were posted again.
    pub replayed: u64,
    /// Receives that were posted again.
    pub reposted: u64,
    /// Sends of a failed connection that turned out to have been executed.
    pub done: u64,
    /// Sends reported as failed.
    pub failed: u64,
    /// Sends reported as not executed.
    pub not_executed: u64,
    /// Sends reported as in doubt.
    pub in_doubt: u64,
    /// Nanoseconds that the last recovery took, from its first fault on.
    pub last_ns: u64,
    /// Nanoseconds that the longest recovery took.
    pub longest_ns: u64,
    /// Nanoseconds that all recoveries took together.
    pub total_ns: u64,
    /// Number of faults by `bw_scope`; 0 for numbers that are no scope.
    pub faults: [u64; BW_SCOPE_MAX],
    /// Receives reported as failed.
    pub recv_failed: u64,
    /// Receives reported as not executed when the link ended: no message arrived for them.
    pub recv_not_executed: u64,
    /// Receives reported as in doubt: a message may have arrived for them, and its completion was lost.
    pub recv_in_doubt: u64,
    /// Requests of both queues that the program cancelled in time, whatever became of them.
    pub cancelled: u64,
    /// Requests of both queues that missed deadlines of their own, whatever became of them.
    pub deadlines_passed: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_link_counters {
    const SIZES: &'static [usize] = &[offset_of!(Self, cancelled), size_of::<Self>()];
}

const _: () = assert!(Scope::ALL.len() <= BW_SCOPE_MAX);

impl From<Counters> for bw_link_counters {
    fn from(counters: Counters) -> Self {
        let mut faults = [0; BW_SCOPE_MAX];
        faults[..counters.faults.len()].copy_from_slice(&counters.faults);
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
            faults,
            recv_failed: counters.recv_failed,
            recv_not_executed: counters.recv_not_executed,
            recv_in_doubt: counters.recv_in_doubt,
            cancelled: counters.cancelled,
            deadlines_passed: counters.deadlines_passed,
        }
    }
}

/// Returns the counters of a link; `bw_link_monitor` lets other threads read them. Set `counters->size`
/// before the call.
///
/// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_query_counters(
    link: *const bw_link,
    counters: *mut bw_link_counters,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let found = get(link, "link")?.link.counters().ok_or_else(away)?;
        sized::write(counters, &found.into())
    })
}

/// Returns the descriptor on which messages of the peer arrive, 0 or more: readable when there is one.
/// For poll and epoll, along with `bw_device_async_fd`; it must not be read or closed.
///
/// Errors: `BW_EUNSUPPORTED` for a link of `bw_link_create_pair`, `BW_ERECOVERING` while a thread
/// recovers it, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_exchange_fd(link: *mut bw_link) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        at_home(link)?.exchange_fd().ok_or_else(|| {
            Failure::new(
                BW_EUNSUPPORTED,
                "the link's peer is in this process, and is not heard by a descriptor: poll",
            )
        })
    })
}

/// Returns the descriptor that becomes readable when the link has to be polled, 0 or more. It requires
/// `bw_link_init.sleeps`, and the link has to be armed by `bw_link_arm`. For poll and epoll; it must
/// not be read or closed. It stays the same for as long as the link exists, across recoveries. Any
/// number of links may be in one epoll instance, which may itself be in others.
///
/// Errors: `BW_EUNSUPPORTED` without `sleeps`, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_fd(link: *const bw_link) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { get(link, "link")?.link.fd().ok_or_else(sleepless) })
}

/// Arms the link, so that the program can sleep. Arm it, poll it until a poll finds nothing, then
/// sleep until the descriptor of `bw_link_fd` is readable, whatever the link's state. From this
/// call on, completions, messages of the peer and asynchronous events make the descriptor readable,
/// or those polls find them. So does the end of a recovery in a thread. So does a poll that leaves
/// something to do, such as the poll in which the link becomes BW_LINK_READY. So does a deadline
/// that has passed (`bw_link_time_left`), unless the device's clock is virtual. Completions and
/// events from before the call do not.
/// Errors: `BW_EUNSUPPORTED` without `bw_link_init.sleeps`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_arm(link: *mut bw_link) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        if link.fd().is_none() {
            return Err(sleepless());
        }
        link.arm()?;
        Ok(())
    })
}

/// Writes for how many nanoseconds of the device's clock the program may sleep before it polls the
/// link. It is for programs that sleep on something other than `bw_link_fd`. By then a step of a
/// recovery has to be given up or retried, or the device needs attention. UINT64_MAX if there is no
/// such deadline, as for a link that a thread recovers.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_time_left(link: *const bw_link, time_left_ns: *mut u64) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let left = get(link, "link")?.link.time_left();
        if time_left_ns.is_null() {
            return Err(Failure::null("the place for the time"));
        }
        time_left_ns.write(left.map_or(u64::MAX, nanoseconds));
        Ok(())
    })
}

pub(super) fn sleepless() -> Failure {
    Failure::new(
        BW_EUNSUPPORTED,
        "the link was not made to sleep on: set bw_link_init.sleeps when it is created",
    )
}

/// Makes the link recover as if it had found `fault` itself. This is for faults that only the
/// program can notice, such as an event of the communication manager. While a thread recovers the
/// link, that thread takes the fault into account when it next checks.
///
/// Errors: `BW_EINVAL` as for `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_report_fault(link: *mut bw_link, fault: *const bw_fault) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        link.report(sized::read(fault)?.checked()?);
        Ok(())
    })
}

/// Closes a link: posts are refused from here on. Posted requests may continue for `timeout_ms`
/// milliseconds of the device's time, including a recovery; then they are flushed. Poll until the state
/// is BW_LINK_CLOSED or a greater one and a poll finds nothing: everything has been reported by then,
/// receives as BW_OUTCOME_NOT_EXECUTED. Waits for the recovery thread to stop, if there is one.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_close(link: *mut bw_link, timeout_ms: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let link = &mut get_mut(link, "link")?.link;
        link.close(Duration::from_millis(timeout_ms.into()));
        Ok(())
    })
}
