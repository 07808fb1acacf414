//! What two ends have to agree about: the PSN of the first packet, and the path MTU.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{TO_INIT, TO_RTR, TO_RTS, attr, impatient};
use bellwire::state::{Mtu, QpAttr, QpAttrMask as M, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, ConnectAttr};
use bellwire_tests::fixture::*;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

rules! {
    "packets::rc", "What the ends of a reliable connection have to agree about.", needs [Rc];
    each_life_has_a_psn_of_its_own: "bellwire, Qp::endpoint",
        "An endpoint has the PSN of the queue pair's first packet: 24 random bits, others after each reset.";
    a_psn_ahead_is_given_up: "IBTA vol. 1, 9.7.5.1.2",
        "A responder that expects an earlier PSN executes nothing, and the requester's retries run out.";
    nothing_with_a_psn_behind_is_executed: "IBTA vol. 1, 9.7.5.1.2",
        "A responder that expects a later PSN takes requests for duplicates: it executes none of them.";
    a_read_with_a_psn_behind_is_given_up: "IBTA vol. 1, 9.7.5.1.2",
        "A READ that looks like a duplicate, of which the responder knows nothing, is not answered.";
    each_direction_has_a_psn_of_its_own: "IBTA vol. 1, 9.7.1",
        "A wrong PSN of one direction leaves the other alone.";
    an_endpoint_of_an_earlier_life_reaches_nothing: "bellwire, Qp::reset",
        "A responder that is connected with an endpoint from before a reset executes nothing.";
    an_end_that_was_reset_alone_reaches_nothing: "IBTA vol. 1, 9.7.5.1.2",
        "Its PSNs do not continue those of its earlier life, for which its peer waits.";
    messages_within_both_mtus_pass: "IBTA vol. 1, 9.7.4.1.6",
        "Ends of different path MTUs exchange messages that fit into one packet of either.";
    a_write_beyond_the_smaller_mtu_is_refused: "IBTA vol. 1, 9.7.4.1.6",
        "A longer one has packets of a wrong length: REM_INV_REQ_ERR, and nothing is executed behind it.";
    a_send_beyond_the_smaller_mtu_is_refused: "IBTA vol. 1, 9.7.4.1.6",
        "The same.";
}

/// Connects one end: it expects PSNs from `psns.0` on, and sends them from `psns.1` on.
fn to_rts(end: &mut End, peer: &End, psns: (u32, u32), path_mtu: Mtu) {
    for (to, mask) in [
        (QpState::Init, TO_INIT),
        (QpState::Rtr, TO_RTR),
        (QpState::Rts, TO_RTS),
    ] {
        let attr = QpAttr {
            rq_psn: psns.0,
            sq_psn: psns.1,
            path_mtu,
            qp_access_flags: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            ..attr(end.qp.pd().device(), to, &peer.qp.endpoint())
        };
        end.qp.modify(&attr, mask | M::STATE).expect("connects");
    }
}

/// The second expects the first's PSNs from here on; the first sends them from [`FIRST`] on.
fn expecting(p: &Provider, psn: u32) -> (End, End) {
    let (mut a, mut b) = p.ends();
    to_rts(&mut a, &b, (7, FIRST), Mtu::Mtu1024);
    to_rts(&mut b, &a, (psn, 7), Mtu::Mtu1024);
    (a, b)
}

const FIRST: u32 = 0xff_fff0;
const AWAY: u32 = 0x1000;

/// `FIRST`, as many packets later.
const fn later(packets: u32) -> u32 {
    FIRST.wrapping_add(packets) & 0xff_ffff
}

fn untouched(end: &mut End) {
    assert_eq!(
        end.region.word(0).load(Ordering::Acquire),
        0,
        "something was executed"
    );
    end.nothing();
}

fn each_life_has_a_psn_of_its_own(p: &Provider) {
    let (mut a, mut b) = p.ends();
    let mut psns = HashSet::new();
    for _ in 0..4 {
        let endpoints = [&a, &b].map(|end| end.qp.endpoint().psn);
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        let remote = b.region.remote(0);
        a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
        assert_eq!(a.outcome(), (1, WcStatus::Success));
        for (end, psn) in [(&mut a, endpoints[0]), (&mut b, endpoints[1])] {
            assert!(psn < 1 << 24);
            psns.insert(psn);
            end.reset();
        }
    }
    // Two of eight random numbers are equal once in 600,000 runs.
    assert!(psns.len() >= 7, "{psns:x?}");
}

