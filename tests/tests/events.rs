//! Asynchronous events: who is told of what, how a program waits for them, and what waits until they
//! are acknowledged (ibv_get_async_event(3)).

use bellwire::event::{AsyncEvent, Element, ElementKind, EventType};
use bellwire::soft::Mode;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device, Error, Qp, QpInit};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use bellwire_tests::readiness::{Epoll, Trigger, readable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

in_both_modes! {
    every_event_can_be_raised, an_event_is_about_things_of_its_kind,
    an_event_is_about_what_exists, each_context_is_told_of_its_own,
    every_open_context_is_told_of_device_and_ports, contexts_do_not_mix,
    poll_and_epoll_tell_of_events, a_get_blocks_until_there_is_one,
    a_get_does_not_block_when_told_not_to, many_threads_get_each_event_once,
    destroying_waits_for_the_acknowledgement, destroying_removes_what_was_not_got,
    a_number_that_is_used_again_has_no_old_events, an_overrun_is_told, a_drop_acknowledges,
}

const AT_ONCE: Duration = Duration::ZERO;
/// How long something has to hang before it counts as hanging.
const WHILE: Duration = Duration::from_millis(30);

fn told(event: AsyncEvent) -> (Element, EventType) {
    let told = (event.element(), event.event_type());
    event.ack();
    told
}

fn next(device: &Device) -> (Element, EventType) {
    told(device.get_async_event().unwrap())
}

fn none(device: &Device) {
    assert!(!readable(device.async_fd(), AT_ONCE));
    device.set_async_nonblocking(true).unwrap();
    assert!(matches!(device.get_async_event(), Err(Error::WouldBlock)));
    device.set_async_nonblocking(false).unwrap();
}

fn qp(device: &Device) -> (Qp, bellwire::Cq) {
    let mut cq = cq_for(device, &init());
    let qp = device.alloc_pd().create_qp(&mut cq, &init()).unwrap();
    (qp, cq)
}

fn every_event_can_be_raised(mode: Mode) {
    let device = device(mode);
    let (qp, cq) = qp(&device);
    let element = |event: EventType| match event.element_kind() {
        ElementKind::Cq => Element::Cq(cq.cqn()),
        ElementKind::Qp => Element::Qp(qp.qp_num()),
        ElementKind::Srq => Element::Srq(1),
        ElementKind::Wq => Element::Wq(77),
        ElementKind::Port => Element::Port(1),
        ElementKind::Device => Element::Device,
    };
    // There is no shared receive queue that they could be about.
    let (srq, others): (Vec<EventType>, Vec<EventType>) = EventType::ALL
        .iter()
        .partition(|event| event.element_kind() == ElementKind::Srq);
    assert_eq!((srq.len(), others.len()), (2, 18));
    for event in srq {
        let error = device.raise(event, element(event)).unwrap_err();
        assert!(matches!(error, Error::UnknownElement { .. }), "{error}");
    }
    for &event in &others {
        device.raise(event, element(event)).unwrap();
    }
    for &event in &others {
        assert_eq!(next(&device), (element(event), event));
    }
    none(&device);
    // The event alone: the queue pair is as it was.
    assert_eq!(qp.state(), QpState::Reset);
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
                let error = device.raise(event, element).unwrap_err();
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
        let error = device.raise(event, element).unwrap_err();
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

fn each_context_is_told_of_its_own(mode: Mode) {
    let first = device(mode);
    let second = first.reopen().unwrap();
    let ((a, a_cq), (b, b_cq)) = (qp(&first), qp(&second));
    for raiser in [&first, &second] {
        for (context, qp, cq) in [(&first, &a, &a_cq), (&second, &b, &b_cq)] {
            let (qp, cq) = (Element::Qp(qp.qp_num()), Element::Cq(cq.cqn()));
            raiser.raise(EventType::CommEst, qp).unwrap();
            raiser.raise(EventType::CqErr, cq).unwrap();
            assert_eq!(next(context), (qp, EventType::CommEst));
            assert_eq!(next(context), (cq, EventType::CqErr));
            none(&first);
            none(&second);
        }
    }
    // A clone is the same context.
    let element = Element::Qp(a.qp_num());
    first.raise(EventType::PathMig, element).unwrap();
    assert_eq!(next(&first.clone()), (element, EventType::PathMig));
    none(&first);
}

fn every_open_context_is_told_of_device_and_ports(mode: Mode) {
    let first = device(mode);
    let second = first.reopen().unwrap();
    let closed = first.reopen().unwrap();
    drop(closed);
    let stranger = device(mode);
    first.raise(EventType::PortErr, Element::Port(1)).unwrap();
    second
        .raise(EventType::PortActive, Element::Port(1))
        .unwrap();
    first
        .raise(EventType::DeviceFatal, Element::Device)
        .unwrap();
    let third = first.reopen().unwrap();
    for context in [&first, &second] {
        assert_eq!(next(context), (Element::Port(1), EventType::PortErr));
        assert_eq!(next(context), (Element::Port(1), EventType::PortActive));
        assert_eq!(next(context), (Element::Device, EventType::DeviceFatal));
        none(context);
    }
    // Neither another device, nor who came later.
    none(&stranger);
    none(&third);
}

#[test]
fn opening_a_device_twice_gives_two_contexts() {
    let (first, second) = (Device::open("soft").unwrap(), Device::open("auto").unwrap());
    let (qp, _cq) = qp(&first);
    let element = Element::Qp(qp.qp_num());
    second.raise(EventType::SqDrained, element).unwrap();
    assert_eq!(next(&first), (element, EventType::SqDrained));
    none(&second);
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

fn poll_and_epoll_tell_of_events(mode: Mode) {
    let first = device(mode);
    let second = first.reopen().unwrap();
    let (level, edge) = (Epoll::new(), Epoll::new());
    for (name, context) in [(1, &first), (2, &second)] {
        level.add(context.async_fd(), name, Trigger::Level);
        edge.add(context.async_fd(), name, Trigger::Edge);
    }
    assert!(level.wait(AT_ONCE).is_empty() && edge.wait(AT_ONCE).is_empty());
    let (qp, _cq) = qp(&second);
    let element = Element::Qp(qp.qp_num());
    for _ in 0..2 {
        first.raise(EventType::PathMig, element).unwrap();
        // Each event is an edge.
        assert_eq!(edge.wait(AT_ONCE), [2]);
        assert!(edge.wait(AT_ONCE).is_empty());
    }
    for _ in 0..2 {
        assert!(readable(second.async_fd(), AT_ONCE));
        assert!(!readable(first.async_fd(), AT_ONCE));
        assert_eq!(level.wait(AT_ONCE), [2]);
        assert_eq!(next(&second).0, element);
    }
    assert!(level.wait(AT_ONCE).is_empty());
    first.raise(EventType::GidChange, Element::Port(1)).unwrap();
    assert_eq!(level.wait(AT_ONCE), [1, 2]);
    // Who sleeps is woken.
    let (a, b) = (next(&first), next(&second));
    assert_eq!(a, b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(WHILE);
            first.raise(EventType::PathMig, element).unwrap();
        });
        assert_eq!(level.wait(DEADLINE), [2]);
    });
}

