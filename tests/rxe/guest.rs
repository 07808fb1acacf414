//! Tests that run in the guest of `cargo xtask vm`, where they may cut cables, add addresses and take
//! devices away, one after the other.

use libtest_mimic::{Arguments, Completion, Trial};
use std::process::ExitCode;

/// A test: panics when something is wrong.
pub type Test = (&'static str, fn());

/// Runs the tests of these groups; elsewhere they are ignored, and say why.
pub fn run(groups: &[(&str, &[Test])]) -> ExitCode {
    let mut args = Arguments::from_args();
    // They cut the same cable.
    args.test_threads = Some(1);
    let in_guest = std::env::var_os("BELLWIRE_VM_WORK").is_some();
    let trials = groups.iter().flat_map(|&(group, tests)| {
        tests.iter().map(move |&(name, test)| {
            let run = move || match in_guest {
                true => {
                    test();
                    Ok(Completion::Completed)
                }
                false => Ok(Completion::ignored_with(
                    "not in the guest of `cargo xtask vm`",
                )),
            };
            Trial::ignorable_test(format!("{group}::{name}"), run)
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit_code()
}

/// Tests by the names of their functions.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: [$crate::guest::Test; [$(stringify!($name)),*].len()] =
            [$((stringify!($name), $name)),*];
    };
}
