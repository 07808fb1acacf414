//! Two ends of the protocol against each other: every fault at every place of a recovery, and seeded
//! schedules of faults, delays, losses and restarts. Both ends agree, in bounded time, and each request gets
//! one outcome, which is true.

mod chance;
// `tests/model` explores the same two exhaustively.
mod end;
mod world;

use super::*;
use crate::fault::plan::{End as RecoveryEnd, EndReason, Limits, Step};
use crate::fault::{EventType, Fault};
use crate::wr::WrOpcode;
use chance::Chance;
use core::time::Duration;
use std::string::ToString;
use world::RETRY;

const QP_FATAL: Fault = Fault::Event(EventType::QpFatal);

fn connected(seed: u64) -> Chance {
    let mut world = Chance::new(seed);
    world.settle();
    world.check_agreement();
    for end in &world.ends {
        assert_eq!(end.recovered, Some(RecoveryEnd::Recovered));
    }
    assert_eq!(world.ends[0].protocol.epoch(), 1);
    world
}

const OPERATIONS: [WrOpcode; 3] = [
    WrOpcode::Send,
    WrOpcode::RdmaWrite,
    WrOpcode::AtomicFetchAndAdd,
];

fn post(world: &mut Chance, at: usize) {
    for operation in OPERATIONS {
        world.ends[at].post(operation);
    }
}

fn fails(world: &mut Chance, at: usize) {
    let now = world.now;
    world.ends[at].fails(QP_FATAL, now);
}

fn loses_cq(world: &mut Chance, at: usize) {
    let (now, receives) = (world.now, world.random.next() % 3);
    world.ends[at].loses_cq(receives, now);
}

/// Closes both ends, and checks that everything was reported.
fn finish(world: &mut Chance) {
    for at in [0, 1] {
        world.close(at, Duration::from_secs(1));
    }
    world.settle();
    assert!(world.ended().iter().all(Option::is_some));
    assert!(world.all_reported(), "{:?}", world.ends);
}

