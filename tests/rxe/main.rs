//! Faults of a real device, each caused by what causes it in life: Soft-RoCE (rxe) of Linux 6.1, in
//! the guest of `cargo xtask vm`, where the tests may cut cables, add addresses and take devices away.
//!
//! Every test sees who is told what, what is flushed behind it, that each posted request is told once,
//! which state the queue pairs are left in, and that they work again after a reset. What the device
//! makes of it otherwise than the rules have it is said beside the test.
//!
//! Elsewhere than in the guest the tests are ignored, and say why.

mod addresses;
mod cable;
mod ends;
mod lacking;
mod link;
mod overrun;
mod registrations;
mod shared;
mod statuses;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::process::ExitCode;

/// A test: panics when something is wrong.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    if lacking::is_child() {
        lacking::child();
        return ExitCode::SUCCESS;
    }
    let mut args = Arguments::from_args();
    // They cut the same cable.
    args.test_threads = Some(1);
    let in_guest = std::env::var_os("BELLWIRE_VM_WORK").is_some();
    let groups: [(&str, &[Test]); 7] = [
        ("statuses", &statuses::TESTS),
        ("overrun", &overrun::TESTS),
        ("shared", &shared::TESTS),
        ("link", &link::TESTS),
        ("addresses", &addresses::TESTS),
        ("registrations", &registrations::TESTS),
        ("lacking", &lacking::TESTS),
    ];
    let trials = groups.iter().flat_map(|&(group, tests)| {
        tests.iter().map(move |&(name, test)| {
            let run = move || match in_guest {
                true => carry_out(test),
                false => Ok(Completion::ignored_with(
                    "not in the guest of `cargo xtask vm`",
                )),
            };
            Trial::ignorable_test(format!("{group}::{name}"), run)
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit_code()
}

fn carry_out(test: fn()) -> Result<Completion, Failed> {
    test();
    Ok(Completion::Completed)
}

/// Tests by the names of their functions.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: [$crate::Test; [$(stringify!($name)),*].len()] =
            [$((stringify!($name), $name)),*];
    };
}
pub(crate) use tests;
