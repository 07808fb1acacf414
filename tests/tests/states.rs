//! The states of a queue pair through the public interface: what may be posted when, and what
//! becomes of it.

use bellwire::queue::PostError;
use bellwire::soft::Mode;
use bellwire::state::{ModifyError, QpAttr, QpAttrMask, QpState, rnr_timer};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{AccessFlags, ConnectAttr, Error};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::sync::atomic::Ordering;

in_both_modes! {
    each_state_takes_what_it_should, err_flushes_what_is_in_flight_and_what_comes_later,
    err_from_every_state, sqd_holds_new_requests_back, sqd_still_receives,
    reset_tells_what_is_untold_once, a_thousand_lives, an_old_peer_does_not_reach_the_next_life,
}

fn to(state: QpState) -> QpAttr {
    QpAttr {
        qp_state: state,
        ..QpAttr::default()
    }
}

fn set(end: &mut End, state: QpState) -> Result<(), Error> {
    end.qp.modify(&to(state), QpAttrMask::STATE)
}

fn try_send(end: &mut End) -> Result<(), PostError> {
    end.post(1, Nop {}, NoPayload, SIGNALED)
}

fn each_state_takes_what_it_should(mode: Mode) {
    let device = device(mode);
    let (mut a, mut b) = ends(&device, mode);
    let attr = ConnectAttr::default();
    let refused = Err(PostError::WrongState);
    let peer = b.qp.endpoint();

    assert_eq!(a.qp.state(), QpState::Reset);
    assert_eq!(try_send(&mut a), refused);
    assert_eq!(post_recv(&mut a.qp, 1, &[]), refused);
    a.qp.init(&attr).unwrap();
    assert_eq!(a.qp.state(), QpState::Init);
    assert_eq!(try_send(&mut a), refused);
    a.receive(70, &[]);
    let rtr = QpAttr {
        path_mtu: attr.path_mtu,
        dest_qp_num: peer.qp_num,
        max_dest_rd_atomic: 1,
        ah_attr: bellwire::state::AhAttr {
            port_num: 1,
            ..Default::default()
        },
        ..to(QpState::Rtr)
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    a.qp.modify(&rtr, mask).unwrap();
    assert_eq!(a.qp.state(), QpState::Rtr);
    assert_eq!(try_send(&mut a), refused);
    a.receive(71, &[]);
    // Ready to receive is ready to answer: receives, and READs.
    b.qp.init(&attr).unwrap();
    b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
    b.go(1, Send {}, NoPayload);
    let remote = a.region.remote(0);
    b.go(2, RdmaRead { remote }, b.region.sge(0, 8));
    assert_eq!(b.outcome(), (1, WcStatus::Success));
    assert_eq!(b.outcome(), (2, WcStatus::Success));
    assert_eq!(a.outcome(), (70, WcStatus::Success));
    let rts = QpAttrMask::STATE
        | QpAttrMask::SQ_PSN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    a.qp.modify(&to(QpState::Rts), rts).unwrap();
    try_send(&mut a).unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    a.qp.to_error().unwrap();
    assert_eq!(a.outcome(), (71, WcStatus::WrFlushErr));
    a.reset();
    assert_eq!(a.qp.state(), QpState::Reset);
    assert_eq!(try_send(&mut a), refused);
    assert_eq!(post_recv(&mut a.qp, 1, &[]), refused);
    a.nothing();
}

fn err_flushes_what_is_in_flight_and_what_comes_later(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    for wr_id in 0..10 {
        a.receive(100 + wr_id, &[]);
    }
    // The first waits for a receive, the others behind it.
    for wr_id in 0..10 {
        let flags = if wr_id % 2 == 0 {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        a.post(
            wr_id,
            Send {},
            Inline(&[1; 150][..wr_id as usize * 15]),
            flags,
        )
        .unwrap();
    }
    a.qp.sq().ring();
    a.nothing();
    // Staged, rung only afterwards.
    a.post(10, Send {}, NoPayload, SIGNALED).unwrap();
    post_recv(&mut a.qp, 110, &[]).unwrap();
    a.qp.to_error().unwrap();
    for wr_id in 0..10 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::WrFlushErr));
    }
    for wr_id in 100..110 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::WrFlushErr));
    }
    a.nothing();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (10, WcStatus::WrFlushErr));
    a.qp.rq().ring();
    assert_eq!(a.outcome(), (110, WcStatus::WrFlushErr));
    for wr_id in 0..200 {
        a.go(wr_id, Send {}, Inline(&[1; 77]));
        assert_eq!(a.outcome(), (wr_id, WcStatus::WrFlushErr));
        a.receive(wr_id, &[]);
        assert_eq!(a.outcome(), (wr_id, WcStatus::WrFlushErr));
    }
    a.qp.to_error().unwrap();
    a.nothing();
    b.nothing();
    assert_eq!(b.qp.state(), QpState::Rts);
    assert!(a.reset().is_empty());
}

