//! What the benches share: queues over ordinary memory, with a device that only prepares completion
//! entries; two ends of a connection over the software HCA, as
//! queue pairs and as links, many, and many links in sets; queue pairs for datagrams.

mod links;
mod many;
mod memory_device;
mod set;
mod stations;

pub use links::{Links, links};
pub use many::{Many, SMALL, SetUp};
pub use memory_device::{ENTRIES, MemoryDevice, Seen};
pub use set::Sets;
pub use stations::{QKEY, Station, stations};

use bellwire::memory::{Mapping, Pages};
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Endpoint, Pd, Qp, QpInit, Region};

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
        let mut cq = pd.device().create_cq(sends + receives).expect("fits");
        let qp = pd.create_qp(&mut cq, init).expect("fits");
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
    let name = format!("bellwire-bench-{}", std::process::id());
    let node = || {
        let device = Device::join(&name, Default::default()).expect("a node");
        device.alloc_pd()
    };
    let (here, there) = (node(), node());
    (0..connections)
        .map(|_| connected(End::new(&here), End::new(&there)))
        .collect()
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
