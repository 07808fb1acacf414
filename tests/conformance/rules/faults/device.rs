//! Faults of the device and of what is on it: each kind, at an entry, at a packet, and at a time.

use super::scripts::refused;
use super::{SOURCE, World, connect};
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{completes, event, no_event};
use bellwire::event::{Element, EventType};
use bellwire::soft::{Fault, Trigger};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{Error, PortState, SrqInit};
use bellwire_tests::fixture::*;
use std::time::Duration;

/// Strikes where and when the rule is put: at the first of what it counts, or at once.
type When = fn() -> Trigger;
type Check = fn(&mut World, &mut Striker);

const PORT: Element = Element::Port(1);

const KINDS: [(&str, &str, &[Feature], Check); 7] = [
    (
        "cq_overrun",
        "The completion queue loses an entry: it and its queue pairs say so and are dead.",
        &[],
        cq_overrun,
    ),
    (
        "qp_fatal",
        "The queue pair raises QP_FATAL and goes to ERR; its peer is as it was.",
        &[],
        qp_fatal,
    ),
    (
        "srq_err",
        "The shared receive queue breaks, and what receives from it goes to ERR.",
        &[Feature::Srq],
        srq_err,
    ),
    (
        "device_fatal",
        "Everything on the device is in ERR, and the device creates nothing any more.",
        &[],
        device_fatal,
    ),
    (
        "port_down",
        "The link is down: a request that is posted then is not executed.",
        &[],
        port_down,
    ),
    (
        "port_up",
        "The link comes up: requests are executed again.",
        &[],
        port_up,
    ),
    (
        "raise",
        "The event comes, and nothing else happens.",
        &[],
        raise,
    ),
];

pub fn group() -> Group {
    let whens: [(&str, When); 3] = [
        ("entry", || Trigger::Entry(1)),
        ("packet", || Trigger::Packet(1)),
        ("time", || Trigger::After(Duration::from_millis(1))),
    ];
    let mut rules = Vec::new();
    for (name, says, needs, check) in KINDS {
        for (at, when) in whens {
            let check = move |p: &Provider| {
                let mut w = World::new(p);
                let mut striker = Striker::new(p, &w, when);
                check(&mut w, &mut striker);
            };
            rules.push(Rule::new(
                "faults::device",
                &format!("{name}::at_{at}"),
                SOURCE,
                says,
                &[
                    &[Feature::Rc, Feature::AsyncEvents, Feature::FaultInjection],
                    needs,
                ]
                .concat(),
                check,
            ));
        }
    }
    rules.push(Rule::new(
        "faults::device",
        "port_flaps_lose_nothing",
        SOURCE,
        "While the link goes down and up under traffic nothing is lost, nothing comes twice or out \
         of order.",
        &[Feature::Rc, Feature::FaultInjection],
        port_flaps_lose_nothing,
    ));
    rules.push(Rule::new(
        "faults::device",
        "what_is_gone_is_not_hit",
        SOURCE,
        "A fault of what does not exist any more strikes nothing.",
        &[Feature::Rc, Feature::AsyncEvents, Feature::FaultInjection],
        what_is_gone_is_not_hit,
    ));
    rules.push(Rule::new(
        "faults::device",
        "what_is_not_there_is_refused",
        SOURCE,
        "A fault that names what does not exist is refused, and nothing of its script is taken.",
        &[Feature::Rc, Feature::FaultInjection],
        what_is_not_there_is_refused,
    ));
    Group {
        name: "faults::device",
        about: "Faults of queues, ports and the device: every kind, by the number of an entry, of a \
                packet, and by time.",
        rules,
    }
}

/// Two ends that have nothing to do with what is hit, and make entries and packets.
struct Striker {
    a: End,
    _b: End,
    trigger: Trigger,
    quiet: Quiet,
}

impl Striker {
    fn new(p: &Provider, w: &World, when: When) -> Self {
        let (a, b) = pair_with(&w.device, p.quiet, &connect());
        Self {
            a,
            _b: b,
            trigger: when(),
            quiet: p.quiet,
        }
    }

