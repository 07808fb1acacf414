//! Steps that run the tests under something that sees more: loom, Miri, AddressSanitizer,
//! ThreadSanitizer. Each builds in a folder of its own, because its flags change every crate.

use std::env;

use anyhow::Result;

use super::tools;
use crate::{command::command, run::Run, workspace::Workspace};

pub fn loom(workspace: &Workspace) -> Result<Run> {
    let mut test = command(
        "cargo test -p bellwire-core -p bellwire-provider -p bellwire-soft -p bellwire \
         --profile optimized --lib loom --no-fail-fast",
    );
    test.env("RUSTFLAGS", "--cfg loom");
    workspace.build_apart(&mut test, "loom");
    let mut run = Run::default();
    run.command(&mut test);
    workspace.remove_apart("loom");
    run.must_have_found_tests();
    Ok(run)
}

/// Modules of core that forbid unsafe code.
const SAFE: [&str; 3] = ["fault::", "link::", "qp::"];

/// Core only: Miri knows neither `mmap` nor shared memory. Entries name memory by address, so that
/// provenance is exposed. Where Miri is not available, `asan` still runs the same tests.
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
    if run.command(&mut test("--no-run")) {
        let others = format!(
            "-- --skip queue:: {}",
            SAFE.map(|module| format!("--skip {module}")).join(" ")
        );
        // Miri uses one core. The longest comes first.
        let parts = ["-- queue:: --skip queue::cq::", &others, "-- queue::cq::"];
        run.on_each_core(&parts, |args, run| {
            run.command(&mut test(args));
            run.must_have_found_tests();
            Ok(())
        })?;
    }
    workspace.remove_apart("miri");
    Ok(run)
}

/// Tests that cannot hold under AddressSanitizer, which maps memory and makes system calls of its own:
/// they count page faults, limit memory, and forbid system calls. And one that runs nothing, and two of safe
/// code that takes long there.
const NOT_UNDER_ASAN: [&str; 12] = [
    "every_region_is_ready_for_the_data_path",
    "hugepages_are_taken_first_and_given_back",
    "populated_pages_take_no_fault",
    "transparent_says_what_is_behind_it",
    "the_limit_is_reported_before_anything_is_mapped",
    "no_address_space_is_an_error",
    "no_memory_for_blocks_is_an_error",
    "post_ring_and_poll_make_no_system_call",
    "programs_that_must_not_compile_do_not",
    "one_system_call_after_the_other",
    "no_order_of_events_breaks_a_promise",
    "an_end_that_does_a_step_wrong_is_found",
];

/// Programs whose tests keep memory for good, because queues borrow it: leaks of theirs do not count.
const LEAKS: &str = "xtask/lsan.supp";

/// On the stable compiler, which has the sanitizer behind a nightly flag. With `--target`, build
/// scripts and macros stay without it.
pub fn asan(workspace: &Workspace) -> Result<Run> {
    let mut test = command(&format!(
        "cargo test --profile sanitized --target {}-unknown-linux-gnu -p bellwire-core \
         -p bellwire-memory -p bellwire-provider -p bellwire-soft -p bellwire-verbs -p bellwire-mlx5 \
         -p bellwire -p bellwire-tests --lib --tests --no-fail-fast",
        env::consts::ARCH
    ));
    test.env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // Some tests look at how much memory a process takes, and that is what was freed, too; and some
        // ask for more than there is.
        .env(
            "ASAN_OPTIONS",
            "quarantine_size_mb=32:allocator_may_return_null=1",
        )
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

/// Tests of many threads on one device.
const OF_THREADS: &str = "--test concurrent";

/// With a standard library that is built for it, too: what that orders would be a race otherwise. It does
/// not know fences: `cfg(tsan)` is for the one that the data path has (`core/src/cqe/ring.rs`). What
/// processes share is not seen.
pub fn tsan(workspace: &Workspace) -> Result<Run> {
    for tool in tools::for_tsan() {
        tool.need()?;
    }
    let mut test = command(&format!(
        "cargo +nightly test -Zbuild-std --target {}-unknown-linux-gnu -p bellwire-tests {OF_THREADS} \
         --no-fail-fast",
        env::consts::ARCH
    ));
    test.env("RUSTFLAGS", "-Zsanitizer=thread --cfg tsan");
    workspace.build_apart(&mut test, "tsan");
    let mut run = Run::default();
    run.command(&mut test);
    workspace.remove_apart("tsan");
    run.must_have_found_tests();
    Ok(run)
}
