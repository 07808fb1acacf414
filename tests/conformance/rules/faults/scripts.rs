//! Scripts: when their steps strike, how they add up, and which are refused.

use super::{World, connect, timeout};
use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{completes, event, no_event};
use bellwire::event::{Element, ElementKind, EventType};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::{ConnectAttr, Error, SrqInit};
use bellwire_tests::fixture::*;
use std::time::Duration;

rules! {
    "faults::scripts", "Scripts of faults: when they strike, how they add up, what is refused.",
    needs [Rc, FaultInjection];
    a_retry_is_a_packet_and_no_entry: "SoftDevice::inject",
        "An entry counts once, each attempt to send it is a packet.";
    unexecuted_entries_do_not_count: "SoftDevice::inject",
        "What is flushed is neither an entry nor a packet.";
    entries_count_over_the_whole_device: "SoftDevice::inject",
        "Entries of all queue pairs count together, from the script's arrival on.";
    scripts_add_up: "SoftDevice::inject",
        "A second script counts from its own arrival, and the first goes on.";
    the_first_of_one_trigger_strikes: "Script::with",
        "Of several faults of one request the first that was given strikes, and only that.";
    faults_of_the_device_strike_beside_those_of_a_request: "Script::with",
        "What befalls the device strikes in the order given, whatever befalls the request.";
    a_time_is_exact [VirtualClock]: "SoftDevice::inject",
        "A fault of a time strikes when it has come, and not a nanosecond earlier.";
    times_strike_in_their_order [VirtualClock]: "SoftDevice::inject",
        "Faults of several times strike in the order of the times, whatever that of the script.";
    one_seed_is_one_script: "Script::seeded",
        "One seed gives the same steps again, another one others.";
    a_seeded_script_keeps_to_its_bounds: "Script::seeded",
        "As many faults as asked for, of those kinds, at those packets.";
    one_script_is_one_outcome [VirtualClock]: "SoftDevice::inject",
        "On a virtual clock the same script leads to the same completions at the same times.";
    whatever_the_script_every_request_has_one_outcome: "Script::seeded",
        "Under random drops, delays and refusals everything is executed once and reported once.";
    forgotten_faults_do_not_strike: "SoftDevice::clear_faults",
        "After clear_faults nothing that was still to come strikes.";
    forgetting_keeps_what_struck: "SoftDevice::clear_faults",
        "A request that waits because of a fault goes on as it would have.";
    forgetting_leaves_the_port: "SoftDevice::clear_faults",
        "A link that a script took down stays down until it is taken up.";
    a_request_fault_at_a_time_is_refused: "SoftDevice::inject",
        "A time names no request: every fault of a request is refused there, and nothing is taken.";
    success_is_refused: "SoftDevice::inject",
        "A request cannot be made to fail with SUCCESS; nothing of the script is taken.";
    an_event_of_another_kind_is_refused: "SoftDevice::inject",
        "An event about something of another kind is refused, and nothing of the script is taken.";
    every_event_can_be_raised [AsyncEvents, Srq]: "SoftDevice::raise",
        "Every event can be raised by itself, and changes nothing of what it is about.";
}

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

fn a_retry_is_a_packet_and_no_entry(p: &Provider) {
    // The retry of the first request is the second packet, and the second request the third.
    let mut w = World::new(p);
    w.inject(&[
        (Trigger::Packet(1), Fault::DropRequest),
        (Trigger::Entry(2), Fault::Status(GeneralErr)),
    ]);
    w.add(1);
    w.add(2);
    completes(&mut w.a, 1, Success);
    completes(&mut w.a, 2, GeneralErr);
    let mut w = World::new(p);
    w.inject(&[
        (Trigger::Packet(1), Fault::DropRequest),
        (Trigger::Packet(2), Fault::Status(GeneralErr)),
    ]);
    w.add(1);
    completes(&mut w.a, 1, GeneralErr);
    assert_eq!(w.added(), 0);
}

