//! Devices: listing their attributes, and opening one.

use crate::error::Error;
use crate::event::AsyncQueue;
use crate::link::Dispatcher;
use crate::log::{Level, failed, log};
use crate::memory::fork::Life;
use crate::memory::{Mapping, MappingBuilder};
use crate::pd::Pd;
use crate::pinned::headroom;
use crate::provider::Hca;
use crate::qp::Endpoint;
use crate::soft::{HcaConfig, Running};
use crate::sources::Choice;
use bellwire_core::qp::AhAttr;
use bellwire_provider::attr::{DeviceAttr, PortAttr};
use bellwire_provider::source::ProviderKind;
use std::sync::Arc;
use std::time::Duration;

/// An open device (`ibv_context`). Objects that are created through it can be combined, and their
/// asynchronous events are delivered to it. Clones are the same context, which is closed when the last object
/// on it is dropped.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) hca: Hca,
    pub(crate) events: Arc<AsyncQueue>,
    /// The links of this context.
    pub(crate) links: Arc<Dispatcher>,
    name: Arc<str>,
    /// Why `"auto"` chose it.
    pub(crate) choice: Option<Arc<Choice>>,
    /// Of the process that opened it.
    life: Life,
}

fn in_table(what: &'static str, index: u16, length: u16) -> Result<(), Error> {
    if index < length {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what,
        given: index.into(),
        min: 0,
        max: u32::from(length) - 1,
    })
}

