//! Ids and events come and go as programs have them, and channels can be slept on.

use super::world::{Expect, QUIET, SOON, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{Device, Error};
use bellwire_tests::fixture::{self, End};
use bellwire_tests::readiness;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

in_both_worlds!(
    an_id_can_go_while_its_event_is_held,
    an_id_takes_its_events_along,
    a_listener_takes_its_requests_along,
    a_connection_goes_on_after_it_has_moved,
    the_descriptor_is_readable_while_there_are_events,
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
    // Events of an id that is gone are not delivered.
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

fn the_descriptor_is_readable_while_there_are_events(world: &World) {
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

/// A thread that sleeps on a channel is woken by what another thread does.
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

/// Asks the listener at an address.
fn ask(channel: &EventChannel, at: (&str, u16)) -> (Id, End) {
    let client = channel.id(PortSpace::Tcp).unwrap();
    client.resolve_addr(None, at, SOON).unwrap();
    channel.sees(&client, CmEvent::AddrResolved);
    client.resolve_route(SOON).unwrap();
    channel.sees(&client, CmEvent::RouteResolved);
    let device = client.device().unwrap().unwrap();
    let (mut end, _) = fixture::ends(&device, bellwire::soft::Mode::Inline);
    client
        .init_qp(&mut end.qp, bellwire::AccessFlags::empty())
        .unwrap();
    client.connect(&end.qp, &ConnParam::default()).unwrap();
    (client, end)
}

/// Listeners are found at the addresses that they listen at, and a host's name is one of these.
#[test]
fn listeners_are_found_at_their_addresses() {
    let fabric = format!("soft:{}", fixture::fabric_name());
    let channel = EventChannel::open(&fabric).unwrap();
    let listen = |at: &str, port: u16| {
        let id = channel.id(PortSpace::Tcp).unwrap();
        id.bind((at, port)).unwrap();
        id.listen(0).unwrap();
        id
    };
    let one = listen("127.0.0.1", 7471);
    let other = listen("127.0.0.2", 7471);
    let all = listen("0.0.0.0", 7472);
    let both = listen("::", 7473);
    for (listener, at, port) in [
        (&one, "127.0.0.1", 7471),
        (&other, "127.0.0.2", 7471),
        (&all, "127.0.0.1", 7472),
        (&all, "127.0.0.2", 7472),
        (&both, "127.0.0.1", 7473),
        (&both, "::1", 7473),
    ] {
        let _client = ask(&channel, (at, port));
        let event = channel.expect(listener, CmEvent::ConnectRequest);
        let EventKind::ConnectRequest { id, .. } = event.ack() else {
            panic!("another kind");
        };
        assert_eq!(
            id.local_addr().unwrap(),
            (at.parse::<IpAddr>().unwrap(), port).into()
        );
    }
    let named = listen("localhost", 7474);
    let _client = ask(&channel, ("localhost", 7474));
    channel.sees(&named, CmEvent::ConnectRequest);
}

/// As a real device has it: an address that is not listened at has no listener, on whatever port.
#[test]
fn listeners_are_found_nowhere_else() {
    const NO_SUCH_SERVICE: i32 = 8;
    let fabric = format!("soft:{}", fixture::fabric_name());
    let channel = EventChannel::open(&fabric).unwrap();
    let listeners = [("127.0.0.1", 7471), ("0.0.0.0", 7472)].map(|at| {
        let id = channel.id(PortSpace::Tcp).unwrap();
        id.bind(at).unwrap();
        id.listen(0).unwrap();
        id
    });
    for at in [
        ("127.0.0.2", 7471),
        ("::1", 7471),
        ("::1", 7472),
        ("127.0.0.1", 0),
    ] {
        let (client, _end) = ask(&channel, at);
        let event = channel.expect(&client, CmEvent::Rejected);
        assert_eq!(event.status(), NO_SUCH_SERVICE, "{at:?}");
    }
    drop(listeners);
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
