//! A fabric of more nodes than connect to each other when they join: links come when they are needed.

use super::meeting::place;
use bellwire::soft::Mode;
use bellwire::state::{AhAttr, GlobalRoute};
use bellwire::wqe::{BindMwInfo, Inline, RdmaWrite, Send, Ud};
use bellwire::wr::{MwType, Remote, WcStatus};
use bellwire::{AccessFlags, Ah, ConnectAttr, Cq, Device, GRH_BYTES, Qp, Region};
use bellwire_tests::fixture::{
    End, SIGNALED, connect_with, fabric_name, init, node, nothing, region, region_with, wait,
};
use std::os::unix::net::UnixListener;

/// Nodes that connect to each other when they join.
const ACQUAINTED: usize = 64;

const QKEY: u32 = 0x1234;

/// So many first places of a fabric, taken by those who never answer.
fn occupied(fabric: &str, places: usize) -> Vec<UnixListener> {
    (0..places)
        .map(|slot| UnixListener::bind_addr(&place(fabric, slot)).expect("a free place"))
        .collect()
}

/// A queue pair for datagrams, with a receive posted.
struct Station {
    qp: Qp<Ud>,
    cq: Cq,
    region: Region,
}

impl Station {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd();
        let (send, recv) = init().cq_entries_of::<Ud>();
        let mut cq = device.create_cq(send + recv).expect("a queue");
        let mut qp = pd.create_qp_of::<Ud>(&mut cq, &init()).expect("a pair");
        let attr = ConnectAttr {
            qkey: QKEY,
            ..ConnectAttr::default()
        };
        qp.init(&attr).expect("INIT");
        qp.start(&attr).expect("RTS");
        let region = region(&pd, 4096);
        // SAFETY: the region's own key, and memory that is only copied.
        unsafe { qp.rq().post(1, &[region.sge(0, 256)]) }.expect("room");
        qp.rq().ring();
        Self { qp, cq, region }
    }

    fn lid(&self) -> u16 {
        self.qp.endpoint().lid
    }

    fn send(&mut self, ah: &Ah, qp_num: u32) {
        self.region.write(1024, b"hello");
        let sge = self.region.sge(1024, 5);
        // SAFETY: the region's own key, and memory that is only copied.
        unsafe { (self.qp.sq()).post(2, ah.to(qp_num, QKEY), Send {}, sge, SIGNALED) }
            .expect("room");
        self.qp.sq().ring();
        assert_eq!(wait(&mut self.cq).wr_id, 2);
    }

    fn hears(&mut self) {
        let done = wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (1, WcStatus::Success));
        let mut bytes = [0; 5];
        self.region.read(GRH_BYTES, &mut bytes);
        assert_eq!(&bytes, b"hello");
    }
}

