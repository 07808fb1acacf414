//! Completion queues that overrun: real `CQ_ERR` events.
//!
//! bellwire's credits rule it out: a queue pair reserves an entry for each request that it can have in
//! flight, and is refused where there is no room (`QpInit::reserve_cq`; the conformance rules
//! `objects::qp_on_a_cq_that_is_too_small_is_refused` and
//! `gone::reserved_room_holds_a_flush_of_everything` see that, on rxe as elsewhere). The way that is
//! left is to opt out of it, and then not to poll.
//!
//! rxe drops an entry that it has no room for, and raises an event for each.

use crate::tests;
use bellwire::event::{Element, EventType};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::{Cq, Cqs, Device, QpInit};
use bellwire_tests::ends::*;
use bellwire_tests::fixture::*;

tests! { by_sends_that_are_not_polled, by_receives_that_are_not_polled }

/// Entries asked for; rxe has a few more.
const ENTRIES: u32 = 8;
/// Far more than it has.
const REQUESTS: u64 = 40;

fn unreserved() -> QpInit {
    QpInit {
        reserve_cq: false,
        ..init()
    }
}

/// Everything that a completion queue has to report.
fn drained(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    let completed = std::iter::from_fn(|| cq.poll_one().map(|done| (done.wr_id, done.status())));
    let completed = completed.collect();
    nothing(cq, QUIET);
    completed
}

/// The queue says that it overran, and nothing else happens.
fn overran(context: &Device, cq: &Cq) {
    gets_event(context, EventType::CqErr, Element::Cq(cq.cqn()));
    assert!(cq.overrun());
}

fn by_sends_that_are_not_polled() {
    let device = open(ALONE);
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(ENTRIES).expect("a completion queue");
    let mut a = pd.create_qp(&mut cq, &unreserved()).expect("a queue pair");
    let mut b = End::new(&pd, QUIET, &init());
    connect_with(&mut a, &mut b.qp, &impatient());
    let remote = b.region.remote(0);
    for wr_id in 0..REQUESTS {
        post(&mut a, wr_id, RdmaWrite { remote }, NoPayload, SIGNALED).expect("room");
    }
    a.sq().ring();
    overran(&device, &cq);
    // It takes its queue pairs with it.
    assert_eq!(a.state(), QpState::Err);
    assert_eq!(b.qp.state(), QpState::Rts);

    // What the queue had room for, in order; then the rest, once.
    let completed = drained(&mut cq);
    assert!(completed.len() >= ENTRIES as usize, "{completed:?}");
    let first: Vec<_> = (0..completed.len() as u64)
        .map(|wr_id| (wr_id, Success))
        .collect();
    assert_eq!(completed, first);
    let mut rest = Vec::new();
    a.reset(&mut cq, |wr_id, _| rest.push(wr_id))
        .expect("reset");
    assert_eq!(rest, (completed.len() as u64..REQUESTS).collect::<Vec<_>>());
    assert!(!rest.is_empty());

    // The queue is not to be used any more; another is as good as new.
    drop(a);
    drop(cq);
    let mut a = End::new(&pd, QUIET, &init());
    begins_anew_with(&mut a, &mut b);
}

/// `a` is in RESET already.
fn begins_anew_with(a: &mut End, b: &mut End) {
    b.reset();
    connect_with(&mut a.qp, &mut b.qp, &patient());
    works(a, b);
}

/// By a sender at the other end of the cable. rxe takes the receiver to ERR by itself, and does not
/// acknowledge what it could not report: the sender knows of no more than the receiver does.
fn by_receives_that_are_not_polled() {
    let [here, there] = CABLE.map(open);
    let mut a = End::new(&here.alloc_pd(), QUIET, &init());
    let pd = there.alloc_pd();
    let mut cq = there.create_cq(ENTRIES).expect("a completion queue");
    let (sends, _) = init().cq_entries();
    let mut other = there.create_cq(sends).expect("a completion queue");
    let mut b = pd
        .create_qp(Cqs::Split(&mut other, &mut cq), &unreserved())
        .expect("a queue pair");
    connect_patiently(&mut a.qp, &mut b, &impatient());
    for at in 0..REQUESTS {
        post_recv(&mut b, RECEIVES + at, &[]).expect("room");
    }
    b.rq().ring();
    for wr_id in 0..REQUESTS {
        a.post(wr_id, Send {}, NoPayload, SIGNALED).expect("room");
    }
    a.qp.sq().ring();
    overran(&there, &cq);
    assert_eq!(b.state(), QpState::Err);

    let completed = drained(&mut cq);
    assert!(completed.len() >= ENTRIES as usize, "{completed:?}");
    let good = completed.len() as u64;
    let first: Vec<_> = (0..good).map(|at| (RECEIVES + at, Success)).collect();
    assert_eq!(completed, first);
    let mut rest = Vec::new();
    b.reset(Cqs::Split(&mut other, &mut cq), |wr_id, _| rest.push(wr_id))
        .expect("reset");
    let left = RECEIVES + good..RECEIVES + REQUESTS;
    assert_eq!(rest, left.collect::<Vec<_>>());

    let sent = (0..REQUESTS).map(|wr_id| match wr_id {
        _ if wr_id < good => (wr_id, Success),
        _ if wr_id == good => (wr_id, RetryExcErr),
        _ => (wr_id, WrFlushErr),
    });
    account(&mut a, &sent.collect::<Vec<_>>(), &[]);
    assert_eq!(a.qp.state(), QpState::Err);
}
