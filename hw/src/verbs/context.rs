//! An open device, and what is found on it by number.

use super::ah::AhTable;
use super::qp::Qp;
use super::sys;
use crate::device::{DeviceAttr, DeviceInfo, PortAttr, PortState};
use crate::error::Error;
use crate::resources::Resources;
use crate::soft::Numbers;
use bellwire_core::qp::{AhAttr, GlobalRoute, Mtu};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An open device (`ibv_context`). Every object on it keeps it alive.
#[derive(Debug)]
pub(crate) struct Context {
    handle: NonNull<sys::ibv_context>,
    name: Box<str>,
    attr: DeviceAttr,
    max_inline: OnceLock<u32>,
    driver_limit: u32,
    /// It is Soft-RoCE, which some requests bring the kernel down with.
    pub(super) is_rxe: bool,
    has_xrc: bool,
    /// Its queues are to be plain ones: see [`PLAIN`].
    pub(super) is_plain: bool,
    pub(super) cqns: Numbers,
    pub(super) srqns: Numbers,
    next_pd: AtomicU32,
    /// Protection domains.
    pub(crate) pds: AtomicU32,
    tables: Mutex<Tables>,
    pub(super) ahs: AhTable,
    /// The device said that it failed.
    dead: AtomicBool,
    /// Core drives its rings, without libibverbs.
    #[cfg(feature = "mlx5")]
    drives_rings: bool,
    #[cfg(feature = "mlx5")]
    pub registers: crate::mlx5::Registers,
}

/// What requests and the program name by number.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub qps: HashMap<u32, Arc<Qp>>,
    /// The multicast groups that queue pairs are attached to, by their numbers. Linux destroys none
    /// that is attached.
    pub groups: HashMap<u32, Vec<([u8; 16], u16)>>,
    /// By lkey.
    pub mrs: HashMap<u32, NonNull<sys::ibv_mr>>,
    /// By rkey without its low byte.
    pub windows: HashMap<u32, Window>,
    /// XRC targets of a number: how many were created and opened here.
    pub targets: HashMap<u32, u32>,
}

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    pub mw: NonNull<sys::ibv_mw>,
    /// The region that it was last bound to, by its lkey.
    pub bound: Option<u32>,
}

// SAFETY: libibverbs may be called from any thread, and the tables are locked.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The variable that has every device opened take the older path: `ibv_post_send` and `ibv_poll_cq`,
/// though it has `ibv_wr_*` and `ibv_start_poll`. For diagnosis, and for tests of what devices without
/// these do.
const PLAIN: &str = "BELLWIRE_VERBS_PLAIN";

const NO_XRC: Error = Error::Unsupported {
    what: "connect by XRC",
    instead: "it does not have that (`ibv_devinfo -v` shows who has); use RC queue pairs on a shared \
              receive queue",
};

const NO_XRC_BY_RINGS: Error = Error::Unsupported {
    what: "connect by XRC on its own rings",
    instead: "open it with BELLWIRE_VERBS_ONLY=1, to go by libibverbs",
};

/// How rxe names its vendor.
const RXE_VENDOR_ID: u32 = 0xff_ffff;

/// The largest power of two that is not larger.
fn floor(number: u32) -> u32 {
    1 << number.max(1).ilog2()
}

/// A number that C has as an `int`.
fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

