//! Ids and events come and go as programs have them, and channels can be slept on.

use super::world::{Expect, QUIET, SOON, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{Device, Error};
use bellwire_tests::fixture;
use bellwire_tests::readiness;
use std::os::fd::AsFd;
use std::time::Duration;

in_both_worlds!(
    an_id_can_go_while_its_event_is_held,
    an_id_takes_its_events_along,
    a_listener_takes_its_requests_along,
    a_connection_goes_on_after_it_has_moved,
    the_descriptor_tells,
);

fn an_id_can_go_while_its_event_is_held(world: &World) {
    let connection = world.connection();
    drop(connection.connected);
    let event = world
        .server
        .expect(&connection.accepted, CmEvent::Disconnected);
    drop(connection.accepted);
    // It lives on in the event.
    assert!(event.id().peer_addr().is_some());
    drop(event);
    world.server.nothing();
    // Events of an id that is gone are not told.
    let id = world.client.id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, ("127.0.0.1", 7), SOON).unwrap();
    drop(id);
    world.client.nothing();
}

fn an_id_takes_its_events_along(world: &World) {
    let id = world.client.id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, ("127.0.0.1", 7), SOON).unwrap();
    let other = EventChannel::on(&world.device).unwrap();
    id.migrate(&other).unwrap();
    world.client.nothing();
    other.sees(&id, CmEvent::AddrResolved);
    id.migrate(&other).unwrap();
    let stranger = fixture::device(bellwire::soft::Mode::Inline);
    let foreign = id.migrate(&EventChannel::on(&stranger).unwrap());
    assert!(matches!(foreign, Err(Error::Foreign { .. })), "{foreign:?}");
    id.resolve_route(SOON).unwrap();
    other.sees(&id, CmEvent::RouteResolved);
}

fn a_listener_takes_its_requests_along(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 1);
    let device = listener.device().unwrap().unwrap();
    let ask = || {
        let client = world.caller(PortSpace::Tcp, listener.port());
        let there = world.end(&client);
        client.connect(&there.qp, &ConnParam::default()).unwrap();
        (client, there)
    };
    // One request has arrived and was not got, another waits behind the backlog.
    let first = ask();
    let other = EventChannel::on(&device).unwrap();
    drop(world.server.get(QUIET).unwrap().expect("a request"));
    world.client.sees(&first.0, CmEvent::Rejected);
    let second = ask();
    readable(&world.server);
    let third = ask();
    listener.migrate(&other).unwrap();
    for (client, _) in [&second, &third] {
        let event = other.expect(&listener, CmEvent::ConnectRequest);
        drop(event);
        let rejected = world.client.expect(client, CmEvent::Rejected);
        assert_eq!(rejected.status(), 28);
    }
    world.server.nothing();
}

fn a_connection_goes_on_after_it_has_moved(world: &World) {
    let mut connection = world.connection();
    let device = connection.accepted.device().unwrap().unwrap();
    let other = EventChannel::on(&device).unwrap();
    connection.accepted.migrate(&other).unwrap();
    connection.works();
    connection
        .connected
        .disconnect(&mut connection.there.qp)
        .unwrap();
    other.sees(&connection.accepted, CmEvent::Disconnected);
    world
        .client
        .sees(&connection.connected, CmEvent::Disconnected);
    other.sees(&connection.accepted, CmEvent::TimewaitExit);
    world.server.nothing();
}

fn is_readable(channel: &EventChannel) -> bool {
    readiness::readable(channel.as_fd(), Duration::ZERO)
}

fn readable(channel: &EventChannel) {
    assert!(readiness::readable(channel.as_fd(), SOON));
}

fn the_descriptor_tells(world: &World) {
    assert!(!is_readable(&world.client) && !is_readable(&world.server));
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.client.id(PortSpace::Tcp).unwrap();
    client
        .resolve_addr(None, ("localhost", listener.port()), SOON)
        .unwrap();
    readable(&world.client);
    world.client.sees(&client, CmEvent::AddrResolved);
    assert!(!is_readable(&world.client));
    let mut connection = world.connection();
    connection
        .connected
        .disconnect(&mut connection.there.qp)
        .unwrap();
    readable(&world.server);
    world
        .server
        .sees(&connection.accepted, CmEvent::Disconnected);
    readable(&world.client);
    world
        .client
        .sees(&connection.connected, CmEvent::Disconnected);
    // A time that is over makes it readable as well.
    readable(&world.client);
    world
        .client
        .sees(&connection.connected, CmEvent::TimewaitExit);
}

/// Whoever sleeps on a channel is woken by what another thread does.
#[test]
fn another_thread_wakes_who_waits() {
    let channel = EventChannel::open("soft").unwrap();
    let id = channel.id(PortSpace::Tcp).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.get(fixture::DEADLINE).unwrap().is_some());
        std::thread::sleep(QUIET);
        id.resolve_addr(None, ("127.0.0.1", 9), SOON).unwrap();
        assert!(waiting.join().unwrap());
    });
}

/// Names are ends of their own, by the names that programs choose.
#[test]
fn names_are_found() {
    let fabric = format!("soft:{}", fixture::fabric_name());
    let channel = EventChannel::open(&fabric).unwrap();
    let listen = |name: &str| {
        let id = channel.id(PortSpace::Tcp).unwrap();
        id.bind((name, 7471)).unwrap();
        id.listen(0).unwrap();
        id
    };
    let listeners = [listen("storage-1"), listen("storage-2"), listen("10.0.0.1")];
    assert_eq!(listeners[0].port(), 7471);
    for (name, listener) in ["storage-1", "storage-2", "localhost"]
        .into_iter()
        .zip(&listeners)
    {
        let client = channel.id(PortSpace::Tcp).unwrap();
        client.resolve_addr(None, (name, 7471), SOON).unwrap();
        channel.sees(&client, CmEvent::AddrResolved);
        client.resolve_route(SOON).unwrap();
        channel.sees(&client, CmEvent::RouteResolved);
        let device = client.device().unwrap().unwrap();
        let (mut end, _) = fixture::ends(&device, bellwire::soft::Mode::Inline);
        client
            .init_qp(&mut end.qp, bellwire::AccessFlags::empty())
            .unwrap();
        client.connect(&end.qp, &ConnParam::default()).unwrap();
        let event = channel.expect(listener, CmEvent::ConnectRequest);
        assert!(matches!(event.kind(), EventKind::ConnectRequest { .. }));
    }
}

/// Devices that are on no fabric are worlds of their own.
#[test]
fn devices_are_not_mixed_up() {
    let world = World::alone();
    let listener = world.listener(PortSpace::Tcp, 1);
    let other = World {
        client: EventChannel::on(&Device::open("soft").unwrap()).unwrap(),
        ..World::alone()
    };
    let client = other.caller(PortSpace::Tcp, listener.port());
    client
        .connect(&other.end(&client).qp, &ConnParam::default())
        .unwrap();
    other.client.sees(&client, CmEvent::Rejected);
    world.server.nothing();
}
