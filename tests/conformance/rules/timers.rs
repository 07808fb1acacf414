//! Waiting for a receive or an acknowledgement: times and counts, exact where the clock stands
//! still, and never too short where it does not.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{completes, impatient};
use bellwire::be::Be32;
use bellwire::state::{AckTimeout, QpState, ack_timeout, rnr_timer};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device, Endpoint};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

rules! {
    "timers::rc", "Waiting for a receive or an acknowledgement: retry counters and timers.", needs [Rc];
    a_late_receive_completes_what_waits: "IBTA vol. 1, 9.7.5.2.8",
        "A SEND without a receive at its peer waits, and completes when one is posted.";
    rnr_retries_take_their_time: "IBTA vol. 1, 9.7.5.2.8",
        "A SEND gives up with RNR_RETRY_EXC_ERR, not before `rnr_retry` times the peer's timer.";
    rnr_retry_0_gives_up: "ibv_modify_qp(3), rnr_retry",
        "With `rnr_retry` 0 a SEND without a receive at its peer fails.";
    silence_takes_its_time: "IBTA vol. 1, 9.7.6.1.3",
        "A peer that does not answer is given up with RETRY_EXC_ERR, not before `retry_cnt` + 1 \
         timeouts.";
    a_peer_that_went_is_given_up: "IBTA vol. 1, 9.7.6.1.3",
        "Requests to a queue pair that was destroyed fail with RETRY_EXC_ERR.";
    rnr_retries_are_counted_and_timed [VirtualClock]: "IBTA vol. 1, 9.7.5.2.8, table of RNR timers",
        "RNR_RETRY_EXC_ERR comes after exactly `rnr_retry` times the peer's timer.";
    rnr_retry_7_waits_for_ever [VirtualClock]: "ibv_modify_qp(3), rnr_retry",
        "With `rnr_retry` 7 a request waits for a receive without end.";
    a_write_with_immediate_waits_unwritten [VirtualClock]: "IBTA vol. 1, 9.7.5.2.8",
        "While a WRITE with immediate waits for a receive nothing of it is written.";
    rnr_retries_start_anew_for_the_next_request [VirtualClock]: "IBTA vol. 1, 9.7.5.2.8",
        "Every request has all the retries.";
    timeouts_are_counted_and_timed [VirtualClock]: "IBTA vol. 1, 9.7.6.1.3",
        "RETRY_EXC_ERR comes after exactly `retry_cnt` + 1 timeouts of 4.096 µs · 2^timeout.";
    timeout_0_waits_for_ever [VirtualClock]: "ibv_modify_qp(3), timeout",
        "With `timeout` 0 a request waits for its acknowledgement without end.";
    every_operation_waits_for_a_peer_that_is_late [VirtualClock]: "IBTA vol. 1, 9.7.6.1.3",
        "Every operation is sent again, and succeeds when the peer is ready within the retries.";
    a_wait_goes_from_no_receive_to_no_answer [VirtualClock]: "IBTA vol. 1, 9.7.6.1.3",
        "A peer that goes while a request waits for its receive is given up as silent.";
    those_that_wait_go_on_in_the_order_of_their_times [VirtualClock]: "IBTA vol. 1, 9.7.6.1.3",
        "The timers of queue pairs are their own: the shortest ends first.";
}

const NS: Duration = Duration::from_nanos(1);

/// Asserts that the end's next outcome comes `after` from now, and not a nanosecond earlier.
fn after(device: &Device, end: &mut End, after: Duration, expected: (u64, WcStatus)) {
    end.nothing();
    assert!(device.as_soft().unwrap().advance(after - NS));
    end.nothing();
    assert!(device.as_soft().unwrap().advance(NS));
    assert_eq!(end.outcome(), expected);
}

fn timeout_of(code: u8) -> Duration {
    match ack_timeout(code) {
        Some(AckTimeout::After(time)) => time,
        other => panic!("{other:?}"),
    }
}

fn a_late_receive_completes_what_waits(p: &Provider) {
    let (mut a, mut b) = p.pair();
    a.go(1, Send {}, Inline(&7u64.to_ne_bytes()));
    a.nothing();
    b.receive(70, &[b.region.sge(0, 8)]);
    completes(&mut a, 1, WcStatus::Success);
    completes(&mut b, 70, WcStatus::Success);
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 7);
}

fn rnr_retries_take_their_time(p: &Provider) {
    let attr = ConnectAttr {
        rnr_retry: 3,
        min_rnr_timer: 16,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = p.pair_with(&attr);
    let start = Instant::now();
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RnrRetryExcErr);
    assert!(start.elapsed() >= rnr_timer(16).unwrap() * 3);
    // The responder is not to blame.
    assert_eq!(b.qp.state(), QpState::Rts);
    b.nothing();
}

