//! Steps about the C side: the generated header, and the C and C++ programs.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

use super::tools;
use crate::{
    command::{command, limited},
    run::{Run, Skip},
    workspace::Workspace,
};

const CONFIG: &str = "ffi-c/cbindgen.toml";
const HEADER: &str = "include/bellwire.h";
const PROGRAMS: &str = "examples/c";

/// Far more than any of the programs takes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(60);

/// Fails when the checked-in header is not what ffi-c's source gives.
pub fn header(_: &Workspace) -> Result<Run> {
    if !Path::new(CONFIG).exists() {
        return Err(Skip::not_there_yet(format!("no {CONFIG} yet")));
    }
    println!("comparing {HEADER} with what ffi-c gives");
    let mut run = Run::default();
    if fs::read(HEADER).unwrap_or_default() != generate()? {
        run.problems
            .push(format!("{HEADER} is stale: run `cargo xtask header`"));
    }
    Ok(run)
}

/// `cargo xtask header`
///
/// # Errors
/// ffi-c cannot be read, or the header not be written.
pub fn write_header(_: &Workspace) -> Result<ExitCode> {
    let text = generate()?;
    if let Some(dir) = Path::new(HEADER).parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(HEADER, text).with_context(|| format!("cannot write {HEADER}"))?;
    println!("wrote {HEADER}");
    Ok(ExitCode::SUCCESS)
}

fn generate() -> Result<Vec<u8>> {
    let config = cbindgen::Config::from_file(CONFIG).map_err(|e| anyhow!("{CONFIG}: {e}"))?;
    let mut text = Vec::new();
    cbindgen::generate_with_config("ffi-c", config)?.write(&mut text);
    Ok(text)
}

/// Compiles each program of examples/c against the header and the shared library, without any
/// warning, and runs it.
pub fn programs(workspace: &Workspace) -> Result<Run> {
    if !Path::new(PROGRAMS).is_dir() {
        return Err(Skip::not_there_yet(format!("no {PROGRAMS} yet")));
    }
    tools::need_program("gcc")?;
    tools::need_program("g++")?;
    let mut run = Run::default();
    if !run.command(&mut command("cargo build -p bellwire-ffi")) {
        return Ok(run);
    }
    let sources = sources()?;
    if sources.is_empty() {
        run.problems.push(format!("no program in {PROGRAMS}"));
    }
    let out = workspace.target("c-programs");
    fs::create_dir_all(&out)?;
    let libs = workspace.root().join(workspace.target("debug"));
    for source in sources {
        let program = out
            .join(source.file_name().unwrap_or_default())
            .with_extension("");
        let mut compile = compiler(&source);
        compile
            .args(["-Wall", "-Wextra", "-Werror", "-g", "-Iinclude", "-o"])
            .args([&program, &source])
            .arg(format!("-L{}", libs.display()))
            .arg(format!("-Wl,-rpath,{}", libs.display()))
            .args(["-lbellwire", "-pthread"]);
        if run.command(&mut compile) {
            run.command(&mut limited(&Command::new(&program), PROGRAM_LIMIT));
        }
    }
    Ok(run)
}

fn compiler(source: &Path) -> Command {
    if source.extension() == Some(OsStr::new("c")) {
        command("gcc -std=c11")
    } else {
        command("g++ -std=c++17")
    }
}

/// The C and C++ files of [`PROGRAMS`], in the order of their names.
fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(PROGRAMS)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ext| ext == "c" || ext == "cpp")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
