//! What the benches share: queues over ordinary memory, with a device that only prepares completion
//! entries; two ends of a connection over the software HCA, as
//! queue pairs and as links, many, many into one completion queue, and many links in sets; queue pairs for datagrams.

mod fan_in;
mod lends;
mod links;
mod many;
mod memory_device;
mod set;
mod stations;

pub use fan_in::FanIn;
pub use lends::{Lending, Lends};
pub use links::{Links, links};
pub use many::{Many, SMALL, SetUp};
pub use memory_device::{ENTRIES, MemoryDevice, Seen};
pub use set::Sets;
pub use stations::{QKEY, Station, stations};

use bellwire::memory::{Mapping, Pages};
use bellwire::{
    AccessFlags, ConnectAttr, Cq, Device, Endpoint, Error, Pd, Qp, QpInit, Region, Srq, SrqInit,
};

/// One end of a connection.
pub struct End {
    /// Completion queue of both directions.
    pub cq: Cq,
    /// The queue pair, in RTS.
    pub qp: Qp,
    /// Memory, open to the peer.
    pub region: Region,
}

impl End {
    fn new(pd: &Pd) -> Self {
        Self::with(pd, &QpInit::default())
    }

    fn with(pd: &Pd, init: &QpInit) -> Self {
        let (sends, receives) = init.cq_entries();
        Self::made(pd, sends + receives, |cq| pd.create_qp(cq, init))
    }

    /// That receives from a shared receive queue.
    fn on_srq(pd: &Pd, srq: &Srq) -> Self {
        let init = QpInit::default();
        let entries = init.cq_entries().0 + SrqInit::default().cq_entries();
        Self::made(pd, entries, |cq| pd.create_qp_on_srq(cq, srq, &init))
    }

    fn made(pd: &Pd, entries: u32, create: impl FnOnce(&mut Cq) -> Result<Qp, Error>) -> Self {
        let mut cq = pd.device().create_cq(entries).expect("fits");
        let qp = create(&mut cq).expect("fits");
        let mapping = Mapping::shared("bellwire-bench", 1 << 16)
            .pages(Pages::Base)
            .build();
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let region = Region::new(pd, mapping.expect("memory"), access).expect("a key");
        Self { cq, qp, region }
    }
}

/// An end that is connected with itself.
///
/// # Panics
/// When the device has no room for it.
pub fn looped(device: &Device) -> End {
    looped_with(device, QpInit::default().max_inline_data)
}

/// As [`looped`], for requests of up to `max_inline_data` bytes inline.
pub fn looped_with(device: &Device, max_inline_data: u32) -> End {
    let init = QpInit {
        max_inline_data,
        ..QpInit::default()
    };
    let mut end = End::with(&device.alloc_pd(), &init);
    let peer = end.qp.endpoint();
    connect(&mut end.qp, &peer);
    end
}

/// Two connected ends, executing inline.
pub fn ends() -> (End, End) {
    let pd = Device::soft(Default::default()).alloc_pd();
    connected(End::new(&pd), End::new(&pd))
}

/// The ends of so many connections between two nodes of a fabric, as those of two processes.
///
/// # Panics
/// When the host has no room for them.
pub fn nodes(connections: usize) -> Vec<(End, End)> {
    let [here, there] = domains();
    (0..connections)
        .map(|_| connected(End::new(&here), End::new(&there)))
        .collect()
}

/// The ends of one connection of each of so many nodes with another one, as those of a server of several processes.
///
/// # Panics
/// When the host has no room for them.
pub fn clients(count: usize) -> Vec<(End, End)> {
    let (clients, server) = clients_and_server(count);
    (clients.iter())
        .map(|client| connected(End::new(client), End::new(&server)))
        .collect()
}

/// Two ends of one connection between two nodes, which send messages of up to two elements.
///
/// # Panics
/// When the host has no room for them.
pub fn gathering_nodes() -> (End, End) {
    let init = QpInit {
        max_send_sge: 2,
        ..QpInit::default()
    };
    let [here, there] = domains();
    connected(End::with(&here, &init), End::with(&there, &init))
}

/// Two ends, the second of which receives from this shared receive queue.
///
/// # Panics
/// When the host has no room for them.
pub fn nodes_on_srq() -> (End, End, Srq) {
    let [here, there] = domains();
    let srq = there.create_srq(&SrqInit::default()).expect("a queue");
    let (a, b) = connected(End::new(&here), End::on_srq(&there, &srq));
    (a, b, srq)
}

/// One on each of two nodes of a fabric.
fn domains() -> [Pd; 2] {
    domains_of(2).try_into().expect("two")
}

/// One on each of so many nodes of a fabric, and one on another.
fn clients_and_server(count: usize) -> (Vec<Pd>, Pd) {
    let mut nodes = domains_of(count + 1);
    let server = nodes.pop().expect("one more");
    (nodes, server)
}

/// One on each of so many nodes of a fabric.
fn domains_of(count: usize) -> Vec<Pd> {
    let name = format!("bellwire-bench-{}", std::process::id());
    let node = |_| {
        let device = Device::join(&name, Default::default()).expect("a node");
        device.alloc_pd()
    };
    (0..count).map(node).collect()
}

fn connected(mut a: End, mut b: End) -> (End, End) {
    let endpoints = [b.qp.endpoint(), a.qp.endpoint()];
    connect(&mut a.qp, &endpoints[0]);
    connect(&mut b.qp, &endpoints[1]);
    (a, b)
}

fn connect(qp: &mut Qp, peer: &Endpoint) {
    let connect = ConnectAttr::default();
    qp.init(&connect).expect("from RESET");
    qp.connect(peer, &connect).expect("from INIT");
}