fn rnr_retry_0_gives_up(p: &Provider) {
    let attr = ConnectAttr {
        rnr_retry: 0,
        min_rnr_timer: 0,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = p.pair_with(&attr);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RnrRetryExcErr);
    assert_eq!(a.qp.state(), QpState::Err);
    b.nothing();
}

/// One end, connected to nobody.
fn alone(p: &Provider, device: &Device, attr: &ConnectAttr) -> End {
    let mut a = End::new(&device.alloc_pd(), p.quiet, &init());
    a.qp.init(attr).unwrap();
    let nobody = Endpoint {
        qp_num: 0x12_3456,
        ..a.qp.endpoint()
    };
    a.qp.connect(&nobody, attr).unwrap();
    a
}

fn silence_takes_its_time(p: &Provider) {
    let attr = impatient();
    let mut a = alone(p, &p.device(), &attr);
    let start = Instant::now();
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RetryExcErr);
    let times = u32::from(attr.retry_cnt) + 1;
    assert!(start.elapsed() >= timeout_of(attr.timeout) * times);
    assert_eq!(a.qp.state(), QpState::Err);
}

fn a_peer_that_went_is_given_up(p: &Provider) {
    let (mut a, b) = p.pair_with(&impatient());
    drop(b);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RetryExcErr);
    assert_eq!(a.qp.state(), QpState::Err);
}

fn rnr_retries_are_counted_and_timed(p: &Provider) {
    for rnr_retry in 0..=6 {
        for code in [0, 1, 12, 31] {
            let attr = ConnectAttr {
                rnr_retry,
                min_rnr_timer: code,
                ..ConnectAttr::default()
            };
            let (device, mut a, _b) = p.virtual_pair(&attr);
            let total = rnr_timer(code).unwrap() * u32::from(rnr_retry);
            a.go(1, Send {}, Inline(&[1]));
            a.go(2, Send {}, NoPayload);
            let gives_up = (1, WcStatus::RnrRetryExcErr);
            if total.is_zero() {
                assert_eq!(a.outcome(), gives_up);
            } else {
                after(&device, &mut a, total, gives_up);
            }
            completes(&mut a, 2, WcStatus::WrFlushErr);
        }
    }
}

/// Waits for a receive, with another request behind it.
fn waiting(p: &Provider, write: bool) -> (Device, End, End) {
    let attr = ConnectAttr {
        min_rnr_timer: 14,
        ..ConnectAttr::default()
    };
    let (device, mut a, b) = p.virtual_pair(&attr);
    b.region.word(0).store(7, Ordering::Release);
    if write {
        let (remote, imm) = (b.region.remote(0), Be32::new(3));
        a.go(1, RdmaWriteWithImm { remote, imm }, Inline(&[1; 8]));
    } else {
        a.go(1, Send {}, Inline(&[1; 8]));
    }
    let remote = b.region.remote(8);
    a.go(2, RdmaWrite { remote }, NoPayload);
    device
        .as_soft()
        .unwrap()
        .advance(rnr_timer(14).unwrap() * 100_000);
    a.nothing();
    (device, a, b)
}

fn rnr_retry_7_waits_for_ever(p: &Provider) {
    let (device, mut a, mut b) = waiting(p, false);
    b.receive(70, &[b.region.sge(0, 8)]);
    // It is found when the timer ends, not before.
    after(
        &device,
        &mut a,
        rnr_timer(14).unwrap(),
        (1, WcStatus::Success),
    );
    completes(&mut a, 2, WcStatus::Success);
    completes(&mut b, 70, WcStatus::Success);
    a.nothing();
}

fn a_write_with_immediate_waits_unwritten(p: &Provider) {
    let (device, mut a, mut b) = waiting(p, true);
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 7);
    b.receive(70, &[]);
    after(
        &device,
        &mut a,
        rnr_timer(14).unwrap(),
        (1, WcStatus::Success),
    );
    assert_ne!(b.region.word(0).load(Ordering::Acquire), 7);
    completes(&mut b, 70, WcStatus::Success);
}

fn rnr_retries_start_anew_for_the_next_request(p: &Provider) {
    let attr = ConnectAttr {
        rnr_retry: 3,
        min_rnr_timer: 14,
        ..ConnectAttr::default()
    };
    let (device, mut a, mut b) = p.virtual_pair(&attr);
    let step = rnr_timer(14).unwrap();
    for wr_id in 0..10 {
        a.go(wr_id, Send {}, NoPayload);
        device.as_soft().unwrap().advance(step * 3 - NS);
        a.nothing();
        b.receive(70, &[]);
        after(&device, &mut a, NS, (wr_id, WcStatus::Success));
        completes(&mut b, 70, WcStatus::Success);
    }
    // Two in one batch: each has its own count.
    a.post(1, Send {}, NoPayload, SIGNALED).unwrap();
    a.post(2, Send {}, NoPayload, SIGNALED).unwrap();
    a.qp.sq().ring();
    device.as_soft().unwrap().advance(step * 3 - NS);
    b.receive(70, &[]);
    after(&device, &mut a, NS, (1, WcStatus::Success));
    after(&device, &mut a, step * 3, (2, WcStatus::RnrRetryExcErr));
}

