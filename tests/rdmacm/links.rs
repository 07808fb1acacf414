//! Links that find each other by librdmacm, for the first time and again.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{Exchange, Link, LinkEnd, LinkInit, LinkState};
use bellwire::memory::Mapping;
use bellwire::wqe::Send;
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
use bellwire_tests::cable::{Undo, run};
use bellwire_tests::ends::{ALONE, CABLE, open};
use bellwire_tests::fixture::{DEADLINE, SIGNALED, init, until};
use bellwire_tests::mute::Mute;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

tests! {
    links_recover,
    links_by_ipv6_beside_ipv4,
    a_neighbour_whose_address_changes,
    a_link_whose_peer_goes_ends,
    a_peer_that_dies_is_lost_and_one_that_comes_back_has_restarted,
}

struct End {
    link: Link,
    slab: Slab,
    came: Vec<u8>,
    sent: u64,
}

impl End {
    fn new(device: &Device, exchange: impl Exchange + 'static) -> Self {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: 64,
            count: 32,
        }];
        let mapping = Mapping::anonymous(Slab::bytes(&layout).expect("it fits"));
        let mapping = mapping.build().expect("memory");
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        let init = LinkInit {
            qp: init(),
            ..LinkInit::default()
        };
        let mut end = Self {
            link: Link::new(&pd, init, exchange).expect("a link"),
            slab: Slab::new(region, &layout).expect("it fits"),
            came: Vec::new(),
            sent: 0,
        };
        (0..16).for_each(|_| end.receive());
        end
    }

    fn receive(&mut self) {
        let block = self.slab.take(64).expect("a block");
        self.link.post_recv_block(1, block).expect("room");
        self.link.ring_recv();
    }

    fn poll(&mut self) {
        let (came, sent) = (&mut self.came, &mut self.sent);
        let mut lost = None;
        self.link.poll(16, |completion| {
            match (completion.outcome, completion.block) {
                (Outcome::Done, Some(block)) => came.push(block.as_slice()[0]),
                (Outcome::Done, None) => *sent += 1,
                (outcome, _) => lost = Some(outcome),
            }
        });
        let state = self.link.state();
        assert!(
            lost.is_none(),
            "{lost:?}, {state:?}: {:?}",
            self.link.exchange_error()
        );
    }
}

/// As long as this suite waits for anything: the guest may be slow.
fn patient() -> Retry {
    Retry {
        step: DEADLINE,
        attempts: 4,
        ..Retry::default()
    }
}

/// Polls both until they work in an epoch of this number, then sends a message each way.
fn works(a: &mut End, b: &mut End, epoch: u64, byte: u8) {
    until("links that work", || {
        a.poll();
        b.poll();
        [&*a, &*b]
            .iter()
            .all(|end| end.link.state() == LinkState::Ready && end.link.epoch() >= epoch)
    });
    for end in [&mut *a, &mut *b] {
        let posted = end
            .link
            .post_inline(2, Send {}, &[byte], SIGNALED, Replay::IfSafe);
        posted.expect("it works");
        end.link.ring();
    }
    until("messages", || {
        a.poll();
        b.poll();
        [&*a, &*b].iter().all(|end| end.came.last() == Some(&byte))
    });
}

fn pair(listener: &mut Listener, retry: Retry) -> (End, End) {
    let device = open(ALONE);
    let peer = address(HERE, listener.port());
    let connector = Connector::new(&device, peer, retry);
    connected(listener, connector.exchange().expect("a channel"))
}

/// The link with this exchange, and the listener's, connected.
fn connected(listener: &mut Listener, exchange: impl Exchange + 'static) -> (End, End) {
    connected_on(&open(ALONE), listener, exchange)
}

fn connected_on(
    device: &Device,
    listener: &mut Listener,
    exchange: impl Exchange + 'static,
) -> (End, End) {
    let mut asked = End::new(device, exchange);
    let mut incoming = None;
    until("a link", || {
        asked.poll();
        incoming = listener.accept().expect("a channel");
        incoming.is_some()
    });
    let mut took = End::new(device, incoming.expect("it came"));
    works(&mut asked, &mut took, 1, 0);
    (asked, took)
}

fn listener(retry: Retry) -> Listener {
    let device = open(ALONE);
    Listener::bind(&device, address(HERE, 0), 4, retry).expect("a free port")
}

/// A fault at either end, or at both.
fn links_recover() {
    let mut listener = listener(patient());
    let (mut asked, mut took) = pair(&mut listener, patient());
    for (round, [first, second]) in (1..).zip([[true, false], [false, true], [true, true]]) {
        let epoch = asked.link.epoch();
        for (end, fails) in [(&mut asked, first), (&mut took, second)] {
            if fails {
                end.link.report(Fault::Event(EventType::QpFatal));
            }
        }
        works(&mut asked, &mut took, epoch + 1, round);
    }
    assert_eq!(asked.came, [0, 1, 2, 3]);
    assert_eq!(took.came, [0, 1, 2, 3]);
    until("the last sends", || {
        asked.poll();
        took.poll();
        (asked.sent, took.sent) == (4, 4)
    });
}

