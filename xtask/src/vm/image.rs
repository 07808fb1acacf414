//! The guest's first file system: busybox, the init script and the modules, in a cpio archive.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// The first program of the guest.
const INIT: &str = include_str!("init.sh");

/// Writes the archive, with the program of Debian's busybox-static, which needs no library; takes some tens of milliseconds, so that it is made anew for each run.
///
/// # Errors
/// What could not be read or written.
pub fn write(busybox: &Path, modules: &Path, to: &Path) -> Result<()> {
    let root = tempfile::tempdir()?;
    let bin = root.path().join("bin");
    fs::create_dir(&bin)?;
    fs::copy(busybox, bin.join("busybox"))
        .with_context(|| format!("{} of the package busybox-static", busybox.display()))?;
    let init = root.path().join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let mut names = vec![
        "bin".to_owned(),
        "bin/busybox".to_owned(),
        "init".to_owned(),
    ];
    names.push("modules".to_owned());
    fs::create_dir(root.path().join("modules"))?;
    for module in fs::read_dir(modules).with_context(|| modules.display().to_string())? {
        let module = module?;
        let name = format!("modules/{}", module.file_name().display());
        fs::copy(module.path(), root.path().join(&name))?;
        names.push(name);
    }
    pack(root.path(), &names, to)
}

fn pack(root: &Path, names: &[String], to: &Path) -> Result<()> {
    let archive = fs::File::create(to).with_context(|| to.display().to_string())?;
    let mut cpio = Command::new("cpio")
        .args(["--create", "--format=newc", "--owner=0:0", "--quiet"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(archive)
        .spawn()
        .context("cannot start cpio")?;
    let mut list = cpio.stdin.take().context("no pipe to cpio")?;
    list.write_all(names.join("\n").as_bytes())?;
    drop(list);
    let status = cpio.wait()?;
    ensure!(status.success(), "cpio: {status}");
    Ok(())
}
