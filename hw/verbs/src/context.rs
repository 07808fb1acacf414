//! An open device, and the objects on it that are found by number.

use super::ah::AhTable;
use super::qp::Qp;
use super::sys;
use crate::error::Error;
use bellwire_core::qp::{AhAttr, GlobalRoute, Mtu};
use bellwire_memory::fork::{Life, PerProcess};
use bellwire_provider::attr::Resources;
use bellwire_provider::attr::{DeviceAttr, DeviceInfo, PortAttr, PortState};
use bellwire_provider::numbers::Numbers;
use bellwire_provider::path::{HOP_LIMIT, UdpSport};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// An open device (`ibv_context`). Every object created on it keeps it alive.
#[derive(Debug)]
pub struct Context {
    handle: NonNull<sys::ibv_context>,
    name: Box<str>,
    attr: DeviceAttr,
    max_inline: OnceLock<u32>,
    driver_limit: u32,
    /// The device is Soft-RoCE (rxe), on which some requests crash the kernel.
    pub(super) is_rxe: bool,
    has_xrc: bool,
    /// The device's queues are to be plain ones: see [`PLAIN`].
    pub(super) is_plain: bool,
    pub(super) cqns: Numbers,
    pub(super) srqns: Numbers,
    next_pd: AtomicU32,
    /// Number of protection domains.
    pub pds: AtomicU32,
    tables: Mutex<Tables>,
    pub(super) ahs: AhTable,
    /// The device has reported that it failed.
    dead: AtomicBool,
    /// Core drives its rings, without libibverbs.
    drives_rings: bool,
    /// Doorbell registers that several queue pairs share, where core rings them.
    pub registers: crate::Registers,
    /// Of the process that opened it.
    life: Life,
}

/// The objects that requests and the program name by number.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub qps: HashMap<u32, Arc<Qp>>,
    /// The multicast groups that each queue pair is attached to, by queue pair number. Linux destroys no
    /// queue pair that is attached to one.
    pub groups: HashMap<u32, Vec<([u8; 16], u16)>>,
    /// By lkey.
    pub mrs: HashMap<u32, NonNull<sys::ibv_mr>>,
    /// By rkey, without the key's low byte.
    pub windows: HashMap<u32, Window>,
    /// XRC targets by queue pair number: how many times each was created or opened here.
    pub targets: HashMap<u32, u32>,
}

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    pub mw: NonNull<sys::ibv_mw>,
    /// The lkey of the region that it was last bound to.
    pub bound: Option<u32>,
}

// SAFETY: libibverbs may be called from any thread, and the tables are locked.
unsafe impl Send for Context {}
// SAFETY: libibverbs may be called from any thread, and the tables are locked.
unsafe impl Sync for Context {}

/// The environment variable that makes every opened device use the older interface, `ibv_post_send` and
/// `ibv_poll_cq`, even if it has `ibv_wr_*` and `ibv_start_poll`. For diagnosis, and for tests of what
/// devices without the newer interface do.
const PLAIN: &str = "BELLWIRE_VERBS_PLAIN";

const NO_XRC: Error = Error::Unsupported {
    what: "connect by XRC",
    instead: "it does not have that (`ibv_devinfo -v` shows which devices have it); use RC queue pairs on a shared \
              receive queue",
};

const NO_XRC_BY_RINGS: Error = Error::Unsupported {
    what: "connect by XRC on its own rings",
    instead: "open it with BELLWIRE_VERBS_ONLY=1, to go by libibverbs",
};

/// The vendor ID that rxe reports.
const RXE_VENDOR_ID: u32 = 0xff_ffff;

/// The largest power of two that is not above `number`.
fn floor(number: u32) -> u32 {
    1 << number.max(1).ilog2()
}

/// Converts a count that C declares as `int`.
fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Whether the layer above drives the device's rings without libibverbs.
///
/// # Safety
/// The context is open.
pub type Drives = unsafe fn(NonNull<sys::ibv_context>) -> bool;

