//! Devices.

use crate::code::{BW_ECLOCK, BW_EINVAL, BW_ELIMIT, BW_ENODEV, BW_EOTHER};
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::sized::{self, Versioned};
use crate::used::Used;
use hw::soft::{ClockKind, HcaConfig, Mode};
use hw::{Device, DeviceInfo, ProviderKind};
use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

/// An open device.
#[derive(Debug)]
pub struct bw_device {
    pub(crate) device: Device,
    pub(crate) used: Used,
}

/// Who executes requests on a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_mode {
    /// Whoever rings the doorbell, on its own thread: the lowest latency.
    BW_SOFT_INLINE = 0,
    /// Threads of the device's own, as a network card would.
    BW_SOFT_ENGINE = 1,
}

/// How a software device tells the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_clock {
    /// By the machine's monotonic clock.
    BW_CLOCK_REAL = 0,
    /// By a clock that stands still until `bw_device_advance`. With BW_SOFT_INLINE and one thread
    /// everything that the device does is then deterministic.
    BW_CLOCK_VIRTUAL = 1,
}

/// How a software device of one's own is made. All zero but the size is the default.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_soft_config {
    /// `sizeof(bw_soft_config)`.
    pub size: u32,
    /// A `bw_soft_mode`.
    pub mode: u32,
    /// Threads of BW_SOFT_ENGINE, up to 64; 0 is one.
    pub threads: u32,
    /// A `bw_soft_clock`.
    pub clock: u32,
    /// Where its random-looking keys come from; 0: from the operating system.
    pub seed: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_soft_config {
    const FIRST: usize = 24;
}

/// Characters of a name, its end included.
pub const BW_NAME_MAX: usize = 64;
/// Characters of a description, its end included.
pub const BW_TEXT_MAX: usize = 128;

/// What a device is, and what it can do (`ibv_device_attr`, as far as it has a meaning here).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_device_info {
    /// `sizeof(bw_device_info)`.
    pub size: u32,
    /// READs and atomics in flight to one peer.
    pub max_qp_rd_atom: u32,
    /// What `bw_device_open` takes.
    pub name: [c_char; BW_NAME_MAX],
    /// What it is, for people.
    pub description: [c_char; BW_TEXT_MAX],
    /// Queue pairs at once.
    pub max_qp: u32,
    /// Requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one request.
    pub max_sge: u32,
    /// Inline bytes of one request.
    pub max_inline_data: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions and windows at once.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Bytes of one message.
    pub max_msg_sz: u64,
    /// Shared receive queues at once.
    pub max_srq: u32,
    /// Receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one of its receives.
    pub max_srq_sge: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Partition keys of a port.
    pub max_pkeys: u32,
    /// Ports; they count from 1.
    pub phys_port_cnt: u32,
    /// Memory windows at once, of either type; they share the regions' keys.
    pub max_mw: u32,
    /// 0.
    pub reserved: u32,
}

impl Default for bw_device_info {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            max_qp_rd_atom: 0,
            name: [0; BW_NAME_MAX],
            description: [0; BW_TEXT_MAX],
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_inline_data: 0,
            max_cqe: 0,
            max_mr: 0,
            max_mr_size: 0,
            max_msg_sz: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_mcast_qp_attach: 0,
            max_pkeys: 0,
            phys_port_cnt: 0,
            max_mw: 0,
            reserved: 0,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_device_info {
    const FIRST: usize = 240;
}

impl From<&DeviceInfo> for bw_device_info {
    fn from(info: &DeviceInfo) -> Self {
        let attr = &info.attr;
        Self {
            max_qp_rd_atom: attr.max_qp_rd_atom.into(),
            name: text(&info.name),
            description: text(&info.description),
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_inline_data: attr.max_inline_data,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_mr_size: attr.max_mr_size,
            max_msg_sz: attr.max_msg_sz,
            max_srq: attr.max_srq,
            max_srq_wr: attr.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            max_mcast_qp_attach: attr.max_mcast_qp_attach,
            max_pkeys: attr.max_pkeys.into(),
            phys_port_cnt: attr.phys_port_cnt.into(),
            max_mw: attr.max_mw,
            ..Self::default()
        }
    }
}

/// As much of a text as fits, with its end.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// Describes the device at `index` of the list of devices, from 0 on:
/// `for (i = 0; bw_device_at(i, &info) == BW_OK; i++) …`. Set `info->size` before.
///
/// Errors: `BW_ENODEV` behind the end of the list, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_at(index: u32, info: *mut bw_device_info) -> c_int {
    guard(|| {
        let list = Device::list();
        let found = list.get(index as usize).ok_or_else(|| {
            let text = format!("no device at {index}: there are {}", list.len());
            Failure::new(BW_ENODEV, text)
        })?;
        // SAFETY: the header on sized structs.
        unsafe { sized::write(info, &found.into()) }
    })
}

