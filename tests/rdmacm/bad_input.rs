//! What nobody should do: a clear error, and nothing lost.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::PrivateData;
use bellwire::connect::cm::{ConnParam, EventKind, PortSpace};
use bellwire::connect::{ConnInfo, FormatError};
use bellwire::fault::CmEvent;
use bellwire::{Device, Error};
use bellwire_tests::ends::{QUIET, works};
use bellwire_tests::fixture::*;

tests! {
    private_data_that_is_too_long,
    a_port_that_is_in_use,
    nowhere_to_go,
    steps_that_are_left_out,
    a_request_is_answered_once,
    a_peer_that_sends_garbage,
    another_kind_of_id,
}

fn step(result: Result<(), Error>) {
    assert!(matches!(result, Err(Error::CmStep { .. })), "{result:?}");
}

fn private_data_that_is_too_long() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    let end = end_for(&id);
    let param = |length| ConnParam {
        private_data: vec![7; length],
        ..ConnParam::default()
    };
    let max = PortSpace::Tcp.max_private_data(PrivateData::Connect);
    let refused = id.connect(&end.qp, &param(max + 1));
    assert!(
        matches!(refused, Err(Error::PrivateData { given: 57, max: 56 })),
        "{refused:?}"
    );
    // As long as it may be.
    id.connect(&end.qp, &param(max)).expect("a step");
    let event = expect(&channel, CmEvent::ConnectRequest);
    assert_eq!(event.private_data(), vec![7; max]);
    let EventKind::ConnectRequest { id: request, .. } = event.ack() else {
        panic!("another kind");
    };
    assert!(request.reject(&[7; 149]).is_err());
    request.reject(&[7; 148]).expect("a step");
    let event = expect(&channel, CmEvent::Rejected);
    assert_eq!(event.private_data(), [7; 148]);
}

fn a_port_that_is_in_use() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = channel.id(PortSpace::Tcp).expect("an id");
    let refused = id.bind(address(HERE, port)).expect_err("in use");
    assert!(refused.to_string().contains("take another"), "{refused}");
    // Datagrams have ports of their own.
    let other = channel.id(PortSpace::Udp).expect("an id");
    other.bind(address(HERE, port)).expect("free");
    // An address that nobody has.
    let id = channel.id(PortSpace::Tcp).expect("an id");
    let refused = id.bind(address("192.0.2.1", 0)).expect_err("not here");
    assert!(
        refused.to_string().contains("address of this host")
            || refused.to_string().contains("rdma link"),
        "{refused}"
    );
}

fn nowhere_to_go() {
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    match id.resolve_addr(None, address("198.51.100.1", 7), STEP) {
        Err(error) => assert!(error.to_string().contains("ip route get"), "{error}"),
        Ok(()) => {
            let event = expect(&channel, CmEvent::AddrError);
            assert!(event.status() < 0);
        }
    }
    let unknown = id.resolve_addr(None, ("no.such.host.invalid", 7), STEP);
    assert!(unknown.is_err());
}

fn steps_that_are_left_out() {
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    step(id.resolve_route(STEP));
    step(id.reject(b""));
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let routed = route(&channel, PortSpace::Tcp, address(HERE, port));
    let mut end = end_for(&routed);
    step(id.connect(&end.qp, &ConnParam::default()));
    step(id.accept(&mut end.qp, &ConnParam::default()));
    step(id.establish(&mut end.qp));
    step(routed.accept(&mut end.qp, &ConnParam::default()));
    step(routed.establish(&mut end.qp));
    // Nothing of this was in the way.
    routed
        .connect(&end.qp, &ConnParam::default())
        .expect("a step");
    step(routed.connect(&end.qp, &ConnParam::default()));
    expect(&channel, CmEvent::ConnectRequest).ack();
}

fn a_request_is_answered_once() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    let end = end_for(&id);
    id.connect(&end.qp, &ConnParam::default()).expect("a step");
    let EventKind::ConnectRequest { id: request, .. } =
        expect(&channel, CmEvent::ConnectRequest).ack()
    else {
        panic!("another kind");
    };
    let mut server = end_for(&request);
    request.reject(b"no").expect("a step");
    step(request.accept(&mut server.qp, &ConnParam::default()));
    step(request.reject(b"no"));
    expect(&channel, CmEvent::Rejected).ack();

    // Before it is established, and behind that.
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    let end = end_for(&id);
    id.connect(&end.qp, &ConnParam::default()).expect("a step");
    let EventKind::ConnectRequest { id: request, .. } =
        expect(&channel, CmEvent::ConnectRequest).ack()
    else {
        panic!("another kind");
    };
    let mut server = end_for(&request);
    request
        .accept(&mut server.qp, &ConnParam::default())
        .expect("a step");
    step(request.reject(b"no"));
    expect(&channel, CmEvent::ConnectResponse).ack();
    drop((id, request));
    let mut pair = connect(&channel, HERE);
    let (took, end) = &mut pair.took;
    assert!(took.accept(&mut end.qp, &ConnParam::default()).is_err());
    step(took.reject(b"no"));
    works(&mut pair.asked.1, &mut pair.took.1);
}

/// The program reads what it expects, and rejects the rest; the listener goes on.
fn a_peer_that_sends_garbage() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let mut seed = Random::new(9);
    for _ in 0..5 {
        let id = route(&channel, PortSpace::Tcp, address(HERE, port));
        let end = end_for(&id);
        let private_data = seed.bytes(56);
        let param = ConnParam {
            private_data,
            ..ConnParam::default()
        };
        id.connect(&end.qp, &param).expect("a step");
        let event = expect(&channel, CmEvent::ConnectRequest);
        let read = ConnInfo::from_bytes(event.private_data());
        assert!(
            matches!(read, Err(FormatError::Length { .. } | FormatError::Foreign)),
            "{read:?}"
        );
        let EventKind::ConnectRequest { id: request, .. } = event.ack() else {
            panic!("another kind");
        };
        request.reject(b"what?").expect("a step");
        assert!(
            expect(&channel, CmEvent::Rejected)
                .private_data()
                .starts_with(b"what?")
        );
    }
}

fn another_kind_of_id() {
    let channel = channel();
    let pair = connect(&channel, HERE);
    let id = channel.id(PortSpace::Udp).expect("an id");
    id.bind(address(HERE, 0)).expect("an address");
    let refused = id.connect(&pair.asked.1.qp, &ConnParam::default());
    assert!(matches!(refused, Err(Error::CmSpace)), "{refused:?}");
    // A queue pair of another device.
    let soft = Device::open("soft").expect("always there").alloc_pd();
    let other = End::new(&soft, QUIET, &init());
    let refused = pair.asked.0.connect(&other.qp, &ConnParam::default());
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}
