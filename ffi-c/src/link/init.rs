//! Attributes that a link is created with.

use crate::code::{BW_EINVAL, BW_ETRANSPORT};
use crate::dump::bw_dump_attr;
use crate::failure::{Failure, guard};
use crate::number::bw_qp_type::BW_QPT_RC;
use crate::qp_attr::{bw_connect_attr, bw_qp_init_attr};
use crate::sized::{self, Versioned};
use hw::connect::RemoteMemory;
use hw::fault::plan::Limits;
use hw::link::{LinkInit, RecoverIn};
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::null;
use std::time::Duration;

/// Where a link's recovery runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_recover_in {
    /// In the polls of the link: a poll does what can be done at once, and never waits.
    BW_RECOVER_IN_POLLER = 0,
    /// In a thread that exists for as long as the recovery: meanwhile polls return at once and find
    /// nothing. Calls on the link that need more than its queues then return BW_ERECOVERING.
    BW_RECOVER_IN_THREAD = 1,
}

/// Attributes that a link is created with. `bw_link_init_default` fills it. Times are nanoseconds of
/// the device's clock.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_init {
    /// `sizeof(bw_link_init)`.
    pub size: u32,
    /// A `bw_recover_in`.
    pub recover_in: u32,
    /// Attributes of its queue pair; `qp_type` is BW_QPT_RC, there is no `srq`, and `reserve_cq` is
    /// ignored. NULL: the defaults. Like `connect`, it is read when the link is created.
    pub qp: *const bw_qp_init_attr,
    /// Attributes of its connection; the path MTU is the smaller of both ends'. NULL: the defaults.
    pub connect: *const bw_connect_attr,
    /// First address of the memory that the peer may access, which it learns with each connection.
    pub memory_addr: u64,
    /// Length of that memory in bytes; 0: there is none.
    pub memory_length: u64,
    /// Its rkey.
    pub memory_rkey: u32,
    /// Number of polls that find nothing between two checks of the exchange, the asynchronous
    /// events and the deadlines. The checks take system calls. 64 polls that find something count
    /// as one. 0 means 1.
    pub check_every: u32,
    /// Maximum number of recovery steps in one poll: each may be a call of the device's driver. 0 means
    /// 1.
    pub steps_per_poll: u32,
    /// Entries of the completion queue; 0: enough for everything that can be in flight. With fewer it
    /// overruns if the program does not poll in time, which is a fault that the link recovers from.
    pub cq_entries: u32,
    /// How often a recovery is attempted, at least 1, within `recovery_ns`.
    pub attempts: u32,
    /// Whether the program sleeps while there is nothing to poll, by `bw_link_arm` and `bw_link_fd`: 0
    /// or 1.
    pub sleeps: u32,
    /// How long a recovered link has to work until earlier faults are forgotten.
    pub stable_ns: u64,
    /// How long to wait for flushed requests.
    pub drain_ns: u64,
    /// How long to wait for BW_EVENT_QP_LAST_WQE_REACHED.
    pub last_wqe_ns: u64,
    /// How long to wait for BW_CM_EVENT_TIMEWAIT_EXIT.
    pub timewait_ns: u64,
    /// How long to wait for a port that is down.
    pub port_ns: u64,
    /// How long to wait for the peer's reply.
    pub exchange_ns: u64,
    /// How long the peer may take after its reply until it is ready.
    pub ready_ns: u64,
    /// How long any other step may take.
    pub step_ns: u64,
    /// The delay before the second attempt; each further delay is twice as long.
    pub backoff_first_ns: u64,
    /// The longest delay.
    pub backoff_max_ns: u64,
    /// Seed of the delays' jitter: the two ends should have different ones.
    pub seed: u64,
    /// How many send requests, receives and completions, each, of the queue pair of a failed connection
    /// are kept for `bw_link_dump_failure`; 0: none.
    pub dump_entries: u32,
    /// Bits of `bw_dump_flags` for that dump.
    pub dump_flags: u32,
    /// How long a recovery may take in total, with all attempts and delays. After that the link is
    /// given up, even if the times above would allow more. Within `recovery_ns + step_ns`, 20 s by
    /// default, after the fault the link is BW_LINK_READY again, or has ended and every outcome can
    /// be polled. This requires that it is polled meanwhile, or recovers in a thread, and that no
    /// hook blocks. A request is not posted again later than `recovery_ns` after a connection first
    /// failed with it in flight.
    pub recovery_ns: u64,
    /// How long a send may be in flight while the link works; 0: without a limit. One that takes
    /// longer is a fault of the link (BW_DEADLINE_MISSED), which then recovers, and posts it again or
    /// reports it. The fault is found no earlier, and within twice that time, by a poll that finds
    /// nothing. An unsignalled send is in flight until a signalled one behind it completes, and only
    /// counts if there is one.
    pub request_deadline_ns: u64,
    /// How soon the loss of the peer is detected, at the latest, while nothing is in flight; 0: not
    /// before something is posted. A link that was idle for half of this time sends an empty RDMA
    /// WRITE. If that is not acknowledged in the other half, the link has a fault
    /// (BW_KEEP_ALIVE_MISSED) and recovers. It is not reported, and takes a place in the send queue
    /// until it completes.
    pub keep_alive_ns: u64,
    /// Of a link of a set with `srq_max_held`: the limit of this link, in its place; 0: the set's. Of no meaning
    /// for other links.
    pub srq_max_held: u32,
    /// 0.
    pub reserved: u32,
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
            check_every: init.check_every,
            steps_per_poll: init.max_steps_per_poll,
            cq_entries: init.cq_entries.unwrap_or(0),
            attempts: limits.attempts,
            sleeps: 0,
            stable_ns: nanoseconds(limits.settle),
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
            recovery_ns: nanoseconds(limits.recovery),
            request_deadline_ns: init.request_deadline.map_or(0, nanoseconds),
            keep_alive_ns: init.keep_alive.map_or(0, nanoseconds),
            srq_max_held: 0,
            reserved: 0,
        }
    }
}