/// Opens a device by name. "soft" is the software device that all of the process shares, inline and
/// on the real clock; "auto" is the best that there is. "soft:NAME" is this process's node of the
/// fabric of that name: its queue pairs reach those of all processes of the same user that have
/// opened it too. Regions that are created on it are memory that these processes map. It does not
/// survive a fork: the child opens it anew.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ENODEV`, `BW_EINVAL` (no fabric can have this name), `BW_EEXHAUSTED` (64 nodes are
/// there already), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_open(name: *const c_char, device: *mut *mut bw_device) -> c_int {
    let make = || {
        if name.is_null() {
            return Err(Failure::null("the device's name"));
        }
        // SAFETY: not NULL, so a C string by the header's conventions.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        Ok(handle(Device::open(&name)?))
    };
    // SAFETY: the header on results.
    unsafe { give(device, make) }
}

/// Opens a software device of one's own: queue pairs of other devices cannot reach it. `config` may
/// be NULL: the default.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_EINVAL`, `BW_ELIMIT`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_open_soft(
    config: *const bw_soft_config,
    device: *mut *mut bw_device,
) -> c_int {
    let make = || {
        // SAFETY: the header on sized structs.
        let config = soft_config(&unsafe { sized::read_or_default(config)? })?;
        Ok(handle(Device::soft(config)))
    };
    // SAFETY: the header on results.
    unsafe { give(device, make) }
}

/// Opens a node of the fabric of this name that is the caller's own: "lab" is the fabric of
/// "soft:lab". A process can have several, and queue pairs of one reach those of another as they reach
/// another process's; `bw_device_open` gives the one that the process shares. `config` may be NULL: the
/// default; a fabric's clock is BW_CLOCK_REAL.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_EINVAL` (no fabric can have this name, or the clock), `BW_ELIMIT`, `BW_EEXHAUSTED` (64
/// nodes are there already), `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_join(
    fabric: *const c_char,
    config: *const bw_soft_config,
    device: *mut *mut bw_device,
) -> c_int {
    let make = || {
        if fabric.is_null() {
            return Err(Failure::null("the fabric's name"));
        }
        // SAFETY: not NULL, so a C string by the header's conventions.
        let fabric = unsafe { CStr::from_ptr(fabric) }.to_string_lossy();
        // SAFETY: the header on sized structs.
        let config = soft_config(&unsafe { sized::read_or_default(config)? })?;
        Ok(handle(Device::join(&fabric, config)?))
    };
    // SAFETY: the header on results.
    unsafe { give(device, make) }
}

/// Opens the same device once more: another context, with asynchronous events of its own. Objects of
/// the two cannot be combined, but their queue pairs reach each other.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_reopen(
    device: *const bw_device,
    again: *mut *mut bw_device,
) -> c_int {
    // SAFETY: the header on handles and results.
    unsafe {
        give(again, || {
            Ok(handle(get(device, "device")?.device.reopen()?))
        })
    }
}

fn handle(device: Device) -> bw_device {
    bw_device {
        device,
        used: Used::default(),
    }
}

const MAX_THREADS: u32 = 64;

