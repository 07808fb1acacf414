//! What becomes of requests when a queue pair is drained, fails, or starts anew.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{bring, completes, go_to};
use bellwire::state::{ModifyError, QpAttr, QpAttrMask, QpState, rnr_timer};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Error};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "lives::rc", "What becomes of requests when a queue pair drains, fails, or is reset.", needs [Rc];
    err_flushes_what_is_in_flight: "IBTA vol. 1, 10.3.1.7",
        "Going to ERR completes every request in flight with WR_FLUSH_ERR, signalled or not, each \
         queue in its order.";
    err_flushes_what_is_posted_later: "IBTA vol. 1, 10.3.1.7",
        "Requests posted in ERR complete with WR_FLUSH_ERR.";
    err_flushes_what_was_staged_before: "ibv_post_send(3)",
        "Requests posted before ERR, and rung after it, complete with WR_FLUSH_ERR.";
    err_twice_flushes_once: "IBTA vol. 1, 10.3.1.7",
        "Going from ERR to ERR reports nothing again.";
    err_leaves_the_peer_alone: "IBTA vol. 1, 10.3.1.7",
        "A queue pair that its owner takes to ERR does not change its peer's state.";
    err_is_reached_from_every_state: "IBTA vol. 1, 10.3.1",
        "From every state a queue pair goes to ERR and flushes, and works again after a reset.";
    nothing_completes_after_a_reset: "IBTA vol. 1, 10.3.1.1",
        "After a reset nothing completes any more of what was posted before.";
    reset_reports_what_is_unreported_once: "IBTA vol. 1, 10.3.1.1",
        "Every request is reported once: by a completion before the reset, or by the reset.";
    reset_is_undone_by_connecting_again: "IBTA vol. 1, 10.3.1.1",
        "A queue pair that was reset can be connected again, and works.";
    sqd_holds_new_requests_back: "IBTA vol. 1, 10.3.1.5",
        "Requests posted in SQD are executed when the queue pair goes back to RTS, in order.";
    sqd_still_receives: "IBTA vol. 1, 10.3.1.5",
        "In SQD receives complete, and the peer's READs are answered.";
    sqd_drains_what_was_started [VirtualClock]: "IBTA vol. 1, 10.3.1.5",
        "In SQD a request that was started is finished, and those behind it wait.";
    sqd_says_that_it_is_draining [VirtualClock]: "ibv_query_qp(3)",
        "`sq_draining` is true until what was started has finished.";
    sqd_to_rts_waits_for_the_drain [VirtualClock]: "IBTA vol. 1, 10.3.1.5",
        "SQD to RTS is refused while started requests have not finished.";
    sqd_gives_up_what_was_started [VirtualClock]: "IBTA vol. 1, 10.3.1.5",
        "In SQD a started request can fail, and takes the queue pair to ERR.";
    sqd_takes_a_new_depth: "IBTA vol. 1, chapter 11, Modify Queue Pair",
        "`max_rd_atomic` changed in SQD is in force after RTS.";
}

