//! Monitors: counters that any thread reads while another one posts and polls.

use crate::code::BW_EUNSUPPORTED;
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::link::bw_link;
use crate::link::life::bw_link_counters;
use crate::link::set::{bw_link_id, bw_link_set};
use crate::qp::bw_qp;
use crate::sized::{self, Versioned};
use crate::transport::{AnyQp, each};
use hw::link::LinkId;
use hw::monitor::{LinkMonitor, LinkSetMonitor, QpMonitor, QueueCounters};
use hw::wr::WrOpcode;
use std::ffi::c_int;

/// Reads the counters of a queue pair, a link or a set, from any thread.
#[derive(Debug)]
pub struct bw_monitor(Of);

#[derive(Debug)]
enum Of {
    Qp(QpMonitor),
    Link(LinkMonitor),
    Set(LinkSetMonitor),
}

impl From<QpMonitor> for bw_monitor {
    fn from(monitor: QpMonitor) -> Self {
        Self(Of::Qp(monitor))
    }
}

/// Entries of `bw_queue_counters.requests` and `bytes`.
pub const BW_OPERATION_MAX: usize = 16;

/// The entry of BW_WR_NOP there; each other operation has the entry of its number.
pub const BW_OPERATION_NOP: usize = 15;

fn entry(operation: WrOpcode) -> Option<usize> {
    match operation {
        WrOpcode::Nop => Some(BW_OPERATION_NOP),
        other => Some(usize::from(other as u8)).filter(|at| *at < BW_OPERATION_NOP),
    }
}

/// Requests of a queue pair, and depths of its queues. A link has the requests of all its connections. A
/// set has the requests of all its links, removed ones included.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_queue_counters {
    /// `sizeof(bw_queue_counters)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Requests that were posted since the first monitor was created, by `bw_wr_opcode`; NOP has the entry
    /// BW_OPERATION_NOP. Requests that a link posts again count again, and its keep-alives count as
    /// BW_WR_RDMA_WRITE. A request is counted when the queue reloads its limit: at the latest one lap of the
    /// ring behind its post. Polls of a link or a set count, too, and `bw_qp_count` of a queue pair.
    pub requests: [u64; BW_OPERATION_MAX],
    /// Bytes that these requests send, or that a READ or an atomic brings. Bytes that were received are not
    /// counted.
    pub bytes: [u64; BW_OPERATION_MAX],
    /// Receives that were posted, counted like requests. Not those of a shared receive queue.
    pub receives: u64,
    /// Basic blocks of 64 bytes that sends may occupy at once. Most requests take one.
    pub send_slots: u64,
    /// Basic blocks of the sends that were rung and are not reported yet.
    pub sends_in_flight: u64,
    /// Receives that may be posted at once; 0 with a shared receive queue.
    pub recv_slots: u64,
    /// Receives that were rung and are not reported yet.
    pub receives_in_flight: u64,
    /// Late completions of earlier lives of queues, dropped by the completion queues of a link or a set. 0
    /// of a queue pair, and of a link of a set.
    pub stale: u64,
    /// Of a set: its links, ended ones included.
    pub links: u64,
    /// Of a set: links that are BW_LINK_READY. Of a link: 1 if it is. Of a queue pair: 0.
    pub ready: u64,
    /// Blocks of the shared receive queue that messages hold, of a set with `srq_max_held`.
    pub held: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_queue_counters {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl bw_queue_counters {
    fn of(queues: &QueueCounters) -> Self {
        let mut counters = Self {
            receives: queues.receives,
            send_slots: queues.send_slots,
            sends_in_flight: queues.sends_in_flight,
            recv_slots: queues.recv_slots,
            receives_in_flight: queues.receives_in_flight,
            ..Self::default()
        };
        for operation in WrOpcode::ALL {
            if let Some(at) = entry(*operation) {
                let posted = queues.sends(*operation);
                (counters.requests[at], counters.bytes[at]) = (posted.requests, posted.bytes);
            }
        }
        counters
    }
}

/// Creates a monitor of a queue pair. From the first one on, its requests are counted by operation. Posting
/// takes no instruction more for that; each request takes some once a lap of the ring.
///
/// Owner: the caller, until `bw_monitor_destroy`. It may outlive the queue pair.
/// Errors: `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_monitor(qp: *mut bw_qp, monitor: *mut *mut bw_monitor) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(monitor, || {
            let qp = get_mut(qp, "queue pair")?;
            qp.alone(|qp| Ok(each!(AnyQp, qp, qp => qp.monitor().into())))
        })
    }
}

/// Brings what monitors of the queue pair read up to date: counts the requests and receives that were
/// posted so far.
///
/// Errors: `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_count(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        get_mut(qp, "queue pair")?.alone(|qp| {
            each!(AnyQp, qp, qp => qp.count());
            Ok(())
        })
    })
}

