//! A fault while a link recovers from another: after each step, at either end.

use crate::world::{World, init};
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{LinkInit, LinkState};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaRead, RdmaWrite, Send};
use bellwire::wr::{SendFlags, WcStatus};
use std::collections::BTreeSet;
use std::time::Duration;

/// What breaks a link: its queue pair, or its completion queue.
fn breaks(world: &World, of_b: bool, cq: bool) -> Option<Fault> {
    let link = if of_b { &world.b.link } else { &world.a.link };
    if cq {
        link.cqn().map(Fault::CqOverrun)
    } else {
        link.qp_num().map(Fault::QpFatal)
    }
}

fn strike(world: &World, fault: Option<Fault>) {
    if let Some(fault) = fault {
        let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
        world.device.as_soft().unwrap().inject(&script).unwrap();
    }
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
}

#[test]
fn a_fault_after_each_step_of_another() {
    let init = LinkInit {
        max_steps_per_poll: 1,
        ..init()
    };
    let mut epochs = BTreeSet::new();
    let mut doubts = 0;
    for first_cq in [false, true] {
        for second in [(false, false), (false, true), (true, false), (true, true)] {
            for polls in 0..40 {
                let mut world = World::with(&init);
                world.b.receive(0..6);
                world.a.receive(0..2);
                let remote = world.b.memory();
                world
                    .a
                    .stage(10, Send {}, SendFlags::empty(), Replay::IfSafe);
                world.a.go(11, Send {}, Replay::IfSafe);
                world
                    .a
                    .stage(12, RdmaWrite { remote }, SendFlags::empty(), Replay::Anyway);
                world
                    .a
                    .stage(13, Send {}, SendFlags::SIGNALED, Replay::IfSafe);
                world
                    .a
                    .stage(14, RdmaRead { remote }, SendFlags::SIGNALED, Replay::Anyway);
                let fault = breaks(&world, false, first_cq);
                strike(&world, fault);
                for _ in 0..polls {
                    world.a.poll();
                    world.b.poll();
                }
                let fault = breaks(&world, second.0, second.1);
                strike(&world, fault);
                world.settle();
                let case = (first_cq, second, polls);
                assert_eq!(world.states(), [LinkState::Ready; 2], "{case:?}");
                world.a.link.ring();
                world.poll();
                world.settle();
                epochs.insert(world.a.link.epoch());
                let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
                assert!(words.is_sorted(), "{case:?}: {words:?}");
                for (wr_id, outcome) in world.a.sends() {
                    match outcome {
                        Outcome::Done => {}
                        // The peer's count was lost with its completion queue.
                        Outcome::InDoubt(Doubt::PeerLostCount) if second == (true, true) => {
                            doubts += 1;
                        }
                        other => panic!("{case:?}: {wr_id} {other:?}"),
                    }
                }
                let reported: BTreeSet<_> =
                    world.a.sends().iter().map(|&(wr_id, _)| wr_id).collect();
                assert!(
                    reported.contains(&13) && reported.contains(&14),
                    "{case:?}: {reported:?}"
                );
                world.talk();
                let left = 6 - words.len() as u32;
                world.all_reported([2, left]);
            }
        }
    }
    // The second fault comes before, in the midst of, and after the exchange.
    assert!(epochs.contains(&2) && epochs.contains(&3), "{epochs:?}");
    // Of what was posted again just when it died.
    assert!(doubts < 10, "{doubts}");
}

/// A WRITE that was executed, unacknowledged, and is posted again: should it fail then, it is in doubt.
#[test]
fn a_doubt_outlasts_what_was_posted_again() {
    let mut world = World::new();
    let remote = world.b.memory();
    let qp_num = world.a.link.qp_num().unwrap();
    let at = |nth| Trigger::PacketOf { qp_num, nth };
    // As often as it is tried, and then once more.
    let script = (1..=3).fold(Script::default(), |script, nth| {
        script.with(at(nth), Fault::DropAck)
    });
    let script = script.with(at(4), Fault::Status(WcStatus::MwBindErr));
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.a.go(1, RdmaWrite { remote }, Replay::Anyway);
    for _ in 0..20 {
        world
            .device
            .as_soft()
            .unwrap()
            .advance(Duration::from_millis(5));
        world.settle();
    }
    assert_eq!(world.a.link.epoch(), 3);
    let doubt = Outcome::InDoubt(Doubt::NoAnswer);
    assert_eq!(world.a.sends(), [(1, doubt)]);
}

/// What is posted again fails again, with each status in turn, before the link is opened: also with one
/// that by itself asks for no recovery.
#[test]
fn whatever_fails_just_before_the_link_opens() {
    let init = LinkInit {
        max_steps_per_poll: 1,
        ..init()
    };
    for &status in &WcStatus::ALL[1..] {
        let mut world = World::with(&init);
        world.a.receive(0..15);
        world.b.receive(0..3);
        let qp_num = world.a.link.qp_num().unwrap();
        let at = |nth| Trigger::EntryOf { qp_num, nth };
        let script = Script::default()
            .with(at(1), Fault::Status(WcStatus::WrFlushErr))
            .with(at(2), Fault::Status(status));
        world.device.as_soft().unwrap().inject(&script).unwrap();
        world.a.go(10, Send {}, Replay::IfSafe);
        world.settle();
        assert_eq!(world.states(), [LinkState::Ready; 2], "{status}");
        assert_eq!(world.a.link.epoch(), 3, "{status}");
        let came = world.b.log.len() as u32;
        assert_eq!(world.a.sends().len(), 1, "{status}: {:?}", world.a.log);
        world.talk();
        world.all_reported([15, 3 - came]);
    }
}
