//! Steps that run the Rust tests as they are.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Result;

use super::{c::Installed, tools, vm::SET_LINKS};
use crate::{
    command::{command, limited},
    run::Run,
    workspace::Workspace,
};

/// Far more than any example takes that ends by itself.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(900);

/// Packages that have no tests, or whose tests other steps run.
const NOT_IN_UNIT: [&str; 4] = [
    "bellwire-benches",
    "bellwire-counts",
    "bellwire-tests",
    "bellwire-uverbs-preload",
];

/// Packages all of whose tests the step `asan` runs, with the same assertions.
const ENOUGH_UNDER_ASAN: [&str; 5] = [
    "bellwire-core",
    "bellwire-provider",
    "bellwire-soft",
    "bellwire-verbs",
    "bellwire-mlx5",
];

/// Test programs that mostly wait, for timers, programs that they start, or a compiler: they run beside the
/// others.
const WAITING: [&str; 4] = ["c", "echo", "perf", "pingpong"];

/// Tests that are in a hurry: many processes, or threads, which wait for each other for a time. Nothing runs
/// beside them (`deep::processes`).
pub const IN_A_HURRY: [&str; 3] = ["link", "processes", "server"];

/// The packages are the same in each command: cargo would give them other features else, and build anew.
fn unit_test(targets: &str) -> Command {
    let mut test = command("cargo test --workspace --no-fail-fast");
    for package in NOT_IN_UNIT.iter().chain(&ENOUGH_UNDER_ASAN) {
        test.args(["--exclude", package]);
    }
    test.args(targets.split_whitespace());
    test
}

/// Builds what the step `unit` runs.
pub fn build(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut unit_test("--lib --bins --tests --examples --no-run"));
    Ok(run)
}

pub fn unit(workspace: &Workspace) -> Result<Run> {
    let mut run = build(workspace)?;
    if !run.problems.is_empty() {
        return Ok(run);
    }
    let (mut waiting, mut others) = (unit_test(""), unit_test("--lib --bins --examples"));
    for target in workspace.tests() {
        if WAITING.contains(&target.name.as_str()) {
            waiting.args(["--test", &target.name]);
        } else if !NOT_IN_UNIT.contains(&target.package.as_str()) {
            others.args(["--test", &target.name]);
        }
    }
    run.side_by_side(&mut [waiting, others]);
    // It reads stacks, so it needs line numbers, which optimized tests do not have.
    run.command(&mut command(
        "cargo test -p bellwire-tests --test allocations",
    ));
    Ok(run)
}

/// What finds most in the time that one waits before a commit. One command: cargo builds for it with both
/// cores, and features are the same for all. One test is left out that takes long unless it is optimized.
pub fn quick(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut command(
        "cargo test -p bellwire-core -p bellwire-memory -p bellwire-provider -p bellwire-soft \
         -p bellwire-verbs -p bellwire-mlx5 -p bellwire -p bellwire-ffi -p bellwire-tests --lib \
         --test header --test soft --test concurrent --test mlx5_rings --test no_alloc \
         --test no_syscalls --no-fail-fast -- --skip a_flipped_bit_of_an_entry_is_noticed",
    ));
    run.must_have_found_tests();
    Ok(run)
}

/// What is on cargo's command line for optimized tests and examples. The packages are the same for all, whose
/// targets alone differ: cargo would give what they depend on other features else, and build it anew.
macro_rules! optimized {
    ($targets:literal) => {
        concat!(
            "--profile optimized -p bellwire-tests -p bellwire-uverbs-preload -p bellwire-examples ",
            $targets
        )
    };
}
pub(super) use optimized;

/// Optimized tests.
pub fn optimized_tests(targets: &str) -> Command {
    let packages = optimized!("");
    command(&format!("cargo test {packages} --no-fail-fast {targets}"))
}

/// Builds the examples and the stand-in for the kernel, for every step that runs them: as fast as a release, in
/// less time.
pub fn build_examples() -> Command {
    let all = optimized!("--lib --examples");
    command(&format!("cargo build {all}"))
}

/// Builds the examples of RoCE v2 without a device, where [`build_examples`] puts the others.
pub fn build_roce_examples() -> Command {
    let packages = optimized!("-p bellwire-roce --example roce_pingpong --example roce_rping");
    command(&format!("cargo build {packages}"))
}

/// Where [`build_examples`] puts the examples, in the target folder.
pub const EXAMPLES_BUILT: &str = "optimized/examples";

