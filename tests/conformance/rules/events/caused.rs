//! Events that the device causes: each by what the specification says causes it. Every rule also sees
//! that the event comes once, to the context of what it is about, or to all where it is a port or
//! the device.

use super::World;
use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{TO_RTS, quick_rnr};
use crate::support::{attr, bring, completes, event, go_to, strike};
use bellwire::event::{Element, EventType};
use bellwire::soft::Fault;
use bellwire::state::{QpAttr, QpAttrMask, QpState};
use bellwire::wqe::*;
use bellwire::wr::{MwType, Remote, WcStatus};
use bellwire::{
    AccessFlags, ConnectAttr, Cq, Cqs, Error, PortState, Qp, QpInit, Region, Srq, SrqInit,
};
use bellwire_tests::fixture::*;

rules! {
    "events::caused", "Asynchronous events by what causes them: whom they are about, and that each comes once, \
     to the context that has to know.", needs [Rc, AsyncEvents];
    cq_err: "IBTA vol. 1, 11.6.3, CQ error",
        "A completion queue that overran raises CQ_ERR, once, however much it loses.";
    qp_fatal: "IBTA vol. 1, 11.6.3, local work queue catastrophic error",
        "Every queue pair with a queue on a completion queue that overran goes to ERR and raises \
         QP_FATAL.";
    qp_req_err: "IBTA vol. 1, 11.6.3, invalid request local work queue error",
        "A responder that is asked for what its queue pair does not allow raises QP_REQ_ERR.";
    qp_access_err: "IBTA vol. 1, 11.6.3, local access violation work queue error",
        "A responder that is given a wrong rkey raises QP_ACCESS_ERR.";
    qp_access_err_by_a_misaligned_atomic: "IBTA vol. 1, 11.6.3; ibv_get_async_event(3)",
        "A responder that is asked for a misaligned atomic raises QP_ACCESS_ERR.";
    a_responder_with_nothing_to_blame_is_silent: "IBTA vol. 1, 9.7.5.2.8 and 11.6.3",
        "Neither a requester's own error nor a missing receive raises anything at the responder.";
    comm_est: "IBTA vol. 1, 11.6.3, communication established; ibv_get_async_event(3)",
        "The first message that comes in RTR raises COMM_EST; the next ones do not.";
    no_comm_est_in_rts: "IBTA vol. 1, 11.6.3, communication established",
        "The first message that comes in RTS raises nothing.";
    sq_drained_with_nothing_started: "IBTA vol. 1, 10.3.1, SQD, and 11.6.3, send queue drained",
        "Going to SQD with `en_sqd_async_notify` and nothing in progress raises SQ_DRAINED.";
    sq_drained_when_the_started_is_finished: "IBTA vol. 1, 10.3.1, SQD, and 11.6.3, send queue drained",
        "With a request in progress SQ_DRAINED comes when that is finished, not before; what is \
         behind it is not begun.";
    sq_drained_is_for_who_asked: "ibv_modify_qp(3), en_sqd_async_notify",
        "Going to SQD without `en_sqd_async_notify` raises nothing.";
    srq_limit_reached [Srq]: "IBTA vol. 1, 10.2.9 and 11.6.3; ibv_modify_srq(3)",
        "The receive that leaves fewer than the limit raises SRQ_LIMIT_REACHED; later ones do not.";
    srq_limit_reached_again [Srq]: "IBTA vol. 1, 10.2.9; ibv_modify_srq(3)",
        "Set again, the limit raises the event again.";
    srq_err [Srq, FaultInjection]: "IBTA vol. 1, 10.2.9 and 11.6.3, SRQ catastrophic error",
        "A shared receive queue that breaks raises SRQ_ERR, then takes its queue pairs to ERR, each \
         with QP_LAST_WQE_REACHED.";
    qp_last_wqe_reached [Srq]: "IBTA vol. 1, 10.3.1 and 11.6.3, last WQE reached",
        "A queue pair on a shared receive queue that goes to ERR raises QP_LAST_WQE_REACHED.";
    qp_last_wqe_reached_after_a_failure [Srq]: "IBTA vol. 1, 10.3.1 and 11.6.3, last WQE reached",
        "So does one that a failed request takes there.";
    no_last_wqe_without_a_shared_queue: "IBTA vol. 1, 11.6.3, last WQE reached",
        "A queue pair with receives of its own goes to ERR without an event.";
    port_err: "IBTA vol. 1, 11.6.3, port error",
        "A link that goes down raises PORT_ERR in every context; the port is not active any more.";
    port_active: "IBTA vol. 1, 11.6.3, port active",
        "A link that comes up raises PORT_ACTIVE in every context; the port is active.";
    a_port_reports_changes: "IBTA vol. 1, 11.6.3",
        "Taking down what is down, or up what is up, raises nothing.";
    device_fatal [FaultInjection]: "IBTA vol. 1, 11.6.3, local catastrophic error",
        "A device that breaks raises DEVICE_FATAL in every context, once.";
    device_fatal_ends_what_is_in_flight [FaultInjection]: "ibv_get_async_event(3); IBV_WC_FATAL_ERR",
        "Everything posted and not executed completes with FATAL_ERR, and the queue pairs are in ERR.";
    device_fatal_is_answered_by_verbs [FaultInjection]: "ibv_get_async_event(3)",
        "A broken device creates, registers and modifies nothing any more.";
    device_fatal_lets_everything_go [FaultInjection]: "ibv_get_async_event(3)",
        "On a broken device everything can be destroyed, with requests and completions outstanding.";
}

