//! Addresses: names that have several, and link-local addresses, which belong to an interface. Each role has a
//! network namespace with two interfaces on one cable, `here` and `there`, and a hosts file of its own.

mod names;
mod scopes;

use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, Peer, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::{AccessFlags, Device};
use bellwire_tests::child::ROLE;
use bellwire_tests::fixture::{self, End};
use std::process::Command;
use std::time::Duration;

/// How long a step may take.
const SOON: Duration = Duration::from_secs(20);

pub const AREA: crate::Area = crate::Area {
    roles: &[("names", names::role), ("link_local", scopes::role)],
    tests: &[
        ("each_address_of_a_name_is_tried", || in_role("names")),
        ("link_local_addresses_belong_to_an_interface", || {
            in_role("link_local");
        }),
    ],
};

/// The hosts file of the roles.
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n::1 both\n127.0.0.1 both\n";

/// Plays a role in a process of its own, which needs root for its namespaces.
fn in_role(role: &str) {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: network namespaces need root");
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    let status = Command::new(std::env::current_exe().expect("a path"))
        .env(ROLE, role)
        .current_dir(home.path())
        .status()
        .expect("this program");
    assert!(status.success(), "{role}: {status}");
}

/// Gives this process namespaces of its own. The working folder is its test's.
fn enter() {
    // SAFETY: a plain system call; the process has one thread.
    let entered = unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
    std::fs::write("hosts", HOSTS).expect("written");
    for command in [
        "mount --make-rprivate /",
        "mount --bind hosts /etc/hosts",
        "ip link set lo up",
        "ip link add here type veth peer name there",
        "ip link set here up",
        "ip link set there up",
        // At once: nothing looks for the address of another.
        "ip addr add fe80::a/64 dev here nodad",
        "ip addr add fe80::a/64 dev there nodad",
        "ip addr add fe80::b/64 dev there nodad",
    ] {
        let mut words = command.split(' ');
        let program = words.next().expect("a program");
        let status = Command::new(program).args(words).status();
        let status = status.unwrap_or_else(|error| panic!("{command}: {error}"));
        assert!(status.success(), "{command}: {status}");
    }
}

/// Waits for this event of this id.
fn expect(channel: &EventChannel, id: &Id, event: CmEvent) -> EventKind {
    let next = channel.get(SOON).expect("events").expect("in time");
    assert_eq!((next.kind().event(), next.id()), (event, id), "{next:?}");
    next.ack()
}

/// An id whose queue pair is in INIT, and that knows the route.
fn routed(channel: &EventChannel, peer: impl Into<Peer>) -> (Id, End) {
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, peer, SOON).expect("an address");
    expect(channel, &id, CmEvent::AddrResolved);
    id.resolve_route(SOON).expect("a route");
    expect(channel, &id, CmEvent::RouteResolved);
    let end = end(&id);
    (id, end)
}

fn end(id: &Id) -> End {
    let pd = id.device().expect("a device").expect("bound").alloc_pd();
    let mut end = End::new(&pd, bellwire::soft::Mode::Inline, &fixture::init());
    id.init_qp(&mut end.qp, AccessFlags::empty()).expect("INIT");
    end
}

/// Connects to this address, whose listener is this one.
fn connects(
    server: &EventChannel,
    listener: &Id,
    client: &EventChannel,
    to: impl Into<Peer>,
) -> (Id, Id) {
    let (id, mut there) = routed(client, to);
    id.connect(&there.qp, &ConnParam::default()).expect("asked");
    let EventKind::ConnectRequest { id: accepted, .. } =
        expect(server, listener, CmEvent::ConnectRequest)
    else {
        unreachable!("by its number");
    };
    let mut here = end(&accepted);
    accepted
        .accept(&mut here.qp, &ConnParam::default())
        .expect("accepted");
    expect(client, &id, CmEvent::ConnectResponse);
    id.establish(&mut there.qp).expect("established");
    expect(server, &accepted, CmEvent::Established);
    (id, accepted)
}

/// Devices of the software HCA: one within the process, and two nodes of a fabric.
fn worlds() -> [[Device; 2]; 2] {
    let alone = fixture::device(bellwire::soft::Mode::Inline);
    let fabric = fixture::fabric_name();
    let nodes = [(); 2].map(|()| fixture::node(&fabric, bellwire::soft::Mode::Inline));
    [[alone.clone(), alone], nodes]
}
