//! What a link is made with.

use crate::code::{BW_EINVAL, BW_ETRANSPORT};
use crate::dump::bw_dump_attr;
use crate::failure::{Failure, guard};
use crate::number::bw_qp_type::BW_QPT_RC;
use crate::qp_attr::{bw_connect_attr, bw_qp_init_attr};
use crate::sized::{self, Versioned};
use hw::QpInit;
use hw::connect::RemoteMemory;
use hw::fault::plan::Limits;
use hw::recovery::{LinkInit, RecoverIn};
use std::ffi::c_int;
use std::ptr::null;
use std::time::Duration;

/// Who carries a link's recovery out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_recover_in {
    /// Whoever polls the link: a poll does what can be done at once, and never waits.
    BW_RECOVER_IN_POLLER = 0,
    /// A thread that lives for as long as the recovery: polls return at once meanwhile, and find
    /// nothing. Calls on the link that need more than its queues answer BW_ERECOVERING meanwhile.
    BW_RECOVER_IN_THREAD = 1,
}

/// What a link is made with. `bw_link_init_default` fills it. Times are nanoseconds of the device's
/// clock.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_init {
    /// `sizeof(bw_link_init)`.
    pub size: u32,
    /// A `bw_recover_in`.
    pub recover_in: u32,
    /// What its queue pair is to be able to do; `qp_type` BW_QPT_RC, no `srq`, and `reserve_cq` not
    /// looked at. NULL: the default. Like `connect`, read when the link is created.
    pub qp: *const bw_qp_init_attr,
    /// How it connects; the MTU is the lesser of both ends'. NULL: the default.
    pub connect: *const bw_connect_attr,
    /// Memory that the peer may work on, told to it with each connection: where it starts.
    pub memory_addr: u64,
    /// Its bytes; 0: there is none.
    pub memory_length: u64,
    /// Its key.
    pub memory_rkey: u32,
    /// Polls that find nothing until the exchange and the asynchronous events are looked at, which
    /// takes system calls: once in so many. 0 is 1.
    pub look_every: u32,
    /// Steps of a recovery that one poll takes at the most: each may be a call of the device's driver.
    /// 0 is 1.
    pub steps_at_once: u32,
    /// Entries of the completion queue; 0: room for everything that can be in flight. Fewer overrun it
    /// when the program does not poll in time, which is a fault to recover from.
    pub cq_entries: u32,
    /// How often a recovery is tried, at least 1.
    pub attempts: u32,
    /// Whether the program sleeps where there is nothing to poll, by `bw_link_arm` and `bw_link_fd`: 0 or 1.
    pub sleeps: u32,
    /// How long a recovery has to last for the faults before it to be forgotten.
    pub settle_ns: u64,
    /// How long flushed requests are waited for.
    pub drain_ns: u64,
    /// How long BW_EVENT_QP_LAST_WQE_REACHED is waited for.
    pub last_wqe_ns: u64,
    /// How long BW_CM_EVENT_TIMEWAIT_EXIT is waited for.
    pub timewait_ns: u64,
    /// How long a port that is down is waited for.
    pub port_ns: u64,
    /// How long the peer's answer is waited for.
    pub exchange_ns: u64,
    /// How long the peer may take from there on to be ready.
    pub ready_ns: u64,
    /// How long any other step may take.
    pub step_ns: u64,
    /// The delay before the second attempt; it doubles with each.
    pub backoff_first_ns: u64,
    /// The longest delay.
    pub backoff_max_ns: u64,
    /// Seed of the delays' jitter: two ends should not have the same.
    pub seed: u64,
    /// Send entries, receives and completions, each, of a queue pair whose connection fails that are kept
    /// for `bw_link_dump_failure`; 0: none.
    pub dump_entries: u32,
    /// Bits of `bw_dump_flags` for that.
    pub dump_flags: u32,
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for bw_link_init {
    fn default() -> Self {
        let init = LinkInit::default();
        let limits = init.limits;
        Self {
            size: size_of::<Self>() as u32,
            recover_in: bw_recover_in::BW_RECOVER_IN_POLLER as u32,
            qp: null(),
            connect: null(),
            memory_addr: 0,
            memory_length: 0,
            memory_rkey: 0,
            look_every: init.look_every,
            steps_at_once: init.steps_at_once,
            cq_entries: init.cq_entries.unwrap_or(0),
            attempts: limits.attempts,
            sleeps: 0,
            settle_ns: nanoseconds(limits.settle),
            drain_ns: nanoseconds(limits.drain),
            last_wqe_ns: nanoseconds(limits.last_wqe),
            timewait_ns: nanoseconds(limits.timewait),
            port_ns: nanoseconds(limits.port),
            exchange_ns: nanoseconds(limits.exchange),
            ready_ns: nanoseconds(limits.ready),
            step_ns: nanoseconds(limits.step),
            backoff_first_ns: nanoseconds(limits.backoff_first),
            backoff_max_ns: nanoseconds(limits.backoff_max),
            seed: limits.seed,
            dump_entries: 0,
            dump_flags: 0,
        }
    }
}

