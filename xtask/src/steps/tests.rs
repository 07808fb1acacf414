//! Steps that run the Rust tests as they are.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Result;

use super::{c::WithVerbs, tools};
use crate::{
    command::{command, limited},
    run::Run,
    workspace::Workspace,
};

/// Far more than any example takes that ends by itself.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(120);

/// `bellwire-tests` is left to the steps `release` and `asan`; bench targets to `benches`; the
/// stand-in for the kernel to `uverbs`.
pub fn unit(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut command(
        "cargo test --workspace --exclude bellwire-tests --exclude bellwire-uverbs-preload \
         --lib --bins --tests --examples --no-fail-fast",
    ));
    run.must_have_found_tests();
    Ok(run)
}

pub fn release(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut command(
        "cargo test --release -p bellwire-tests --lib --bins --tests --no-fail-fast",
    ));
    run.must_have_found_tests();
    Ok(run)
}

/// Schedules of faults that the step `simulation` runs. The other steps run fewer.
const SCHEDULES: &str = "100000";

pub fn simulation(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    let mut test =
        command("cargo test --release -p bellwire-tests --test simulation -- --nocapture");
    run.command(test.env("BELLWIRE_SCHEDULES", SCHEDULES));
    run.must_have_found_tests();
    Ok(run)
}

pub fn doc(_: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    run.command(&mut command("cargo test --workspace --doc --no-fail-fast"));
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
fn mlx5_conformance(workspace: &Workspace, run: &mut Run, way: &[&str], bless: bool) -> bool {
    let build = run.command(&mut command("cargo build -p bellwire-uverbs-preload"));
    let mut suite = on_connectx(
        workspace,
        "cargo test -p bellwire-tests --features mlx5 --test conformance -- --test-threads 1",
    );
    for name in way {
        suite.env(name, "1");
    }
    if bless {
        suite.env("BELLWIRE_BLESS", "1");
    }
    build && run.command(&mut suite)
}

/// Has the device note what it executed.
const JOURNAL: (&str, &str) = ("UVERBS_PRELOAD_JOURNAL", "1");

/// Links on ConnectX devices: faults as life has them, and the fault matrix.
fn mlx5_links(workspace: &Workspace, run: &mut Run) {
    let mut tests = on_connectx(
        workspace,
        "cargo test -p bellwire-tests --features mlx5 --test link --test simulation -- --ignored \
         --test-threads 1 --nocapture --skip device::ip::",
    );
    run.command(tests.env(JOURNAL.0, JOURNAL.1));
}

/// XRC in C: by libibverbs both ways; the rings do not have it.
fn mlx5_c(workspace: &Workspace, run: &mut Run) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut library = WithVerbs::install(workspace, dir.path())?;
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

/// A test that runs with the stand-in, which is built already.
fn on_connectx(workspace: &Workspace, test: &str) -> Command {
    let mut test = command(test);
    // Cargo and the compiler are to have none of it.
    test.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        runner(&preload(workspace)),
    )
    .env("BELLWIRE_VERBS_DEVICE", "mlx5_0");
    test
}

/// What is posted and polled on rings, beside what libmlx5 posts and polls there.
fn mlx5_bytes(workspace: &Workspace, run: &mut Run) {
    let test = "cargo test -p bellwire-tests --features mlx5 --test mlx5_bytes";
    run.command(&mut on_connectx(workspace, test));
}

/// The examples on ConnectX devices: pingpong also with rdma-core's, mover through an overrun.
fn mlx5_examples(workspace: &Workspace, run: &mut Run) {
    let built = run.command(&mut command(
        "cargo build -p bellwire-examples --features mlx5 --example perf --example mover --example pingpong",
    ));
    if !built {
        return;
    }
    let target = workspace.root().join(workspace.target("debug"));
    let on_it = runner(&preload(workspace));
    let on_it = format!("{on_it} UVERBS_PRELOAD_FABRIC=examples");
    let example = |name: &str| target.join("examples").join(name).display().to_string();
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
    let built = workspace.target("debug/libuverbs_preload.so");
    workspace.root().join(built)
}

/// What cargo starts a test with, so that the library is loaded before all others.
fn runner(preload: &Path) -> String {
    format!("env LD_PRELOAD={}", preload.display())
}

/// Has the conformance suite write the pages of ConnectX devices.
///
/// # Errors
/// What is lacking.
pub fn bless_mlx5(workspace: &Workspace) -> Result<ExitCode> {
    tools::need_packages(&tools::UVERBS)?;
    let [rings, verbs, _] = WAYS;
    let written = mlx5_conformance(workspace, &mut Run::default(), rings, true)
        && mlx5_conformance(workspace, &mut Run::default(), verbs, true);
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
    let mut matrix = on_connectx(
        workspace,
        "cargo test -p bellwire-tests --features mlx5 --test simulation -- --ignored matrix",
    );
    let written = run.command(&mut command("cargo build -p bellwire-uverbs-preload"))
        && run.command(matrix.env(JOURNAL.0, JOURNAL.1).env("BELLWIRE_BLESS", "1"));
    Ok(match written {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs what needs libibverbs and libmlx5 as the distribution has them: stock programs on the stand-in for
/// the kernel; layouts beside the headers; ConnectX devices by their rings, these beside libmlx5's, and by
/// libibverbs.
pub fn uverbs(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::UVERBS)?;
    let mut run = Run::default();
    run.command(&mut command(
        "cargo test -p bellwire-uverbs-preload --no-fail-fast",
    ));
    run.command(&mut command(
        "cargo test -p bellwire --features mlx5 --lib -- mlx5 verbs",
    ));
    let mut follows = true;
    for way in WAYS {
        follows &= mlx5_conformance(workspace, &mut run, way, false);
    }
    if follows {
        mlx5_links(workspace, &mut run);
        mlx5_c(workspace, &mut run)?;
        mlx5_examples(workspace, &mut run);
    }
    mlx5_bytes(workspace, &mut run);
    run.must_have_found_tests();
    Ok(run)
}