/// Builds all, so that both cores are used, and runs those that may have company.
pub fn release(workspace: &Workspace) -> Result<Run> {
    let (mut all, mut test) = (optimized_tests("--lib --no-run"), optimized_tests("--lib"));
    for target in workspace.tests() {
        let name = target.name.as_str();
        if target.package == "bellwire-tests" {
            all.args(["--test", name]);
            if !IN_A_HURRY.contains(&name) {
                test.args(["--test", name]);
            }
        }
    }
    // Built with the others, so that the step `hosts`, beside which little runs, only runs it.
    all.args(HOSTS);
    let mut run = Run::default();
    if run.command(&mut all) {
        run.command(&mut test);
        run.must_have_found_tests();
    }
    Ok(run)
}

/// The test program of the step `hosts`.
const HOSTS: [&str; 2] = ["--test", "hosts"];

/// What a host does to a process.
pub fn hosts(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut optimized_tests(&HOSTS.join(" ")));
    Ok(run)
}

/// Schedules of faults that the step `simulation` runs, of two links and of sets of up to 16 pairs. The other steps run
/// fewer.
const SCHEDULES: &str = "100000";
const SET_SCHEDULES: &str = "100000";

pub fn simulation(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    let mut test = optimized_tests("--test simulation -- --nocapture");
    test.env("BELLWIRE_SCHEDULES", SCHEDULES);
    run.command(test.env("BELLWIRE_SET_SCHEDULES", SET_SCHEDULES));
    run.must_have_found_tests();
    Ok(run)
}

/// The packages have no tests in their documentation that are left out, for the sake of those whose build the step
/// `unit` has.
pub fn doc(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    let mut tests = command("cargo test --workspace --doc --no-fail-fast");
    for package in NOT_IN_UNIT {
        tests.args(["--exclude", package]);
    }
    run.command(&mut tests);
    let mut doc = command("cargo doc --workspace --no-deps");
    run.command(doc.env("RUSTDOCFLAGS", "-D warnings"));
    Ok(run)
}

/// The ways to a ConnectX device, by the variables that have `Device::open` take them: by its rings, and by
/// libibverbs and libmlx5, `ibv_wr_*` first. The last has no page of its own.
const WAYS: [&[&str]; 3] = [
    &[],
    &["BELLWIRE_VERBS_ONLY"],
    &["BELLWIRE_VERBS_ONLY", "BELLWIRE_VERBS_PLAIN"],
];

/// The conformance suite on ConnectX devices. They are one device, whose groups and ports rules would
/// share: one rule at a time.
fn mlx5_conformance(workspace: &Workspace, way: &[&str], bless: bool) -> Command {
    let mut suite = on_connectx(workspace, "--test conformance -- --test-threads 1");
    for name in way {
        suite.env(name, "1");
    }
    if bless {
        suite.env("BELLWIRE_BLESS", "1");
    }
    suite
}

/// Has the device note what it executed.
const JOURNAL: (&str, &str) = ("UVERBS_PRELOAD_JOURNAL", "1");

/// Links on ConnectX devices: faults as they occur in practice, and the fault matrix.
fn mlx5_links(workspace: &Workspace) -> Command {
    let mut tests = on_connectx(
        workspace,
        "--test link --test simulation -- --ignored --test-threads 1 --nocapture --skip device::ip::",
    );
    tests.env(JOURNAL.0, JOURNAL.1);
    tests
}

/// Sets by libibverbs, of so many links that none may wait long for a completion queue that failed.
fn mlx5_sets(workspace: &Workspace) -> Command {
    let mut tests = on_connectx(
        workspace,
        "--test link device::sets -- --ignored --test-threads 1",
    );
    tests.envs([("BELLWIRE_VERBS_ONLY", "1"), SET_LINKS]);
    tests
}

/// XRC in C: by libibverbs both ways; the rings do not have it.
fn mlx5_c(workspace: &Workspace, run: &mut Run) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let library = Installed::in_folder(workspace, dir.path())?;
    let Some(program) = library.program("ffi-c/tests/c/xrc.c", run)? else {
        return Ok(());
    };
    for (way, more) in WAYS.into_iter().zip(["none", "", ""]) {
        let mut program = command(&format!(
            "{} {} mlx5_0 {more}",
            runner(&preload(workspace)),
            program.display()
        ));
        for name in way {
            program.env(name, "1");
        }
        run.command(&mut limited(&program, EXAMPLE_LIMIT));
    }
    Ok(())
}

