//! Whom an event reaches, how a program waits for it, and what waits until it is acknowledged.

use super::{World, lone};
use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{event, no_event};
use bellwire::event::{Element, EventType};
use bellwire::{Error, SrqInit};
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::{Epoll, Trigger, readable};
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

rules! {
    "events::waiting", "Asynchronous events: whom they reach, waiting for them, acknowledging them.",
    needs [AsyncEvents, FaultInjection];
    each_context_gets_its_own: "ibv_get_async_event(3)",
        "An event of a queue comes to the context that the queue was created in, whoever causes it.";
    every_context_gets_those_of_device_and_ports: "ibv_get_async_event(3)",
        "Events of ports and of the device come to every open context, in their order.";
    who_comes_later_gets_nothing: "ibv_open_device(3)",
        "A context that is opened after an event does not get it, nor does another device.";
    poll_reports_events: "ibv_get_async_event(3), poll",
        "The descriptor of a context is readable from the event until it is got.";
    level_triggered_epoll_reports_while_there_are_events: "ibv_get_async_event(3); epoll(7)",
        "Of several contexts those with events are reported until these are got.";
    edge_triggered_epoll_reports_each_event: "epoll(7), EPOLLET",
        "Every event is an edge, got or not.";
    who_sleeps_is_woken: "ibv_get_async_event(3); epoll(7)",
        "An event wakes who sleeps in epoll already.";
    a_get_blocks_until_there_is_one: "ibv_get_async_event(3)",
        "Getting an event where there is none sleeps until there is.";
    a_get_does_not_block_when_set_not_to: "ibv_get_async_event(3), O_NONBLOCK",
        "On a descriptor that does not block it answers at once that there is none.";
    the_descriptor_is_closed_on_exec: "ibv_open_device(3); fcntl(2), FD_CLOEXEC",
        "A program that is executed later does not inherit it.";
    many_threads_get_each_event_once: "ibv_get_async_event(3)",
        "Of several threads that wait on one context, one gets each event.";
    destroying_a_queue_pair_waits: "ibv_ack_async_event(3); ibv_destroy_qp(3)",
        "Destroying a queue pair hangs until the last event of it is acknowledged.";
    destroying_a_completion_queue_waits: "ibv_ack_async_event(3); ibv_destroy_cq(3)",
        "Destroying a completion queue hangs until its events are acknowledged.";
    destroying_a_shared_receive_queue_waits [Srq]: "ibv_ack_async_event(3); ibv_destroy_srq(3)",
        "Destroying a shared receive queue hangs until its events are acknowledged.";
    events_of_others_hold_up_nobody: "ibv_ack_async_event(3)",
        "An unacknowledged event of one queue pair, a port or the device holds up no other queue pair.";
    nothing_is_raised_while_it_is_destroyed: "ibv_destroy_qp(3)",
        "A queue pair that is being destroyed has no further events.";
    destroying_removes_what_was_not_got: "ibv_destroy_qp(3)",
        "Events of what is destroyed that were not got are gone; those of others stay, in their order.";
    a_number_that_is_used_again_has_no_old_events: "ibv_destroy_qp(3)",
        "A queue pair with the number of an earlier one inherits no event of it.";
}

const AT_ONCE: Duration = Duration::ZERO;
/// How long something has to hang before it counts as hanging.
const WHILE: Duration = Duration::from_millis(30);
const PORT: Element = Element::Port(1);

fn each_context_gets_its_own(p: &Provider) {
    let w = World::new(p);
    let (a, b) = (lone(&w.own), lone(&w.other));
    for raiser in [&w.own, &w.other] {
        for (context, (qp, cq)) in [(&w.own, &a), (&w.other, &b)] {
            let (qp, cq) = (Element::Qp(qp.qp_num()), Element::Cq(cq.cqn()));
            raiser
                .as_soft()
                .unwrap()
                .raise(EventType::CommEst, qp)
                .unwrap();
            raiser
                .as_soft()
                .unwrap()
                .raise(EventType::CqErr, cq)
                .unwrap();
            assert_eq!(event(context), (EventType::CommEst, qp));
            assert_eq!(event(context), (EventType::CqErr, cq));
            w.silent();
        }
    }
}

fn every_context_gets_those_of_device_and_ports(p: &Provider) {
    let w = World::new(p);
    // A context that was closed does not keep the others from getting events.
    drop(w.own.reopen().unwrap());
    let events = [
        (EventType::PortErr, PORT),
        (EventType::PortActive, PORT),
        (EventType::DeviceFatal, Element::Device),
    ];
    for (raiser, (event, element)) in [&w.own, &w.other, &w.own].into_iter().zip(events) {
        raiser.as_soft().unwrap().raise(event, element).unwrap();
    }
    w.delivered_to_all(&events);
}

