//! The events of connections.

use super::world::{Expect, Place, SOON, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::QpState;
use bellwire::{Error, QpInit};
use bellwire_tests::fixture::End;
use std::time::Duration;

in_both_worlds!(
    a_connection_from_beginning_to_end,
    the_server_disconnects,
    both_disconnect_at_once,
    parameters_and_private_data_arrive,
    a_request_is_rejected,
    an_answer_is_rejected,
    nobody_listens,
    a_peer_that_goes_disconnects,
    a_queue_pair_has_one_connection,
    an_answer_by_a_queue_pair_that_has_a_connection_is_rejected,
    a_client_that_goes_withdraws_its_request,
    a_server_that_goes_rejects,
    a_port_that_is_down_resolves_nothing,
    injected_failures_strike_once,
    a_device_that_goes_notifies_every_id,
    a_changed_address_is_reported,
);

fn inject(world: &World, event: CmEvent) {
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::Cm(event));
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.device.progress();
}

fn is_over(end: &mut End) {
    assert_eq!(end.qp.state(), QpState::Err);
    end.is_flushed();
}

/// ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, CONNECT_RESPONSE, ESTABLISHED, DISCONNECTED and
/// TIMEWAIT_EXIT.
fn a_connection_from_beginning_to_end(world: &World) {
    let mut connection = world.connection();
    connection.works();
    let (client, server) = (&connection.connected, &connection.accepted);
    client.disconnect(&mut connection.there.qp).unwrap();
    world.server.sees(server, CmEvent::Disconnected);
    world.client.sees(client, CmEvent::Disconnected);
    server.disconnect(&mut connection.here.qp).unwrap();
    is_over(&mut connection.there);
    is_over(&mut connection.here);
    world.client.sees(client, CmEvent::TimewaitExit);
    world.server.sees(server, CmEvent::TimewaitExit);
    world.client.nothing();
    world.server.nothing();
    // The listener goes on, and the queue pairs can be used again.
    let again = world.caller(PortSpace::Tcp, connection.listener.port());
    connection.there.reset();
    again
        .init_qp(&mut connection.there.qp, bellwire::AccessFlags::empty())
        .unwrap();
    again
        .connect(&connection.there.qp, &ConnParam::default())
        .unwrap();
    world.request(&connection.listener);
}

fn the_server_disconnects(world: &World) {
    let mut connection = world.connection();
    let (client, server) = (&connection.connected, &connection.accepted);
    server.disconnect(&mut connection.here.qp).unwrap();
    world.client.sees(client, CmEvent::Disconnected);
    world.server.sees(server, CmEvent::Disconnected);
    // What is sent now is not executed.
    client.disconnect(&mut connection.there.qp).unwrap();
    is_over(&mut connection.there);
    is_over(&mut connection.here);
    // Nor is it disconnected twice.
    client.disconnect(&mut connection.there.qp).unwrap();
    world.client.sees(client, CmEvent::TimewaitExit);
    world.client.nothing();
}

fn both_disconnect_at_once(world: &World) {
    let mut connection = world.connection();
    let (client, server) = (&connection.connected, &connection.accepted);
    server.disconnect(&mut connection.here.qp).unwrap();
    client.disconnect(&mut connection.there.qp).unwrap();
    world.client.sees(client, CmEvent::Disconnected);
    world.server.sees(server, CmEvent::Disconnected);
    world.client.sees(client, CmEvent::TimewaitExit);
    world.server.sees(server, CmEvent::TimewaitExit);
    world.client.nothing();
    world.server.nothing();
}

