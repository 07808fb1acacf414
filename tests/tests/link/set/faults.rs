//! Faults of one link, of the completion queue, and of the device.

use super::world::{SetWorld, set_init};
use crate::world::init;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{LinkEnd, LinkInit, LinkSetInit, LinkState, pair};
use bellwire::soft::Fault;
use bellwire::wqe::Send;
use std::time::Duration;

/// A link recovers, and the others talk meanwhile.
#[test]
fn a_link_recovers_while_the_others_go_on() {
    for at in 0..3 {
        let mut world = SetWorld::new(3);
        let (id, client) = &mut world.clients[at];
        let id = *id;
        client.receive([4, 5]);
        world.receive(id, [1, 2]);
        world.send(id, 3, Replay::IfSafe);
        let number = world.qp_num(at);
        world.strike(Fault::QpFatal(number));
        // Not its peer, so that it stays without a connection.
        for round in 0..20 {
            world.poll_set(64);
            for other in (0..3).filter(|other| *other != at) {
                let (of, client) = &mut world.clients[other];
                let of = *of;
                client.receive([round]);
                world.receive(of, [round]);
                let client = &mut world.clients[other].1;
                client.go(100 + round, Send {}, Replay::Surface);
                world.send(of, 200 + round, Replay::Surface);
                world.clients[other].1.poll();
            }
        }
        world.poll_set(64);
        assert_eq!(world.set.state(id), Ok(LinkState::Recovering));
        for other in (0..3).filter(|other| *other != at) {
            world.clients[other].1.poll();
            let (of, client) = &world.clients[other];
            let done = |from: u64| (0..20).map(move |round| (from + round, Outcome::Done));
            let came = |from: u64| (0..20).map(move |round| (round, Outcome::Done, from + round));
            assert_eq!(world.sends(*of), done(200).collect::<Vec<_>>());
            assert_eq!(world.received(*of), came(100).collect::<Vec<_>>());
            assert_eq!(client.received(), came(200).collect::<Vec<_>>());
        }
        world.settle();
        world.all_ready();
        assert_eq!(world.set.link(id).unwrap().epoch(), 2);
        assert_eq!(world.sends(id), [(3, Outcome::Done)]);
        let client = &mut world.clients[at].1;
        assert_eq!(client.received(), [(4, Outcome::Done, 3)]);
        client.go(7, Send {}, Replay::Surface);
        client.go(8, Send {}, Replay::Surface);
        world.send(id, 9, Replay::Surface);
        world.poll();
        let came = [(1, Outcome::Done, 7), (2, Outcome::Done, 8)];
        assert_eq!(world.received(id), came);
        world.all_reported();
        world.talk();
    }
}

/// The peers' links recover, all of them: so do the set's.
#[test]
fn all_peers_recover_at_once() {
    let mut world = SetWorld::new(16);
    for at in 0..16 {
        let id = world.clients[at].0;
        world.receive(id, [1]);
        let number = world.clients[at].1.link.qp_num().unwrap();
        world.strike(Fault::QpFatal(number));
    }
    world.settle();
    world.all_ready();
    for (_, client) in &mut world.clients {
        assert_eq!(client.link.epoch(), 2);
        client.go(2, Send {}, Replay::Surface);
    }
    world.poll();
    for (id, _) in &world.clients {
        assert_eq!(world.received(*id), [(1, Outcome::Done, 2)]);
    }
    world.talk();
}

/// The shared queue fails: every link gets another, and each request one outcome.
#[test]
fn a_completion_queue_fails() {
    for links in [1, 3, 16] {
        let mut world = SetWorld::new(links);
        for round in 0..3 {
            let cqn = world.set.cqns().next().unwrap();
            for at in 0..links {
                let (id, client) = &mut world.clients[at];
                let id = *id;
                client.receive([10, 11]);
                world.receive(id, [1, 2]);
                world.send(id, 3, Replay::IfSafe);
            }
            let numbers: Vec<_> = (0..links).map(|at| world.qp_num(at)).collect();
            world.strike(Fault::CqOverrun(cqn));
            world.settle();
            world.all_ready();
            assert_ne!(world.set.cqns().next(), Some(cqn));
            let epoch = 2 + round;
            for (at, number) in numbers.into_iter().enumerate() {
                assert_ne!(world.qp_num(at), number);
                let (id, client) = &mut world.clients[at];
                let id = *id;
                assert_eq!(client.link.epoch(), epoch);
                client.go(12, Send {}, Replay::Surface);
                client.go(13, Send {}, Replay::Surface);
                world.send(id, 4, Replay::Surface);
            }
            world.poll();
            for (id, client) in &world.clients {
                // Its completion was in the queue, or its peer's count says that it was executed.
                assert_eq!(world.sends(*id), [(3, Outcome::Done), (4, Outcome::Done)]);
                let came = [(1, Outcome::Done, 12), (2, Outcome::Done, 13)];
                assert_eq!(world.received(*id), came);
                let came = [(10, Outcome::Done, 3), (11, Outcome::Done, 4)];
                assert_eq!(client.received(), came);
            }
            world.all_reported();
            world.talk();
            world.forget();
        }
    }
}

