//! Faults of one request: each kind, at an entry and at a packet.

use super::{SOURCE, World, connect, timeout};
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{completes, event};
use bellwire::be::Be32;
use bellwire::event::{Element, EventType};
use bellwire::soft::{Fault, Trigger};
use bellwire::state::{QpState, rnr_timer};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device, Qp};
use bellwire_tests::fixture::*;
use std::time::{Duration, Instant};

const NS: Duration = Duration::from_nanos(1);

/// The n-th of what a trigger counts.
type Nth = fn(u64) -> Trigger;
type Check = fn(&Provider, Nth);

struct Kind {
    name: &'static str,
    says: &'static str,
    check: Check,
    needs: &'static [Feature],
}

const fn kind(name: &'static str, says: &'static str, check: Check) -> Kind {
    Kind {
        name,
        says,
        check,
        needs: &[],
    }
}

/// Put at an entry and at a packet.
const KINDS: [Kind; 12] = [
    kind(
        "drop_request",
        "is lost, sent again after the timeout, and executed once",
        drop_request,
    ),
    Kind {
        needs: &[Feature::VirtualClock],
        ..kind(
            "drop_request_takes_a_timeout",
            "is lost, and executed exactly a timeout later",
            drop_request_takes_a_timeout,
        )
    },
    kind(
        "drop_ack",
        "is executed at once and acknowledged a timeout later, not executed again",
        drop_ack,
    ),
    kind(
        "drop_ack_of_a_message",
        "comes into one receive only, though its acknowledgement is lost",
        drop_ack_of_a_message,
    ),
    kind(
        "delay",
        "takes as much longer as said, and is executed once",
        delay,
    ),
    Kind {
        needs: &[Feature::VirtualClock],
        ..kind(
            "delay_is_exact",
            "takes exactly as much longer as said",
            delay_is_exact,
        )
    },
    kind(
        "remote_access",
        "fails with REM_ACCESS_ERR, unexecuted, and the responder raises QP_ACCESS_ERR",
        remote_access,
    ),
    kind(
        "remote_access_without_a_key",
        "that names no key is not touched by it",
        remote_access_without_a_key,
    ),
    kind(
        "rnr",
        "finds no receive though there is one, and the next time does",
        rnr,
    ),
    Kind {
        needs: &[Feature::VirtualClock],
        ..kind(
            "rnr_takes_the_timer",
            "waits exactly for the peer's RNR timer",
            rnr_takes_the_timer,
        )
    },
    kind(
        "rnr_is_counted",
        "gives up when `rnr_retry` allows no other attempt",
        rnr_is_counted,
    ),
    kind(
        "status",
        "completes with the status, unexecuted; what is behind it is flushed",
        status,
    ),
];

pub fn group() -> Group {
    let mut rules = Vec::new();
    for kind in &KINDS {
        for (at, nth) in [
            ("entry", Trigger::Entry as Nth),
            ("packet", Trigger::Packet),
        ] {
            let check = kind.check;
            rules.push(Rule::new(
                "faults::request",
                &format!("{}::at_{at}", kind.name),
                SOURCE,
                format!("The request that a fault hits at its {at} {}.", kind.says),
                &[&[Feature::Rc, Feature::FaultInjection], kind.needs].concat(),
                move |p| check(p, nth),
            ));
        }
    }
    rules.extend(more());
    Group {
        name: "faults::request",
        about: "Faults of one request: every kind, by the number of its entry and of its packet.",
        rules,
    }
}