/// As many requests as a flush has to report, the sends held back by a peer without a receive.
fn stuck(p: &Provider) -> (End, End) {
    let (mut a, b) = p.pair();
    for wr_id in 100..110 {
        a.receive(wr_id, &[]);
    }
    for wr_id in 0..10 {
        let flags = if wr_id % 2 == 0 {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        let bytes = [1; 150];
        a.post(wr_id, Send {}, Inline(&bytes[..wr_id as usize * 15]), flags)
            .unwrap();
    }
    a.qp.sq().ring();
    a.nothing();
    (a, b)
}

/// The outcomes of both queues, each in its order; between the two there is none.
fn flushed(end: &mut End, sends: std::ops::Range<u64>, receives: std::ops::Range<u64>) {
    let (mut send, mut receive) = (sends.start, receives.start);
    while (send, receive) != (sends.end, receives.end) {
        let (wr_id, status) = end.outcome();
        assert_eq!(status, WcStatus::WrFlushErr);
        let next = if receives.contains(&wr_id) {
            &mut receive
        } else {
            &mut send
        };
        assert_eq!(wr_id, *next);
        *next += 1;
    }
    end.nothing();
}

fn err_flushes_what_is_in_flight(p: &Provider) {
    let (mut a, _b) = stuck(p);
    a.qp.to_error().unwrap();
    flushed(&mut a, 0..10, 100..110);
    assert!(a.reset().is_empty(), "all was reported");
}

fn err_flushes_what_is_posted_later(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.qp.to_error().unwrap();
    for wr_id in 0..200 {
        a.go(wr_id, Send {}, Inline(&[1; 77]));
        completes(&mut a, wr_id, WcStatus::WrFlushErr);
        a.receive(wr_id, &[]);
        completes(&mut a, wr_id, WcStatus::WrFlushErr);
    }
    a.nothing();
}

fn err_flushes_what_was_staged_before(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.post(10, Send {}, NoPayload, SIGNALED).unwrap();
    post_recv(&mut a.qp, 110, &[]).unwrap();
    a.qp.to_error().unwrap();
    a.qp.sq().ring();
    completes(&mut a, 10, WcStatus::WrFlushErr);
    a.qp.rq().ring();
    completes(&mut a, 110, WcStatus::WrFlushErr);
    a.nothing();
}

fn err_twice_flushes_once(p: &Provider) {
    let (mut a, _b) = stuck(p);
    a.qp.to_error().unwrap();
    flushed(&mut a, 0..10, 100..110);
    a.qp.to_error().unwrap();
    a.nothing();
}

fn err_leaves_the_peer_alone(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    a.qp.to_error().unwrap();
    b.nothing();
    assert_eq!(b.qp.state(), QpState::Rts);
}

fn err_is_reached_from_every_state(p: &Provider) {
    let attr = ConnectAttr::default();
    for state in QpState::ALL
        .into_iter()
        .filter(|&state| state != QpState::Sqe)
    {
        let (mut a, mut b) = p.ends();
        bring(&mut a.qp, &b.qp.endpoint(), state);
        let (mut sends, mut receives) = (0..0, 70..70);
        if !matches!(state, QpState::Reset | QpState::Err) {
            a.receive(70, &[]);
            receives.end = 71;
        }
        if state == QpState::Sqd {
            a.go(0, Send {}, NoPayload);
            sends.end = 1;
        }
        a.qp.to_error().unwrap();
        flushed(&mut a, sends, receives);
        a.go(2, Send {}, NoPayload);
        completes(&mut a, 2, WcStatus::WrFlushErr);
        a.receive(72, &[]);
        completes(&mut a, 72, WcStatus::WrFlushErr);
        assert!(a.reset().is_empty(), "{state}");
        connect_with(&mut a.qp, &mut b.qp, &attr);
        b.receive(70, &[]);
        a.go(3, Send {}, NoPayload);
        completes(&mut a, 3, WcStatus::Success);
        completes(&mut b, 70, WcStatus::Success);
    }
}

fn nothing_completes_after_a_reset(p: &Provider) {
    let (mut a, mut b) = stuck(p);
    let all: Vec<u64> = (0..10).chain(100..110).collect();
    assert_eq!(a.reset(), all);
    for wr_id in 0..20 {
        b.receive(wr_id, &[]);
    }
    a.nothing();
    b.nothing();
}

fn reset_reports_what_is_unreported_once(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let mut random = Random::new(3);
    for _ in 0..50 {
        let count = random.below(30);
        let good = random.below(count + 1);
        for wr_id in 0..good {
            b.receive(wr_id, &[]);
        }
        for wr_id in 0..count {
            a.post(wr_id, Send {}, NoPayload, SIGNALED).unwrap();
            if wr_id % 3 == 0 {
                a.qp.sq().ring();
            }
        }
        let mut sent = polled(&mut a, random.below(good + 1));
        sent.extend(a.reset());
        assert_eq!(sent, (0..count).collect::<Vec<_>>());
        a.nothing();
        let mut received = polled(&mut b, good / 2);
        received.extend(b.reset());
        assert_eq!(received, (0..good).collect::<Vec<_>>());
        b.nothing();
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
}

/// Up to `limit` successes that are there already.
fn polled(end: &mut End, limit: u64) -> Vec<u64> {
    let mut all = Vec::new();
    for _ in 0..limit {
        let Some(done) = end.cq.poll_one() else { break };
        assert_eq!(done.status(), WcStatus::Success);
        all.push(done.wr_id);
    }
    all
}

fn reset_is_undone_by_connecting_again(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for round in 0..10 {
        assert!(a.reset().is_empty());
        assert!(b.reset().is_empty());
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        b.receive(70, &[]);
        a.go(round, Send {}, NoPayload);
        completes(&mut a, round, WcStatus::Success);
        completes(&mut b, 70, WcStatus::Success);
    }
}

fn sqd_holds_new_requests_back(p: &Provider) {
    let (mut a, b) = p.pair();
    for round in 1..20u64 {
        go_to(&mut a, QpState::Sqd);
        let remote = b.region.remote(0);
        for wr_id in 0..5 {
            a.go(wr_id, RdmaWrite { remote }, Inline(&round.to_ne_bytes()));
        }
        a.nothing();
        assert_eq!(b.region.word(0).load(Ordering::Acquire), round - 1);
        go_to(&mut a, QpState::Rts);
        for wr_id in 0..5 {
            completes(&mut a, wr_id, WcStatus::Success);
        }
        assert_eq!(b.region.word(0).load(Ordering::Acquire), round);
    }
}

fn sqd_still_receives(p: &Provider) {
    let (mut a, mut b) = p.pair();
    go_to(&mut a, QpState::Sqd);
    a.receive(70, &[a.region.sge(0, 8)]);
    b.go(1, Send {}, Inline(&7u64.to_ne_bytes()));
    completes(&mut b, 1, WcStatus::Success);
    completes(&mut a, 70, WcStatus::Success);
    let remote = a.region.remote(0);
    b.go(2, RdmaRead { remote }, b.region.sge(8, 8));
    completes(&mut b, 2, WcStatus::Success);
    assert_eq!(b.region.word(8).load(Ordering::Acquire), 7);
}

const CODE: u8 = 14;

/// Drained while the first of two requests waits for a receive; a third comes later.
fn draining(p: &Provider, rnr_retry: u8) -> (bellwire::Device, End, End) {
    let attr = ConnectAttr {
        min_rnr_timer: CODE,
        rnr_retry,
        ..ConnectAttr::default()
    };
    let (device, mut a, b) = p.virtual_pair(&attr);
    a.go(1, Send {}, NoPayload);
    a.go(2, Send {}, NoPayload);
    go_to(&mut a, QpState::Sqd);
    a.go(3, Send {}, NoPayload);
    (device, a, b)
}

fn sqd_drains_what_was_started(p: &Provider) {
    let (device, mut a, mut b) = draining(p, 7);
    let step = rnr_timer(CODE).unwrap();
    for wr_id in 70..73 {
        b.receive(wr_id, &[]);
    }
    device.as_soft().unwrap().advance(step);
    completes(&mut a, 1, WcStatus::Success);
    device.as_soft().unwrap().advance(step * 10);
    a.nothing();
    assert_eq!(a.qp.state(), QpState::Sqd);
    go_to(&mut a, QpState::Rts);
    completes(&mut a, 2, WcStatus::Success);
    completes(&mut a, 3, WcStatus::Success);
}

fn sqd_says_that_it_is_draining(p: &Provider) {
    let (device, a, mut b) = draining(p, 7);
    let step = rnr_timer(CODE).unwrap();
    assert!(a.qp.query().sq_draining);
    device.as_soft().unwrap().advance(step * 10);
    assert!(a.qp.query().sq_draining);
    b.receive(70, &[]);
    device.as_soft().unwrap().advance(step);
    assert!(!a.qp.query().sq_draining);
}

fn sqd_to_rts_waits_for_the_drain(p: &Provider) {
    let (device, mut a, mut b) = draining(p, 7);
    let rts = QpAttr {
        qp_state: QpState::Rts,
        ..QpAttr::default()
    };
    match a.qp.modify(&rts, QpAttrMask::STATE) {
        Err(Error::Modify(ModifyError::NotDrained)) => {}
        other => panic!("{other:?}"),
    }
    b.receive(70, &[]);
    device.as_soft().unwrap().advance(rnr_timer(CODE).unwrap());
    go_to(&mut a, QpState::Rts);
}

fn sqd_gives_up_what_was_started(p: &Provider) {
    let (device, mut a, _b) = draining(p, 2);
    device
        .as_soft()
        .unwrap()
        .advance(rnr_timer(CODE).unwrap() * 2);
    completes(&mut a, 1, WcStatus::RnrRetryExcErr);
    completes(&mut a, 2, WcStatus::WrFlushErr);
    completes(&mut a, 3, WcStatus::WrFlushErr);
    assert_eq!(a.qp.state(), QpState::Err);
}

fn sqd_takes_a_new_depth(p: &Provider) {
    let (mut a, b) = p.pair();
    go_to(&mut a, QpState::Sqd);
    until("the drain", || !a.qp.query().sq_draining);
    a.qp.modify(&QpAttr::default(), QpAttrMask::MAX_QP_RD_ATOMIC)
        .unwrap();
    go_to(&mut a, QpState::Rts);
    let remote = b.region.remote(0);
    a.go(1, RdmaRead { remote }, a.region.sge(0, 8));
    completes(&mut a, 1, WcStatus::LocQpOpErr);
}