fn err_from_every_state(mode: Mode) {
    let device = device(mode);
    let attr = ConnectAttr::default();
    for state in ["RESET", "INIT", "RTS", "SQD", "ERR"] {
        let (mut a, mut b) = ends(&device, mode);
        let mut expected = Vec::new();
        if state != "RESET" {
            a.qp.init(&attr).unwrap();
            a.receive(70, &[]);
            expected.push(70);
        }
        if !matches!(state, "RESET" | "INIT") {
            b.qp.init(&attr).unwrap();
            a.qp.connect(&b.qp.endpoint(), &attr).unwrap();
            b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
        }
        if state == "SQD" {
            set(&mut a, QpState::Sqd).unwrap();
            a.go(1, Nop {}, NoPayload);
            expected.insert(0, 1);
        }
        a.qp.to_error().unwrap();
        if state == "ERR" {
            a.qp.to_error().unwrap();
        }
        for wr_id in expected {
            assert_eq!(a.outcome(), (wr_id, WcStatus::WrFlushErr), "{state}");
        }
        a.nothing();
        a.go(2, Nop {}, NoPayload);
        assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr), "{state}");
        a.receive(72, &[]);
        assert_eq!(a.outcome(), (72, WcStatus::WrFlushErr), "{state}");
        assert!(a.reset().is_empty(), "{state}");
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &attr);
        b.receive(70, &[]);
        a.go(3, Send {}, NoPayload);
        assert_eq!(a.outcome(), (3, WcStatus::Success), "{state}");
        assert_eq!(b.outcome(), (70, WcStatus::Success), "{state}");
    }
}

fn sqd_holds_new_requests_back(mode: Mode) {
    let (mut a, b) = pair(mode);
    for round in 1..50u64 {
        set(&mut a, QpState::Sqd).unwrap();
        assert!(!a.qp.query().sq_draining);
        let remote = b.region.remote(0);
        for wr_id in 0..5 {
            a.go(wr_id, RdmaWrite { remote }, Inline(&round.to_ne_bytes()));
        }
        a.nothing();
        assert_eq!(b.region.word(0).load(Ordering::Acquire), round - 1);
        set(&mut a, QpState::Rts).unwrap();
        for wr_id in 0..5 {
            assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
        }
        assert_eq!(b.region.word(0).load(Ordering::Acquire), round);
    }
}

