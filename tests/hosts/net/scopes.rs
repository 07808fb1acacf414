//! Link-local addresses: the same one may belong to several interfaces.

use super::{SOON, connects, enter, expect, worlds};
use bellwire::Device;
use bellwire::address::host_text;
use bellwire::connect::cm::{EventChannel, Id, Membership, PortSpace};
use bellwire::connect::tcp;
use bellwire::fault::CmEvent;
use std::net::SocketAddr;

pub fn role() {
    enter();
    for [server, client] in worlds() {
        two_interfaces(&server, &client);
        refusals(&client);
        groups(&client);
    }
    streams();
}

fn host(address: Option<SocketAddr>) -> String {
    host_text(address.expect("known"))
}

/// Two listeners at one address and one port, each of its own interface.
fn two_interfaces(server: &Device, client: &Device) {
    let [server, client] =
        [server, client].map(|device| EventChannel::on(device).expect("a channel"));
    let bound = |at: &str, port| {
        let id = server.id(PortSpace::Tcp).expect("an id");
        id.bind((at, port)).map(|()| id)
    };
    let first = bound("fe80::a%here", 0).expect("free");
    let port = first.port();
    let second = bound("fe80::a%there", port).expect("free, of another interface");
    let text = bound("fe80::a%here", port).expect_err("in use").to_string();
    assert!(
        text.contains(&format!("[fe80::a%here]:{port}: Address already in use")),
        "{text}"
    );
    bound("::", port).expect_err("in use, at both");
    for (listener, at) in [(&first, "fe80::a%here"), (&second, "fe80::a%there")] {
        assert_eq!(host(listener.local_addr()), at);
        listener.listen(8).expect("listens");
    }
    for (listener, at) in [(&second, "fe80::a%there"), (&first, "fe80::a%here")] {
        let (id, accepted) = connects(&server, listener, &client, (at, port));
        for address in [
            id.peer_addr(),
            id.local_addr(),
            accepted.local_addr(),
            accepted.peer_addr(),
        ] {
            assert_eq!(host(address), at);
        }
    }
    drop((first, second));
    // A listener on all addresses has these as well, and says at which it was reached.
    let all: Id = bound("::", port).expect("free");
    all.listen(8).expect("listens");
    let (_id, accepted) = connects(&server, &all, &client, ("fe80::b%there", port));
    assert_eq!(host(accepted.local_addr()), "fe80::b%there");
}

fn refusals(client: &Device) {
    let channel = EventChannel::on(client).expect("a channel");
    let id = channel.id(PortSpace::Tcp).expect("an id");
    for (at, says) in [
        (
            "fe80::a",
            "[fe80::a]:7: fe80::a is link-local: name the interface, as in fe80::a%eth0",
        ),
        ("fe80::a%nowhere", "no interface \"nowhere\""),
        (
            "fe80::b%here",
            "[fe80::b%here]:7: Cannot assign requested address",
        ),
    ] {
        let text = id.bind((at, 7)).expect_err(at).to_string();
        assert!(text.contains(says), "{text}");
    }
    let text = id
        .resolve_addr(None, ("fe80::a", 7), SOON)
        .expect_err("incomplete")
        .to_string();
    assert!(text.contains("name the interface"), "{text}");
    // The address of another interface is not reached by this one.
    id.resolve_addr(None, ("fe80::b%here", 7), SOON)
        .expect("asked");
    expect(&channel, &id, CmEvent::AddrError);
    let tried = id.tried();
    assert!(
        tried[0]
            .to_string()
            .starts_with("[fe80::b%here]:7: No route to host"),
        "{tried:?}"
    );
}

/// A group of each interface.
fn groups(client: &Device) {
    let channel = EventChannel::on(client).expect("a channel");
    let id = channel.id(PortSpace::Udp).expect("an id");
    id.bind(("fe80::a%here", 0)).expect("free");
    let group = |text: &str| {
        bellwire::address::parse(text, 0)
            .expect("an interface")
            .expect("an address")
    };
    let text = id
        .join(group("ff02::7"), Membership::Full)
        .expect_err("no interface")
        .to_string();
    assert!(text.contains("name the interface"), "{text}");
    for interface in ["here", "there"] {
        id.join(group(&format!("ff02::7%{interface}")), Membership::Full)
            .expect("asked");
        expect(&channel, &id, CmEvent::MulticastJoin);
    }
    let text = id
        .join(group("ff02::7%here"), Membership::Full)
        .expect_err("joined")
        .to_string();
    assert!(text.contains("[ff02::7%here]:0: "), "{text}");
    id.leave(group("ff02::7%there")).expect("joined");
    id.leave(group("ff02::7%here")).expect("joined");
}

fn streams() {
    let listener = tcp::Listener::bind(Some("fe80::b%there"), 0).expect("free");
    let port = listener.port();
    tcp::Connection::connect("fe80::b%there", port, SOON).expect("connected");
    let text = tcp::Connection::connect("fe80::b", port, SOON)
        .expect_err("incomplete")
        .to_string();
    assert!(
        text.contains("name the interface, as in fe80::b%eth0"),
        "{text}"
    );
    let text = tcp::Listener::bind(Some("fe80::b"), 0)
        .expect_err("incomplete")
        .to_string();
    assert!(text.contains("name the interface"), "{text}");
}
