//! What has to be true of an installation, whatever program is built with it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::c::WARNINGS;
use crate::{
    command::{command, output, output_of},
    install::{self, FILE_MODE, FOLDER_MODE, Place},
    library::{self, Built},
    run::Run,
    workspace::Workspace,
};

/// Bytes of the two libraries at the most.
const SIZES: [(&str, u64); 2] = [("libbellwire.so", 4_000_000), ("libbellwire.a", 8_500_000)];

/// What the stand-in for a library of another ABI says of itself.
const STAND_IN: &str = "-DSTAND_IN=4242";

/// Sources of the programs here.
const SOURCES: &str = "ffi-c/tests/install";

/// Checks what is installed in `prefix`; `dir` is for files of its own.
///
/// # Errors
/// A program that it needs is not there.
pub fn check(workspace: &Workspace, prefix: &Path, dir: &Path, run: &mut Run) -> Result<()> {
    let place = Place::in_prefix(prefix);
    modes(prefix, run)?;
    sizes(&place, run)?;
    paths(workspace, prefix, run)?;
    moved(prefix, &dir.join("moved"), run)?;
    beside_rust(&place, dir, run)?;
    two_versions(workspace, &place, dir, run)
}

/// All users read it: the step installs with a umask that would not let them.
fn modes(prefix: &Path, run: &mut Run) -> Result<()> {
    let wrong = format!("-type f -not -perm {FILE_MODE:o} -o -type d -not -perm {FOLDER_MODE:o}");
    let mut find = command("find");
    find.arg(prefix).args(wrong.split(' '));
    let found = output(&mut find).context("find does not start")?;
    for path in found.lines() {
        run.problems
            .push(format!("{path}: installed with a wrong mode"));
    }
    Ok(())
}

fn sizes(place: &Place, run: &mut Run) -> Result<()> {
    for (name, limit) in SIZES {
        let size = fs::metadata(place.libdir().join(name))?.len();
        run.notes.push(format!("{name}: {} KB", size / 1000));
        if size > limit {
            let problem = format!("{name} has {size} bytes, {limit} at the most");
            run.problems.push(problem);
        }
    }
    Ok(())
}

/// The libraries name no folder of this machine.
fn paths(workspace: &Workspace, prefix: &Path, run: &mut Run) -> Result<()> {
    for (path, _) in library::paths(workspace)? {
        let mut grep = command("grep -rlaF -e");
        // 1 is "nothing found".
        let grep = grep.arg(&path).arg(prefix).output()?;
        if grep.status.code() != Some(1) {
            let found = String::from_utf8_lossy(&grep.stdout).replace('\n', " ");
            let path = path.display();
            run.problems.push(format!("{path} is named in: {found}"));
        }
    }
    Ok(())
}

/// Another folder holds the installation than it was made for.
fn moved(prefix: &Path, to: &Path, run: &mut Run) -> Result<()> {
    fs::rename(prefix, to)?;
    let mut cmake = command("cmake -S");
    cmake.args([SOURCES, "-B"]).arg(to.with_extension("build"));
    for name in ["CMAKE_PREFIX_PATH", "PREFIX"] {
        cmake.arg(format!("-D{name}={}", to.display()));
    }
    run.command(&mut cmake);
    let (from, to_shown) = (prefix.display(), to.display());
    let flags = output_of(&format!(
        "env PKG_CONFIG_PATH={to_shown}/lib/pkgconfig pkg-config --define-prefix --cflags --libs bellwire"
    ));
    let expected = format!("-I{to_shown}/include -L{to_shown}/lib -lbellwire");
    if flags.as_deref().map(str::trim) != Some(&expected) {
        run.problems.push(format!(
            "moved from {from}: pkg-config says {flags:?}, not {expected}"
        ));
    }
    Ok(fs::rename(to, prefix)?)
}

/// The static library beside another one that is written in Rust, in both orders.
fn beside_rust(place: &Place, dir: &Path, run: &mut Run) -> Result<()> {
    let other = dir.join("libother.a");
    let mut rustc = command("rustc --edition 2024 --crate-type staticlib -o");
    rustc.arg(&other).arg(format!("{SOURCES}/other.rs"));
    if !run.command(&mut rustc) {
        return Ok(());
    }
    let ours = place.libdir().join("libbellwire.a");
    for (at, libraries) in [[&ours, &other], [&other, &ours]].iter().enumerate() {
        let program = dir.join(format!("beside-{at}"));
        let mut cc = cc("beside.c", place, &program);
        cc.args(libraries).args(install::private(false));
        if run.command(&mut cc) {
            run.command(&mut Command::new(&program));
        }
    }
    Ok(())
}

/// A program and its plug-in that are linked with libraries of two ABIs: each has its own.
fn two_versions(workspace: &Workspace, place: &Place, dir: &Path, run: &mut Run) -> Result<()> {
    let apart = dir.join("other-abi");
    fs::create_dir_all(&apart)?;
    let soname = "libbellwire.so.0.99";
    let stand_in = Built::in_folder(&apart).shared;
    let mut library = cc("stand_in.c", place, &stand_in);
    library.args([STAND_IN, "-shared", "-fPIC", "-Wl,--default-symver"]);
    library.arg(format!("-Wl,-soname,{soname}"));
    if !run.command(&mut library) {
        return Ok(());
    }
    fs::rename(&stand_in, apart.join(soname))?;
    let [ours, other] = [
        (place.libdir(), install::soname(workspace)?, None),
        (apart, soname.to_owned(), Some(STAND_IN)),
    ];
    for (name, program, plugin) in [("a", &ours, &other), ("b", &other, &ours)] {
        let build = |(libdir, soname, flag): &(PathBuf, String, Option<&str>), to: &Path| {
            let mut cc = cc("plugin.c", place, to);
            cc.args(flag).arg(libdir.join(soname));
            cc.arg(format!("-Wl,-rpath,{}", libdir.display()));
            cc
        };
        let of_program = dir.join(format!("program-{name}"));
        let of_plugin = dir.join(format!("plugin-{name}.so"));
        let mut built = build(plugin, &of_plugin);
        if run.command(built.args(["-shared", "-fPIC"]))
            && run.command(build(program, &of_program).args(["-DPROGRAM", "-ldl"]))
        {
            run.command(Command::new(&of_program).arg(&of_plugin));
        }
    }
    Ok(())
}

/// Compiles one of [`SOURCES`].
fn cc(source: &str, place: &Place, to: &Path) -> Command {
    let mut cc = command("gcc -std=c11");
    cc.args(WARNINGS).arg("-I").arg(place.includedir());
    cc.arg(format!("{SOURCES}/{source}")).arg("-o").arg(to);
    cc
}
