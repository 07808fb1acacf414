//! Links that end: everything is reported, and all blocks come back.

use crate::world::{End as Side, World, init};
use bellwire::connect::{Message, RecoveryInfo};
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::fault::plan::{End, EndReason, Limits};
use bellwire::link::{Exchange, LinkEnd, LinkError, LinkInit, LinkState, LocalExchange, pair};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::{SendFlags, WcStatus};
use bellwire_tests::fixture::virtual_device;
use bellwire_tests::patience::assert_within;
use std::time::Duration;

const POLLED_EVERY: Duration = Duration::from_millis(10);

/// Polls one end, and moves the clock on, until it has ended.
fn ended(world: &mut World, end: fn(&mut World) -> &mut Side) -> LinkEnd {
    for _ in 0..100_000 {
        end(world).poll();
        if let LinkState::Ended(why) = end(world).state() {
            while end(world).poll() != 0 {}
            return why;
        }
        world.device.as_soft().unwrap().advance(POLLED_EVERY);
    }
    panic!("no end");
}

#[test]
fn the_device_breaks() {
    let mut world = World::new();
    world.a.receive(0..3);
    world.b.receive(0..3);
    world.a.go(10, Send {}, Replay::Anyway);
    world
        .a
        .stage(11, Send {}, SendFlags::empty(), Replay::Anyway);
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::DeviceFatal);
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
    world.settle();
    for state in world.states() {
        assert!(
            matches!(
                state,
                LinkState::Ended(LinkEnd::GaveUp {
                    why: EndReason::Fault(_),
                    ..
                })
            ),
            "{state:?}"
        );
    }
    assert_eq!(
        world.a.sends(),
        [(10, Outcome::Done), (11, Outcome::NotExecuted)]
    );
    world.all_reported([0, 0]);
    let refused = world
        .a
        .link
        .post_empty(1, Send {}, SendFlags::SIGNALED, Replay::Surface);
    assert!(matches!(refused, Err(LinkError::Ended(_))), "{refused:?}");
    assert_eq!(world.a.link.counters().unwrap().gave_up, 1);
}

/// The other end is dropped: this one notices, and ends.
#[test]
fn the_peer_goes() {
    let mut world = World::new();
    world.a.receive(0..3);
    world.a.go(
        10,
        RdmaWrite {
            remote: world.b.memory(),
        },
        Replay::Surface,
    );
    world
        .a
        .stage(11, Send {}, SendFlags::SIGNALED, Replay::IfSafe);
    let (_, gone) = pair();
    let pd = world.device.alloc_pd();
    drop(std::mem::replace(
        &mut world.b,
        Side::new(&pd, init(), gone),
    ));
    let end = ended(&mut world, |world| &mut world.a);
    assert_eq!(end.why(), Some(EndReason::PeerClosed));
    assert_eq!(
        world.a.sends(),
        [(10, Outcome::Done), (11, Outcome::NotExecuted)]
    );
    world.all_reported([0, 0]);
}

/// The other end is not polled any more: a WRITE that nobody counts stays in doubt, and the link is
/// given up within its limits.
#[test]
fn a_peer_that_never_comes_back() {
    let mut world = World::with(&LinkInit {
        limits: Limits {
            attempts: 3,
            exchange: Duration::from_millis(100),
            settle: Duration::ZERO,
            ..Limits::default()
        },
        ..init()
    });
    world.a.receive(0..3);
    let remote = world.b.memory();
    let qpn = world.a.link.qp_num().unwrap();
    let script = Script::default()
        .with(Trigger::Entry(1), Fault::DropAck)
        .with(
            Trigger::After(Duration::from_micros(1)),
            Fault::QpFatal(qpn),
        );
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.a.go(10, RdmaWrite { remote }, Replay::IfSafe);
    world.a.go(11, Send {}, Replay::IfSafe);
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_micros(2));
    let end = ended(&mut world, |world| &mut world.a);
    assert!(
        matches!(
            end,
            LinkEnd::GaveUp {
                why: EndReason::TimedOut(_),
                ..
            }
        ),
        "{end:?}"
    );
    let doubt = Outcome::InDoubt(Doubt::PeerGone);
    assert_eq!(world.a.sends(), [(10, doubt), (11, doubt)]);
    world.all_reported([0, 0]);
}

/// As [`a_peer_that_never_comes_back`], or a port that does not, with the limits that links have if nobody
/// sets them: everything is reported within the bound, and that is 20 s.
#[test]
fn whoever_waits_is_answered_within_the_bound() {
    let bound = Limits::default().max_duration();
    assert_eq!(bound, Duration::from_secs(20));
    for port_down in [false, true] {
        let mut world = World::new();
        world.a.receive(0..3);
        let remote = world.b.memory();
        world.a.go(10, RdmaWrite { remote }, Replay::IfSafe);
        let fault = match port_down {
            false => bellwire::event::EventType::QpFatal,
            true => bellwire::event::EventType::PortErr,
        };
        let down = Script::default().with(Trigger::After(Duration::ZERO), Fault::PortDown);
        if port_down {
            world.device.as_soft().unwrap().inject(&down).unwrap();
        }
        let (send, took) = std::sync::mpsc::channel();
        (world.a.link).on_recovered(move |report| send.send(report.took).unwrap());
        world.a.link.report(bellwire::fault::Fault::Event(fault));
        let end = ended(&mut world, |world| &mut world.a);
        assert!(
            matches!(
                end,
                LinkEnd::GaveUp {
                    why: EndReason::TimedOut(_),
                    ..
                }
            ),
            "{end:?}"
        );
        let took = took.recv().unwrap();
        assert!(took <= bound + POLLED_EVERY, "{took:?}");
        assert_eq!((world.a.reported(), world.a.slab.outstanding()), (4, 0));
    }
}