fn parameters_and_private_data_arrive(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    client.set_ack_timeout(9).unwrap();
    let mut there = world.end(&client);
    let asked = ConnParam {
        private_data: (0..56).collect(),
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 6,
        rnr_retry_count: 4,
    };
    client.connect(&there.qp, &asked).unwrap();
    let event = world.server.expect(&listener, CmEvent::ConnectRequest);
    let EventKind::ConnectRequest { id: server, conn } = event.ack() else {
        panic!("not a request")
    };
    // What one end has, the other asks for.
    assert_eq!(
        conn.param,
        ConnParam {
            responder_resources: 5,
            initiator_depth: 3,
            ..asked
        }
    );
    assert_eq!((conn.qp_num, conn.srq), (there.qp.qp_num(), false));
    assert_eq!(server.peer_addr(), client.local_addr());
    assert_eq!(server.local_addr(), client.peer_addr());
    let mut here = world.end(&server);
    let accepted = ConnParam {
        private_data: vec![7; 10],
        rnr_retry_count: 2,
        ..conn.param
    };
    server.accept(&mut here.qp, &accepted).unwrap();
    let event = world.client.expect(&client, CmEvent::ConnectResponse);
    // Filled up, as on the wire.
    let padded = [vec![7; 10], vec![0; 186]].concat();
    assert_eq!(event.private_data(), padded);
    let EventKind::ConnectResponse { conn } = event.ack() else {
        panic!("not a response")
    };
    assert_eq!(conn.qp_num, here.qp.qp_num());
    client.establish(&mut there.qp).unwrap();
    let (here, there) = (here.qp.query(), there.qp.query());
    assert_eq!((here.max_rd_atomic, here.max_dest_rd_atomic), (3, 5));
    assert_eq!((there.max_rd_atomic, there.max_dest_rd_atomic), (5, 3));
    assert_eq!((here.retry_cnt, there.retry_cnt), (6, 6));
    assert_eq!((here.rnr_retry, there.rnr_retry), (4, 2));
    assert_eq!(there.timeout, 9);
}

fn a_request_is_rejected(world: &World) {
    let (_listener, server, client, mut there) = world.asked();
    server.reject(b"no").unwrap();
    let event = world.client.expect(&client, CmEvent::Rejected);
    assert_eq!(event.status(), 28);
    assert_eq!(event.private_data().len(), 148);
    assert_eq!(&event.private_data()[..3], b"no\0");
    // Its queue pair stands where it stood, until it is given up.
    assert_eq!(there.qp.state(), QpState::Init);
    let over = client.disconnect(&mut there.qp);
    assert!(matches!(over, Err(Error::CmStep { .. })), "{over:?}");
    is_over(&mut there);
    world.client.nothing();
    world.server.nothing();
}

fn an_answer_is_rejected(world: &World) {
    let (_listener, server, client, there) = world.asked();
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &ConnParam::default()).unwrap();
    world.client.sees(&client, CmEvent::ConnectResponse);
    client.reject(b"after all").unwrap();
    let event = world.server.expect(&server, CmEvent::Rejected);
    assert_eq!(&event.private_data()[..9], b"after all");
    server.disconnect(&mut here.qp).unwrap();
    is_over(&mut here);
    assert_eq!(there.qp.state(), QpState::Init);
}

fn nobody_listens(world: &World) {
    let bound = world.server.id(PortSpace::Tcp).unwrap();
    bound.bind(("0.0.0.0", 0)).unwrap();
    // Of another space.
    let other = world.listener(PortSpace::Ib, 8);
    for port in [bound.port(), other.port()] {
        let client = world.caller(PortSpace::Tcp, port);
        let there = world.end(&client);
        client.connect(&there.qp, &ConnParam::default()).unwrap();
        let event = world.client.expect(&client, CmEvent::Rejected);
        assert_eq!(event.status(), 8, "{event:?}");
    }
}

/// However a program ends, its ids go.
fn a_peer_that_goes_disconnects(world: &World) {
    let mut connection = world.connection();
    drop(connection.connected);
    drop(connection.there);
    let server = &connection.accepted;
    world.server.sees(server, CmEvent::Disconnected);
    server.disconnect(&mut connection.here.qp).unwrap();
    is_over(&mut connection.here);
    world.server.sees(server, CmEvent::TimewaitExit);
}

/// Reason 10 of a REJ message: stale connection.
const STALE: i32 = 10;

/// The number of a peer's queue pair is taken until the program has let go of its connection, whatever
/// the peer has done meanwhile.
fn a_queue_pair_has_one_connection(world: &World) {
    let mut connection = world.connection();
    let port = connection.listener.port();
    let ask = || {
        let again = world.caller(PortSpace::Tcp, port);
        again
            .connect(&connection.there.qp, &ConnParam::default())
            .unwrap();
        again
    };
    let is_stale = |id: &Id| {
        world.server.nothing();
        let event = world.client.expect(id, CmEvent::Rejected);
        assert_eq!(event.status(), STALE);
    };
    is_stale(&ask());
    drop(connection.connected);
    world
        .server
        .sees(&connection.accepted, CmEvent::Disconnected);
    is_stale(&{
        let again = ask();
        world
            .server
            .sees(&connection.accepted, CmEvent::TimewaitExit);
        again
    });
    is_stale(&ask());
    connection
        .accepted
        .disconnect(&mut connection.here.qp)
        .unwrap();
    let again = ask();
    let accepted = world.request(&connection.listener);
    // Nor while it is asked for.
    is_stale(&ask());
    drop(accepted);
    world.client.sees(&again, CmEvent::Rejected);
    let _asked = ask();
    world.request(&connection.listener);
}

