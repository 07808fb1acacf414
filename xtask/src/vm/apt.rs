//! Debian's packages for the guest's architecture, without a change to this machine: for another one than its own,
//! with lists of packages of its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::arch::Arch;
use crate::{
    command::{command, output, shown},
    run::Skip,
    steps::as_root,
};

/// Where apt's files are in the cache.
pub const DIR: &str = "apt";

/// apt for one architecture.
pub struct Apt {
    /// Its settings; `None`: this machine's own.
    config: Option<PathBuf>,
}

impl Apt {
    /// For an architecture, with what it keeps in `cache`.
    ///
    /// # Errors
    /// Its folders could not be made.
    pub fn of(arch: Arch, cache: &Path) -> Result<Self> {
        if arch == Arch::default() {
            return Ok(Self { config: None });
        }
        let dir = cache.join(DIR);
        fs::create_dir_all(dir.join("state/lists/partial"))?;
        fs::create_dir_all(dir.join("cache/archives/partial"))?;
        // Nothing is installed there.
        fs::write(dir.join("status"), "")?;
        let (name, at) = (arch.debian(), dir.display());
        let config = dir.join("apt.conf");
        let text = format!(
            "APT::Architecture \"{name}\";\nAPT::Architectures {{ \"{name}\"; }};\n\
             APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\nDebug::NoLocking \"true\";\n\
             Dir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}/cache\";\n"
        );
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let config = Some(config);
        Ok(Self { config })
    }

    /// The command with these settings.
    fn with_settings(&self, mut command: Command) -> Command {
        if let Some(config) = &self.config {
            command.env("APT_CONFIG", config);
        }
        command
    }

    /// What `apt-cache` says; `None`: it knows nothing of it.
    pub fn says(&self, words: &str) -> Option<String> {
        output(&mut self.with_settings(command(&format!("apt-cache {words}"))))
    }

    /// Gets the lists of packages.
    pub fn update(&self) {
        let update = "apt-get update";
        done(&mut match self.config {
            Some(_) => self.with_settings(command(update)),
            None => as_root(update),
        });
    }

    /// Downloads one package, and gives its file.
    ///
    /// # Errors
    /// A [`Skip`] that says what is lacking.
    pub fn download(&self, package: &str, to: &Path) -> Result<PathBuf> {
        let mut download = self.with_settings(command("apt-get download"));
        if !done(download.arg(package).current_dir(to)) {
            return Err(lacking(package));
        }
        packages_in(to)?.pop().context("apt-get left no package")
    }

    /// Downloads packages and all that they depend on, and unpacks them.
    ///
    /// # Errors
    /// A [`Skip`] that says what is lacking.
    pub fn unpack_all(&self, packages: &[&str], aside: &Path, to: &Path) -> Result<()> {
        let archives = aside.join("archives");
        fs::create_dir_all(archives.join("partial"))?;
        let mut install = self.with_settings(command("apt-get install -y --download-only -o"));
        install.arg(format!("Dir::Cache::archives={}", archives.display()));
        if !done(install.args(packages)) {
            return Err(lacking(&packages.join(", ")));
        }
        for package in packages_in(&archives)? {
            unpack(&package, to)?;
        }
        Ok(())
    }
}

fn lacking(packages: &str) -> anyhow::Error {
    Skip::lacking(
        format!("{packages} could not be downloaded"),
        "a connection to a Debian mirror, and `apt-get update`",
    )
}

fn packages_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect())
}

/// Unpacks a package, and runs nothing of it.
///
/// # Errors
/// It could not be unpacked.
pub fn unpack(package: &Path, to: &Path) -> Result<()> {
    let mut unpack = command("dpkg -x");
    let unpacked = done(unpack.arg(package).arg(to));
    ensure!(unpacked, "{} could not be unpacked", package.display());
    Ok(())
}

/// Returns whether the command succeeded. What it prints goes to standard error: standard output is
/// the guest's.
pub fn done(command: &mut Command) -> bool {
    eprintln!("$ {}", shown(command));
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status();
    status.is_ok_and(|status| status.success())
}
