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
use std::mem::offset_of;

/// A completion queue.
#[derive(Debug)]
pub struct bw_cq {
    pub(crate) cq: Cq,
    pub(crate) entered: Entered,
    pub(crate) used: Used,
    // Declared after the queue, which waits for its events to be acknowledged when it is dropped.
    _registered: Option<Registered>,
    _device: User,
}

/// Attributes of a completion queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_cq_attr {
    /// `sizeof(bw_cq_attr)`.
    pub size: u32,
    /// Entries, at least 1; the queue gets a power of two, and some more (`bw_cq_query`).
    /// `bw_qp_cq_entries` returns what a queue pair needs.
    pub entries: u32,
    /// Queue pairs that can complete here, up to 65536; 0 means 256.
    pub max_qp: u32,
    /// 0.
    pub reserved: u32,
    /// The completion channel that it raises its events on when armed (`bw_cq_req_notify`), or NULL.
    pub channel: *const bw_comp_channel,
    /// Returned with each of its events by `bw_get_cq_event`.
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
    const SIZES: &'static [usize] = &[offset_of!(Self, channel), size_of::<Self>()];
}

/// Size and state of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_cq_info {
    /// `sizeof(bw_cq_info)`.
    pub size: u32,
    /// Entries.
    pub entries: u32,
    /// Entries that are not reserved for a queue pair.
    pub unreserved: u32,
    /// Not 0: the queue overran, and the outcome of the requests whose entries were lost is unknown.
    /// Does not happen while queue pairs reserve their entries.
    pub overrun: u32,
    /// Entries dropped because they belonged to no request in flight.
    pub stale: u64,
    /// Its number, which its events carry.
    pub cqn: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_cq_info {
    const SIZES: &'static [usize] = &[offset_of!(Self, cqn), size_of::<Self>()];
}

/// How many queue pairs the entries of a completion queue can name.
const MAX_QP: u32 = 65536;

/// Creates a completion queue.
///
/// Owner: the caller, until `bw_cq_destroy`. It keeps the device open, and the channel.
/// Errors: `BW_ELIMIT` (more entries than the device supports), `BW_EINVAL` (no entries),
/// `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_create(
    device: *const bw_device,
    attr: *const bw_cq_attr,
    cq: *mut *mut bw_cq,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles and sized structs.
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
        // SAFETY: the header's conventions on handles; NULL means no channel.
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
    // SAFETY: the header's conventions on results.
    unsafe { give(cq, make) }
}

/// Returns the size and state of the completion queue. Set `info->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the completion queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_query(cq: *const bw_cq, info: *mut bw_cq_info) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
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
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Destroys a completion queue. Completions that were not polled are lost. Its events that were not
/// taken are removed; waits until the events that were taken are acknowledged.
///
/// Errors: `BW_EBUSY` while queue pairs, or shared receive queues for XRC, complete here, `BW_ENULL`.
/// Thread: the completion queue's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_destroy(cq: *mut bw_cq) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(cq, "completion queue", |cq| {
            cq.used
                .check("completion queue", "queue pairs or XRC queues")
        })
    })
}
