//! A fabric of more nodes than connect to each other when they join: links come when they are needed.

use super::meeting::place;
use super::station::{QKEY, Station};
use bellwire::memory::Mapping;
use bellwire::soft::Mode;
use bellwire::state::{AhAttr, GlobalRoute};
use bellwire::wqe::{BindMwInfo, Inline, RdmaWrite, Send};
use bellwire::wr::{MwType, Remote, WcStatus};
use bellwire::{AccessFlags, Ah, ConnectAttr, Device, GRH_BYTES, Region};
use bellwire_tests::fixture::{
    ALL, End, SIGNALED, connect_with, fabric_name, init, node, nothing, region_with, wait,
};
use std::os::unix::net::UnixListener;

/// Nodes that connect to each other when they join.
const ACQUAINTED: usize = 64;

/// So many first places of a fabric, taken by those who never answer.
fn occupied(fabric: &str, places: usize) -> Vec<UnixListener> {
    (0..places)
        .map(|slot| UnixListener::bind_addr(&place(fabric, slot)).expect("a free place"))
        .collect()
}

/// A station with a receive posted.
fn station(device: &Device) -> Station {
    let mut station = Station::new(device, false);
    station.receive(&[station.region.sge(0, 256)]);
    station
}

fn send(from: &mut Station, ah: &Ah, qp_num: u32) {
    from.region.write(1024, b"hello");
    let sge = from.region.sge(1024, 5);
    // SAFETY: the region's own key, and memory that is only copied.
    unsafe { (from.qp.sq()).post(2, ah.to(qp_num, QKEY), Send {}, sge, SIGNALED) }.expect("room");
    from.qp.sq().ring();
    assert_eq!(wait(&mut from.cq).wr_id, 2);
}

fn hears(station: &mut Station) {
    let done = wait(&mut station.cq);
    assert_eq!((done.wr_id, done.status()), (7, WcStatus::Success));
    let mut bytes = [0; 5];
    station.region.read(GRH_BYTES, &mut bytes);
    assert_eq!(&bytes, b"hello");
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
    let (mut here, mut there) = (station(&a), station(&b));
    let ah = |from: &Station, to: &Station| {
        from.qp
            .pd()
            .create_ah(&way(to.qp.endpoint().lid))
            .expect("a path")
    };
    let there_num = there.qp.qp_num();
    let (to, back) = (ah(&here, &there), ah(&there, &here));
    send(&mut here, &to, there_num);
    hears(&mut there);
    send(&mut there, &back, here.qp.qp_num());
    hears(&mut here);
    // Places that nobody has, or that never answer, and LIDs beyond all places.
    for lid in [1, 2, 90, 4096, 4097, 0xbfff] {
        let nobody = here.qp.pd().create_ah(&way(lid)).expect("a path");
        send(&mut here, &nobody, 7);
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
    let mut early = station(&nodes[0]);
    let to = early.qp.pd().create_ah(&group).expect("a path");
    let mut members = [1, 2].map(|at: usize| station(&nodes[at]));
    members.iter().for_each(join);
    send(&mut early, &to, ALL);
    members.iter_mut().for_each(hears);
    let mut late = station(&node(&name, Mode::Inline));
    let mut members = [1, 2].map(|at: usize| station(&nodes[at]));
    members.iter().for_each(join);
    let to = late.qp.pd().create_ah(&group).expect("a path");
    send(&mut late, &to, ALL);
    members.iter_mut().for_each(hears);
}

/// A node whose program registers more pieces of memory than peers map: they reach all, the last in packets, and the
/// memory of another node is mapped as before.
#[test]
fn more_memory_than_is_mapped_is_reached_in_packets() {
    /// Pieces of one node's memory that a peer maps, at most.
    const MEMORIES: usize = 512;
    let fabric = fabric_name();
    let device = node(&fabric, Mode::Inline);
    let with_one = |name: &str, regions: usize| {
        let owner = node(&fabric, Mode::Inline);
        let pd = owner.alloc_pd();
        let [mut here, mut there] =
            [&device.alloc_pd(), &pd].map(|pd| End::new(pd, Mode::Inline, &init()));
        connect_with(&mut here.qp, &mut there.qp, &ConnectAttr::default());
        let regions: Vec<Region> = (0..regions)
            .map(|_| {
                let mapping = Mapping::shared(name, 4096).build().expect("memory");
                Region::new(&pd, mapping, ALL).expect("a region")
            })
            .collect();
        // The first access to a piece may go in packets, too.
        for (at, region) in regions.iter().chain(&regions).enumerate() {
            let remote = region.remote(0);
            here.go(at as u64, RdmaWrite { remote }, Inline(&at.to_ne_bytes()));
            assert_eq!(here.outcome(), (at as u64, WcStatus::Success));
            let mut written = [0; 8];
            region.read(0, &mut written);
            assert_eq!(usize::from_ne_bytes(written), at);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a process");
        let mapped = maps.lines().filter(|line| line.contains(name)).count();
        // Each is mapped by its owner, and then by its peer.
        let by_peer = mapped - regions.len();
        (by_peer, (regions, here, there, owner))
    };
    let (many, _many) = with_one("more-than-is-mapped", MEMORIES + 8);
    assert!((MEMORIES / 2..=MEMORIES).contains(&many), "{many}");
    let (few, _few) = with_one("of-another-node", 4);
    assert_eq!(few, 4);
}
