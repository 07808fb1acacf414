//! Devices: which there are, what they can do, and opening one.

use crate::error::Error;
use crate::event::{AsyncQueue, Element};
use crate::memory::{Mapping, MappingBuilder};
use crate::pd::Pd;
use crate::provider::{Provider, ProviderKind};
use crate::qp::Endpoint;
use crate::recovery::Dispatcher;
use crate::soft::{Fault, HcaConfig, JournalEntry, PORTS, Running, Script, limits};
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::qp::{AhAttr, Mtu};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What a device can do (`ibv_device_attr`, as far as it has a meaning here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
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
    /// Memory windows at once, of either type; they share the regions' keys.
    pub max_mw: u32,
    /// Bytes of one region.
    pub max_mr_size: u64,
    /// Bytes of one message.
    pub max_msg_sz: u64,
    /// READs and atomics in flight to one peer.
    pub max_qp_rd_atom: u8,
    /// Shared receive queues at once.
    pub max_srq: u32,
    /// Receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one of its receives.
    pub max_srq_sge: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Partition keys of a port.
    pub max_pkeys: u16,
    /// Ports; they count from 1.
    pub phys_port_cnt: u8,
}

/// What a port is and does (`ibv_port_attr`, as far as it has a meaning here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether packets come and go.
    pub state: PortState,
    /// Largest packet that the port could carry.
    pub max_mtu: Mtu,
    /// Largest packet that it carries.
    pub active_mtu: Mtu,
    /// Its local identifier.
    pub lid: u16,
    /// Local identifier of the subnet manager.
    pub sm_lid: u16,
    /// Entries of its GID table.
    pub gid_tbl_len: u16,
    /// Entries of its partition key table.
    pub pkey_tbl_len: u16,
    /// Bytes of one message.
    pub max_msg_sz: u64,
}

/// A port's state (`ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// The link is down.
    Down = 1,
    /// Packets come and go.
    Active = 4,
}

/// A device as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// What [`Device::open`] takes.
    pub name: String,
    /// What it is.
    pub description: String,
    /// What it can do.
    pub attr: DeviceAttr,
}

/// An open device (`ibv_context`): what is created through it works together, and its asynchronous
/// events come here. Clones are the same one; it closes when the last object on it goes.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) hca: Provider,
    pub(crate) events: Arc<AsyncQueue>,
    /// The links of this context.
    pub(crate) links: Arc<Dispatcher>,
    name: Arc<str>,
}

const SOFT: &str = "soft";

