//! Objects that go while others use them, in every order.

use bellwire::queue::AttachError;
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cqs, Error};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::collections::HashMap;
use std::time::Duration;

in_both_modes! {
    requests_rung_in_err_are_reported_though_dropped_at_once,
    requests_staged_are_reported_though_err_is_refused, places_on_the_cq_come_back,
    places_on_split_cqs_come_back_one_by_one, a_cq_may_go_first, numbers_are_used_again,
    a_device_goes_last, reserved_entries_never_overrun, queues_that_are_lent_may_be_swapped,
}

/// By the engine nobody may have come to them when the queue pair goes.
fn requests_rung_in_err_are_reported_though_dropped_at_once(mode: Mode) {
    let device = device(mode);
    for _ in 0..200 {
        let (mut a, _b) = pair_with(&device, mode, &ConnectAttr::default());
        a.qp.to_error().unwrap();
        for wr_id in 0..5 {
            a.go(wr_id, Nop {}, NoPayload);
        }
        let End { qp, mut cq, .. } = a;
        drop(qp);
        for wr_id in 0..5 {
            let done = wait(&mut cq);
            assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::WrFlushErr));
        }
        nothing(&mut cq, Mode::Inline);
    }
}

/// The step to ERR is refused: by a device that has no memory for it, or that has broken.
fn requests_staged_are_reported_though_err_is_refused(mode: Mode) {
    let after_all = Trigger::After(Duration::ZERO);
    for (trigger, fault, status) in [
        (
            Trigger::Modify(1),
            Fault::RefuseModify,
            WcStatus::WrFlushErr,
        ),
        (after_all, Fault::DeviceFatal, WcStatus::FatalErr),
    ] {
        let device = device(mode);
        let (mut a, mut b) = pair_with(&device, mode, &ConnectAttr::default());
        a.go(1, Nop {}, NoPayload);
        assert_eq!(a.outcome(), (1, WcStatus::Success));
        let script = Script::default().with(trigger, fault);
        device.as_soft().unwrap().inject(&script).unwrap();
        device.progress();
        b.receive(70, &[]);
        // Staged, and never rung.
        for wr_id in 2..5 {
            a.post(wr_id, Send {}, NoPayload, SIGNALED).unwrap();
        }
        post_recv(&mut a.qp, 5, &[]).unwrap();
        let End { qp, mut cq, .. } = a;
        drop(qp);
        let mut completed: Vec<_> = (2..6).map(|_| wait(&mut cq)).collect();
        completed.sort_by_key(|completion| completion.wr_id);
        let completed: Vec<_> = (completed.iter())
            .map(|completion| (completion.wr_id, completion.status()))
            .collect();
        assert_eq!(
            completed,
            Vec::from_iter((2..6).map(|wr_id| (wr_id, status)))
        );
        nothing(&mut cq, Mode::Inline);
    }
}

/// A completion queue for one pair of queue pairs serves any number, one after the other.
fn places_on_the_cq_come_back(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    // The next power of two has no room for a third.
    let mut cq = device.create_cq_for(2 * (send + recv), 2).unwrap();
    let free = cq.unreserved();
    let mut random = Random::new(1);
    for round in 0..300 {
        let mut a = pd.create_qp(&mut cq, &init()).unwrap();
        let mut b = pd.create_qp(&mut cq, &init()).unwrap();
        match pd.create_qp(&mut cq, &init()) {
            Err(Error::Attach(
                AttachError::CqTooSmall { .. } | AttachError::TooManyQueues { .. },
            )) => {}
            other => panic!("{other:?}"),
        }
        connect_with(&mut a, &mut b, &ConnectAttr::default());
        let mut expected = Vec::new();
        for wr_id in 0..random.below(10) {
            post_recv(&mut b, 100 + wr_id, &[]).unwrap();
            b.rq().ring();
            expected.push(100 + wr_id);
        }
        let count = random.below(10);
        for wr_id in 0..count {
            post(&mut a, wr_id, Nop {}, NoPayload, SIGNALED).unwrap();
            expected.push(wr_id);
        }
        // These are executed, and nothing reports them.
        for _ in 0..random.below(3) {
            post(&mut a, 99, Nop {}, NoPayload, SendFlags::empty()).unwrap();
        }
        a.sq().ring();
        if round % 2 == 0 {
            drop(a);
            drop(b);
        } else {
            drop(b);
            drop(a);
        }
        let mut completed = Vec::new();
        while completed.len() < expected.len() {
            let done = wait(&mut cq);
            // By the engine they may have been flushed before they were executed.
            if done.wr_id != 99 {
                completed.push(done.wr_id);
            }
        }
        while let Some(done) = cq.poll_one() {
            assert_eq!(done.wr_id, 99);
        }
        completed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(completed, expected);
    }
    drop(pd.create_qp(&mut cq, &init()).unwrap());
    assert_eq!(cq.unreserved(), free - send - recv);
    assert_eq!(cq.stale(), 0);
}

