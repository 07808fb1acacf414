//! XRC domains that are shared by a file, targets that are opened by their number, and the end of
//! shared receive queues for XRC.

use super::xrc::{World, connect, initiator, srq};
use crate::provider::Provider;
use crate::rule::rules;
use crate::support::impatient;
use bellwire::event::{Element, EventType};
use bellwire::state::{QpAttr, QpAttrMask, QpState};
use bellwire::wqe::{NoPayload, Send};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Error, SrqInit, XrcdMode};
use bellwire_tests::events::{event, no_event};
use bellwire_tests::fixture::*;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::time::Duration;

rules! {
    "xrc::domains", "XRC domains of files, targets opened by their number, the end of queues for XRC.",
        needs [Xrc, Srq];
    who_names_the_same_file_has_the_same_domain: "ibv_open_xrcd(3), fd",
        "A target of the one reaches queues of the other; of another file it does not.";
    the_mode_says_whether_there_may_be_one: "ibv_open_xrcd(3), oflags",
        "O_CREAT, O_EXCL, or neither. The domain goes with the last who has it open.";
    a_target_is_opened_by_its_number: "ibv_open_qp(3)",
        "One target: what is changed by one is seen by the other.";
    a_target_goes_with_the_last_who_has_it: "ibv_open_qp(3)",
        "Who created it may go before who opened it.";
    only_targets_of_the_domain_are_opened: "ibv_open_qp(3)",
        "Numbers of nobody, of initiators, and of other domains are refused.";
    who_opened_a_target_does_not_reset_it: "bellwire",
        "RESET is refused there, and nothing changes.";
    the_queues_limit_raises_an_event [AsyncEvents]: "ibv_modify_srq(3), IBV_SRQ_LIMIT",
        "As of any shared receive queue, under the number that requests name.";
    destroying_a_queue_reports_what_was_not_polled: "ibv_destroy_srq(3)",
        "Each receive once; those whose completions were not polled, too, which are gone.";
    a_dropped_queue_leaves_its_completion_queue: "ibv_destroy_srq(3)",
        "What completed is reported, and other queues go on completing there.";
    a_queue_goes_while_messages_come: "bellwire",
        "Each receive is reported once, by a completion or by the end; those of another queue that completes \
         there, by completions.";
}

const OK: WcStatus = WcStatus::Success;

