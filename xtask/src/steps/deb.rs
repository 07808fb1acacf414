//! The step that makes the Debian packages, and installs, uses and removes them on a host that has a C compiler alone.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{
    tests::{EXAMPLES_BUILT, build_examples},
    tools,
};
use crate::{
    bare::Host,
    command::{command, output, path_with_sbin},
    deb,
    run::Run,
    workspace::Workspace,
};

/// A program that is built with the shared and with the static library, by no flag but their names.
const PROGRAM: &str = "examples/c/hello.c";
const LINKED: [(&str, &str); 2] = [("shared", "-lbellwire"), ("static", "-l:libbellwire.a -lm")];

pub fn deb(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::BARE)?;
    let mut run = Run::default();
    if !run.command(&mut build_examples()) {
        return Ok(run);
    }
    let dir = tempfile::tempdir()?;
    let packages = deb::make(
        workspace,
        &workspace.target(EXAMPLES_BUILT),
        dir.path(),
        "none",
    )?;
    let host = Host::make(workspace)?;
    host.with_dpkg()?;
    let before = files(host.root())?;
    if run.command(dpkg(&host, "--install").args(&packages)) {
        used(&host, &mut run)?;
    }
    let library = deb::library_package(workspace)?;
    run.command(dpkg(&host, "--purge").args(["bellwire-tools", "libbellwire-dev", &library]));
    let after = files(host.root())?;
    if before != after {
        run.problems
            .push("removing the packages left files".to_owned());
        println!("before:\n{before}\nafter:\n{after}");
    }
    workspace.remove_apart("bare");
    Ok(run)
}

/// Builds and runs programs with what the packages have installed.
fn used(host: &Host, run: &mut Run) -> Result<()> {
    let dir = host.folder("deb")?;
    for (name, flags) in LINKED {
        let program: PathBuf = dir.join(name);
        let mut cc = host.command(&format!("cc -std=c11 -pthread {PROGRAM} -o"));
        cc.arg(&program).args(flags.split(' '));
        if run.command(&mut cc) {
            run.command(host.command("").arg(&program));
        }
    }
    run.command(&mut host.command("/usr/bin/bellwire-perf lat --iters 1000 --warmup 10"));
    Ok(())
}

fn dpkg(host: &Host, action: &str) -> std::process::Command {
    let mut dpkg = tools::as_root("dpkg");
    dpkg.env("PATH", path_with_sbin());
    dpkg.arg(format!("--root={}", host.root().display()))
        .arg(action);
    dpkg
}

/// What the host has, without dpkg's own.
fn files(root: &Path) -> Result<String> {
    let mut find = command("find . -path ./var/lib/dpkg -prune -o -print");
    let found = output(find.current_dir(root)).context("find does not start")?;
    let mut lines: Vec<_> = found.lines().collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}