/// Every connection fails before a SEND finds its receive: it is reported when it has been posted again for
/// as long as a recovery may take, and not posted for ever.
#[test]
fn what_is_posted_again_has_its_end() {
    let mut world = World::with(&LinkInit {
        connect: bellwire::ConnectAttr {
            // Without an end.
            rnr_retry: 7,
            ..init().connect
        },
        ..init()
    });
    world.a.go(10, Send {}, Replay::IfSafe);
    let limit = Limits::default().recovery.as_secs();
    let mut seconds = 0;
    let qp_fatal = bellwire::fault::Fault::Event(bellwire::event::EventType::QpFatal);
    while world.a.sends().is_empty() {
        world
            .device
            .as_soft()
            .unwrap()
            .advance(Duration::from_secs(1));
        world.a.link.report(qp_fatal);
        world.settle();
        assert_eq!(world.states(), [LinkState::Ready; 2]);
        seconds += 1;
        assert!(seconds < 2 * limit, "posted again after {seconds} s");
    }
    assert_eq!(world.a.sends(), [(10, Outcome::NotExecuted)]);
    assert!(seconds >= limit, "{seconds}");
    world.talk();
    world.all_reported([0, 0]);
}

/// A link whose peer is the test: the other end of its exchange.
fn alone() -> (World, LocalExchange) {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let (first, peer) = pair();
    let (_, second) = pair();
    let mut world = World {
        a: Side::new(&pd, init(), first),
        b: Side::new(&pd, init(), second),
        device,
    };
    world.a.receive(0..2);
    (world, peer)
}

/// Nobody ever answers.
#[test]
fn a_peer_that_never_came() {
    let (mut world, _silent) = alone();
    let end = ended(&mut world, |world| &mut world.a);
    assert!(
        matches!(
            end,
            LinkEnd::GaveUp {
                why: EndReason::TimedOut(_),
                ..
            }
        ),
        "{end:?}"
    );
    world.all_reported([0, 0]);
}

/// A peer that says what it may not, and then goes.
fn hears(messages: &[Vec<u8>]) -> (World, LinkEnd) {
    let (mut world, mut hostile) = alone();
    for message in messages {
        hostile.send(message).unwrap();
    }
    world.settle_a();
    if world.a.state() == LinkState::Ready {
        // It cannot know better yet.
        world.a.go(10, Send {}, Replay::IfSafe);
        world.settle_a();
    }
    drop(hostile);
    let end = ended(&mut world, |world| &mut world.a);
    world.all_reported([0, 0]);
    (world, end)
}

#[test]
fn garbage_ends_the_link() {
    let (world, end) = hears(&[b"GET / HTTP/1.1\r\n\r\n".to_vec()]);
    assert_eq!(end.why(), Some(EndReason::PeerLost));
    let error = world.a.link.exchange_error().unwrap().to_string();
    assert!(error.contains("speaks another protocol"), "{error}");
}

/// An end that throws its peer out says so, while the exchange still carries it.
#[test]
fn a_peer_that_talks_nonsense_learns_why() {
    let (mut world, mut hostile) = alone();
    hostile.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ended(&mut world, |world| &mut world.a);
    let mut bytes = [0; Message::MAX_BYTES];
    let mut last = None;
    while let Ok(Some(length)) = hostile.receive(&mut bytes) {
        last = Some(Message::from_bytes(&bytes[..length]).unwrap());
    }
    let why = bellwire::fault::Fault::PeerLost.without_circumstances();
    assert_eq!(last, Some(Message::GaveUp(why)));
}

/// Well-formed nonsense: epochs that race on, queue pairs that are not there, counts that cannot be.
#[test]
fn a_peer_that_lies_gets_nowhere() {
    let conn = bellwire::connect::ConnInfo {
        endpoint: bellwire::Endpoint {
            qp_num: 0x00ff_ffff,
            ..Default::default()
        },
        ..Default::default()
    };
    let lies = (1..200).flat_map(|epoch| {
        let info = RecoveryInfo {
            epoch,
            conn,
            connection: epoch - 1,
            consumed: u64::MAX,
            exact: epoch % 2 == 0,
        };
        [
            Message::Info(info).to_bytes().to_vec(),
            Message::Ready { epoch }.to_bytes().to_vec(),
        ]
    });
    let (_, end) = hears(&lies.collect::<Vec<_>>());
    assert!(matches!(end, LinkEnd::GaveUp { .. }), "{end:?}");
}