/// The contexts that this process has opened and not closed.
fn open() -> MutexGuard<'static, Vec<Weak<Context>>> {
    static OPEN: PerProcess<Mutex<Vec<Weak<Context>>>> = PerProcess::new(Mutex::default);
    // A poisoned lock is no harm: each change of the list is complete.
    OPEN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The contexts that are open, to look for a GID of which only the process knows the device.
pub fn open_contexts() -> Vec<Arc<Context>> {
    open().iter().filter_map(Weak::upgrade).collect()
}

impl Context {
    /// # Safety
    /// The context is open, and this is its only owner.
    pub(super) unsafe fn new(
        handle: NonNull<sys::ibv_context>,
        name: &str,
        drives: Drives,
    ) -> Result<Arc<Self>, Error> {
        let mut context = Self {
            handle,
            name: name.into(),
            attr: bellwire_provider::attr::of_rings(),
            max_inline: OnceLock::new(),
            driver_limit: 0,
            is_rxe: false,
            has_xrc: false,
            is_plain: std::env::var_os(PLAIN).is_some_and(|value| value == "1"),
            cqns: Numbers::new("completion queues"),
            srqns: Numbers::new("shared receive queues"),
            next_pd: AtomicU32::new(1),
            pds: AtomicU32::new(0),
            tables: Mutex::default(),
            ahs: AhTable::default(),
            dead: AtomicBool::new(false),
            drives_rings: false,
            registers: crate::Registers::default(),
            life: Life::current(),
        };
        {
            // SAFETY: the caller guarantees that the context is open.
            context.drives_rings = !context.is_plain && unsafe { drives(handle) };
        }
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the attributes can be written.
        sys::check(unsafe { sys::ibv_query_device(handle.as_ptr(), attr.as_mut_ptr()) })
            .map_err(|error| Error::io("query the device", error))?;
        // SAFETY: filled in by the query; zeroes are valid as well.
        let attr = unsafe { attr.assume_init() };
        // The last entry or two of each queue are reserved for draining it.
        context.driver_limit = floor(count(attr.max_qp_wr).saturating_sub(2)).min(1 << 15);
        context.is_rxe = attr.vendor_id == RXE_VENDOR_ID;
        let xrc = sys::ibv_device_cap_flags::IBV_DEVICE_XRC;
        context.has_xrc = attr.device_cap_flags & xrc.0 != 0;
        let port = context.query_port(1);
        let mut can = context.attr;
        can.max_qp = count(attr.max_qp);
        can.max_qp_wr = context.driver_limit.min(1 << 14);
        // Up to what the entries of the rings can hold.
        can.max_sge = count(attr.max_sge).min(context.attr.max_sge);
        can.max_cqe = floor(count(attr.max_cqe)).min(context.attr.max_cqe);
        can.max_mr = count(attr.max_mr);
        can.max_mw = count(attr.max_mw);
        can.max_mr_size = attr.max_mr_size;
        can.max_msg_sz = port.map_or(0, |port| port.max_msg_sz);
        can.max_qp_rd_atom = u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX);
        can.max_srq = count(attr.max_srq);
        can.max_srq_wr = count(attr.max_srq_wr).min(context.attr.max_srq_wr);
        can.max_srq_sge = count(attr.max_srq_sge).min(context.attr.max_srq_sge);
        can.max_mcast_qp_attach = count(attr.max_mcast_qp_attach);
        can.max_pkeys = attr.max_pkeys;
        can.phys_port_cnt = attr.phys_port_cnt;
        context.attr = can;
        let context = Arc::new(context);
        let mut open = open();
        open.retain(|context| context.strong_count() != 0);
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// The handle of libibverbs.
    pub fn handle(&self) -> NonNull<sys::ibv_context> {
        self.handle
    }