fn sqd_still_receives(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    set(&mut a, QpState::Sqd).unwrap();
    a.receive(70, &[a.region.sge(0, 8)]);
    b.go(1, Send {}, Inline(&[1; 8]));
    assert_eq!(b.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (70, WcStatus::Success));
    // What is changed there is in force at once.
    let attr = QpAttr {
        qp_access_flags: AccessFlags::REMOTE_READ,
        ..QpAttr::default()
    };
    a.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
    let remote = a.region.remote(0);
    b.go(2, RdmaRead { remote }, b.region.sge(0, 8));
    assert_eq!(b.outcome(), (2, WcStatus::Success));
    b.go(3, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(b.outcome(), (3, WcStatus::RemInvReqErr));
}

/// What was started is finished, nothing else begun; RTS waits for that.
#[test]
fn sqd_drains_what_was_started() {
    let attr = ConnectAttr {
        min_rnr_timer: 14,
        ..ConnectAttr::default()
    };
    let (device, mut a, mut b) = virtual_pair(&attr);
    let step = rnr_timer(14).unwrap();
    a.go(1, Send {}, NoPayload);
    a.go(2, Send {}, NoPayload);
    set(&mut a, QpState::Sqd).unwrap();
    a.go(3, Send {}, NoPayload);
    assert!(a.qp.query().sq_draining);
    match set(&mut a, QpState::Rts) {
        Err(Error::Modify(ModifyError::NotDrained)) => {}
        other => panic!("{other:?}"),
    }
    device.advance(step * 10);
    assert!(a.qp.query().sq_draining);
    for wr_id in 70..73 {
        b.receive(wr_id, &[]);
    }
    device.advance(step);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    device.advance(step * 10);
    a.nothing();
    assert!(!a.qp.query().sq_draining);
    assert_eq!(a.qp.state(), QpState::Sqd);
    set(&mut a, QpState::Rts).unwrap();
    for wr_id in [2, 3] {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
    a.go(4, Nop {}, NoPayload);
    assert_eq!(a.outcome(), (4, WcStatus::Success));
}

/// What was started can fail too, and waits again after RTS.
#[test]
fn sqd_gives_up_what_was_started() {
    let attr = ConnectAttr {
        min_rnr_timer: 14,
        rnr_retry: 2,
        ..ConnectAttr::default()
    };
    let (device, mut a, _b) = virtual_pair(&attr);
    a.go(1, Send {}, NoPayload);
    set(&mut a, QpState::Sqd).unwrap();
    a.go(2, Send {}, NoPayload);
    device.advance(rnr_timer(14).unwrap() * 2);
    assert_eq!(a.outcome(), (1, WcStatus::RnrRetryExcErr));
    assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
    assert_eq!(a.qp.state(), QpState::Err);
}

/// The depth may be changed in a drained queue pair.
#[test]
fn sqd_takes_a_new_depth() {
    let (mut a, b) = pair(Mode::Inline);
    set(&mut a, QpState::Sqd).unwrap();
    a.qp.modify(&QpAttr::default(), QpAttrMask::MAX_QP_RD_ATOMIC)
        .unwrap();
    set(&mut a, QpState::Rts).unwrap();
    let remote = b.region.remote(0);
    a.go(1, RdmaRead { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::LocQpOpErr));
}

fn reset_tells_what_is_untold_once(mode: Mode) {
    let (mut a, mut b) = pair(mode);
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
        let polled = random.below(good + 1).min((count / 3) * 3);
        let mut polled_ids = Vec::new();
        for _ in 0..polled {
            if let Some(done) = a.cq.poll_one() {
                assert_eq!(done.status(), WcStatus::Success);
                polled_ids.push(done.wr_id);
            }
        }
        polled_ids.extend(a.reset());
        assert_eq!(polled_ids, (0..count).collect::<Vec<_>>());
        a.nothing();
        let mut received: Vec<u64> = Vec::new();
        while received.len() < good as usize / 2 {
            match b.cq.poll_one() {
                Some(done) => received.push(done.wr_id),
                None => break,
            }
        }
        received.extend(b.reset());
        assert_eq!(received, (0..good).collect::<Vec<_>>());
        b.nothing();
        assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
}

/// Random work, a reset in the middle of it, and never an outcome of another life.
fn a_thousand_lives(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let mut random = Random::new(4);
    for life in 0..1000u64 {
        let id = |at: u64| life << 8 | at;
        let (sends, receives) = (random.below(20), random.below(20));
        for at in 0..receives {
            b.receive(id(at), &[b.region.sge(0, 64)]);
        }
        for at in 0..sends {
            let bytes = [life as u8; 60];
            let length = random.below(61) as usize;
            a.go(id(at), Send {}, Inline(&bytes[..length]));
        }
        let (mut sent, mut received) = (0, 0);
        for _ in 0..random.below(30) {
            if let Some(done) = a.cq.poll_one() {
                assert_eq!((done.wr_id, done.status()), (id(sent), WcStatus::Success));
                sent += 1;
            }
            if let Some(done) = b.cq.poll_one() {
                assert_eq!(
                    (done.wr_id, done.status()),
                    (id(received), WcStatus::Success)
                );
                received += 1;
            }
        }
        if random.below(2) == 0 {
            a.qp.to_error().unwrap();
        }
        if random.below(3) == 0 {
            b.qp.to_error().unwrap();
        }
        let rest = |from: u64, to: u64| (from..to).map(id).collect::<Vec<_>>();
        assert_eq!(a.reset(), rest(sent, sends));
        assert_eq!(b.reset(), rest(received, receives));
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
    assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
    a.nothing();
    b.nothing();
}

/// The context of a queue pair that was destroyed goes to the next one. A peer that still sends to
/// the old number must not get through, even when the new one is already connected to it.
fn an_old_peer_does_not_reach_the_next_life(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let attr = ConnectAttr {
        timeout: 8,
        retry_cnt: 1,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = (End::new(&pd, mode, &init()), End::new(&pd, mode, &init()));
    connect_with(&mut a.qp, &mut b.qp, &attr);
    let old = b.qp.qp_num();
    drop(b);
    let mut b = End::new(&pd, mode, &init());
    assert_eq!(b.qp.qp_num() & 0xffff, old & 0xffff, "the same place");
    assert_ne!(b.qp.qp_num(), old);
    b.qp.init(&attr).unwrap();
    b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    b.nothing();
}
