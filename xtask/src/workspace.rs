//! What `cargo metadata` says about the workspace.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Message, Metadata, MetadataCommand, TargetKind};

use crate::command::{shown, unattended};

/// The workspace under test.
pub struct Workspace {
    metadata: Metadata,
}

/// The folder in which cargo has what it downloads.
///
/// # Errors
/// Neither `CARGO_HOME` nor `HOME` is set.
pub fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    Ok((env::home_dir().context("set HOME, or CARGO_HOME")?).join(".cargo"))
}

/// A bench or a test program, and the package that holds it.
#[derive(Debug)]
pub struct Target {
    /// Package name.
    pub package: String,
    /// Target name.
    pub name: String,
}

impl Workspace {
    /// Asks cargo, and makes the workspace's root the current directory.
    ///
    /// # Errors
    /// `cargo metadata` failed; its own message is passed on.
    pub fn load() -> Result<Self> {
        let metadata = MetadataCommand::new()
            .exec()
            .context("cargo metadata failed")?;
        env::set_current_dir(&metadata.workspace_root)?;
        Ok(Self { metadata })
    }

    /// What cargo says of it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The folder that holds the workspace's Cargo.toml.
    pub fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// A path in the target folder, relative to the root where it lies under it.
    pub fn target(&self, path: &str) -> PathBuf {
        let dir = self.metadata.target_directory.as_std_path();
        dir.strip_prefix(self.root()).unwrap_or(dir).join(path)
    }

    /// Lets a command build in a folder of its own, for flags that would make ordinary builds
    /// start anew.
    pub fn build_apart(&self, command: &mut Command, dir: &str) {
        command.env("CARGO_TARGET_DIR", self.target(dir));
    }

    /// Removes what was built apart in `dir`, where nobody builds it again: all such folders together fill
    /// a disk of CI.
    pub fn remove_apart(&self, dir: &str) {
        if unattended() {
            // What cannot be removed does no harm until the disk is full, which is reported then.
            let _ = fs::remove_dir_all(self.target(dir));
        }
    }

    /// The members' bench targets.
    pub fn benches(&self) -> Vec<Target> {
        self.targets(|target| target.kind.contains(&TargetKind::Bench))
    }

    /// The members' test targets that `cargo test` runs.
    pub fn tests(&self) -> Vec<Target> {
        self.targets(|target| target.test && target.kind.contains(&TargetKind::Test))
    }

    fn targets(&self, wanted: impl Fn(&cargo_metadata::Target) -> bool) -> Vec<Target> {
        let mut found = Vec::new();
        for package in self.metadata.workspace_packages() {
            for target in &package.targets {
                if wanted(target) {
                    found.push(Target {
                        package: package.name.to_string(),
                        name: target.name.clone(),
                    });
                }
            }
        }
        found
    }

    /// Builds the test programs of a `cargo test`, without running them, and says where they are.
    ///
    /// # Errors
    /// They could not be built, or there are none; cargo's own message is passed on.
    pub fn test_programs(&self, mut cargo: Command) -> Result<Vec<PathBuf>> {
        cargo.arg("--no-run");
        let line = shown(&cargo);
        println!("$ {line}");
        cargo.arg("--message-format=json-render-diagnostics");
        let output = cargo
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        ensure!(output.status.success(), "cargo test: {}", output.status);
        let mut programs = Vec::new();
        for message in Message::parse_stream(&output.stdout[..]) {
            if let Message::CompilerArtifact(artifact) = message? {
                programs.extend(artifact.executable.map(PathBuf::from));
            }
        }
        ensure!(!programs.is_empty(), "`{line}` has no test program");
        Ok(programs)
    }

    /// The oldest Rust that the workspace builds with: its `rust-version`.
    ///
    /// # Errors
    /// The C library, by whose manifest it is known, has none.
    pub fn oldest_rust(&self) -> Result<String> {
        let mut packages = self.metadata.packages.iter();
        let library = packages.find(|package| package.name.as_str() == "bellwire-ffi");
        let version = library.and_then(|package| package.rust_version.as_ref());
        Ok(version
            .context("bellwire-ffi has no rust-version")?
            .to_string())
    }

    /// The version of a dependency that Cargo.lock holds.
    pub fn locked_version(&self, name: &str) -> Option<String> {
        let mut packages = self.metadata.packages.iter();
        let package = packages.find(|package| package.name.as_str() == name)?;
        Some(package.version.to_string())
    }
}