fn timeouts_are_counted_and_timed(p: &Provider) {
    for (retry_cnt, timeout) in [(0, 1), (0, 14), (1, 8), (7, 14), (3, 20)] {
        let device = p.virtual_device();
        let attr = ConnectAttr {
            retry_cnt,
            timeout,
            ..ConnectAttr::default()
        };
        let mut a = alone(p, &device, &attr);
        a.receive(70, &[]);
        a.go(1, Send {}, NoPayload);
        a.post(2, Send {}, NoPayload, SendFlags::empty()).unwrap();
        a.qp.sq().ring();
        let total = timeout_of(timeout) * (u32::from(retry_cnt) + 1);
        after(&device, &mut a, total, (1, WcStatus::RetryExcErr));
        completes(&mut a, 2, WcStatus::WrFlushErr);
        completes(&mut a, 70, WcStatus::WrFlushErr);
        a.nothing();
    }
}

fn timeout_0_waits_for_ever(p: &Provider) {
    let attr = ConnectAttr {
        timeout: 0,
        ..ConnectAttr::default()
    };
    let device = p.virtual_device();
    let mut a = alone(p, &device, &attr);
    a.go(1, Send {}, NoPayload);
    device
        .as_soft()
        .unwrap()
        .advance(Duration::from_secs(1 << 30));
    a.nothing();
    a.qp.to_error().unwrap();
    completes(&mut a, 1, WcStatus::WrFlushErr);
}

fn every_operation_waits_for_a_peer_that_is_late(p: &Provider) {
    let attr = ConnectAttr {
        timeout: 10,
        ..ConnectAttr::default()
    };
    let device = p.virtual_device();
    for operation in 0..5 {
        let (mut a, mut b) = ends(&device, p.quiet);
        a.qp.init(&attr).unwrap();
        b.qp.init(&attr).unwrap();
        a.qp.connect(&b.qp.endpoint(), &attr).unwrap();
        b.receive(70, &[b.region.sge(0, 8)]);
        let (remote, here) = (b.region.remote(0), a.region.sge(0, 8));
        match operation {
            0 => a.go(1, Send {}, here),
            1 => a.go(1, RdmaWrite { remote }, here),
            2 => a.go(1, RdmaRead { remote }, here),
            3 => a.go(1, AtomicFetchAndAdd { remote, add: 1 }, here),
            _ => a.go(1, RdmaRead { remote }, NoPayload),
        }
        device.as_soft().unwrap().advance(timeout_of(10) * 5);
        a.nothing();
        b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
        after(&device, &mut a, timeout_of(10), (1, WcStatus::Success));
    }
}

fn a_wait_goes_from_no_receive_to_no_answer(p: &Provider) {
    let attr = ConnectAttr {
        timeout: 14,
        retry_cnt: 2,
        min_rnr_timer: 20,
        ..ConnectAttr::default()
    };
    let (device, mut a, b) = p.virtual_pair(&attr);
    a.go(1, Send {}, NoPayload);
    device
        .as_soft()
        .unwrap()
        .advance(rnr_timer(20).unwrap() / 2);
    drop(b);
    let total = rnr_timer(20).unwrap() / 2 + timeout_of(14) * 3;
    after(&device, &mut a, total, (1, WcStatus::RetryExcErr));
}

fn those_that_wait_go_on_in_the_order_of_their_times(p: &Provider) {
    let device = p.virtual_device();
    // Later ones wait for less.
    let codes = [20, 18, 18, 12, 5, 5, 31, 1];
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut cq = device
        .create_cq((send + recv) * codes.len() as u32)
        .unwrap();
    let mut qps = Vec::new();
    for (wr_id, timeout) in (0..).zip(codes) {
        let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
        let attr = ConnectAttr {
            timeout,
            retry_cnt: 1,
            ..ConnectAttr::default()
        };
        qp.init(&attr).unwrap();
        qp.connect(&Endpoint::default(), &attr).unwrap();
        post(&mut qp, wr_id, Send {}, NoPayload, SIGNALED).unwrap();
        qp.sq().ring();
        qps.push(qp);
    }
    nothing(&mut cq, p.quiet);
    device
        .as_soft()
        .unwrap()
        .advance(Duration::from_secs(100_000));
    let order: Vec<u64> = codes.iter().map(|_| wait(&mut cq).wr_id).collect();
    assert_eq!(order, [7, 4, 5, 3, 1, 2, 0, 6]);
}