/// The other end has the same rule.
fn an_answer_by_a_queue_pair_that_has_a_connection_is_rejected(world: &World) {
    let mut connection = world.connection();
    let again = world.caller(PortSpace::Tcp, connection.listener.port());
    let there = world.end(&again);
    again.connect(&there.qp, &ConnParam::default()).unwrap();
    let accepted = world.request(&connection.listener);
    connection.here.reset();
    accepted
        .init_qp(&mut connection.here.qp, bellwire::AccessFlags::empty())
        .unwrap();
    accepted
        .accept(&mut connection.here.qp, &ConnParam::default())
        .unwrap();
    for (channel, id) in [(&world.client, &again), (&world.server, &accepted)] {
        assert_eq!(channel.expect(id, CmEvent::Rejected).status(), STALE);
    }
}

fn a_client_that_goes_withdraws_its_request(world: &World) {
    let (listener, server, client, _there) = world.asked();
    drop(client);
    world.server.sees(&server, CmEvent::Rejected);
    let mut here = world.end(&server);
    let late = server.accept(&mut here.qp, &ConnParam::default());
    assert!(matches!(late, Err(Error::CmStep { .. })), "{late:?}");
    // One that was not got yet is not reported.
    let client = world.caller(PortSpace::Tcp, listener.port());
    let there = world.end(&client);
    client.connect(&there.qp, &ConnParam::default()).unwrap();
    drop(client);
    world.server.nothing();
}

fn a_server_that_goes_rejects(world: &World) {
    // By its id, the listener, and one whose request was not got.
    let (listener, server, client, _there) = world.asked();
    drop(server);
    let rejected = |id: &Id| {
        let event = world.client.expect(id, CmEvent::Rejected);
        assert_eq!(event.status(), 28);
    };
    rejected(&client);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let there = world.end(&client);
    client.connect(&there.qp, &ConnParam::default()).unwrap();
    drop(listener);
    rejected(&client);
    // An event that nobody looks into.
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    client
        .connect(&world.end(&client).qp, &ConnParam::default())
        .unwrap();
    drop(world.server.expect(&listener, CmEvent::ConnectRequest));
    rejected(&client);
}

/// ADDR_ERROR, ROUTE_ERROR, and that they can be tried again.
fn a_port_that_is_down_resolves_nothing(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.client.id(PortSpace::Tcp).unwrap();
    let resolve = || client.resolve_addr(None, ("127.0.0.1", listener.port()), SOON);
    world.device.as_soft().unwrap().set_port_up(false);
    resolve().unwrap();
    let event = world.client.expect(&client, CmEvent::AddrError);
    assert_eq!(event.status(), -libc::EHOSTUNREACH);
    world.device.as_soft().unwrap().set_port_up(true);
    resolve().unwrap();
    world.client.sees(&client, CmEvent::AddrResolved);
    world.device.as_soft().unwrap().set_port_up(false);
    client.resolve_route(SOON).unwrap();
    let event = world.client.expect(&client, CmEvent::RouteError);
    assert_eq!(event.status(), -libc::ENETUNREACH);
    world.device.as_soft().unwrap().set_port_up(true);
    client.resolve_route(SOON).unwrap();
    world.client.sees(&client, CmEvent::RouteResolved);
}