/// A file of its own, without a name.
fn file() -> File {
    // SAFETY: a name that ends with a zero; the descriptor is new, and nobody else's.
    unsafe {
        let fd = libc::memfd_create(c"xrcd".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    }
}

fn who_names_the_same_file_has_the_same_domain(p: &Provider) {
    let mut w = World::new(p);
    let (one, another) = (file(), file());
    let open = |file: &File| w.device.open_xrcd_of(file.as_fd(), XrcdMode::Create);
    let (first, second) = (open(&one).expect("a domain"), open(&one).expect("the same"));
    let other = open(&another).expect("another");
    let queues = [&second, &other].map(|xrcd| srq(&w.pd, xrcd, &mut w.arrivals));
    for (queue, status) in queues.into_iter().zip([OK, WcStatus::RemInvReqErr]) {
        (w.qp, w.cq) = initiator(&w.pd);
        w.target = first.create_target().expect("a target");
        connect(&mut w.qp, &w.target);
        let number = queue.srq_num();
        w.srqs[0] = queue;
        w.receive(0, 1);
        w.go(number, Send {}, NoPayload);
        w.completes(status);
    }
    assert_eq!(wait(&mut w.arrivals).wr_id, 1);
    nothing(&mut w.arrivals, w.quiet);
}

fn the_mode_says_whether_there_may_be_one(p: &Provider) {
    let device = p.device();
    let file = file();
    let open = |mode| device.open_xrcd_of(file.as_fd(), mode);
    for _ in 0..2 {
        let refused = open(XrcdMode::Open);
        let there_is_none = matches!(refused, Err(Error::XrcdOfFile { exists: false }));
        assert!(there_is_none, "{refused:?}");
        let first = open(XrcdMode::CreateNew).expect("there is none");
        let refused = open(XrcdMode::CreateNew);
        let there_is_one = matches!(refused, Err(Error::XrcdOfFile { exists: true }));
        assert!(there_is_one, "{refused:?}");
        let second = open(XrcdMode::Create).expect("there is one");
        drop(first);
        let third = open(XrcdMode::Open).expect("there is one");
        drop(second);
        // A target has it open, too.
        let target = third.create_target().expect("a target");
        drop(third);
        drop(open(XrcdMode::Open).expect("there is one"));
        drop(target);
    }
}

fn a_target_is_opened_by_its_number(p: &Provider) {
    let mut w = World::new(p);
    let created = w.xrcd.create_target().expect("a target");
    let opened = w.xrcd.open_target(created.qp_num()).expect("it is there");
    assert_eq!(opened.qp_num(), created.qp_num());
    assert_eq!(opened.endpoint(), created.endpoint());
    assert_eq!(opened.state(), QpState::Reset);
    let (mut qp, cq) = initiator(&w.pd);
    // By both.
    let attr = impatient();
    qp.init(&attr).expect("INIT");
    created.init(&attr).expect("INIT");
    assert_eq!(opened.state(), QpState::Init);
    qp.connect(&opened.endpoint(), &attr).expect("RTS");
    opened.connect(&qp.endpoint(), &attr).expect("RTS");
    assert_eq!(created.query(), opened.query());
    (w.qp, w.cq) = (qp, cq);
    w.receive(1, 4);
    w.go(w.number(1), Send {}, NoPayload);
    w.completes(OK);
    let done = wait(&mut w.arrivals);
    assert_eq!((done.wr_id, done.qp_num), (4, opened.qp_num()));
}

fn a_target_goes_with_the_last_who_has_it(p: &Provider) {
    let mut w = World::new(p);
    let number = w.target.qp_num();
    let opened = w.xrcd.open_target(number).expect("it is there");
    let again = w.xrcd.open_target(number).expect("it is there");
    w.target = w.xrcd.create_target().expect("another target");
    drop(again);
    w.receive(0, 1);
    w.go(w.number(0), Send {}, NoPayload);
    w.completes(OK);
    assert_eq!(wait(&mut w.arrivals).wr_id, 1);
    drop(opened);
    let gone = w.xrcd.open_target(number);
    assert!(matches!(gone, Err(Error::UnknownQp { .. })), "{gone:?}");
    w.go(w.number(0), Send {}, NoPayload);
    w.completes(WcStatus::RetryExcErr);
}

fn only_targets_of_the_domain_are_opened(p: &Provider) {
    let w = World::new(p);
    let other = w.device.open_xrcd().expect("a domain");
    let theirs = other.create_target().expect("a target");
    let number = w.target.qp_num();
    for bad in [
        0,
        theirs.qp_num(),
        w.qp.qp_num(),
        number ^ 0x40_0000,
        u32::MAX,
    ] {
        let refused = w.xrcd.open_target(bad);
        let qpn = matches!(refused, Err(Error::UnknownQp { qpn }) if qpn == bad);
        assert!(qpn, "{bad:#x}: {refused:?}");
    }
    drop(w.xrcd.open_target(number).expect("it is there"));
    assert_eq!(w.target.state(), QpState::Rts);
}

fn who_opened_a_target_does_not_reset_it(p: &Provider) {
    let w = World::new(p);
    let opened = w.xrcd.open_target(w.target.qp_num()).expect("it is there");
    let reset = QpAttr::default();
    let refused = opened.modify(&reset, QpAttrMask::STATE);
    assert!(
        matches!(refused, Err(Error::ResetOfOpened { .. })),
        "{refused:?}"
    );
    assert_eq!(opened.state(), QpState::Rts);
    w.target.modify(&reset, QpAttrMask::STATE).expect("RESET");
    assert_eq!(opened.state(), QpState::Reset);
    opened.init(&ConnectAttr::default()).expect("INIT");
    assert_eq!(w.target.state(), QpState::Init);
}

fn the_queues_limit_raises_an_event(p: &Provider) {
    let mut w = World::new(p);
    // The first packet of a connection raises an event of its own.
    w.receive(1, 9);
    w.go(w.number(1), Send {}, NoPayload);
    w.completes(OK);
    while readable(&w) {
        event(&w.device);
    }
    for _ in 0..2 {
        (0..3).for_each(|wr_id| w.receive(0, wr_id));
        w.srqs[0].modify(2).expect("within the queue");
        assert_eq!(w.srqs[0].query().srq_limit, 2);
        for count in 0..3 {
            assert_eq!(w.srqs[0].query().srq_limit, if count < 2 { 2 } else { 0 });
            w.go(w.number(0), Send {}, NoPayload);
            w.completes(OK);
            if count == 1 {
                let reached = (EventType::SrqLimitReached, Element::Srq(w.number(0)));
                assert_eq!(event(&w.device), reached);
            }
        }
        no_event(&w.device, w.quiet);
    }
}

fn readable(w: &World) -> bool {
    bellwire_tests::readiness::readable(w.device.async_fd(), w.quiet.0)
}

fn destroying_a_queue_reports_what_was_not_polled(p: &Provider) {
    let mut w = World::new(p);
    let number = w.number(0);
    (0..5).for_each(|wr_id| w.receive(0, wr_id));
    (10..12).for_each(|wr_id| w.receive(1, wr_id));
    for srqn in [number, w.number(1), number] {
        w.go(srqn, Send {}, NoPayload);
        w.completes(OK);
    }
    assert_eq!(wait(&mut w.arrivals).wr_id, 0);
    let mut reported = Vec::new();
    let queue = w.srqs.remove(0);
    let destroyed = queue.destroy(|wr_id, _| reported.push(wr_id));
    destroyed.map_err(|(_, error)| error).expect("unused");
    reported.sort_unstable();
    assert_eq!(reported, [1, 2, 3, 4]);
    // That of the other queue, in between, is there.
    assert_eq!(wait(&mut w.arrivals).wr_id, 10);
    nothing(&mut w.arrivals, w.quiet);
    w.go(w.number(0), Send {}, NoPayload);
    w.completes(OK);
    assert_eq!(wait(&mut w.arrivals).wr_id, 11);
}

fn a_dropped_queue_leaves_its_completion_queue(p: &Provider) {
    let mut w = World::new(p);
    // More than there is room for at once.
    for _ in 0..40 {
        let sizes = SrqInit {
            max_wr: 60,
            ..SrqInit::default()
        };
        let queue = w.pd.create_xrc_srq(&w.xrcd, &mut w.arrivals, &sizes);
        w.srqs.push(queue.expect("room for what is there"));
        let number = w.number(2);
        (0..3).for_each(|wr_id| w.receive(2, wr_id));
        w.receive(0, 7);
        for srqn in [number, w.number(0), number] {
            w.go(srqn, Send {}, NoPayload);
            w.completes(OK);
        }
        drop(w.srqs.pop());
        for expected in [0, 7, 1] {
            let done = wait(&mut w.arrivals);
            assert_eq!((done.wr_id, done.status()), (expected, OK));
        }
        nothing(&mut w.arrivals, Quiet(Duration::ZERO));
    }
}

fn a_queue_goes_while_messages_come(p: &Provider) {
    const THERE: u64 = 40;
    const HERE: u64 = 6;
    let mut w = World::new(p);
    for round in 0..100 {
        let sizes = SrqInit {
            max_wr: THERE as u32,
            ..SrqInit::default()
        };
        let queue = w.pd.create_xrc_srq(&w.xrcd, &mut w.arrivals, &sizes);
        w.srqs.push(queue.expect("room for what is there"));
        (0..THERE).for_each(|wr_id| w.receive(2, wr_id));
        let (mut sender, mut cq) = initiator(&w.pd);
        let target = w.xrcd.create_target().expect("a target");
        connect(&mut sender, &target);
        let number = w.number(2);
        let storm = std::thread::spawn(move || {
            for wr_id in 0..THERE {
                let posted = sender.sq().post_empty(wr_id, number, Send {}, SIGNALED);
                posted.expect("room");
                sender.sq().ring();
            }
            let statuses: Vec<_> = (0..THERE).map(|_| wait(&mut cq).status()).collect();
            let good = statuses.iter().take_while(|status| **status == OK).count();
            let refused = [WcStatus::RemInvReqErr, WcStatus::WrFlushErr];
            assert!(statuses[good..].iter().all(|one| refused.contains(one)));
            good as u64
        });
        // Messages to a queue that stays, among them.
        for wr_id in 0..HERE {
            w.receive(0, 100 + wr_id);
            w.go(w.number(0), Send {}, NoPayload);
        }
        let mut reported: Vec<u64> = (0..round % 5)
            .map(|_| wait(&mut w.arrivals).wr_id)
            .collect();
        let queue = w.srqs.pop().expect("the last one");
        let destroyed = queue.destroy(|wr_id, _| reported.push(wr_id));
        destroyed.map_err(|(_, error)| error).expect("unused");
        (0..HERE).for_each(|_| w.completes(OK));
        let executed = storm.join().expect("it ends");
        assert!(executed <= THERE);
        while reported.len() < (THERE + HERE) as usize {
            reported.push(wait(&mut w.arrivals).wr_id);
        }
        nothing(&mut w.arrivals, Quiet(Duration::ZERO));
        reported.sort_unstable();
        let all: Vec<_> = (0..THERE).chain(100..100 + HERE).collect();
        assert_eq!(reported, all);
    }
}
