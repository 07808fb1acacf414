//! What the tests share: events that have to come, and connections.

use bellwire::connect::cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{AccessFlags, Device};
use bellwire_tests::ends::QUIET;
use bellwire_tests::fixture::*;
use std::net::SocketAddr;
use std::time::Duration;

/// The address of the device on the network interface that leads nowhere.
pub const HERE: &str = "10.77.0.1";

/// For a step that is to end in time.
pub const STEP: Duration = Duration::from_secs(5);

/// What the peer may do.
pub const ACCESS: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ);

pub fn address(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

pub fn channel() -> EventChannel {
    EventChannel::open("rdma").expect("rdma_cm")
}

/// The next event, which has to be this one.
pub fn expect(channel: &EventChannel, expected: CmEvent) -> Event {
    let event = channel.get(DEADLINE).expect("it can be waited for");
    let event = event.unwrap_or_else(|| panic!("{expected:?} never came"));
    assert_eq!(event.kind().event(), expected, "{event:?}");
    event
}

/// Asserts that there is no event.
pub fn silence(channel: &EventChannel) {
    let event = channel.get(QUIET.0).expect("it can be waited for");
    assert!(event.is_none(), "an event too many: {event:?}");
}

/// An id that waits for peers at this address, and its port.
pub fn listen(channel: &EventChannel, space: PortSpace, host: &str) -> (Id, u16) {
    let id = channel.id(space).expect("an id");
    id.bind(address(host, 0)).expect("a free port");
    id.listen(8).expect("it is bound");
    let port = id.port();
    assert_ne!(port, 0);
    (id, port)
}

/// An id with the route to a peer.
pub fn route(channel: &EventChannel, space: PortSpace, peer: SocketAddr) -> Id {
    let id = channel.id(space).expect("an id");
    id.resolve_addr(None, peer, STEP).expect("a step");
    assert!(*expect(channel, CmEvent::AddrResolved).id() == id);
    id.resolve_route(STEP).expect("a step");
    assert!(*expect(channel, CmEvent::RouteResolved).id() == id);
    id
}

pub fn device_of(id: &Id) -> Device {
    id.device().expect("it opens").expect("it is bound")
}

/// An end for this id, in INIT.
pub fn end_for(id: &Id) -> End {
    let mut end = End::new(&device_of(id).alloc_pd(), QUIET, &init());
    id.init_qp(&mut end.qp, ACCESS).expect("INIT");
    end
}

/// Two ends of a connection; the first asked for it.
pub struct Pair {
    pub asked: (Id, End),
    pub took: (Id, End),
}

/// Connects two ends by a listener at this address.
pub fn connect(channel: &EventChannel, host: &str) -> Pair {
    let (listener, port) = listen(channel, PortSpace::Tcp, host);
    let id = route(channel, PortSpace::Tcp, address(host, port));
    let mut end = end_for(&id);
    let param = |data: &[u8]| ConnParam {
        private_data: data.to_vec(),
        responder_resources: 3,
        initiator_depth: 2,
        ..ConnParam::default()
    };
    id.connect(&end.qp, &param(b"from the client"))
        .expect("a step");

    let event = expect(channel, CmEvent::ConnectRequest);
    assert!(*event.id() == listener);
    assert!(event.private_data().starts_with(b"from the client"));
    let EventKind::ConnectRequest { id: request, conn } = event.kind() else {
        panic!("{event:?}");
    };
    assert_eq!(conn.qp_num, end.qp.qp_num());
    // This end's side of what the peer has.
    assert_eq!(conn.param.responder_resources, 2);
    assert_eq!(conn.param.initiator_depth, 3);
    let request = request.clone();
    drop(event);
    drop(listener);
    let mut server = end_for(&request);
    request
        .accept(&mut server.qp, &param(b"from the server"))
        .expect("a step");

    let event = expect(channel, CmEvent::ConnectResponse);
    assert!(*event.id() == id);
    assert!(event.private_data().starts_with(b"from the server"));
    let EventKind::ConnectResponse { conn } = event.kind() else {
        panic!("{event:?}");
    };
    assert_eq!(conn.qp_num, server.qp.qp_num());
    drop(event);
    id.establish(&mut end.qp).expect("a step");
    let event = expect(channel, CmEvent::Established);
    assert!(*event.id() == request);
    drop(event);

    assert_eq!(id.peer_addr().map(|addr| addr.port()), Some(port));
    assert_eq!(request.peer_addr(), id.local_addr());
    assert_eq!(end.qp.query().max_rd_atomic, 2);
    assert_eq!(server.qp.query().max_dest_rd_atomic, 2);
    Pair {
        asked: (id, end),
        took: (request, server),
    }
}