/// The device has an IPv4 address, too: both ends use the address that the connector named.
fn links_by_ipv6_beside_ipv4() {
    const ADDED: &str = "fd00:77::1";
    let set = |verb| format!("ip -6 addr {verb} {ADDED}/64 dev dummy0");
    let _address = Undo::after(&set("add"), &set("del"));
    let device = open(ALONE);
    let gid = ADDED.parse::<Ipv6Addr>().expect("an address").octets();
    let is_there = |index| device.query_gid(1, index).is_ok_and(|there| there == gid);
    until("its GID", || (0..16).any(is_there));
    let mut listener =
        Listener::bind(&device, address(ADDED, 0), 4, patient()).expect("a free port");
    let peer = address(ADDED, listener.port());
    let connector = Connector::new(&device, peer, patient());
    let (mut asked, mut took) = connected(&mut listener, connector.exchange().expect("a channel"));
    asked.link.report(Fault::Event(EventType::QpFatal));
    works(&mut asked, &mut took, 2, 1);
    for end in [&asked, &took] {
        let attr = end.link.qp_attr().expect("it is connected");
        assert_eq!(attr.ah_attr.grh.dgid, gid);
    }
}

fn end_of(end: &mut End, mut meanwhile: impl FnMut()) -> EndReason {
    let mut why = None;
    until("the end", || {
        meanwhile();
        end.link.poll(16, |_| ());
        why = end.link.state().why();
        why.is_some()
    });
    why.expect("it ended")
}

/// Nobody is waited for who has gone, though both would wait for longer than this test.
fn a_link_whose_peer_goes_ends() {
    let mut listener = listener(patient());
    let (asked, mut took) = pair(&mut listener, patient());
    drop(asked);
    assert_eq!(end_of(&mut took, || ()), EndReason::PeerClosed);
    let (mut asked, took) = pair(&mut listener, patient());
    drop(took);
    // It asks, and hears from the listener that nobody is there, which somebody has to look after.
    let look = || assert!(listener.accept().expect("a channel").is_none());
    assert_eq!(end_of(&mut asked, look), EndReason::PeerClosed);
}

/// A process that ends without closing its links, and one that has its place.
fn a_peer_that_dies_is_lost_and_one_that_comes_back_has_restarted() {
    let mut listener = listener(patient());
    let device = open(ALONE);
    let port = listener.port();
    let connector = Connector::new(&device, address(HERE, port), patient());
    let exchange = connector.exchange().expect("a channel");
    let (asked, mut took) = connected(&mut listener, Mute(exchange));
    drop(asked);
    assert_eq!(end_of(&mut took, || ()), EndReason::PeerLost);
    let (mut asked, took) = pair(&mut listener, patient());
    drop((took, listener));
    let mut listener =
        Listener::bind(&device, address(HERE, port), 4, patient()).expect("its port");
    let look = || assert!(listener.accept().expect("a channel").is_none());
    assert_eq!(end_of(&mut asked, look), EndReason::PeerRestarted);
}

/// The hardware address of the neighbour changes again and again while another link connects. Linux 6.0 and later
/// reports each change to the connection as UNREACHABLE. The established link works throughout.
fn a_neighbour_whose_address_changes() {
    const CABLE_HERE: &str = "10.78.0.1";
    let mut listener = listener(patient());
    let (mut asked, mut took) = pair(&mut listener, patient());
    let set = |last: u8| {
        format!("ip neigh replace {HERE} lladdr 02:00:0a:4d:01:{last:02x} nud permanent dev dummy0")
    };
    let _neighbour = Undo::after(&set(0), &format!("ip neigh del {HERE} dev dummy0"));
    let [first, second] = [&asked, &took].map(|end| end.link.epoch());
    for round in 1..=20 {
        run(&set(round));
        // Both ends read the events of their connection meanwhile.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            asked.poll();
            took.poll();
        }
        works(&mut asked, &mut took, 1, round);
        asked.receive();
        took.receive();
        if round % 5 == 0 {
            let elsewhere = open(CABLE[0]);
            let mut listener = Listener::bind(&elsewhere, address(CABLE_HERE, 0), 4, patient())
                .expect("a free port");
            let peer = address(CABLE_HERE, listener.port());
            let connector = Connector::new(&elsewhere, peer, patient());
            let exchange = connector.exchange().expect("a channel");
            drop(connected_on(&elsewhere, &mut listener, exchange));
        }
    }
    assert_eq!([&asked, &took].map(|end| end.link.epoch()), [first, second]);
}
