//! The steps of `cargo xtask test`, in their order.

mod bless;
mod build;
mod deep;
mod style;
mod tests;
mod tools;

use std::{process::ExitCode, time::Instant};

use anyhow::Result;

use crate::{
    command::unattended,
    report::{self, Row, Totals},
    run::{Outcome, Run},
    workspace::Workspace,
};

pub use bless::bless;
pub use tools::need_package;

/// One step of the test command.
pub struct Step {
    /// What one types to run it alone.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    run: fn(&Workspace) -> Result<Run>,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Workspace) -> Result<Run>) -> Step {
    Step { name, about, run }
}

/// Every step; they run in this order.
pub const STEPS: [Step; 15] = [
    step("tools", "install what the other steps need", tools::tools),
    step("fmt", "formatting", style::fmt),
    step("clippy", "lints, default and all features", style::clippy),
    step("features", "lints, every set of features", style::features),
    step(
        "unit",
        "tests of each crate, C programs included",
        tests::unit,
    ),
    step("release", "bellwire-tests, release profile", tests::release),
    step("doc", "documentation and the tests in it", tests::doc),
    step("loom", "models of what is lock-free", deep::loom),
    step("miri", "core under Miri", deep::miri),
    step("asan", "all tests under AddressSanitizer", deep::asan),
    step("no-std", "core for a bare machine", build::no_std),
    step("benches", "build, and run each once", build::benches),
    step("instructions", "instruction counts", build::instructions),
    step("examples", "build and run examples", build::examples),
    step("hygiene", "what must not be committed", style::hygiene),
];

/// Runs the steps that are named, or all when none is, and reports.
///
/// # Errors
/// None of a step's own: those are in the report and in the exit code.
pub fn test(workspace: &Workspace, names: &[String]) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for step in &STEPS {
        if names.is_empty() || names.iter().any(|name| name == step.name) {
            rows.push(carry_out(step, workspace));
        }
    }
    let totals = Totals::of(&rows);
    println!("\n== results ==\n{}", report::table(&rows));
    let warnings = report::warnings(&rows);
    if !warnings.is_empty() {
        println!("{warnings}");
        if unattended() {
            println!("WARNING: this is not the whole test: the steps above are missing from it.\n");
        }
    }
    println!("{}", totals.line());
    Ok(if totals.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn carry_out(step: &Step, workspace: &Workspace) -> Row {
    println!("\n== {}: {} ==", step.name, step.about);
    let begun = Instant::now();
    let outcome = Outcome::from((step.run)(workspace));
    let took = begun.elapsed();
    match &outcome {
        Outcome::Skipped(skip) => println!("{skip}"),
        Outcome::Ran(run) => run.problems.iter().for_each(|p| println!("FAILED: {p}")),
    }
    println!("-- {}: {:.1} s", step.name, took.as_secs_f64());
    Row {
        step: step.name,
        took,
        outcome,
    }
}