fn who_comes_later_gets_nothing(p: &Provider) {
    let w = World::new(p);
    let stranger = p.device();
    w.own
        .as_soft()
        .unwrap()
        .raise(EventType::PortErr, PORT)
        .unwrap();
    let later = w.own.reopen().unwrap();
    w.delivered_to_all(&[(EventType::PortErr, PORT)]);
    no_event(&stranger, p.quiet);
    no_event(&later, p.quiet);
    w.own
        .as_soft()
        .unwrap()
        .raise(EventType::PortActive, PORT)
        .unwrap();
    assert_eq!(event(&later), (EventType::PortActive, PORT));
}

fn poll_reports_events(p: &Provider) {
    let w = World::new(p);
    let (qp, _cq) = lone(&w.other);
    let element = Element::Qp(qp.qp_num());
    for _ in 0..2 {
        w.own
            .as_soft()
            .unwrap()
            .raise(EventType::PathMig, element)
            .unwrap();
    }
    for _ in 0..2 {
        assert!(readable(w.other.async_fd(), DEADLINE));
        assert!(readable(w.other.async_fd(), AT_ONCE));
        assert!(!readable(w.own.async_fd(), AT_ONCE));
        assert_eq!(event(&w.other), (EventType::PathMig, element));
    }
    w.silent();
}

fn level_triggered_epoll_reports_while_there_are_events(p: &Provider) {
    let w = World::new(p);
    let epoll = Epoll::new();
    epoll.add(w.own.async_fd(), 1, Trigger::Level);
    epoll.add(w.other.async_fd(), 2, Trigger::Level);
    assert!(epoll.wait(AT_ONCE).is_empty());
    w.own
        .as_soft()
        .unwrap()
        .raise(EventType::GidChange, PORT)
        .unwrap();
    assert_eq!(epoll.wait(DEADLINE), [1, 2]);
    assert_eq!(epoll.wait(DEADLINE), [1, 2]);
    event(&w.own);
    assert_eq!(epoll.wait(DEADLINE), [2]);
    event(&w.other);
    assert!(epoll.wait(p.quiet.0).is_empty());
}

fn edge_triggered_epoll_reports_each_event(p: &Provider) {
    let device = p.device();
    let epoll = Epoll::new();
    epoll.add(device.async_fd(), 5, Trigger::Edge);
    for _ in 0..3 {
        device
            .as_soft()
            .unwrap()
            .raise(EventType::SmChange, PORT)
            .unwrap();
        assert_eq!(epoll.wait(DEADLINE), [5]);
        assert!(epoll.wait(p.quiet.0).is_empty());
    }
}

fn who_sleeps_is_woken(p: &Provider) {
    let w = World::new(p);
    let (qp, _cq) = lone(&w.other);
    let epoll = Epoll::new();
    epoll.add(w.own.async_fd(), 1, Trigger::Level);
    epoll.add(w.other.async_fd(), 2, Trigger::Level);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(WHILE);
            let element = Element::Qp(qp.qp_num());
            w.own
                .as_soft()
                .unwrap()
                .raise(EventType::PathMig, element)
                .unwrap();
        });
        assert_eq!(epoll.wait(DEADLINE), [2]);
    });
}

fn a_get_blocks_until_there_is_one(p: &Provider) {
    let device = p.device();
    let raised = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let event = device.get_async_event().unwrap();
            (event.event_type(), raised.load(Ordering::Acquire))
        });
        std::thread::sleep(WHILE);
        assert!(!getter.is_finished());
        raised.store(true, Ordering::Release);
        device
            .as_soft()
            .unwrap()
            .raise(EventType::SmChange, PORT)
            .unwrap();
        assert_eq!(getter.join().unwrap(), (EventType::SmChange, true));
    });
}

fn a_get_does_not_block_when_set_not_to(p: &Provider) {
    let device = p.device();
    let fd = device.async_fd().as_raw_fd();
    // As the manual page has it. The library's own way is the same flag.
    // SAFETY: takes numbers only.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(set, 0);
    for kind in [EventType::LidChange, EventType::PkeyChange] {
        let none = device.get_async_event();
        assert!(matches!(none, Err(Error::WouldBlock)), "{none:?}");
        device.as_soft().unwrap().raise(kind, PORT).unwrap();
        assert_eq!(event(&device), (kind, PORT));
    }
    device.set_async_nonblocking(false).unwrap();
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    assert_eq!(flags & libc::O_NONBLOCK, 0);
}

fn the_descriptor_is_closed_on_exec(p: &Provider) {
    let device = p.device();
    let fd = device.async_fd().as_raw_fd();
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert_eq!(flags, libc::FD_CLOEXEC);
}