    /// Lets the fault strike. A time comes by itself.
    fn strike(&mut self, w: &World, fault: Fault) {
        w.inject(&[(self.trigger, fault)]);
        if !matches!(self.trigger, Trigger::After(_)) {
            self.a.go(1, Send {}, NoPayload);
        }
    }
}

fn of(end: &End) -> Element {
    Element::Qp(end.qp.qp_num())
}

fn cq_overrun(w: &mut World, striker: &mut Striker) {
    let cq = Element::Cq(w.b.cq.cqn());
    w.b.receive(70, &[]);
    striker.strike(w, Fault::CqOverrun(w.b.cq.cqn()));
    assert_eq!(event(&w.device), (EventType::CqErr, cq));
    assert_eq!(event(&w.device), (EventType::QpFatal, of(&w.b)));
    until("ERR", || w.b.qp.state() == QpState::Err);
    assert!(w.b.cq.overrun());
    // A queue that is dead takes nothing.
    w.b.nothing();
    no_event(&w.device, striker.quiet);
    assert_eq!(w.a.qp.state(), QpState::Rts);
}

fn qp_fatal(w: &mut World, striker: &mut Striker) {
    w.a.receive(70, &[]);
    striker.strike(w, Fault::QpFatal(w.a.qp.qp_num()));
    assert_eq!(event(&w.device), (EventType::QpFatal, of(&w.a)));
    completes(&mut w.a, 70, WcStatus::WrFlushErr);
    assert_eq!(w.a.qp.state(), QpState::Err);
    no_event(&w.device, striker.quiet);
    assert_eq!(w.b.qp.state(), QpState::Rts);
}

fn srq_err(w: &mut World, striker: &mut Striker) {
    let pd = w.device.alloc_pd();
    let srq = pd.create_srq(&SrqInit::default()).unwrap();
    let mut cq = w.device.create_cq(1024).unwrap();
    let mut qp = pd.create_qp_on_srq::<Rc>(&mut cq, &srq, &init()).unwrap();
    connect_with(
        &mut qp,
        &mut End::new(&pd, striker.quiet, &init()).qp,
        &connect(),
    );
    striker.strike(w, Fault::SrqErr(srq.srq_num()));
    let broken = (EventType::SrqErr, Element::Srq(srq.srq_num()));
    let last = (EventType::QpLastWqeReached, Element::Qp(qp.qp_num()));
    assert_eq!([event(&w.device), event(&w.device)], [broken, last]);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(w.a.qp.state(), QpState::Rts);
}

fn device_fatal(w: &mut World, striker: &mut Striker) {
    w.a.receive(70, &[]);
    striker.strike(w, Fault::DeviceFatal);
    assert_eq!(event(&w.device), (EventType::DeviceFatal, Element::Device));
    completes(&mut w.a, 70, WcStatus::FatalErr);
    until("ERR", || {
        [&w.a, &w.b]
            .iter()
            .all(|end| end.qp.state() == QpState::Err)
    });
    let error = w.device.create_cq(16).expect_err("it is broken");
    assert!(matches!(error, Error::DeviceFatal), "{error}");
}

fn port_down(w: &mut World, striker: &mut Striker) {
    striker.strike(w, Fault::PortDown);
    assert_eq!(event(&w.device), (EventType::PortErr, PORT));
    assert_eq!(w.device.query_port(1).unwrap().state, PortState::Down);
    w.add(1);
    completes(&mut w.a, 1, WcStatus::RetryExcErr);
    assert_eq!(w.added(), 0);
    no_event(&w.device, striker.quiet);
}

fn port_up(w: &mut World, striker: &mut Striker) {
    w.device.as_soft().unwrap().set_port_up(false);
    assert_eq!(event(&w.device), (EventType::PortErr, PORT));
    striker.strike(w, Fault::PortUp);
    assert_eq!(event(&w.device), (EventType::PortActive, PORT));
    assert_eq!(w.device.query_port(1).unwrap().state, PortState::Active);
    w.works();
    no_event(&w.device, striker.quiet);
}

