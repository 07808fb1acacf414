//! The plan against queues that mind their states, through every order of faults and answers.

mod world;

use super::*;
use crate::fault::{CmEvent, EventType, WcStatus, WorkQueue};
use crate::wr::QpType;
use proptest::prelude::*;
use std::vec::Vec;
use world::World;

const LINK: Setup = Setup {
    peer: true,
    srq: false,
};

const fn event(event: EventType) -> Fault {
    Fault::Event(event)
}

const fn status(status: WcStatus, transport: QpType) -> Fault {
    Fault::Status {
        status,
        transport,
        queue: WorkQueue::Send(None),
        vendor: None,
    }
}

const QP_FATAL: Fault = event(EventType::QpFatal);
const CQ_ERR: Fault = event(EventType::CqErr);

/// Carries it out, every step at once and well; gives the end and the steps.
fn well(world: &mut World) -> (Option<End>, Vec<Step>) {
    let from = world.trace.len();
    for _ in 0..10_000 {
        match world.next() {
            Next::Idle => return (None, world.trace[from..].to_vec()),
            Next::Ended(end) => return (Some(end), world.trace[from..].to_vec()),
            Next::WaitUntil(time) => world.now = time,
            Next::Step(step) => world.done(step, StepResult::Done),
        }
    }
    panic!("it does not end: {:?}", world.trace);
}

fn steps_of(setup: Setup, fault: Fault) -> (Option<End>, Vec<Step>) {
    let mut world = World::new(setup, Limits::default());
    world.fault(fault);
    well(&mut world)
}

#[test]
fn every_recovery_has_its_steps() {
    use Step::*;
    let recovered = |setup, fault, steps: &[Step]| {
        let (end, taken) = steps_of(setup, fault);
        assert_eq!(
            (end, &taken[..]),
            (Some(End::Recovered), steps),
            "{fault:?}"
        );
    };
    let again = [Exchange, Init, RepostReceives, Connect, Ready, Replay, Open];
    let reset = [&[StopPosting, ToError, Drain, AckEvents, Reset][..], &again].concat();
    for fault in [
        status(WcStatus::RetryExcErr, QpType::Rc),
        QP_FATAL,
        event(EventType::QpReqErr),
        event(EventType::QpAccessErr),
        Fault::Peer,
    ] {
        recovered(LINK, fault, &reset);
    }
    let rebuild = [
        StopPosting,
        ToError,
        AckEvents,
        DestroyQp,
        DestroyCq,
        CreateCq,
        CreateQp,
    ];
    recovered(LINK, CQ_ERR, &[&rebuild[..], &again].concat());
    let srq = Setup { srq: true, ..LINK };
    let rebuild = [
        StopPosting,
        ToError,
        AwaitLastWqe,
        Drain,
        AckEvents,
        DestroyQp,
        RebuildSrq,
        CreateQp,
    ];
    recovered(
        srq,
        event(EventType::SrqErr),
        &[&rebuild[..], &again].concat(),
    );
    let alone = Setup {
        peer: false,
        srq: false,
    };
    let resume = [StopPosting, DrainSend, ResumeSend, Replay, Open];
    recovered(alone, status(WcStatus::LocProtErr, QpType::Ud), &resume);
    let fresh = [
        StopPosting,
        ToError,
        Drain,
        AckEvents,
        Reset,
        Init,
        RepostReceives,
        Connect,
        Replay,
        Open,
    ];
    recovered(alone, QP_FATAL, &fresh);
    let port = [StopPosting, AwaitPort, Resolve, Probe, Open];
    recovered(LINK, event(EventType::PortErr), &port);
    for changed in [
        EventType::GidChange,
        EventType::LidChange,
        EventType::PkeyChange,
    ] {
        recovered(LINK, event(changed), &[Resolve]);
    }
    recovered(LINK, event(EventType::SmChange), &[RejoinMulticast]);
    recovered(LINK, event(EventType::ClientReregister), &[RejoinMulticast]);
    recovered(LINK, event(EventType::PathMig), &[LoadAlternatePath]);
    recovered(srq, event(EventType::SrqLimitReached), &[RefillSrq]);
}