const PORT: Element = Element::Port(1);

fn of(qp: &Qp) -> Element {
    Element::Qp(qp.qp_num())
}

fn connected(w: &World, connect: &ConnectAttr) -> (End, End) {
    pair_with(&w.own, w.quiet, connect)
}

/// A completion queue that overran, and three queue pairs on it, one of them with its receives only.
struct Overrun {
    cq: Cq,
    _other: Cq,
    qps: [Qp; 3],
}

fn overrun(w: &World) -> Overrun {
    let init = QpInit {
        reserve_cq: false,
        ..init()
    };
    let pd = w.own.alloc_pd();
    let (mut cq, mut other) = (w.own.create_cq(8).unwrap(), w.own.create_cq(256).unwrap());
    let mut qps = [
        pd.create_qp(&mut cq, &init).unwrap(),
        pd.create_qp(&mut cq, &init).unwrap(),
        (pd.create_qp(Cqs::Split(&mut other, &mut cq), &init)).unwrap(),
    ];
    for qp in &mut qps {
        qp.init(&ConnectAttr::default()).unwrap();
        (qp.connect(&qp.endpoint(), &ConnectAttr::default())).unwrap();
    }
    let remote = Remote { addr: 0, rkey: 0 };
    for wr_id in 0..u64::from(cq.capacity()) + 4 {
        post(
            &mut qps[0],
            wr_id,
            RdmaWrite { remote },
            NoPayload,
            SIGNALED,
        )
        .unwrap();
    }
    qps[0].sq().ring();
    Overrun {
        cq,
        _other: other,
        qps,
    }
}

fn cq_err(p: &Provider) {
    let w = World::new(p);
    let mut world = overrun(&w);
    let expected = (EventType::CqErr, Element::Cq(world.cq.cqn()));
    let got: Vec<_> = (0..4).map(|_| event(&w.own)).collect();
    assert_eq!(got.iter().filter(|&&one| one == expected).count(), 1);
    assert!(world.cq.overrun());
    w.silent();
    // A queue on it that is full says so: no poll makes room.
    let remote = Remote { addr: 0, rkey: 0 };
    let qp = &mut world.qps[0];
    let mut posts = (0..).map(|_| post(qp, 1, RdmaWrite { remote }, NoPayload, SIGNALED));
    assert_eq!(posts.find_map(Result::err), Some(PostError::CqFailed));
    // SAFETY: no memory is named.
    let mut receives = (0..).map(|_| unsafe { world.qps[1].rq().post(1, &[]) });
    assert_eq!(receives.find_map(Result::err), Some(PostError::CqFailed));
}

