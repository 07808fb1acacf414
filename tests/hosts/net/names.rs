//! Names that have several addresses.

use super::{SOON, connects, enter, expect, routed, worlds};
use bellwire::Device;
use bellwire::connect::cm::{
    ConnParam, Connector, EventChannel, EventKind, Listener, PortSpace, Retry,
};
use bellwire::connect::tcp;
use bellwire::fault::CmEvent;
use bellwire::link::{Link, LinkInit, LinkState};
use bellwire_tests::fixture::{Random, until};
use std::time::Duration;

const RETRY: Retry = Retry {
    step: Duration::from_millis(500),
    pause: Duration::from_millis(10),
    longest: Duration::from_millis(50),
    attempts: 2,
};

pub fn role() {
    enter();
    for [server, client] in worlds() {
        connections(&server, &client);
        nobody(&client);
        services(&server, &client);
        links(&server, &client);
    }
    streams();
}

/// The server has one address of its name, whichever that is.
fn connections(server: &Device, client: &Device) {
    for at in ["127.0.0.1", "::1"] {
        let [server, client] =
            [server, client].map(|device| EventChannel::on(device).expect("a channel"));
        let listener = server.id(PortSpace::Tcp).expect("an id");
        listener.bind((at, 0)).expect("free");
        listener.listen(8).expect("listens");
        let (id, accepted) = connects(&server, &listener, &client, ("both", listener.port()));
        let peer = format!(
            "{}",
            bellwire::address::Shown(id.peer_addr().expect("connected"))
        );
        assert!(peer.trim_matches(['[', ']']).starts_with(at), "{peer}");
        assert_eq!(accepted.local_addr(), id.peer_addr());
        for failed in id.tried() {
            assert_ne!(Some(failed.address), id.peer_addr());
            assert!(failed.reason.contains("nobody listens at"), "{failed}");
        }
        // The program saw one attempt, and the id's next use begins anew.
        assert!(client.try_get().expect("events").is_none());
    }
}

/// All addresses are named, and the id can be used again.
fn nobody(client: &Device) {
    let channel = EventChannel::on(client).expect("a channel");
    // Of a link-local address without an interface, and of a host that is not this one.
    let port = 40_000 + Random::new(u64::from(std::process::id())).below(10_000) as u16;
    let (id, end) = routed(&channel, ("both", port));
    id.connect(&end.qp, &ConnParam::default()).expect("asked");
    let EventKind::Rejected { reason: 8, .. } = expect(&channel, &id, CmEvent::Rejected) else {
        panic!("an unknown service");
    };
    let mut tried: Vec<String> = id.tried().iter().map(|of| of.to_string()).collect();
    tried.sort();
    assert_eq!(tried.len(), 2, "{tried:?}");
    assert!(
        tried[0].starts_with(&format!("127.0.0.1:{port}: nobody listens at")),
        "{tried:?}"
    );
    assert!(
        tried[1].starts_with(&format!("[::1]:{port}: nobody listens at")),
        "{tried:?}"
    );

    // A source of one family excludes the other.
    let id = channel.id(PortSpace::Tcp).expect("an id");
    let source = ([127, 0, 0, 1], 0).into();
    id.resolve_addr(Some(source), ("both", port), SOON)
        .expect("one of them");
    expect(&channel, &id, CmEvent::AddrResolved);
    assert_eq!(id.peer_addr(), Some(([127, 0, 0, 1], port).into()));

    let id = channel.id(PortSpace::Tcp).expect("an id");
    let source = "8.8.8.8:0".parse().expect("an address");
    let error = id
        .resolve_addr(Some(source), ("both", port), SOON)
        .expect_err("a foreign source");
    let text = error.to_string();
    assert!(
        text.contains("127.0.0.1:") && text.contains("[::1]:"),
        "{text}"
    );
    id.resolve_addr(None, ("both", port), SOON).expect("again");
    expect(&channel, &id, CmEvent::AddrResolved);
}

fn services(server: &Device, client: &Device) {
    let [server, client] =
        [server, client].map(|device| EventChannel::on(device).expect("a channel"));
    let listener = server.id(PortSpace::Udp).expect("an id");
    listener.bind(("127.0.0.1", 0)).expect("free");
    listener.listen(8).expect("listens");
    let id = client.id(PortSpace::Udp).expect("an id");
    id.resolve_addr(None, ("both", listener.port()), SOON)
        .expect("an address");
    expect(&client, &id, CmEvent::AddrResolved);
    id.resolve_route(SOON).expect("a route");
    expect(&client, &id, CmEvent::RouteResolved);
    id.lookup(b"who?").expect("asked");
    let request = expect(&server, &listener, CmEvent::ConnectRequest);
    let EventKind::LookupRequest {
        id: asked,
        private_data,
    } = request
    else {
        panic!("{request:?}");
    };
    assert!(private_data.starts_with(b"who?"));
    asked.reject(b"").expect("refused");
    // The service has refused, which is an answer.
    expect(&client, &id, CmEvent::Unreachable);
    assert_eq!(id.peer_addr().map(|at| at.is_ipv4()), Some(true));
}

fn links(server: &Device, client: &Device) {
    let pds = [server.alloc_pd(), client.alloc_pd()];
    let mut listener = Listener::bind(server, ("127.0.0.1", 0), 8, RETRY).expect("free");
    let connector = Connector::new(client, ("both", listener.port()), RETRY);
    let link = |exchange| Link::new(&pds[1], LinkInit::default(), exchange).expect("a link");
    let mut ours = link(connector.exchange().expect("an exchange"));
    let mut theirs: Option<Link> = None;
    until("the links are ready", || {
        ours.poll(16, |_| ());
        match &mut theirs {
            Some(theirs) => _ = theirs.poll(16, |_| ()),
            None => {
                let incoming = listener.accept().expect("events");
                theirs = incoming.map(|incoming| {
                    Link::new(&pds[0], LinkInit::default(), incoming).expect("a link")
                });
            }
        }
        let ready = |link: &Link| link.state() == LinkState::Ready;
        ready(&ours) && theirs.as_ref().is_some_and(ready)
    });
    // The notice that the link is closed goes to the same address.
    drop(ours);
    until("the peer is told", || {
        let theirs = theirs.as_mut().expect("accepted");
        theirs.poll(16, |_| ());
        matches!(theirs.state(), LinkState::Ended(_))
    });
    let port = listener.port();
    drop((theirs, listener));

    let mut alone = link(connector.exchange().expect("an exchange"));
    until("the link gives up", || {
        alone.poll(16, |_| ());
        matches!(alone.state(), LinkState::Ended(_))
    });
    let text = alone.exchange_error().expect("a reason").to_string();
    for address in ["127.0.0.1", "[::1]"] {
        assert!(
            text.contains(&format!("{address}:{port}: nobody listens at")),
            "{text}"
        );
    }
}

/// The exchange over TCP tries each address, too, and names each.
fn streams() {
    let listener = tcp::Listener::bind(Some("127.0.0.1"), 0).expect("free");
    tcp::Connection::connect("both", listener.port(), SOON).expect("connected");
    let port = listener.port();
    drop(listener);
    let text = tcp::Connection::connect("both", port, SOON)
        .expect_err("nobody")
        .to_string();
    for address in ["127.0.0.1", "[::1]"] {
        assert!(
            text.contains(&format!("{address}:{port}: Connection refused")),
            "{text}"
        );
    }
}
