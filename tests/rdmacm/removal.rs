//! Devices that are taken away, and one that is made. rxe goes when the last process that has it open does, so each test is
//! carried out by a process of its own; who takes the device away waits for its end.

use crate::cable::{Undo, run};
use crate::ends::RECEIVES;
use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{EventKind, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::wr::WcStatus::WrFlushErr;
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::readable;
use std::process::{Child, Command};

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

fn in_child(test: &str) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let output = child.env(CHILD, test).output().expect("a child");
    until("the device's end", || {
        let links = Command::new("rdma")
            .arg("link")
            .output()
            .expect("rdma link");
        !String::from_utf8_lossy(&links.stdout).contains("rxe0/")
    });
    run("rdma link add rxe0 type rxe netdev dummy0");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn a_device_that_goes() {
    in_child("connection");
}

fn a_device_that_goes_before_its_route_is_there() {
    in_child("route");
}

pub fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("route") => route_child(),
        Ok("bond") => bond_child(),
        _ => connection_child(),
    }
}

/// Begins to take rxe0 away: it is gone when this process is.
fn remove() -> Child {
    let mut command = Command::new("rdma");
    command
        .args(["link", "del", "rxe0"])
        .spawn()
        .expect("rdma link")
}

/// Every id is told; what is posted is flushed when the program ends the connection.
fn connection_child() {
    let channel = channel();
    let mut pair = connect(&channel, HERE);
    let (listener, _) = listen(&channel, PortSpace::Tcp, HERE);
    pair.asked.1.receive(RECEIVES, &[]);
    let _ends_after_this_process = remove();
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
        assert!(gone.iter().any(|told| told.is_same(id)));
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
    let _ends_after_this_process = remove();
    // Until rdma_cm has let go of it.
    until("the removal", || id.set_tos(0).is_err());
    let event = expect(&channel, CmEvent::RouteError);
    assert!(event.id().is_same(&id));
    assert_ne!(event.status(), 0);
    drop(event);
    expect(&channel, CmEvent::DeviceRemoval).ack();
}