fn more() -> [Rule; 5] {
    let rule = |name: &str, says: &str, more: &[Feature], check: fn(&Provider)| {
        let needs = [&[Feature::Rc, Feature::FaultInjection], more].concat();
        Rule::new("faults::request", name, SOURCE, says, &needs, check)
    };
    [
        rule(
            "all_acks_lost",
            "When every acknowledgement is lost the request fails with RETRY_EXC_ERR, though it was \
             executed, once.",
            &[],
            all_acks_lost,
        ),
        rule(
            "all_requests_lost",
            "When every attempt is lost the request fails with RETRY_EXC_ERR, unexecuted.",
            &[],
            all_requests_lost,
        ),
        rule(
            "all_attempts_refused",
            "When every attempt finds no receive the request fails with RNR_RETRY_EXC_ERR after \
             `rnr_retry` retries; one fewer, and it is executed.",
            &[],
            all_attempts_refused,
        ),
        rule(
            "a_lost_datagram_is_lost",
            "An unreliable request that is dropped completes with success, and nothing arrives.",
            &[Feature::Uc],
            a_lost_datagram_is_lost,
        ),
        rule(
            "the_unreliable_wait_for_no_ack",
            "An unreliable request misses no acknowledgement, and is not refused for want of a receive.",
            &[Feature::Uc],
            the_unreliable_wait_for_no_ack,
        ),
    ]
}

fn drop_request(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(2), Fault::DropRequest)]);
    w.add(1);
    completes(&mut w.a, 1, WcStatus::Success);
    let start = Instant::now();
    w.add(2);
    completes(&mut w.a, 2, WcStatus::Success);
    assert!(start.elapsed() >= timeout(), "it was not lost");
    assert_eq!(w.added(), 2);
    w.works();
}

/// On a clock that stands still.
fn still(p: &Provider) -> World {
    World::on(p, p.virtual_device())
}

/// The end's next outcome comes `time` from now, and not a nanosecond earlier.
fn after(device: &Device, end: &mut End, time: Duration, outcome: (u64, WcStatus)) {
    end.nothing();
    device.as_soft().unwrap().advance(time - NS);
    end.nothing();
    device.as_soft().unwrap().advance(NS);
    assert_eq!(end.outcome(), outcome);
}

fn drop_request_takes_a_timeout(p: &Provider, nth: Nth) {
    let mut w = still(p);
    w.inject(&[(nth(1), Fault::DropRequest)]);
    w.add(1);
    w.device.as_soft().unwrap().advance(timeout() - NS);
    assert_eq!(w.added(), 0);
    after(&w.device, &mut w.a, NS, (1, WcStatus::Success));
    assert_eq!(w.added(), 1);
    w.works();
}

fn drop_ack(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(1), Fault::DropAck)]);
    let start = Instant::now();
    w.add(1);
    until("its execution", || w.added() == 1);
    completes(&mut w.a, 1, WcStatus::Success);
    assert!(start.elapsed() >= timeout(), "nothing was lost");
    assert_eq!(w.added(), 1);
    w.works();
}

fn drop_ack_of_a_message(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(1), Fault::DropAck)]);
    (70..73).for_each(|wr_id| w.b.receive(wr_id, &[]));
    w.a.go(1, Send {}, NoPayload);
    completes(&mut w.b, 70, WcStatus::Success);
    w.b.nothing();
    completes(&mut w.a, 1, WcStatus::Success);
    w.b.nothing();
    w.a.go(2, Send {}, NoPayload);
    completes(&mut w.a, 2, WcStatus::Success);
    completes(&mut w.b, 71, WcStatus::Success);
}

fn delay(p: &Provider, nth: Nth) {
    const TIME: Duration = Duration::from_millis(3);
    let mut w = World::new(p);
    w.inject(&[(nth(1), Fault::Delay(TIME))]);
    let start = Instant::now();
    w.add(1);
    w.add(2);
    completes(&mut w.a, 1, WcStatus::Success);
    assert!(start.elapsed() >= TIME);
    completes(&mut w.a, 2, WcStatus::Success);
    assert_eq!(w.added(), 2);
    w.works();
}

fn delay_is_exact(p: &Provider, nth: Nth) {
    // Longer than all the timeouts together: a late packet is not a lost one.
    for time in [Duration::from_micros(7), timeout() * 20] {
        let mut w = still(p);
        w.inject(&[(nth(2), Fault::Delay(time))]);
        (1..4).for_each(|wr_id| w.add(wr_id));
        completes(&mut w.a, 1, WcStatus::Success);
        after(&w.device, &mut w.a, time, (2, WcStatus::Success));
        completes(&mut w.a, 3, WcStatus::Success);
        assert_eq!(w.added(), 3);
        w.works();
    }
}

