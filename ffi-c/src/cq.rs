//! Completion queues. Polling is in `wc`.

use crate::channel::{Registered, bw_comp_channel};
use crate::code::BW_ELIMIT;
use crate::device::bw_device;
use crate::entered::Entered;
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::sized::{self, Versioned};
use crate::used::{Used, User};
use hw::{Cq, CqInit};
use std::ffi::{c_int, c_void};

/// A completion queue.
#[derive(Debug)]
pub struct bw_cq {
    pub(crate) cq: Cq,
    pub(crate) entered: Entered,
    pub(crate) used: Used,
    // Behind the queue, which waits for its events to be acknowledged.
    _registered: Option<Registered>,
    _device: User,
}

/// How a completion queue is to be made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_cq_attr {
    /// `sizeof(bw_cq_attr)`.
    pub size: u32,
    /// Entries, at least 1; the queue has a power of two, and some more (`bw_cq_query`).
    /// `bw_qp_cq_entries` tells what a queue pair needs.
    pub entries: u32,
    /// Queue pairs that can complete here, up to 65536; 0 is 256.
    pub max_qp: u32,
    /// 0.
    pub reserved: u32,
    /// The channel that it tells of entries when armed (`bw_cq_req_notify`), or NULL.
    pub channel: *const bw_comp_channel,
    /// Given back with each of its events, `bw_get_cq_event`.
    pub cq_context: *mut c_void,
}

impl Default for bw_cq_attr {
    fn default() -> Self {
        Self {
            size: 0,
            entries: 0,
            max_qp: 0,
            reserved: 0,
            channel: std::ptr::null(),
            cq_context: std::ptr::null_mut(),
        }
    }
}

// SAFETY: repr(C), integers and pointers, without padding; the size is the first field.
unsafe impl Versioned for bw_cq_attr {
    const FIRST: usize = 16;
}

/// How a completion queue stands.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_cq_info {
    /// `sizeof(bw_cq_info)`.
    pub size: u32,
    /// Entries.
    pub entries: u32,
    /// Entries that are not reserved for a queue pair.
    pub unreserved: u32,
    /// Not 0: an entry was lost, and what it told of cannot be known. Does not happen while queue
    /// pairs reserve their entries.
    pub overrun: u32,
    /// Entries dropped because they told of no request in flight.
    pub stale: u64,
    /// Its number, by which events name it.
    pub cqn: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: as above.
unsafe impl Versioned for bw_cq_info {
    const FIRST: usize = 24;
}

/// Queue pairs that the entries of a completion queue can name.
const MAX_QP: u32 = 65536;

/// Creates a completion queue.
///
/// Owner: the caller, until `bw_cq_destroy`. It keeps the device open, and the channel.
/// Errors: `BW_ELIMIT` (no entries, or more than the device has), `BW_EINVAL`, `BW_EFOREIGN`,
/// `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_create(
    device: *const bw_device,
    attr: *const bw_cq_attr,
    cq: *mut *mut bw_cq,
) -> c_int {
    let make = || {
        // SAFETY: the header on handles and sized structs.
        let (device, attr) = unsafe { (get(device, "device")?, sized::read(attr)?) };
        sized::zero("reserved", attr.reserved)?;
        let qps = match attr.max_qp {
            0 => 256,
            given if given <= MAX_QP => given as usize,
            given => {
                let text = format!("max_qp is {given}, at most {MAX_QP}");
                return Err(Failure::new(BW_ELIMIT, text));
            }
        };
        // SAFETY: the header on handles; NULL is none.
        let channel = unsafe { attr.channel.as_ref() };
        let cq = device.device.create_cq_with(&CqInit {
            qps,
            channel: channel.map(|channel| &channel.channel),
            ..CqInit::new(attr.entries)
        })?;
        Ok(bw_cq {
            _registered: channel.map(|channel| channel.register(cq.cqn(), attr.cq_context)),
            cq,
            entered: Entered::default(),
            used: Used::default(),
            _device: device.used.by(),
        })
    };
    // SAFETY: the header on results.
    unsafe { give(cq, make) }
}

/// How the completion queue stands. Set `info->size` before.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the completion queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_query(cq: *const bw_cq, info: *mut bw_cq_info) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let cq = &unsafe { get(cq, "completion queue")? }.cq;
        let found = bw_cq_info {
            size: 0,
            entries: cq.capacity(),
            unreserved: cq.unreserved(),
            overrun: cq.overrun().into(),
            stale: cq.stale(),
            cqn: cq.cqn(),
            reserved: 0,
        };
        // SAFETY: the header on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Destroys a completion queue. What it had not told yet is not told any more. Its events that were
/// not got are removed; waits until those that were got are acknowledged.
///
/// Errors: `BW_EBUSY` while there are queue pairs, or shared receive queues for XRC, that complete
/// here, `BW_ENULL`.
/// Thread: the completion queue's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_destroy(cq: *mut bw_cq) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        take(cq, "completion queue", |cq| {
            cq.used
                .check("completion queue", "queue pairs or XRC queues")
        })
    })
}