fn a_get_blocks_until_there_is_one(mode: Mode) {
    let device = device(mode);
    let raised = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let event = next(&device);
            (event, raised.load(Ordering::Acquire))
        });
        std::thread::sleep(WHILE);
        assert!(!getter.is_finished());
        raised.store(true, Ordering::Release);
        device.raise(EventType::SmChange, Element::Port(1)).unwrap();
        let got = getter.join().unwrap();
        assert_eq!(got, ((Element::Port(1), EventType::SmChange), true));
    });
}

fn a_get_does_not_block_when_told_not_to(mode: Mode) {
    let device = device(mode);
    device.set_async_nonblocking(true).unwrap();
    for event in [EventType::LidChange, EventType::PkeyChange] {
        assert!(matches!(device.get_async_event(), Err(Error::WouldBlock)));
        device.raise(event, Element::Port(1)).unwrap();
        assert_eq!(next(&device), (Element::Port(1), event));
    }
    // The flag is the descriptor's own: a program may set it as for any other.
    device.set_async_nonblocking(false).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&device.async_fd());
    // SAFETY: takes numbers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        let flags = libc::fcntl(fd, libc::F_GETFD);
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
    assert!(matches!(device.get_async_event(), Err(Error::WouldBlock)));
}

fn many_threads_get_each_event_once(mode: Mode) {
    const EACH: usize = 200;
    let device = device(mode);
    let (qp, _cq) = qp(&device);
    let element = Element::Qp(qp.qp_num());
    std::thread::scope(|scope| {
        let getters = [(); 3]
            .map(|()| scope.spawn(|| (0..EACH).for_each(|_| assert_eq!(next(&device).0, element))));
        for _ in 0..EACH * getters.len() {
            device.raise(EventType::PathMigErr, element).unwrap();
        }
    });
    none(&device);
}

