//! One fault at a time.

use crate::world::{World, init};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkState, RecoveryReport};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use std::sync::mpsc;
use std::time::Duration;

fn at_once(fault: Fault) -> Script {
    Script::default().with(Trigger::After(Duration::ZERO), fault)
}

/// Lets a fault strike now.
fn strike(world: &World, fault: Fault) {
    world
        .device
        .as_soft()
        .unwrap()
        .inject(&at_once(fault))
        .unwrap();
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
}

#[test]
fn two_links_connect_and_talk() {
    let mut world = World::unconnected(&init());
    assert_eq!(world.states(), [LinkState::Recovering; 2]);
    // Before there is a connection.
    world.b.receive([7]);
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    world.a.go(1, Send {}, Replay::Surface);
    world.poll();
    assert_eq!(world.a.sends(), [(1, Outcome::Done)]);
    assert_eq!(world.b.received(), [(7, Outcome::Done, 1)]);
    world.talk();
    world.all_reported([0, 0]);
}

/// A queue pair breaks: in both directions traffic flows again, over the receives that were there.
#[test]
fn qp_fatal() {
    let mut world = World::new();
    world.a.receive([1, 2, 3]);
    world.b.receive([4, 5]);
    world.a.go(6, Send {}, Replay::Surface);
    let qpn = world.a.link.qp_num().unwrap();
    let (send, reports) = mpsc::channel();
    world
        .a
        .link
        .on_recovered(move |report: &RecoveryReport| send.send(*report).unwrap());
    strike(&world, Fault::QpFatal(qpn));
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    assert_eq!((world.a.link.epoch(), world.b.link.epoch()), (2, 2));
    let report = reports.try_recv().unwrap();
    assert_eq!((report.epoch, report.reported), (2, 0));

    world.b.go(7, Send {}, Replay::Surface);
    world.a.go(8, Send {}, Replay::Surface);
    world.poll();
    assert_eq!(world.a.sends(), [(6, Outcome::Done), (8, Outcome::Done)]);
    assert_eq!(
        world.b.received(),
        [(4, Outcome::Done, 6), (5, Outcome::Done, 8)]
    );
    assert_eq!(world.a.received(), [(1, Outcome::Done, 7)]);
    world.talk();
    let counters = world.a.link.counters().unwrap();
    assert_eq!((counters.recovered, counters.gave_up), (2, 0));
    assert_eq!(counters.reposted, 3);
}

/// What was staged and not rung was not executed.
#[test]
fn staged_requests_are_posted_again_or_reported() {
    let mut world = World::new();
    world.b.receive([1, 2]);
    let unsignaled = SendFlags::empty();
    world
        .a
        .stage(10, Send {}, SendFlags::SIGNALED, Replay::Surface);
    world.a.stage(11, Send {}, unsignaled, Replay::IfSafe);
    world
        .a
        .stage(12, Send {}, SendFlags::SIGNALED, Replay::IfSafe);
    strike(&world, Fault::QpFatal(world.a.link.qp_num().unwrap()));
    world.settle();
    world.poll();
    assert_eq!(
        world.a.sends(),
        [(10, Outcome::NotExecuted), (12, Outcome::Done)]
    );
    assert_eq!(
        world.b.received(),
        [(1, Outcome::Done, 11), (2, Outcome::Done, 12)]
    );
    world.all_reported([0, 0]);
}

/// The completion queue is dead: it is rebuilt, with the queue pair.
#[test]
fn cq_err() {
    let mut world = World::new();
    world.a.receive([1, 2]);
    let (qpn, cqn) = (world.a.link.qp_num(), world.a.link.cqn());
    strike(&world, Fault::CqOverrun(cqn.unwrap()));
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    assert_ne!(world.a.link.qp_num(), qpn);
    world.b.go(3, Send {}, Replay::Surface);
    world.poll();
    assert_eq!(world.a.received(), [(1, Outcome::Done, 3)]);
    world.talk();
    world.all_reported([2 - 1, 0]);
}

/// A WRITE that is refused: reported as failed, and the connection goes on.
#[test]
fn a_request_that_fails() {
    let mut world = World::new();
    world.a.receive([1]);
    world.b.receive([2]);
    let remote = bellwire::wr::Remote::default();
    world.a.go(3, RdmaWrite { remote }, Replay::Anyway);
    world.a.go(4, Send {}, Replay::IfSafe);
    world.settle();
    world.poll();
    let refused = Outcome::Failed(bellwire::wr::WcStatus::RemAccessErr);
    assert_eq!(world.a.sends(), [(3, refused), (4, Outcome::Done)]);
    assert_eq!(world.b.received(), [(2, Outcome::Done, 4)]);
    world.talk();
}