fn way(lid: u16) -> AhAttr {
    AhAttr {
        dlid: lid,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// Whoever joins late connects to nobody, until a queue pair does.
#[test]
fn connections_make_the_links_that_they_need() {
    let name = fabric_name();
    let _first = occupied(&name, ACQUAINTED);
    let nodes = [(); 3].map(|()| node(&name, Mode::Inline));
    for [a, b] in [[0, 1], [2, 0], [1, 2]] {
        let mut ends = [a, b].map(|at: usize| {
            let pd = nodes[at].alloc_pd();
            End::new(&pd, Mode::Inline, &init())
        });
        let [one, other] = &mut ends;
        assert_eq!(usize::from(one.qp.endpoint().lid), ACQUAINTED + 1 + a);
        connect_with(&mut one.qp, &mut other.qp, &ConnectAttr::default());
        for _ in 0..2 {
            other.receive(1, &[]);
            one.post(2, Send {}, Inline(&[]), SIGNALED).expect("room");
            one.qp.sq().ring();
            assert_eq!(one.wait().status(), WcStatus::Success);
            assert_eq!(other.wait().status(), WcStatus::Success);
            std::mem::swap(one, other);
        }
    }
}

/// Nodes behind the 127th place have LIDs of more than seven bits. They are not taken for others: each reaches a window that
/// belongs to the queue pair it is connected to, whichever number that has.
#[test]
fn connections_of_high_places_are_not_taken_for_others() {
    let name = fabric_name();
    let _first = occupied(&name, 127);
    let nodes = [(); 2].map(|()| node(&name, Mode::Inline));
    // Of odd numbers, and of even ones.
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut ends = [0, 1].map(|at: usize| {
            let pd = nodes[at].alloc_pd();
            End::new(&pd, Mode::Inline, &init())
        });
        let [one, other] = &mut ends;
        assert_eq!(one.qp.endpoint().lid, 128);
        connect_with(&mut one.qp, &mut other.qp, &ConnectAttr::default());
        for _ in 0..2 {
            let pd = other.qp.pd().clone();
            let bound = region_with(&pd, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND);
            let info = BindMwInfo {
                lkey: bound.mr().lkey(),
                addr: bound.mr().addr(),
                length: 64,
                access: AccessFlags::REMOTE_WRITE.bits(),
            };
            let mut window = pd.alloc_mw(MwType::Type2).expect("a window");
            (window.post_bind(&mut other.qp.sq(), 1, (), &info, SIGNALED)).expect("room");
            other.qp.sq().ring();
            assert_eq!(other.wait().status(), WcStatus::Success);
            let remote = Remote {
                addr: info.addr,
                rkey: window.rkey(),
            };
            one.post(2, RdmaWrite { remote }, Inline(b"hello"), SIGNALED)
                .expect("room");
            one.qp.sq().ring();
            assert_eq!(one.wait().status(), WcStatus::Success);
            let mut bytes = [0; 5];
            bound.read(0, &mut bytes);
            assert_eq!(&bytes, b"hello");
            std::mem::swap(one, other);
        }
        kept.push(ends);
    }
}

/// The first datagram on a path arrives, and the answer to it.
#[test]
fn paths_of_datagrams_make_the_links_that_they_need() {
    let name = fabric_name();
    let _first = occupied(&name, ACQUAINTED);
    let [a, b] = [(); 2].map(|()| node(&name, Mode::Inline));
    let (mut here, mut there) = (Station::new(&a), Station::new(&b));
    let ah = |from: &Station, to: &Station| from.qp.pd().create_ah(&way(to.lid())).expect("a path");
    let there_num = there.qp.qp_num();
    let (to, back) = (ah(&here, &there), ah(&there, &here));
    here.send(&to, there_num);
    there.hears();
    there.send(&back, here.qp.qp_num());
    here.hears();
    // Places that nobody has, or that never answer, and LIDs beyond all places.
    for lid in [1, 2, 90, 4096, 4097, 0xbfff] {
        let nobody = here.qp.pd().create_ah(&way(lid)).expect("a path");
        here.send(&nobody, 7);
    }
    nothing(&mut here.cq, Mode::Inline);
}

/// Members hear senders that came before them, and after them.
#[test]
fn groups_make_the_links_that_they_need() {
    let name = fabric_name();
    let _first = occupied(&name, ACQUAINTED);
    let group = AhAttr {
        is_global: true,
        grh: GlobalRoute {
            dgid: *b"\xff\x12group of all..",
            ..Default::default()
        },
        ..way(0xc001)
    };
    let join = |station: &Station| {
        let to = station.qp.attach_mcast(group.grh.dgid, group.dlid);
        to.expect("room");
    };
    const ALL: u32 = 0xff_ffff;
    let nodes: Vec<Device> = (0..3).map(|_| node(&name, Mode::Inline)).collect();
    let mut early = Station::new(&nodes[0]);
    let to = early.qp.pd().create_ah(&group).expect("a path");
    let mut members = [1, 2].map(|at: usize| Station::new(&nodes[at]));
    members.iter().for_each(join);
    early.send(&to, ALL);
    members.iter_mut().for_each(Station::hears);
    let mut late = Station::new(&node(&name, Mode::Inline));
    let mut members = [1, 2].map(|at: usize| Station::new(&nodes[at]));
    members.iter().for_each(join);
    let to = late.qp.pd().create_ah(&group).expect("a path");
    late.send(&to, ALL);
    members.iter_mut().for_each(Station::hears);
}