/// CONNECT_ERROR, UNREACHABLE and the others that can be ordered.
fn injected_failures_strike_once(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    for event in [
        CmEvent::ConnectError,
        CmEvent::Unreachable,
        CmEvent::Rejected,
    ] {
        inject(world, event);
        let client = world.caller(PortSpace::Tcp, listener.port());
        let there = world.end(&client);
        client.connect(&there.qp, &ConnParam::default()).unwrap();
        let got = world.client.expect(&client, event);
        assert_ne!(got.status(), 0);
        assert_eq!(there.qp.state(), QpState::Init);
        let again = client.connect(&there.qp, &ConnParam::default());
        assert!(matches!(again, Err(Error::CmStep { .. })), "{again:?}");
        world.server.nothing();
    }
    for event in [CmEvent::AddrError, CmEvent::RouteError] {
        inject(world, event);
        let client = world.client.id(PortSpace::Tcp).unwrap();
        let resolve = || {
            client
                .resolve_addr(None, ("::1", listener.port()), SOON)
                .unwrap()
        };
        resolve();
        if event == CmEvent::AddrError {
            world.client.sees(&client, event);
            resolve();
        }
        world.client.sees(&client, CmEvent::AddrResolved);
        client.resolve_route(SOON).unwrap();
        if event == CmEvent::RouteError {
            world.client.sees(&client, event);
            client.resolve_route(SOON).unwrap();
        }
        world.client.sees(&client, CmEvent::RouteResolved);
    }
    let script = Script::default().with(
        Trigger::After(Duration::ZERO),
        Fault::Cm(CmEvent::Established),
    );
    let refused = world.device.as_soft().unwrap().inject(&script);
    assert!(
        matches!(refused, Err(Error::CmEventAsFault { .. })),
        "{refused:?}"
    );
    world.connection().works();
}

/// DEVICE_REMOVAL, by what breaks the device, and to order.
fn a_device_that_goes_notifies_every_id(world: &World) {
    let mut connection = world.connection();
    let unbound = world.client.id(PortSpace::Tcp).unwrap();
    inject(world, CmEvent::DeviceRemoval);
    world
        .client
        .sees(&connection.connected, CmEvent::DeviceRemoval);
    connection.works();
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::DeviceFatal);
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.device.progress();
    world
        .client
        .sees(&connection.connected, CmEvent::DeviceRemoval);
    // What was in flight is reported, and nothing else can be done any more.
    assert_eq!(connection.there.qp.state(), QpState::Err);
    assert_eq!(connection.there.wait().wr_id, 100);
    unbound.resolve_addr(None, ("127.0.0.1", 1), SOON).unwrap();
    let event = world.client.expect(&unbound, CmEvent::AddrError);
    assert_eq!(event.status(), -libc::ENODEV);
    let refused = (world.device.alloc_pd()).create_qp(&mut connection.there.cq, &QpInit::default());
    assert!(matches!(refused, Err(Error::DeviceFatal)), "{refused:?}");
    drop(connection.connected);
}

fn a_changed_address_is_reported(world: &World) {
    let mut connection = world.connection();
    inject(world, CmEvent::AddrChange);
    world
        .client
        .sees(&connection.connected, CmEvent::AddrChange);
    connection.works();
}

/// UNREACHABLE, for real: at the peer nobody looks at the channel.
#[test]
fn a_server_that_sleeps_is_not_waited_for() {
    let world = World::alone();
    let listener = world.listener(PortSpace::Tcp, 1);
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let client = world.caller(PortSpace::Tcp, listener.port());
            let there = world.end(&client);
            client.connect(&there.qp, &ConnParam::default()).unwrap();
            (client, there)
        })
        .collect();
    let mut got = 0;
    while got < callers.len() {
        let event = world.client.get(Duration::MAX).unwrap().unwrap();
        assert_eq!(event.kind().event(), CmEvent::Unreachable, "{event:?}");
        assert_eq!(event.status(), -libc::ETIMEDOUT);
        assert!(callers.iter().any(|(id, _)| id == event.id()));
        got += 1;
    }
    // And has nothing to do when it wakes.
    world.server.nothing();
}

/// More than the backlog wait outside, and get their turn.
#[test]
fn a_backlog_bounds_the_requests_that_wait() {
    let world = World::alone();
    let listener = world.listener(PortSpace::Tcp, 2);
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = world.caller(PortSpace::Tcp, listener.port());
            let there = world.end(&client);
            client.connect(&there.qp, &ConnParam::default()).unwrap();
            (client, there)
        })
        .collect();
    for _ in 0..callers.len() {
        // Those who knock again do so when they look at their channel.
        let server = loop {
            assert!(world.client.try_get().unwrap().is_none());
            if let Some(event) = world.server.get(Duration::from_millis(5)).unwrap() {
                match event.ack() {
                    EventKind::ConnectRequest { id, .. } => break id,
                    other => panic!("{other:?}"),
                }
            }
        };
        server.reject(&[]).unwrap();
        let event = world.client.get(SOON).unwrap().expect("an event");
        assert_eq!(event.kind().event(), CmEvent::Rejected);
    }
    world.server.nothing();
}