fn soft_config(config: &bw_soft_config) -> Result<HcaConfig, Failure> {
    let unknown = |what, value| {
        let text = format!("{what} is {value}, which is not one that there is");
        Failure::new(BW_EINVAL, text)
    };
    if config.threads > MAX_THREADS {
        let text = format!("threads is {}, at most {MAX_THREADS}", config.threads);
        return Err(Failure::new(BW_ELIMIT, text));
    }
    Ok(HcaConfig {
        mode: match config.mode {
            m if m == bw_soft_mode::BW_SOFT_INLINE as u32 => Mode::Inline,
            m if m == bw_soft_mode::BW_SOFT_ENGINE as u32 => Mode::Engine {
                threads: config.threads.max(1) as usize,
            },
            other => return Err(unknown("mode", other)),
        },
        clock: match config.clock {
            c if c == bw_soft_clock::BW_CLOCK_REAL as u32 => ClockKind::Real,
            c if c == bw_soft_clock::BW_CLOCK_VIRTUAL as u32 => ClockKind::Virtual,
            other => return Err(unknown("clock", other)),
        },
        seed: (config.seed != 0).then_some(config.seed),
        journal: false,
    })
}

/// What the device is and can do. Set `info->size` before.
///
/// Errors: `BW_ENODEV` when it is gone, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_query(
    device: *const bw_device,
    info: *mut bw_device_info,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let device = unsafe { get(device, "device")? };
        let name = device.device.name();
        let found = Device::list().into_iter().find(|info| info.name == name);
        let found =
            found.ok_or_else(|| Failure::new(BW_ENODEV, format!("the device {name} is gone")))?;
        // SAFETY: the header on sized structs.
        unsafe { sized::write(info, &(&found).into()) }
    })
}

/// By whom a device's requests are executed, and how they get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_provider {
    /// The software device of this library.
    BW_PROVIDER_SOFT = 0,
    /// A device of libibverbs, whose requests and completions go through it.
    BW_PROVIDER_VERBS = 1,
    /// A ConnectX device, whose rings the library writes and reads itself.
    BW_PROVIDER_MLX5 = 2,
}

/// Which way the device is driven: a `bw_provider`, 0 or more. A ConnectX device is BW_PROVIDER_VERBS
/// where its rings cannot be had, or BELLWIRE_VERBS_ONLY=1 is in the environment.
///
/// Errors: `BW_EOTHER` for a way that this header has no number of, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_provider(device: *const bw_device) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let kind = unsafe { get(device, "device")? }.device.provider();
        match kind {
            ProviderKind::Soft => Ok(bw_provider::BW_PROVIDER_SOFT as c_int),
            ProviderKind::Verbs => Ok(bw_provider::BW_PROVIDER_VERBS as c_int),
            ProviderKind::Mlx5 => Ok(bw_provider::BW_PROVIDER_MLX5 as c_int),
            other => {
                let text = format!("the device is driven by {other}, which has no number");
                Err(Failure::new(BW_EOTHER, text))
            }
        }
    })
}

/// Lets requests go on whose time has come: those that wait for a receive at the peer, or for an
/// acknowledgement. Polling a completion queue does the same.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_progress(device: *const bw_device) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        unsafe { get(device, "device")? }.device.progress();
        Ok(())
    })
}

/// Moves a virtual clock on by `nanoseconds`, and lets requests go on whose time has come.
///
/// Errors: `BW_ECLOCK` when the clock is the real one, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_advance(device: *const bw_device, nanoseconds: u64) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let device = unsafe { get(device, "device")? };
        if device.device.advance(Duration::from_nanos(nanoseconds)) {
            return Ok(());
        }
        Err(Failure::new(
            BW_ECLOCK,
            "the device's clock is the real one: open it by bw_device_open_soft with \
             BW_CLOCK_VIRTUAL",
        ))
    })
}

/// Closes a device.
///
/// Errors: `BW_EBUSY` while there is anything of it, `BW_ENULL`.
/// Thread: any; no other call on the device may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_close(device: *mut bw_device) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        take(device, "device", |device| {
            let users = "protection domains, completion queues or channels, XRC domains, events, \
                         connectors or listeners";
            device.used.check("device", users)
        })
    })
}
