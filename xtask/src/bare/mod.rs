//! A host that has the oldest supported Rust and a C linker, and nothing else: neither libclang, nor rdma-core, nor
//! any header of theirs; not even a shell.
//!
//! Its files are copies of what Debian packages have installed here, so it needs no network. Programs run
//! there in namespaces of their own, by bubblewrap: what is mounted for them goes when they end, however
//! they end. They see the workspace, the toolchain and cargo's registry, none of which they can write.

mod files;
mod packages;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{self, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use self::packages::Installed;
use crate::{
    command::{command, output, output_of, words},
    run::{Run, Skip},
    workspace::{Workspace, cargo_home},
};

/// What CONTRIBUTING.md says to install.
const PACKAGES: [&str; 2] = ["gcc", "libc6-dev"];

/// Folders that something is mounted on, by their names there.
const MOUNT_POINTS: [&str; 8] = [
    "bellwire", "cargo", "dev", "proc", "rust", "sys", "target", "tmp",
];

const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// The target folder, as programs there see it.
const TARGET: &str = "/target";

/// The host, made anew.
pub struct Host {
    /// Runs a command there.
    run: PathBuf,
    root: PathBuf,
    target: PathBuf,
    /// The names of the packages that it is made of.
    packages: Vec<String>,
}

impl Host {
    /// Puts it together below the target folder.
    ///
    /// # Errors
    /// A [`Skip`] where that cannot be done. Something that the host must not have is there.
    pub fn make(workspace: &Workspace) -> Result<Self> {
        need_namespaces()?;
        let dir = workspace.target("bare");
        let (root, target) = (dir.join("root"), dir.join("target"));
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
        }
        let installed = Installed::ask()?;
        let packages = installed.closure(&PACKAGES)?;
        let files = packages::files(&packages)?;
        files::copy(&files, &root)?;
        // Made by Debian's alternatives, which are no package's.
        symlink("gcc", root.join("usr/bin/cc"))?;
        // Every host has it, and it is no package's.
        fs::create_dir_all(root.join("etc"))?;
        fs::write(root.join("etc/hosts"), HOSTS)?;
        files::must_be_bare(&root)?;
        println!(
            "{}: {} files of {} packages",
            root.display(),
            files.len(),
            packages.len()
        );
        for name in MOUNT_POINTS {
            fs::create_dir(root.join(name)).with_context(|| name.to_owned())?;
        }
        fs::create_dir_all(&target)?;
        let run = dir.join("run");
        write_script(&run, &sandbox(workspace, &root, &target)?)?;
        let packages = packages.into_iter().map(str::to_owned).collect();
        Ok(Self {
            run,
            root,
            target,
            packages,
        })
    }

    /// The folder of the host's files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tells dpkg what the host has, so that packages can be installed there.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn with_dpkg(&self) -> Result<()> {
        let dir = self.root.join("var/lib/dpkg");
        for name in ["info", "updates"] {
            fs::create_dir_all(dir.join(name))?;
        }
        let mut query = command("dpkg-query --status");
        let status = output(query.args(&self.packages)).context("dpkg-query failed")?;
        fs::write(dir.join("status"), status)?;
        for package in &self.packages {
            let list = format!("info/{package}.list");
            let ours = Path::new("/var/lib/dpkg").join(&list);
            fs::copy(&ours, dir.join(&list)).with_context(|| ours.display().to_string())?;
        }
        Ok(fs::write(dir.join("available"), "")?)
    }

    /// A command that runs there, in the workspace.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(&self.run);
        command.args(words.split_whitespace());
        command
    }

    /// The name here of what is in the target folder, which programs there call so.
    pub fn outside(&self, there: &Path) -> PathBuf {
        match there.strip_prefix(TARGET) {
            Ok(inside) => self.target.join(inside),
            Err(_) => there.to_owned(),
        }
    }

    /// Makes a folder in the target folder, and says how programs there call it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let dir = self.target.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Path::new(TARGET).join(name))
    }
}

/// Ends the step where containers are not allowed.
fn need_namespaces() -> Result<()> {
    let probe = "bwrap --ro-bind / / --unshare-pid --proc /proc --dev /dev true";
    if Run::default().command(&mut command(probe)) {
        return Ok(());
    }
    Err(Skip::lacking(
        "bwrap may not make namespaces",
        "test as root, or let users make theirs: `sysctl user.max_user_namespaces=10000 \
         kernel.unprivileged_userns_clone=1`; a container around it has to be privileged",
    ))
}

/// What runs the command that is appended to it.
fn sandbox(workspace: &Workspace, root: &Path, target: &Path) -> Result<Command> {
    let version = workspace.oldest_rust()?;
    let sysroot = output_of(&format!("rustc +{version} --print sysroot"))
        .with_context(|| format!("Rust {version} has no sysroot"))?;
    let cargo_home = cargo_home()?;
    let mut bwrap = command("bwrap --die-with-parent --unshare-pid --clearenv --ro-bind");
    bwrap.arg(path::absolute(root)?).arg("/");
    let own = "--dev /dev --proc /proc --tmpfs /tmp --tmpfs /cargo --chdir /bellwire";
    bwrap.args(own.split(' '));
    let (sysroot, sys) = (Path::new(sysroot.trim_end()), Path::new("/sys"));
    // That of a distribution's Rust is all of /usr.
    files::must_be_bare(&sysroot.join("lib"))?;
    // Of cargo's folder only what is needed: passwords may be there.
    let registry = cargo_home.join("registry");
    // It may name a mirror, by which the registry's folders are called.
    let config = cargo_home.join("config.toml");
    for (how, from, to) in [
        ("--ro-bind", sys, "/sys"),
        ("--ro-bind", sysroot, "/rust"),
        ("--ro-bind", &registry, "/cargo/registry"),
        ("--ro-bind-try", &config, "/cargo/config.toml"),
        ("--ro-bind", workspace.root(), "/bellwire"),
        ("--bind", target, TARGET),
    ] {
        bwrap.arg(how).arg(path::absolute(from)?).arg(to);
    }
    for (name, value) in [
        ("PATH", "/rust/bin:/usr/bin"),
        ("HOME", "/tmp"),
        ("CARGO_HOME", "/cargo"),
        ("CARGO_TARGET_DIR", TARGET),
        ("CARGO_NET_OFFLINE", "true"),
        // Other steps build releases as they are; what is asked here is whether they build.
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("RUST_BACKTRACE", "1"),
    ] {
        bwrap.args(["--setenv", name, value]);
    }
    Ok(bwrap)
}

/// A script, because its name is shorter to read and to type than what it does.
fn write_script(to: &Path, sandbox: &Command) -> Result<()> {
    let words = words(sandbox);
    let words = words.to_str().context("a path is not UTF-8")?;
    fs::write(to, format!("#!/bin/sh\nexec {words} -- \"$@\"\n"))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
