//! Waiting for a receive or an acknowledgement: exact virtual times and counts.

use bellwire::soft::Mode;
use bellwire::state::{AckTimeout, QpState, ack_timeout, rnr_timer};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device, Endpoint};
use bellwire_tests::fixture::*;
use std::time::Duration;

const NS: Duration = Duration::from_nanos(1);

/// Asserts that the end's next outcome comes `after` from now, and not a nanosecond earlier.
fn after(device: &Device, end: &mut End, after: Duration, expected: (u64, WcStatus)) {
    end.nothing();
    assert!(device.advance(after - NS));
    end.nothing();
    assert!(device.advance(NS));
    assert_eq!(end.outcome(), expected);
}

fn timeout_of(code: u8) -> Duration {
    match ack_timeout(code) {
        Some(AckTimeout::After(time)) => time,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rnr_retries_are_counted_and_timed() {
    for rnr_retry in 0..=6 {
        for code in [0, 1, 12, 31] {
            let attr = ConnectAttr {
                rnr_retry,
                min_rnr_timer: code,
                ..ConnectAttr::default()
            };
            let (device, mut a, mut b) = virtual_pair(&attr);
            let total = rnr_timer(code).unwrap() * u32::from(rnr_retry);
            a.go(1, Send {}, Inline(&[1]));
            a.go(2, Nop {}, NoPayload);
            let gives_up = (1, WcStatus::RnrRetryExcErr);
            if total.is_zero() {
                assert_eq!(a.outcome(), gives_up);
            } else {
                after(&device, &mut a, total, gives_up);
            }
            assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
            assert_eq!(a.qp.state(), QpState::Err);
            // The responder is not to blame.
            assert_eq!(b.qp.state(), QpState::Rts);
            b.nothing();
        }
    }
}

#[test]
fn rnr_retry_7_waits_for_ever_and_a_late_receive_completes_it() {
    for write in [false, true] {
        let attr = ConnectAttr {
            min_rnr_timer: 14,
            ..ConnectAttr::default()
        };
        let (device, mut a, mut b) = virtual_pair(&attr);
        let step = rnr_timer(14).unwrap();
        b.region
            .word(0)
            .store(7, std::sync::atomic::Ordering::Relaxed);
        if write {
            let (remote, imm) = (b.region.remote(0), bellwire::be::Be32::new(3));
            a.go(1, RdmaWriteWithImm { remote, imm }, Inline(&[1; 8]));
        } else {
            a.go(1, Send {}, Inline(&[1; 8]));
        }
        // Rung while it waits: stays behind it.
        a.go(2, Nop {}, NoPayload);
        device.advance(step * 100_000);
        a.nothing();
        let word = b.region.word(0).load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(word, 7, "nothing is written without a receive");
        b.receive(70, &[b.region.sge(0, 8)]);
        // It is found when the timer ends, not before.
        a.nothing();
        after(&device, &mut a, step, (1, WcStatus::Success));
        assert_eq!(a.outcome(), (2, WcStatus::Success));
        assert_eq!(b.outcome(), (70, WcStatus::Success));
        a.nothing();
    }
}

#[test]
fn rnr_retries_start_anew_for_the_next_request() {
    let attr = ConnectAttr {
        rnr_retry: 3,
        min_rnr_timer: 14,
        ..ConnectAttr::default()
    };
    let (device, mut a, mut b) = virtual_pair(&attr);
    let step = rnr_timer(14).unwrap();
    for wr_id in 0..10 {
        a.go(wr_id, Send {}, NoPayload);
        device.advance(step * 3 - NS);
        a.nothing();
        b.receive(70, &[]);
        after(&device, &mut a, NS, (wr_id, WcStatus::Success));
        assert_eq!(b.outcome(), (70, WcStatus::Success));
    }
    // Two in one batch: each has its own count.
    a.post(1, Send {}, NoPayload, SIGNALED).unwrap();
    a.post(2, Send {}, NoPayload, SIGNALED).unwrap();
    a.qp.sq().ring();
    device.advance(step * 3 - NS);
    b.receive(70, &[]);
    after(&device, &mut a, NS, (1, WcStatus::Success));
    after(&device, &mut a, step * 3, (2, WcStatus::RnrRetryExcErr));
}

#[test]
fn nobody_there_is_told_after_all_timeouts() {
    for (retry_cnt, timeout) in [(0, 1), (0, 14), (1, 8), (7, 14), (3, 20)] {
        let device = virtual_device(1);
        let pd = device.alloc_pd();
        let mut a = End::new(&pd, Mode::Inline, &init());
        let attr = ConnectAttr {
            retry_cnt,
            timeout,
            ..ConnectAttr::default()
        };
        a.qp.init(&attr).unwrap();
        let nobody = Endpoint {
            qp_num: 0x12_3456,
            psn: 0,
            ..Endpoint::default()
        };
        a.qp.connect(&nobody, &attr).unwrap();
        a.receive(70, &[]);
        a.go(1, Send {}, NoPayload);
        a.post(2, Nop {}, NoPayload, SendFlags::empty()).unwrap();
        a.qp.sq().ring();
        let total = timeout_of(timeout) * (u32::from(retry_cnt) + 1);
        after(&device, &mut a, total, (1, WcStatus::RetryExcErr));
        assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
        assert_eq!(a.outcome(), (70, WcStatus::WrFlushErr));
        a.nothing();
        assert!(a.reset().is_empty());
    }
}

#[test]
fn every_operation_waits_for_a_peer_that_is_late() {
    let attr = ConnectAttr {
        timeout: 10,
        ..ConnectAttr::default()
    };
    let device = virtual_device(1);
    for operation in 0..5 {
        let (mut a, mut b) = ends(&device, Mode::Inline);
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
        device.advance(timeout_of(10) * 5);
        a.nothing();
        b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
        a.nothing();
        after(&device, &mut a, timeout_of(10), (1, WcStatus::Success));
    }
}

#[test]
fn timeout_0_waits_for_ever() {
    let attr = ConnectAttr {
        timeout: 0,
        ..ConnectAttr::default()
    };
    let (device, mut a, b) = virtual_pair(&attr);
    drop(b);
    a.go(1, Send {}, NoPayload);
    device.advance(Duration::from_secs(1 << 30));
    a.nothing();
    a.qp.to_error().unwrap();
    assert_eq!(a.outcome(), (1, WcStatus::WrFlushErr));
}

#[test]
fn a_wait_goes_from_no_receive_to_no_answer() {
    let attr = ConnectAttr {
        timeout: 14,
        retry_cnt: 2,
        min_rnr_timer: 20,
        ..ConnectAttr::default()
    };
    let (device, mut a, b) = virtual_pair(&attr);
    a.go(1, Send {}, NoPayload);
    device.advance(rnr_timer(20).unwrap() / 2);
    drop(b);
    let total = rnr_timer(20).unwrap() / 2 + timeout_of(14) * 3;
    after(&device, &mut a, total, (1, WcStatus::RetryExcErr));
}

#[test]
fn those_that_wait_go_on_in_the_order_of_their_times() {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let init = init();
    let (send, recv) = init.cq_entries();
    let mut cq = device.create_cq((send + recv) * 8).unwrap();
    // Later ones wait for less.
    let codes = [20, 18, 18, 12, 5, 5, 31, 1];
    let mut qps: Vec<_> = codes
        .iter()
        .map(|&timeout| {
            let mut qp = pd.create_qp(&mut cq, &init).unwrap();
            let attr = ConnectAttr {
                timeout,
                retry_cnt: 1,
                ..ConnectAttr::default()
            };
            qp.init(&attr).unwrap();
            qp.connect(&Endpoint::default(), &attr).unwrap();
            qp
        })
        .collect();
    for (at, qp) in qps.iter_mut().enumerate() {
        post(qp, at as u64, Send {}, NoPayload, SIGNALED).unwrap();
        qp.sq().ring();
    }
    nothing(&mut cq, Mode::Inline);
    device.advance(Duration::from_secs(100_000));
    let order: Vec<u64> = (0..codes.len()).map(|_| wait(&mut cq).wr_id).collect();
    assert_eq!(order, [7, 4, 5, 3, 1, 2, 0, 6]);
}

/// On the real clock, by polling alone and by the engine.
#[test]
fn real_time_passes_too() {
    for mode in [Mode::Inline, ENGINE] {
        let attr = ConnectAttr {
            rnr_retry: 3,
            min_rnr_timer: 16,
            ..ConnectAttr::default()
        };
        let (mut a, mut b) = pair_with(&device(mode), mode, &attr);
        let start = std::time::Instant::now();
        a.go(1, Send {}, NoPayload);
        assert_eq!(a.outcome(), (1, WcStatus::RnrRetryExcErr));
        assert!(start.elapsed() >= rnr_timer(16).unwrap() * 3);
        b.nothing();
        a.reset();
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &attr);
        a.go(2, Send {}, NoPayload);
        b.receive(70, &[]);
        assert_eq!(a.outcome(), (2, WcStatus::Success));
        assert_eq!(b.outcome(), (70, WcStatus::Success));
    }
}

/// Ringing lets those go on that have waited long enough, the one that rings among them.
#[test]
fn ringing_behind_a_request_whose_time_has_come() {
    let attr = ConnectAttr {
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = pair_with(&device(Mode::Inline), Mode::Inline, &attr);
    a.go(1, Send {}, NoPayload);
    b.receive(70, &[]);
    std::thread::sleep(rnr_timer(1).unwrap() * 2);
    a.go(2, Nop {}, NoPayload);
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (2, WcStatus::Success));
}
