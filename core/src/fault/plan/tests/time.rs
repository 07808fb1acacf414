//! Deadlines, attempts and delays: the longest duration of a recovery.

use super::*;

#[test]
fn waits_end_at_their_deadlines() {
    let limits = Limits::default();
    let mut world = World::new(LINK, limits);
    world.fault(QP_FATAL);
    // The result of another step is late and ignored.
    world.done(Step::ToError, StepResult::Done);
    let mut passed = Duration::ZERO;
    loop {
        match world.next() {
            Next::Step(Step::AckEvents) => break,
            Next::Step(Step::Drain) => {
                let deadline = world.plan.deadline().unwrap();
                assert_eq!(deadline, world.now + limits.drain);
                passed += deadline - world.now;
                world.now = deadline;
            }
            Next::Step(step) => world.done(step, StepResult::Done),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(passed, limits.drain);
    // The port does not become active again.
    let mut world = World::new(LINK, limits);
    world.fault(event(EventType::PortErr));
    let end = loop {
        match world.next() {
            Next::Step(Step::AwaitPort) => world.now = world.plan.deadline().unwrap(),
            Next::Step(step) => world.done(step, StepResult::Done),
            Next::Ended(end) => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end, End::GaveUp(EndReason::TimedOut(Step::AwaitPort)));
}

/// Everything takes as long as it may: each step until its deadline, with the same result then; each delay in
/// full; and a fault of another kind in between.
#[test]
fn the_worst_case_is_within_the_bound() {
    let limits = Limits::default();
    assert_eq!(limits.max_duration(), Duration::from_secs(20));
    let just_before = Duration::from_nanos(1);
    let refused = StepResult::Failed(Fault::Errno(111));
    let mut longest = Duration::ZERO;
    for (answer, early) in [
        (StepResult::Pending, Duration::ZERO),
        (refused, just_before),
        (StepResult::Failed(QP_FATAL), just_before),
        (StepResult::Done, just_before),
    ] {
        for fault in [
            QP_FATAL,
            CQ_ERR,
            event(EventType::PortErr),
            event(EventType::SmChange),
        ] {
            for interrupted in [false, true] {
                let mut world = World::new(LINK, limits);
                let start = world.now;
                world.fault(fault);
                let mut others = recoverable().into_iter();
                let end = loop {
                    match world.next() {
                        Next::Step(step) => {
                            world.done(step, StepResult::Pending);
                            let deadline = world.plan.deadline().expect("each has one");
                            world.now = (deadline - early).max(world.now);
                            if let (true, Some(other)) = (interrupted, others.next()) {
                                world.fault(other);
                            }
                            if answer != StepResult::Pending
                                && let Next::Step(step) = world.next()
                            {
                                world.done(step, answer);
                            }
                        }
                        Next::WaitUntil(time) => world.now = time,
                        Next::Ended(end) => break end,
                        Next::Idle => panic!("it goes on"),
                    }
                };
                let took = world.now - start;
                assert!(
                    took <= limits.max_duration(),
                    "{answer:?} {fault:?}: {end:?} after {took:?}"
                );
                longest = longest.max(took);
            }
        }
    }
    assert!(
        longest > limits.recovery,
        "the worst case was not met: {longest:?}"
    );
}

/// A peer that never replies ends the recovery when its time is up, not only after all attempts.
#[test]
fn all_attempts_together_have_a_deadline() {
    let limits = Limits::default();
    let mut world = World::new(LINK, limits);
    let start = world.now;
    world.fault(QP_FATAL);
    let end = loop {
        match world.next() {
            Next::Step(Step::Exchange) => world.now = world.plan.deadline().unwrap(),
            Next::Step(step) => world.done(step, StepResult::Done),
            Next::WaitUntil(time) => world.now = time,
            Next::Ended(end) => break end,
            Next::Idle => panic!(),
        }
    };
    assert_eq!(end, End::GaveUp(EndReason::TimedOut(Step::Exchange)));
    assert_eq!(world.now - start, limits.recovery);
    // The time counts from the first call of `next`: the program may not have run meanwhile.
    let mut world = World::new(LINK, limits);
    world.fault(QP_FATAL);
    world.now += limits.max_duration();
    assert_eq!(well(&mut world).0, Some(End::Recovered));
}

#[test]
fn what_only_helps_degrades_when_the_time_is_up() {
    let limits = Limits {
        step: Duration::from_secs(10),
        ..Limits::default()
    };
    let mut world = World::new(LINK, limits);
    world.fault(event(EventType::SmChange));
    world.fault(event(EventType::PathMig));
    let end = loop {
        match world.next() {
            Next::Step(_) => world.now = world.plan.deadline().unwrap(),
            Next::WaitUntil(time) => world.now = time,
            Next::Ended(end) => break end,
            Next::Idle => panic!(),
        }
    };
    assert!(
        matches!(end, End::Degraded(EndReason::TimedOut(_))),
        "{end:?}"
    );
    assert_eq!(world.next(), Next::Idle);
}

#[test]
fn attempts_are_counted_and_their_delays_grow() {
    let limits = Limits {
        attempts: 6,
        ..Limits::default()
    };
    let refused = Fault::Errno(111);
    let mut delays = Vec::new();
    let mut world = World::new(LINK, limits);
    world.fault(QP_FATAL);
    let end = loop {
        match world.next() {
            Next::Step(Step::Exchange) => world.done(Step::Exchange, StepResult::Failed(refused)),
            Next::Step(step) => world.done(step, StepResult::Done),
            Next::WaitUntil(time) => {
                delays.push(time - world.now);
                world.now = time;
            }
            Next::Ended(end) => break end,
            Next::Idle => panic!(),
        }
    };
    assert_eq!(end, End::GaveUp(EndReason::Failed(Step::Exchange, refused)));
    assert_eq!(delays.len(), 5);
    for (doublings, delay) in (0..).zip(delays) {
        let whole = limits.backoff_first * (1 << doublings);
        assert!(
            (whole / 2..=whole).contains(&delay),
            "{delay:?} of {whole:?}"
        );
    }
    // The queue pairs stay in RESET: only the exchange is repeated.
    assert_eq!(
        world
            .trace
            .iter()
            .filter(|&&step| step == Step::Reset)
            .count(),
        1
    );
}

#[test]
fn a_recovery_that_breaks_again_and_again_is_given_up() {
    let mut world = World::new(LINK, Limits::default());
    for run in 0..100 {
        world.fault(QP_FATAL);
        match well(&mut world).0 {
            Some(End::Recovered) => assert!(run < 8),
            end => {
                assert_eq!(
                    end,
                    Some(End::GaveUp(EndReason::FaultsKeepComing(QP_FATAL)))
                );
                return;
            }
        }
    }
    panic!("never");
}

/// A bad request breaks the connection and is reported; the next request is a different one.
#[test]
fn bad_requests_that_were_recovered_from_end_nothing() {
    let at_the_peer = [
        event(EventType::QpAccessErr),
        event(EventType::QpReqErr),
        Fault::PeerRecovery,
    ];
    let bad = [
        WcStatus::LocProtErr,
        WcStatus::LocLenErr,
        WcStatus::RemAccessErr,
        WcStatus::RemInvReqErr,
    ];
    let bad = bad.map(|number| status(number, QpType::Rc));
    for fault in bad.into_iter().chain(at_the_peer) {
        let mut world = World::new(LINK, Limits::default());
        for _ in 0..100 {
            world.fault(fault);
            assert_eq!(well(&mut world).0, Some(End::Recovered), "{fault:?}");
            assert_eq!(world.next(), Next::Idle);
        }
    }
}

#[test]
fn one_that_lasts_is_forgotten() {
    let limits = Limits::default();
    let mut world = World::new(LINK, limits);
    for _ in 0..100 {
        world.fault(QP_FATAL);
        assert_eq!(well(&mut world).0, Some(End::Recovered));
        assert_eq!(world.next(), Next::Idle);
        world.now += limits.settle;
    }
}

#[test]
fn two_ends_do_not_wait_alike() {
    let delays = |seed| {
        let limits = Limits {
            seed,
            ..Limits::default()
        };
        let mut world = World::new(LINK, limits);
        world.fault(QP_FATAL);
        let mut delays = Vec::new();
        while delays.len() < 5 {
            match world.next() {
                Next::Step(Step::Exchange) => {
                    world.done(Step::Exchange, StepResult::Failed(Fault::Errno(111)));
                }
                Next::Step(step) => world.done(step, StepResult::Done),
                Next::WaitUntil(time) => {
                    delays.push(time - world.now);
                    world.now = time;
                }
                other => panic!("{other:?}"),
            }
        }
        delays
    };
    assert_eq!(delays(1), delays(1));
    assert_ne!(delays(1), delays(2));
}