// SAFETY: repr(C), integers and pointers, without padding; the size is the first field.
unsafe impl Versioned for bw_link_init {
    const SIZES: &'static [usize] = &[
        offset_of!(Self, dump_entries),
        offset_of!(Self, recovery_ns),
        offset_of!(Self, request_deadline_ns),
        offset_of!(Self, srq_max_held),
        size_of::<Self>(),
    ];
}

/// Whether the program sleeps.
pub(super) fn sleeps(number: u32) -> Result<bool, Failure> {
    match number {
        0 | 1 => Ok(number == 1),
        other => {
            let text = format!("sleeps is {other}, and has to be 0 or 1");
            Err(Failure::new(BW_EINVAL, text))
        }
    }
}

/// The checked attributes, in the library's form.
pub(super) struct Checked(pub LinkInit);

impl bw_link_init {
    /// # Safety
    /// Both pointers in it are NULL, or point to structs as their types say.
    pub(super) unsafe fn checked(&self) -> Result<Checked, Failure> {
        let waitable = sleeps(self.sleeps)?;
        sized::zero("reserved", self.reserved)?;
        if self.attempts == 0 {
            return Err(Failure::new(
                BW_EINVAL,
                "attempts is 0, and has to be at least 1: bw_link_init_default fills the struct",
            ));
        }
        // SAFETY: the caller guarantees that both pointers are NULL or point to sized structs.
        let (qp, connect) = unsafe {
            (
                sized::read_or_default(self.qp)?,
                sized::read_or_default(self.connect)?,
            )
        };
        if qp.qp_type != BW_QPT_RC as u32 || !qp.srq.is_null() {
            return Err(Failure::new(
                BW_ETRANSPORT,
                "a link's queue pair is BW_QPT_RC, with a receive queue of its own",
            ));
        }
        let (_, qp_init) = qp.checked()?;
        let dump = bw_dump_attr {
            entries: self.dump_entries,
            flags: self.dump_flags,
            ..bw_dump_attr::default()
        };
        let dump = dump.options()?;
        let nanos = Duration::from_nanos;
        Ok(Checked(LinkInit {
            qp: qp_init,
            connect: connect.checked()?,
            memory: RemoteMemory {
                addr: self.memory_addr,
                length: self.memory_length,
                rkey: self.memory_rkey,
            },
            limits: Limits {
                attempts: self.attempts,
                recovery: nanos(self.recovery_ns),
                settle: nanos(self.stable_ns),
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
                r if r == bw_recover_in::BW_RECOVER_IN_POLLER as u32 => RecoverIn::Poll,
                r if r == bw_recover_in::BW_RECOVER_IN_THREAD as u32 => RecoverIn::Thread,
                other => {
                    let text = format!("recover_in is {other}, which is not a bw_recover_in");
                    return Err(Failure::new(BW_EINVAL, text));
                }
            },
            max_steps_per_poll: self.steps_per_poll,
            check_every: self.check_every,
            cq_entries: (self.cq_entries != 0).then_some(self.cq_entries),
            waitable,
            dump: (self.dump_entries != 0).then_some(dump),
            request_deadline: (self.request_deadline_ns != 0)
                .then_some(nanos(self.request_deadline_ns)),
            keep_alive: (self.keep_alive_ns != 0).then_some(nanos(self.keep_alive_ns)),
            max_held: (self.srq_max_held != 0).then_some(self.srq_max_held),
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
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(init, size) })
}