/// A fault, cut or close at each place of a recovery, in each order in which the two ends may be driven.
#[test]
#[cfg_attr(miri, ignore = "safe code, which takes too long there")]
fn whatever_happens_at_whatever_place_of_a_recovery_both_ends_agree() {
    let happens: [fn(&mut Chance, usize); 6] = [
        fails,
        loses_cq,
        |world, at| {
            let (now, fault) = (world.now, Fault::Event(EventType::GidChange));
            world.ends[at].protocol.fault(fault, now);
        },
        |world, at| world.close(at, Duration::from_millis(100)),
        |world, _| world.ends.iter_mut().for_each(|end| end.cut = true),
        |world, at| world.restart(at),
    ];
    for (number, happen) in happens.iter().enumerate() {
        for at in [0, 1] {
            // Bit n of `order` says which end is driven in turn n.
            for order in 0..1 << 6 {
                for place in 0..32 {
                    let mut world = connected(1);
                    post(&mut world, 0);
                    post(&mut world, 1);
                    fails(&mut world, 0);
                    for turn in 0..place {
                        world.drive((order >> (turn % 6)) & 1);
                    }
                    happen(&mut world, at);
                    world.settle();
                    world.check_agreement();
                    if number < 3 {
                        assert_eq!(world.ended(), [None; 2]);
                    }
                    finish(&mut world);
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Exchange {
    Reliable,
    LosesMessages,
}

/// A seeded schedule.
fn schedule(seed: u64, exchange: Exchange) -> Chance {
    let mut world = Chance::new(seed);
    if exchange == Exchange::LosesMessages {
        world.loss = Some(10);
    }
    for _ in 0..400 {
        let at = world.random.below(2);
        match world.random.below(400) {
            0..220 => _ = world.drive(at),
            220..300 => _ = world.transfer(at),
            300..340 => {
                let operation = OPERATIONS[world.random.below(3)];
                world.ends[at].post(operation);
            }
            340..380 => {
                world.drive_both();
                world.pass_time();
                world.drive_both();
            }
            380..384 => fails(&mut world, at),
            384 => loses_cq(&mut world, at),
            385..388 => {
                let up = !world.ends[at].port_up;
                world.ends[at].port_up = up;
                let event = if up {
                    EventType::PortActive
                } else {
                    EventType::PortErr
                };
                let now = world.now;
                world.ends[at].protocol.fault(Fault::Event(event), now);
            }
            388 if world.one_in(20) => world.close(at, Duration::from_secs(1)),
            389 if world.one_in(20) => world.restart(at),
            390 if world.one_in(20) => world.ends.iter_mut().for_each(|end| end.cut = true),
            _ => {}
        }
    }
    world
}

#[test]
#[cfg_attr(miri, ignore = "safe code, which takes too long there")]
fn both_ends_agree_after_any_schedule() {
    let (mut worked, mut gone) = (0, 0);
    for seed in 0..3000 {
        let mut world = schedule(seed, Exchange::Reliable);
        let now = world.now;
        for end in &mut world.ends {
            end.port_up = true;
            let fault = Fault::Event(EventType::PortActive);
            end.protocol.fault(fault, now);
        }
        world.settle();
        world.check_agreement();
        match world.ended() {
            [None, None] => worked += 1,
            _ => gone += 1,
        }
        finish(&mut world);
    }
    assert!(worked > 500 && gone > 100, "{worked} {gone}");
}

/// A link does not ask an exchange to lose messages; if it does, both ends still end in time.
#[test]
#[cfg_attr(miri, ignore = "safe code, which takes too long there")]
fn lost_messages_cost_time_and_no_outcome() {
    for seed in 0..1000 {
        let mut world = schedule(seed, Exchange::LosesMessages);
        world.settle();
        finish(&mut world);
    }
}

/// Both fail at once: both ask for the same epoch.
#[test]
fn two_faults_at_once_make_one_connection() {
    let mut world = connected(2);
    for at in [0, 1] {
        fails(&mut world, at);
    }
    world.settle();
    world.check_agreement();
    assert_eq!(world.ends[0].protocol.epoch(), 2);
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let mut world = Chance::new(3);
    world.chaos = false;
    let start = world.now;
    for _ in 0..10_000 {
        while world.drive(0) {}
        if world.ended()[0].is_some() {
            break;
        }
        let deadline = world.ends[0].protocol.deadline();
        world.now = deadline.expect("it waits");
    }
    let end = world.ended()[0].and_then(LinkEnd::why);
    assert_eq!(end, Some(EndReason::TimedOut(Step::Exchange)));
    assert!(world.now - start <= Limits::default().max_duration());
}

#[test]
fn each_end_learns_how_the_other_ended() {
    let mut world = connected(4);
    world.close(0, Duration::ZERO);
    world.settle();
    let why = |world: &Chance| world.ended().map(|end| end.and_then(LinkEnd::why));
    let closed = Some(EndReason::PeerClosed);
    assert_eq!(world.ended()[0], Some(LinkEnd::Closed));
    assert_eq!(why(&world)[1], closed);

    let mut world = connected(5);
    world.restart(0);
    world.settle();
    assert_eq!(why(&world)[1], Some(EndReason::PeerRestarted));
    // The new process may have connected to the end that has ended, so it is told.
    let restarted = Fault::PeerRestarted.without_circumstances();
    assert_eq!(why(&world)[0], Some(EndReason::PeerGaveUp(restarted)));

    let mut world = connected(6);
    world.ends.iter_mut().for_each(|end| end.cut = true);
    world.settle();
    assert_eq!(why(&world), [Some(EndReason::PeerLost); 2]);
}

/// An end that gives up says why, whatever the fault.
#[test]
fn a_peer_that_is_given_up_learns_why() {
    for fault in [
        Fault::RecvLimitExceeded,
        Fault::Event(EventType::DeviceFatal),
    ] {
        let mut world = connected(8);
        let (now, end) = (world.now, &mut world.ends[0]);
        end.protocol.fault(fault, now);
        world.settle();
        let reported = EndReason::PeerGaveUp(fault.without_circumstances());
        let ends = world.ended().map(|end| end.unwrap());
        assert_eq!(ends[0].why(), Some(EndReason::Fault(fault)));
        assert_eq!(ends[1].why(), Some(reported));
        assert!(ends[1].to_string().contains(&*fault.name()), "{}", ends[1]);
    }
}

/// What follows from a fault never hides it.
#[test]
fn the_first_fault_is_named_at_the_end() {
    let mut world = connected(9);
    let first = RETRY;
    let (now, end) = (world.now, &mut world.ends[0]);
    end.protocol.fault(first, now);
    world.chaos = false;
    for _ in 0..10_000 {
        while world.drive(0) {}
        if world.ended()[0].is_some() {
            break;
        }
        world.now = world.ends[0].protocol.deadline().expect("it waits");
        // A fault that comes later changes nothing.
        let (now, end) = (world.now, &mut world.ends[0]);
        end.protocol.fault(Fault::Event(EventType::QpFatal), now);
    }
    let end = world.ended()[0].unwrap();
    let why = EndReason::TimedOut(Step::Exchange);
    assert_eq!(
        end,
        LinkEnd::GaveUp {
            why,
            first: Some(first)
        }
    );
    let text = end.to_string();
    assert!(
        text.contains("exchange") && text.contains("RETRY_EXC_ERR"),
        "{text}"
    );
}

/// The peer fails when the path was probed already, but the link is not yet open again: the link takes that as
/// a fault.
#[test]
fn a_peer_that_fails_at_the_end_of_the_recovery_of_a_port_is_noticed() {
    let mut world = connected(7);
    world.now += Duration::from_secs(10);
    let port = |world: &mut Chance, up, event| {
        let (now, end) = (world.now, &mut world.ends[0]);
        end.port_up = up;
        end.protocol.fault(Fault::Event(event), now);
    };
    port(&mut world, false, EventType::PortErr);
    while world.drive(0) {}
    port(&mut world, true, EventType::PortActive);
    for step in [Step::Resolve, Step::Probe] {
        assert!(world.drive(0), "{step}");
    }
    assert!(!world.ends[0].works());
    fails(&mut world, 1);
    while world.drive(1) {}
    assert!(matches!(
        world.ends[0].inbox.front(),
        Some(Message::Info(RecoveryInfo { epoch: 2, .. }))
    ));
    world.settle();
    world.check_agreement();
    assert_eq!(world.ended(), [None; 2]);
    assert_eq!(world.ends[0].protocol.epoch(), 2);
}
