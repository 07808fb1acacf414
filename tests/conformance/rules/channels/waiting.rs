//! How a program waits for the events of a completion channel, and what waits until they are
//! acknowledged.

use super::own::*;
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Cq, Error, Qp};
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::{Epoll, Trigger, readable};
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

rules! {
    "channels::waiting", "Waiting for the events of a completion channel, and acknowledging them.",
    needs [Rc, CompletionChannels];
    poll_reports_events: "ibv_get_cq_event(3), poll",
        "The descriptor is readable from the event until it is got.";
    level_triggered_epoll_reports_while_there_are_events: "ibv_get_cq_event(3); epoll(7)",
        "Of several channels, those with events are reported, again and again, until these are got.";
    edge_triggered_epoll_reports_each_event: "epoll(7), EPOLLET",
        "Every event is an edge, got or not.";
    who_sleeps_is_woken: "ibv_get_cq_event(3); epoll(7)",
        "An entry wakes who sleeps in epoll already.";
    a_get_blocks_until_there_is_one: "ibv_get_cq_event(3)",
        "Getting an event where there is none sleeps until there is.";
    a_get_does_not_block_when_set_not_to: "ibv_get_cq_event(3), O_NONBLOCK",
        "On a descriptor that does not block it answers at once that there is none.";
    many_threads_get_each_event_once: "ibv_get_cq_event(3)",
        "Of several threads that wait on one channel, one gets each event.";
    a_sleeper_is_woken_by_what_times_out: "ibv_req_notify_cq(3)",
        "A request that runs out of retries while everybody sleeps wakes the sleeper.";
    destroying_waits_for_the_acknowledgement: "ibv_ack_cq_events(3); ibv_destroy_cq(3)",
        "Destroying a queue hangs while an event of it was got and not acknowledged.";
    events_of_others_hold_up_nobody: "ibv_ack_cq_events(3)",
        "An unacknowledged event of one queue does not hold up the destruction of another.";
    acknowledgements_may_be_batched: "ibv_ack_cq_events(3), nevents",
        "Several events are acknowledged by one call; the queue waits for the last of them.";
    no_more_than_were_got_are_acknowledged: "ibv_ack_cq_events(3)",
        "Acknowledging more than are outstanding is refused, and acknowledges none.";
    destroying_removes_what_was_not_got: "ibv_destroy_cq(3)",
        "Events of a destroyed queue that were not got are gone; those of others stay.";
    no_sleeper_misses_anything: "ibv_get_cq_event(3), example",
        "Arm, poll until empty, sleep: under load from two threads no entry is slept through.";
}

fn poll_reports_events(p: &Provider) {
    let mut own = Own::new(p);
    own.silent();
    for wr_id in 0..3 {
        own.raise(wr_id);
        assert!(readable(&own.channel, AT_ONCE));
        own.notified();
        own.silent();
    }
}

fn level_triggered_epoll_reports_while_there_are_events(p: &Provider) {
    let pd = p.device().alloc_pd();
    let mut owns = [Own::on(p, &pd), Own::on(p, &pd)];
    let epoll = Epoll::new();
    for (name, own) in (0..).zip(&owns) {
        epoll.add(&own.channel, name, Trigger::Level);
    }
    assert!(epoll.wait(p.quiet.0).is_empty());
    for (name, own) in (0..).zip(&mut owns) {
        own.raise(1);
        assert_eq!(epoll.wait(DEADLINE), [name]);
        assert_eq!(epoll.wait(DEADLINE), [name]);
        own.notified();
        assert!(epoll.wait(p.quiet.0).is_empty());
    }
    owns.iter_mut().for_each(|own| own.raise(2));
    assert_eq!(epoll.wait(DEADLINE), [0, 1]);
}

fn edge_triggered_epoll_reports_each_event(p: &Provider) {
    let mut own = Own::new(p);
    let epoll = Epoll::new();
    epoll.add(&own.channel, 5, Trigger::Edge);
    for wr_id in 0..3 {
        own.raise(wr_id);
        assert_eq!(epoll.wait(DEADLINE), [5]);
        assert!(epoll.wait(p.quiet.0).is_empty());
    }
    (0..3).for_each(|_| own.notified());
}