fn unexecuted_entries_do_not_count(p: &Provider) {
    let mut w = World::new(p);
    let (mut a, mut b) = pair_with(&w.device, p.quiet, &connect());
    w.inject(&[
        (Trigger::Entry(3), Fault::Status(GeneralErr)),
        (Trigger::Packet(4), Fault::Status(BadRespErr)),
    ]);
    a.qp.to_error().unwrap();
    for wr_id in 0..5 {
        a.go(wr_id, Send {}, NoPayload);
        completes(&mut a, wr_id, WrFlushErr);
    }
    w.add(1);
    w.add(2);
    completes(&mut w.a, 1, Success);
    completes(&mut w.a, 2, Success);
    w.add(3);
    completes(&mut w.a, 3, GeneralErr);
    b.nothing();
}

fn entries_count_over_the_whole_device(p: &Provider) {
    let mut w = World::new(p);
    let (mut a, mut b) = pair_with(&w.device, p.quiet, &connect());
    // Before it came: not counted.
    w.works();
    w.inject(&[(Trigger::Entry(3), Fault::Status(GeneralErr))]);
    w.add(1);
    completes(&mut w.a, 1, Success);
    b.receive(70, &[]);
    a.go(2, Send {}, NoPayload);
    completes(&mut a, 2, Success);
    a.go(3, Send {}, NoPayload);
    completes(&mut a, 3, GeneralErr);
    w.works();
}

fn scripts_add_up(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&[(Trigger::Entry(3), Fault::Delay(MS))]);
    w.inject(&[(Trigger::Entry(1), Fault::DropAck)]);
    w.add(1);
    completes(&mut w.a, 1, Success);
    // The fourth and the third of all.
    w.inject(&[(Trigger::Entry(3), Fault::Status(GeneralErr))]);
    let start = std::time::Instant::now();
    w.add(2);
    w.add(3);
    completes(&mut w.a, 2, Success);
    completes(&mut w.a, 3, Success);
    assert!(start.elapsed() >= MS);
    w.add(4);
    completes(&mut w.a, 4, GeneralErr);
}

fn the_first_of_one_trigger_strikes(p: &Provider) {
    for (first, second) in [(GeneralErr, BadRespErr), (BadRespErr, GeneralErr)] {
        let mut w = World::new(p);
        w.inject(&[
            (Trigger::Entry(1), Fault::Status(first)),
            (Trigger::Entry(1), Fault::Status(second)),
            (Trigger::Packet(1), Fault::DropRequest),
        ]);
        w.add(1);
        completes(&mut w.a, 1, first);
        w.a.reset();
        w.b.reset();
        connect_with(&mut w.a.qp, &mut w.b.qp, &connect());
        // The others are spent.
        w.works();
    }
}

fn faults_of_the_device_strike_beside_those_of_a_request(p: &Provider) {
    let mut w = World::new(p);
    let port = Element::Port(1);
    w.inject(&[
        (Trigger::Entry(1), Fault::Raise(EventType::LidChange, port)),
        (Trigger::Entry(1), Fault::DropAck),
        (Trigger::Packet(1), Fault::Raise(EventType::SmChange, port)),
        (Trigger::Entry(1), Fault::PortDown),
        (Trigger::Packet(2), Fault::PortUp),
    ]);
    w.add(1);
    completes(&mut w.a, 1, Success);
    for expected in [
        EventType::LidChange,
        EventType::SmChange,
        EventType::PortErr,
        EventType::PortActive,
    ] {
        assert_eq!(event(&w.device), (expected, port));
    }
    assert_eq!(w.added(), 1);
}

fn a_time_is_exact(p: &Provider) {
    let mut w = World::on(p, p.virtual_device());
    let qpn = w.a.qp.qp_num();
    w.device.as_soft().unwrap().advance(MS / 2);
    w.inject(&[(Trigger::After(MS), Fault::QpFatal(qpn))]);
    w.device.as_soft().unwrap().advance(MS - NS);
    w.works();
    assert_eq!(w.a.qp.state(), QpState::Rts);
    w.device.as_soft().unwrap().advance(NS);
    assert_eq!(w.a.qp.state(), QpState::Err);
    assert_eq!(event(&w.device), (EventType::QpFatal, Element::Qp(qpn)));
}