fn remote_access(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(1), Fault::RemoteAccess)]);
    w.add(1);
    completes(&mut w.a, 1, WcStatus::RemAccessErr);
    let responder = Element::Qp(w.b.qp.qp_num());
    assert_eq!(event(&w.device), (EventType::QpAccessErr, responder));
    assert_eq!(
        (w.a.qp.state(), w.b.qp.state()),
        (QpState::Err, QpState::Err)
    );
    assert_eq!(w.added(), 0);
}

fn remote_access_without_a_key(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(1), Fault::RemoteAccess)]);
    w.b.receive(70, &[]);
    w.a.go(1, Send {}, NoPayload);
    completes(&mut w.a, 1, WcStatus::Success);
    completes(&mut w.b, 70, WcStatus::Success);
    w.works();
}

fn rnr(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(2), Fault::Rnr)]);
    for (wr_id, write) in [(1, false), (2, true), (3, false)] {
        w.b.receive(70, &[]);
        if write {
            let (remote, imm) = (w.b.region.remote(0), Be32::new(1));
            w.a.go(wr_id, RdmaWriteWithImm { remote, imm }, NoPayload);
        } else {
            w.a.go(wr_id, Send {}, NoPayload);
        }
        completes(&mut w.a, wr_id, WcStatus::Success);
        completes(&mut w.b, 70, WcStatus::Success);
    }
}

fn rnr_takes_the_timer(p: &Provider, nth: Nth) {
    let mut w = still(p);
    w.inject(&[(nth(1), Fault::Rnr)]);
    w.b.receive(70, &[]);
    w.a.go(1, Send {}, NoPayload);
    let timer = rnr_timer(connect().min_rnr_timer).unwrap();
    after(&w.device, &mut w.a, timer, (1, WcStatus::Success));
    completes(&mut w.b, 70, WcStatus::Success);
}

fn rnr_is_counted(p: &Provider, nth: Nth) {
    let device = p.device();
    let none = ConnectAttr {
        rnr_retry: 0,
        ..connect()
    };
    let (a, b) = pair_with(&device, p.quiet, &none);
    let mut w = World { device, a, b };
    w.inject(&[(nth(1), Fault::Rnr)]);
    w.b.receive(70, &[]);
    w.a.go(1, Send {}, NoPayload);
    completes(&mut w.a, 1, WcStatus::RnrRetryExcErr);
    w.b.nothing();
}

fn status(p: &Provider, nth: Nth) {
    let mut w = World::new(p);
    w.inject(&[(nth(2), Fault::Status(WcStatus::GeneralErr))]);
    for wr_id in 1..4 {
        w.add(wr_id);
    }
    completes(&mut w.a, 1, WcStatus::Success);
    completes(&mut w.a, 2, WcStatus::GeneralErr);
    completes(&mut w.a, 3, WcStatus::WrFlushErr);
    assert_eq!(w.added(), 1);
    // The peer has not heard of it.
    assert_eq!(w.b.qp.state(), QpState::Rts);
}

/// Every attempt of the first request.
fn every_attempt(fault: Fault) -> Vec<(Trigger, Fault)> {
    // As many as for a receive.
    assert_eq!(connect().rnr_retry, connect().retry_cnt);
    let attempts = 1 + u64::from(connect().retry_cnt);
    (1..=attempts)
        .map(|nth| (Trigger::Packet(nth), fault))
        .collect()
}

fn all_acks_lost(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&every_attempt(Fault::DropAck));
    w.add(1);
    completes(&mut w.a, 1, WcStatus::RetryExcErr);
    assert_eq!(w.added(), 1);
    // One attempt more would have been enough.
    let mut w = World::new(p);
    w.inject(&every_attempt(Fault::DropAck)[1..]);
    w.add(1);
    completes(&mut w.a, 1, WcStatus::Success);
    assert_eq!(w.added(), 1);
}

