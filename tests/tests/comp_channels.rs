//! Completion channels: when a completion queue tells of its entries (ibv_req_notify_cq(3)), how a
//! program waits for that, and what waits until it is acknowledged (ibv_get_cq_event(3)).

use bellwire::event::CompChannel;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, CqInit, Error, Pd, Qp};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use bellwire_tests::readiness::{Epoll, Trigger, readable};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

in_both_modes! {
    it_tells_once_and_is_armed_anew, it_tells_nothing_unless_armed,
    what_was_there_when_it_was_armed_raises_nothing, solicited_only_waits_for_the_solicited_bit,
    an_error_is_solicited, arming_for_any_widens, arming_for_solicited_does_not_narrow,
    poll_and_epoll_tell_of_it, a_get_blocks_until_there_is_one,
    a_get_does_not_block_when_told_not_to, a_channel_names_the_queue,
    dropping_waits_for_the_acknowledgement, deferred_events_are_acknowledged_together,
    dropping_removes_what_was_not_got, a_queue_may_outlive_its_channel,
    queue_pairs_may_outlive_their_queue, a_queue_without_a_channel_cannot_be_armed,
    a_channel_of_another_context_is_refused, numbers_tell_queues_apart,
    sleepers_let_waiting_requests_go_on, no_sleeper_misses_anything,
}

const AT_ONCE: Duration = Duration::ZERO;
/// How long something has to hang before it counts as hanging.
const WHILE: Duration = Duration::from_millis(30);

/// How long nothing has to come before it counts as nothing.
fn quiet(mode: Mode) -> Duration {
    match mode {
        Mode::Inline => AT_ONCE,
        Mode::Engine { .. } => Duration::from_millis(10),
    }
}

fn cq_on(channel: &CompChannel, qps: u32) -> Cq {
    let (send, recv) = init().cq_entries();
    let init = CqInit {
        channel: Some(channel),
        ..CqInit::new((send + recv) * qps)
    };
    channel.device().create_cq_with(&init).unwrap()
}

/// A queue pair that is connected with itself. Its sends complete on a queue that has a channel, its
/// receives on one that has none.
struct Own {
    channel: CompChannel,
    cq: Cq,
    recv_cq: Cq,
    qp: Qp,
    mode: Mode,
}

fn connected(qp: &mut Qp) {
    let connect = ConnectAttr::default();
    qp.init(&connect).unwrap();
    qp.connect(&qp.endpoint(), &connect).unwrap();
}

fn own(pd: &Pd, mode: Mode) -> Own {
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, 1);
    let mut recv_cq = cq_for(pd.device(), &init());
    let mut qp = pd.create_qp((&mut cq, &mut recv_cq), &init()).unwrap();
    connected(&mut qp);
    Own {
        channel,
        cq,
        recv_cq,
        qp,
        mode,
    }
}

impl Own {
    fn new(mode: Mode) -> Self {
        own(&device(mode).alloc_pd(), mode)
    }

    /// Something that completes, and nothing else.
    fn go(&mut self, wr_id: u64) {
        post(&mut self.qp, wr_id, Nop {}, NoPayload, SIGNALED).unwrap();
        self.qp.sq().ring();
    }

    /// Until what was posted has completed, which is not polled.
    fn settle(&mut self) {
        post_recv(&mut self.qp, 0, &[]).unwrap();
        self.qp.rq().ring();
        post(&mut self.qp, 0, Send {}, NoPayload, SendFlags::empty()).unwrap();
        self.qp.sq().ring();
        let received = wait(&mut self.recv_cq);
        assert_eq!(received.status(), WcStatus::Success);
    }

    fn silent(&self) {
        assert!(!readable(&self.channel, quiet(self.mode)));
    }

    fn told(&self) {
        let event = self.channel.get_cq_event().unwrap();
        assert_eq!(event.cqn(), self.cq.cqn());
        event.ack();
    }

    fn polled(&mut self, wr_id: u64) {
        let done = wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
    }
}

fn it_tells_once_and_is_armed_anew(mode: Mode) {
    let mut own = Own::new(mode);
    for round in 0..5 {
        own.cq.req_notify(false).unwrap();
        own.silent();
        own.go(round * 3);
        own.told();
        own.go(round * 3 + 1);
        own.go(round * 3 + 2);
        own.settle();
        own.silent();
        for at in 0..3 {
            own.polled(round * 3 + at);
        }
    }
}

fn it_tells_nothing_unless_armed(mode: Mode) {
    let mut own = Own::new(mode);
    for wr_id in 0..10 {
        own.go(wr_id);
        own.polled(wr_id);
    }
    own.settle();
    own.silent();
}