fn who_sleeps_is_woken(p: &Provider) {
    let pd = p.device().alloc_pd();
    let [mut first, mut second] = [Own::on(p, &pd), Own::on(p, &pd)];
    let epoll = Epoll::new();
    epoll.add(&first.channel, 1, Trigger::Level);
    epoll.add(&second.channel, 2, Trigger::Level);
    first.cq.req_notify(ANY).unwrap();
    second.cq.req_notify(ANY).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(WHILE);
            second.go(10);
        });
        assert_eq!(epoll.wait(DEADLINE), [2]);
        first.silent();
    });
}

fn a_get_blocks_until_there_is_one(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(ANY).unwrap();
    let posted = AtomicBool::new(false);
    let channel = own.channel.clone();
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let event = channel.get_cq_event().unwrap();
            (event.cqn(), posted.load(Ordering::Acquire))
        });
        std::thread::sleep(WHILE);
        assert!(!getter.is_finished());
        posted.store(true, Ordering::Release);
        own.go(1);
        assert_eq!(getter.join().unwrap(), (own.cq.cqn(), true));
    });
    own.polled(1);
}

fn a_get_does_not_block_when_set_not_to(p: &Provider) {
    let mut own = Own::new(p);
    let fd = own.channel.as_raw_fd();
    // As the manual page has it. The library's own way is the same flag.
    // SAFETY: takes numbers only.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(set, 0);
    for wr_id in 0..3 {
        let none = own.channel.get_cq_event();
        assert!(matches!(none, Err(Error::WouldBlock)), "{none:?}");
        own.raise(wr_id);
        own.notified();
    }
    own.channel.set_nonblocking(false).unwrap();
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    assert_eq!(flags & libc::O_NONBLOCK, 0);
}

fn many_threads_get_each_event_once(p: &Provider) {
    const EACH: usize = 20;
    const THREADS: usize = 3;
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut ends: Vec<(Cq, Qp)> = (0..EACH * THREADS).map(|_| looped(&pd, &channel)).collect();
    let get = || channel.get_cq_event().unwrap().cqn();
    let got: Vec<u32> = std::thread::scope(|scope| {
        let getters =
            [(); THREADS].map(|()| scope.spawn(|| (0..EACH).map(|_| get()).collect::<Vec<_>>()));
        for (cq, qp) in &mut ends {
            cq.req_notify(ANY).unwrap();
            complete(qp, 1);
        }
        getters
            .into_iter()
            .flat_map(|getter| getter.join().unwrap())
            .collect()
    });
    let of: HashSet<u32> = ends.iter().map(|(cq, _)| cq.cqn()).collect();
    assert_eq!((got.len(), HashSet::from_iter(got)), (of.len(), of));
    assert!(!readable(&channel, p.quiet.0));
}

fn a_sleeper_is_woken_by_what_times_out(p: &Provider) {
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, 1);
    let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
    let mut other = End::new(&pd, p.quiet, &init());
    let connect = ConnectAttr {
        rnr_retry: 3,
        ..ConnectAttr::default()
    };
    connect_with(&mut qp, &mut other.qp, &connect);
    cq.req_notify(SOLICITED_ONLY).unwrap();
    post(&mut qp, 9, Send {}, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
    assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
    let done = wait(&mut cq);
    assert_eq!((done.wr_id, done.status()), (9, WcStatus::RnrRetryExcErr));
}

fn destroying_waits_for_the_acknowledgement(p: &Provider) {
    let mut own = Own::new(p);
    own.raise(1);
    let event = own.channel.get_cq_event().unwrap();
    let Own { cq, qp, .. } = own;
    drop(qp);
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| drop(cq));
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        event.ack();
    });
}

fn events_of_others_hold_up_nobody(p: &Provider) {
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let [mut first, mut second] = [(); 2].map(|()| looped(&pd, &channel));
    for (cq, qp) in [&mut first, &mut second] {
        cq.req_notify(ANY).unwrap();
        complete(qp, 1);
        assert_eq!(wait(cq).wr_id, 1);
    }
    let held = channel.get_cq_event().unwrap();
    assert_eq!(held.cqn(), first.0.cqn());
    channel.get_cq_event().unwrap().ack();
    // Does not hang.
    drop(second);
    held.ack();
    drop(first);
}

