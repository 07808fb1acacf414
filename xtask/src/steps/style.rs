//! Steps that read the source: formatting, lints, leftovers.

use anyhow::Result;

use super::tools;
use crate::{
    command::{GIT, command, output_of, shown, stream},
    prose,
    run::{Run, Skip},
    workspace::Workspace,
};

/// Paths of one person's machine, and code that is not finished.
const LEFTOVERS: [&str; 2] = [
    r"(^|[^[:alnum:]_.~/-])/(root|home|work)/",
    r"(^|[^[:alnum:]_])(todo|unimplemented|dbg)!\(",
];

pub fn fmt(_: &Workspace) -> Result<Run> {
    tools::rustfmt().need()?;
    let mut run = Run::default();
    run.command(&mut command("cargo fmt --all --check"));
    Ok(run)
}

/// Packages that no other depends on: their features are not an interface.
const INTERNAL: [&str; 5] = [
    "bellwire-benches",
    "bellwire-counts",
    "bellwire-examples",
    "bellwire-tests",
    "xtask",
];

/// With the features that the members have of each other; the step `features` has every set.
pub fn clippy(_: &Workspace) -> Result<Run> {
    tools::clippy().need()?;
    let mut run = Run::default();
    run.command(&mut command(
        "cargo clippy --workspace --all-targets -- -D warnings",
    ));
    Ok(run)
}

/// What is default is one of the other features, in each package.
pub fn features(_: &Workspace) -> Result<Run> {
    tools::clippy().need()?;
    tools::cargo_hack().need()?;
    let mut hack = command(
        "cargo hack clippy --workspace --feature-powerset --exclude-features default --keep-going",
    );
    for package in INTERNAL {
        hack.args(["--exclude", package]);
    }
    let mut run = Run::default();
    run.command(hack.args(["--", "-D", "warnings"]));
    Ok(run)
}

pub fn prose(_: &Workspace) -> Result<Run> {
    prose::prose()
}

pub fn hygiene(_: &Workspace) -> Result<Run> {
    if output_of(&format!("{GIT} rev-parse --git-dir")).is_none() {
        return Err(Skip::lacking(
            "git sees no checkout here",
            "install git, and test in a clone",
        ));
    }
    let mut grep = command(&format!("{GIT} grep -nIE"));
    for pattern in LEFTOVERS {
        grep.args(["-e", pattern]);
    }
    grep.args(["--", ".", ":!*.lock"]);
    println!("$ {}", shown(&grep));
    let mut hits = 0;
    let status = stream(&mut grep, |_| hits += 1)?;
    let mut run = Run::default();
    match status.code() {
        Some(1) => (),
        Some(0) => run.problems.push(format!("{hits} lines, listed above")),
        _ => run.problems.push(format!("git grep: {status}")),
    }
    Ok(run)
}