/// Each fault at one end, at the other, or at both at once, while requests of all kinds are under way:
/// both ends work again, everything is reported once, and SENDs arrive once and in order.
#[test]
fn every_fault_of_queues() {
    use bellwire::event::{Element, EventType};
    type Make = fn(u32, u32) -> Vec<Fault>;
    let faults: [(&str, Make); 6] = [
        ("QP_FATAL", |qpn, _| vec![Fault::QpFatal(qpn)]),
        ("CQ_ERR", |_, cqn| vec![Fault::CqOverrun(cqn)]),
        ("both", |qpn, cqn| {
            vec![Fault::QpFatal(qpn), Fault::CqOverrun(cqn)]
        }),
        ("QP_REQ_ERR", |qpn, _| {
            vec![Fault::Raise(EventType::QpReqErr, Element::Qp(qpn))]
        }),
        ("QP_ACCESS_ERR", |qpn, _| {
            vec![Fault::Raise(EventType::QpAccessErr, Element::Qp(qpn))]
        }),
        ("a CQ_ERR that nothing caused", |_, cqn| {
            vec![Fault::Raise(EventType::CqErr, Element::Cq(cqn))]
        }),
    ];
    for (name, make) in faults {
        for ends in [[true, false], [false, true], [true, true]] {
            let mut world = World::new();
            world.a.receive(0..4);
            world.b.receive(0..8);
            let remote = world.b.memory();
            for wr_id in 10..14 {
                world
                    .a
                    .stage(wr_id, Send {}, SendFlags::empty(), Replay::IfSafe);
                world.a.stage(
                    wr_id + 10,
                    RdmaWrite { remote },
                    SendFlags::SIGNALED,
                    Replay::Anyway,
                );
                if wr_id == 12 {
                    world.a.link.ring();
                }
            }
            let mut script = Script::default();
            for (end, _) in [&world.a, &world.b]
                .iter()
                .zip(ends)
                .filter(|(_, hit)| *hit)
            {
                let (qpn, cqn) = (end.link.qp_num().unwrap(), end.link.cqn().unwrap());
                for fault in make(qpn, cqn) {
                    script = script.with(Trigger::After(Duration::ZERO), fault);
                }
            }
            world.device.as_soft().unwrap().inject(&script).unwrap();
            world
                .device
                .as_soft()
                .unwrap()
                .advance(Duration::from_nanos(1));
            world.settle();
            assert_eq!(world.states(), [LinkState::Ready; 2], "{name} at {ends:?}");
            // The program rings what it staged, or the recovery did.
            world.a.link.ring();
            world.poll();
            world.settle();
            let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
            assert_eq!(words, [10, 11, 12, 13], "{name} at {ends:?}");
            assert!(world.a.link.epoch() >= 2);
            world.talk();
            world.all_reported([4, 4]);
        }
    }
}

/// Whatever a request fails with, both ends work again; those behind it are not lost.
#[test]
fn every_status() {
    use bellwire::wr::WcStatus;
    for &status in WcStatus::ALL {
        if status == WcStatus::Success {
            continue;
        }
        let mut world = World::new();
        world.b.receive(0..4);
        let script = Script::default().with(Trigger::Entry(2), Fault::Status(status));
        world.device.as_soft().unwrap().inject(&script).unwrap();
        world.a.go(10, Send {}, Replay::Surface);
        world.a.go(11, Send {}, Replay::Surface);
        world.a.go(12, Send {}, Replay::IfSafe);
        world.settle();
        if status == WcStatus::FatalErr {
            // It says that the device has failed.
            continue;
        }
        assert_eq!(world.states(), [LinkState::Ready; 2], "{status}");
        world.poll();
        let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
        assert_eq!(words, [10, 12], "{status}");
        let sends = world.a.sends();
        assert_eq!(sends[0], (10, Outcome::Done));
        assert!(
            matches!(sends[1], (11, Outcome::Failed(found)) if found == status)
                || sends[1] == (11, Outcome::NotExecuted),
            "{status}: {sends:?}"
        );
        assert_eq!(sends[2], (12, Outcome::Done));
        world.talk();
        world.all_reported([0, 2]);
    }
}

