//! What this library says about asynchronous events beside the rules of the verbs, which
//! `conformance` has: what can be raised, which objects go together, and who gets what under which name.

use bellwire::event::{Element, EventType};
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device, Error, Qp};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use bellwire_tests::readiness::readable;
use std::time::Duration;

in_both_modes! {
    an_event_is_about_things_of_its_kind, an_event_is_about_what_exists, contexts_do_not_mix,
    a_drop_acknowledges,
}

fn none(device: &Device) {
    assert!(!readable(device.async_fd(), Duration::ZERO));
}

fn qp(device: &Device) -> (Qp, bellwire::Cq) {
    let mut cq = cq_for(device, &init());
    let qp = device.alloc_pd().create_qp(&mut cq, &init()).unwrap();
    (qp, cq)
}

fn an_event_is_about_things_of_its_kind(mode: Mode) {
    let device = device(mode);
    let (qp, cq) = qp(&device);
    let elements = [
        Element::Cq(cq.cqn()),
        Element::Qp(qp.qp_num()),
        Element::Srq(1),
        Element::Wq(1),
        Element::Port(1),
        Element::Device,
    ];
    let mut refused = 0;
    for &event in EventType::ALL {
        for element in elements {
            if element.kind() != event.element_kind() {
                let error = device.as_soft().unwrap().raise(event, element).unwrap_err();
                assert!(matches!(error, Error::WrongElement { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(event.name()), "{text}");
                assert!(text.contains(event.element_kind().name()), "{text}");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 20 * 5);
    none(&device);
}

fn an_event_is_about_what_exists(mode: Mode) {
    let device = device(mode);
    let (qp, cq) = qp(&device);
    let (qpn, cqn) = (qp.qp_num(), cq.cqn());
    let check = |event, element: Element| {
        let error = device.as_soft().unwrap().raise(event, element).unwrap_err();
        assert!(matches!(error, Error::UnknownElement { .. }), "{error}");
        assert!(error.to_string().contains(&element.to_string()), "{error}");
    };
    for number in [0, qpn + 1, u32::MAX] {
        check(EventType::QpFatal, Element::Qp(number));
    }
    for number in [0, cqn + 1, u32::MAX] {
        check(EventType::CqErr, Element::Cq(number));
    }
    for number in [0, 2, u8::MAX] {
        check(EventType::PortErr, Element::Port(number));
    }
    drop(qp);
    check(EventType::QpFatal, Element::Qp(qpn));
    drop(cq);
    check(EventType::CqErr, Element::Cq(cqn));
    none(&device);
}

fn contexts_do_not_mix(mode: Mode) {
    let first = device(mode);
    let second = first.reopen().unwrap();
    let mut cq = cq_for(&first, &init());
    let error = second.alloc_pd().create_qp(&mut cq, &init()).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    // Queue pairs of both are on one device all the same.
    let (mut a, mut b) = (
        End::new(&first.alloc_pd(), mode, &init()),
        End::new(&second.alloc_pd(), mode, &init()),
    );
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    b.receive(1, &[]);
    a.go(2, Send {}, NoPayload);
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    assert_eq!(b.outcome(), (1, WcStatus::Success));
}

fn a_drop_acknowledges(mode: Mode) {
    let device = device(mode);
    let (qp, _cq) = qp(&device);
    for _ in 0..3 {
        device
            .as_soft()
            .unwrap()
            .raise(EventType::QpAccessErr, Element::Qp(qp.qp_num()))
            .unwrap();
        drop(device.get_async_event().unwrap());
    }
    // Does not hang.
    drop(qp);
}

#[test]
fn opening_a_device_twice_gives_two_contexts() {
    let (first, second) = (Device::open("soft").unwrap(), Device::open("auto").unwrap());
    let (qp, _cq) = qp(&first);
    let element = Element::Qp(qp.qp_num());
    second
        .as_soft()
        .unwrap()
        .raise(EventType::SqDrained, element)
        .unwrap();
    let event = first.get_async_event().unwrap();
    assert_eq!(event.element(), element);
    event.ack();
    none(&second);
}

/// An element says what it is in words, for people.
#[test]
fn elements_have_names() {
    for (element, text) in [
        (Element::Cq(16), "completion queue 0x10"),
        (Element::Qp(1), "queue pair 0x1"),
        (Element::Srq(2), "shared receive queue 0x2"),
        (Element::Wq(3), "work queue 0x3"),
        (Element::Port(1), "port 1"),
        (Element::Device, "device"),
    ] {
        assert_eq!(element.to_string(), text);
    }
}
