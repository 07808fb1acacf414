//! Extended reliable connections: XRC domains and targets.

use crate::code::BW_EINVAL;
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::modify::{bw_qp_attr, change};
use crate::number::bw_qp_type::BW_QPT_XRC_RECV;
use crate::number::bw_xrcd_mode;
use crate::qp_attr::{bw_connect_attr, bw_endpoint};
use crate::sized;
use crate::used::{Used, User};
use hw::{XrcTarget, Xrcd, XrcdMode};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

/// An XRC domain: its targets reach only the shared receive queues in it.
#[derive(Debug)]
pub struct bw_xrcd {
    pub(crate) xrcd: Xrcd,
    pub(crate) used: Used,
    _device: User,
}

/// An XRC target: the responder of an extended reliable connection. It has no queues: each request
/// names a shared receive queue of its domain.
#[derive(Debug)]
pub struct bw_xrc_target {
    target: XrcTarget,
    _xrcd: User,
}

/// Creates an XRC domain (`ibv_open_xrcd`, without a file).
///
/// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
/// Errors: `BW_EUNSUPPORTED` on a device without XRC, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrcd_create(
    device: *const bw_device,
    xrcd: *mut *mut bw_xrcd,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(xrcd, || {
            let device = get(device, "device")?;
            Ok(bw_xrcd {
                xrcd: device.device.open_xrcd()?,
                used: Used::default(),
                _device: device.used.by(),
            })
        })
    }
}

/// Opens the XRC domain of the file `fd` (`ibv_open_xrcd`). All that open it on this device with
/// the same file share the domain, on devices of libibverbs also across processes. `mode` is a
/// `bw_xrcd_mode`. The file's contents do not matter, and it may be closed afterwards.
///
/// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
/// Errors: `BW_EBUSY` if the domain exists and a new one was requested, `BW_EINVAL` (the domain does
/// not exist, and BW_XRCD_OPEN was requested; an unknown mode; no descriptor), `BW_EUNSUPPORTED` on a
/// device without XRC, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrcd_open(
    device: *const bw_device,
    fd: c_int,
    mode: u32,
    xrcd: *mut *mut bw_xrcd,
) -> c_int {
    let open = || {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        let mode = self::mode(mode)?;
        if fd < 0 {
            let text = format!("fd is {fd}, which is no descriptor (bw_xrcd_create needs none)");
            return Err(Failure::new(BW_EINVAL, text));
        }
        // SAFETY: not -1; used only during this call, and by the kernel, which checks that it is open.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(bw_xrcd {
            xrcd: device.device.open_xrcd_of(file, mode)?,
            used: Used::default(),
            _device: device.used.by(),
        })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(xrcd, open) }
}

fn mode(number: u32) -> Result<XrcdMode, Failure> {
    const OPEN: u32 = bw_xrcd_mode::BW_XRCD_OPEN as u32;
    const CREATE: u32 = bw_xrcd_mode::BW_XRCD_CREATE as u32;
    const CREATE_NEW: u32 = bw_xrcd_mode::BW_XRCD_CREATE_NEW as u32;
    match number {
        OPEN => Ok(XrcdMode::Open),
        CREATE => Ok(XrcdMode::Create),
        CREATE_NEW => Ok(XrcdMode::CreateNew),
        _ => {
            let text =
                format!("mode is {number}, which is not BW_XRCD_OPEN, _CREATE or _CREATE_NEW");
            Err(Failure::new(BW_EINVAL, text))
        }
    }
}

/// Destroys an XRC domain.
///
/// Errors: `BW_EBUSY` while targets or shared receive queues are in it, `BW_ENULL`.
/// Thread: any; no other call on the domain may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrcd_destroy(xrcd: *mut bw_xrcd) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(xrcd, "XRC domain", |xrcd| {
            xrcd.used
                .check("XRC domain", "targets or shared receive queues")
        })
    })
}

/// Creates a target in RESET.
///
/// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
/// Errors: `BW_EEXHAUSTED`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_create(
    xrcd: *const bw_xrcd,
    target: *mut *mut bw_xrc_target,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(target, || {
            let xrcd = get(xrcd, "XRC domain")?;
            Ok(bw_xrc_target {
                target: xrcd.xrcd.create_target()?,
                _xrcd: xrcd.used.by(),
            })
        })
    }
}

/// Opens an existing target of the domain by its number (`ibv_open_qp`). It may have been created by
/// this process or by another one that has opened the domain of the same file. All openers share the
/// target, which is destroyed with its last handle; only its creator can move it to RESET.
///
/// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
/// Errors: `BW_EINVAL` if the domain has no target of this number, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_open(
    xrcd: *const bw_xrcd,
    qp_num: u32,
    target: *mut *mut bw_xrc_target,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(target, || {
            let xrcd = get(xrcd, "XRC domain")?;
            Ok(bw_xrc_target {
                target: xrcd.xrcd.open_target(qp_num)?,
                _xrcd: xrcd.used.by(),
            })
        })
    }
}

/// Returns the endpoint to send to the initiator, by any means. Set `endpoint->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_endpoint(
    target: *const bw_xrc_target,
    endpoint: *mut bw_endpoint,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let ours = get(target, "XRC target")?.target.endpoint();
        sized::write(endpoint, &ours.into())
    })
}

/// Moves the target from RESET to INIT. If `attr` is NULL the defaults are used.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_init(
    target: *const bw_xrc_target,
    attr: *const bw_connect_attr,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        Ok(get(target, "XRC target")?.target.init(&attr)?)
    })
}

/// Moves the target from INIT to RTS, connected with the initiator `peer`. If `attr` is NULL the
/// defaults are used.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_connect(
    target: *const bw_xrc_target,
    peer: *const bw_endpoint,
    attr: *const bw_connect_attr,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        let peer = sized::read(peer)?.checked()?;
        Ok(get(target, "XRC target")?.target.connect(&peer, &attr)?)
    })
}

/// Changes state and attributes, as `bw_qp_modify` does; also to RESET, unless the target was opened.
///
/// Errors: those of `bw_qp_modify`; `BW_ESTATE` for RESET of a target that was opened.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_modify(
    target: *const bw_xrc_target,
    attr: *const bw_qp_attr,
    mask: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let target = get(target, "XRC target")?;
        let (attr, mask) = change(attr, mask)?;
        Ok(target.target.modify(&attr, mask)?)
    })
}

/// Queries state and attributes, as the device has them. Set `attr->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_query(
    target: *const bw_xrc_target,
    attr: *mut bw_qp_attr,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let target = &get(target, "XRC target")?.target;
        let found = bw_qp_attr::new(target.qp_num(), BW_QPT_XRC_RECV as u32, &target.query());
        sized::write(attr, &found)
    })
}

/// Destroys a target. Waits until the asynchronous events that were taken for it are acknowledged.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the target may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_xrc_target_destroy(target: *mut bw_xrc_target) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(target, "XRC target", |_| Ok(())) })
}
