//! A cable that is cut, and mended: `PORT_ERR` and `PORT_ACTIVE`.

use crate::tests;
use bellwire::event::{Element, EventType};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::Success;
use bellwire::{Device, PortState};
use bellwire_tests::cable;
use bellwire_tests::ends::*;
use bellwire_tests::events::{event, no_event};

tests! { every_context_gets_events_of_its_port, a_connection_outlives_a_short_cut }

/// Waits for this event of a port. rxe raises some twice, the second time when the carrier's change has
/// been noticed, which may be a second later.
fn gets_port_event(context: &Device, expected: EventType) {
    loop {
        let (event_type, element) = event(context);
        assert_eq!(element, Element::Port(1));
        assert!(matches!(
            event_type,
            EventType::PortErr | EventType::PortActive
        ));
        if event_type == expected {
            return;
        }
    }
}

/// Cut at either end: both ports are down.
fn every_context_gets_events_of_its_port() {
    let alone = open(ALONE);
    for end in ["veth1", "veth2"] {
        let ends = CABLE.map(open);
        let again = ends
            .each_ref()
            .map(|device| device.reopen().expect("again"));
        let contexts: Vec<_> = ends.iter().chain(&again).collect();
        let all = |event_type, state| {
            for context in &contexts {
                gets_port_event(context, event_type);
                cable::until_port(context, state);
            }
        };
        let cable = cable::cut(end);
        all(EventType::PortErr, PortState::Down);
        cable.now();
        all(EventType::PortActive, PortState::Active);
    }
    // Another device's context gets no event of it.
    no_event(&alone, QUIET);
}

/// As long as the retries last, what is posted meanwhile waits.
fn a_connection_outlives_a_short_cut() {
    let (mut a, mut b) = far();
    connect_patiently(&mut a.qp, &mut b.qp, &patient());
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
