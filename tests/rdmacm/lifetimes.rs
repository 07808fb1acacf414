//! Ids, events and channels that go in any order, and descriptors.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{ConnParam, EventChannel, PortSpace};
use bellwire::fault::CmEvent;
use bellwire_tests::ends::QUIET;
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::{Epoll, Trigger, readable};
use std::time::Duration;
use std::time::Instant;

tests! {
    an_id_goes_in_its_handler,
    an_id_goes_with_the_event_that_is_held,
    a_channel_goes_before_its_ids,
    events_follow_an_id_to_another_channel,
    descriptors_can_be_waited_for,
    threads_share_a_channel,
}

fn an_id_goes_in_its_handler() {
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    let event = expect(&channel, CmEvent::AddrResolved);
    drop(id);
    // Still there: the event holds it.
    assert_eq!(device_of(event.id()).name(), "rxe0");
    drop(event);
    silence(&channel);
}

/// A request is held; its listener goes, then the request's own id.
fn an_id_goes_with_the_event_that_is_held() {
    let channel = channel();
    let (listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    let end = end_for(&id);
    id.connect(&end.qp, &ConnParam::default()).expect("a step");
    let event = expect(&channel, CmEvent::ConnectRequest);
    let start = Instant::now();
    drop(listener);
    silence(&channel);
    drop(event);
    assert!(start.elapsed() < STEP);
    // Nobody has taken it.
    assert!(*expect(&channel, CmEvent::Rejected).id() == id);
    // An event that is queued for an id is dropped with the id.
    let other = channel.id(PortSpace::Tcp).expect("an id");
    other
        .resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    assert!(readable(&channel, DEADLINE));
    drop(other);
    silence(&channel);
}

fn a_channel_goes_before_its_ids() {
    let first = channel();
    let id = first.id(PortSpace::Tcp).expect("an id");
    drop(first);
    id.resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    drop(id);
}

/// One event is got before, another waits.
fn events_follow_an_id_to_another_channel() {
    let (from, to) = (channel(), channel());
    let id = from.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    let held = expect(&from, CmEvent::AddrResolved);
    id.resolve_route(STEP).expect("a step");
    assert!(readable(&from, DEADLINE));
    id.migrate(&to).expect("both are of librdmacm");
    assert!(*held.id() == id);
    silence(&from);
    assert!(*expect(&to, CmEvent::RouteResolved).id() == id);
    let soft = EventChannel::open("soft").expect("always there");
    let refused = id.migrate(&soft);
    assert!(
        matches!(refused, Err(bellwire::Error::Foreign { .. })),
        "{refused:?}"
    );
}

fn descriptors_can_be_waited_for() {
    let channel = channel();
    let epoll = Epoll::new();
    epoll.add(&channel, 7, Trigger::Level);
    assert_eq!(epoll.wait(Duration::ZERO), [0; 0]);
    assert!(channel.try_get().expect("it does not block").is_none());
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    assert_eq!(epoll.wait(DEADLINE), [7]);
    assert!(channel.try_get().expect("it is there").is_some());
    assert_eq!(epoll.wait(Duration::ZERO), [0; 0]);
}

/// Four threads make and drop ids; each event goes to the thread that asks next.
fn threads_share_a_channel() {
    let channel = channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..25 {
                    let id = channel.id(PortSpace::Tcp).expect("an id");
                    id.resolve_addr(None, address(HERE, 7), STEP)
                        .expect("a step");
                    let _ = channel
                        .get(Duration::from_millis(round % 3))
                        .expect("a wait");
                    let _ = id.device().expect("it opens");
                }
            });
        }
    });
    while channel.get(QUIET.0).expect("a wait").is_some() {}
}