impl Device {
    /// Opens a device by name. Each call creates another context.
    ///
    /// `"soft"` is the software HCA that is shared by the whole process; it is in inline mode, on the real
    /// clock. Names such as `"rxe0"` are devices of libibverbs, which is loaded when a device of it is first
    /// looked for (with the feature `hardware`, which is a default). `"auto"` is the first of these devices
    /// that has an active port, otherwise the software HCA; [`choice`](Self::choice) says why. ConnectX
    /// devices (`"mlx5_0"`) are posted to and polled without libibverbs, if libmlx5 gives access to their
    /// rings; [`provider`](Self::provider) says which way is used.
    ///
    /// For diagnosis, the environment variable `BELLWIRE_VERBS_ONLY=1` makes all devices be driven by
    /// libibverbs, and `BELLWIRE_VERBS_PLAIN=1` by `ibv_post_send` and `ibv_poll_cq`, even if they have newer
    /// interfaces.
    ///
    /// `"soft:NAME"` is this process's node of the fabric with that name: its queue pairs reach, by LID,
    /// those of all processes of the same user that have opened the fabric, too. A child of fork(2) that opens it
    /// again has a node of its own; see [`is_inherited`](Self::is_inherited).
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], which says why devices are missing; [`Error::Io`]: the system has no
    /// descriptor left; for a fabric those of [`join`](Self::join).
    pub fn open(name: &str) -> Result<Self, Error> {
        headroom()?;
        let opened = match name {
            "auto" => Self::auto(),
            _ => Hca::open(name).and_then(Self::of),
        };
        failed("a device", opened)
    }

    /// A new context of this device.
    pub(crate) fn of(hca: Hca) -> Result<Self, Error> {
        let name = hca.name();
        log(Level::Info, format_args!("device {name} is opened"));
        Ok(Self {
            name: (*name).into(),
            choice: None,
            life: Life::current(),
            events: hca.async_queue()?,
            links: Arc::default(),
            hca,
        })
    }

    /// Opens the same device again: creates another context, with its own asynchronous events.
    ///
    /// # Errors
    /// [`Error::Io`]: the system has no descriptor left, or the device is gone.
    pub fn reopen(&self) -> Result<Self, Error> {
        Self::of(self.hca.reopen()?)
    }

    /// Whether the process that this one was forked from opened it. Then it cannot be used here, nor any object on
    /// it. Dropping these has no effect: it neither destroys nor waits for anything.
    pub fn is_inherited(&self) -> bool {
        !self.life.is_current()
    }

    /// Whether both are the same context: objects that were created on them can be combined.
    pub fn is_same_context(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.events, &other.events)
    }

    /// Creates a new software HCA, which queue pairs of other devices cannot reach.
    ///
    /// # Panics
    /// If [`try_soft`](Self::try_soft) fails.
    pub fn soft(config: HcaConfig) -> Self {
        Self::try_soft(config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates a new software HCA like [`soft`](Self::soft), and returns errors instead of panicking.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Io`]: the system has no thread for engine mode, or no descriptor left.
    pub fn try_soft(config: HcaConfig) -> Result<Self, Error> {
        headroom()?;
        Self::of(Running::start(config)?.into())
    }

    /// Creates another node of the fabric with this name. A process can have several nodes, whose queue pairs
    /// reach each other as they reach those of other processes. [`open`](Self::open) returns the node that
    /// the process shares.
    ///
    /// # Errors
    /// [`Error::FabricName`]; [`Error::FabricClock`]; [`Error::Exhausted`]: the fabric has 4096 nodes already;
    /// [`Error::Io`]: the system refuses a descriptor or memory.
    pub fn join(fabric: &str, config: HcaConfig) -> Result<Self, Error> {
        headroom()?;
        let running = Running::join(config, fabric)?;
        running.meet();
        Self::of(running.into())
    }

    /// The name by which the device was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The provider that executes the requests, and the way in which they are posted to it.
    ///
    /// ```
    /// let device = bellwire::Device::open("soft")?;
    /// assert_eq!(device.provider(), bellwire::ProviderKind::Soft);
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    pub fn provider(&self) -> ProviderKind {
        self.hca.kind()
    }

    /// Memory of `len` bytes of the kind that peers access fastest: on a node of a fabric it is shared
    /// memory, which other processes map and then read and write directly, as far as its keys allow;
    /// otherwise it is anonymous memory. Any other memory can be used, too: what the peers of a fabric cannot
    /// map, they access through this process. This applies to hugetlb pages, which
    /// [`Pages::Auto`](crate::memory::Pages::Auto) does not choose here: accessing a hole in them can kill
    /// the accessing process. Once the memory is registered without remote write access, it can no longer be
    /// mapped writable (Linux 5.1).
    pub fn mapping(&self, len: usize) -> MappingBuilder {
        match self.hca.soft() {
            Some(hca) if hca.fabric().is_some() => Mapping::of_device(len),
            _ => Mapping::anonymous(len),
        }
    }

    /// The device's attributes (`ibv_query_device`).
    pub fn attr(&self) -> DeviceAttr {
        self.hca.attr()
    }

    /// A port's attributes (`ibv_query_port`). Ports count from 1.
    ///
    /// # Errors
    /// The device does not have this port.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        self.check_port(port_num)?;
        self.hca.query_port(port_num)
    }

    /// An entry of a port's GID table (`ibv_query_gid`).
    ///
    /// # Errors
    /// The device does not have this port or entry.
    pub fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error> {
        let table = self.query_port(port_num)?.gid_tbl_len;
        in_table("GID index", index, table)?;
        self.hca.query_gid(port_num, index)
    }

    /// An entry of a port's partition key table (`ibv_query_pkey`).
    ///
    /// # Errors
    /// The device does not have this port or entry.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16, Error> {
        let table = self.query_port(port_num)?.pkey_tbl_len;
        in_table("P_Key index", index, table)?;
        self.hca.query_pkey(port_num, index)
    }

    fn check_port(&self, port_num: u8) -> Result<(), Error> {
        let ports = self.attr().phys_port_cnt;
        if (1..=ports).contains(&port_num) {
            return Ok(());
        }
        Err(Error::OutOfRange {
            what: "port_num",
            given: port_num.into(),
            min: 1,
            max: ports.into(),
        })
    }

    /// The address of a queue pair of this device, by this port and this entry of its GID table, or the entry
    /// that the device prefers. Fields that cannot be queried are zero: the device has failed, or does not
    /// have the port. `psn` is zero: for a connection, pass [`Qp::endpoint`](crate::Qp::endpoint) to the peer, which
    /// has that of the queue pair.
    pub fn endpoint(&self, qp_num: u32, port_num: u8, gid_index: Option<u8>) -> Endpoint {
        let index = self.gid_index(port_num, gid_index);
        Endpoint {
            qp_num,
            psn: 0,
            lid: self.query_port(port_num).map_or(0, |port| port.lid),
            gid: (self.query_gid(port_num, index.into())).unwrap_or_default(),
        }
    }

    /// The given index in a port's GID table, or that of the entry which the device prefers.
    pub(crate) fn gid_index(&self, port_num: u8, named: Option<u8>) -> u8 {
        named.unwrap_or_else(|| self.hca.default_gid_index(port_num, None))
    }

    /// The path to a peer's port from this local port: by the peer's GID on RoCE, or if an entry of the local
    /// GID table is given; otherwise by its LID. If no entry is given, the device chooses one, as described
    /// for [`ConnectAttr::gid_index`](crate::ConnectAttr::gid_index).
    pub fn way_to(&self, peer: &Endpoint, port_num: u8, gid_index: Option<u8>) -> AhAttr {
        self.hca.way_to(peer.lid, peer.gid, port_num, gid_index)
    }

    /// Checks that the path to a peer may end at the peer's device: a LID is also that of other devices, in other
    /// fabrics.
    ///
    /// # Errors
    /// [`Error::OtherFabric`].
    pub(crate) fn check_peer(&self, peer: &Endpoint, port_num: u8) -> Result<(), Error> {
        let way = self.way_to(peer, port_num, None);
        self.hca.check_way(peer.gid, &way)
    }

    /// Allocates a protection domain: its queue pairs access only memory regions in it.
    pub fn alloc_pd(&self) -> Pd {
        Pd::new(self.clone())
    }

    /// Makes requests proceed whose time has come: requests that wait for a receive, or for an
    /// acknowledgement. Polling a completion queue does the same.
    pub fn progress(&self) {
        self.hca.progress();
    }

    /// The clock by which links wait: the device's own, which may be virtual.
    pub(crate) fn now(&self) -> Duration {
        self.hca.now()
    }

    /// To be called before this thread sleeps for an event: makes requests proceed, and returns for how long
    /// it may sleep before it calls this again. On an inline device nothing else makes them proceed.
    pub(crate) fn idle(&self) -> Option<Duration> {
        const LATER: Duration = Duration::from_millis(20);
        self.inline_only()?;
        self.progress();
        Some(self.has_to_be_polled().unwrap_or(LATER))
    }

    /// The software HCA, if requests proceed only when the program polls.
    fn inline_only(&self) -> Option<&Arc<Running>> {
        let hca = self.hca.soft()?;
        // Otherwise the device's own threads do so.
        (!hca.has_engine() && hca.fabric().is_none()).then_some(hca)
    }

    /// How soon the device has to be polled, since requests wait for their time; `None`: it need not be.
    pub(crate) fn has_to_be_polled(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_millis(1);
        self.inline_only()?.waiting().then_some(SOON)
    }

    /// Whether its clock is advanced only by [`SoftDevice::advance`](crate::soft::SoftDevice::advance).
    pub(crate) fn has_virtual_time(&self) -> bool {
        self.hca.soft().is_some_and(|hca| hca.has_virtual_time())
    }
}
