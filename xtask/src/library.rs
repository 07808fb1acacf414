//! The C library as it is installed: built without paths of this machine, stripped, and with no other symbol than
//! those of its header.
//!
//! The static library is one object, whose other symbols are local: a program may link it beside another library
//! that is written in Rust, which brings a standard library of its own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    command::{command, output, output_of, shown},
    run::Run,
    workspace::{Workspace, cargo_home},
};

/// How cargo passes flags to rustc that may contain spaces, and what is between two of them.
const FLAGS: (&str, char) = ("CARGO_ENCODED_RUSTFLAGS", '\x1f');

/// Sections of bitcode, from which nothing is linked.
const BITCODE: [&str; 2] = [".llvmbc", ".llvmcmd"];

/// The two libraries, as cargo builds them.
pub struct Built {
    pub shared: PathBuf,
    pub archive: PathBuf,
}

impl Built {
    /// Those in this folder.
    pub fn in_folder(dir: &Path) -> Self {
        Self {
            shared: dir.join("libbellwire.so"),
            archive: dir.join("libbellwire.a"),
        }
    }
}

/// Builds the libraries and makes what is installed of them, in the folder `dir`.
///
/// # Errors
/// They do not build; binutils are not there.
pub fn build(workspace: &Workspace, link_system: bool, dir: &Path) -> Result<Built> {
    let mut build = command("cargo build --release -p bellwire-ffi");
    if link_system {
        build.args(["--features", "link-system"]);
    }
    without_paths(workspace, &mut build)?;
    ensure!(Run::default().command(&mut build), "it does not build");
    let built = Built::in_folder(&workspace.target("release"));
    let made = Built::in_folder(dir);
    let mut strip = command("strip --strip-unneeded -o");
    binutils(strip.arg(&made.shared).arg(&built.shared))?;
    archive(&built, &made.archive, dir)?;
    Ok(made)
}

/// Folders of this machine, which debug information and the messages of panics would name, and what they name
/// instead. Libraries that are built in two folders have the same bytes.
///
/// # Errors
/// rustc does not start; `HOME` is not set.
pub fn paths(workspace: &Workspace) -> Result<[(PathBuf, String); 3]> {
    let sysroot = output_of("rustc --print sysroot").context("rustc does not start")?;
    let version = output_of("rustc -vV").context("rustc does not start")?;
    let commit = (version.lines()).find_map(|line| line.strip_prefix("commit-hash: "));
    // As in the standard library that rustup brings; its source may be installed as well.
    let std = Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust");
    Ok([
        (workspace.root().to_owned(), "/bellwire".to_owned()),
        (cargo_home()?, "/cargo".to_owned()),
        (std, format!("/rustc/{}", commit.unwrap_or("unknown"))),
    ])
}

/// Has cargo build without the paths of this machine.
///
/// # Errors
/// As [`paths`].
pub fn without_paths(workspace: &Workspace, cargo: &mut Command) -> Result<()> {
    let (name, between) = FLAGS;
    let given = env::var(name).or_else(|_| {
        let flags = env::var("RUSTFLAGS")?;
        let words: Vec<_> = flags.split_whitespace().collect();
        Ok::<_, env::VarError>(words.join(&between.to_string()))
    });
    let mut flags: Vec<String> = given
        .into_iter()
        .filter(|flags| !flags.is_empty())
        .collect();
    for (from, to) in paths(workspace)? {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    cargo.env(name, flags.join(&between.to_string()));
    Ok(())
}

/// Makes the static library of one object.
fn archive(built: &Built, to: &Path, dir: &Path) -> Result<()> {
    let symbols = symbols(&built.shared)?;
    let [kept, roots, stripped, object] =
        ["kept", "roots", "stripped.a", "bellwire.o"].map(|name| dir.join(name));
    for (list, before) in [(&kept, ""), (&roots, "-u ")] {
        let lines = symbols.iter().map(|name| format!("{before}{name}\n"));
        fs::write(list, lines.collect::<String>()).with_context(|| list.display().to_string())?;
    }

    let mut strip = command("objcopy --strip-debug");
    for section in BITCODE {
        strip.args(["-R", section]);
    }
    binutils(strip.arg(&built.archive).arg(&stripped))?;
    // Groups are resolved: the linker would keep one of two of a name, also where their symbols are local.
    let mut link = command("ld -r --gc-sections --force-group-allocation");
    link.arg(format!("@{}", roots.display()));
    binutils(link.arg(&stripped).arg("-o").arg(&object))?;
    let mut keep = command("objcopy");
    keep.arg(format!("--keep-global-symbols={}", kept.display()));
    binutils(keep.arg(&object))?;
    let _ = fs::remove_file(to);
    // D: without times and users, so that it has the same bytes each time.
    binutils(command("ar rcsD").arg(to).arg(&object))
}

/// What the shared library defines for programs.
///
/// # Errors
/// binutils are not there; it defines nothing.
pub fn symbols(shared: &Path) -> Result<Vec<String>> {
    let mut nm = command("nm --dynamic --defined-only --format=posix");
    let listing = output(nm.arg(shared)).with_context(|| format!("`{}` failed", shown(&nm)))?;
    let symbols = defined(&listing);
    ensure!(!symbols.is_empty(), "{}: no symbols", shared.display());
    Ok(symbols)
}

/// The names in what `nm` prints, less their versions, and the versions themselves.
fn defined(listing: &str) -> Vec<String> {
    let names = listing.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        let name = name.split('@').next()?;
        (!rest.starts_with('A')).then(|| name.to_owned())
    });
    names.collect()
}

/// Runs one of the programs of GNU binutils.
///
/// # Errors
/// It fails, or is not there.
pub fn binutils(command: &mut Command) -> Result<()> {
    let done = Run::default().command(command);
    ensure!(
        done,
        "`{}` failed; it is a program of GNU binutils, which come with gcc",
        command.get_program().display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_have_no_versions() {
        let listing = "bw_poll_sized@@libbellwire.so.0.1 T 1670d0 5e\n\
                       bw_version T 1670d0\n\
                       libbellwire.so.0.1 A 0\n";
        assert_eq!(defined(listing), ["bw_poll_sized", "bw_version"]);
    }
}