fn times_strike_in_their_order(p: &Provider) {
    let w = World::on(p, p.virtual_device());
    let port = Element::Port(1);
    let raise = |time, event| (Trigger::After(time), Fault::Raise(event, port));
    w.inject(&[
        raise(MS * 3, EventType::SmChange),
        raise(MS, EventType::LidChange),
        raise(MS * 2, EventType::PkeyChange),
        raise(MS, EventType::GidChange),
        raise(Duration::ZERO, EventType::PortActive),
    ]);
    w.device.as_soft().unwrap().advance(MS * 3);
    for expected in [
        EventType::PortActive,
        EventType::LidChange,
        EventType::GidChange,
        EventType::PkeyChange,
        EventType::SmChange,
    ] {
        assert_eq!(event(&w.device), (expected, port));
    }
    no_event(&w.device, p.quiet);
}

const KINDS: [Fault; 4] = [
    Fault::DropRequest,
    Fault::DropAck,
    Fault::Rnr,
    Fault::Delay(Duration::from_micros(100)),
];

fn one_seed_is_one_script(_: &Provider) {
    let script = |seed| Script::seeded(seed, 1000, 50, &KINDS);
    for seed in 0..20 {
        assert_eq!(script(seed), script(seed));
        assert_ne!(script(seed), script(seed + 1));
    }
}

fn a_seeded_script_keeps_to_its_bounds(_: &Provider) {
    let script = Script::seeded(7, 30, 500, &KINDS);
    assert_eq!(script.steps().len(), 500);
    for packet in 1..=30 {
        let hit = |&(trigger, _): &(Trigger, Fault)| trigger == Trigger::Packet(packet);
        assert!(script.steps().iter().any(hit), "never packet {packet}");
    }
    for &(trigger, fault) in script.steps() {
        let within = matches!(trigger, Trigger::Packet(1..=30));
        assert!(within && KINDS.contains(&fault), "{trigger:?} {fault:?}");
    }
    for kind in KINDS {
        let of = |step: &&(Trigger, Fault)| step.1 == kind;
        assert!(script.steps().iter().filter(of).count() > 50, "{kind:?}");
    }
    assert!(Script::seeded(7, 30, 500, &[]).steps().is_empty());
}

/// What completes under a script, and when, in microseconds.
fn outcome_of(p: &Provider, seed: u64) -> Vec<(u64, WcStatus, u32)> {
    let mut w = World::on(p, p.virtual_device());
    w.device
        .as_soft()
        .unwrap()
        .inject(&Script::seeded(seed, 60, 25, &KINDS))
        .unwrap();
    for wr_id in 0..30 {
        w.b.receive(100 + wr_id, &[]);
        w.a.go(wr_id, Send {}, NoPayload);
    }
    let mut completed = Vec::new();
    for time in 0..20_000 {
        for end in [&mut w.a, &mut w.b] {
            end.cq.poll(64, |done| {
                completed.push((done.wr_id, done.status(), time));
            });
        }
        w.device
            .as_soft()
            .unwrap()
            .advance(Duration::from_micros(10));
    }
    completed
}

fn one_script_is_one_outcome(p: &Provider) {
    let all: Vec<_> = (0..5).map(|seed| outcome_of(p, seed)).collect();
    for (seed, outcome) in (0..).zip(&all) {
        assert_eq!(&outcome_of(p, seed), outcome, "seed {seed}");
    }
    assert!(
        all.windows(2).all(|two| two[0] != two[1]),
        "whatever the seed"
    );
}

fn whatever_the_script_every_request_has_one_outcome(p: &Provider) {
    const REQUESTS: u64 = 40;
    for seed in 0..8 {
        let device = p.device();
        // More retries than these scripts have faults in a row.
        let patient = ConnectAttr {
            retry_cnt: 7,
            rnr_retry: 7,
            ..connect()
        };
        let (a, b) = pair_with(&device, p.quiet, &patient);
        let mut w = World { device, a, b };
        let script = Script::seeded(seed, 100, 30, &KINDS);
        w.device.as_soft().unwrap().inject(&script).unwrap();
        for at in 0..REQUESTS {
            if at % 2 == 0 {
                w.add(at);
            } else {
                w.b.receive(at, &[]);
                w.a.go(at, Send {}, NoPayload);
            }
        }
        for at in 0..REQUESTS {
            completes(&mut w.a, at, Success);
            if at % 2 == 1 {
                completes(&mut w.b, at, Success);
            }
        }
        w.a.nothing();
        w.b.nothing();
        assert_eq!(w.added(), REQUESTS / 2, "seed {seed}");
    }
}

