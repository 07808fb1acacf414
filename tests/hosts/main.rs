//! What a host does to the process that bellwire lives in: signals, forks, privileges, sandboxes, namespaces,
//! limits, priorities, and memory that goes away. Each test starts this program again, in a role, so that what it
//! does to its own process harms no other test.
//!
//! Many need root, to drop privileges or to make namespaces. Without it they say so, and are ignored.

mod bounds;
mod fork;
mod identity;
mod limits;
mod memory;
mod net;
mod realtime;
mod sandbox;
mod waits;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// One area: the roles that its processes play, and its tests.
struct Area {
    /// Each role's name, and what a process in it does.
    roles: &'static [(&'static str, fn())],
    /// Each test's name, and the test.
    tests: &'static [(&'static str, fn())],
}

/// Every area.
const AREAS: &[Area] = &[
    bounds::AREA,
    fork::AREA,
    identity::AREA,
    limits::AREA,
    memory::AREA,
    net::AREA,
    realtime::AREA,
    sandbox::AREA,
    waits::AREA,
];

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(bellwire_tests::child::ROLE) {
        let mut roles = AREAS.iter().flat_map(|area| area.roles);
        let Some((_, play)) = roles.find(|(role, _)| *role == name) else {
            panic!("no such role: {name}");
        };
        play();
        return ExitCode::SUCCESS;
    }
    let mut args = Arguments::from_args();
    // Limits and priorities of one test must not slow another down.
    args.test_threads = Some(1);
    let tests = AREAS.iter().flat_map(|area| area.tests);
    let trials = tests.map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit_code()
}