fn qp_fatal(p: &Provider) {
    let w = World::new(p);
    let world = overrun(&w);
    let got: Vec<_> = (0..4).map(|_| event(&w.own)).collect();
    for qp in &world.qps {
        let fatal = (EventType::QpFatal, of(qp));
        assert_eq!(got.iter().filter(|&&one| one == fatal).count(), 1);
        until("ERR", || qp.state() == QpState::Err);
    }
    w.silent();
}

fn qp_req_err(p: &Provider) {
    let w = World::new(p);
    let closed = ConnectAttr {
        access: AccessFlags::REMOTE_WRITE,
        ..ConnectAttr::default()
    };
    let (mut a, b) = connected(&w, &closed);
    let remote = b.region.remote(0);
    a.go(1, RdmaRead { remote }, a.region.sge(0, 8));
    completes(&mut a, 1, WcStatus::RemInvReqErr);
    w.delivered(&[(EventType::QpReqErr, of(&b.qp))]);
    assert_eq!(b.qp.state(), QpState::Err);
}

fn qp_access_err_by_a_misaligned_atomic(p: &Provider) {
    let w = World::new(p);
    let (mut a, b) = connected(&w, &ConnectAttr::default());
    let remote = b.region.remote(4);
    a.go(1, AtomicFetchAndAdd { remote, add: 1 }, a.region.sge(0, 8));
    completes(&mut a, 1, WcStatus::RemInvReqErr);
    w.delivered(&[(EventType::QpAccessErr, of(&b.qp))]);
    assert_eq!(b.qp.state(), QpState::Err);
}

fn qp_access_err(p: &Provider) {
    let w = World::new(p);
    let (mut a, b) = connected(&w, &ConnectAttr::default());
    let remote = Remote { addr: 0, rkey: 1 };
    a.go(1, RdmaWrite { remote }, Inline(&[1]));
    completes(&mut a, 1, WcStatus::RemAccessErr);
    w.delivered(&[(EventType::QpAccessErr, of(&b.qp))]);
    assert_eq!(b.qp.state(), QpState::Err);
}

fn a_responder_with_nothing_to_blame_is_silent(p: &Provider) {
    let w = World::new(p);
    let connect = ConnectAttr {
        rnr_retry: 0,
        ..ConnectAttr::default()
    };
    let (mut a, _b) = connected(&w, &connect);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RnrRetryExcErr);
    let (mut a, _b) = connected(&w, &connect);
    let foreign = region(&w.own.alloc_pd(), 64);
    a.go(1, Send {}, foreign.sge(0, 8));
    completes(&mut a, 1, WcStatus::LocProtErr);
    w.silent();
}

/// A requester in RTS, and its peer in RTR with receives.
fn established(w: &World) -> (End, End) {
    let (mut a, mut b) = ends(&w.own, w.quiet);
    bring(&mut b.qp, &a.qp.endpoint(), QpState::Rtr);
    bring(&mut a.qp, &b.qp.endpoint(), QpState::Rts);
    (70..74).for_each(|wr_id| b.receive(wr_id, &[]));
    (a, b)
}

fn send(a: &mut End, b: &mut End, to: u64) {
    a.go(1, Send {}, NoPayload);
    completes(a, 1, WcStatus::Success);
    completes(b, to, WcStatus::Success);
}

fn comm_est(p: &Provider) {
    let w = World::new(p);
    let (mut a, mut b) = established(&w);
    w.silent();
    send(&mut a, &mut b, 70);
    w.delivered(&[(EventType::CommEst, of(&b.qp))]);
    send(&mut a, &mut b, 71);
    let attr = attr(&w.own, QpState::Rts, &a.qp.endpoint());
    b.qp.modify(&attr, TO_RTS | QpAttrMask::STATE).unwrap();
    send(&mut a, &mut b, 72);
    w.silent();
}

