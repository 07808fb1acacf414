//! Faults to order.
use bellwire::event::{Element, EventType};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::*;
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::sync::atomic::Ordering;
use std::time::Duration;

in_both_modes! { every_status, drops_are_retried, acks_are_not_executed_again, gone_acks_give_up, qp_fatal, cq_overrun, device_fatal, link_flap, rest }

fn attr() -> ConnectAttr {
    ConnectAttr {
        timeout: 8,
        retry_cnt: 3,
        rnr_retry: 3,
        min_rnr_timer: 1,
        ..Default::default()
    }
}
fn two(mode: Mode) -> (Device, End, End) {
    let d = device(mode);
    d.set_async_nonblocking(true).unwrap();
    let (a, b) = pair_with(&d, mode, &attr());
    (d, a, b)
}
fn ev(d: &Device) -> Option<(EventType, Element)> {
    match d.get_async_event() {
        Ok(e) => Some((e.event_type(), e.element())),
        Err(Error::WouldBlock) => None,
        Err(e) => panic!("{e}"),
    }
}
fn evs(d: &Device) -> Vec<(EventType, Element)> {
    std::iter::from_fn(|| ev(d)).collect()
}

fn every_status(mode: Mode) {
    let (d, mut a, mut b) = two(mode);
    for &status in WcStatus::ALL {
        if status == WcStatus::Success {
            continue;
        }
        d.inject(&Script::default().with(Trigger::Entry(2), Fault::Status(status)))
            .unwrap();
        for i in 0..4 {
            a.post(i, Nop {}, NoPayload, SIGNALED).unwrap();
        }
        a.qp.sq().ring();
        assert_eq!(a.outcome(), (0, WcStatus::Success));
        assert_eq!(a.outcome(), (1, status));
        assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
        assert_eq!(a.outcome(), (3, WcStatus::WrFlushErr));
        a.nothing();
        a.reset();
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &attr());
    }
}
fn drops_are_retried(mode: Mode) {
    let (d, mut a, b) = two(mode);
    d.inject(
        &Script::default()
            .with(Trigger::Packet(1), Fault::DropRequest)
            .with(Trigger::Packet(2), Fault::DropAck)
            .with(Trigger::Packet(3), Fault::DropRequest)
            .with(Trigger::Entry(2), Fault::Delay(Duration::from_micros(50))),
    )
    .unwrap();
    let remote = b.region.remote(0);
    for i in 0..5 {
        a.go(i, AtomicFetchAndAdd { remote, add: 1 }, a.region.sge(64, 8));
    }
    for i in 0..5 {
        assert_eq!(a.outcome(), (i, WcStatus::Success));
    }
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 5);
}
fn acks_are_not_executed_again(mode: Mode) {
    let (d, mut a, mut b) = two(mode);
    d.inject(
        &Script::default()
            .with(Trigger::Packet(1), Fault::DropAck)
            .with(Trigger::Packet(2), Fault::DropAck),
    )
    .unwrap();
    for i in 0..3 {
        b.receive(i, &[]);
    }
    for i in 0..3 {
        a.go(i, Send {}, NoPayload);
    }
    for i in 0..3 {
        assert_eq!(a.outcome(), (i, WcStatus::Success));
        assert_eq!(b.outcome(), (i, WcStatus::Success));
    }
    b.nothing();
}
fn gone_acks_give_up(mode: Mode) {
    let (d, mut a, b) = two(mode);
    let mut s = Script::default();
    for p in 1..=4 {
        s = s.with(Trigger::Packet(p), Fault::DropAck);
    }
    d.inject(&s).unwrap();
    let remote = b.region.remote(0);
    a.go(1, AtomicFetchAndAdd { remote, add: 1 }, a.region.sge(64, 8));
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 1);
}
fn qp_fatal(mode: Mode) {
    let (d, mut a, b) = two(mode);
    evs(&d);
    d.inject(&Script::default().with(Trigger::Entry(2), Fault::QpFatal(a.qp.qp_num())))
        .unwrap();
    for i in 0..4 {
        a.post(i, Nop {}, NoPayload, SIGNALED).unwrap();
    }
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (0, WcStatus::Success));
    for i in 1..4 {
        assert_eq!(a.outcome(), (i, WcStatus::WrFlushErr));
    }
    assert_eq!(evs(&d), [(EventType::QpFatal, Element::Qp(a.qp.qp_num()))]);
    drop(b);
}
fn cq_overrun(mode: Mode) {
    let (d, mut a, b) = two(mode);
    a.go(7, Nop {}, NoPayload);
    until("done", || a.qp.query().qp_state == QpState::Rts);
    let mut e = vec![];
    assert_eq!(a.outcome(), (7, WcStatus::Success));
    d.inject(&Script::default().with(Trigger::Entry(1), Fault::CqOverrun(a.cq.cqn())))
        .unwrap();
    a.go(8, Nop {}, NoPayload);
    until("events", || {
        e.extend(evs(&d));
        e.len() >= 2
    });
    assert_eq!(
        e,
        [
            (EventType::CqErr, Element::Cq(a.cq.cqn())),
            (EventType::QpFatal, Element::Qp(a.qp.qp_num()))
        ]
    );
    assert_eq!(a.qp.state(), QpState::Err);
    a.nothing();
    drop(b);
}
fn device_fatal(mode: Mode) {
    let (d, mut a, mut b) = two(mode);
    b.receive(5, &[]);
    d.inject(&Script::default().with(Trigger::Entry(1), Fault::DeviceFatal))
        .unwrap();
    a.go(8, Nop {}, NoPayload);
    a.go(9, Nop {}, NoPayload);
    assert_eq!(a.outcome(), (8, WcStatus::FatalErr));
    assert_eq!(a.outcome(), (9, WcStatus::FatalErr));
    assert_eq!(b.outcome(), (5, WcStatus::FatalErr));
    assert!(evs(&d).contains(&(EventType::DeviceFatal, Element::Device)));
    let pd = d.alloc_pd();
    let mut cq = cq_for(&d, &init());
    assert!(matches!(
        pd.create_qp(&mut cq, &init()),
        Err(Error::DeviceFatal)
    ));
}
fn link_flap(mode: Mode) {
    let (d, mut a, mut b) = two(mode);
    evs(&d);
    d.set_port_up(false);
    a.go(
        1,
        RdmaWrite {
            remote: b.region.remote(0),
        },
        Inline(&[1]),
    );
    d.set_port_up(true);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(
        evs(&d),
        [
            (EventType::PortErr, Element::Port(1)),
            (EventType::PortActive, Element::Port(1))
        ]
    );
    d.set_port_up(false);
    a.go(
        1,
        RdmaWrite {
            remote: b.region.remote(0),
        },
        Inline(&[1]),
    );
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    d.set_port_up(true);
    a.reset();
    b.reset();
    connect_with(&mut a.qp, &mut b.qp, &attr());
    for i in 0..100 {
        a.go(
            i,
            RdmaWrite {
                remote: b.region.remote(0),
            },
            Inline(&[1]),
        );
        assert_eq!(a.outcome(), (i, WcStatus::Success));
    }
}
fn rest(mode: Mode) {
    let (d, mut a, mut b) = two(mode);
    d.inject(
        &Script::default()
            .with(Trigger::Entry(1), Fault::Rnr)
            .with(Trigger::Entry(2), Fault::RemoteAccess),
    )
    .unwrap();
    b.receive(5, &[]);
    a.go(1, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(b.outcome(), (5, WcStatus::Success));
    a.go(
        2,
        RdmaWrite {
            remote: b.region.remote(0),
        },
        Inline(&[1]),
    );
    assert_eq!(a.outcome(), (2, WcStatus::RemAccessErr));
    assert_eq!(b.qp.state(), QpState::Err);
    assert!(evs(&d).contains(&(EventType::QpAccessErr, Element::Qp(b.qp.qp_num()))));
    assert!(
        d.inject(&Script::default().with(Trigger::After(Duration::ZERO), Fault::Rnr))
            .is_err()
    );
}
