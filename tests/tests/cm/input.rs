//! What programs and peers may give that is wrong: a clear error, and nothing is lost by it.

use super::world::{Expect, Place, SOON, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventChannel, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{AccessFlags, Error};
use bellwire_tests::fixture::{self, End};

in_both_worlds!(
    private_data_that_is_too_long,
    calls_at_the_wrong_step,
    a_port_in_use,
    queue_pairs_of_others,
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
            matches!(&refused, Error::Io { error, .. } if error.raw_os_error() == Some(libc::EADDRINUSE)),
            "{refused}"
        );
    }
    // Ports of one space are not those of another, and a name is no address.
    bind(&world.client, PortSpace::Udp).unwrap();
    let named = world.client.id(PortSpace::Tcp).unwrap();
    named.bind(("name", listener.port())).unwrap();
    let port = listener.port();
    drop(listener);
    let id = world.client.id(PortSpace::Tcp).unwrap();
    id.bind(("127.0.0.1", port)).unwrap();
    let long = "x".repeat(200);
    let id = world.client.id(PortSpace::Tcp).unwrap();
    let refused = id.bind((long.as_str(), 1)).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    let refused = id.resolve_addr(None, (long.as_str(), 1), SOON).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
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
