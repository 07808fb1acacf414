//! The step that runs the fuzz targets: parsers of bytes that a peer or a device wrote, with coverage and under
//! AddressSanitizer.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::tools;
use crate::{command::command, run::Run, workspace::Workspace};

/// As cargo-fuzz builds. The compiler is the stable one, which has the sanitizer behind a nightly flag.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Seconds for each target, unless the environment has [`SECONDS_VAR`].
const SECONDS: u32 = 3;

/// In the environment: seconds for each target.
const SECONDS_VAR: &str = "BELLWIRE_FUZZ_SECONDS";

/// Inputs from which each target begins: kept small, one folder for each target.
const CORPUS: &str = "fuzz/corpus";

pub fn fuzz(workspace: &Workspace) -> Result<Run> {
    tools::need_program("g++")?;
    let seconds: u32 = match env::var(SECONDS_VAR) {
        Ok(seconds) => seconds.parse().context(SECONDS_VAR)?,
        Err(_) => SECONDS,
    };
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = command("cargo build --manifest-path fuzz/Cargo.toml --bins --target");
    build
        .arg(&target)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS);
    workspace.build_apart(&mut build, "fuzz");
    let mut run = Run::default();
    if !run.command(&mut build) {
        return Ok(run);
    }
    let targets = targets()?;
    let built = workspace.target("fuzz").join(&target).join("debug");
    run.on_each_core(&targets, |name, run| {
        // What a run finds stays out of the tree.
        let scratch = workspace.target("fuzz").join("corpus").join(name);
        fs::create_dir_all(&scratch)?;
        let mut fuzz = Command::new(built.join(name));
        fuzz.arg(format!("-max_total_time={seconds}"));
        fuzz.arg(format!(
            "-artifact_prefix={}/",
            workspace.target("fuzz").display()
        ));
        fuzz.args(["-timeout=60", "-print_final_stats=1"]);
        run.command(fuzz.arg(scratch).arg(Path::new(CORPUS).join(name)));
        Ok(())
    })?;
    run.notes
        .push(format!("{} targets, {seconds} s each", targets.len()));
    workspace.remove_apart("fuzz");
    Ok(run)
}

/// The targets' names.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("fuzz/targets")? {
        let path = entry?.path();
        let name = path.file_stem().context("a target's name")?;
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    ensure!(!names.is_empty(), "there are no fuzz targets");
    Ok(names)
}
