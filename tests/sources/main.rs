//! Hosts that lack something: a library, the kernel's part, a node, a right, a provider. The list, an
//! unknown name and `"auto"` say what, and the software HCA works.
//!
//! Libraries are loaded once, so that each test has a process of its own (`witness`), with libraries that
//! are made for it and a folder in the place of `/sys`. What this machine cannot do is ignored, and says why.
//!
//! What is taken from the process: libraries (the test's own, compiled or modified), the kernel's part (a
//! folder in place of `/sys`), device nodes and rights (mounts of its own, another user). On the stand-in for
//! the kernel, and in the guest (`tests/rxe/absent.rs`), the host's own libibverbs loses symbols and
//! providers.

mod host;
mod stand_in;
mod stubs;

use libtest_mimic::{Arguments, Completion, Trial};
use std::process::{Command, ExitCode};

/// A test: panics when something is wrong.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    if bellwire_tests::witness::is_witness() {
        return ExitCode::SUCCESS;
    }
    let has_cc = Command::new("cc").arg("--version").output().is_ok();
    let cc = (!has_cc).then_some("no C compiler");
    let mounts = cc.or((!bellwire_tests::witness::may_mount()).then_some("no mounts of its own"));
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let stand_in = (!preload.contains("uverbs_preload")).then_some("not on the stand-in");
    // It stands between the tests and what they take away.
    let alone = stand_in.map_or(Some("on the stand-in"), |_| None);
    let trials = [
        ("stubs", &stubs::TESTS[..], alone.or(cc)),
        ("private", &stubs::PRIVATE[..], alone.or(mounts)),
        ("stand_in", &stand_in::TESTS[..], stand_in.or(cc)),
    ];
    let trials = trials.into_iter().flat_map(|(group, tests, without)| {
        tests.iter().map(move |&(name, test)| {
            let run = move || match without {
                Some(why) => Ok(Completion::ignored_with(why)),
                None => {
                    test();
                    Ok(Completion::Completed)
                }
            };
            Trial::ignorable_test(format!("{group}::{name}"), run)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// Tests by the names of their functions.
#[macro_export]
macro_rules! tests {
    ($list:ident: $($name:ident),* $(,)?) => {
        pub const $list: [$crate::Test; [$(stringify!($name)),*].len()] =
            [$((stringify!($name), $name)),*];
    };
}