fn many_threads_get_each_event_once(p: &Provider) {
    const EACH: usize = 200;
    const THREADS: usize = 3;
    let device = p.device();
    let (qp, _cq) = lone(&device);
    let element = Element::Qp(qp.qp_num());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    assert_eq!(device.get_async_event().unwrap().element(), element);
                }
            });
        }
        for _ in 0..EACH * THREADS {
            device
                .as_soft()
                .unwrap()
                .raise(EventType::PathMigErr, element)
                .unwrap();
        }
    });
    no_event(&device, p.quiet);
}

/// Two events are got; destroying waits for both acknowledgements.
fn waits<T: Send>(device: &bellwire::Device, kind: EventType, element: Element, object: T) {
    device.as_soft().unwrap().raise(kind, element).unwrap();
    device.as_soft().unwrap().raise(kind, element).unwrap();
    let [first, second] = [(); 2].map(|()| device.get_async_event().unwrap());
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| drop(object));
        first.ack();
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        second.ack();
        destroyer.join().unwrap();
    });
    let error = device.as_soft().unwrap().raise(kind, element).unwrap_err();
    assert!(matches!(error, Error::UnknownElement { .. }), "{error}");
}

fn destroying_a_queue_pair_waits(p: &Provider) {
    let device = p.device();
    let (qp, _cq) = lone(&device);
    waits(&device, EventType::QpReqErr, Element::Qp(qp.qp_num()), qp);
}

fn destroying_a_completion_queue_waits(p: &Provider) {
    let device = p.device();
    let cq = device.create_cq(16).unwrap();
    waits(&device, EventType::CqErr, Element::Cq(cq.cqn()), cq);
}

fn destroying_a_shared_receive_queue_waits(p: &Provider) {
    let device = p.device();
    let srq = device.alloc_pd().create_srq(&SrqInit::default()).unwrap();
    let element = Element::Srq(srq.srq_num());
    waits(&device, EventType::SrqErr, element, srq);
}

fn events_of_others_hold_up_nobody(p: &Provider) {
    let device = p.device();
    let ((a, _a_cq), (b, _b_cq)) = (lone(&device), lone(&device));
    let events = [
        (EventType::QpFatal, Element::Qp(a.qp_num())),
        (EventType::PortErr, PORT),
        (EventType::DeviceFatal, Element::Device),
    ];
    for (event, element) in events {
        device.as_soft().unwrap().raise(event, element).unwrap();
    }
    let held = [(); 3].map(|()| device.get_async_event().unwrap());
    // Does not hang.
    drop(b);
    drop(held);
}

fn nothing_is_raised_while_it_is_destroyed(p: &Provider) {
    let device = p.device();
    let (qp, _cq) = lone(&device);
    let element = Element::Qp(qp.qp_num());
    device
        .as_soft()
        .unwrap()
        .raise(EventType::QpReqErr, element)
        .unwrap();
    let held = device.get_async_event().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(qp));
        until("the destruction", || {
            device
                .as_soft()
                .unwrap()
                .raise(EventType::QpFatal, element)
                .is_err()
        });
        no_event(&device, p.quiet);
        held.ack();
    });
    no_event(&device, p.quiet);
}

fn destroying_removes_what_was_not_got(p: &Provider) {
    let device = p.device();
    let ((a, a_cq), (b, _b_cq)) = (lone(&device), lone(&device));
    let (gone, kept) = (Element::Qp(a.qp_num()), Element::Qp(b.qp_num()));
    let cq = Element::Cq(a_cq.cqn());
    for (kind, element) in [
        (EventType::CommEst, gone),
        (EventType::PathMig, kept),
        (EventType::QpFatal, gone),
        (EventType::CqErr, cq),
        (EventType::PathMigErr, kept),
    ] {
        device.as_soft().unwrap().raise(kind, element).unwrap();
    }
    drop(a);
    drop(a_cq);
    assert_eq!(event(&device), (EventType::PathMig, kept));
    assert_eq!(event(&device), (EventType::PathMigErr, kept));
    no_event(&device, p.quiet);
}

fn a_number_that_is_used_again_has_no_old_events(p: &Provider) {
    let device = p.device();
    let mut numbers = HashSet::new();
    until("a number that comes round", || {
        let (qp, _cq) = lone(&device);
        assert!(!readable(device.async_fd(), AT_ONCE));
        let element = Element::Qp(qp.qp_num());
        device
            .as_soft()
            .unwrap()
            .raise(EventType::QpFatal, element)
            .unwrap();
        !numbers.insert(element)
    });
    no_event(&device, p.quiet);
}
