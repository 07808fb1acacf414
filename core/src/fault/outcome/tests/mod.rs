//! Tests of the verdict against a model of a connection that executes requests: the verdict is never wrong,
//! and it is in doubt only where the same evidence results from a run that executed the request and from one
//! that did not.

mod model;

use super::status::{Itself, Kind, says};
use super::*;
use crate::fault::{Execution, Scope};
use model::{Known, Posted, State};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::format;
use std::vec::Vec;

const REPRESENTATIVE: [WrOpcode; 6] = [
    WrOpcode::Send,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicFetchAndAdd,
    WrOpcode::LocalInv,
    WrOpcode::Nop,
];

const REMOTE: [WrOpcode; 8] = [
    WrOpcode::Send,
    WrOpcode::SendWithImm,
    WrOpcode::SendWithInv,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaWriteWithImm,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicCmpAndSwp,
    WrOpcode::AtomicFetchAndAdd,
];

/// Every reachable state of the connection.
fn reachable(posted: &Posted) -> HashSet<State> {
    let mut seen = HashSet::from([State::default()]);
    let mut open = Vec::from([State::default()]);
    while let Some(state) = open.pop() {
        for next in posted.successors(&state) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen
}

/// Checks that the verdict does not contradict what happened.
fn sound(posted: &Posted, state: &State, known: &Known) -> Result<Verdict, std::string::String> {
    let pending = &posted.requests[known.unresolved..];
    let verdict = Verdict::new(&known.evidence, pending.iter().copied());
    for (at, request) in posted.requests.iter().enumerate() {
        let kind = Kind::of(request.operation);
        let (executed, answered) = (posted.executed(state, at), posted.answered(state, at));
        let outcome = verdict.of(request);
        let right = match outcome {
            Outcome::Done => executed && (answered || !kind.has_result()),
            // A NOP has no effect that could occur twice, and a READ has none at the peer.
            Outcome::NotExecuted => !executed || kind == Kind::Nothing,
            Outcome::Failed(_) => !executed || kind == Kind::Read,
            Outcome::InDoubt(Doubt::ResultLost) => executed && kind.has_result(),
            Outcome::InDoubt(Doubt::CountContradicts) => false,
            Outcome::InDoubt(_) => kind != Kind::Nothing,
        };
        if !right {
            return Err(format!("{outcome:?} of request {at}"));
        }
        let noticed = |behind: usize| {
            Kind::of(posted.requests[behind].operation).noticeable()
                && posted.executed(state, behind)
        };
        let overtaken = (at + 1..posted.requests.len()).any(noticed);
        for policy in [Replay::Surface, Replay::IfSafe, Replay::Anyway] {
            let harm = match kind {
                Kind::Consuming | Kind::Atomic | Kind::Local => executed,
                Kind::Write => executed && policy != Replay::Anyway,
                Kind::Read => overtaken && policy != Replay::Anyway,
                Kind::Nothing => false,
            };
            if verdict.replays(request, policy) && (harm || policy == Replay::Surface) {
                return Err(format!("request {at} runs again under {policy:?}"));
            }
        }
    }
    Ok(verdict)
}

/// Checks every possible outcome of these requests; returns how often the verdict was in doubt.
fn check_all(posted: &Posted) -> Result<usize, std::string::String> {
    // For each evidence and each request: whether a run executed it, and whether one did not.
    let mut worlds: HashMap<Evidence, (Verdict, Vec<[bool; 2]>)> = HashMap::new();
    for state in reachable(posted) {
        for known in posted.known(&state) {
            let verdict = sound(posted, &state, &known)
                .map_err(|wrong| format!("{wrong}: {posted:?} {state:?} {known:?}"))?;
            let none = [[false; 2]].repeat(posted.requests.len());
            let (_, seen) = worlds.entry(known.evidence).or_insert((verdict, none));
            for (at, seen) in seen.iter_mut().enumerate() {
                seen[usize::from(posted.executed(&state, at))] = true;
            }
        }
    }
    let mut doubts = 0;
    for (evidence, (verdict, seen)) in &worlds {
        for (request, seen) in posted.requests.iter().zip(seen) {
            let outcome = verdict.of(request);
            let must_know = seen != &[true, true];
            let says = match outcome {
                Outcome::InDoubt(Doubt::ResultLost) => Some(true),
                Outcome::InDoubt(_) => None,
                Outcome::Done => Some(true),
                Outcome::NotExecuted | Outcome::Failed(_) => Some(false),
            };
            doubts += usize::from(says.is_none());
            if says.is_none() && must_know {
                return Err(format!(
                    "{outcome:?} of {request:?}, which was executed or not for certain: {evidence:?}"
                ));
            }
        }
    }
    Ok(doubts)
}

fn lists(length: u32) -> impl Iterator<Item = Vec<(WrOpcode, bool)>> {
    let kinds = 2 * REPRESENTATIVE.len();
    (0..kinds.pow(length)).map(move |number| {
        (0..length)
            .map(|digit| number / kinds.pow(digit) % kinds)
            .map(|kind| (REPRESENTATIVE[kind / 2], kind % 2 == 1))
            .collect()
    })
}

/// All lists of two requests, and as many lists of three as time permits: all of them would take a minute.
#[test]
fn in_every_way_that_a_few_requests_can_go_the_verdict_is_right_and_knows_what_can_be_known() {
    let mut doubts = 0;
    let all = (0..=2).flat_map(lists).chain(lists(3).step_by(11));
    for (at, list) in all.enumerate() {
        let depth = [None, Some(1)][at % 2];
        doubts += check_all(&Posted::new(&list, depth)).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(doubts > 0, "nothing was ever in doubt");
}

fn operations(max: usize) -> impl Strategy<Value = Vec<(WrOpcode, bool)>> {
    let operation = prop::sample::select([&REMOTE[..], &REPRESENTATIVE[4..]].concat());
    prop::collection::vec((operation, prop::bool::weighted(0.2)), 0..=max)
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// All operations, and every possible run of up to four of them.
    #[test]
    fn no_doubt_remains_that_evidence_could_settle(
        list in operations(4),
        depth in prop::option::of(1u8..3),
    ) {
        check_all(&Posted::new(&list, depth)).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Long queues, with one random run of each.
    #[test]
    fn the_verdict_is_never_wrong(
        list in operations(24),
        depth in prop::option::of(1u8..5),
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..150),
    ) {
        let posted = Posted::new(&list, depth);
        let mut state = State::default();
        for step in path {
            let next = posted.successors(&state);
            // Failures end the run: making them rarer makes the runs longer.
            let running: Vec<_> = next.iter().filter(|s| posted.runs_well(s)).collect();
            state = match (next.len(), running.len()) {
                (0, _) => break,
                (_, running) if running > 0 && step.index(8) != 0 => {
                    next.iter().filter(|s| posted.runs_well(s)).nth(step.index(running)).unwrap().clone()
                }
                (all, _) => next[step.index(all)].clone(),
            };
            for known in posted.known(&state) {
                let said = sound(&posted, &state, &known);
                prop_assert!(said.is_ok(), "{:?}: {:?} {:?}", said, state, known);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Whatever count the peer reports, the verdict never says that a refused request was done, or that an
    /// acknowledged one was not executed.
    #[test]
    fn a_count_that_cannot_be_is_not_believed(list in operations(12), count in 90u64..130) {
        let list: Vec<_> = list.into_iter().map(|(operation, _)| (operation, false)).collect();
        let posted = Posted::new(&list, None);
        let total = posted.requests.iter().filter(|r| consumes_receive(r.operation)).count() as u64;
        for (refused, request) in posted.requests.iter().enumerate() {
            let evidence = Evidence {
                completed: posted.requests[0].sequence,
                failed: Some(FirstFailure { sequence: request.sequence, status: WcStatus::RemAccessErr }),
                entries_lost: false,
                consumed: Consumed::Exactly(count),
                read_depth: None,
            };
            let remote = !matches!(Kind::of(request.operation), Kind::Local | Kind::Nothing);
            let verdict = Verdict::new(&evidence, posted.requests.iter().copied());
            let known = (remote && count != request.ordinal)
                || !(request.ordinal..=100 + total).contains(&count);
            prop_assert_eq!(verdict.contradicted(), known);
            for (at, other) in posted.requests.iter().enumerate() {
                let outcome = verdict.of(other);
                let kind = Kind::of(other.operation);
                match at {
                    _ if at < refused => prop_assert_eq!(outcome, Outcome::Done),
                    _ if !remote => {}
                    _ if at == refused => {
                        prop_assert_eq!(outcome, Outcome::Failed(WcStatus::RemAccessErr));
                    }
                    _ if kind == Kind::Local => {
                        prop_assert_eq!(outcome, Outcome::InDoubt(Doubt::Local));
                    }
                    _ => prop_assert_eq!(outcome, Outcome::NotExecuted),
                }
            }
        }
    }
}

/// The tables of faults and the verdict do not contradict each other.
#[test]
fn the_table_says_the_same_of_the_request_that_failed() {
    for &status in WcStatus::ALL {
        for operation in REMOTE {
            let fault = Fault::Status {
                status,
                transport: QpType::Rc,
                queue: WorkQueue::Send(Some(operation)),
                vendor: None,
            };
            let class = classify(fault);
            let ours = says(status, Kind::of(operation)).0;
            let expected = match class.execution {
                Execution::NotExecuted => Itself::NotExecuted,
                Execution::Executed => {
                    assert_eq!(status, WcStatus::Success);
                    continue;
                }
                // Statuses of receives.
                Execution::DoesNotApply => {
                    assert_ne!(class.scope, Scope::None, "{status}");
                    continue;
                }
                Execution::Unknown if ours == Itself::Silent => Itself::Silent,
                Execution::Unknown => Itself::Unknown,
            };
            assert_eq!(ours, expected, "{status} of {operation}");
        }
    }
}

#[test]
fn a_lost_acknowledgement_is_settled_by_the_count() {
    use WrOpcode::{AtomicFetchAndAdd, RdmaRead, RdmaWrite, Send};
    let posted = Posted::new(
        &[
            RdmaWrite,
            RdmaRead,
            Send,
            RdmaWrite,
            RdmaRead,
            AtomicFetchAndAdd,
            Send,
            RdmaWrite,
        ]
        .map(|operation| (operation, false)),
        None,
    );
    let outcomes = |consumed| {
        let evidence = Evidence {
            completed: 0,
            failed: Some(FirstFailure {
                sequence: posted.requests[0].sequence,
                status: WcStatus::RetryExcErr,
            }),
            entries_lost: false,
            consumed,
            read_depth: None,
        };
        let verdict = Verdict::new(&evidence, posted.requests.iter().copied());
        posted
            .requests
            .iter()
            .map(|r| verdict.of(r))
            .collect::<Vec<_>>()
    };
    let lost = Outcome::InDoubt(Doubt::ResultLost);
    let unknown = Outcome::InDoubt(Doubt::NoAnswer);
    let (done, not) = (Outcome::Done, Outcome::NotExecuted);
    // The first SEND was executed, the second was not.
    let between = [done, lost, done, unknown, unknown, unknown, not, not];
    assert_eq!(outcomes(Consumed::Exactly(101)), between);
    // Neither SEND was executed: requests before the first may have been.
    let before = [unknown, unknown, not, not, not, not, not, not];
    assert_eq!(outcomes(Consumed::Exactly(100)), before);
    // Both SENDs were executed: only the requests behind them stay in doubt.
    let behind = [done, lost, done, done, lost, lost, done, unknown];
    assert_eq!(outcomes(Consumed::Exactly(102)), behind);
    let peer_lost = Outcome::InDoubt(Doubt::PeerLostCount);
    let at_least = [
        done, lost, done, peer_lost, peer_lost, peer_lost, peer_lost, peer_lost,
    ];
    assert_eq!(outcomes(Consumed::AtLeast(101)), at_least);
    assert_eq!(
        outcomes(Consumed::Unknown),
        [Outcome::InDoubt(Doubt::PeerGone); 8]
    );
}

/// Only a missing acknowledgement is explained: what evidence tells stays.
#[test]
fn a_request_that_is_taken_back_keeps_its_outcome() {
    for why in [Doubt::Cancelled, Doubt::DeadlinePassed] {
        let missing = Outcome::InDoubt(Doubt::NoAnswer).taken_back(why);
        assert_eq!(missing, Outcome::InDoubt(why));
        let others = Doubt::ALL
            .into_iter()
            .filter(|doubt| *doubt != Doubt::NoAnswer);
        let known = others.map(Outcome::InDoubt).chain([
            Outcome::Done,
            Outcome::NotExecuted,
            Outcome::Failed(WcStatus::RnrRetryExcErr),
        ]);
        for told in known {
            assert_eq!(told.taken_back(why), told);
        }
    }
}
