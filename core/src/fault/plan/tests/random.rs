//! Random faults and results in random order.

use super::*;
use proptest::prelude::*;

/// The next occurrence in a random run.
#[derive(Clone, Debug)]
enum Happens {
    Done,
    Changed,
    Pending,
    Fails(Fault),
    Fault(Fault),
    /// Time passes: this part of the time left, in 16ths.
    Time(u32),
    Late(Step),
    PeerClosed,
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        10 => prop::sample::select(recoverable()),
        4 => prop::sample::select([CQ_ERR, QP_FATAL, Fault::PeerRecovery, event(EventType::PortErr)].to_vec()),
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

    /// For all faults and results in all orders: each step is legal when it is returned, and the run ends in
    /// time. Once no more faults occur the recovery succeeds or has been given up.
    #[test]
    fn steps_are_legal_and_every_run_ends(
        happenings in happenings(),
        (peer, srq, new_qp_per_connection) in any::<(bool, bool, bool)>(),
        attempts in 1u32..10,
        recovery in 1u64..40_000,
        exchange in 1u64..100_000,
        seed: u64,
    ) {
        let [recovery, exchange] = [recovery, exchange].map(Duration::from_millis);
        let limits = Limits { attempts, recovery, exchange, seed, ..Limits::default() };
        let mut world = World::new(Setup { peer, srq, new_qp_per_connection }, limits);
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
                // The result of a step that was not returned changes nothing.
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