/// What was posted goes on, unsignalled requests too; receives come back.
#[test]
fn drain() {
    let mut world = World::new();
    world.a.receive(0..3);
    world.b.receive(0..3);
    world
        .a
        .stage(10, Send {}, SendFlags::empty(), Replay::Surface);
    world.a.go(11, Send {}, Replay::Surface);
    world
        .a
        .stage(12, Send {}, SendFlags::empty(), Replay::Surface);
    let mut reported = Vec::new();
    let drained = world.a.link.drain(Duration::from_secs(5), |it| {
        reported.push((it.wr_id, it.outcome))
    });
    assert_eq!(world.a.state(), LinkState::Ended(LinkEnd::Closed));
    let not = Outcome::NotExecuted;
    assert_eq!(
        reported,
        [(11, Outcome::Done), (0, not), (1, not), (2, not)]
    );
    assert_eq!((drained.reported, drained.retired), (4, 6));
    let counters = world.a.link.counters().unwrap();
    assert_eq!((counters.not_executed, counters.recv_not_executed), (0, 3));
    assert_eq!(world.a.slab.outstanding(), 0);
    world.settle();
    assert_eq!(world.b.state().why(), Some(EndReason::PeerClosed));
    let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
    assert_eq!(words, [10, 11, 12]);
    world.all_reported_at_b();
}

/// A peer without receives: what waits for one is reported when the time is up.
#[test]
fn a_drain_is_bounded() {
    let mut world = World::with(&LinkInit {
        connect: bellwire::ConnectAttr {
            rnr_retry: 7,
            ..bellwire::ConnectAttr::default()
        },
        ..init()
    });
    world.a.go(10, Send {}, Replay::Surface);
    world.a.go(11, Send {}, Replay::Surface);
    let start = std::time::Instant::now();
    let within = Duration::from_millis(200);
    let mut reported = Vec::new();
    let drained = world
        .a
        .link
        .drain(within, |it| reported.push((it.wr_id, it.outcome)));
    assert_within(start.elapsed(), within);
    assert_eq!(drained.retired, 2);
    assert!(
        reported
            .iter()
            .all(|(_, outcome)| *outcome != Outcome::Done),
        "{reported:?}"
    );
    assert_eq!(world.a.slab.outstanding(), 0);
}

/// A fault while it closes.
#[test]
fn a_drain_recovers_first() {
    let mut world = World::new();
    world.b.receive(0..3);
    world.a.go(10, Send {}, Replay::Surface);
    let script = Script::default().with(Trigger::Entry(1), Fault::Status(WcStatus::LocQpOpErr));
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.a.go(11, Send {}, Replay::Surface);
    world.a.go(12, Send {}, Replay::IfSafe);
    world.a.link.close(Duration::from_secs(1));
    world.settle_a();
    assert_eq!(world.a.state(), LinkState::Ended(LinkEnd::Closed));
    let failed = Outcome::Failed(WcStatus::LocQpOpErr);
    assert_eq!(
        world.a.sends(),
        [(10, Outcome::Done), (11, failed), (12, Outcome::Done)]
    );
    assert_eq!(world.a.slab.outstanding(), 0);
}

/// An end that the peer wanted is no fault; one without a word is.
#[test]
fn a_peer_that_closes_and_one_that_is_lost() {
    use bellwire::fault::Fault;
    use std::sync::mpsc::channel;
    for orderly in [true, false] {
        let (mut world, mut peer) = alone();
        let (faults, met) = channel();
        let (ends, ended_so) = channel();
        (world.a.link).on_fault(move |report| faults.send(report.fault).unwrap());
        (world.a.link).on_recovered(move |report| ends.send(report.end).unwrap());
        let conn = bellwire::connect::ConnInfo {
            endpoint: bellwire::Endpoint {
                qp_num: 0x00ff_ffff,
                ..Default::default()
            },
            ..Default::default()
        };
        let info = RecoveryInfo {
            epoch: 1,
            conn,
            connection: 0,
            consumed: 0,
            exact: true,
        };
        for message in [Message::Info(info), Message::Ready { epoch: 1 }] {
            peer.send(&message.to_bytes()).unwrap();
        }
        world.settle_a();
        assert_eq!(world.a.state(), LinkState::Ready);
        assert_eq!(ended_so.try_recv(), Ok(End::Recovered));
        if orderly {
            peer.send(&Message::Closing.to_bytes()).unwrap();
        }
        drop(peer);
        let why = if orderly {
            EndReason::PeerClosed
        } else {
            EndReason::PeerLost
        };
        assert_eq!(ended(&mut world, |world| &mut world.a).why(), Some(why));
        let expected = (!orderly).then_some(Fault::PeerLost);
        assert_eq!(met.try_recv().ok(), expected);
        let expected = (!orderly).then_some(End::GaveUp(why));
        assert_eq!(ended_so.try_recv().ok(), expected);
        let counters = world.a.link.counters().unwrap();
        assert_eq!(counters.gave_up, u64::from(!orderly));
        world.all_reported([0, 0]);
    }
}