#[test]
fn news_ask_for_nothing_and_lost_devices_for_closing() {
    for news in [
        EventType::SqDrained,
        EventType::CommEst,
        EventType::PortActive,
        EventType::QpLastWqeReached,
    ] {
        assert_eq!(steps_of(LINK, event(news)), (None, Vec::new()));
    }
    let close = [
        Step::StopPosting,
        Step::AckEvents,
        Step::Close,
        Step::Surface,
    ];
    for lost in [
        event(EventType::DeviceFatal),
        Fault::Cm(CmEvent::DeviceRemoval),
    ] {
        let (end, taken) = steps_of(LINK, lost);
        assert_eq!(end, Some(End::GaveUp(Why::Fault(lost))));
        assert_eq!(taken, close);
    }
}

#[test]
fn addresses_that_changed_are_connected_anew() {
    let mut world = World::new(LINK, Limits::default());
    world.fault(event(EventType::GidChange));
    assert_eq!(world.next(), Next::Step(Step::Resolve));
    world.done(Step::Resolve, StepResult::Changed);
    let (end, taken) = well(&mut world);
    assert_eq!(end, Some(End::Recovered));
    assert!(taken.contains(&Step::Reset) && taken.contains(&Step::Exchange));
}

/// Every fault of the tables, but those that end it.
fn recoverable() -> Vec<Fault> {
    let statuses = WcStatus::ALL
        .iter()
        .flat_map(|&number| [QpType::Rc, QpType::Ud].map(|transport| status(number, transport)));
    let events = EventType::ALL.iter().map(|&number| event(number));
    let cm = CmEvent::ALL.iter().map(|&number| Fault::Cm(number));
    let all =
        statuses
            .chain(events)
            .chain(cm)
            .chain([Fault::Peer, Fault::PeerClosed, Fault::PeerLost]);
    let closes = |fault: &Fault| {
        matches!(
            crate::fault::classify(*fault).recovery,
            crate::fault::Recovery::CloseDevice | crate::fault::Recovery::DestroyId
        )
    };
    all.filter(|fault| !closes(fault)).collect()
}