fn a_psn_ahead_is_given_up(p: &Provider) {
    let (mut a, mut b) = expecting(p, later(0x100_0000 - AWAY));
    let remote = b.region.remote(0);
    b.receive(50, &[]);
    a.post(1, RdmaWrite { remote }, Inline(&[1; 8]), SIGNALED)
        .unwrap();
    a.go(2, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
    untouched(&mut b);
    assert_eq!(b.qp.state(), QpState::Rts);
}

fn nothing_with_a_psn_behind_is_executed(p: &Provider) {
    let (mut a, mut b) = expecting(p, later(AWAY));
    let remote = b.region.remote(0);
    b.receive(50, &[]);
    a.post(1, RdmaWrite { remote }, Inline(&[1; 8]), SIGNALED)
        .unwrap();
    a.go(2, Send {}, NoPayload);
    // Some devices take the acknowledgement of the duplicate for that of the request.
    let _ = [a.outcome(), a.outcome()];
    untouched(&mut b);
    assert_eq!(b.qp.state(), QpState::Rts);
}

fn a_read_with_a_psn_behind_is_given_up(p: &Provider) {
    let (mut a, b) = expecting(p, later(AWAY));
    b.region.write(0, &[9; 8]);
    let remote = b.region.remote(0);
    a.go(1, RdmaRead { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(a.region.word(0).load(Ordering::Acquire), 0);
    assert_eq!(b.qp.state(), QpState::Rts);
}

fn each_direction_has_a_psn_of_its_own(p: &Provider) {
    let (mut a, mut b) = expecting(p, later(0x100_0000 - AWAY));
    let remote = a.region.remote(0);
    b.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(b.outcome(), (1, WcStatus::Success));
    let remote = b.region.remote(0);
    a.go(2, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(a.outcome(), (2, WcStatus::RetryExcErr));
    untouched(&mut b);
}

fn an_endpoint_of_an_earlier_life_reaches_nothing(p: &Provider) {
    let (mut a, mut b) = p.pair_with(&impatient());
    let remote = b.region.remote(8);
    a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    let old = a.qp.endpoint();
    a.reset();
    b.reset();
    a.qp.init(&impatient()).unwrap();
    b.qp.init(&impatient()).unwrap();
    a.qp.connect(&b.qp.endpoint(), &impatient()).unwrap();
    b.qp.connect(&old, &impatient()).unwrap();
    let remote = b.region.remote(0);
    a.go(2, RdmaWrite { remote }, Inline(&[1; 8]));
    // As for a PSN behind, which it may be.
    let _ = a.outcome();
    untouched(&mut b);
}

fn an_end_that_was_reset_alone_reaches_nothing(p: &Provider) {
    let (mut a, mut b) = p.pair_with(&impatient());
    let remote = b.region.remote(8);
    a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    for _ in 0..2 {
        a.reset();
        a.qp.init(&impatient()).unwrap();
        a.qp.connect(&b.qp.endpoint(), &impatient()).unwrap();
        let remote = b.region.remote(0);
        a.go(2, RdmaWrite { remote }, Inline(&[1; 8]));
        let _ = a.outcome();
        untouched(&mut b);
    }
    // Both, and it works.
    a.reset();
    b.reset();
    connect_with(&mut a.qp, &mut b.qp, &impatient());
    let remote = b.region.remote(0);
    a.go(3, RdmaWrite { remote }, Inline(&[1; 8]));
    assert_eq!(a.outcome(), (3, WcStatus::Success));
}

/// Two ends with these path MTUs.
fn with_mtus(p: &Provider, mtus: [Mtu; 2]) -> (End, End) {
    let (mut a, mut b) = p.ends();
    to_rts(&mut a, &b, (7, FIRST), mtus[0]);
    to_rts(&mut b, &a, (FIRST, 7), mtus[1]);
    (a, b)
}

const DIFFERENT: [[Mtu; 2]; 2] = [[Mtu::Mtu1024, Mtu::Mtu256], [Mtu::Mtu256, Mtu::Mtu1024]];

fn messages_within_both_mtus_pass(p: &Provider) {
    for mtus in DIFFERENT {
        let (mut a, mut b) = with_mtus(p, mtus);
        a.region.write(1024, &[3; 256]);
        for turn in 0..3 {
            let remote = b.region.remote(turn * 256);
            a.go(1, RdmaWrite { remote }, a.region.sge(1024, 256));
            assert_eq!(a.outcome(), (1, WcStatus::Success));
            a.go(2, RdmaRead { remote }, a.region.sge(2048, 256));
            assert_eq!(a.outcome(), (2, WcStatus::Success));
            for bytes in [200, 0] {
                b.receive(3, &[b.region.sge(4096, 1024)]);
                a.go(4, Send {}, Inline(&[4; 200][..bytes]));
                assert_eq!(a.outcome(), (4, WcStatus::Success));
                assert_eq!(b.outcome(), (3, WcStatus::Success));
            }
            let remote = a.region.remote(8192);
            b.go(5, RdmaWrite { remote }, Inline(&[5; 8]));
            assert_eq!(b.outcome(), (5, WcStatus::Success));
        }
        let mut bytes = [0; 256];
        for at in [0, 256, 512] {
            b.region.read(at, &mut bytes);
            assert_eq!(bytes, [3; 256]);
        }
    }
}

fn a_write_beyond_the_smaller_mtu_is_refused(p: &Provider) {
    for mtus in DIFFERENT {
        for bytes in [257, 1024, 5000] {
            let (mut a, mut b) = with_mtus(p, mtus);
            let remote = b.region.remote(64);
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            assert_eq!(a.outcome(), (1, WcStatus::Success));
            let remote = b.region.remote(1024);
            a.post(2, RdmaWrite { remote }, a.region.sge(1024, bytes), SIGNALED)
                .unwrap();
            let remote = b.region.remote(0);
            a.go(3, RdmaWrite { remote }, Inline(&[1; 8]));
            assert_eq!(a.outcome(), (2, WcStatus::RemInvReqErr), "{mtus:?} {bytes}");
            assert_eq!(a.outcome(), (3, WcStatus::WrFlushErr));
            untouched(&mut b);
            until("the responder fails", || b.qp.state() == QpState::Err);
        }
    }
}

fn a_send_beyond_the_smaller_mtu_is_refused(p: &Provider) {
    for mtus in DIFFERENT {
        for bytes in [257, 1024, 5000] {
            let (mut a, mut b) = with_mtus(p, mtus);
            b.receive(1, &[b.region.sge(1024, 8192)]);
            a.go(2, Send {}, a.region.sge(1024, bytes));
            assert_eq!(a.outcome(), (2, WcStatus::RemInvReqErr), "{mtus:?} {bytes}");
            let (wr_id, status) = b.outcome();
            assert!(wr_id == 1 && status != WcStatus::Success, "{status}");
        }
    }
}

pub mod uc {
    //! What the ends of an unreliable connection need not agree about.

    use super::super::transports::ends::{self, Receives, Stands, Talker};
    use super::*;

    rules! {
        "packets::uc", "What the ends of an unreliable connection have to agree about.", needs [Uc];
        a_message_may_have_any_psn: "IBTA vol. 1, 9.8.2.2",
            "The first packet of a message is taken whatever its PSN is.";
        a_message_beyond_the_smaller_mtu_is_dropped: "IBTA vol. 1, 9.8.2.2",
            "Its packets have a wrong length; the requester does not learn that. Shorter ones arrive.";
    }

    fn to_rts(end: &mut Talker<Uc>, peer: &Talker<Uc>, psns: (u32, u32), path_mtu: Mtu) {
        for (to, mask) in [
            (QpState::Init, TO_INIT),
            (QpState::Rtr, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN),
            (QpState::Rts, M::SQ_PSN),
        ] {
            let attr = QpAttr {
                rq_psn: psns.0,
                sq_psn: psns.1,
                path_mtu,
                ..ends::attr(end.device(), to, &peer.endpoint())
            };
            end.modify(&attr, mask | M::STATE).expect("connects");
        }
    }

    fn a_message_may_have_any_psn(p: &Provider) {
        for psn in [FIRST, later(AWAY), later(0x100_0000 - AWAY)] {
            let (mut a, mut b) = ends::ends::<Uc>(p);
            to_rts(&mut a, &b, (7, FIRST), Mtu::Mtu1024);
            to_rts(&mut b, &a, (psn, 7), Mtu::Mtu1024);
            let remote = b.region().remote(0);
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            a.completes(1, WcStatus::Success);
            until("the WRITE", || {
                b.region().word(0).load(Ordering::Acquire) != 0
            });
        }
    }

    fn a_message_beyond_the_smaller_mtu_is_dropped(p: &Provider) {
        for mtus in DIFFERENT {
            let (mut a, mut b) = ends::ends::<Uc>(p);
            to_rts(&mut a, &b, (7, FIRST), mtus[0]);
            to_rts(&mut b, &a, (FIRST, 7), mtus[1]);
            let remote = b.region().remote(1024);
            for bytes in [257, 1024] {
                let sge = a.region().sge(0, bytes);
                a.go(1, RdmaWrite { remote }, sge);
                a.completes(1, WcStatus::Success);
            }
            a.region().write(0, &[1; 2048]);
            for bytes in [257, 2048] {
                let sge = a.region().sge(0, bytes);
                a.go(2, RdmaWrite { remote }, sge);
                a.completes(2, WcStatus::Success);
            }
            std::thread::sleep(p.quiet.0.min(Duration::from_millis(50)));
            // Behind them, so that it is not too early to look.
            let remote = b.region().remote(0);
            a.go(3, RdmaWrite { remote }, Inline(&[1; 8]));
            a.completes(3, WcStatus::Success);
            until("the WRITE", || {
                b.region().word(0).load(Ordering::Acquire) != 0
            });
            let mut found = [0; 8];
            b.region().read(1024, &mut found);
            assert_eq!(found, [0; 8], "{mtus:?}");
        }
    }
}

pub mod xrc {
    //! What an initiator and its target have to agree about.

    use super::super::xrc::{initiator, srq};
    use super::*;
    use bellwire::Endpoint;

    rules! {
        "packets::xrc", "What an XRC initiator and its target have to agree about.", needs [Xrc, Srq];
        a_wrong_psn_is_given_up: "IBTA vol. 1, 9.7.5.1.2; annex A14",
            "As on a reliable connection.";
    }

    fn a_wrong_psn_is_given_up(p: &Provider) {
        let device = p.device();
        let pd = device.alloc_pd();
        let xrcd = device.open_xrcd().expect("a domain");
        let mut arrivals = device.create_cq(256).expect("a queue");
        let srq = srq(&pd, &xrcd, &mut arrivals);
        let memory = region(&pd, 4096);
        for (away, status) in [(0, WcStatus::Success), (AWAY, WcStatus::RetryExcErr)] {
            let (mut qp, mut cq) = initiator(&pd);
            let target = xrcd.create_target().expect("a target");
            let attr = impatient();
            qp.init(&attr).expect("INIT");
            target.init(&attr).expect("INIT");
            qp.connect(&target.endpoint(), &attr).expect("RTS");
            let endpoint = qp.endpoint();
            // The initiator is ahead.
            let psn = endpoint.psn.wrapping_sub(away) & 0xff_ffff;
            target
                .connect(&Endpoint { psn, ..endpoint }, &attr)
                .expect("RTS");
            let remote = memory.remote(0);
            let to = srq.srq_num();
            // SAFETY: inline data.
            unsafe {
                qp.sq()
                    .post(1, to, RdmaWrite { remote }, Inline(&[1; 8]), SIGNALED)
            }
            .expect("room");
            qp.sq().ring();
            let done = wait(&mut cq);
            assert_eq!((done.wr_id, done.status()), (1, status));
            let written = memory.word(0).swap(0, Ordering::AcqRel) != 0;
            assert_eq!(written, status == WcStatus::Success);
        }
    }
}
