//! Options of ids, and queue pairs on a shared receive queue.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{ConnParam, EventKind, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::wqe::{NoPayload, Send};
use bellwire::wr::WcStatus::Success;
use bellwire::{PathAttr, SrqInit};
use bellwire_tests::ends::RECEIVES;
use bellwire_tests::fixture::*;

tests! {
    options_reach_the_queue_pair,
    paths_reach_the_queue_pair,
    families_share_a_port,
    addresses_are_reused,
    a_queue_pair_on_a_shared_receive_queue,
}

fn options_reach_the_queue_pair() {
    const TOS: u8 = 0x20;
    const TIMEOUT: u8 = 17;
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.set_tos(TOS).expect("in time");
    id.set_ack_timeout(TIMEOUT).expect("in time");
    assert!(id.set_ack_timeout(32).is_err());
    id.resolve_addr(None, address(HERE, port), STEP)
        .expect("a step");
    expect(&channel, CmEvent::AddrResolved).ack();
    id.resolve_route(STEP).expect("a step");
    expect(&channel, CmEvent::RouteResolved).ack();
    let mut end = end_for(&id);
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
    expect(&channel, CmEvent::ConnectResponse).ack();
    id.establish(&mut end.qp).expect("a step");
    let attr = end.qp.query();
    assert_eq!(attr.ah_attr.grh.traffic_class, TOS);
    assert_eq!(attr.timeout, TIMEOUT);
    expect(&channel, CmEvent::Established).ack();
}

/// Each end has a path of its own; the accepting end takes the traffic class from the request, unless it
/// has one.
fn paths_reach_the_queue_pair() {
    let path = PathAttr {
        traffic_class: 0x68,
        udp_sport: Some(0xc123),
        ..PathAttr::default()
    };
    for theirs in [0, 0x20] {
        let channel = channel();
        let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
        let id = channel.id(PortSpace::Tcp).expect("an id");
        id.set_path(&path).expect("in time");
        id.resolve_addr(None, address(HERE, port), STEP)
            .expect("a step");
        expect(&channel, CmEvent::AddrResolved).ack();
        id.resolve_route(STEP).expect("a step");
        expect(&channel, CmEvent::RouteResolved).ack();
        let mut end = end_for(&id);
        id.connect(&end.qp, &ConnParam::default()).expect("a step");
        let EventKind::ConnectRequest { id: request, .. } =
            expect(&channel, CmEvent::ConnectRequest).ack()
        else {
            panic!("another kind");
        };
        request
            .set_path(&PathAttr {
                traffic_class: theirs,
                flow_label: 0xa_bcde,
                ..PathAttr::default()
            })
            .expect("in time");
        let mut server = end_for(&request);
        request
            .accept(&mut server.qp, &ConnParam::default())
            .expect("a step");
        expect(&channel, CmEvent::ConnectResponse).ack();
        id.establish(&mut end.qp).expect("a step");
        expect(&channel, CmEvent::Established).ack();
        let (ours, answered) = (end.qp.query(), server.qp.query());
        assert_eq!(ours.ah_attr.grh.traffic_class, path.traffic_class);
        // Of which Soft-RoCE makes the port.
        assert_eq!(ours.ah_attr.grh.flow_label, 0x123);
        assert_eq!(ours.udp_sport, path.udp_sport);
        let class = if theirs == 0 {
            path.traffic_class
        } else {
            theirs
        };
        assert_eq!(answered.ah_attr.grh.traffic_class, class);
        assert_eq!(answered.ah_attr.grh.flow_label, 0xa_bcde);
        assert_eq!(answered.udp_sport, None);
        server.receive(RECEIVES, &[]);
        end.go(1, Send {}, NoPayload);
        assert_eq!(end.outcome(), (1, Success));
        assert_eq!(server.outcome(), (RECEIVES, Success));
    }
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    let level = PathAttr {
        sl: 16,
        ..PathAttr::default()
    };
    assert!(id.set_path(&level).is_err());
}

/// A listener of IPv6 leaves IPv4's port to another when it is set to.
fn families_share_a_port() {
    let channel = channel();
    for afonly in [true, false] {
        let six = channel.id(PortSpace::Tcp).expect("an id");
        six.set_afonly(afonly).expect("in time");
        six.bind(address("::", 0)).expect("a free port");
        six.listen(1).expect("it is bound");
        let four = channel.id(PortSpace::Tcp).expect("an id");
        let bound = four.bind(address("0.0.0.0", six.port()));
        let listens = bound.and_then(|()| four.listen(1));
        assert_eq!(listens.is_ok(), afonly);
    }
}

fn addresses_are_reused() {
    let channel = channel();
    for reused in [true, false] {
        let id = || {
            let id = channel.id(PortSpace::Tcp).expect("an id");
            id.set_reuseaddr(reused).expect("in time");
            id
        };
        let first = id();
        first.bind(address(HERE, 0)).expect("a free port");
        let second = id().bind(address(HERE, first.port()));
        assert_eq!(second.is_ok(), reused);
    }
}

fn a_queue_pair_on_a_shared_receive_queue() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    let pd = device_of(&id).alloc_pd();
    let mut srq = pd.create_srq(&SrqInit::default()).expect("a queue");
    let mut cq = pd.device().create_cq(1024).expect("a queue");
    let mut qp = pd
        .create_qp_on_srq::<bellwire::wqe::Rc>(&mut cq, &srq, &init())
        .expect("a queue pair");
    id.init_qp(&mut qp, ACCESS).expect("INIT");
    // SAFETY: names no memory.
    unsafe { srq.post(RECEIVES, &[]) }.expect("room");
    srq.ring();
    id.connect(&qp, &ConnParam::default()).expect("a step");
    let EventKind::ConnectRequest { id: request, conn } =
        expect(&channel, CmEvent::ConnectRequest).ack()
    else {
        panic!("another kind");
    };
    assert!(conn.srq);
    let mut server = end_for(&request);
    request
        .accept(&mut server.qp, &ConnParam::default())
        .expect("a step");
    let event = expect(&channel, CmEvent::ConnectResponse);
    assert!(matches!(event.kind(), EventKind::ConnectResponse { conn } if !conn.srq));
    drop(event);
    id.establish(&mut qp).expect("a step");
    expect(&channel, CmEvent::Established).ack();
    server.go(1, Send {}, NoPayload);
    assert_eq!(server.outcome(), (1, Success));
    let done = wait(&mut cq);
    assert_eq!((done.wr_id, done.status()), (RECEIVES, Success));
}
