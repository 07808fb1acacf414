//! What an administrator does to the network of Soft-RoCE devices: rxe1 and rxe2 are on the ends of a
//! cable.

use super::{device, ends, patient};
use crate::modes::{ready, until};
use crate::world::End;
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkInit, LinkState, pair};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::{ConnectAttr, Device};
use bellwire_tests::fixture::DEADLINE;
use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// ip(8).
fn ip(arguments: &str) {
    let done = std::process::Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// The cable between rxe1 and rxe2 is cut while requests are under way, and mended.
#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn a_cable_that_is_cut() {
    let (here, there) = pair();
    let open = |name| Device::open(name).unwrap().alloc_pd();
    let mut a = End::new(&open("rxe1"), patient(), here);
    let mut b = End::new(&open("rxe2"), patient(), there);
    b.receive(0..16);
    until(&mut a, &mut b, ready);
    for wr_id in 0..3 {
        a.go(wr_id, Send {}, Replay::IfSafe);
    }
    until(&mut a, &mut b, |a, b| a.reported() == 3 && b.log.len() == 3);
    ip("link set veth1 down");
    let remote = b.memory();
    for wr_id in 3..9 {
        // The fault may have been seen already.
        if a.state() == LinkState::Ready {
            match wr_id % 2 {
                0 => a.go(wr_id, RdmaWrite { remote }, Replay::Anyway),
                _ => a.go(wr_id, Send {}, Replay::IfSafe),
            }
        }
        a.poll();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        a.poll();
        b.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(a.state(), LinkState::Ready);
    ip("link set veth1 up");
    until(&mut a, &mut b, ready);
    a.go(100, Send {}, Replay::Surface);
    until(&mut a, &mut b, |a, b| {
        a.reported() == a.posted && b.received().iter().any(|&(.., word)| word == 100)
    });
    // Without a route rxe fails what is posted as if the entry were malformed: it is posted again.
    let done = |(wr_id, outcome)| {
        assert_eq!(outcome, Outcome::Done, "{wr_id}");
        wr_id
    };
    let done: Vec<u64> = a.sends().into_iter().map(done).collect();
    let sent = done
        .into_iter()
        .filter(|id| *id < 3 || id % 2 == 1 || *id == 100);
    // What is reported as done came, once and in order, and nothing else.
    let words: Vec<_> = b.received().iter().map(|&(.., word)| word).collect();
    assert_eq!(words, sent.collect::<Vec<_>>());
    println!("{:?} {:?}", a.link.counters(), b.link.counters());
}

/// Addresses that come and go beside the connection's own: it is looked up again, and goes on.
#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn an_address_is_added_and_removed() {
    let (mut a, mut b) = ends(patient(), 16);
    let (faults, met) = mpsc::channel();
    a.link.on_fault(move |report| {
        let _ = faults.send(report.fault);
    });
    let epochs = [a.link.epoch(), b.link.epoch()];
    for (round, verb) in (0..).zip(["add", "del"]) {
        a.go(2 * round, Send {}, Replay::Surface);
        ip(&format!("addr {verb} 10.77.0.8/24 dev dummy0"));
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && met.try_iter().any(|fault| fault == GID_CHANGE)
        });
        a.go(2 * round + 1, Send {}, Replay::Surface);
    }
    until(&mut a, &mut b, |a, b| a.reported() == 4 && b.log.len() == 4);
    let done = |(_, outcome)| outcome == Outcome::Done;
    assert!(a.sends().into_iter().all(done), "{:?}", a.log);
    assert_eq!([a.link.epoch(), b.link.epoch()], epochs);
}

/// Where an address of dummy0 stands in the GID table.
fn index_of(device: &Device, address: Ipv4Addr) -> Option<u8> {
    let gid = address.to_ipv6_mapped().octets();
    (0..u8::MAX).find(|&index| (device.query_gid(1, index.into())).is_ok_and(|there| there == gid))
}

/// The GID that the program named by its index is lost, and comes again at another one: the link is
/// connected by it again, and by no other.
#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn a_named_gid_moves() {
    let device = device();
    let [first, named] = [8, 9].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let there = |address| {
        let start = Instant::now();
        while index_of(&device, address).is_none() {
            assert!(start.elapsed() < DEADLINE, "no {address}");
            std::thread::sleep(Duration::from_millis(1));
        }
        index_of(&device, address)
    };
    for address in [first, named] {
        ip(&format!("addr add {address}/24 dev dummy0"));
        there(address);
    }
    let before = index_of(&device, named);
    let init = LinkInit {
        connect: ConnectAttr {
            gid_index: before,
            ..ConnectAttr::default()
        },
        ..patient()
    };
    let (mut a, mut b) = ends(init, 16);
    let index = |end: &End| {
        let attr = end.link.qp_attr();
        attr.map(|attr| (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.dgid))
    };
    let gid = named.to_ipv6_mapped().octets();
    assert_eq!(index(&a), before.map(|index| (index, gid)));
    for address in [named, first] {
        ip(&format!("addr del {address}/24 dev dummy0"));
    }
    // It sees that it is gone, and waits for longer than it would try to connect again.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1000) {
        a.poll();
        b.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    ip(&format!("addr add {named}/24 dev dummy0"));
    let after = there(named);
    assert_ne!(after, before);
    let by = after.map(|index| (index, gid));
    until(&mut a, &mut b, |a, b| {
        ready(a, b) && [a, b].map(index) == [by; 2]
    });
    a.go(1, Send {}, Replay::Surface);
    until(&mut a, &mut b, |a, b| a.reported() == 1 && b.log.len() == 1);
    assert_eq!(a.sends(), [(1, Outcome::Done)]);
    ip(&format!("addr del {named}/24 dev dummy0"));
}

const GID_CHANGE: Fault = Fault::Event(EventType::GidChange);
