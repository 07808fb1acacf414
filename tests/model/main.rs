//! The protocol by which two ends of a link recover, explored exhaustively by a model checker: every order in
//! which the ends, the messages and the requests between them may proceed, with up to a number of faults at
//! every place. Core's own tests drive the same two ends along seeded schedules.
//!
//! The step `release` explores a part that takes seconds. `BELLWIRE_MODEL=FAULTS,REQUESTS` explores more: up
//! to so many faults, and so many requests that each end posts, each of another kind; with `,first` behind it
//! from the first connection on. `3,0` takes minutes; each request more takes ten times as long.

mod links;
mod state;
mod wrong;

// What these files name by `crate::`.
use bellwire_core::{fault, link, wr};

#[path = "../../core/src/link/tests/end.rs"]
mod end;
#[path = "../../core/src/link/tests/world.rs"]
mod world;

use links::{Links, Scope};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::io::Write;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use wrong::Wrong;

/// What the step explores: every place of a recovery for a second fault; every request in flight at each
/// place of the first; and the first connection.
const SCOPES: [Scope; 3] = [
    Scope::new(2, 0),
    Scope::new(1, 1),
    Scope {
        first: true,
        ..Scope::new(1, 1)
    },
];

fn threads() -> usize {
    available_parallelism().map_or(1, Into::into)
}

/// Explores all states; returns the properties that do not hold.
fn explore(scope: Scope) -> Vec<&'static str> {
    let start = Instant::now();
    let checker = Links { scope }
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let found = checker.discoveries();
    let mut broken = Vec::new();
    for property in checker.model().properties() {
        let holds = match (property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, path) => path.is_some(),
            (_, None) => true,
            (_, Some(path)) => {
                println!("\"{}\" is broken by", property.name);
                for event in path.clone().into_actions() {
                    println!("    {event:?}");
                }
                println!("which leads to {:#?}", path.last_state());
                false
            }
        };
        if !holds {
            broken.push(property.name);
        }
    }
    // Past the test harness, which keeps what `println` prints of tests that pass.
    let report = writeln!(
        std::io::stdout(),
        "report: {} states of {scope}, at most {} events deep, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64(),
    );
    report.expect("writing to the standard output");
    broken
}

#[test]
fn no_order_of_events_breaks_a_promise() {
    let given = std::env::var("BELLWIRE_MODEL").ok();
    let scopes = given.map_or(SCOPES.to_vec(), |text| {
        let scope = Scope::from_text(&text);
        vec![scope.expect("BELLWIRE_MODEL=FAULTS,REQUESTS or FAULTS,REQUESTS,first")]
    });
    for scope in scopes {
        assert_eq!(explore(scope), [""; 0], "{scope}");
    }
}

/// Each way to get the protocol wrong is found, by the property that it breaks.
#[test]
fn an_end_that_does_a_step_wrong_is_found() {
    for wrong in Wrong::ALL {
        let broken = explore(Scope {
            wrong: Some(wrong),
            ..Scope::new(1, 1)
        });
        assert!(!broken.is_empty(), "{wrong:?} was not found");
    }
}

/// How long the limits of the model allow a recovery to take: it has to be possible to wait that long.
#[test]
fn the_limits_of_the_model_allow_each_step_and_a_further_attempt() {
    let limits = links::LIMITS;
    let waits = [limits.drain, limits.exchange, limits.ready, limits.step];
    assert!(waits.iter().sum::<Duration>() < limits.recovery);
    assert!(limits.attempts > 1);
}