fn no_comm_est_in_rts(p: &Provider) {
    let w = World::new(p);
    let (mut a, mut b) = established(&w);
    let attr = attr(&w.own, QpState::Rts, &a.qp.endpoint());
    b.qp.modify(&attr, TO_RTS | QpAttrMask::STATE).unwrap();
    send(&mut a, &mut b, 70);
    w.silent();
}

fn drain_with_event(end: &mut End) {
    let attr = QpAttr {
        qp_state: QpState::Sqd,
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    end.qp.modify(&attr, mask).unwrap();
}

fn sq_drained_with_nothing_started(p: &Provider) {
    let w = World::new(p);
    let (mut a, _b) = connected(&w, &ConnectAttr::default());
    for _ in 0..3 {
        drain_with_event(&mut a);
        w.delivered(&[(EventType::SqDrained, of(&a.qp))]);
        assert!(!a.qp.query().sq_draining);
        go_to(&mut a, QpState::Rts);
    }
    w.silent();
}

fn sq_drained_when_the_started_is_finished(p: &Provider) {
    let w = World::new(p);
    let (mut a, mut b) = connected(&w, &quick_rnr());
    a.go(1, Send {}, NoPayload);
    until("a started request", || {
        drain_with_event(&mut a);
        let started = a.qp.query().sq_draining;
        if !started {
            w.delivered(&[(EventType::SqDrained, of(&a.qp))]);
            go_to(&mut a, QpState::Rts);
        }
        started
    });
    a.go(2, Send {}, NoPayload);
    a.nothing();
    w.silent();
    b.receive(70, &[]);
    b.receive(71, &[]);
    completes(&mut a, 1, WcStatus::Success);
    completes(&mut b, 70, WcStatus::Success);
    w.delivered(&[(EventType::SqDrained, of(&a.qp))]);
    a.nothing();
    go_to(&mut a, QpState::Rts);
    completes(&mut a, 2, WcStatus::Success);
    w.silent();
}

fn sq_drained_is_for_who_asked(p: &Provider) {
    let w = World::new(p);
    let (mut a, _b) = connected(&w, &ConnectAttr::default());
    go_to(&mut a, QpState::Sqd);
    w.silent();
    // Having asked once is for once.
    go_to(&mut a, QpState::Rts);
    drain_with_event(&mut a);
    w.delivered(&[(EventType::SqDrained, of(&a.qp))]);
    go_to(&mut a, QpState::Rts);
    go_to(&mut a, QpState::Sqd);
    w.silent();
}

/// A queue pair on a shared receive queue, and its peer.
struct Sharer {
    a: End,
    qp: Qp,
    cq: Cq,
}

struct Shared {
    srq: Srq,
    sharers: [Sharer; 2],
}

fn shared(w: &World, receives: u64) -> Shared {
    let pd = w.own.alloc_pd();
    let mut srq = pd.create_srq(&SrqInit::default()).unwrap();
    for wr_id in 0..receives {
        // SAFETY: a receive without memory.
        unsafe { srq.post(wr_id, &[]) }.unwrap();
    }
    srq.ring();
    let sharers = [(); 2].map(|()| {
        let mut a = End::new(&pd, w.quiet, &init());
        let (send, recv) = init().cq_entries();
        let mut cq = w.own.create_cq(4 * (send + recv)).unwrap();
        let mut qp = pd.create_qp_on_srq::<Rc>(&mut cq, &srq, &init()).unwrap();
        connect_with(&mut a.qp, &mut qp, &ConnectAttr::default());
        Sharer { a, qp, cq }
    });
    Shared { srq, sharers }
}

impl Shared {
    /// To one after the other.
    fn send(&mut self, count: usize) {
        for at in 0..count {
            let to = &mut self.sharers[at % 2];
            to.a.go(1, Send {}, NoPayload);
            completes(&mut to.a, 1, WcStatus::Success);
            assert_eq!(wait(&mut to.cq).status(), WcStatus::Success);
        }
    }

    fn element(&self) -> Element {
        Element::Srq(self.srq.srq_num())
    }
}

fn srq_limit_reached(p: &Provider) {
    let w = World::new(p);
    let mut shared = shared(&w, 6);
    shared.srq.modify(4).unwrap();
    w.silent();
    // Four are not fewer than four.
    shared.send(2);
    w.silent();
    shared.send(1);
    w.delivered(&[(EventType::SrqLimitReached, shared.element())]);
    assert_eq!(shared.srq.query().srq_limit, 0);
    shared.send(3);
    w.silent();
}

fn srq_limit_reached_again(p: &Provider) {
    let w = World::new(p);
    let mut shared = shared(&w, 10);
    for limit in [9, 6, 3] {
        shared.srq.modify(limit).unwrap();
        shared.send(2);
        w.delivered(&[(EventType::SrqLimitReached, shared.element())]);
        shared.send(1);
        w.silent();
    }
}

fn srq_err(p: &Provider) {
    let w = World::new(p);
    let shared = shared(&w, 6);
    strike(&w.own, Fault::SrqErr(shared.srq.srq_num()));
    assert_eq!(event(&w.own), (EventType::SrqErr, shared.element()));
    let got = [(); 2].map(|()| event(&w.own));
    for sharer in &shared.sharers {
        let last = (EventType::QpLastWqeReached, of(&sharer.qp));
        assert!(got.contains(&last), "{got:?}");
        until("ERR", || sharer.qp.state() == QpState::Err);
        assert_eq!(sharer.a.qp.state(), QpState::Rts);
    }
    w.silent();
}

fn qp_last_wqe_reached(p: &Provider) {
    let w = World::new(p);
    let mut shared = shared(&w, 6);
    shared.sharers[1].qp.to_error().unwrap();
    let last = (EventType::QpLastWqeReached, of(&shared.sharers[1].qp));
    w.delivered(&[last]);
    // It is there already.
    shared.sharers[1].qp.to_error().unwrap();
    w.silent();
    // The other goes on.
    assert_eq!(shared.sharers[0].qp.state(), QpState::Rts);
    shared.send(1);
    nothing(&mut shared.sharers[1].cq, p.quiet);
}

fn qp_last_wqe_reached_after_a_failure(p: &Provider) {
    let w = World::new(p);
    let mut shared = shared(&w, 6);
    let Sharer { qp, cq, .. } = &mut shared.sharers[0];
    let remote = Remote { addr: 0, rkey: 1 };
    post(qp, 1, RdmaWrite { remote }, Inline(&[1]), SIGNALED).unwrap();
    qp.sq().ring();
    assert_eq!(wait(cq).status(), WcStatus::RemAccessErr);
    let got = [(); 2].map(|()| event(&w.own));
    let last = (EventType::QpLastWqeReached, of(qp));
    assert!(got.contains(&last), "{got:?}");
    w.silent();
}

fn no_last_wqe_without_a_shared_queue(p: &Provider) {
    let w = World::new(p);
    let (mut a, _b) = connected(&w, &ConnectAttr::default());
    a.receive(70, &[]);
    a.qp.to_error().unwrap();
    completes(&mut a, 70, WcStatus::WrFlushErr);
    w.silent();
}

fn port_err(p: &Provider) {
    let w = World::new(p);
    w.own.as_soft().unwrap().set_port_up(false);
    w.delivered_to_all(&[(EventType::PortErr, PORT)]);
    assert_eq!(w.other.query_port(1).unwrap().state, PortState::Down);
}

fn port_active(p: &Provider) {
    let w = World::new(p);
    w.own.as_soft().unwrap().set_port_up(false);
    w.delivered_to_all(&[(EventType::PortErr, PORT)]);
    w.other.as_soft().unwrap().set_port_up(true);
    w.delivered_to_all(&[(EventType::PortActive, PORT)]);
    assert_eq!(w.own.query_port(1).unwrap().state, PortState::Active);
}

fn a_port_reports_changes(p: &Provider) {
    let w = World::new(p);
    for up in [true, false, false, true, true] {
        w.own.as_soft().unwrap().set_port_up(up);
    }
    w.delivered_to_all(&[(EventType::PortErr, PORT), (EventType::PortActive, PORT)]);
}

fn device_fatal(p: &Provider) {
    let w = World::new(p);
    let fatal = (EventType::DeviceFatal, Element::Device);
    strike(&w.own, Fault::DeviceFatal);
    w.delivered_to_all(&[fatal]);
    strike(&w.own, Fault::DeviceFatal);
    w.silent();
}

fn device_fatal_ends_what_is_in_flight(p: &Provider) {
    let w = World::new(p);
    let (mut a, mut b) = connected(&w, &ConnectAttr::default());
    // The first waits for a receive, the second for the first.
    a.go(1, Send {}, NoPayload);
    a.go(2, Send {}, NoPayload);
    a.receive(70, &[]);
    a.nothing();
    b.nothing();
    strike(&w.own, Fault::DeviceFatal);
    let mut outcomes = [(); 3].map(|()| a.outcome());
    outcomes.sort_unstable_by_key(|outcome| outcome.0);
    let fatal = WcStatus::FatalErr;
    assert_eq!(outcomes, [(1, fatal), (2, fatal), (70, fatal)]);
    for end in [&mut a, &mut b] {
        end.nothing();
        until("ERR", || end.qp.state() == QpState::Err);
    }
    // What is posted later is not lost either.
    a.go(3, Send {}, NoPayload);
    completes(&mut a, 3, fatal);
    b.receive(71, &[]);
    completes(&mut b, 71, fatal);
}

fn device_fatal_is_answered_by_verbs(p: &Provider) {
    let w = World::new(p);
    let (pd, (mut a, mut b)) = (w.own.alloc_pd(), ends(&w.own, p.quiet));
    let mut cq = cq_for(&w.own, &init());
    let memory = bellwire::memory::Mapping::anonymous(4096).build().unwrap();
    strike(&w.own, Fault::DeviceFatal);
    w.delivered_to_all(&[(EventType::DeviceFatal, Element::Device)]);
    let connect = ConnectAttr::default();
    let answers = [
        ("create_cq", w.own.create_cq(8).err()),
        ("create_qp", pd.create_qp(&mut cq, &init()).err()),
        ("create_srq", pd.create_srq(&SrqInit::default()).err()),
        ("reg_mr", Region::new(&pd, memory, ALL).err()),
        ("alloc_mw", pd.alloc_mw(MwType::Type2).err()),
        ("modify_qp", a.qp.init(&connect).err()),
        ("modify_qp to RESET", b.qp.reset(&mut b.cq, |_, _| ()).err()),
    ];
    for (verb, answer) in answers {
        assert!(
            matches!(answer, Some(Error::DeviceFatal)),
            "{verb}: {answer:?}"
        );
    }
}

fn device_fatal_lets_everything_go(p: &Provider) {
    let w = World::new(p);
    let shared = shared(&w, 3);
    let (mut a, b) = connected(&w, &ConnectAttr::default());
    let remote = b.region.remote(0);
    a.go(1, RdmaWrite { remote }, Inline(&[1]));
    a.go(2, Send {}, NoPayload);
    a.receive(70, &[]);
    let window = a.qp.pd().alloc_mw(MwType::Type1).unwrap();
    strike(&w.own, Fault::DeviceFatal);
    assert_eq!(event(&w.other), (EventType::DeviceFatal, Element::Device));
    // None of these hangs.
    drop((window, a));
    drop(shared);
    drop((b, w));
}