/// The program reports that the queue failed, by any link: the same.
#[test]
fn a_reported_failure_of_the_queue_is_of_all() {
    let mut world = SetWorld::new(4);
    let id = world.clients[2].0;
    let fault = bellwire::fault::Fault::Event(bellwire::event::EventType::CqErr);
    world.set.report(id, fault).unwrap();
    world.settle();
    world.all_ready();
    for (id, _) in &world.clients {
        assert_eq!(world.set.link(*id).unwrap().epoch(), 2);
    }
    world.talk();
}

/// A queue that is too small overruns in earnest, and the completions that it lost have an outcome.
#[test]
fn a_small_queue_overruns() {
    let small = LinkSetInit {
        cq_entries: Some(16),
        ..set_init(4)
    };
    let mut world = SetWorld::unconnected(4, small, &init());
    world.settle();
    let before = world.set.cqns().next();
    for at in 0..4 {
        let (id, client) = &mut world.clients[at];
        let id = *id;
        client.receive(0..16);
        for wr_id in 0..16 {
            world.send(id, wr_id, Replay::IfSafe);
        }
    }
    world.settle();
    world.poll();
    world.all_ready();
    assert_ne!(world.set.cqns().next(), before);
    let mut executed = 0;
    for (id, client) in &world.clients {
        let outcomes = world.sends(*id);
        assert_eq!(outcomes.len(), 16, "{outcomes:?}");
        executed += client.received().len();
        // No false outcome: what is reported as executed has come.
        let done = outcomes
            .iter()
            .filter(|(_, outcome)| *outcome == Outcome::Done);
        for (wr_id, _) in done {
            assert!(client.received().iter().any(|came| came.2 == *wr_id));
        }
    }
    assert_eq!(executed, 64);
    world.set.drain(Duration::from_secs(1), |_, _| ());
}

/// A link recovers when the queue fails, and one is being closed, and one connects for the first time.
#[test]
fn a_completion_queue_fails_in_every_state_of_a_link() {
    for polls in 0..12 {
        let mut world = SetWorld::unconnected(3, set_init(4), &init());
        world.settle();
        let cqn = world.set.cqns().next().unwrap();
        let number = world.qp_num(0);
        world.strike(Fault::QpFatal(number));
        let closed = world.clients[1].0;
        world.receive(closed, [1, 2]);
        world.set.close(closed, Duration::ZERO).unwrap();
        let new = world.join(&init());
        world.receive(new, [3]);
        for _ in 0..polls {
            world.poll_set(64);
            world
                .clients
                .iter_mut()
                .for_each(|(_, client)| _ = client.poll());
        }
        world.strike(Fault::CqOverrun(cqn));
        world.settle();
        assert_eq!(
            world.set.state(closed),
            Ok(LinkState::Ended(LinkEnd::Closed))
        );
        assert_eq!(world.received(closed).len(), 2);
        world.clients.remove(1);
        world.all_ready();
        world
            .clients
            .last_mut()
            .unwrap()
            .1
            .go(4, Send {}, Replay::Surface);
        world.poll();
        assert_eq!(world.received(new), [(3, Outcome::Done, 4)]);
        world.set.remove(closed).unwrap();
        world.talk();
    }
}

/// The device fails: all links end, and everything has an outcome.
#[test]
fn a_device_fails() {
    let mut world = SetWorld::new(5);
    for at in 0..5 {
        let id = world.clients[at].0;
        world.receive(id, [1, 2]);
        world.send(id, 3, Replay::IfSafe);
        world.clients[at].1.receive([1]);
    }
    world.strike(Fault::DeviceFatal);
    world.settle();
    for (id, _) in &world.clients {
        let state = world.set.state(*id);
        let fatal = matches!(
            state,
            Ok(LinkState::Ended(LinkEnd::GaveUp {
                why: EndReason::Fault(_),
                ..
            }))
        );
        assert!(fatal, "{state:?}");
        assert!(world.changes.contains(&(*id, state.unwrap())));
    }
    world.all_reported();
    let joined = world.set.join(init(), pair().0);
    assert!(joined.is_err(), "the device is gone");
}

/// A peer that does not answer: the link is given up in time, and the others do not wait for it.
#[test]
fn a_silent_peer_is_given_up() {
    let mut world = SetWorld::new(3);
    let (id, silent) = world.clients.remove(1);
    world.receive(id, [1]);
    world.send(id, 2, Replay::IfSafe);
    let number = {
        let link = world.set.link(id).unwrap();
        link.qp_num().unwrap()
    };
    world.strike(Fault::QpFatal(number));
    let max = LinkInit::default().limits.max_duration();
    let step = Duration::from_millis(50);
    let mut waited = Duration::ZERO;
    while !matches!(world.set.state(id), Ok(LinkState::Ended(_))) {
        world.poll();
        world.device.as_soft().unwrap().advance(step);
        waited += step;
        assert!(waited <= max + step);
    }
    world.talk();
    assert_eq!(silent.posted, 0);
    world.set.remove(id).unwrap();
}
