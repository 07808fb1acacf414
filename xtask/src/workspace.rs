//! What `cargo metadata` tells about the workspace.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand, TargetKind};

/// The workspace under test.
pub struct Workspace {
    metadata: Metadata,
}

/// A bench or example target, and the package that holds it.
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

    /// The members' bench targets.
    pub fn benches(&self) -> Vec<Target> {
        self.targets(TargetKind::Bench)
    }

    /// The members' example targets.
    pub fn examples(&self) -> Vec<Target> {
        self.targets(TargetKind::Example)
    }

    fn targets(&self, kind: TargetKind) -> Vec<Target> {
        let mut found = Vec::new();
        for package in self.metadata.workspace_packages() {
            for target in &package.targets {
                if target.kind.contains(&kind) {
                    found.push(Target {
                        package: package.name.to_string(),
                        name: target.name.clone(),
                    });
                }
            }
        }
        found
    }

    /// The version of a dependency that Cargo.lock holds.
    pub fn locked_version(&self, name: &str) -> Option<String> {
        let mut packages = self.metadata.packages.iter();
        let package = packages.find(|package| package.name.as_str() == name)?;
        Some(package.version.to_string())
    }
}