fn all_requests_lost(p: &Provider) {
    let mut w = World::new(p);
    w.inject(&every_attempt(Fault::DropRequest));
    w.add(1);
    completes(&mut w.a, 1, WcStatus::RetryExcErr);
    assert_eq!(w.added(), 0);
    let mut w = World::new(p);
    w.inject(&every_attempt(Fault::DropRequest)[1..]);
    (1..3).for_each(|wr_id| w.add(wr_id));
    completes(&mut w.a, 1, WcStatus::Success);
    completes(&mut w.a, 2, WcStatus::Success);
    assert_eq!(w.added(), 2);
}

fn all_attempts_refused(p: &Provider) {
    for (refusals, outcome) in [(4, WcStatus::RnrRetryExcErr), (3, WcStatus::Success)] {
        let mut w = World::new(p);
        w.inject(&every_attempt(Fault::Rnr)[..refusals]);
        w.b.receive(70, &[]);
        w.a.go(1, Send {}, NoPayload);
        completes(&mut w.a, 1, outcome);
        if outcome == WcStatus::Success {
            completes(&mut w.b, 70, outcome);
        }
        w.b.nothing();
    }
}

/// Two unreliable connections, the second with receives 70, 71 and 72 on `cq`.
fn unreliable(w: &World, cq: &mut bellwire::Cq) -> [Qp<Uc>; 2] {
    let pd = w.device.alloc_pd();
    let [mut a, mut b] = [(); 2].map(|()| pd.create_qp_of::<Uc>(&mut *cq, &init()).unwrap());
    a.init(&connect()).unwrap();
    b.init(&connect()).unwrap();
    a.connect(&b.endpoint(), &connect()).unwrap();
    b.connect(&a.endpoint(), &connect()).unwrap();
    for wr_id in 70..73 {
        // SAFETY: a receive without memory.
        unsafe { b.rq().post(wr_id, &[]) }.unwrap();
    }
    b.rq().ring();
    [a, b]
}

/// What completes when `count` messages were sent: sends 1, 2 and so on, and receives.
fn sent(a: &mut Qp<Uc>, cq: &mut bellwire::Cq, count: u64, completions: usize) -> Vec<u64> {
    for wr_id in 1..=count {
        a.sq().post_empty(wr_id, (), Send {}, SIGNALED).unwrap();
    }
    a.sq().ring();
    let mut completed: Vec<u64> = (0..completions)
        .map(|_| {
            let done = wait(cq);
            assert_eq!(done.status(), WcStatus::Success);
            done.wr_id
        })
        .collect();
    completed.sort_unstable();
    completed
}

fn unreliable_cq(w: &World) -> bellwire::Cq {
    let (send, recv) = init().cq_entries_of::<Uc>();
    w.device.create_cq(2 * (send + recv)).unwrap()
}

fn a_lost_datagram_is_lost(p: &Provider) {
    let w = World::new(p);
    let mut cq = unreliable_cq(&w);
    let [mut a, _b] = unreliable(&w, &mut cq);
    w.inject(&[(Trigger::Entry(2), Fault::DropRequest)]);
    assert_eq!(sent(&mut a, &mut cq, 3, 5), [1, 2, 3, 70, 71]);
    nothing(&mut cq, p.quiet);
}

fn the_unreliable_wait_for_no_ack(p: &Provider) {
    let w = World::new(p);
    let mut cq = unreliable_cq(&w);
    let [mut a, _b] = unreliable(&w, &mut cq);
    w.inject(&[
        (Trigger::Entry(1), Fault::DropAck),
        (Trigger::Entry(2), Fault::Rnr),
    ]);
    assert_eq!(sent(&mut a, &mut cq, 3, 6), [1, 2, 3, 70, 71, 72]);
    nothing(&mut cq, p.quiet);
}
