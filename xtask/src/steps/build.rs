//! Steps that build for another purpose than tests, and run what comes out: the bare target,
//! benches, examples; and one that has to fail.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::tools;
use crate::{
    command::{command, limited, shown},
    run::{Run, Skip},
    workspace::Workspace,
};

/// The bench target that counts instructions rather than time.
const INSTRUCTIONS: &str = "instructions";

/// The bench that counts cache lines, by Valgrind too.
const LINES: &str = "lines";

/// Examples that end by themselves, with arguments that make them short.
const EXAMPLES: [(&str, &[&str]); 2] = [("hello", &[]), ("mover", &["--generate", "1m"])];

/// Far more than building what `rdma-sys` is built by takes.
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// Far more than any of [`EXAMPLES`] takes.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

pub fn no_std(_: &Workspace) -> Result<Run> {
    for target in tools::bare_targets() {
        target.need()?;
    }
    let mut run = Run::default();
    run.command(&mut command(&format!(
        "cargo build -p bellwire-core --release --target {}",
        tools::BARE_TARGET
    )));
    // Its barriers are others.
    run.command(&mut command(&format!(
        "cargo check -p bellwire-core --target {}",
        tools::BARE_AARCH64
    )));
    Ok(run)
}

/// What a build with the feature `verbs` has to say where libibverbs-dev is not installed.
const ADVICE: &str = "please install libibverbs-dev";

/// Builds the feature `verbs` as if libibverbs-dev were not there: pkg-config finds nothing.
pub fn lacking(workspace: &Workspace) -> Result<Run> {
    let mut build = command("cargo build -p bellwire --features verbs");
    build
        .env("PKG_CONFIG_LIBDIR", "/nonexistent")
        .env_remove("PKG_CONFIG_PATH");
    workspace.build_apart(&mut build, "lacking");
    let line = shown(&build);
    println!("$ {line}");
    let output = limited(&build, BUILD_LIMIT)
        .stdin(Stdio::null())
        .output()
        .context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let mut run = Run::default();
    let told = text.lines().find(|line| line.contains(ADVICE));
    match told {
        Some(told) if !output.status.success() => println!("it says: {}", told.trim()),
        _ => {
            print!("{text}");
            run.problems.push(format!(
                "`{line}`: {}, and has to fail and say `{ADVICE}`",
                output.status
            ));
        }
    }
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
    for bench in benches
        .iter()
        .filter(|bench| ![INSTRUCTIONS, LINES].contains(&bench.name.as_str()))
    {
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
    run.command(count.args([
        "-p",
        &bench.package,
        "--bench",
        INSTRUCTIONS,
        "--bench",
        LINES,
    ]));
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
