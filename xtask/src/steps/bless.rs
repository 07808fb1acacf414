//! Files that are generated. That they are fresh is tested where they come from.

use std::process::ExitCode;

use anyhow::Result;

use crate::{command::command, run::Run};

/// Compares the verdicts of the conformance suite, or writes them.
pub const CONFORMANCE: &str = "cargo test -p bellwire-tests --test conformance";

/// Runs the test that compares a generated file, and has it write the file.
///
/// # Errors
/// None of its own: what cargo says has been printed.
pub fn bless(test: &str) -> Result<ExitCode> {
    let mut run = Run::default();
    let written = run.command(command(test).env("BELLWIRE_BLESS", "1"));
    Ok(if written {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
