//! A link that always has something to report is checked all the same.

use crate::world::{World, init};
use bellwire::event::{Element, EventType};
use bellwire::fault::Fault;
use bellwire::fault::outcome::Replay;
use bellwire::fault::plan::EndReason;
use bellwire::link::{FaultReport, LinkInit};
use bellwire::wqe::{Nop, RdmaWriteWithImm, Send};
use bellwire_tests::fixture::SIGNALED;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Polls within which a check comes, where one that finds nothing is followed by one.
const POLLS: u32 = 65;

/// Polls the first end, which has another request to report each time.
fn poll_busy(world: &mut World) {
    let link = &mut world.a.link;
    if link
        .post_empty(7, Nop {}, SIGNALED, Replay::Surface)
        .is_ok()
    {
        link.ring();
    }
    link.poll(1, |_| ());
}

fn polls_until(world: &mut World, mut is_so: impl FnMut(&mut World) -> bool) {
    for _ in 0..POLLS {
        if is_so(world) {
            return;
        }
        poll_busy(world);
    }
    assert!(is_so(world), "not within {POLLS} polls");
}

#[test]
fn it_hears_that_its_peer_closes() {
    let mut world = World::with(&init());
    world.b.link.close(Duration::ZERO);
    world.b.poll();
    let closed = Some(EndReason::PeerClosed);
    polls_until(&mut world, |world| world.a.state().why() == closed);
}

#[test]
fn it_hears_of_the_port() {
    let mut world = World::with(&init());
    let (send, faults) = channel();
    let heard = move |report: &FaultReport| send.send(report.fault).unwrap();
    world.a.link.on_fault(heard);
    let soft = world.device.as_soft().unwrap();
    soft.raise(EventType::PortErr, Element::Port(1)).unwrap();
    polls_until(&mut world, |_| faults.try_recv().is_ok());
}

#[test]
fn a_missed_deadline_is_found() {
    let deadline = Duration::from_secs(1);
    let mut init = LinkInit {
        request_deadline: Some(deadline),
        ..init()
    };
    init.connect.rnr_retry = 7;
    let mut world = World::with(&init);
    let (send, faults) = channel();
    let heard = move |report: &FaultReport| send.send(report.fault).unwrap();
    world.a.link.on_fault(heard);
    // Receives keep the link busy; its own request has none at the peer.
    let memory = world.a.memory();
    world.a.go(1, Send {}, Replay::Surface);
    for step in 0..4 * POLLS {
        world.a.receive([u64::from(step)]);
        let write = RdmaWriteWithImm {
            remote: memory,
            imm: 1u32.into(),
        };
        world.b.go(2, write, Replay::Surface);
        world.b.poll();
        world.a.link.poll(1, |_| ());
        let soft = world.device.as_soft().unwrap();
        soft.advance(deadline / POLLS);
        if let Ok(fault) = faults.try_recv() {
            assert_eq!(fault, Fault::DeadlineMissed);
            return;
        }
    }
    panic!("it is not found");
}
