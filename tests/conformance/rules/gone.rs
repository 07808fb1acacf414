//! Objects that go, and completion queues without room: what is reported all the same.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{completes, impatient};
use bellwire::queue::PostError;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, Error, QpInit};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "gone", "What is reported when objects go, and when a completion queue has no room.", needs [Rc];
    requests_of_a_dropped_qp_are_reported: "bellwire, Qp",
        "Requests in flight when a queue pair is destroyed complete, as flushed.";
    staged_requests_of_a_dropped_qp_are_reported: "bellwire, Qp",
        "Requests that were posted and never rung complete, as flushed, and are not executed.";
    a_dropped_qp_gives_its_room_back: "ibv_destroy_qp(3)",
        "A completion queue serves any number of queue pairs, one after the other.";
    a_peer_does_not_reach_the_next_qp: "IBTA vol. 1, 9.7",
        "What is sent to a destroyed queue pair does not reach one made after it.";
    reset_wants_its_own_cqs: "bellwire, Qp::reset",
        "A reset with another completion queue is refused, and changes nothing.";
    reset_reports_a_full_queue_of_unsignalled: "bellwire, Qp::reset",
        "A queue that is full of unsignalled requests reports nothing and takes nothing; a reset \
         reports them all.";
    reserved_room_holds_a_flush_of_everything: "bellwire, QpInit::reserve_cq",
        "A completion queue with reserved entries does not overrun, however full its queues are.";
    an_overrun_takes_the_qp_to_err: "IBTA vol. 1, 11.6.3.2",
        "A completion queue that overruns says so; its queue pair goes to ERR, what was written \
         is reported, and a reset reports the rest.";
}
fn requests_of_a_dropped_qp_are_reported(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    for wr_id in 0..10 {
        a.go(wr_id, Send {}, NoPayload);
    }
    completes(&mut a, 0, WcStatus::Success);
    for wr_id in 100..110 {
        a.receive(wr_id, &[]);
    }
    let End { qp, mut cq, .. } = a;
    drop(qp);
    let posted: Vec<_> = (1..10).chain(100..110).collect();
    flushed(&mut cq, &posted);
    nothing(&mut cq, p.quiet);
}

/// Waits until these requests, of a queue pair's send and receive queue, have completed as flushed. A device flushes
/// both queues side by side: neither comes first.
fn flushed(cq: &mut Cq, wr_ids: &[u64]) {
    let mut completed = Vec::new();
    for _ in wr_ids {
        let done = wait(cq);
        assert_eq!(done.status(), WcStatus::WrFlushErr, "{}", done.wr_id);
        completed.push(done.wr_id);
    }
    completed.sort_unstable();
    assert_eq!(completed, wr_ids);
}

fn staged_requests_of_a_dropped_qp_are_reported(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    a.post(1, RdmaWrite { remote }, Inline(&[1; 8]), SendFlags::empty())
        .unwrap();
    post_recv(&mut a.qp, 70, &[]).unwrap();
    let End { qp, mut cq, .. } = a;
    drop(qp);
    flushed(&mut cq, &[1, 70]);
    nothing(&mut cq, p.quiet);
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 0, "not executed");
}

fn a_dropped_qp_gives_its_room_back(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let mut cq = cq_for(&device, &init());
    for round in 0..100 {
        let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
        qp.init(&ConnectAttr::default()).unwrap();
        post_recv(&mut qp, round, &[]).unwrap();
        assert!(
            pd.create_qp(&mut cq, &init()).is_err(),
            "there is room for one"
        );
        drop(qp);
        assert_eq!(wait(&mut cq).wr_id, round);
    }
}

fn a_peer_does_not_reach_the_next_qp(p: &Provider) {
    let device = p.device();
    let (mut a, b) = pair_with(&device, p.quiet, &impatient());
    let pd = a.qp.pd().clone();
    drop(b);
    let mut b = End::new(&pd, p.quiet, &init());
    b.qp.init(&impatient()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &impatient()).unwrap();
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::RetryExcErr);
    b.nothing();
}

fn reset_wants_its_own_cqs(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let mut other = cq_for(a.qp.pd().device(), &init());
    let refused = a.qp.reset(&mut other, |_, _| panic!("reported"));
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::Success);
}

fn reset_reports_a_full_queue_of_unsignalled(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let silent = SendFlags::empty();
    let mut posted = 0;
    while a
        .post(posted, RdmaWrite { remote }, NoPayload, silent)
        .is_ok()
    {
        posted += 1;
    }
    a.qp.sq().ring();
    a.nothing();
    let full = a.post(posted, RdmaWrite { remote }, NoPayload, SIGNALED);
    assert_eq!(full, Err(PostError::QueueFull));
    assert_eq!(a.reset(), (0..posted).collect::<Vec<_>>());
}

fn reserved_room_holds_a_flush_of_everything(p: &Provider) {
    let (mut a, b) = p.pair();
    let (sends, receives) = (a.qp.sq().free_blocks(), a.qp.rq().free());
    let remote = b.region.remote(0);
    for _ in 0..receives {
        post_recv(&mut a.qp, 1, &[]).unwrap();
    }
    a.qp.rq().ring();
    for at in 0..sends {
        // Each in the smallest entry; the first half has been executed by then.
        a.post(0, RdmaWrite { remote }, NoPayload, SIGNALED)
            .unwrap();
        if at == sends / 2 {
            a.qp.sq().ring();
        }
    }
    a.qp.to_error().unwrap();
    a.qp.sq().ring();
    for _ in 0..sends + receives {
        let _outcome = a.outcome();
    }
    a.nothing();
    assert!(!a.cq.overrun());
}

fn an_overrun_takes_the_qp_to_err(p: &Provider) {
    let device = p.device();
    let init = QpInit {
        reserve_cq: false,
        ..init()
    };
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(8).unwrap();
    let mut a = pd.create_qp(&mut cq, &init).unwrap();
    let mut b = End::new(&pd, p.quiet, &init);
    connect_with(&mut a, &mut b.qp, &ConnectAttr::default());
    let remote = b.region.remote(0);
    let room = u64::from(cq.capacity());
    // As many as fit, a few times over: no harm.
    for round in 0..10 {
        for wr_id in 0..room {
            post(&mut a, wr_id, RdmaWrite { remote }, NoPayload, SIGNALED).unwrap();
        }
        a.sq().ring();
        for wr_id in 0..room {
            assert_eq!(wait(&mut cq).wr_id, wr_id, "round {round}");
        }
    }
    assert!(!cq.overrun());
    for wr_id in 0..room + 4 {
        post(&mut a, wr_id, RdmaWrite { remote }, NoPayload, SIGNALED).unwrap();
    }
    a.sq().ring();
    until("the overrun", || cq.overrun());
    until("ERR", || a.state() == QpState::Err);
    for wr_id in 0..room {
        let done = wait(&mut cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
    }
    nothing(&mut cq, p.quiet);
    // Nothing else ever is.
    post(&mut a, room + 4, RdmaWrite { remote }, NoPayload, SIGNALED).unwrap();
    a.sq().ring();
    nothing(&mut cq, p.quiet);
    let mut reported = Vec::new();
    a.reset(&mut cq, |wr_id, _| reported.push(wr_id)).unwrap();
    assert_eq!(reported, (room..room + 5).collect::<Vec<_>>());
}
