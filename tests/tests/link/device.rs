//! On the device that `BELLWIRE_VERBS_DEVICE` names: in the guest of `cargo xtask vm` that is Soft-RoCE, on
//! the stand-in for the kernel a ConnectX device by its rings.

mod cancels;
mod ip;
mod sets;
mod stand_in;
mod statuses;

use crate::modes::{ready, until};
use crate::sleep::{falls_asleep, wakes};
use crate::world::{End, init};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{LinkInit, pair};
use bellwire::wqe::Send;
use bellwire::{ConnectAttr, Device, PathAttr};
use std::time::Duration;

fn device() -> Device {
    let name = std::env::var("BELLWIRE_VERBS_DEVICE").expect("a device");
    Device::open(&name).unwrap()
}

/// Two links on one device, the second with so many receives.
fn ends(init_b: LinkInit, receives: u64) -> (End, End) {
    let pd = device().alloc_pd();
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
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn queue_pairs_are_reset_and_traffic_flows_again() {
    let (mut a, mut b) = ends(patient(), 16);
    for round in 0..5 {
        let (epoch, heard) = (a.link.epoch(), b.log.len());
        for wr_id in 0..3 {
            a.go(100 * round + wr_id, Send {}, Replay::IfSafe);
        }
        a.link.report(Fault::PeerRecovery);
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && a.link.epoch() > epoch && b.log.len() == heard + 3
        });
        a.receive([round]);
    }
    let expected = (0..5).flat_map(|round| (0..3).map(move |wr_id| 100 * round + wr_id));
    let words = b.received().into_iter().map(|(.., word)| word);
    assert!(words.eq(expected), "{:?}", b.log);
    until(&mut a, &mut b, |a, _| a.reported() == 15);
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
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn a_completion_queue_that_overruns_is_rebuilt() {
    let small = LinkInit {
        cq_entries: Some(4),
        ..patient()
    };
    let (mut a, mut b) = ends(small, 16);
    let cqn = b.link.cqn();
    for wr_id in 0..12 {
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
        a.reported() == 13 && b.received().iter().any(|&(.., word)| word == 100)
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
    println!("reported {:?}; heard {words:?}", a.sends());
}

/// One end sleeps until a message comes, also by another completion queue.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn a_message_wakes_through_recoveries() {
    let (mut a, mut b) = ends(
        LinkInit {
            waitable: true,
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
            a.reported() == heard as u32 && b.log.len() == heard
        });
        let (epoch, cqn) = (b.link.epoch(), b.link.cqn());
        b.link.report(Fault::Event(EventType::CqErr));
        until(&mut a, &mut b, |a, b| ready(a, b) && b.link.epoch() > epoch);
        assert_ne!(b.link.cqn(), cqn);
    }
}

/// How packets go to the peer is read back from the device, of each connection.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn paths_are_read_back() {
    let path = PathAttr {
        sl: 3,
        traffic_class: 104,
        flow_label: 0xa_bcde,
        hop_limit: 9,
        ..PathAttr::default()
    };
    let (mut a, mut b) = ends(
        LinkInit {
            connect: ConnectAttr {
                path,
                ..ConnectAttr::default()
            },
            ..patient()
        },
        16,
    );
    // rxe keeps no service level, and of RoCE Linux takes the hop limit from the route.
    let is_rxe = device().name().starts_with("rxe");
    let (sl, hop_limit) = if is_rxe { (0, 64) } else { (3, 9) };
    for epoch in 1..3 {
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && [a, b].iter().all(|end| end.link.epoch() == epoch)
        });
        for end in [&a, &b] {
            let attr = end.link.qp_attr().expect("a queue pair");
            let (way, grh) = (attr.ah_attr, attr.ah_attr.grh);
            assert!(way.is_global);
            assert_eq!(
                (way.sl, grh.traffic_class, grh.flow_label, grh.hop_limit),
                (sl, path.traffic_class, path.flow_label, hop_limit)
            );
            assert_eq!(attr.pkey_index, 0);
        }
        a.go(epoch, Send {}, Replay::Surface);
        until(&mut a, &mut b, |a, b| {
            (u64::from(a.reported()), b.log.len() as u64) == (epoch, epoch)
        });
        b.link.report(Fault::PeerRecovery);
    }
}
