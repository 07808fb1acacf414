//! Sleeping until a link wants to be polled.

use crate::modes::{ready, until};
use crate::world::{End, World, init};
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkInit, LinkState, RecoverIn, pair};
use bellwire::soft::{self, Mode, Script, Trigger};
use bellwire::wqe::Send;
use bellwire::{Device, Error};
use bellwire_tests::fixture::{DEADLINE, device};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Whether the descriptor of a link is readable, or gets so within `milliseconds`.
pub fn wakes(end: &End, milliseconds: i32) -> bool {
    is_readable(end.link.fd().unwrap(), milliseconds)
}

/// Whether a descriptor is readable, or gets so within `milliseconds`.
pub fn is_readable(fd: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut entry, 1, milliseconds) == 1 }
}

/// As a program does before it sleeps.
pub fn falls_asleep(end: &mut End) {
    end.link.arm().unwrap();
    while end.poll() != 0 {}
    assert_eq!(end.state(), LinkState::Ready);
    assert!(!wakes(end, 0), "there is nothing to wake for");
}

pub fn sleepers() -> LinkInit {
    LinkInit {
        waitable: true,
        // What is looked at is looked at because it was armed.
        check_every: 1 << 20,
        ..init()
    }
}

fn strike(world: &World, fault: soft::Fault) {
    strike_on(&world.device, fault);
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
}

/// A fault, at once.
pub fn strike_on(device: &Device, fault: soft::Fault) {
    let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
    device.as_soft().unwrap().inject(&script).unwrap();
    device.progress();
}

/// A message wakes, also through another completion queue, by the same descriptor.
#[test]
fn a_message_wakes_through_recoveries() {
    let mut world = World::with(&sleepers());
    let fd = world.b.link.fd().unwrap().as_raw_fd();
    for round in 0..4u64 {
        world.b.receive([round]);
        falls_asleep(&mut world.b);
        world.a.go(100 + round, Send {}, Replay::Surface);
        assert!(wakes(&world.b, 0), "{round}");
        assert_eq!(world.b.poll(), 1);
        let received = world.b.received()[round as usize];
        assert_eq!(received, (round, Outcome::Done, 100 + round));
        falls_asleep(&mut world.b);

        let fault = match round % 2 {
            0 => soft::Fault::CqOverrun(world.b.link.cqn().unwrap()),
            _ => soft::Fault::QpFatal(world.b.link.qp_num().unwrap()),
        };
        strike(&world, fault);
        assert!(wakes(&world.b, 0), "of {fault:?}");
        while world.b.link.epoch() < round + 2 {
            for end in [&mut world.a, &mut world.b] {
                end.link.arm().unwrap();
                end.poll();
            }
        }
        world.settle();
        assert_eq!(world.b.link.fd().unwrap().as_raw_fd(), fd);
    }
}

/// A thread that takes the device's events wakes the links that they concern.
#[test]
fn events_that_others_took_wake() {
    let mut world = World::with(&sleepers());
    falls_asleep(&mut world.b);
    strike(&world, soft::Fault::QpFatal(world.b.link.qp_num().unwrap()));
    world.a.link.arm().unwrap();
    world.a.poll();
    assert_eq!(world.a.state(), LinkState::Ready, "it was not meant");
    assert!(wakes(&world.b, 0));
    world.b.link.arm().unwrap();
    world.b.poll();
    assert_eq!(world.b.state(), LinkState::Recovering);
}

/// A thread that has recovered the link wakes the one who sleeps.
#[test]
fn the_end_of_a_recovery_wakes() {
    let pd = device(Mode::Inline).alloc_pd();
    let (here, there) = pair();
    let threaded = LinkInit {
        recover_in: RecoverIn::Thread,
        ..sleepers()
    };
    let mut a = End::new(&pd, init(), here);
    let mut b = End::new(&pd, threaded, there);
    until(&mut a, &mut b, ready);
    b.link.report(Fault::PeerRecovery);
    b.link.arm().unwrap();
    b.poll();
    assert_eq!(b.link.counters(), None, "a thread has it");
    let start = Instant::now();
    while !wakes(&b, 1) {
        a.poll();
        assert!(start.elapsed() < DEADLINE);
    }
    until(&mut a, &mut b, ready);
}

#[test]
fn a_link_that_was_not_made_for_it_cannot_be_armed() {
    let mut world = World::new();
    assert!(world.a.link.fd().is_none());
    let refused = world.a.link.arm();
    assert!(
        matches!(refused, Err(Error::NoChannel { .. })),
        "{refused:?}"
    );
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("the link as one that sleeps")
    );
}
