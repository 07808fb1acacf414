//! Devices.

use crate::code::{BW_ECLOCK, BW_EINVAL, BW_ELIMIT, BW_ENODEV, BW_EOTHER};
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::sized::{self, Versioned};
use crate::used::Used;
use hw::soft::{ClockKind, HcaConfig, Mode};
use hw::sources::DeviceList;
use hw::{Device, DeviceInfo, ProviderKind};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::offset_of;
use std::time::Duration;

/// An open device.
#[derive(Debug)]
pub struct bw_device {
    pub(crate) device: Device,
    /// Why "auto" chose this device; empty if nothing was chosen.
    choice: CString,
    pub(crate) used: Used,
}

/// What executes the requests of a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_mode {
    /// The thread that rings the doorbell: the lowest latency.
    BW_SOFT_INLINE = 0,
    /// The device's own threads, as a network adapter would.
    BW_SOFT_ENGINE = 1,
}

/// How a software device measures time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_clock {
    /// By the machine's monotonic clock.
    BW_CLOCK_REAL = 0,
    /// By a clock that stands still until `bw_device_advance`. With BW_SOFT_INLINE and one thread
    /// everything that the device does is then deterministic.
    BW_CLOCK_VIRTUAL = 1,
}

/// How a private software device is made. A struct that is all zero, except for the size, is the
/// default.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_soft_config {
    /// `sizeof(bw_soft_config)`.
    pub size: u32,
    /// A `bw_soft_mode`.
    pub mode: u32,
    /// Threads of BW_SOFT_ENGINE, up to 64; 0 means one.
    pub threads: u32,
    /// A `bw_soft_clock`.
    pub clock: u32,
    /// Seed of its random-looking keys; 0: taken from the operating system.
    pub seed: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_soft_config {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Characters of a name, including its NUL.
pub const BW_NAME_MAX: usize = 64;
/// Characters of a description, including its NUL.
pub const BW_TEXT_MAX: usize = 128;

/// What a device is, and what it supports (`ibv_device_attr`, as far as it applies).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_device_info {
    /// `sizeof(bw_device_info)`.
    pub size: u32,
    /// READs and atomics in flight to one peer.
    pub max_qp_rd_atom: u32,
    /// Its name, for `bw_device_open`.
    pub name: [c_char; BW_NAME_MAX],
    /// A description, for people.
    pub description: [c_char; BW_TEXT_MAX],
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter/gather elements of a request.
    pub max_sge: u32,
    /// Maximum inline bytes of a request.
    pub max_inline_data: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions and windows together.
    pub max_mr: u32,
    /// Maximum bytes of a memory region.
    pub max_mr_size: u64,
    /// Maximum bytes of a message.
    pub max_msg_sz: u64,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of receives in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter/gather elements of such a receive.
    pub max_srq_sge: u32,
    /// Maximum number of queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of partition keys of a port.
    pub max_pkeys: u32,
    /// Number of ports; they count from 1.
    pub phys_port_cnt: u32,
    /// Maximum number of memory windows, of either type; they share the keys of the regions.
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
    const SIZES: &'static [usize] = &[
        offset_of!(Self, max_srq),
        offset_of!(Self, max_mw),
        size_of::<Self>(),
    ];
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

/// As much of a text as fits, with its NUL.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// Describes the device at `index` of the device list, counting from 0: `for (i = 0; bw_device_at(i,
/// &info) == BW_OK; i++) …`. Set `info->size` before the call.
///
/// Past the end of the list `bw_last_error` says why there are no more devices. For each source of
/// devices, and each device that cannot be used, it names the missing part and what to do.
/// Examples: a library was not found, cannot be loaded or is too old; the kernel has no RDMA
/// support or no device. Or there is no /dev/infiniband, or no permission for it; or libibverbs has
/// no provider for the device.
///
/// Errors: `BW_ENODEV` past the end of the list, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_at(index: u32, info: *mut bw_device_info) -> c_int {
    guard(|| {
        let DeviceList {
            devices, absent, ..
        } = Device::list();
        let found = devices.get(index as usize).ok_or_else(|| {
            let mut text = format!("no device at {index}: there are {}", devices.len());
            for absent in absent {
                text += &format!("; {absent}");
            }
            Failure::new(BW_ENODEV, text)
        })?;
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found.into()) }
    })
}

/// Opens a device by name. "soft" is the software device that the whole process shares, inline and
/// on the real clock. "auto" is the best device available; `bw_device_choice` explains the choice.
/// "soft:NAME" is this process's node of the fabric of that name. Its queue pairs reach those of
/// all processes of the same user that have opened it as well. Regions that are created on it are
/// memory that these processes map. It does not survive a fork: a child that opens it again has a
/// node of its own.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ENODEV`, `BW_EINVAL` (no fabric can have this name), `BW_EEXHAUSTED` (the fabric has 4096
/// nodes already), `BW_EMEMORY`, `BW_EOTHER` (no thread or descriptor for it), `BW_ENULL`.
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
    // SAFETY: the header's conventions on results.
    unsafe { give(device, make) }
}