fn what_was_there_when_it_was_armed_raises_nothing(mode: Mode) {
    let mut own = Own::new(mode);
    own.go(1);
    own.settle();
    own.cq.req_notify(false).unwrap();
    own.silent();
    // Nor does an unsignalled request, that has no entry.
    own.settle();
    own.silent();
    own.go(2);
    own.told();
    own.polled(1);
    own.polled(2);
}

/// What came to `b`, whose receives complete on a channel, from `a`.
struct Ends {
    a: End,
    b: Own,
}

fn ends(mode: Mode) -> Ends {
    let device = device(mode);
    let pd = device.alloc_pd();
    let mut a = End::new(&pd, mode, &init());
    let channel = device.create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, 1);
    let mut other = cq_for(&device, &init());
    let mut qp = pd.create_qp((&mut other, &mut cq), &init()).unwrap();
    connect_with(&mut a.qp, &mut qp, &ConnectAttr::default());
    for wr_id in 0..16 {
        post_recv(&mut qp, wr_id, &[]).unwrap();
    }
    qp.rq().ring();
    let b = Own {
        channel,
        cq,
        recv_cq: other,
        qp,
        mode,
    };
    Ends { a, b }
}

impl Ends {
    fn send(&mut self, flags: SendFlags) {
        self.a
            .post(7, Send {}, NoPayload, flags | SIGNALED)
            .unwrap();
        self.a.qp.sq().ring();
        // The receive completes before the send.
        assert_eq!(self.a.outcome(), (7, WcStatus::Success));
    }
}

fn solicited_only_waits_for_the_solicited_bit(mode: Mode) {
    let mut ends = ends(mode);
    ends.b.cq.req_notify(true).unwrap();
    for _ in 0..3 {
        ends.send(SendFlags::empty());
        ends.b.silent();
    }
    ends.send(SendFlags::SOLICITED);
    ends.b.told();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
    for wr_id in 0..5 {
        ends.b.polled(wr_id);
    }
    // Any entry: the solicited ones are some of them.
    ends.b.cq.req_notify(false).unwrap();
    ends.send(SendFlags::SOLICITED);
    ends.b.told();
}

fn an_error_is_solicited(mode: Mode) {
    let mut ends = ends(mode);
    ends.b.cq.req_notify(true).unwrap();
    ends.b.qp.to_error().unwrap();
    ends.b.told();
    for wr_id in 0..16 {
        let done = wait(&mut ends.b.cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::WrFlushErr));
    }
    ends.b.silent();
    // A send's too.
    let mut own = Own::new(mode);
    own.cq.req_notify(true).unwrap();
    own.go(1);
    own.settle();
    own.silent();
    own.qp.to_error().unwrap();
    own.go(2);
    own.told();
}

fn arming_for_any_widens(mode: Mode) {
    let mut ends = ends(mode);
    ends.b.cq.req_notify(true).unwrap();
    ends.send(SendFlags::empty());
    ends.b.silent();
    ends.b.cq.req_notify(false).unwrap();
    ends.b.silent();
    ends.send(SendFlags::empty());
    ends.b.told();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
}

fn arming_for_solicited_does_not_narrow(mode: Mode) {
    let mut ends = ends(mode);
    ends.b.cq.req_notify(false).unwrap();
    ends.b.cq.req_notify(true).unwrap();
    ends.send(SendFlags::empty());
    ends.b.told();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
}

fn poll_and_epoll_tell_of_it(mode: Mode) {
    let pd = device(mode).alloc_pd();
    let mut owns = [own(&pd, mode), own(&pd, mode)];
    let (level, edge) = (Epoll::new(), Epoll::new());
    for (name, own) in (0..).zip(&owns) {
        level.add(&own.channel, name, Trigger::Level);
        edge.add(&own.channel, name, Trigger::Edge);
    }
    assert!(level.wait(AT_ONCE).is_empty());
    for round in 0..3 {
        for (name, own) in (0..).zip(&mut owns) {
            own.cq.req_notify(false).unwrap();
            own.go(round);
            assert_eq!(edge.wait(DEADLINE), [name]);
            assert!(edge.wait(AT_ONCE).is_empty());
            assert_eq!(level.wait(DEADLINE), [name]);
            assert!(readable(&own.channel, AT_ONCE));
            own.told();
            assert!(!readable(&own.channel, AT_ONCE));
            assert!(level.wait(AT_ONCE).is_empty());
            own.polled(round);
        }
    }
    // Who sleeps is woken.
    let [first, second] = &mut owns;
    first.cq.req_notify(false).unwrap();
    second.cq.req_notify(false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(WHILE);
            second.go(10);
        });
        assert_eq!(level.wait(DEADLINE), [1]);
        first.silent();
    });
}