/// Five events that were got and not acknowledged.
fn five_deferred(p: &Provider) -> Own {
    let mut own = Own::new(p);
    for wr_id in 0..5 {
        own.raise(wr_id);
        let cqn = own.channel.get_cq_event().unwrap().defer();
        assert_eq!(cqn, own.cq.cqn());
    }
    own
}

fn acknowledgements_may_be_batched(p: &Provider) {
    let own = five_deferred(p);
    own.cq.ack_events(3).unwrap();
    own.cq.ack_events(0).unwrap();
    let Own {
        cq, qp, channel, ..
    } = own;
    drop(qp);
    let cqn = cq.cqn();
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| drop(cq));
        std::thread::sleep(WHILE);
        channel.ack_events(cqn, 1).unwrap();
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        channel.ack_events(cqn, 1).unwrap();
    });
}

fn no_more_than_were_got_are_acknowledged(p: &Provider) {
    let mut own = five_deferred(p);
    own.raise(5);
    // One in hand is not one that is left to a batch.
    let held = own.channel.get_cq_event().unwrap();
    let cqn = own.cq.cqn();
    for refused in [own.cq.ack_events(6), own.channel.ack_events(cqn, 6)] {
        let error = refused.expect_err("five are outstanding");
        let expected = matches!(
            error,
            Error::NotDeferred {
                given: 6,
                deferred: 5,
                ..
            }
        );
        assert!(expected, "{error}");
    }
    held.ack();
    own.cq.ack_events(5).unwrap();
    own.cq.ack_events(1).expect_err("none is outstanding");
}

fn destroying_removes_what_was_not_got(p: &Provider) {
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let [mut gone, mut kept] = [(); 2].map(|()| looped(&pd, &channel));
    for wr_id in 0..3 {
        for (cq, qp) in [&mut gone, &mut kept] {
            cq.req_notify(ANY).unwrap();
            complete(qp, wr_id);
            assert_eq!(wait(cq).wr_id, wr_id);
        }
    }
    drop(gone);
    for _ in 0..3 {
        let event = channel.get_cq_event().unwrap();
        assert_eq!(event.cqn(), kept.0.cqn());
    }
    assert!(!readable(&channel, p.quiet.0));
}

/// Producers post a few requests at a time, and go on when these have completed, so that one that is
/// missed hangs; the consumer arms, polls once more, and sleeps.
fn no_sleeper_misses_anything(p: &Provider) {
    const PRODUCERS: u64 = 2;
    const EACH: u64 = 10_000;
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, PRODUCERS as u32);
    let qps = [(); PRODUCERS as usize].map(|()| {
        let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
        connected(&mut qp);
        qp
    });
    let completed: [AtomicU64; PRODUCERS as usize] = Default::default();
    let produce = |qp: &mut Qp, producer: u64| {
        let mut random = Random::new(producer + 1);
        let mut next = 0;
        while next < EACH {
            for _ in 0..=random.below(3).min(EACH - next - 1) {
                let wr_id = producer * EACH + next;
                post(qp, wr_id, NOTHING, NoPayload, SIGNALED).unwrap();
                next += 1;
            }
            qp.sq().ring();
            let completed = &completed[producer as usize];
            until("what was posted", || {
                completed.load(Ordering::Acquire) == next
            });
            // The consumer arms about now.
            (0..random.below(1000)).for_each(|_| std::hint::spin_loop());
        }
    };
    let mut sleeps = 0;
    std::thread::scope(|scope| {
        let produce = &produce;
        for (producer, mut qp) in (0..).zip(qps) {
            scope.spawn(move || produce(&mut qp, producer));
        }
        let done = || {
            completed
                .iter()
                .all(|completed| completed.load(Ordering::Relaxed) == EACH)
        };
        loop {
            cq.req_notify(ANY).unwrap();
            while let Some(done) = cq.poll_one() {
                let completed = &completed[(done.wr_id / EACH) as usize];
                assert_eq!(done.wr_id % EACH, completed.load(Ordering::Relaxed));
                assert_eq!(done.status(), WcStatus::Success);
                completed.fetch_add(1, Ordering::Release);
            }
            if done() {
                break;
            }
            assert!(readable(&channel, DEADLINE), "missed after {completed:?}");
            assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
            sleeps += 1;
        }
    });
    assert!(sleeps > 10, "slept {sleeps} times only");
}