/// Tests that run with the stand-in, which is built already.
fn on_connectx(workspace: &Workspace, tests: &str) -> Command {
    let mut test = optimized_tests(tests);
    // Cargo and the compiler are to have none of it.
    test.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        runner(&preload(workspace)),
    )
    .env("BELLWIRE_VERBS_DEVICE", "mlx5_0");
    test
}

/// What is posted and polled on rings, beside what libmlx5 posts and polls there.
fn mlx5_bytes(workspace: &Workspace) -> Command {
    on_connectx(workspace, "--test mlx5_bytes")
}

/// What is said where libibverbs lacks something.
fn sources(workspace: &Workspace) -> Command {
    on_connectx(workspace, "--test sources")
}

/// The examples on ConnectX devices: pingpong also with rdma-core's, mover through an overrun.
fn mlx5_examples(workspace: &Workspace, run: &mut Run) {
    let examples = workspace.root().join(workspace.target(EXAMPLES_BUILT));
    let on_it = runner(&preload(workspace));
    let on_it = format!("{on_it} UVERBS_PRELOAD_FABRIC=examples");
    let example = |name: &str| examples.join(name).display().to_string();
    let pingpong = format!("{on_it} {} -d mlx5_0 -n 20", example("pingpong"));
    let theirs = format!("{on_it} ibv_rc_pingpong -d mlx5_0 -n 20");
    let pair = |server: &str, client: &str| {
        let mut pair = command("sh xtask/src/vm/pair.sh 18515");
        pair.args([server, &format!("{client} localhost")]);
        pair
    };
    for program in [
        command(&format!("{on_it} {} lat --device mlx5_0", example("perf"))),
        command(&format!(
            "{on_it} {} --generate 1m --block 64k --device mlx5_0 --fault cq-err@30%",
            example("mover")
        )),
        pair(&pingpong, &pingpong),
        pair(&theirs, &pingpong),
        pair(&pingpong, &theirs),
    ] {
        run.command(&mut limited(&program, EXAMPLE_LIMIT));
    }
}

/// The stand-in for the kernel.
fn preload(workspace: &Workspace) -> PathBuf {
    let built = workspace.target("optimized/libuverbs_preload.so");
    workspace.root().join(built)
}

/// What cargo starts a test with, so that the library is loaded before all others.
fn runner(preload: &Path) -> String {
    format!("env LD_PRELOAD={}", preload.display())
}

/// Has the conformance suite write the verdicts of ConnectX devices.
///
/// # Errors
/// What is lacking.
pub fn bless_mlx5(workspace: &Workspace) -> Result<ExitCode> {
    tools::need_packages(&tools::UVERBS)?;
    let [rings, verbs, _] = WAYS;
    let mut run = Run::default();
    let written = run.command(&mut build_examples())
        && run.command(&mut mlx5_conformance(workspace, rings, true))
        && run.command(&mut mlx5_conformance(workspace, verbs, true));
    Ok(match written {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Has the fault matrix of ConnectX devices written.
///
/// # Errors
/// What is lacking.
pub fn bless_mlx5_faults(workspace: &Workspace) -> Result<ExitCode> {
    tools::need_packages(&tools::UVERBS)?;
    let mut run = Run::default();
    let mut matrix = on_connectx(workspace, "--test simulation -- --ignored matrix");
    let written = run.command(&mut build_examples())
        && run.command(matrix.env(JOURNAL.0, JOURNAL.1).env("BELLWIRE_BLESS", "1"));
    Ok(match written {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs what needs libibverbs and libmlx5 as the distribution has them: stock programs on the stand-in for
/// the kernel; ConnectX devices by their rings, these beside libmlx5's, and by
/// libibverbs.
pub fn uverbs(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::UVERBS)?;
    let mut run = Run::default();
    // All are built first, with both cores.
    let tests = "--test conformance --test link --test simulation --test mlx5_bytes --test sources";
    for build in [
        &mut build_examples(),
        &mut optimized_tests(&format!("--test stock {tests} --no-run")),
    ] {
        if !run.command(build) {
            return Ok(run);
        }
    }
    run.command(&mut optimized_tests("--test stock"));
    // Each has devices of its own, and uses one core.
    let [rings, verbs, plain] = WAYS.map(|way| mlx5_conformance(workspace, way, false));
    run.side_by_side(&mut [rings, verbs]);
    run.side_by_side(&mut [plain, mlx5_bytes(workspace)]);
    run.command(&mut mlx5_links(workspace));
    run.command(&mut mlx5_sets(workspace));
    run.command(&mut sources(workspace));
    mlx5_c(workspace, &mut run)?;
    mlx5_examples(workspace, &mut run);
    run.must_have_found_tests();
    Ok(run)
}
