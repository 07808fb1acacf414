//! Steps that run the tests under something that sees more: loom, Miri, AddressSanitizer,
//! ThreadSanitizer. Each builds in a folder of its own, because its flags change every crate.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::{
    tests::{IN_A_HURRY, optimized_tests},
    tools,
};
use crate::{
    command::{command, shown},
    run::Run,
    workspace::Workspace,
};

pub fn loom(workspace: &Workspace) -> Result<Run> {
    let mut test = command(
        "cargo test -p bellwire-core -p bellwire-provider -p bellwire-soft -p bellwire \
         --profile models --lib loom --no-fail-fast",
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

/// Seeds by which Miri runs the models of lock-free code: each has other threads go first, and other values be old.
const SEEDS: u32 = 8;

/// In which file, and in which line of it, an ordering is missing in a run that has to fail by one of the seeds; and
/// the models that are run. The line is the last of the text. Of the register, Miri does not find the like by 64
/// seeds, and the record's model is loom's alone: loom finds it in all, in every interleaving.
const MISSING: [(&str, &str, &str); 3] = [
    (
        "queue/ledger.rs",
        "self.poster.side.counter.store(counter, Ordering::Release)",
        "queue::loom::loom_ledger",
    ),
    (
        "queue/srq.rs",
        "slot.state.store(POSTED, Ordering::Release)",
        "queue::loom::loom_srq",
    ),
    (
        "slab/class.rs",
        "// Release: pairs with the Acquire in `pop_many`.\n            \
         match self.head.word().compare_exchange_weak(",
        "slab::loom",
    ),
];

/// Core only: Miri knows neither `mmap` nor shared memory. Entries name memory by address, so that
/// provenance is exposed. Where Miri is not available, `asan` still runs the same tests.
pub fn miri(workspace: &Workspace) -> Result<Run> {
    for tool in tools::for_miri() {
        tool.need()
            .inspect_err(|_| println!("instead, the step asan runs these tests"))?;
    }
    let test = |flags: &str, args: &str| {
        let test = "cargo +nightly miri test -p bellwire-core --lib --no-fail-fast";
        let mut test = command(&format!("{test} {args}"));
        // Tests keep memory for good where queues borrow it.
        test.env(
            "MIRIFLAGS",
            format!("-Zmiri-permissive-provenance -Zmiri-ignore-leaks {flags}"),
        );
        workspace.build_apart(&mut test, "miri");
        test
    };
    let mut run = Run::default();
    if run.command(&mut test("", "--no-run")) {
        let others = format!(
            "-- --skip queue:: --skip loom {}",
            SAFE.map(|module| format!("--skip {module}")).join(" ")
        );
        let of_seed = |seed| (format!("-Zmiri-seed={seed}"), "-- loom");
        // Miri uses one core. The longest comes first.
        let mut parts = vec![
            (String::new(), "-- queue:: --skip queue::cq:: --skip loom"),
            (String::new(), &others),
            (String::new(), "-- queue::cq::"),
        ];
        parts.extend((0..SEEDS).map(of_seed));
        run.on_each_core(&parts, |(flags, args), run| {
            run.command(&mut test(flags, args));
            run.must_have_found_tests();
            Ok(())
        })?;
        let seeds = format!("-Zmiri-many-seeds=0..{SEEDS} -Zmiri-env-forward=BELLWIRE_WEAKEN");
        run.on_each_core(&MISSING, |(file, text, models), run| {
            let mut weakened = test(&seeds, &format!("-- {models}"));
            weakened.env("BELLWIRE_WEAKEN", place(file, text)?);
            run.problems.extend(not_found(&mut weakened)?);
            Ok(())
        })?;
    }
    workspace.remove_apart("miri");
    Ok(run)
}

/// The line of a file of core in which this text ends, where it is first, as `BELLWIRE_WEAKEN` names it.
fn place(file: &str, text: &str) -> Result<String> {
    let path = Path::new("core/src").join(file);
    let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let start = source.find(text);
    let start = start.with_context(|| format!("{} has no {text}", path.display()))?;
    let line = source[..start + text.len()].lines().count();
    Ok(format!("{file}:{line}"))
}

/// Runs models in which an ordering is missing; a problem if none fails for that.
fn not_found(weakened: &mut Command) -> Result<Option<String>> {
    let line = shown(weakened);
    println!("$ {line}");
    let output = weakened.stdin(Stdio::null()).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let found = ["Undefined Behavior: Data race", "panicked at core/src/"];
    if !output.status.success() && found.iter().any(|found| said.contains(found)) {
        return Ok(None);
    }
    println!("{said}");
    Ok(Some(format!("no model has missed an ordering in `{line}`")))
}

/// Tests that cannot hold under AddressSanitizer, which maps memory and makes system calls of its own:
/// they count page faults, limit memory, and forbid system calls. And one that runs nothing, two of safe
/// code that takes long there, and two that change recorded vectors, so that their comparison fails.
const NOT_UNDER_ASAN: [&str; 14] = [
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
    "a_flipped_bit_of_an_entry_is_noticed",
    "a_changed_row_is_noticed",
];

/// Programs whose tests keep memory for good, because queues borrow it: leaks of theirs do not count.
const LEAKS: &str = "xtask/lsan.supp";

/// Packages whose tests run under AddressSanitizer.
const UNDER_ASAN: [&str; 8] = [
    "bellwire-core",
    "bellwire-memory",
    "bellwire-provider",
    "bellwire-soft",
    "bellwire-verbs",
    "bellwire-mlx5",
    "bellwire",
    "bellwire-tests",
];

/// On the stable compiler, which has the sanitizer behind a nightly flag. With `--target`, build
/// scripts and macros stay without it. The packages are the same for all: cargo would give what they depend on other
/// features else, and build it anew.
fn under_asan(workspace: &Workspace, what: &str, targets: &str) -> Command {
    let mut cargo = command(&format!(
        "cargo {what} --profile sanitized --target {}-unknown-linux-gnu",
        env::consts::ARCH
    ));
    for package in UNDER_ASAN {
        cargo.args(["-p", package]);
    }
    cargo.args(targets.split_whitespace());
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address");
    workspace.build_apart(&mut cargo, "asan");
    cargo
}

/// Builds the C library. There are no examples, but by their option the features are those of tests.
pub fn build_c_library_under_asan(workspace: &Workspace) -> Command {
    under_asan(workspace, "build", "-p bellwire-ffi --lib --examples")
}

fn asan_test(workspace: &Workspace, targets: &str) -> Command {
    let mut test = under_asan(workspace, "test --no-fail-fast", targets);
    // Some tests look at how much memory a process takes, and that is what was freed, too; and some
    // ask for more than there is.
    test.env(
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
    test
}

fn without_those_that_cannot(test: &mut Command) -> &mut Command {
    test.arg("--");
    for name in NOT_UNDER_ASAN {
        test.args(["--skip", name]);
    }
    test
}

/// Builds all, so that both cores are used, and runs those that may have company.
pub fn asan(workspace: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    if !run.command(&mut asan_test(workspace, "--lib --tests --no-run")) {
        return Ok(run);
    }
    let mut test = asan_test(workspace, "--lib");
    for target in workspace.tests() {
        let name = target.name.as_str();
        if UNDER_ASAN.contains(&target.package.as_str()) && !IN_A_HURRY.contains(&name) {
            test.args(["--test", name]);
        }
    }
    run.command(without_those_that_cannot(&mut test));
    run.must_have_found_tests();
    Ok(run)
}

/// Runs tests that nothing else may run beside, optimized and under AddressSanitizer: what the steps `release` and
/// `asan` leave out. Both mostly wait.
pub fn processes(workspace: &Workspace) -> Result<Run> {
    let targets = IN_A_HURRY.map(|name| format!("--test {name}")).join(" ");
    let mut under_asan = asan_test(workspace, &targets);
    without_those_that_cannot(&mut under_asan);
    let mut run = Run::default();
    run.side_by_side(&mut [optimized_tests(&targets), under_asan]);
    // It is the last that uses what the step asan built.
    workspace.remove_apart("asan");
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
