//! On Soft-RoCE, in the guest of `cargo xtask vm`: on the device that `BELLWIRE_VERBS_DEVICE` names, and
//! on the cable between rxe1 and rxe2.

mod statuses;

use crate::modes::{ready, until};
use crate::sleep::{falls_asleep, wakes};
use crate::world::{End, init};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::recovery::{LinkInit, LinkState, pair};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::{ConnectAttr, Device};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Two links on one device, the second with so many receives.
fn ends(init_b: LinkInit, receives: u64) -> (End, End) {
    let name = std::env::var("BELLWIRE_VERBS_DEVICE").expect("a device");
    let pd = Device::open(&name).unwrap().alloc_pd();
    let (here, there) = pair();
    let init_a = LinkInit {
        limits: init_b.limits,
        connect: init_b.connect,
        ..init()
    };
    let mut a = End::new(&pd, init_a, here);
    let mut b = End::new(&pd, init_b, there);
    b.receive(0..receives);
    until(&mut a, &mut b, ready);
    (a, b)
}

/// What an administrator does: ip(8).
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
    until(&mut a, &mut b, |a, b| a.told() == 3 && b.log.len() == 3);
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
        a.told() == a.posted && b.received().iter().any(|&(.., word)| word == 100)
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
    // What is told as done came, once and in order, and nothing else.
    let words: Vec<_> = b.received().iter().map(|&(.., word)| word).collect();
    assert_eq!(words, sent.collect::<Vec<_>>());
    println!("{:?} {:?}", a.link.counters(), b.link.counters());
}

/// A silent peer is given up after half a second: the guest's processors are taken away now and then.
fn patient() -> LinkInit {
    LinkInit {
        connect: ConnectAttr::default(),
        limits: Limits {
            settle: Duration::ZERO,
            ..Limits::default()
        },
        ..init()
    }
}

#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn queue_pairs_are_reset_and_traffic_flows_again() {
    let (mut a, mut b) = ends(patient(), 16);
    for round in 0..5 {
        let (epoch, heard) = (a.link.epoch(), b.log.len());
        for wr_id in 0..3 {
            a.go(100 * round + wr_id, Send {}, Replay::IfSafe);
        }
        a.link.report(Fault::Peer);
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && a.link.epoch() > epoch && b.log.len() == heard + 3
        });
        a.receive([round]);
    }
    let expected = (0..5).flat_map(|round| (0..3).map(move |wr_id| 100 * round + wr_id));
    let words = b.received().into_iter().map(|(.., word)| word);
    assert!(words.eq(expected), "{:?}", b.log);
    until(&mut a, &mut b, |a, _| a.told() == 15);
    assert!(
        a.sends()
            .iter()
            .all(|(_, outcome)| *outcome == Outcome::Done)
    );
    let drained = b.link.drain(Duration::from_secs(5), drop);
    assert_eq!(drained.retired, 1);
    assert_eq!(b.slab.outstanding(), 0);
}

/// More receives complete than the queue has entries, while nobody polls.
#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn a_completion_queue_that_overruns_is_rebuilt() {
    let small = LinkInit {
        cq_entries: Some(4),
        ..patient()
    };
    let (mut a, mut b) = ends(small, 16);
    let cqn = b.link.cqn();
    for wr_id in 0..8 {
        a.go(wr_id, Send {}, Replay::IfSafe);
    }
    // The peer takes its time.
    for _ in 0..200 {
        a.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&mut a, &mut b, |a, b| ready(a, b) && b.link.epoch() > 1);
    assert_ne!(b.link.cqn(), cqn);
    a.go(100, Send {}, Replay::Surface);
    until(&mut a, &mut b, |a, b| {
        a.told() == 9 && b.received().iter().any(|&(.., word)| word == 100)
    });
    let words: Vec<_> = b.received().iter().map(|&(.., word)| word).collect();
    assert!(words.is_sorted(), "{words:?}");
    for (wr_id, outcome) in a.sends() {
        let expected = match outcome {
            Outcome::Done => true,
            Outcome::InDoubt(doubt) => doubt == Doubt::PeerLostCount && wr_id >= 4,
            _ => false,
        };
        assert!(expected, "{wr_id}: {outcome:?}");
    }
    println!("told by {:?}; heard {words:?}", a.sends());
}

/// One end sleeps until a message comes, also by another completion queue.
#[test]
#[ignore = "in the guest: cargo xtask test vm"]
fn a_message_wakes_through_recoveries() {
    let (mut a, mut b) = ends(
        LinkInit {
            sleeps: true,
            ..patient()
        },
        16,
    );
    for round in 0..3 {
        falls_asleep(&mut b);
        a.go(100 + round, Send {}, Replay::Surface);
        assert!(wakes(&b, 10_000));
        let heard = round as usize + 1;
        until(&mut a, &mut b, |a, b| {
            a.told() == heard as u32 && b.log.len() == heard
        });
        let (epoch, cqn) = (b.link.epoch(), b.link.cqn());
        b.link.report(Fault::Event(EventType::CqErr));
        until(&mut a, &mut b, |a, b| ready(a, b) && b.link.epoch() > epoch);
        assert_ne!(b.link.cqn(), cqn);
    }
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
    until(&mut a, &mut b, |a, b| a.told() == 4 && b.log.len() == 4);
    let done = |(_, outcome)| outcome == Outcome::Done;
    assert!(a.sends().into_iter().all(done), "{:?}", a.log);
    assert_eq!([a.link.epoch(), b.link.epoch()], epochs);
}

const GID_CHANGE: Fault = Fault::Event(EventType::GidChange);
