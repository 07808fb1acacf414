//! The steps of `cargo xtask test`, in their order.

mod aarch64;
mod bare;
mod bless;
mod build;
mod c;
mod deb;
mod deep;
mod fuzz;
mod guide;
mod installed;
mod publish;
mod schedule;
mod style;
mod sys;
mod targets;
mod tests;
mod tools;
mod vm;
#[cfg(test)]
mod workflows;

use std::{
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{
    command::unattended,
    report::{self, Row, Totals},
    run::{Outcome, Run},
    vm::Guest,
    workspace::Workspace,
};

pub use bless::{CONFORMANCE, bless};
pub use tests::{bless_mlx5, bless_mlx5_faults};
pub use tools::{GUEST, GUEST_AARCH64, as_root, need_package, need_packages};
pub use vm::bless_conformance;

/// One step of the test command.
pub struct Step {
    /// What one types to run it alone.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    run: fn(&Workspace) -> Result<Run>,
    /// Steps that have to end before, if they run.
    after: &'static [&'static str],
    /// Folders that cargo locks while it builds there, and others may build in.
    builds: &'static [&'static str],
    company: Company,
}

/// What may run beside a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Others like it.
    Any,
    /// The same. It only computes, so that it may wait for the processor as long as others want it.
    Patient,
    /// Patient steps alone: it measures itself against the clock, as what has time-outs does.
    Sensitive,
    /// Nothing, at the end of the run.
    Alone,
    /// Anything but what is alone. It mostly waits for the network, and does not count as one of those that run.
    Aside,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Workspace) -> Result<Run>) -> Step {
    Step {
        name,
        about,
        run,
        after: &["tools", "packages"],
        builds: &[],
        company: Company::Any,
    }
}

impl Step {
    const fn after(mut self, after: &'static [&'static str]) -> Self {
        self.after = after;
        self
    }

    const fn builds(mut self, builds: &'static [&'static str]) -> Self {
        self.builds = builds;
        self
    }

    const fn company(mut self, company: Company) -> Self {
        self.company = company;
        self
    }
}

/// What a step `vm` of its own, in a guest of the caller's, is called.
const VM: (&str, &str) = ("vm", "real RDMA devices, in a guest");

/// What runs in the guest of `vm`, and in one of its own when it is named without that.
const NVMF: (&str, &str) = (
    "nvmf",
    "an NVMe-oF target in C that Linux uses, in the guest of vm",
);

/// Every step. Two run at a time: of those that may start, the first of these.
const STEPS: [Step; 34] = [
    step(
        "tools",
        "install what other steps need of rustup and cargo",
        tools::tools,
    )
    .after(&[])
    .company(Company::Aside),
    step(
        "packages",
        "install what other steps need of Debian, and download the guest's kernel",
        tools::packages,
    )
    .after(&[])
    .company(Company::Aside),
    // These need none of both.
    step("build", "crates and their tests", tests::build)
        .after(&[])
        .builds(&["debug"]),
    step("fmt", "formatting", style::fmt),
    step("hygiene", "what must not be committed", style::hygiene),
    step("prose", "plain English, and its spelling", style::prose),
    step(
        "publish",
        "pack the crates that are published",
        publish::publish,
    )
    .after(&[])
    .company(Company::Aside),
    step("release", "bellwire-tests, optimized", tests::release)
        .after(&[])
        .builds(&["optimized"]),
    step(
        "unit",
        "tests of each crate, C programs included",
        tests::unit,
    )
    .after(&["tools", "packages", "build"])
    .builds(&["debug"]),
    step("asan", "all tests under AddressSanitizer", deep::asan),
    step(
        "bare",
        "the C library, programs in C, perf: the oldest Rust, a linker alone",
        bare::bare,
    )
    .after(&["tools", "packages", "release"])
    .builds(&["optimized"]),
    step("c", "install; C and C++ programs against that", c::c)
        .after(&["packages", "asan"])
        .builds(&["release"]),
    step(
        "deb",
        "Debian packages: made, installed, used, removed",
        deb::deb,
    )
    .after(&["packages", "bare", "c"])
    .builds(&["optimized", "release"]),
    step(VM.0, VM.1, vm::vm)
        .builds(&["optimized", "release"])
        .company(Company::Sensitive),
    step(NVMF.0, NVMF.1, vm::nvmf)
        .builds(&["release"])
        .company(Company::Sensitive),
    step(
        "uverbs",
        "stock programs, on a stand-in for the kernel",
        tests::uverbs,
    )
    .builds(&["optimized", "release"])
    .company(Company::Sensitive),
    // Beside what is patient: it mostly waits.
    step(
        "hosts",
        "signals, forks, sandboxes, namespaces, limits, priorities",
        tests::hosts,
    )
    .builds(&["optimized"])
    .company(Company::Sensitive),
    step(
        "tsan",
        "tests of many threads under ThreadSanitizer",
        deep::tsan,
    ),
    step(
        "miri",
        "core, and models of what is lock-free, under Miri",
        deep::miri,
    )
    .company(Company::Patient),
    step(
        "fuzz",
        "parsers of bytes that a peer or a device wrote",
        fuzz::fuzz,
    )
    .company(Company::Patient),
    step("loom", "models of what is lock-free", deep::loom)
        .after(&[])
        .company(Company::Patient),
    step("clippy", "lints", style::clippy)
        .builds(&["debug"])
        .company(Company::Patient),
    step(
        "features",
        "lints, with every set of features",
        style::features,
    )
    .builds(&["debug"])
    .company(Company::Patient),
    step("doc", "documentation and the tests in it", tests::doc)
        .builds(&["debug"])
        .company(Company::Patient),
    step(
        "aarch64",
        "built across, run by qemu's user mode",
        aarch64::aarch64,
    )
    .builds(&["debug", "release"]),
    step(
        "sys",
        "libibverbs: declared as by rdma-sys; linked",
        sys::sys,
    )
    .builds(&["debug"])
    .company(Company::Patient),
    step("instructions", "instruction counts", build::instructions)
        .builds(&["release"])
        .company(Company::Patient),
    step(
        "simulation",
        "links, and sets of links, through 100,000 schedules of faults each",
        tests::simulation,
    )
    .builds(&["optimized"])
    .company(Company::Patient),
    step("benches", "build, and run each once", build::benches)
        .builds(&["optimized"])
        .company(Company::Patient),
    step("no-std", "core for a bare machine", build::no_std)
        .builds(&["release"])
        .company(Company::Patient),
    step(
        "targets",
        "the library for musl, for 32 bits, and for big-endian processors",
        targets::targets,
    )
    .builds(&["debug"])
    .company(Company::Patient),
    step("examples", "build and run examples", build::examples).builds(&["optimized"]),
    step(
        "guide",
        "build the guide, and run its commands",
        guide::guide,
    )
    .after(&["tools", "packages", "c", "examples"])
    .builds(&["optimized", "release"]),
    step(
        "processes",
        "tests of processes in a hurry, optimized and under AddressSanitizer",
        deep::processes,
    )
    .company(Company::Alone),
];