fn places_on_split_cqs_come_back_one_by_one(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut recvs = device.create_cq_for(recv, 1).unwrap();
    for _ in 0..20 {
        // Each has sends of its own, never polled.
        let mut sends = device.create_cq(send).unwrap();
        let mut a = pd
            .create_qp(Cqs::Split(&mut sends, &mut recvs), &init())
            .unwrap();
        a.init(&ConnectAttr::default()).unwrap();
        post_recv(&mut a, 70, &[]).unwrap();
        a.rq().ring();
        a.to_error().unwrap();
        post(&mut a, 1, Nop {}, NoPayload, SIGNALED).unwrap();
        a.sq().ring();
        assert!(
            pd.create_qp(Cqs::Split(&mut sends, &mut recvs), &init())
                .is_err()
        );
        drop(a);
        assert_eq!(wait(&mut recvs).wr_id, 70);
    }
}

fn a_cq_may_go_first(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let (a, mut b) = (End::new(&pd, mode, &init()), End::new(&pd, mode, &init()));
    let End {
        mut qp, cq, region, ..
    } = a;
    connect_with(&mut qp, &mut b.qp, &ConnectAttr::default());
    drop(cq);
    for wr_id in 0..50 {
        post_recv(&mut qp, wr_id, &[region.sge(0, 8)]).unwrap();
        qp.rq().ring();
        b.go(wr_id, Send {}, Inline(&[1; 8]));
        assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
        post(&mut qp, wr_id, Nop {}, NoPayload, SIGNALED).unwrap();
        qp.sq().ring();
    }
    qp.to_error().unwrap();
    drop(qp);
    b.nothing();
}

fn numbers_are_used_again(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let mut seen = HashMap::new();
    let mut cq = cq_for(&device, &init());
    for round in 0..600 {
        let qp = pd.create_qp(&mut cq, &init()).unwrap();
        assert!(qp.qp_num() != 0 && qp.qp_num() < 1 << 24);
        if let Some(last) = seen.insert(qp.qp_num(), round) {
            assert!(round - last >= 256, "a number again after {}", round - last);
        }
    }
}

fn a_device_goes_last(mode: Mode) {
    let (mut a, mut b) = {
        let device = device(mode);
        pair_with(&device, mode, &ConnectAttr::default())
    };
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    drop(a);
    let End { qp, cq, region, .. } = b;
    drop(region);
    drop(qp);
    drop(cq);
}

/// What is lent stands for its queue pair's queue, wherever it goes; the queue stays where it is.
#[expect(
    clippy::forget_non_drop,
    reason = "it makes no difference, and should not"
)]
fn queues_that_are_lent_may_be_swapped(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let (first, second) = (a.qp.qp_num(), b.qp.qp_num());
    {
        let (mut one, mut other) = (a.qp.sq(), b.qp.sq());
        std::mem::swap(&mut one, &mut other);
        assert_eq!((one.qp_num(), other.qp_num()), (second, first));
        one.post_empty(2, (), Nop {}, SIGNALED).unwrap();
        other.post_empty(1, (), Nop {}, SIGNALED).unwrap();
        std::mem::forget(one);
        let (mut one, mut other) = (a.qp.rq(), b.qp.rq());
        std::mem::swap(&mut one, &mut other);
        // SAFETY: no memory.
        unsafe { one.post(20, &[]) }.unwrap();
        std::mem::forget(one);
    }
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    a.nothing();
    drop(a);
    b.qp.sq().ring();
    assert_eq!(b.outcome().0, 2);
    assert_eq!(b.reset(), [20]);
}

fn reserved_entries_never_overrun(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let (sends, receives) = (a.qp.sq().free_blocks(), a.qp.rq().free());
    for _ in 0..20 {
        for end in [&mut a, &mut b] {
            for _ in 0..receives {
                post_recv(&mut end.qp, 1, &[]).unwrap();
            }
            end.qp.rq().ring();
        }
        for end in [&mut a, &mut b] {
            for at in 0..sends {
                if at < receives / 2 {
                    end.post(0, Send {}, NoPayload, SIGNALED).unwrap();
                } else {
                    end.post(0, Nop {}, NoPayload, SIGNALED).unwrap();
                }
            }
            end.qp.sq().ring();
        }
        a.qp.to_error().unwrap();
        b.qp.to_error().unwrap();
        for end in [&mut a, &mut b] {
            let mut completed = 0;
            while completed < sends + receives {
                let _outcome = end.outcome();
                completed += 1;
            }
            end.nothing();
            assert!(!end.cq.overrun());
            assert!(end.reset().is_empty());
        }
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
}
