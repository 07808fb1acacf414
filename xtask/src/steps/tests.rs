//! Steps that run the Rust tests as they are.

use anyhow::Result;

use super::tools;
use crate::{command::command, run::Run, workspace::Workspace};

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

/// Runs what needs libibverbs and libmlx5 as the distribution has them.
pub fn uverbs(_: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::UVERBS)?;
    let mut run = Run::default();
    run.command(&mut command(
        "cargo test -p bellwire-uverbs-preload --no-fail-fast",
    ));
    run.must_have_found_tests();
    Ok(run)
}
