//! Numbers of objects on a device.

use crate::device::bw_device;
use crate::failure::guard;
use crate::handle::get;
use crate::sized::{self, Versioned};
use hw::Resources;
use std::ffi::c_int;

/// How many objects of each kind a device has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_resources {
    /// `sizeof(bw_resources)`.
    pub size: u32,
    /// Protection domains.
    pub pd: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs, including XRC targets.
    pub qp: u32,
    /// Memory regions.
    pub mr: u32,
    /// Memory windows.
    pub mw: u32,
    /// Shared receive queues.
    pub srq: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_resources {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl From<Resources> for bw_resources {
    fn from(there: Resources) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            pd: there.pd,
            cq: there.cq,
            qp: there.qp,
            mr: there.mr,
            mw: there.mw,
            srq: there.srq,
            reserved: 0,
        }
    }
}

/// Counts the objects on the device, to check that nothing is left. On a software device it counts
/// the objects of all its contexts in this process, on a device of libibverbs the objects of this
/// context. Set `resources->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_resources(
    device: *const bw_device,
    resources: *mut bw_resources,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let there = get(device, "device")?.device.resources();
        sized::write(resources, &there.into())
    })
}
