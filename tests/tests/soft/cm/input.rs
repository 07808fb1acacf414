//! What programs and peers may give that is wrong: a clear error, and nothing is lost by it.

use super::world::{Expect, Place, SOON, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventChannel, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{AccessFlags, Error, PathAttr};
use bellwire_tests::fixture::{self, End};

in_both_worlds!(
    private_data_that_is_too_long,
    calls_at_the_wrong_step,
    a_port_in_use,
    addresses_of_others,
    queue_pairs_of_others,
    paths_are_read_back,
    paths_out_of_range,
);

fn private_data_that_is_too_long(world: &World) {
    let with = |bytes: usize| ConnParam {
        private_data: vec![1; bytes],
        ..ConnParam::default()
    };
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let there = world.end(&client);
    let long = client.connect(&there.qp, &with(57)).unwrap_err();
    assert_eq!(
        long.to_string(),
        "57 bytes of private data: the message has room for 56"
    );
    client.connect(&there.qp, &with(56)).unwrap();
    let server = world.request(&listener);
    assert!(server.reject(&[0; 149]).is_err());
    let mut here = world.end(&server);
    assert!(server.accept(&mut here.qp, &with(197)).is_err());
    server.accept(&mut here.qp, &with(196)).unwrap();
    let event = world.client.expect(&client, CmEvent::ConnectResponse);
    assert_eq!(event.private_data(), [1; 196]);
}

fn step<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::CmStep { .. })), "{result:?}");
}

fn calls_at_the_wrong_step(world: &World) {
    let param = ConnParam::default();
    let id = world.client.id(PortSpace::Tcp).unwrap();
    let (mut end, _) = fixture::ends(&world.device, bellwire::soft::Mode::Inline);
    step(id.listen(1));
    step(id.resolve_route(SOON));
    step(id.init_qp(&mut end.qp, AccessFlags::empty()));
    step(id.connect(&end.qp, &param));
    id.resolve_addr(None, ("127.0.0.1", 7), SOON).unwrap();
    step(id.resolve_addr(None, ("127.0.0.1", 7), SOON));
    step(id.bind(("127.0.0.1", 7)));
    step(id.listen(1));
    id.init_qp(&mut end.qp, AccessFlags::empty()).unwrap();
    step(id.connect(&end.qp, &param));
    step(id.accept(&mut end.qp, &param));
    step(id.establish(&mut end.qp));
    step(id.reject(&[]));
    world.client.sees(&id, CmEvent::AddrResolved);

    let (listener, server, client, mut there) = world.asked();
    step(client.connect(&there.qp, &param));
    step(client.establish(&mut there.qp));
    let mut here = world.end(&server);
    step(listener.accept(&mut here.qp, &param));
    server.reject(&[]).unwrap();
    step(server.accept(&mut here.qp, &param));
    step(server.reject(&[]));
    world.client.sees(&client, CmEvent::Rejected);
    let (_listener, server, client, mut there) = world.asked();
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &param).unwrap();
    step(server.accept(&mut here.qp, &param));
    step(server.reject(&[]));
    world.client.sees(&client, CmEvent::ConnectResponse);
    client.establish(&mut there.qp).unwrap();
    step(client.establish(&mut there.qp));
    world.server.sees(&server, CmEvent::Established);

    let datagrams = world.caller(PortSpace::Udp, 7);
    let refused = datagrams.init_qp(&mut there.qp, AccessFlags::empty());
    assert!(matches!(refused, Err(Error::CmSpace)), "{refused:?}");
}

fn a_port_in_use(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let bind = |channel: &EventChannel, space: PortSpace| {
        let id = channel.id(space).unwrap();
        id.bind(("::", listener.port())).map(|()| id)
    };
    for channel in [&world.server, &world.client] {
        let refused = bind(channel, PortSpace::Tcp).unwrap_err();
        assert!(
            matches!(&refused, Error::Address { tried, .. } if tried[0].errno == Some(libc::EADDRINUSE)),
            "{refused}"
        );
    }
    // Ports of one space are not those of another.
    bind(&world.client, PortSpace::Udp).unwrap();
    // It has all addresses; one of them is not all.
    let one = |channel: &EventChannel, at: &str, port: u16| {
        let id = channel.id(PortSpace::Tcp).unwrap();
        id.bind((at, port)).map(|()| id)
    };
    assert!(one(&world.client, "127.0.0.1", listener.port()).is_err());
    let port = listener.port();
    drop(listener);
    let held = one(&world.client, "127.0.0.1", port).unwrap();
    assert!(one(&world.server, "127.0.0.1", port).is_err());
    assert!(one(&world.server, "0.0.0.0", port).is_err());
    assert!(one(&world.server, "::", port).is_err());
    let other = one(&world.server, "127.0.0.2", port).unwrap();
    let third = one(&world.server, "::1", port).unwrap();
    drop((held, other, third));
    let only = world.server.id(PortSpace::Tcp).unwrap();
    only.set_afonly(true).unwrap();
    only.bind(("::", port)).unwrap();
    one(&world.client, "0.0.0.0", port).unwrap();
    assert!(only.set_afonly(false).is_err());
}

