//! The steps of `cargo xtask test`, in their order.

mod bare;
mod bless;
mod build;
mod c;
mod deep;
mod style;
mod sys;
mod tests;
mod tools;
mod vm;

use std::{process::ExitCode, time::Instant};

use anyhow::Result;

use crate::{
    command::unattended,
    report::{self, Row, Totals},
    run::{Outcome, Run},
    vm::Guest,
    workspace::Workspace,
};

pub use bless::bless;
pub use tests::{bless_mlx5, bless_mlx5_faults};
pub use tools::{GUEST, as_root, need_package, need_packages};
pub use vm::bless_conformance;

/// One step of the test command.
pub struct Step {
    /// What one types to run it alone.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    run: fn(&Workspace) -> Result<Run>,
}

const VM: Step = step("vm", "real RDMA devices, in a guest", vm::vm);

const fn step(name: &'static str, about: &'static str, run: fn(&Workspace) -> Result<Run>) -> Step {
    Step { name, about, run }
}

/// Every step; they run in this order.
const STEPS: [Step; 21] = [
    step("tools", "install what the other steps need", tools::tools),
    step("fmt", "formatting", style::fmt),
    step("clippy", "lints", style::clippy),
    step(
        "bare",
        "every set of features, perf, C: Rust and a linker alone",
        bare::bare,
    ),
    step(
        "unit",
        "tests of each crate, C programs included",
        tests::unit,
    ),
    step("release", "bellwire-tests, optimized", tests::release),
    step(
        "simulation",
        "links through 100,000 schedules of faults",
        tests::simulation,
    ),
    step("doc", "documentation and the tests in it", tests::doc),
    step("loom", "models of what is lock-free", deep::loom),
    step("miri", "core under Miri", deep::miri),
    step("asan", "all tests under AddressSanitizer", deep::asan),
    step(
        "tsan",
        "tests of many threads under ThreadSanitizer",
        deep::tsan,
    ),
    step("no-std", "core for a bare machine", build::no_std),
    step(
        "sys",
        "libibverbs: declared as by rdma-sys; linked",
        sys::sys,
    ),
    step("benches", "build, and run each once", build::benches),
    step("instructions", "instruction counts", build::instructions),
    step("examples", "build and run examples", build::examples),
    step("c", "install; C and C++ programs against that", c::c),
    step(
        "uverbs",
        "stock programs, on a stand-in for the kernel",
        tests::uverbs,
    ),
    VM,
    step("hygiene", "what must not be committed", style::hygiene),
];

/// What one types for [`QUICK_STEPS`], and what they do.
const QUICK: (&str, &str) = (
    "quick",
    "before a commit, only when named: fmt, clippy, most tests, in minutes",
);

/// Parts of steps above, which run those again: they are not part of the whole.
const QUICK_STEPS: [Step; 3] = [
    step("fmt", "formatting", style::fmt),
    step("clippy", "lints", style::clippy),
    step(
        "tests",
        "core, bellwire, ffi-c, the software HCA",
        tests::quick,
    ),
];

/// What can be named, and what it does.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    let steps = STEPS.iter().map(|step| (step.name, step.about));
    steps.chain([QUICK])
}

/// Runs the steps that are named, or all when none is, and reports.
///
/// # Errors
/// None of a step's own: those are in the report and in the exit code.
pub fn test(workspace: &Workspace, names: &[String]) -> Result<ExitCode> {
    let named = |name: &str| names.iter().any(|one| one == name);
    let quick = QUICK_STEPS.iter().filter(|_| named(QUICK.0));
    let steps = (STEPS.iter()).filter(|step| names.is_empty() || named(step.name));
    let rows: Vec<_> = quick
        .chain(steps)
        .map(|step| carry_out(step, || (step.run)(workspace)))
        .collect();
    Ok(report(&rows))
}

/// Runs the step `vm` in a guest of the caller's, and reports.
pub fn test_in(guest: &Guest, workspace: &Workspace) -> ExitCode {
    report(&[carry_out(&VM, || vm::in_guest(workspace, guest))])
}

/// Prints how the steps ended, and gives the exit code.
fn report(rows: &[Row]) -> ExitCode {
    let totals = Totals::of(rows);
    print!("\n{}", report::excerpts(rows));
    println!("\n== results ==\n{}", report::table(rows));
    let warnings = report::warnings(rows);
    if !warnings.is_empty() {
        println!("{warnings}");
        if unattended() {
            println!("WARNING: this is not the whole test: the steps above are missing from it.\n");
        }
    }
    println!("{}", totals.line());
    if totals.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn carry_out(step: &Step, run: impl FnOnce() -> Result<Run>) -> Row {
    println!("\n== {}: {} ==", step.name, step.about);
    let begun = Instant::now();
    let outcome = Outcome::from(run());
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
