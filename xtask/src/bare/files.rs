//! The files of the host: where they come from, and what must not be among them.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// How the names of files begin that the host must not have: what builds with libibverbs need, and what
/// libibverbs needs.
const MUST_NOT_BE: [&str; 7] = [
    "clang",
    "ibverbs",
    "infiniband",
    "libclang",
    "libibverbs",
    "libmlx5",
    "librdmacm",
];

/// Copies files to the same places below `root`. Copies rather than links: nothing that happens there can
/// change the originals.
///
/// # Errors
/// One could not be copied.
pub fn copy(files: &BTreeSet<PathBuf>, root: &Path) -> Result<()> {
    for file in files {
        copy_one(file, root).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn copy_one(file: &Path, root: &Path) -> Result<()> {
    // What dpkg was set to leave out, as it is of documentation where disks are small.
    let Ok(found) = fs::symlink_metadata(file) else {
        return Ok(());
    };
    // Where /lib is a link to /usr/lib, some packages say /lib.
    let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else {
        return Ok(());
    };
    let parent = root.join(parent.canonicalize()?.strip_prefix("/")?);
    fs::create_dir_all(&parent)?;
    let to = parent.join(name);
    if found.is_symlink() {
        symlink(fs::read_link(file)?, to)?;
    } else if found.is_dir() {
        fs::create_dir_all(to)?;
    } else {
        fs::copy(file, to)?;
    }
    Ok(())
}

/// Makes sure that nothing is there without which the step would prove more.
///
/// # Errors
/// There is something.
pub fn must_be_bare(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).with_context(|| root.display().to_string())? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        ensure!(
            !MUST_NOT_BE.iter().any(|start| name.starts_with(start)),
            "{}: a host with Rust and a C linker alone has no such file; `dpkg -S {name}` names the package \
             that brings it",
            path.display()
        );
        if entry.file_type()?.is_dir() {
            must_be_bare(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_to_where_links_lead() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("usr/lib")).unwrap();
        symlink("usr/lib", dir.join("lib")).unwrap();
        fs::write(dir.join("usr/lib/one.so.1"), "one").unwrap();
        symlink("one.so.1", dir.join("usr/lib/one.so")).unwrap();
        let names = ["lib", "lib/one.so", "lib/one.so.1", "usr/share", "usr/lib"];
        let files = names.map(|name| dir.join(name)).into_iter().collect();

        let to = tempfile::tempdir().unwrap();
        copy(&files, to.path()).unwrap();
        let copied = to.path().join(dir.strip_prefix("/").unwrap());
        assert_eq!(
            fs::read_link(copied.join("lib")).unwrap(),
            Path::new("usr/lib")
        );
        let link = fs::symlink_metadata(copied.join("usr/lib/one.so")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(
            fs::read_to_string(copied.join("lib/one.so")).unwrap(),
            "one"
        );
        assert!(!copied.join("usr/share").exists());
    }

    #[test]
    fn what_must_not_be_is_found() {
        for name in ["lib/libibverbs.so.1", "include/infiniband/verbs.h"] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("usr/include/rdma")).unwrap();
            fs::write(dir.path().join("usr/libc.so.6"), "").unwrap();
            must_be_bare(dir.path()).unwrap();
            let file = dir.path().join("usr").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            let error = must_be_bare(dir.path()).unwrap_err().to_string();
            assert!(error.contains("no such file"), "{error}");
        }
    }
}