/// Creates a monitor of a link, as `bw_qp_monitor` does of a queue pair. It stays with the link through
/// recoveries, also while a thread recovers the link.
///
/// Owner: the caller, until `bw_monitor_destroy`. It may outlive the link, and has its last counters then.
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_monitor(
    link: *mut bw_link,
    monitor: *mut *mut bw_monitor,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(monitor, || {
            let link = &mut get_mut(link, "link")?.link;
            Ok(bw_monitor(Of::Link(link.monitor())))
        })
    }
}

/// Creates a monitor of a set: its counters are the sums over all links. With the first one, the requests
/// of all links are counted by operation.
///
/// Owner: the caller, until `bw_monitor_destroy`. It may outlive the set.
/// Errors: `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_monitor(
    set: *mut bw_link_set,
    monitor: *mut *mut bw_monitor,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(monitor, || {
            let set = &mut get_mut(set, "set")?.set;
            Ok(bw_monitor(Of::Set(set.monitor())))
        })
    }
}

/// Creates a monitor of a link of the set, as `bw_link_monitor` does.
///
/// Owner: the caller, until `bw_monitor_destroy`. It may outlive the link and the set.
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_monitor_link(
    set: *mut bw_link_set,
    link: bw_link_id,
    monitor: *mut *mut bw_monitor,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(monitor, || {
            let set = &mut get_mut(set, "set")?.set;
            let mut link = set.link(LinkId::from_raw(link))?;
            Ok(bw_monitor(Of::Link(link.monitor())))
        })
    }
}

/// Reads the counters of requests, and the depths of the queues, not at one instant. While the counters of a
/// set are added up, a join or a removal of a link waits. Set `counters->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any, also while the owner uses the object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_monitor_read_queues(
    monitor: *const bw_monitor,
    counters: *mut bw_queue_counters,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let found = match &get(monitor, "monitor")?.0 {
            Of::Qp(monitor) => bw_queue_counters::of(&monitor.read()),
            Of::Link(monitor) => bw_queue_counters {
                stale: monitor.stale(),
                ready: monitor.is_ready().into(),
                held: monitor.held().into(),
                ..bw_queue_counters::of(&monitor.queues())
            },
            Of::Set(monitor) => {
                let links = monitor.links();
                let ready = links.iter().filter(|(_, link)| link.is_ready());
                bw_queue_counters {
                    stale: monitor.stale(),
                    links: links.len() as u64,
                    ready: ready.count() as u64,
                    held: links.iter().map(|(_, link)| u64::from(link.held())).sum(),
                    ..bw_queue_counters::of(&monitor.queues())
                }
            }
        };
        sized::write(counters, &found)
    })
}

/// Reads faults, recoveries and outcomes of a link, or their sums over all links of a set, removed ones
/// included. Of a set, `last_ns` and `longest_ns` are the longest of any link. Set `counters->size` before
/// the call.
///
/// Errors: `BW_EUNSUPPORTED` (it is a monitor of a queue pair), `BW_ENULL`, `BW_ESIZE`.
/// Thread: any, also while the owner uses the object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_monitor_read_link(
    monitor: *const bw_monitor,
    counters: *mut bw_link_counters,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let found = match &get(monitor, "monitor")?.0 {
            Of::Qp(_) => {
                let text = "a queue pair does not recover: read the monitor of a link, or of a set";
                return Err(Failure::new(BW_EUNSUPPORTED, text));
            }
            Of::Link(monitor) => monitor.counters(),
            Of::Set(monitor) => monitor.counters(),
        };
        sized::write(counters, &found.into())
    })
}

/// Destroys a monitor.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_monitor_destroy(monitor: *mut bw_monitor) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(monitor, "monitor", |_| Ok(())) })
}

/// A counter that nothing counts.
pub const BW_COUNTER_UNKNOWN: u64 = u64::MAX;

/// Counters of a device, since it was opened, or since the driver of the kernel was loaded.
/// BW_COUNTER_UNKNOWN: nothing counts it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_device_counters {
    /// `sizeof(bw_device_counters)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Times that a request of this device waited because the peer had no receive posted (an RNR NAK came).
    pub rnr_naks: u64,
    /// Times that a request was sent again, or waited longer, because no acknowledgement came in time.
    pub retries: u64,
}

impl Default for bw_device_counters {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            reserved: 0,
            rnr_naks: BW_COUNTER_UNKNOWN,
            retries: BW_COUNTER_UNKNOWN,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_device_counters {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Returns counters of a device. On a software device they are of all its contexts in this process. On a
/// device of libibverbs they are of all processes, as its driver shows them in
/// `/sys/class/infiniband/DEVICE/ports/N/hw_counters`. Set `counters->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_query_counters(
    device: *const bw_device,
    counters: *mut bw_device_counters,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let found = get(device, "device")?.device.counters();
        let found = bw_device_counters {
            rnr_naks: found.rnr_naks.unwrap_or(BW_COUNTER_UNKNOWN),
            retries: found.retries.unwrap_or(BW_COUNTER_UNKNOWN),
            ..Default::default()
        };
        sized::write(counters, &found)
    })
}
