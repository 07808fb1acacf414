//! Queue pairs for datagrams.

use bellwire::memory::{Mapping, Pages};
use bellwire::state::AhAttr;
use bellwire::wqe::Ud;
use bellwire::{AccessFlags, Ah, ConnectAttr, Cq, Device, Qp, QpInit, Region};

/// The Q_Key of all.
pub const QKEY: u32 = 0x1234;

/// A queue pair for datagrams.
pub struct Station {
    /// Completion queue of both directions.
    pub cq: Cq,
    /// The queue pair, in RTS.
    pub qp: Qp<Ud>,
    /// Memory for what is sent and received.
    pub region: Region,
}

impl Station {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd();
        let init = QpInit::default();
        let (sends, receives) = init.cq_entries_of::<Ud>();
        let mut cq = device.create_cq(sends + receives).expect("fits");
        let mut qp = pd.create_qp_of::<Ud>(&mut cq, &init).expect("fits");
        let attr = ConnectAttr {
            qkey: QKEY,
            ..ConnectAttr::default()
        };
        qp.init(&attr).expect("from RESET");
        qp.start(&attr).expect("from INIT");
        let mapping = Mapping::shared("bellwire-bench", 1 << 16);
        let mapping = mapping.pages(Pages::Base).build().expect("memory");
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a key");
        Self { cq, qp, region }
    }
}

/// One on each of two nodes of a fabric, and the path from the first to the second.
///
/// # Panics
/// When the host has no room for them.
pub fn stations() -> (Station, Station, Ah) {
    let name = format!("bellwire-bench-{}", std::process::id());
    let station = || Station::new(&Device::join(&name, Default::default()).expect("a node"));
    let (here, there) = (station(), station());
    let way = AhAttr {
        dlid: there.qp.endpoint().lid,
        port_num: 1,
        ..AhAttr::default()
    };
    let to = here.qp.pd().create_ah(&way).expect("a path");
    (here, there, to)
}
