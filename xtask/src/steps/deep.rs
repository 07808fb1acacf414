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

/// Folders of the packages that have models of lock-free code which Miri runs, too.
const MODELLED: [&str; 3] = ["core", "hw/soft", "hw/provider"];

/// Seeds by which Miri runs the models, several rounds of each (`core/src/sync/model.rs`).
const SEEDS: u32 = 2;

/// Rounds of a model in which an ordering is missing. Of three seeds that were tried, each misses each by far fewer;
/// the run ends with the first that does.
const ROUNDS: &str = "200";

/// An ordering, or a fence, without which a model has to fail.
struct Missing {
    /// Folder of the package.
    package: &'static str,
    /// The file in its sources.
    file: &'static str,
    /// Ends in the line of the ordering, where it is first.
    text: &'static str,
    /// The model.
    model: &'static str,
}

const fn missing(
    package: &'static str,
    file: &'static str,
    text: &'static str,
    model: &'static str,
) -> Missing {
    Missing {
        package,
        file,
        text,
        model,
    }
}

/// One of each file whose orderings loom takes away in turn (`needs_orderings`). Both run what a thread does in the
/// order of the program, so neither finds what keeps a processor from that alone: `loom_the_bitmap_needs_each_ordering`
/// in `hw/soft/src/engine.rs` names two such. Nor do they know devices, registers and membarrier(2), of which
/// `core/src/barrier.rs` and `hw/provider/src/quiesce.rs` say by which rule of the processor's manual they hold.
#[rustfmt::skip]
const MISSING: [Missing; 17] = [
    missing("core", "queue/ledger.rs", "self.poster.side.counter.store(counter, Ordering::Release)",
        "loom_ledger_hands_records_over"),
    missing("core", "queue/srq.rs", "slot.state.store(POSTED, Ordering::Release)", "loom_srq_reports_a_whole_request"),
    missing("core", "slab/class.rs", "// Release: pairs with the Acquire in `pop_many`.\n            \
         match self.head.word().compare_exchange_weak(", "slab::loom::a_stalled_pop"),
    missing("core", "queue/doorbell/register.rs", "// Release: pairs with the Acquire above.\n        \
         shared.locked.store(false, Ordering::Release)", "one_at_a_time_writes_a_half"),
    missing("core", "port.rs", "self.0.store(Be32::new(counter).to_raw(), Ordering::Release)", "passes_on"),
    missing("core", "barrier.rs", "fence(Ordering::Acquire)", "an_owned_entry_is_whole"),
    missing("hw/provider", "quiesce.rs", "// Pairs with the fence in `heavy`.\n            fence(Ordering::SeqCst)",
        "loom_nobody_uses_what_was_revoked"),
    missing("hw/soft", "arm.rs", "// Pairs with the fence in `arm`.\n        fence(Ordering::SeqCst)",
        "loom_what_was_not_polled_wakes"),
    missing("hw/soft", "turn.rs", "self.0.0.store(false, Ordering::Release)", "loom_turns_are_taken"),
    missing("hw/soft", "producer.rs", "self.seen.store(consumer, Ordering::Release)", "loom_room_that_another"),
    missing("hw/soft", "engine.rs", "self.words[word].fetch_or(1 << (index % BITS), Ordering::Release)",
        "loom_no_doorbell_is_lost"),
    missing("hw/soft", "fabric/wire.rs", "wide(ours, start).store(first, Ordering::Release)",
        "loom_packets_arrive_whole"),
    missing("hw/soft", "fabric/segment.rs", "word(self.ours, READ).store(position, Ordering::Release)",
        "loom_packets_arrive_whole"),
    missing("hw/soft", "fabric/linked.rs", "self.count.store(count + 1, Ordering::Release)", "loom_the_first_comes"),
    missing("hw/soft", "fabric/reading/models.rs", "self.accepts.store(1, Ordering::Release)",
        "loom_both_ways_of_reading_keep"),
    missing("hw/soft", "fabric/attention.rs", "// Pairs with the fence in `is_asked`.\n        fence(Ordering::SeqCst)",
        "loom_a_packet_wakes_who_sleeps"),
    missing("hw/soft", "remote/place.rs", "(self.generation).store(memory.generation.into(), Ordering::Release)",
        "loom_nothing_is_found"),
];

/// Core, and models of other packages only: Miri knows neither `mmap` nor shared memory. Entries name memory by
/// address, so that provenance is exposed. Where Miri is not available, `asan` still runs core's tests.
pub fn miri(workspace: &Workspace) -> Result<Run> {
    for tool in tools::for_miri() {
        tool.need()
            .inspect_err(|_| println!("instead, the step asan runs core's tests"))?;
    }
    let test = |package: &str, flags: &str, args: &str| {
        let package = package.trim_start_matches("hw/");
        let test = "cargo +nightly miri test --lib --no-fail-fast";
        let mut test = command(&format!("{test} -p bellwire-{package} {args}"));
        // Tests keep memory for good where queues borrow it.
        test.env(
            "MIRIFLAGS",
            format!("-Zmiri-permissive-provenance -Zmiri-ignore-leaks {flags}"),
        );
        workspace.build_apart(&mut test, "miri");
        test
    };
    let mut run = Run::default();
    // What runs is built here: the environment of the build would be that of each run.
    let built = MODELLED.map(|package| run.command(&mut test(package, "", "--no-run")));
    if !built.contains(&false) {
        let core = |filter: &str| ("core", String::new(), format!("-- {filter}"));
        let others = SAFE.map(|module| format!("--skip {module}")).join(" ");
        let models = |package| {
            (0..SEEDS).map(move |seed| (package, format!("-Zmiri-seed={seed}"), "-- loom".into()))
        };
        // Miri uses one core. The longest comes first.
        let mut parts = vec![
            core("queue:: --skip queue::cq:: --skip loom"),
            core(&format!("--skip queue:: --skip loom {others}")),
            core("queue::cq::"),
        ];
        parts.extend(MODELLED.into_iter().flat_map(models));
        run.on_each_core(&parts, |(package, flags, args), run| {
            run.command(&mut test(package, flags, args));
            run.must_have_found_tests();
            Ok(())
        })?;
        let forward = "-Zmiri-env-forward=BELLWIRE_WEAKEN -Zmiri-env-forward=BELLWIRE_ROUNDS";
        run.on_each_core(&MISSING, |missing, run| {
            let model = format!("-- {}", missing.model);
            let mut weakened = test(missing.package, forward, &model);
            (weakened.env("BELLWIRE_WEAKEN", missing.place()?)).env("BELLWIRE_ROUNDS", ROUNDS);
            run.problems.extend(not_found(&mut weakened)?);
            Ok(())
        })?;
    }
    workspace.remove_apart("miri");
    Ok(run)
}

impl Missing {
    /// Its line, as `BELLWIRE_WEAKEN` names it.
    fn place(&self) -> Result<String> {
        let Self { file, text, .. } = self;
        let path = Path::new(self.package).join("src").join(file);
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let start = source.find(text);
        let start = start.with_context(|| format!("{} has no {text}", path.display()))?;
        let line = source[..start + text.len()].lines().count();
        Ok(format!("{file}:{line}"))
    }
}

/// Runs models in which an ordering is missing; a problem if none fails for that.
fn not_found(weakened: &mut Command) -> Result<Option<String>> {
    let line = shown(weakened);
    println!("$ {line}");
    let output = weakened.stdin(Stdio::null()).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let found = [
        "Undefined Behavior: Data race",
        "panicked at core/src/",
        "panicked at hw/",
    ];
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