    /// Whether core posts to the device's rings and polls them itself, without libibverbs.
    pub fn drives_rings(&self) -> bool {
        self.drives_rings
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        // A poisoned lock is no harm: each change of a table is complete.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's limits. The maximum of inline data is found by trial on the first call.
    pub fn attr(&self) -> DeviceAttr {
        let mut attr = self.attr;
        attr.max_inline_data = *self.max_inline.get_or_init(|| super::qp::find_inline(self));
        attr
    }

    /// Whether the process that this one was forked from opened it: that process uses its objects.
    pub fn is_inherited(&self) -> bool {
        !self.life.is_current()
    }

    /// Time since an arbitrary moment, by the machine's clock.
    pub fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// The most basic blocks that a send queue can have: each block may be a request of its own.
    pub fn max_send_blocks(&self) -> u32 {
        self.driver_limit
    }

    /// # Errors
    /// [`Error::DeviceFatal`]: the device has failed.
    pub fn check_alive(&self) -> Result<(), Error> {
        // Relaxed: the flag orders nothing else.
        if self.dead.load(Ordering::Relaxed) {
            return Err(Error::DeviceFatal);
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::Unsupported`]: the device has no XRC, or is driven by its rings.
    pub fn check_xrc(&self) -> Result<(), Error> {
        if !self.has_xrc {
            return Err(NO_XRC);
        }
        if self.drives_rings() {
            return Err(NO_XRC_BY_RINGS);
        }
        Ok(())
    }

    pub(super) fn set_dead(&self) {
        // Relaxed: the flag orders nothing else.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// How many objects there are in this context.
    pub fn resources(&self) -> Resources {
        let tables = self.tables();
        let mut there = Resources::default();
        // Relaxed: the count orders nothing else.
        there.pd = self.pds.load(Ordering::Relaxed);
        there.cq = self.cqns.used();
        there.qp = tables.qps.len() as u32;
        there.mr = tables.mrs.len() as u32;
        there.mw = tables.windows.len() as u32;
        there.srq = self.srqns.used();
        there
    }

    /// A new number for a protection domain.
    pub fn next_pd(&self) -> u32 {
        // Relaxed: the counter orders nothing else.
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// The descriptor on which the context's asynchronous events are reported.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context is.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).async_fd as RawFd) }
    }

    fn port(&self, port_num: u8) -> Result<sys::ibv_port_attr, Error> {
        // SAFETY: the context is open.
        unsafe { sys::query_port(self.handle, port_num) }
            .map_err(|error| Error::io("query the port", error))
    }

    /// State and attributes of a port (`ibv_query_port`).
    ///
    /// # Errors
    /// [`Error::Io`]: there is no such port.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        let attr = self.port(port_num)?;
        let mtu = |number| u8::try_from(number).ok().and_then(Mtu::from_number);
        let mut port = PortAttr::default();
        port.state = match attr.state {
            sys::ibv_port_state::IBV_PORT_ACTIVE | sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => {
                PortState::Active
            }
            _ => PortState::Down,
        };
        port.max_mtu = mtu(attr.max_mtu).unwrap_or_default();
        port.active_mtu = mtu(attr.active_mtu).unwrap_or_default();
        port.lid = attr.lid;
        port.sm_lid = attr.sm_lid;
        port.gid_tbl_len = u16::try_from(attr.gid_tbl_len).unwrap_or(0);
        port.pkey_tbl_len = attr.pkey_tbl_len;
        port.max_msg_sz = attr.max_msg_sz.into();
        Ok(port)
    }

    fn is_ethernet(&self, port_num: u8) -> bool {
        let port = self.port(port_num);
        port.is_ok_and(|port| port.link_layer == sys::IBV_LINK_LAYER_ETHERNET)
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// [`Error::Io`]: there is no such entry.
    pub fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and the GID can be written.
        sys::check(unsafe {
            sys::ibv_query_gid(self.handle.as_ptr(), port_num, index.into(), &raw mut gid)
        })
        .map_err(|error| Error::io("query the GID", error))?;
        // SAFETY: both variants are 16 plain bytes.
        Ok(unsafe { gid.raw })
    }

    /// An entry of a port's P_Key table.
    ///
    /// # Errors
    /// [`Error::Io`]: there is no such entry.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16, Error> {
        let mut pkey = 0;
        // SAFETY: the context is open, and the key can be written.
        sys::check(unsafe {
            sys::ibv_query_pkey(self.handle.as_ptr(), port_num, index.into(), &raw mut pkey)
        })
        .map_err(|error| Error::io("query the P_Key", error))?;
        Ok(u16::from_be(pkey))
    }

    /// The path to a port whose addresses are known: by its GID on Ethernet, or where an entry of the local
    /// GID table is named; otherwise by its LID.
    pub fn way_to(&self, lid: u16, gid: [u8; 16], port_num: u8, gid_index: Option<u8>) -> AhAttr {
        let mut attr = AhAttr {
            dlid: lid,
            port_num,
            ..AhAttr::default()
        };
        if gid_index.is_some() || self.is_ethernet(port_num) {
            attr.is_global = true;
            attr.grh = GlobalRoute {
                dgid: gid,
                sgid_index: gid_index
                    .unwrap_or_else(|| self.default_gid_index(port_num, Some(gid))),
                hop_limit: HOP_LIMIT,
                ..GlobalRoute::default()
            };
        }
        attr
    }

    /// Checks that a path by LIDs does not lead back to this port, unless the GID is this port's: in another subnet
    /// another port has the same LID.
    ///
    /// # Errors
    /// [`Error::OtherFabric`].
    pub fn check_way(&self, gid: [u8; 16], way: &AhAttr) -> Result<(), Error> {
        if way.is_global || gid == [0; 16] {
            return Ok(());
        }
        let port = self.query_port(way.port_num)?;
        let is_ours = |index| {
            self.query_gid(way.port_num, index)
                .is_ok_and(|own| own == gid)
        };
        if port.lid != way.dlid || (0..port.gid_tbl_len).any(is_ours) {
            return Ok(());
        }
        let theirs = std::net::Ipv6Addr::from(gid);
        let ours = std::net::Ipv6Addr::from(self.query_gid(way.port_num, 0)?);
        let reason = format!(
            "the endpoint belongs to another fabric: its LID {:#x} is that of this port, its GID {theirs} is not \
             (this port has {ours}): use devices of one subnet at both ends, or give gid_index for a routed path",
            way.dlid
        );
        Err(Error::OtherFabric { reason })
    }

    /// How the device takes the UDP source port of RC and UC queue pairs; `None`: it does not.
    pub fn udp_sport(&self) -> Option<UdpSport> {
        if self.is_rxe {
            return Some(UdpSport::Label);
        }
        // SAFETY: the context is open.
        if unsafe { crate::mlx5dv::has_udp_sport(self.handle) } {
            return Some(UdpSport::Set);
        }
        None
    }

    /// The device as a list of devices shows it.
    pub fn info(&self) -> DeviceInfo {
        let attr = self.attr();
        let ports = (1..=attr.phys_port_cnt).map(|port_num| {
            let link = if self.is_ethernet(port_num) {
                "Ethernet"
            } else {
                "InfiniBand"
            };
            let state = self
                .query_port(port_num)
                .map_or("unknown", |port| match port.state {
                    PortState::Active => "active",
                    PortState::Down => "down",
                });
            format!("port {port_num} {link}, {state}")
        });
        let ports: Vec<_> = ports.collect();
        let mut info = DeviceInfo::default();
        info.name = self.name.to_string();
        info.description = match self.drives_rings() {
            true => format!("ConnectX device, by its rings; {}", ports.join("; ")),
            false => format!("libibverbs device; {}", ports.join("; ")),
        };
        info.attr = attr;
        info
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.is_inherited() {
            return;
        }
        // SAFETY: every object on the context has been destroyed. An error (EIO) is of no consequence now.
        let _ = unsafe { sys::ibv_close_device(self.handle.as_ptr()) };
    }
}
