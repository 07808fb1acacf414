//! Steps that run the tests under something that sees more: loom, Miri, AddressSanitizer. Each
//! builds in a folder of its own, because its flags change every crate.

use std::env;

use anyhow::Result;

use super::tools;
use crate::{command::command, run::Run, workspace::Workspace};

pub fn loom(workspace: &Workspace) -> Result<Run> {
    let mut test =
        command("cargo test -p bellwire-core -p bellwire --release --lib loom --no-fail-fast");
    test.env("RUSTFLAGS", "--cfg loom");
    workspace.build_apart(&mut test, "loom");
    let mut run = Run::default();
    run.command(&mut test);
    run.must_have_found_tests();
    Ok(run)
}

/// Core only: Miri knows neither `mmap` nor shared memory. Entries name memory by address, so that
/// provenance is exposed. Where Miri is not to be had, `asan`
/// still runs the same tests.
pub fn miri(workspace: &Workspace) -> Result<Run> {
    for tool in tools::for_miri() {
        tool.need()
            .inspect_err(|_| println!("instead, the step asan runs these tests"))?;
    }
    let test = |args: &str| {
        let test = "cargo +nightly miri test -p bellwire-core --lib --no-fail-fast";
        let mut test = command(&format!("{test} {args}"));
        // Tests keep memory for good where queues borrow it.
        test.env(
            "MIRIFLAGS",
            "-Zmiri-permissive-provenance -Zmiri-ignore-leaks",
        );
        workspace.build_apart(&mut test, "miri");
        test
    };
    let mut run = Run::default();
    // Miri uses one core.
    if run.command(&mut test("--no-run")) {
        let [some, others] = ["-- queue::", "-- --skip queue::"].map(test);
        run.side_by_side(&mut [some, others]);
    }
    Ok(run)
}

/// Tests that cannot hold under AddressSanitizer, which maps memory and makes system calls of its own:
/// they count page faults, limit locked memory, and forbid system calls.
const NOT_UNDER_ASAN: [&str; 6] = [
    "every_region_is_ready_for_the_data_path",
    "hugepages_are_taken_first_and_given_back",
    "populated_pages_take_no_fault",
    "transparent_says_what_is_behind_it",
    "the_limit_is_told_before_anything_is_mapped",
    "post_ring_and_poll_make_no_system_call",
];

/// Programs whose tests keep memory for good, because queues borrow it: leaks of theirs do not count.
const LEAKS: &str = "xtask/lsan.supp";

/// On the stable compiler, which has the sanitizer behind a nightly flag. With `--target`, build
/// scripts and macros stay without it.
pub fn asan(workspace: &Workspace) -> Result<Run> {
    let mut test = command(&format!(
        "cargo test --target {}-unknown-linux-gnu -p bellwire-core -p bellwire -p bellwire-tests \
         --lib --tests --no-fail-fast",
        env::consts::ARCH
    ));
    test.env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env(
            "LSAN_OPTIONS",
            format!(
                "suppressions={}:print_suppressions=0",
                workspace.root().join(LEAKS).display()
            ),
        );
    test.arg("--");
    for name in NOT_UNDER_ASAN {
        test.args(["--skip", name]);
    }
    workspace.build_apart(&mut test, "asan");
    let mut run = Run::default();
    run.command(&mut test);
    run.must_have_found_tests();
    Ok(run)
}
