//! Devices that are taken away, and one that is made. rxe goes when the last process that has it open does, so each test is
//! carried out by a process of its own; who takes the device away waits for its end.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{EventKind, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::wr::WcStatus::WrFlushErr;
use bellwire_tests::cable::{Undo, run};
use bellwire_tests::ends::RECEIVES;
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::readable;
use std::process::Command;

tests! {
    a_device_that_goes,
    a_device_that_goes_before_its_route_is_there,
    a_bond_that_fails_over,
}

/// Set where this program is run again; says which test.
const CHILD: &str = "BELLWIRE_TEST_RDMACM_CHILD";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Carries a test out, and gives what it has to say when it fails.
fn in_child(test: &str) -> Result<(), String> {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let output = child.env(CHILD, test).output().expect("a child");
    let text = String::from_utf8_lossy(&output.stderr);
    let done = output.status.success().then_some(());
    done.ok_or_else(|| text.into_owned())
}

/// Carries a test out that takes rxe0 away.
fn removing(test: &str) {
    let done = in_child(test);
    until("the device's end", || {
        let links = Command::new("rdma")
            .arg("link")
            .output()
            .expect("rdma link");
        !String::from_utf8_lossy(&links.stdout).contains("rxe0/")
    });
    run("rdma link add rxe0 type rxe netdev dummy0");
    done.unwrap_or_else(|text| panic!("{text}"));
}

fn a_device_that_goes() {
    removing("connection");
}

fn a_device_that_goes_before_its_route_is_there() {
    removing("route");
}

fn a_bond_that_fails_over() {
    let _bond = Undo::after(
        "ip link add bond7 type bond mode active-backup fail_over_mac active miimon 20",
        "ip link del bond7",
    );
    let _one = Undo::after("ip link add slave1 type dummy", "ip link del slave1");
    let _two = Undo::after("ip link add slave2 type dummy", "ip link del slave2");
    for slave in ["slave1", "slave2"] {
        run(&format!("ip link set {slave} master bond7"));
    }
    run("ip link set bond7 up");
    run(&format!("ip addr add {BONDED}/24 dev bond7"));
    let _device = Undo::after(
        "rdma link add rxe3 type rxe netdev bond7",
        "rdma link del rxe3",
    );
    in_child("bond").unwrap_or_else(|text| panic!("{text}"));
}

/// The bond's address.
const BONDED: &str = "10.79.0.1";

/// Its hardware address becomes that of the other interface.
fn bond_child() {
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    until("the address", || id.bind(address(BONDED, 0)).is_ok());
    id.listen(1).expect("it is bound");
    assert_eq!(device_of(&id).name(), "rxe3");
    run("ip link set bond7 type bond active_slave slave2");
    let event = expect(&channel, CmEvent::AddrChange);
    assert!(*event.id() == id);
}

pub fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("route") => route_child(),
        Ok("bond") => bond_child(),
        _ => connection_child(),
    }
}

/// Begins to take rxe0 away: it is gone when this process is.
fn remove() {
    let mut shell = Command::new("sh");
    let begun = shell.args(["-c", "rdma link del rxe0 &"]).status();
    assert!(begun.expect("a shell").success());
}

/// Every id gets the event; what is posted is flushed when the program ends the connection.
fn connection_child() {
    let channel = channel();
    let mut pair = connect(&channel, HERE);
    let (listener, _) = listen(&channel, PortSpace::Tcp, HERE);
    pair.asked.1.receive(RECEIVES, &[]);
    remove();
    let mut gone = Vec::new();
    while gone.len() < 3 {
        let event = channel.get(DEADLINE).expect("it can be waited for");
        let event = event.expect("an event");
        match event.kind() {
            EventKind::DeviceRemoval => gone.push(event.id().clone()),
            // The connection is ended as well.
            EventKind::Disconnected | EventKind::TimewaitExit => {}
            _ => panic!("{event:?}"),
        }
    }
    for id in [&pair.asked.0, &pair.took.0, &listener] {
        assert!(gone.iter().any(|other| other == id));
        assert!(id.resolve_route(STEP).is_err());
    }
    let (id, end) = &mut pair.asked;
    // The queue pair goes to ERR, whatever has become of the id.
    let _ = id.disconnect(&mut end.qp);
    assert_eq!(end.outcome(), (RECEIVES, WrFlushErr));
}

/// librdmacm asks for the path when the event is got.
fn route_child() {
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address(HERE, 7), STEP)
        .expect("a step");
    expect(&channel, CmEvent::AddrResolved).ack();
    id.resolve_route(STEP).expect("a step");
    assert!(readable(&channel, DEADLINE), "no event");
    remove();
    // Until rdma_cm has let go of it.
    until("the removal", || id.set_tos(0).is_err());
    let event = expect(&channel, CmEvent::RouteError);
    assert!(*event.id() == id);
    assert_ne!(event.status(), 0);
    drop(event);
    expect(&channel, CmEvent::DeviceRemoval).ack();
}