fn a_get_blocks_until_there_is_one(mode: Mode) {
    let mut own = Own::new(mode);
    own.cq.req_notify(false).unwrap();
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

fn a_get_does_not_block_when_told_not_to(mode: Mode) {
    let mut own = Own::new(mode);
    own.channel.set_nonblocking(true).unwrap();
    for wr_id in 0..3 {
        own.cq.req_notify(false).unwrap();
        let none = own.channel.get_cq_event();
        assert!(matches!(none, Err(Error::WouldBlock)));
        own.go(wr_id);
        assert!(readable(&own.channel, DEADLINE));
        own.told();
        own.polled(wr_id);
    }
    own.channel.set_nonblocking(false).unwrap();
    let fd = own.channel.as_raw_fd();
    assert_eq!(fd, own.channel.as_fd().as_raw_fd());
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    assert_eq!(flags & libc::O_NONBLOCK, 0);
}

fn a_channel_names_the_queue(mode: Mode) {
    let pd = device(mode).alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut ends: Vec<(Cq, Qp)> = (0..3)
        .map(|_| {
            let mut cq = cq_on(&channel, 1);
            let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
            connected(&mut qp);
            cq.req_notify(false).unwrap();
            (cq, qp)
        })
        .collect();
    for at in [1, 0, 2] {
        let (cq, qp) = &mut ends[at];
        post(qp, 1, Nop {}, NoPayload, SIGNALED).unwrap();
        qp.sq().ring();
        assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
    }
    assert!(!readable(&channel, quiet(mode)));
}

fn dropping_waits_for_the_acknowledgement(mode: Mode) {
    for by_drop in [false, true] {
        let mut own = Own::new(mode);
        own.cq.req_notify(false).unwrap();
        own.go(1);
        let event = own.channel.get_cq_event().unwrap();
        let Own { cq, qp, .. } = own;
        drop(qp);
        std::thread::scope(|scope| {
            let destroyer = scope.spawn(|| drop(cq));
            std::thread::sleep(WHILE);
            assert!(!destroyer.is_finished());
            if by_drop {
                drop(event);
            } else {
                event.ack();
            }
        });
    }
}

fn deferred_events_are_acknowledged_together(mode: Mode) {
    let mut own = Own::new(mode);
    let cqn = own.cq.cqn();
    for wr_id in 0..5 {
        own.cq.req_notify(false).unwrap();
        own.go(wr_id);
        assert_eq!(own.channel.get_cq_event().unwrap().defer(), cqn);
        own.polled(wr_id);
    }
    // One in hand is not one that is deferred.
    own.cq.req_notify(false).unwrap();
    own.go(5);
    let held = own.channel.get_cq_event().unwrap();
    for error in [own.cq.ack_events(6), own.channel.ack_events(cqn, 6)] {
        let error = error.unwrap_err();
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
    own.cq.ack_events(3).unwrap();
    own.cq.ack_events(0).unwrap();
    held.ack();
    let Own {
        cq, qp, channel, ..
    } = own;
    drop(qp);
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| drop(cq));
        std::thread::sleep(WHILE);
        channel.ack_events(cqn, 1).unwrap();
        std::thread::sleep(WHILE);
        assert!(!destroyer.is_finished());
        channel.ack_events(cqn, 1).unwrap();
    });
    assert!(channel.ack_events(cqn, 1).is_err());
}

fn dropping_removes_what_was_not_got(mode: Mode) {
    let pd = device(mode).alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut ends: Vec<(Cq, Qp)> = (0..2)
        .map(|_| {
            let mut cq = cq_on(&channel, 1);
            let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
            connected(&mut qp);
            (cq, qp)
        })
        .collect();
    for wr_id in 0..3 {
        for (cq, qp) in &mut ends {
            cq.req_notify(false).unwrap();
            post(qp, wr_id, Nop {}, NoPayload, SIGNALED).unwrap();
            qp.sq().ring();
            assert_eq!(wait(cq).wr_id, wr_id);
        }
    }
    let (cq, qp) = ends.swap_remove(0);
    drop((cq, qp));
    for _ in 0..3 {
        let event = channel.get_cq_event().unwrap();
        assert_eq!(event.cqn(), ends[0].0.cqn());
    }
    assert!(!readable(&channel, quiet(mode)));
}