/// Opens a private software device: queue pairs of other devices cannot reach it. If `config` is NULL
/// the defaults are used.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_EINVAL`, `BW_ELIMIT`, `BW_EMEMORY`, `BW_EOTHER` (no thread or descriptor for it),
/// `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_open_soft(
    config: *const bw_soft_config,
    device: *mut *mut bw_device,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on sized structs.
        let config = soft_config(&unsafe { sized::read_or_default(config)? })?;
        Ok(handle(Device::try_soft(config)?))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(device, make) }
}

/// Opens a private node of the fabric of this name: "lab" is the fabric of "soft:lab". A process
/// can have several. Queue pairs of one reach those of another as they reach those of another
/// process. `bw_device_open` opens the node that the process shares. If `config` is NULL the
/// defaults are used; the clock of a fabric is BW_CLOCK_REAL.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_EINVAL` (no fabric can have this name, or this clock), `BW_ELIMIT`, `BW_EEXHAUSTED` (the
/// fabric has 4096 nodes already), `BW_EMEMORY`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
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
        // SAFETY: the header's conventions on sized structs.
        let config = soft_config(&unsafe { sized::read_or_default(config)? })?;
        Ok(handle(Device::join(&fabric, config)?))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(device, make) }
}

/// Opens the same device again: another context, with asynchronous events of its own. Objects of the
/// two contexts cannot be combined, but their queue pairs reach each other.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_reopen(
    device: *const bw_device,
    again: *mut *mut bw_device,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(again, || {
            Ok(handle(get(device, "device")?.device.reopen()?))
        })
    }
}

pub(crate) fn handle(device: Device) -> bw_device {
    let choice = device.choice().map(ToString::to_string);
    bw_device {
        device,
        choice: CString::new(choice.unwrap_or_default()).unwrap_or_default(),
        used: Used::default(),
    }
}

/// Why "auto" chose this device, for people, and why each other device was passed over. It is the
/// first with an active port, or, if there is none, the software device. Empty for a device that
/// was opened by its own name, and for NULL. Never NULL; valid until `bw_device_close`.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_choice(device: *const bw_device) -> *const c_char {
    // SAFETY: the header's conventions on handles.
    let device = unsafe { get(device, "device") };
    device.map_or(c"".as_ptr(), |device| device.choice.as_ptr())
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

/// Describes the device and its capabilities. Set `info->size` before the call.
///
/// Errors: `BW_ENODEV` if the device is gone, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_query(
    device: *const bw_device,
    info: *mut bw_device_info,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        let name = device.device.name();
        // Nodes of a fabric are not listed by their own names.
        let is_soft = device.device.provider() == ProviderKind::Soft;
        let listed = if is_soft { "soft" } else { name };
        let mut devices = Device::list().devices.into_iter();
        let found = devices.find(|info| info.name == listed);
        let mut found =
            found.ok_or_else(|| Failure::new(BW_ENODEV, format!("the device {name} is gone")))?;
        found.name = name.to_owned();
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &(&found).into()) }
    })
}

/// What executes a device's requests, and how they get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_provider {
    /// The software device of this library.
    BW_PROVIDER_SOFT = 0,
    /// A device of libibverbs: requests and completions go through libibverbs.
    BW_PROVIDER_VERBS = 1,
    /// A ConnectX device whose rings the library writes and reads directly.
    BW_PROVIDER_MLX5 = 2,
}

/// How the device is driven: a `bw_provider`, 0 or more. A ConnectX device is BW_PROVIDER_VERBS if its
/// rings are not available, or if BELLWIRE_VERBS_ONLY=1 is set in the environment.
///
/// Errors: `BW_EOTHER` for a provider that this header has no number for, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_provider(device: *const bw_device) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
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

/// Executes requests whose time has come: requests that wait for a receive at the peer, or for an
/// acknowledgement. Polling a completion queue does the same.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_progress(device: *const bw_device) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        unsafe { get(device, "device")? }.device.progress();
        Ok(())
    })
}

/// Advances a virtual clock by `nanoseconds`, and executes requests whose time has come.
///
/// Errors: `BW_ECLOCK` if the device runs on the real clock, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_advance(device: *const bw_device, nanoseconds: u64) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        let by = Duration::from_nanos(nanoseconds);
        if (device.device.as_soft()).is_some_and(|soft| soft.advance(by)) {
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
/// Errors: `BW_EBUSY` while any of its objects exist, `BW_ENULL`.
/// Thread: any; no other call on the device may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_close(device: *mut bw_device) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(device, "device", |device| {
            let users = "protection domains, completion queues or channels, XRC domains, events, \
                         connectors or listeners";
            device.used.check("device", users)
        })
    })
}