// SAFETY: repr(C), integers and pointers, without padding; the size is the first field.
unsafe impl Versioned for bw_link_init {
    const FIRST: usize = 136 + 2 * size_of::<*const bw_qp_init_attr>();
}

/// What the library takes.
pub(super) struct Checked(pub LinkInit);

impl bw_link_init {
    /// # Safety
    /// Both pointers are NULL, or point to such structs.
    pub(super) unsafe fn checked(&self) -> Result<Checked, Failure> {
        if self.sleeps > 1 {
            let text = format!("sleeps is {}, and has to be 0 or 1", self.sleeps);
            return Err(Failure::new(BW_EINVAL, text));
        }
        if self.attempts == 0 {
            return Err(Failure::new(
                BW_EINVAL,
                "attempts is 0, and has to be at least 1: bw_link_init_default fills the struct",
            ));
        }
        // SAFETY: the caller's promise.
        let (qp, connect) = unsafe {
            (
                sized::read_or_default(self.qp)?,
                sized::read_or_default(self.connect)?,
            )
        };
        sized::zero("reserved", qp.reserved | qp.reserved1)?;
        if qp.qp_type != BW_QPT_RC as u32 || !qp.srq.is_null() {
            return Err(Failure::new(
                BW_ETRANSPORT,
                "a link's queue pair is BW_QPT_RC, with a receive queue of its own",
            ));
        }
        let dump = bw_dump_attr {
            entries: self.dump_entries,
            flags: self.dump_flags,
            ..bw_dump_attr::default()
        };
        let dump = dump.options()?;
        let nanos = Duration::from_nanos;
        Ok(Checked(LinkInit {
            qp: QpInit::from(qp),
            connect: connect.checked()?,
            memory: RemoteMemory {
                addr: self.memory_addr,
                length: self.memory_length,
                rkey: self.memory_rkey,
            },
            limits: Limits {
                attempts: self.attempts,
                settle: nanos(self.settle_ns),
                drain: nanos(self.drain_ns),
                last_wqe: nanos(self.last_wqe_ns),
                timewait: nanos(self.timewait_ns),
                port: nanos(self.port_ns),
                exchange: nanos(self.exchange_ns),
                ready: nanos(self.ready_ns),
                step: nanos(self.step_ns),
                backoff_first: nanos(self.backoff_first_ns),
                backoff_max: nanos(self.backoff_max_ns),
                seed: self.seed,
            },
            recover_in: match self.recover_in {
                r if r == bw_recover_in::BW_RECOVER_IN_POLLER as u32 => RecoverIn::Poller,
                r if r == bw_recover_in::BW_RECOVER_IN_THREAD as u32 => RecoverIn::Thread,
                other => {
                    let text = format!("recover_in is {other}, which is not a bw_recover_in");
                    return Err(Failure::new(BW_EINVAL, text));
                }
            },
            steps_at_once: self.steps_at_once,
            look_every: self.look_every,
            cq_entries: (self.cq_entries != 0).then_some(self.cq_entries),
            sleeps: self.sleeps != 0,
            dump: (self.dump_entries != 0).then_some(dump),
        }))
    }
}

/// Fills `init`, of `size` bytes, with its size and the defaults:
/// `bw_link_init_default(&init, sizeof(init))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_init_default(init: *mut bw_link_init, size: usize) -> c_int {
    // SAFETY: the header on sized structs.
    guard(|| unsafe { sized::fill(init, size) })
}