impl Context {
    /// # Safety
    /// The context is open, and this is its only owner.
    pub(super) unsafe fn new(
        handle: NonNull<sys::ibv_context>,
        name: &str,
    ) -> Result<Arc<Self>, Error> {
        let mut context = Self {
            handle,
            name: name.into(),
            attr: crate::soft::limits(),
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
            #[cfg(feature = "mlx5")]
            drives_rings: false,
            #[cfg(feature = "mlx5")]
            registers: crate::mlx5::Registers::default(),
        };
        #[cfg(feature = "mlx5")]
        {
            // SAFETY: open.
            context.drives_rings = !context.is_plain && unsafe { crate::mlx5::drives(handle) };
        }
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: open; the attributes can be written.
        sys::check(unsafe { sys::ibv_query_device(handle.as_ptr(), attr.as_mut_ptr()) })
            .map_err(|error| Error::io("query the device", error))?;
        // SAFETY: filled in; zeroes are a value too.
        let attr = unsafe { attr.assume_init() };
        // Of each queue the last entry or two are for draining it.
        context.driver_limit = floor(count(attr.max_qp_wr).saturating_sub(2)).min(1 << 15);
        context.is_rxe = attr.vendor_id == RXE_VENDOR_ID;
        let xrc = sys::ibv_device_cap_flags::IBV_DEVICE_XRC;
        context.has_xrc = attr.device_cap_flags & xrc.0 != 0;
        let port = context.query_port(1);
        context.attr = DeviceAttr {
            max_qp: count(attr.max_qp),
            max_qp_wr: context.driver_limit.min(1 << 14),
            // What the entries of the rings can hold.
            max_sge: count(attr.max_sge).min(context.attr.max_sge),
            max_cqe: floor(count(attr.max_cqe)).min(context.attr.max_cqe),
            max_mr: count(attr.max_mr),
            max_mw: count(attr.max_mw),
            max_mr_size: attr.max_mr_size,
            max_msg_sz: port.map_or(0, |port| port.max_msg_sz),
            max_qp_rd_atom: u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr).min(context.attr.max_srq_wr),
            max_srq_sge: count(attr.max_srq_sge).min(context.attr.max_srq_sge),
            max_mcast_qp_attach: count(attr.max_mcast_qp_attach),
            max_pkeys: attr.max_pkeys,
            phys_port_cnt: attr.phys_port_cnt,
            ..context.attr
        };
        Ok(Arc::new(context))
    }

    pub(crate) fn handle(&self) -> NonNull<sys::ibv_context> {
        self.handle
    }

    /// Whether core posts into its rings and polls them, and libibverbs is not asked.
    pub(crate) fn drives_rings(&self) -> bool {
        #[cfg(feature = "mlx5")]
        return self.drives_rings;
        #[cfg(not(feature = "mlx5"))]
        false
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        // Each change of a table is whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it can do. The inline bytes are found out by trying, when they are first asked for.
    pub(crate) fn attr(&self) -> DeviceAttr {
        DeviceAttr {
            max_inline_data: *self.max_inline.get_or_init(|| super::qp::find_inline(self)),
            ..self.attr
        }
    }

    /// Basic blocks of a send queue at the most: each may be a request of its own.
    pub(crate) fn max_send_blocks(&self) -> u32 {
        self.driver_limit
    }

    /// # Errors
    /// [`Error::DeviceFatal`].
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        // Relaxed: a flag on its own.
        if self.dead.load(Ordering::Relaxed) {
            return Err(Error::DeviceFatal);
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::Unsupported`]: it has no XRC.
    pub(crate) fn check_xrc(&self) -> Result<(), Error> {
        if !self.has_xrc {
            return Err(NO_XRC);
        }
        if self.drives_rings() {
            return Err(NO_XRC_BY_RINGS);
        }
        Ok(())
    }

    pub(super) fn set_dead(&self) {
        // Relaxed: as above.
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn resources(&self) -> Resources {
        let tables = self.tables();
        Resources {
            // Relaxed: a number on its own.
            pd: self.pds.load(Ordering::Relaxed),
            cq: self.cqns.used(),
            qp: tables.qps.len() as u32,
            mr: tables.mrs.len() as u32,
            mw: tables.windows.len() as u32,
            srq: self.srqns.used(),
        }
    }

    pub(crate) fn next_pd(&self) -> u32 {
        // Relaxed: a number on its own.
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// The descriptor of its asynchronous events.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context is.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).async_fd as RawFd) }
    }

    fn port(&self, port_num: u8) -> Result<sys::ibv_port_attr, Error> {
        // SAFETY: open.
        unsafe { sys::query_port(self.handle, port_num) }
            .map_err(|error| Error::io("query the port", error))
    }

    pub(crate) fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        let attr = self.port(port_num)?;
        let mtu = |number| u8::try_from(number).ok().and_then(Mtu::from_number);
        Ok(PortAttr {
            state: match attr.state {
                sys::ibv_port_state::IBV_PORT_ACTIVE
                | sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::Active,
                _ => PortState::Down,
            },
            max_mtu: mtu(attr.max_mtu).unwrap_or_default(),
            active_mtu: mtu(attr.active_mtu).unwrap_or_default(),
            lid: attr.lid,
            sm_lid: attr.sm_lid,
            gid_tbl_len: u16::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: attr.pkey_tbl_len,
            max_msg_sz: attr.max_msg_sz.into(),
        })
    }

    fn is_ethernet(&self, port_num: u8) -> bool {
        let port = self.port(port_num);
        port.is_ok_and(|port| port.link_layer == sys::LINK_LAYER_ETHERNET)
    }

    pub(crate) fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: open; the GID can be written.
        sys::check(unsafe {
            sys::ibv_query_gid(self.handle.as_ptr(), port_num, index.into(), &raw mut gid)
        })
        .map_err(|error| Error::io("query the GID", error))?;
        // SAFETY: both variants are 16 plain bytes.
        Ok(unsafe { gid.raw })
    }

    pub(crate) fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16, Error> {
        let mut pkey = 0;
        // SAFETY: open; the key can be written.
        sys::check(unsafe {
            sys::ibv_query_pkey(self.handle.as_ptr(), port_num, index.into(), &raw mut pkey)
        })
        .map_err(|error| Error::io("query the P_Key", error))?;
        Ok(u16::from_be(pkey))
    }

    /// The entry of the GID table that peers are to reach the port by, where nobody says which: on
    /// Ethernet one of RoCE v2, if possible with an IPv4 address, then one that is not link-local;
    /// elsewhere the first.
    pub(crate) fn default_gid_index(&self, port_num: u8) -> u8 {
        let length = self.query_port(port_num).map_or(0, |port| port.gid_tbl_len);
        let rank = |&index: &u8| {
            // SAFETY: open.
            let entry = unsafe { sys::query_gid_ex(self.handle, port_num, index.into()) };
            let Ok(entry) = entry else { return 0 };
            // SAFETY: both variants are 16 plain bytes.
            let gid = std::net::Ipv6Addr::from(unsafe { entry.gid.raw });
            match entry.gid_type {
                _ if gid.is_unspecified() => 0,
                sys::GID_TYPE_ROCE_V2 if gid.to_ipv4_mapped().is_some() => 4,
                sys::GID_TYPE_ROCE_V2 if !gid.is_unicast_link_local() => 3,
                sys::GID_TYPE_ROCE_V2 => 2,
                _ => 1,
            }
        };
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        // Of equals the last; those that come first are to win.
        (0..length).rev().max_by_key(rank).unwrap_or(0)
    }

    /// The way to a port by what is known of it: by its GID on Ethernet, or where an entry of our own
    /// table is named; else by its LID.
    pub(crate) fn way_to(
        &self,
        lid: u16,
        gid: [u8; 16],
        port_num: u8,
        gid_index: Option<u8>,
    ) -> AhAttr {
        const HOP_LIMIT: u8 = 64;
        let mut attr = AhAttr {
            dlid: lid,
            port_num,
            ..AhAttr::default()
        };
        if gid_index.is_some() || self.is_ethernet(port_num) {
            attr.is_global = true;
            attr.grh = GlobalRoute {
                dgid: gid,
                sgid_index: gid_index.unwrap_or_else(|| self.default_gid_index(port_num)),
                hop_limit: HOP_LIMIT,
                ..GlobalRoute::default()
            };
        }
        attr
    }

    pub(crate) fn info(&self) -> DeviceInfo {
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
        DeviceInfo {
            name: self.name.to_string(),
            description: match self.drives_rings() {
                true => format!("ConnectX device, by its rings; {}", ports.join("; ")),
                false => format!("libibverbs device; {}", ports.join("; ")),
            },
            attr,
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything on it has gone. What could be wrong with it (EIO) does not matter now.
        let _ = unsafe { sys::ibv_close_device(self.handle.as_ptr()) };
    }
}
