//! Events that nothing on the device causes: raised on demand, by a call and by a script.

use super::{World, lone};
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{completes, strike};
use bellwire::ConnectAttr;
use bellwire::event::{Element, ElementKind, EventType};
use bellwire::soft::Fault;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;

/// What this device never has a reason for.
const EVENTS: [(EventType, &str); 8] = [
    (EventType::PathMig, "path migrated"),
    (EventType::PathMigErr, "path migration request error"),
    (EventType::LidChange, "LID change"),
    (EventType::PkeyChange, "P_Key change"),
    (EventType::SmChange, "SM change"),
    (EventType::ClientReregister, "client reregistration"),
    (EventType::GidChange, "SGID change"),
    (EventType::WqFatal, "work queue"),
];

pub fn group() -> Group {
    let rules = EVENTS.map(|(event, name)| {
        let whom = match event.element_kind() {
            ElementKind::Port => "every context",
            _ => "the context that has it",
        };
        Rule::new(
            "events::raised",
            &event.name().to_lowercase(),
            "IBTA vol. 1, 11.6.3; ibv_get_async_event(3)",
            format!("{event} ({name}) comes once, to {whom}, and changes nothing else."),
            &[Feature::Rc, Feature::AsyncEvents, Feature::FaultInjection],
            move |p| raised(p, event),
        )
    });
    Group {
        name: "events::raised",
        about: "Asynchronous events that only a fabric or a fault causes, raised on demand.",
        rules: rules.into(),
    }
}

fn raised(p: &Provider, event: EventType) {
    let w = World::new(p);
    let (mut a, mut b) = pair_with(&w.own, w.quiet, &ConnectAttr::default());
    let (_bystander, _cq) = lone(&w.other);
    let element = match event.element_kind() {
        ElementKind::Port => Element::Port(1),
        ElementKind::Wq => Element::Wq(77),
        _ => Element::Qp(a.qp.qp_num()),
    };
    for by_script in [true, false] {
        if by_script {
            strike(&w.own, Fault::Raise(event, element));
        } else {
            w.own
                .as_soft()
                .unwrap()
                .raise(event, element)
                .expect("a good event");
        }
        if event.element_kind() == ElementKind::Port {
            w.delivered_to_all(&[(event, element)]);
        } else {
            w.delivered(&[(event, element)]);
        }
    }
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::Success);
    completes(&mut b, 70, WcStatus::Success);
}