fn forgotten_faults_do_not_strike(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&[
        (Trigger::Entry(1), Fault::Status(GeneralErr)),
        (Trigger::Packet(2), Fault::Status(GeneralErr)),
        // Late enough to be forgotten in time on a busy machine, too.
        (Trigger::After(MS * 400), Fault::DeviceFatal),
    ]);
    w.device.as_soft().unwrap().clear_faults();
    std::thread::sleep(MS * 500);
    w.works();
    no_event(&w.device, p.quiet);
}

fn forgetting_keeps_what_struck(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&[
        (Trigger::Entry(1), Fault::DropAck),
        (Trigger::Packet(2), Fault::DropAck),
        (Trigger::Entry(2), Fault::Status(GeneralErr)),
    ]);
    let start = std::time::Instant::now();
    w.add(1);
    until("its execution", || w.added() == 1);
    w.device.as_soft().unwrap().clear_faults();
    w.add(2);
    completes(&mut w.a, 1, Success);
    completes(&mut w.a, 2, Success);
    assert!(start.elapsed() >= timeout());
    assert_eq!(w.added(), 2);
}

fn forgetting_leaves_the_port(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&[(Trigger::Packet(1), Fault::PortDown)]);
    w.add(1);
    completes(&mut w.a, 1, RetryExcErr);
    w.device.as_soft().unwrap().clear_faults();
    w.a.reset();
    w.b.reset();
    connect_with(&mut w.a.qp, &mut w.b.qp, &connect());
    w.add(2);
    completes(&mut w.a, 2, RetryExcErr);
    w.device.as_soft().unwrap().set_port_up(true);
    w.a.reset();
    w.b.reset();
    connect_with(&mut w.a.qp, &mut w.b.qp, &connect());
    w.works();
}

/// Asserts that the script is refused, and that not even its good first step was taken.
pub(super) fn refused(w: &mut World, trigger: Trigger, fault: Fault) -> Error {
    let script = Script::default()
        .with(Trigger::Entry(1), Fault::Status(GeneralErr))
        .with(trigger, fault);
    let error = w
        .device
        .as_soft()
        .unwrap()
        .inject(&script)
        .expect_err("a bad step");
    w.works();
    error
}

fn a_request_fault_at_a_time_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let more = [
        Fault::RemoteAccess,
        Fault::Status(GeneralErr),
        Fault::StatusAfter(GeneralErr),
        Fault::SendCqOverrun,
        Fault::RecvCqOverrun,
    ];
    for bad in KINDS.into_iter().chain(more) {
        refused(&mut w, Trigger::Modify(1), bad);
        let error = refused(&mut w, Trigger::After(MS), bad);
        let expected =
            matches!(&error, Error::FaultWithoutRequest { fault } if *fault == bad.to_string());
        assert!(expected, "{error}");
        let text = error.to_string();
        assert!(text.contains("requests or packets"), "{text}");
    }
}

fn success_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let error = refused(&mut w, Trigger::Entry(1), Fault::Status(Success));
    assert!(matches!(error, Error::SuccessAsFault), "{error}");
}

fn an_event_of_another_kind_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let qp = Element::Qp(w.a.qp.qp_num());
    for &event in EventType::ALL {
        if event.element_kind() == ElementKind::Qp {
            continue;
        }
        let error = refused(&mut w, Trigger::Entry(1), Fault::Raise(event, qp));
        assert!(matches!(error, Error::WrongElement { .. }), "{error}");
        assert!(error.to_string().contains(event.name()), "{error}");
    }
}

fn every_event_can_be_raised(p: &Provider) {
    let mut w = World::new(p);
    let srq = w.a.qp.pd().create_srq(&SrqInit::default()).unwrap();
    for &kind in EventType::ALL {
        let element = match kind.element_kind() {
            ElementKind::Cq => Element::Cq(w.a.cq.cqn()),
            ElementKind::Qp => Element::Qp(w.a.qp.qp_num()),
            ElementKind::Srq => Element::Srq(srq.srq_num()),
            ElementKind::Wq => Element::Wq(77),
            ElementKind::Port => Element::Port(1),
            ElementKind::Device => Element::Device,
        };
        w.device.as_soft().unwrap().raise(kind, element).unwrap();
        assert_eq!(event(&w.device), (kind, element));
        w.works();
    }
    no_event(&w.device, p.quiet);
}
