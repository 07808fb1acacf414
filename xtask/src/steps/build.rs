//! Steps that build for another purpose than tests, and run what comes out: the bare target,
//! benches, examples.

use std::{process::Command, time::Duration};

use anyhow::Result;

use super::{
    tests::{EXAMPLES_BUILT, build_examples, optimized},
    tools,
};
use crate::{
    command::{command, limited},
    library,
    run::Run,
    workspace::Workspace,
};

/// Examples that end by themselves, with arguments that make them short.
const SHORT: [(&str, &[&str]); 3] = [
    ("hello", &[]),
    ("guide", &[]),
    ("mover", &["--generate", "1m"]),
];

/// Far more than any of [`SHORT`] takes.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(600);

/// How often instructions are counted until all are within their limits. A software HCA has a thread, which reads packets
/// from time to time; on a busy machine it does so while a program that is counted polls, and the poll looks again. What a
/// change has made costlier exceeds its limit each time.
const COUNTED: u32 = 5;

pub fn no_std(_: &Workspace) -> Result<Run> {
    for target in tools::bare_targets() {
        target.need()?;
    }
    let mut run = Run::default();
    run.command(&mut command(&format!(
        "cargo build -p bellwire-core --release --target {}",
        tools::BARE_TARGET
    )));
    run.command(&mut command(&format!(
        "cargo check -p bellwire-roce --no-default-features --target {}",
        tools::BARE_TARGET
    )));
    // Its barriers are others.
    run.command(&mut command(&format!(
        "cargo check -p bellwire-core --target {}",
        tools::BARE_AARCH64
    )));
    Ok(run)
}

/// The package of the benches that Valgrind counts by; those of all others measure time.
const COUNTS: &str = "bellwire-counts";

/// Runs the benches that measure time in criterion's test mode: once, unmeasured. Optimized as the tests are, whose
/// dependencies they share.
pub fn benches(workspace: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    let mut once = command(concat!("cargo bench ", optimized!("")));
    for bench in workspace.benches() {
        if bench.package != COUNTS {
            once.args(["-p", &bench.package, "--bench", &bench.name]);
        }
    }
    run.command(once.args(["--", "--test"]));
    Ok(run)
}

pub fn instructions(workspace: &Workspace) -> Result<Run> {
    tools::need_program("valgrind")?;
    if let Some(runner) = tools::gungraun_runner(workspace) {
        runner.need()?;
    }
    let mut run = Run::default();
    for count in 1..=COUNTED {
        run = Run::default();
        let mut bench = command(&format!("cargo bench -p {COUNTS}"));
        // As the C library is built, whose dependencies it shares.
        library::without_paths(workspace, &mut bench)?;
        if run.command(&mut bench) {
            if count != 1 {
                run.notes.push(format!(
                    "within the limits when counted for the {count}. time"
                ));
            }
            break;
        }
    }
    Ok(run)
}

pub fn examples(workspace: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    if run.command(&mut build_examples()) {
        for (name, args) in SHORT {
            let mut program = Command::new(workspace.target(EXAMPLES_BUILT).join(name));
            run.command(&mut limited(program.args(args), EXAMPLE_LIMIT));
        }
    }
    Ok(run)
}
