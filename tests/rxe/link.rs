//! A cable that is cut, and mended: `PORT_ERR` and `PORT_ACTIVE`.

use crate::cable;
use crate::ends::*;
use crate::tests;
use bellwire::event::{Element, EventType};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::Success;
use bellwire::{ConnectAttr, Device, PortState};
use bellwire_tests::events::no_event;
use bellwire_tests::fixture::*;

tests! { every_context_is_told_of_its_port, a_connection_outlives_a_short_cut }

/// Cut at either end: both ports are down.
fn every_context_is_told_of_its_port() {
    let alone = open(ALONE);
    for end in ["veth1", "veth2"] {
        let ends = CABLE.map(open);
        let again = ends
            .each_ref()
            .map(|device| device.reopen().expect("again"));
        let contexts: Vec<_> = ends.iter().chain(&again).collect();
        let all = |told: EventType, state| {
            for context in &contexts {
                told_of(context, told, Element::Port(1));
                assert_eq!(context.query_port(1).expect("port 1").state, state);
            }
        };
        let cable = cable::cut(end);
        all(EventType::PortErr, PortState::Down);
        cable.now();
        all(EventType::PortActive, PortState::Active);
    }
    // Of another device's port nobody is told.
    no_event(&alone, QUIET);
}

/// As long as the retries last, what is posted meanwhile waits.
fn a_connection_outlives_a_short_cut() {
    let (mut a, mut b) = far();
    let patient = ConnectAttr {
        // About a second, for ever so often.
        timeout: 18,
        ..ConnectAttr::default()
    };
    connect_with(&mut a.qp, &mut b.qp, &patient);
    works(&mut a, &mut b);
    b.receive(RECEIVES, &[]);
    let cable = cable::cut("veth2");
    let devices: [Device; 2] = [&a, &b].map(|end| end.qp.pd().device().clone());
    for device in &devices {
        cable::until_port(device, PortState::Down);
    }
    a.go(1, Send {}, NoPayload);
    a.nothing();
    b.nothing();
    cable.now();
    for device in &devices {
        cable::until_port(device, PortState::Active);
    }
    account(&mut a, &[(1, Success)], &[]);
    account(&mut b, &[], &[(RECEIVES, Success)]);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    works(&mut b, &mut a);
}
