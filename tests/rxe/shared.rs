//! A shared receive queue whose receives run out: `SRQ_LIMIT_REACHED`, again and again.

use crate::tests;
use bellwire::event::{Element, EventType};
use bellwire::wqe::*;
use bellwire::wr::WcStatus::Success;
use bellwire::{Cq, Qp, Srq, SrqInit};
use bellwire_tests::ends::*;
use bellwire_tests::events::{event, no_event};
use bellwire_tests::fixture::*;
use std::collections::BTreeSet;

tests! { the_limit_is_reported_each_time_that_it_is_set }

const RECEIVES_AT_ONCE: u64 = 8;
const LIMIT: u32 = 5;

/// Posts receives from this identifier on.
fn fill(srq: &mut Srq, from: u64, count: u64) {
    for wr_id in from..from + count {
        // SAFETY: a receive without memory.
        unsafe { srq.post(wr_id, &[]) }.expect("room");
    }
    srq.ring();
}

/// Two senders at the other end of the cable, one queue that both of their peers receive from. The
/// program fills it up each time that it gets the event.
fn the_limit_is_reported_each_time_that_it_is_set() {
    let [here, there] = CABLE.map(open);
    let (near, far) = (here.alloc_pd(), there.alloc_pd());
    let mut srq = far.create_srq(&SrqInit::default()).expect("a queue");
    let (sends, _) = init().cq_entries();
    let room = 2 * sends + SrqInit::default().cq_entries();
    let mut cq: Cq = there.create_cq(room).expect("a completion queue");
    let mut pairs = [(); 2].map(|()| {
        let mut a = End::new(&near, QUIET, &init());
        let qp = far.create_qp_on_srq::<Rc>(&mut cq, &srq, &init());
        let mut qp: Qp = qp.expect("a queue pair");
        connect_with(&mut a.qp, &mut qp, &impatient());
        (a, qp)
    });
    let of_it = (EventType::SrqLimitReached, Element::Srq(srq.srq_num()));
    let mut posted = RECEIVES_AT_ONCE;
    fill(&mut srq, 0, posted);
    srq.modify(LIMIT).expect("a limit");
    no_event(&there, QUIET);

    let (mut reported, mut turn) = (BTreeSet::new(), 0);
    let mut send = |cq: &mut Cq, count| {
        for _ in 0..count {
            let (a, _) = &mut pairs[turn % 2];
            turn += 1;
            a.go(1, Send {}, NoPayload);
            account(a, &[(1, Success)], &[]);
            let done = wait(cq);
            assert_eq!(done.status(), Success);
            assert!(
                reported.insert(done.wr_id),
                "reported twice: {}",
                done.wr_id
            );
        }
    };
    for _ in 0..5 {
        assert_eq!(srq.query().srq_limit, LIMIT);
        // As many as the limit are not fewer than it.
        send(&mut cq, RECEIVES_AT_ONCE - u64::from(LIMIT));
        no_event(&there, QUIET);
        send(&mut cq, 1);
        assert_eq!(event(&there), of_it);
        // Once: it is not set any more.
        assert_eq!(srq.query().srq_limit, 0);
        send(&mut cq, 1);
        no_event(&there, QUIET);
        let took = RECEIVES_AT_ONCE - u64::from(LIMIT) + 2;
        fill(&mut srq, posted, took);
        posted += took;
        srq.modify(LIMIT).expect("a limit");
        no_event(&there, QUIET);
    }
    drop(pairs);
    nothing(&mut cq, QUIET);
    let mut left = BTreeSet::new();
    srq.destroy(|wr_id, _| assert!(left.insert(wr_id), "reported twice: {wr_id}"))
        .map_err(|(_, error)| error)
        .expect("nobody uses it");
    assert_eq!(left.len() as u64, RECEIVES_AT_ONCE);
    assert!(reported.is_disjoint(&left));
    reported.append(&mut left);
    assert_eq!(reported, (0..posted).collect());
}
