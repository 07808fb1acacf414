//! What there is on a device, by numbers.

use crate::device::bw_device;
use crate::failure::guard;
use crate::handle::get;
use crate::sized::{self, Versioned};
use hw::Resources;
use std::ffi::c_int;

/// How many objects there are on a device, of each kind.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_resources {
    /// `sizeof(bw_resources)`.
    pub size: u32,
    /// Protection domains.
    pub pd: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs, targets of XRC among them.
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
    const FIRST: usize = 32;
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

/// Counts what there is on the device, to see that nothing is left: of a software device by all its
/// contexts in this process, of a device of libibverbs by this context. Set `resources->size` before.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_resources(
    device: *const bw_device,
    resources: *mut bw_resources,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let there = get(device, "device")?.device.resources();
        sized::write(resources, &there.into())
    })
}
