//! The step that packs every crate that is published, as `cargo publish` does.

use anyhow::Result;

use crate::{command::command, run::Run, workspace::Workspace};

/// In the order in which they depend on each other. Nothing is uploaded, and nothing built: the step `bare` builds
/// them with the oldest Rust. What the commit has not is packed as well, as it is on the way to one.
pub fn publish(workspace: &Workspace) -> Result<Run> {
    let mut run = Run::default();
    let mut publish = command("cargo publish --workspace --dry-run --no-verify --allow-dirty");
    // Apart from the folder that other steps lock while they build.
    workspace.build_apart(&mut publish, "publish");
    run.command(&mut publish);
    Ok(run)
}

#[cfg(test)]
mod tests {
    use crate::workspace::Workspace;

    /// What a crate has to say of itself, and to have beside its source.
    #[test]
    fn a_published_crate_describes_itself() {
        let workspace = Workspace::load().unwrap();
        let mut packages = workspace.metadata().workspace_packages();
        packages.retain(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()));
        let names: Vec<_> = packages.iter().map(|package| &package.name).collect();
        assert!(names.len() >= 8, "{names:?}");
        for package in packages {
            let name = &package.name;
            assert!(package.description.is_some(), "{name}: description");
            assert!(package.repository.is_some(), "{name}: repository");
            assert!(package.license.is_some(), "{name}: license");
            assert!(package.rust_version.is_some(), "{name}: rust-version");
            assert!(!package.keywords.is_empty(), "{name}: keywords");
            assert!(!package.categories.is_empty(), "{name}: categories");
            let readme = package.readme().expect(name);
            assert!(readme.is_file(), "{name}: {readme}");
            for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
                let file = package.manifest_path.with_file_name(file);
                assert!(file.is_file(), "{file}");
            }
        }
    }
}