fn destroying_waits_for_the_acknowledgement(mode: Mode) {
    let device = device(mode);
    let (qp, cq) = qp(&device);
    let (qp_element, cq_element) = (Element::Qp(qp.qp_num()), Element::Cq(cq.cqn()));
    device.raise(EventType::QpReqErr, qp_element).unwrap();
    device.raise(EventType::QpReqErr, qp_element).unwrap();
    device.raise(EventType::CqErr, cq_element).unwrap();
    let [first, second, third] = [(); 3].map(|()| device.get_async_event().unwrap());
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| drop(qp));
        first.ack();
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        // No further event about it.
        let error = device.raise(EventType::QpFatal, qp_element).unwrap_err();
        assert!(matches!(error, Error::UnknownElement { .. }), "{error}");
        drop(second);
        destroyer.join().unwrap();
        let destroyer = scope.spawn(|| drop(cq));
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        third.ack();
    });
    none(&device);
}

fn a_drop_acknowledges(mode: Mode) {
    let device = device(mode);
    let (qp, _cq) = qp(&device);
    for _ in 0..3 {
        device
            .raise(EventType::QpAccessErr, Element::Qp(qp.qp_num()))
            .unwrap();
        drop(device.get_async_event().unwrap());
    }
    // Does not hang.
    drop(qp);
}

fn destroying_removes_what_was_not_got(mode: Mode) {
    let device = device(mode);
    let (a, a_cq) = qp(&device);
    let (b, _b_cq) = qp(&device);
    let (a_element, b_element) = (Element::Qp(a.qp_num()), Element::Qp(b.qp_num()));
    for element in [a_element, b_element, a_element, a_element, b_element] {
        device.raise(EventType::CommEst, element).unwrap();
    }
    device
        .raise(EventType::CqErr, Element::Cq(a_cq.cqn()))
        .unwrap();
    drop(a);
    drop(a_cq);
    for _ in 0..2 {
        assert_eq!(next(&device), (b_element, EventType::CommEst));
    }
    none(&device);
}

fn a_number_that_is_used_again_has_no_old_events(mode: Mode) {
    let device = device(mode);
    let mut numbers = std::collections::HashMap::new();
    let mut again = 0;
    for _ in 0..600 {
        let (qp, _cq) = qp(&device);
        let element = Element::Qp(qp.qp_num());
        again += u32::from(numbers.insert(element, ()).is_some());
        none(&device);
        device.raise(EventType::QpFatal, element).unwrap();
    }
    assert!(again != 0, "no number came round");
    none(&device);
}

fn an_overrun_is_told(mode: Mode) {
    let device = device(mode);
    let init = QpInit {
        reserve_cq: false,
        ..init()
    };
    let mut cq = device.create_cq(8).unwrap();
    let mut qp = device.alloc_pd().create_qp(&mut cq, &init).unwrap();
    let connect = ConnectAttr::default();
    qp.init(&connect).unwrap();
    qp.connect(&qp.endpoint(), &connect).unwrap();
    for wr_id in 0..12 {
        post(&mut qp, wr_id, Nop {}, NoPayload, SIGNALED).unwrap();
    }
    qp.sq().ring();
    assert_eq!(next(&device), (Element::Cq(cq.cqn()), EventType::CqErr));
    assert_eq!(
        next(&device),
        (Element::Qp(qp.qp_num()), EventType::QpFatal)
    );
    until("ERR", || qp.state() == QpState::Err);
    none(&device);
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
