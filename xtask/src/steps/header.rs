//! The C header. That it is fresh, and that the C programs run, is tested in ffi-c.

use std::process::ExitCode;

use anyhow::Result;

use crate::{command::command, run::Run, workspace::Workspace};

/// `cargo xtask header`: the test that compares the header writes it when told to.
///
/// # Errors
/// None of its own: what cargo says has been printed.
pub fn write_header(_: &Workspace) -> Result<ExitCode> {
    let mut run = Run::default();
    let mut bless = command("cargo test -p bellwire-ffi --test header");
    let written = run.command(bless.env("BELLWIRE_BLESS", "1"));
    Ok(if written {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
