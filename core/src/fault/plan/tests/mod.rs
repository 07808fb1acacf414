//! Tests of the plan with a model of the queues that checks their states, for all orders of faults and
//! results.

mod random;
mod time;
mod world;

use super::*;
use crate::fault::{CmEvent, EventType, WcStatus, WorkQueue};
use crate::wr::QpType;
use std::vec::Vec;
use world::World;

const LINK: Setup = Setup {
    peer: true,
    srq: false,
    new_qp_per_connection: false,
};

/// A link whose connections the communication manager makes.
const CM_LINK: Setup = Setup {
    new_qp_per_connection: true,
    ..LINK
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

/// Carries out every step at once and successfully; returns the end and the steps.
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
        Fault::PeerRecovery,
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
    let alone = Setup::default();
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

/// Each connection uses a queue pair with a new number; a queue pair is reset only if the peer never received
/// its number.
#[test]
fn a_queue_pair_that_is_to_be_new_is_created() {
    use Step::*;
    let again = [Exchange, Init, RepostReceives, Connect, Ready, Replay, Open];
    let create = [StopPosting, ToError, Drain, AckEvents, DestroyQp, CreateQp];
    let (end, taken) = steps_of(CM_LINK, QP_FATAL);
    assert_eq!(end, Some(End::Recovered));
    assert_eq!(taken, [&create[..], &again].concat());
    let mut world = World::new(CM_LINK, Limits::default());
    world.connect();
    let reset = [&[StopPosting, ToError, Drain, AckEvents, Reset][..], &again].concat();
    assert_eq!(well(&mut world), (Some(End::Recovered), reset));
    // A queue pair that the peer may have connected to is not sent to the peer again.
    world.fault(Fault::PeerRecovery);
    let mut failed = 0;
    loop {
        match world.next() {
            Next::Step(Exchange) if failed < 3 => {
                failed += 1;
                world.done(Exchange, StepResult::Failed(Fault::Errno(110)));
            }
            Next::Step(step) => world.done(step, StepResult::Done),
            Next::WaitUntil(time) => world.now = time,
            Next::Ended(end) => break assert_eq!(end, End::Recovered),
            Next::Idle => panic!(),
        }
    }
    let created = world.trace.iter().filter(|&&step| step == CreateQp);
    assert_eq!(created.count(), 4);
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
        Step::ReportOutcomes,
    ];
    for lost in [
        event(EventType::DeviceFatal),
        Fault::Cm(CmEvent::DeviceRemoval),
    ] {
        let (end, taken) = steps_of(LINK, lost);
        assert_eq!(end, Some(End::GaveUp(EndReason::Fault(lost))));
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

/// Every fault of the tables that does not end the recovery.
fn recoverable() -> Vec<Fault> {
    let statuses = WcStatus::ALL
        .iter()
        .flat_map(|&number| [QpType::Rc, QpType::Ud].map(|transport| status(number, transport)));
    let events = EventType::ALL.iter().map(|&number| event(number));
    let cm = CmEvent::ALL.iter().map(|&number| Fault::Cm(number));
    let all = statuses.chain(events).chain(cm).chain([
        Fault::PeerRecovery,
        Fault::PeerClosed,
        Fault::PeerLost,
        Fault::PeerRestarted,
    ]);
    let closes = |fault: &Fault| {
        matches!(
            crate::fault::classify(*fault).recovery,
            crate::fault::Recovery::CloseDevice
                | crate::fault::Recovery::DestroyId
                | crate::fault::Recovery::CloseLink
        )
    };
    all.filter(|fault| !closes(fault)).collect()
}

/// Every pair of faults, with the second before and within each step of the first's recovery.
#[test]
fn two_faults_are_recovered_from_whenever_the_second_comes() {
    let setups = [
        LINK,
        CM_LINK,
        Setup {
            srq: true,
            ..Setup::default()
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
                    // A need that one run leaves is met by the next.
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
    // After the reset, the queue pairs are destroyed in their present state.
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
        world.fault(Fault::PeerRecovery);
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
    // That event belonged to the previous life.
    world.now += Duration::from_secs(60);
    world.fault(QP_FATAL);
    while world.next() != Next::Step(Step::AwaitLastWqe) {
        let step = *world.trace.last().unwrap();
        world.done(step, StepResult::Done);
    }
    world.fault(event(EventType::QpLastWqeReached));
    assert_eq!(world.next(), Next::Step(Step::Drain));
    // The port becomes active again.
    let mut world = World::new(LINK, Limits::default());
    world.fault(event(EventType::PortErr));
    assert_eq!(world.next(), Next::Step(Step::StopPosting));
    world.done(Step::StopPosting, StepResult::Done);
    assert_eq!(world.next(), Next::Step(Step::AwaitPort));
    world.fault(event(EventType::PortActive));
    assert_eq!(world.next(), Next::Step(Step::Resolve));
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
        End::Degraded(EndReason::Failed(Step::RejoinMulticast, fault))
    );
    assert_eq!(world.next(), Next::Idle);
}

#[test]
fn a_peer_that_is_gone_and_a_hanging_teardown_end_it() {
    for (fault, result, why) in [
        (
            Fault::PeerClosed,
            StepResult::PeerClosed,
            EndReason::PeerClosed,
        ),
        (Fault::PeerLost, StepResult::PeerLost, EndReason::PeerLost),
        (
            Fault::PeerRestarted,
            StepResult::PeerRestarted,
            EndReason::PeerRestarted,
        ),
        (QP_FATAL, StepResult::PeerClosed, EndReason::PeerClosed),
    ] {
        let mut world = World::new(LINK, Limits::default());
        world.fault(fault);
        while world.next() != Next::Step(Step::Exchange) {
            let step = *world.trace.last().unwrap();
            world.done(step, StepResult::Done);
        }
        // All requests in flight were reported before.
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