/// As a real device has it (rdma_bind_addr(3)): what is not this host's is not bound to, nor reached.
fn addresses_of_others(world: &World) {
    let errno = |refused: Result<(), Error>| match refused {
        Err(Error::Address { tried, .. }) => {
            assert!(tried.len() == 1, "{tried:?}");
            tried[0].errno
        }
        other => panic!("{other:?}"),
    };
    let id = world.client.id(PortSpace::Tcp).unwrap();
    for at in ["8.8.8.8", "2001:db8::1", "224.0.0.1", "255.255.255.255"] {
        assert_eq!(
            errno(id.bind((at, 7471))),
            Some(libc::EADDRNOTAVAIL),
            "{at}"
        );
        let source = (at.parse::<std::net::IpAddr>().unwrap(), 0).into();
        let refused = id.resolve_addr(Some(source), ("127.0.0.1", 1), SOON);
        assert_eq!(errno(refused), Some(libc::EADDRNOTAVAIL), "{at}");
    }
    // No host has these names (RFC 6761); the second cannot be one.
    for name in ["storage.invalid", "x".repeat(300).as_str()] {
        let refused = id.bind((name, 7471)).unwrap_err();
        assert!(refused.to_string().contains("resolve"), "{refused}");
        let refused = id.resolve_addr(None, (name, 7471), SOON).unwrap_err();
        assert!(refused.to_string().contains("resolve"), "{refused}");
    }
    id.resolve_addr(None, ("8.8.8.8", 7471), SOON).unwrap();
    let event = world.client.expect(&id, CmEvent::AddrError);
    assert_eq!(event.status(), -libc::EHOSTUNREACH);
    // Nothing was lost by that.
    id.resolve_addr(None, ("127.0.0.1", 1), SOON).unwrap();
    world.client.sees(&id, CmEvent::AddrResolved);
}

fn queue_pairs_of_others(world: &World) {
    let (_listener, server, _client, _there) = world.asked();
    let stranger = fixture::device(bellwire::soft::Mode::Inline);
    let mut end = End::new(
        &stranger.alloc_pd(),
        bellwire::soft::Mode::Inline,
        &fixture::init(),
    );
    let refused = server.init_qp(&mut end.qp, AccessFlags::empty());
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &ConnParam::default()).unwrap();
    let sge = here.place(0);
    here.receive(5, &[sge]);
}

/// What an end's queue pair is said to have, of what paths say.
fn said(end: &End) -> PathAttr {
    let attr = end.qp.query();
    let (way, grh) = (attr.ah_attr, attr.ah_attr.grh);
    PathAttr {
        sl: way.sl,
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label,
        pkey_index: attr.pkey_index,
        hop_limit: grh.hop_limit,
        udp_sport: attr.udp_sport,
    }
}

/// Each end has a path of its own.
fn paths_are_read_back(world: &World) {
    let path = PathAttr {
        sl: 15,
        traffic_class: 32,
        flow_label: 0xa_bcde,
        pkey_index: 0,
        hop_limit: 3,
        udp_sport: Some(0xffff),
    };
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    assert_eq!(client.path(), PathAttr::default());
    client.set_path(&path).unwrap();
    assert_eq!(client.path(), path);
    let mut there = world.end(&client);
    client.connect(&there.qp, &ConnParam::default()).unwrap();
    let server = world.request(&listener);
    server.set_tos(8).unwrap();
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &ConnParam::default()).unwrap();
    world.client.sees(&client, CmEvent::ConnectResponse);
    client.establish(&mut there.qp).unwrap();
    world.server.sees(&server, CmEvent::Established);
    assert_eq!(said(&there), path);
    let other = PathAttr {
        traffic_class: 8,
        hop_limit: 64,
        ..PathAttr::default()
    };
    assert_eq!(said(&here), other);
    here.receive(1, &[]);
    there.go(2, bellwire::wqe::Send {}, bellwire::wqe::NoPayload);
    assert_eq!(there.outcome().0, 2);
}

fn paths_out_of_range(world: &World) {
    let id = world.client.id(PortSpace::Tcp).unwrap();
    let path = PathAttr::default();
    for path in [
        PathAttr { sl: 16, ..path },
        PathAttr {
            flow_label: 1 << 20,
            ..path
        },
        PathAttr {
            udp_sport: Some(4791),
            ..path
        },
    ] {
        let refused = id.set_path(&path);
        assert!(
            matches!(refused, Err(Error::OutOfRange { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(id.path(), path);
    // What the device does not have is known when it is.
    id.set_path(&PathAttr {
        pkey_index: 1,
        ..path
    })
    .unwrap();
    id.bind(("127.0.0.1", 0)).unwrap();
    let (mut end, _) = fixture::ends(&world.device, bellwire::soft::Mode::Inline);
    let refused = id.init_qp(&mut end.qp, AccessFlags::empty());
    assert!(
        matches!(
            refused,
            Err(Error::OutOfRange {
                what: "pkey_index",
                ..
            })
        ),
        "{refused:?}"
    );
}