/// What one types for [`QUICK_STEPS`], and what they do.
const QUICK: (&str, &str) = (
    "quick",
    "before a commit, only when named: fmt, clippy, most tests, in minutes",
);

/// Parts of steps above, which run those again: they are not part of the whole.
const QUICK_STEPS: [Step; 3] = [
    step("fmt", "formatting", style::fmt),
    step("clippy", "lints", style::clippy).builds(&["debug"]),
    step(
        "tests",
        "core, bellwire, ffi-c, the software HCA",
        tests::quick,
    )
    .builds(&["debug"]),
];

/// What can be named, and what it does.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    let steps = STEPS.iter().map(|step| (step.name, step.about));
    steps.chain([QUICK])
}

/// Runs the steps that are named, or all when none is, and reports. Without `yes` it asks before steps install
/// anything; in CI nobody could answer.
///
/// # Errors
/// None of a step's own: those are in the report and in the exit code.
pub fn test(workspace: &Workspace, names: &[String], yes: bool) -> Result<ExitCode> {
    let begun = Instant::now();
    let named = |name: &str| names.iter().any(|one| one == name);
    let quick = QUICK_STEPS.iter().filter(|_| named(QUICK.0));
    let chosen = |name: &str| names.is_empty() || named(name);
    let steps =
        (STEPS.iter()).filter(|step| chosen(step.name) && !(step.name == NVMF.0 && chosen(VM.0)));
    let steps: Vec<_> = quick.chain(steps).collect();
    // This program, also when what it was started from is built anew meanwhile.
    let this = format!("/proc/{}/exe", std::process::id());
    let mut all = Command::new(&this);
    // The steps of `quick` install nothing.
    let only_quick = !names.is_empty() && names.iter().all(|name| name == QUICK.0);
    if !yes && !unattended() && !only_quick {
        tools::ask_to_install(workspace, &mut all)?;
    }
    let rows = schedule::run(&steps, |step, result| {
        let mut process = Command::new(&this);
        process.envs(
            all.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        process.args(["step", step.name]).arg(result);
        process
    })?;
    Ok(report(rows, begun.elapsed()))
}

/// Runs a step in this process, and leaves how it ended in `result`.
///
/// # Errors
/// There is no such step; the result cannot be left.
pub fn carry_out(workspace: &Workspace, name: &str, result: &Path) -> Result<ExitCode> {
    let mut all = STEPS.iter().chain(&QUICK_STEPS);
    let step = (all.find(|step| step.name == name)).with_context(|| format!("no step {name}"))?;
    let row = report_on((step.name, step.about), || (step.run)(workspace));
    schedule::leave(&row.outcome, result)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the step `vm` in a guest of the caller's, and reports.
pub fn test_in(guest: &Guest, workspace: &Workspace) -> ExitCode {
    let row = report_on(VM, || vm::in_guest(workspace, guest));
    let took = row.took;
    report(vec![row], took)
}

/// Prints how the steps ended, and gives the exit code.
fn report(rows: Vec<Row>, took: Duration) -> ExitCode {
    let named = |name: &str| {
        let step = STEPS.iter().find(|step| step.name == name);
        step.expect("a part is a step").name
    };
    let parts = rows.into_iter().flat_map(|row| row.with_parts(named));
    let rows = &parts.collect::<Vec<_>>()[..];
    let totals = Totals::of(rows);
    print!("\n{}", report::excerpts(rows));
    println!("\n== results ==\n{}", report::table(rows));
    println!("{}\n", report::times(rows, took));
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

fn report_on((name, about): (&'static str, &str), run: impl FnOnce() -> Result<Run>) -> Row {
    println!("\n== {name}: {about} ==");
    let begun = Instant::now();
    let outcome = Outcome::from(run());
    let took = begun.elapsed();
    match &outcome {
        Outcome::Skipped(skip) => println!("{skip}"),
        Outcome::Ran(run) => {
            let parts = run.parts.iter().flat_map(|part| &part.run.problems);
            let problems = run.problems.iter().chain(parts);
            problems.for_each(|problem| println!("FAILED: {problem}"));
        }
    }
    println!("-- {name}: {:.1} s", took.as_secs_f64());
    Row {
        step: name,
        took,
        cpu: None,
        outcome,
    }
}