fn raise(w: &mut World, striker: &mut Striker) {
    let event_of_its = (EventType::PathMig, of(&w.a));
    striker.strike(w, Fault::Raise(EventType::PathMig, of(&w.a)));
    assert_eq!(event(&w.device), event_of_its);
    no_event(&w.device, striker.quiet);
    w.works();
}

/// Each flap is shorter than the retries last.
fn port_flaps_lose_nothing(p: &Provider) {
    const FLAPS: u64 = 8;
    const MESSAGES: u64 = 200;
    let mut w = World::new(p);
    let mut steps = Vec::new();
    for flap in 0..FLAPS {
        let down = flap * 20 + 3;
        steps.push((Trigger::Packet(down), Fault::PortDown));
        // As many attempts fail, each request's first among them.
        steps.push((Trigger::Packet(down + 1 + flap % 3), Fault::PortUp));
    }
    w.inject(&steps);
    let mut adds = 0;
    for at in 0..MESSAGES {
        let bytes = at.to_ne_bytes();
        w.b.receive(at, &[w.b.region.sge(8, 8)]);
        w.a.go(at, Send {}, Inline(&bytes));
        if at % 3 == 0 {
            w.add(at);
            adds += 1;
        }
        completes(&mut w.a, at, WcStatus::Success);
        completes(&mut w.b, at, WcStatus::Success);
        let arrived = w.b.region.word(8);
        assert_eq!(arrived.load(std::sync::atomic::Ordering::Acquire), at);
        if at % 3 == 0 {
            completes(&mut w.a, at, WcStatus::Success);
        }
    }
    w.a.nothing();
    w.b.nothing();
    assert_eq!(w.added(), adds);
    for _ in 0..FLAPS {
        assert_eq!(event(&w.device), (EventType::PortErr, PORT));
        assert_eq!(event(&w.device), (EventType::PortActive, PORT));
    }
    no_event(&w.device, p.quiet);
}

fn what_is_gone_is_not_hit(p: &Provider) {
    let mut w = World::new(p);
    let (gone, peer) = ends(&w.device, p.quiet);
    let srq = gone.qp.pd().create_srq(&SrqInit::default()).unwrap();
    for fault in named(gone.qp.qp_num(), gone.cq.cqn(), srq.srq_num()) {
        w.inject(&[(Trigger::Packet(1), fault)]);
    }
    drop((gone, peer, srq));
    w.works();
    no_event(&w.device, p.quiet);
}

fn what_is_not_there_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let (qpn, cqn, srqn) = {
        let (gone, _peer) = ends(&w.device, p.quiet);
        let srq = gone.qp.pd().create_srq(&SrqInit::default()).unwrap();
        (gone.qp.qp_num(), gone.cq.cqn(), srq.srq_num())
    };
    let mut steps: Vec<_> = named(qpn, cqn, srqn)
        .into_iter()
        .chain(named(u32::MAX, u32::MAX, u32::MAX))
        .map(|fault| (Trigger::Packet(1), fault))
        .collect();
    let of_it = Trigger::EntryOf {
        qp_num: qpn,
        nth: 1,
    };
    steps.push((of_it, Fault::DropRequest));
    let of_it = Trigger::PacketOf {
        qp_num: qpn,
        nth: 1,
    };
    steps.push((of_it, Fault::DropRequest));
    let port = Element::Port(0);
    steps.push((Trigger::Packet(1), Fault::Raise(EventType::PortErr, port)));
    for (trigger, fault) in steps {
        let error = refused(&mut w, trigger, fault);
        assert!(matches!(error, Error::UnknownElement { .. }), "{error}");
    }
    w.works();
    no_event(&w.device, p.quiet);
}

/// A fault of each thing that is named by its number.
fn named(qpn: u32, cqn: u32, srqn: u32) -> [Fault; 4] {
    [
        Fault::QpFatal(qpn),
        Fault::CqOverrun(cqn),
        Fault::SrqErr(srqn),
        Fault::Raise(EventType::CqErr, Element::Cq(cqn)),
    ]
}