/// Before the name of a fabric.
const FABRIC: &str = "soft:";

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
    /// Opens a device by name. Each call gives another context.
    ///
    /// `"soft"` is the software HCA that all of the process shares, inline and on the real clock.
    /// With the feature `verbs`, `"rxe0"` and the like are devices of libibverbs. `"auto"` is the best
    /// that there is: the first of these with a port that is up, else the software HCA. With the feature
    /// `mlx5`, ConnectX devices among them (`"mlx5_0"`) are posted to and polled without libibverbs, where
    /// libmlx5 shows their rings; [`provider`](Self::provider) says which way it is.
    ///
    /// For diagnosis: with `BELLWIRE_VERBS_ONLY=1` in the environment all are driven by libibverbs, and with
    /// `BELLWIRE_VERBS_PLAIN=1` by `ibv_post_send` and `ibv_poll_cq`, though they have better.
    ///
    /// `"soft:NAME"` is this process's node of the fabric of that name: its queue pairs reach those of
    /// all processes of the same user that have opened it too, by their LIDs.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Io`] when the system has no descriptor left; for a fabric
    /// those of [`join`](Self::join).
    pub fn open(name: &str) -> Result<Self, Error> {
        match name {
            #[cfg(feature = "verbs")]
            "auto" => match verbs::first_active() {
                Some(context) => Self::verbs_context(context),
                None => Self::soft_context(shared_soft()),
            },
            #[cfg(not(feature = "verbs"))]
            "auto" => Self::soft_context(shared_soft()),
            SOFT => Self::soft_context(shared_soft()),
            _ => match name.strip_prefix(FABRIC) {
                Some(fabric) => Self::soft_context(shared_node(fabric)?),
                #[cfg(feature = "verbs")]
                None => Self::verbs_context(verbs::open(name)?),
                #[cfg(not(feature = "verbs"))]
                None => Err(Error::UnknownDevice {
                    name: name.to_owned(),
                    there: Vec::new(),
                }),
            },
        }
    }

    #[cfg(feature = "verbs")]
    fn verbs_context(context: Arc<verbs::Context>) -> Result<Self, Error> {
        let source = verbs::Source::Async(context.clone());
        let events = AsyncQueue::of_kernel(source, |event| event);
        events.admit(Element::Device);
        (1..=context.attr().phys_port_cnt).for_each(|port| events.admit(Element::Port(port)));
        Ok(Self {
            name: context.name().into(),
            events: Arc::new(events),
            links: Arc::default(),
            hca: Provider::Verbs(context),
        })
    }

    fn soft_context(hca: Arc<Running>) -> Result<Self, Error> {
        let events = hca.contexts.open(PORTS)?;
        let name = match hca.fabric() {
            Some(fabric) => format!("{FABRIC}{fabric}"),
            None => SOFT.to_owned(),
        };
        Ok(Self {
            hca: Provider::Soft(hca),
            events,
            links: Arc::default(),
            name: name.into(),
        })
    }

    /// Opens the same device once more: another context, with events of its own.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left, or the device is gone.
    pub fn reopen(&self) -> Result<Self, Error> {
        match &self.hca {
            Provider::Soft(hca) => Self::soft_context(hca.clone()),
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => Self::verbs_context(verbs::open(context.name())?),
        }
    }

    /// Whether both are the same context: what is made on them can be combined.
    pub fn is_same_context(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.events, &other.events)
    }

    /// A software HCA of one's own: queue pairs of other devices cannot reach it.
    ///
    /// # Panics
    /// When the threads of engine mode cannot be started, or the system has no descriptor left.
    pub fn soft(config: HcaConfig) -> Self {
        Self::soft_context(Running::start(config)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Another node of the fabric of this name, of its own: a process can have several, and queue pairs
    /// of one reach those of another as they would another process's. [`open`](Self::open) gives the
    /// one that the process shares.
    ///
    /// # Errors
    /// [`Error::FabricName`]; [`Error::FabricClock`]; [`Error::Exhausted`] when 64 nodes are there
    /// already; [`Error::Io`] when the system refuses a descriptor or memory.
    pub fn join(fabric: &str, config: HcaConfig) -> Result<Self, Error> {
        Self::soft_context(Running::join(config, fabric)?)
    }

    /// The devices that [`open`](Self::open) knows.
    pub fn list() -> Vec<DeviceInfo> {
        let soft = DeviceInfo {
            name: SOFT.to_owned(),
            description: "software HCA; \"soft:NAME\" reaches other processes".to_owned(),
            attr: limits(),
        };
        #[cfg(feature = "verbs")]
        let others = verbs::describe();
        #[cfg(not(feature = "verbs"))]
        let others = [];
        std::iter::once(soft).chain(others).collect()
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// By whom its requests are executed, and how they get there.
    ///
    /// ```
    /// let device = bellwire::Device::open("soft")?;
    /// assert_eq!(device.provider(), bellwire::ProviderKind::Soft);
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    pub fn provider(&self) -> ProviderKind {
        self.hca.kind()
    }

    /// Memory of `len` bytes of the kind that peers reach best: shared memory on a node of a fabric,
    /// which other processes map and then read and write by themselves, anonymous memory else. Any
    /// memory will do; what a fabric's peers cannot map they ask this process for.
    pub fn mapping(&self, len: usize) -> MappingBuilder {
        match &self.hca {
            Provider::Soft(hca) if hca.fabric().is_some() => Mapping::shared("bellwire", len),
            _ => Mapping::anonymous(len),
        }
    }

    /// What it can do.
    pub fn attr(&self) -> DeviceAttr {
        self.hca.attr()
    }

    /// A port's attributes (`ibv_query_port`). Ports count from 1.
    ///
    /// # Errors
    /// A port that the device does not have.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        self.check_port(port_num)?;
        self.hca.query_port(port_num)
    }

    /// An entry of a port's GID table (`ibv_query_gid`).
    ///
    /// # Errors
    /// A port or an entry that the device does not have.
    pub fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error> {
        let table = self.query_port(port_num)?.gid_tbl_len;
        in_table("GID index", index, table)?;
        self.hca.query_gid(port_num, index)
    }

    /// An entry of a port's partition key table (`ibv_query_pkey`).
    ///
    /// # Errors
    /// A port or an entry that the device does not have.
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

    /// How a queue pair of this device is found, by this port and this entry of its GID table, or the
    /// one that the device prefers. What cannot be asked for is zero: the device is broken, or the
    /// port not there.
    pub fn endpoint(&self, qp_num: u32, port_num: u8, gid_index: Option<u8>) -> Endpoint {
        let index = gid_index.unwrap_or_else(|| self.hca.default_gid_index(port_num));
        Endpoint {
            qp_num,
            psn: 0,
            lid: self.query_port(port_num).map_or(0, |port| port.lid),
            gid: (self.query_gid(port_num, index.into())).unwrap_or_default(),
        }
    }

    /// The way to a peer's port, from this port of ours: by its GID on RoCE, or where an entry of our
    /// own GID table is named; else by its LID. Without an entry the device chooses one, as
    /// [`ConnectAttr::gid_index`](crate::ConnectAttr::gid_index) says.
    pub fn way_to(&self, peer: &Endpoint, port_num: u8, gid_index: Option<u8>) -> AhAttr {
        self.hca.way_to(peer.lid, peer.gid, port_num, gid_index)
    }

    /// A new protection domain: queue pairs reach only memory of their own.
    pub fn alloc_pd(&self) -> Pd {
        Pd::new(self.clone())
    }

    /// Lets requests go on whose time has come: those that wait for a receive to be posted, or for an
    /// acknowledgement. Polling a completion queue does the same.
    pub fn progress(&self) {
        if let Ok(hca) = self.hca.soft("waiting")
            && hca.waiting()
        {
            hca.progress();
        }
    }

    /// The time by which links wait: the device's own, where it may stand still.
    pub(crate) fn now(&self) -> Duration {
        self.hca.now()
    }

    /// Before this thread sleeps for an event: lets requests go on, and tells for how long it may
    /// sleep until it asks again. An inline device has nobody else to do it.
    pub(crate) fn idle(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_millis(1);
        const LATER: Duration = Duration::from_millis(20);
        let hca = self.hca.soft("waiting").ok()?;
        // Threads of the device's own do it.
        if hca.has_engine() || hca.fabric().is_some() {
            return None;
        }
        self.progress();
        Some(if hca.waiting() { SOON } else { LATER })
    }

    /// Lets things go wrong as the script says, beside what earlier scripts still have to say. For
    /// tests: while some entry or packet is to be hit, execution is slow.
    ///
    /// # Errors
    /// [`Error::FaultWithoutRequest`], [`Error::SuccessAsFault`], [`Error::WrongElement`]: nothing of
    /// the script is taken. [`Error::SoftOnly`] on another device than a software HCA.
    pub fn inject(&self, script: &Script) -> Result<(), Error> {
        let hca = self.hca.soft("fault injection")?;
        for &(_, fault) in script.steps() {
            // As `raise` has it: there are no work queues that could have been created.
            if let Fault::Raise(_, element @ Element::Wq(_)) = fault {
                self.events.admit(element);
            }
        }
        hca.inject(script)
    }

    /// Takes what the device's own [journal](HcaConfig::journal) has: what it executed and told since it
    /// was last asked, in order. For tests, which hold against it what a program was told.
    ///
    /// Recorded is what happened in this process: an execution where the request was executed, and what
    /// was told where it was posted. Of requests between nodes of a fabric each node has its part; those
    /// that a requester carried out by itself, on memory that both have mapped, are in its own. The
    /// journal grows until it is taken.
    ///
    /// # Errors
    /// [`Error::NoJournal`]; [`Error::SoftOnly`] on another device than a software HCA.
    pub fn journal(&self) -> Result<Vec<JournalEntry>, Error> {
        let hca = self.hca.soft("a journal")?;
        hca.take_journal().ok_or(Error::NoJournal)
    }

    /// Forgets all scripts, as far as they have not struck. Only a software HCA has any.
    pub fn clear_faults(&self) {
        if let Ok(hca) = self.hca.soft("fault injection") {
            hca.clear_faults();
        }
    }

    /// Takes the port's link down, or up: `PORT_ERR` and `PORT_ACTIVE` tell. While it is down no
    /// packet leaves: reliable requests run out of retries, datagrams are dropped.
    ///
    /// Of a software HCA only: links of other devices are the administrator's (ip-link(8)), and nothing
    /// is done here.
    pub fn set_port_up(&self, up: bool) {
        if let Ok(hca) = self.hca.soft("a link to take down") {
            hca.set_port_up(up);
        }
    }

    /// Moves a virtual clock on, and lets requests go on whose time has come. `false`: the clock is
    /// the real one, and nothing was done.
    pub fn advance(&self, by: Duration) -> bool {
        let hca = self.hca.soft("a virtual clock");
        hca.is_ok_and(|hca| hca.advance(by))
    }
}

/// This process's node of a fabric.
fn shared_node(fabric: &str) -> Result<Arc<Running>, Error> {
    static SHARED: Mutex<BTreeMap<String, Weak<Running>>> = Mutex::new(BTreeMap::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = shared.get(fabric).and_then(Weak::upgrade) {
        return Ok(running);
    }
    let running = Running::join(HcaConfig::default(), fabric)?;
    shared.retain(|_, running| running.strong_count() != 0);
    shared.insert(fabric.to_owned(), Arc::downgrade(&running));
    Ok(running)
}

/// The software HCA that all of the process shares.
fn shared_soft() -> Arc<Running> {
    static SHARED: Mutex<Weak<Running>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let hca = Running::start(HcaConfig::default());
        *shared = Arc::downgrade(&hca);
        hca
    })
}