/// Each two faults, the second before and within each step of the first's recovery.
#[test]
#[cfg_attr(miri, ignore = "safe code, which takes too long there")]
fn two_faults_are_recovered_from_whenever_the_second_comes() {
    let setups = [
        LINK,
        Setup {
            peer: false,
            srq: true,
        },
    ];
    for setup in setups {
        for &first in &recoverable() {
            let length = steps_of(setup, first).1.len();
            for &second in &recoverable() {
                for at in 0..=length {
                    let mut world = World::new(setup, Limits::default());
                    world.fault(first);
                    for _ in 0..at {
                        if let Next::Step(step) = world.next() {
                            world.done(step, StepResult::Done);
                        }
                    }
                    if at < length {
                        let _pending = world.next();
                    }
                    world.fault(second);
                    // What one run leaves the next takes up.
                    loop {
                        match well(&mut world).0 {
                            None => break,
                            Some(end) => {
                                assert_eq!(end, End::Recovered, "{first:?} {second:?} {at}")
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_cq_error_during_a_reset_makes_it_a_rebuild() {
    use Step::*;
    let mut world = World::new(LINK, Limits::default());
    world.fault(QP_FATAL);
    while world.next() != Next::Step(Drain) {
        let step = *world.trace.last().unwrap();
        world.done(step, StepResult::Done);
    }
    world.done(Drain, StepResult::Pending);
    world.fault(CQ_ERR);
    let (end, taken) = well(&mut world);
    assert_eq!(end, Some(End::Recovered));
    assert!(!taken.contains(&Reset) && !taken.contains(&Drain));
    assert_eq!(world.plan.attempt(), 1);
    // And after the reset the queue pairs are destroyed as they are.
    let mut world = World::new(LINK, Limits::default());
    world.fault(QP_FATAL);
    while world.next() != Next::Step(Exchange) {
        let step = *world.trace.last().unwrap();
        world.done(step, StepResult::Done);
    }
    world.fault(CQ_ERR);
    let rebuild = [
        AckEvents, DestroyQp, DestroyCq, CreateCq, CreateQp, Exchange,
    ];
    assert_eq!(well(&mut world).1[..6], rebuild);
}

#[test]
fn what_is_to_be_done_anyway_is_done_once() {
    let mut world = World::new(LINK, Limits::default());
    world.fault(QP_FATAL);
    let _first = world.next();
    for _ in 0..100 {
        world.fault(QP_FATAL);
        world.fault(status(WcStatus::WrFlushErr, QpType::Rc));
        world.fault(Fault::Peer);
        world.fault(event(EventType::QpAccessErr));
    }
    let (end, _) = well(&mut world);
    assert_eq!((end, world.trace.len()), (Some(End::Recovered), 12));
}

#[test]
fn events_end_waits() {
    let srq = Setup { srq: true, ..LINK };
    let mut world = World::new(srq, Limits::default());
    world.fault(event(EventType::QpLastWqeReached));
    world.fault(QP_FATAL);
    assert!(!well(&mut world).1.contains(&Step::AwaitLastWqe));
    // That was the last life's.
    world.now += Duration::from_secs(60);
    world.fault(QP_FATAL);
    while world.next() != Next::Step(Step::AwaitLastWqe) {
        let step = *world.trace.last().unwrap();
        world.done(step, StepResult::Done);
    }
    world.fault(event(EventType::QpLastWqeReached));
    assert_eq!(world.next(), Next::Step(Step::Drain));
    // A port that comes back.
    let mut world = World::new(LINK, Limits::default());
    world.fault(event(EventType::PortErr));
    assert_eq!(world.next(), Next::Step(Step::StopPosting));
    world.done(Step::StopPosting, StepResult::Done);
    assert_eq!(world.next(), Next::Step(Step::AwaitPort));
    world.fault(event(EventType::PortActive));
    assert_eq!(world.next(), Next::Step(Step::Resolve));
}

#[test]
fn waits_end_at_their_deadlines() {
    let limits = Limits::default();
    let mut world = World::new(LINK, limits);
    world.fault(QP_FATAL);
    // Answers of another step are late.
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
    // A port that does not come back.
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
    assert_eq!(end, End::GaveUp(Why::TimedOut(Step::AwaitPort)));
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
    assert_eq!(end, End::GaveUp(Why::Failed(Step::Exchange, refused)));
    assert_eq!(delays.len(), 5);
    for (doublings, delay) in (0..).zip(delays) {
        let whole = limits.backoff_first * (1 << doublings);
        assert!(
            (whole / 2..=whole).contains(&delay),
            "{delay:?} of {whole:?}"
        );
    }
    // What was reset once stays so: only the exchange is tried again.
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
                assert_eq!(end, Some(End::GaveUp(Why::FaultsKeepComing(QP_FATAL))));
                return;
            }
        }
    }
    panic!("never");
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

#[test]
fn what_only_helps_degrades() {
    let mut world = World::new(LINK, Limits::default());
    world.fault(event(EventType::SmChange));
    let fault = Fault::Errno(110);
    let end = loop {
        match world.next() {
            Next::Step(step) => world.done(step, StepResult::Failed(fault)),
            Next::WaitUntil(time) => world.now = time,
            Next::Ended(end) => break end,
            Next::Idle => panic!(),
        }
    };
    assert_eq!(
        end,
        End::Degraded(Why::Failed(Step::RejoinMulticast, fault))
    );
    assert_eq!(world.next(), Next::Idle);
}

#[test]
fn a_peer_that_is_gone_and_a_hanging_teardown_end_it() {
    for (fault, result, why) in [
        (Fault::PeerClosed, StepResult::PeerClosed, Why::PeerClosed),
        (Fault::PeerLost, StepResult::PeerLost, Why::PeerLost),
        (QP_FATAL, StepResult::PeerClosed, Why::PeerClosed),
    ] {
        let mut world = World::new(LINK, Limits::default());
        world.fault(fault);
        while world.next() != Next::Step(Step::Exchange) {
            let step = *world.trace.last().unwrap();
            world.done(step, StepResult::Done);
        }
        // All that was in flight was told before.
        assert!(world.trace.contains(&Step::Drain));
        world.done(Step::Exchange, result);
        let start = world.now;
        let end = loop {
            match world.next() {
                Next::Step(step) => {
                    world.done(step, StepResult::Pending);
                    world.now += Duration::from_millis(100);
                    assert!(world.now - start <= 3 * Limits::default().step, "it hangs");
                }
                Next::Ended(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, End::GaveUp(why));
        world.fault(CQ_ERR);
        assert_eq!(world.next(), Next::Ended(end));
    }
}

/// What happens next in a random run.
#[derive(Clone, Debug)]
enum Happens {
    Done,
    Changed,
    Pending,
    Fails(Fault),
    Fault(Fault),
    /// Nothing, for a part of the time that is left, in 16ths.
    Time(u32),
    Late(Step),
    PeerClosed,
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        10 => prop::sample::select(recoverable()),
        4 => prop::sample::select([CQ_ERR, QP_FATAL, Fault::Peer, event(EventType::PortErr)].to_vec()),
        2 => Just(event(EventType::PortActive)),
        1 => any::<i32>().prop_map(Fault::Errno),
        1 => any::<u32>().prop_map(Fault::event),
    ]
}

fn happenings() -> impl Strategy<Value = Vec<Happens>> {
    let one = prop_oneof![
        400 => Just(Happens::Done),
        20 => Just(Happens::Changed),
        20 => Just(Happens::Pending),
        60 => faults().prop_map(Happens::Fails),
        80 => faults().prop_map(Happens::Fault),
        80 => (0u32..=16).prop_map(Happens::Time),
        20 => prop::sample::select(Step::ALL).prop_map(Happens::Late),
        1 => Just(Happens::PeerClosed),
        1 => prop::sample::select([event(EventType::DeviceFatal), Fault::Cm(CmEvent::DeviceRemoval)].to_vec())
            .prop_map(Happens::Fault),
    ];
    prop::collection::vec(one, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever happens, in whatever order: steps are legal where they are named, and it ends in time.
    /// When nothing happens any more it ends well, or has given up.
    #[test]
    #[cfg_attr(miri, ignore = "safe code, which takes too long there")]
    fn steps_are_legal_and_every_run_ends(
        happenings in happenings(),
        (peer, srq) in any::<(bool, bool)>(),
        attempts in 1u32..10,
        seed: u64,
    ) {
        let limits = Limits { attempts, seed, ..Limits::default() };
        let mut world = World::new(Setup { peer, srq }, limits);
        world.fault(QP_FATAL);
        let mut over = None;
        for happens in happenings {
            let next = world.next();
            if let Next::Ended(End::GaveUp(why)) = next {
                prop_assert!(over.is_none_or(|before| before == why));
                over = Some(why);
            } else {
                prop_assert_eq!(over, None);
            }
            match (happens, next) {
                (Happens::Fault(fault), _) => world.fault(fault),
                // An answer to a step that was not named changes nothing.
                (Happens::Late(step), next) if next != Next::Step(step) => {
                    world.plan.done(step, StepResult::Done, world.now);
                }
                (Happens::Time(part), _) => {
                    let deadline = world.plan.deadline();
                    let left = deadline.map_or(limits.settle, |time| time.saturating_sub(world.now));
                    world.now += left * part / 16;
                }
                (Happens::Done, Next::Step(step)) => world.done(step, StepResult::Done),
                (Happens::Changed, Next::Step(step)) => world.done(step, StepResult::Changed),
                (Happens::Pending, Next::Step(step)) => world.done(step, StepResult::Pending),
                (Happens::Fails(why), Next::Step(step)) => world.done(step, StepResult::Failed(why)),
                (Happens::PeerClosed, Next::Step(step)) => world.done(step, StepResult::PeerClosed),
                (_, Next::WaitUntil(time)) => world.now = time,
                _ => {}
            }
        }
        if world.port_down {
            world.fault(event(EventType::PortActive));
        }
        loop {
            match well(&mut world).0 {
                None => break,
                Some(End::GaveUp(_)) => break,
                Some(End::Recovered | End::Degraded(_)) => {}
            }
        }
    }
}
