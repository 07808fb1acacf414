//! Steps that build for another purpose than tests, and run what comes out: the bare target,
//! benches, examples.

use std::{process::Command, time::Duration};

use anyhow::Result;

use super::tools;
use crate::{
    command::{command, limited},
    run::{Run, Skip},
    workspace::Workspace,
};

/// The bench target that counts instructions rather than time.
const INSTRUCTIONS: &str = "instructions";

/// Examples that end by themselves, with arguments that make them short.
const EXAMPLES: [(&str, &[&str]); 2] = [("hello", &[]), ("mover", &["--generate", "1m"])];

/// Far more than any of [`EXAMPLES`] takes.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

pub fn no_std(_: &Workspace) -> Result<Run> {
    tools::bare_target().need()?;
    let mut run = Run::default();
    run.command(&mut command(&format!(
        "cargo build -p bellwire-core --release --target {}",
        tools::BARE_TARGET
    )));
    Ok(run)
}

/// Builds every bench, and runs those that measure time in criterion's test mode: once, unmeasured.
pub fn benches(workspace: &Workspace) -> Result<Run> {
    let benches = workspace.benches();
    if benches.is_empty() {
        return Err(Skip::not_there_yet("no package has a bench yet"));
    }
    let mut run = Run::default();
    // Packages by name: with `--workspace`, dependencies would get the features of all members,
    // and be built anew for the runs below.
    let mut build = command("cargo bench --no-run");
    for bench in &benches {
        build.args(["-p", &bench.package, "--bench", &bench.name]);
    }
    run.command(&mut build);
    for bench in benches.iter().filter(|bench| bench.name != INSTRUCTIONS) {
        let mut once = command("cargo bench");
        once.args(["-p", &bench.package, "--bench", &bench.name, "--", "--test"]);
        run.command(&mut once);
    }
    Ok(run)
}

pub fn instructions(workspace: &Workspace) -> Result<Run> {
    let benches = workspace.benches();
    let Some(bench) = benches.iter().find(|bench| bench.name == INSTRUCTIONS) else {
        return Err(Skip::not_there_yet("no such bench yet"));
    };
    tools::need_program("valgrind")?;
    if let Some(runner) = tools::gungraun_runner(workspace) {
        runner.need()?;
    }
    let mut run = Run::default();
    let mut count = command("cargo bench");
    run.command(count.args(["-p", &bench.package, "--bench", INSTRUCTIONS]));
    Ok(run)
}

pub fn examples(workspace: &Workspace) -> Result<Run> {
    let present = workspace.examples();
    let mut run = Run::default();
    let mut any = false;
    for (name, args) in EXAMPLES {
        let Some(example) = present.iter().find(|example| example.name == name) else {
            run.notes.push(format!("not there yet: {name}"));
            continue;
        };
        any = true;
        let mut build = command("cargo build --release");
        build.args(["-p", &example.package, "--example", name]);
        if run.command(&mut build) {
            let mut program = Command::new(workspace.target("release/examples").join(name));
            run.command(&mut limited(program.args(args), EXAMPLE_LIMIT));
        }
    }
    if any {
        Ok(run)
    } else {
        Err(Skip::not_there_yet("none of these examples is there yet"))
    }
}