fn a_queue_may_outlive_its_channel(mode: Mode) {
    let Own {
        channel,
        mut cq,
        recv_cq: _recv_cq,
        mut qp,
        ..
    } = Own::new(mode);
    drop(channel);
    cq.req_notify(false).unwrap();
    post(&mut qp, 1, Nop {}, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
    assert_eq!(wait(&mut cq).wr_id, 1);
    // The event that nobody can get does not keep it.
    drop(cq);
}

fn queue_pairs_may_outlive_their_queue(mode: Mode) {
    let Own {
        channel,
        mut cq,
        recv_cq: _recv_cq,
        mut qp,
        ..
    } = Own::new(mode);
    cq.req_notify(false).unwrap();
    let cqn = cq.cqn();
    drop(cq);
    // Nobody is told of a queue that is gone, and nobody else has its number.
    post(&mut qp, 1, Nop {}, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
    assert!(!readable(&channel, quiet(mode)));
    assert_ne!(cq_on(&channel, 1).cqn(), cqn);
}

fn a_queue_without_a_channel_cannot_be_armed(mode: Mode) {
    let device = device(mode);
    let mut cq = device.create_cq(16).unwrap();
    let cqn = cq.cqn();
    let unarmed = [cq.req_notify(false), cq.req_notify(true), cq.ack_events(1)];
    for error in unarmed {
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::NoChannel { cqn: of } if of == cqn),
            "{error}"
        );
        assert!(error.to_string().contains("CqInit::channel"), "{error}");
    }
}

fn a_channel_of_another_context_is_refused(mode: Mode) {
    let first = device(mode);
    let channel = first.create_comp_channel().unwrap();
    for other in [first.reopen().unwrap(), device(mode)] {
        let init = CqInit {
            channel: Some(&channel),
            ..CqInit::new(16)
        };
        let error = other.create_cq_with(&init).unwrap_err();
        let foreign = matches!(
            error,
            Error::Foreign {
                what: "completion channel"
            }
        );
        assert!(foreign, "{error}");
    }
}

fn numbers_tell_queues_apart(mode: Mode) {
    let device = device(mode);
    let kept: Vec<Cq> = (0..20).map(|_| device.create_cq(1).unwrap()).collect();
    let mut numbers: Vec<u32> = kept.iter().map(Cq::cqn).collect();
    for _ in 0..20 {
        numbers.push(device.reopen().unwrap().create_cq(1).unwrap().cqn());
    }
    assert!(numbers.iter().all(|&cqn| cqn != 0 && cqn < 1 << 24));
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

/// A request that waits for a receive, which never comes, fails while everybody sleeps.
fn sleepers_let_waiting_requests_go_on(mode: Mode) {
    let pd = device(mode).alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, 1);
    let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
    let mut other = End::new(&pd, mode, &init());
    let connect = ConnectAttr {
        rnr_retry: 3,
        ..ConnectAttr::default()
    };
    connect_with(&mut qp, &mut other.qp, &connect);
    cq.req_notify(true).unwrap();
    post(&mut qp, 9, Send {}, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
    assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
    let done = wait(&mut cq);
    assert_eq!((done.wr_id, done.status()), (9, WcStatus::RnrRetryExcErr));
}

/// Producers post a few requests at a time, and go on when these were told, so that one that is
/// missed hangs; the consumer arms, polls once more, and sleeps.
fn no_sleeper_misses_anything(mode: Mode) {
    const PRODUCERS: u64 = 2;
    const EACH: u64 = 10_000;
    let pd = device(mode).alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, PRODUCERS as u32);
    let qps: Vec<Qp> = (0..PRODUCERS)
        .map(|_| {
            let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
            connected(&mut qp);
            qp
        })
        .collect();
    let told: [AtomicU64; PRODUCERS as usize] = Default::default();
    let produce = |qp: &mut Qp, producer: u64| {
        let mut random = Random::new(producer + 1);
        let mut next = 0;
        while next < EACH {
            for _ in 0..=random.below(3).min(EACH - next - 1) {
                post(qp, producer * EACH + next, Nop {}, NoPayload, SIGNALED).unwrap();
                next += 1;
            }
            qp.sq().ring();
            let told = &told[producer as usize];
            until("what was posted", || told.load(Ordering::Acquire) == next);
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
        let done = || told.iter().all(|told| told.load(Ordering::Relaxed) == EACH);
        loop {
            cq.req_notify(false).unwrap();
            while let Some(done) = cq.poll_one() {
                let told = &told[(done.wr_id / EACH) as usize];
                assert_eq!(done.wr_id % EACH, told.load(Ordering::Relaxed));
                assert_eq!(done.status(), WcStatus::Success);
                told.fetch_add(1, Ordering::Release);
            }
            if done() {
                break;
            }
            assert!(readable(&channel, DEADLINE), "missed after {told:?}");
            assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
            sleeps += 1;
        }
    });
    assert!(sleeps > 10, "slept {sleeps} times only");
}