/// The acknowledgement is lost, the link of the port goes down for good: the SEND was executed, as the
/// peer's count shows. What follows is sent when the port is up again.
#[test]
fn a_port_that_goes_down_and_comes_up() {
    let mut world = World::new();
    world.b.receive(0..4);
    world.a.receive(0..4);
    let script = Script::default().with(Trigger::Entry(1), Fault::DropAck);
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.a.go(10, Send {}, Replay::IfSafe);
    world.device.as_soft().unwrap().set_port_up(false);
    world.a.go(11, Send {}, Replay::IfSafe);
    for _ in 0..100 {
        world
            .device
            .as_soft()
            .unwrap()
            .advance(Duration::from_millis(5));
        world.poll();
    }
    assert_eq!(world.states(), [LinkState::Recovering; 2]);
    let refused = world
        .a
        .link
        .post_empty(1, Send {}, SendFlags::SIGNALED, Replay::Surface);
    assert_eq!(refused, Err(bellwire::link::LinkError::Recovering));
    world.device.as_soft().unwrap().set_port_up(true);
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    world.poll();
    assert_eq!(world.a.sends(), [(10, Outcome::Done), (11, Outcome::Done)]);
    let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
    assert_eq!(words, [10, 11]);
    world.talk();
    world.all_reported([4, 2]);
}

/// A short one, with nothing in flight: the connection stays as it is.
#[test]
fn a_port_that_flaps() {
    let mut world = World::new();
    world.device.as_soft().unwrap().set_port_up(false);
    world.poll();
    world.device.as_soft().unwrap().set_port_up(true);
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    world.talk();
    world.all_reported([0, 0]);
}

/// Each fault is reported to the program once, with what it means, and of each recovery.
#[test]
fn hooks_and_counters() {
    use bellwire::fault::{Fault as Met, Scope};
    let mut world = World::new();
    let (send, met) = mpsc::channel();
    let recovered = send.clone();
    world.a.link.on_fault(move |report| {
        send.send((report.epoch, Some(report.fault), Some(report.class.scope)))
            .unwrap()
    });
    world
        .a
        .link
        .on_recovered(move |report| recovered.send((report.epoch, None, None)).unwrap());
    world.b.receive(0..2);
    world.a.go(1, Send {}, Replay::Surface);
    strike(&world, Fault::QpFatal(world.a.link.qp_num().unwrap()));
    world
        .a
        .stage(2, Send {}, SendFlags::SIGNALED, Replay::IfSafe);
    world.settle();
    let event = Met::Event(bellwire::event::EventType::QpFatal);
    let reported: Vec<_> = met.try_iter().collect();
    assert_eq!(
        reported,
        [(1, Some(event), Some(Scope::Qp)), (2, None, None)]
    );
    let counters = world.a.link.counters().unwrap();
    assert_eq!(counters.faults[usize::from(Scope::Qp.number())], 1);
    // The first connection is one.
    assert_eq!((counters.recovered, counters.replayed), (2, 1));
    let other = world.b.link.counters().unwrap();
    assert_eq!(other.faults[usize::from(Scope::Connection.number())], 1);
    assert_eq!(other.reposted, 1);
}

/// The flight recorder: of the queue pair that there is, and of the one that failed.
#[test]
fn what_a_queue_pair_did_last_is_kept() {
    use bellwire::recorder::DumpOptions;
    let options = DumpOptions::default();
    for dump in [None, Some(options)] {
        let mut world = World::with(&bellwire::link::LinkInit { dump, ..init() });
        assert!(world.a.link.failure().is_none(), "none has failed");
        world.b.receive([1]);
        world.a.go(77, Send {}, Replay::Surface);
        world.poll();
        let record = world.a.link.dump(&options).unwrap();
        assert_eq!(Some(record.qp_num), world.a.link.qp_num());
        assert!(record.to_string().contains("wr_id 77"), "{record}");
        strike(&world, Fault::QpFatal(record.qp_num));
        world.settle();
        let now = world.a.link.dump(&options).unwrap().to_string();
        let kept = world.a.link.failure().map(ToString::to_string);
        assert_eq!(kept.is_some(), dump.is_some());
        if let Some(kept) = kept {
            for part in ["wr_id 77", "QP_FATAL"] {
                assert!(kept.contains(part), "{part}: {kept}");
            }
            assert!(!now.contains("wr_id 77"), "{now}");
        }
        assert!(now.contains("state RTS"), "{now}");
    }
}
