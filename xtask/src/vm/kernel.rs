//! The guest's kernel: Debian's, with the modules that the guest loads, out of a package that is
//! fetched once and kept; with it the guest's programs, where this machine's do not run there.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{
    apt::{self, Apt, done},
    arch::Arch,
    folder::locked,
};
use crate::{
    command::{command, path_with_sbin},
    run::Skip,
};

/// What the guest needs; what these depend on is found.
const MODULES: [&str; 18] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "dummy",
    "bonding",
    "veth",
    "macvlan",
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
    // NVMe over RDMA, both ends; a disk in memory; a file system; a cable that loses packets.
    "nvme_rdma",
    "nvmet",
    "nvmet_rdma",
    "null_blk",
    "ext4",
    "sch_netem",
    "loop",
];

/// The CRC algorithms that rdma_rxe, nvme_core and ext4 ask for without naming them; newer kernels, and those
/// of other processors, have no such modules.
const ALGORITHMS: [&str; 5] = [
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crct10dif_generic",
    "crc64_rocksoft_generic",
];

/// The file that says for which modules the others were found.
const ASKED: &str = "asked";

fn asked_for(arch: Arch) -> String {
    [&ALGORITHMS[..], &MODULES, arch.system_packages()]
        .concat()
        .join("\n")
}

/// Folders of a root file system that no package has.
const PLACES: [&str; 5] = ["dev", "proc", "sys", "tmp", "run"];

/// A kernel and its modules, ready to be put into an image.
pub struct Kernel {
    dir: PathBuf,
    arch: Arch,
}

impl Kernel {
    /// The newest kernel that apt knows; downloads it, unless it is in the cache already.
    ///
    /// # Errors
    /// A [`Skip`] that says what to do when it is not available.
    pub fn get(arch: Arch) -> Result<Self> {
        let cache = cache(arch)?;
        let _lock = locked(&cache.join("lock"))?;
        let apt = Apt::of(arch, &cache)?;
        let meta_package = arch.kernel_package();
        let newest = || Package::newest(&apt, &meta_package);
        let dir_of = |package: &Package| cache.join(package.to_string());
        // What an xtask of other needs has kept is made anew.
        let is_whole = |dir: &PathBuf| {
            fs::read_to_string(dir.join(ASKED)).is_ok_and(|asked| asked == asked_for(arch))
        };
        if let Some(dir) = newest().map(|package| dir_of(&package)).filter(is_whole) {
            return Ok(Self { dir, arch });
        }
        // What apt knows may be gone from the mirror.
        apt.update();
        let package = newest().ok_or_else(|| {
            Skip::lacking(
                format!("apt knows no package {meta_package}"),
                "a Debian system, and `apt-get update`",
            )
        })?;
        let dir = dir_of(&package);
        if !is_whole(&dir) {
            clear(&cache)?;
            package.unpack_to(&apt, arch, &dir)?;
        }
        Ok(Self { dir, arch })
    }

    /// The root file system that the guest has in place of this machine's.
    pub fn system(&self) -> Option<PathBuf> {
        let own = self.arch.system_packages().is_empty();
        (!own).then(|| self.dir.join("system"))
    }

    /// The kernel itself.
    pub fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The folder of its modules, whose names have the order in which they are to be loaded.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("modules")
    }
}

/// Where kernels are kept from run to run: one for all checkouts.
fn cache(arch: Arch) -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(env::home_dir()?.join(".cache")))
        .context("there is no place for the guest's kernel: set XDG_CACHE_HOME, or HOME")?;
    let cache = base.join(arch.kept_in());
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}

/// A version of a package.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
}

impl std::fmt::Display for Package {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.name, self.version)
    }
}

impl Package {
    fn newest(apt: &Apt, meta_package: &str) -> Option<Self> {
        let depends = apt.says(&format!("depends --important {meta_package}"))?;
        let name = dependency(&depends)?;
        let shown = apt.says(&format!("--no-all-versions show {name}"))?;
        Some(Self {
            name: name.to_owned(),
            version: field(&shown, "Version")?.to_owned(),
        })
    }

    /// The kernel's own name for itself, which its module folder has.
    fn release(&self) -> &str {
        self.name.strip_prefix("linux-image-").unwrap_or(&self.name)
    }

    /// Downloads and unpacks aside, and moves what is needed into place at once: a run that is
    /// interrupted leaves nothing that looks whole.
    fn unpack_to(&self, apt: &Apt, arch: Arch, dir: &Path) -> Result<()> {
        let aside = dir.with_file_name("aside");
        let (root, ready) = (aside.join("root"), aside.join("ready"));
        let modules = ready.join("modules");
        fs::create_dir_all(&modules)?;
        let deb = apt.download(&format!("{}={}", self.name, self.version), &aside)?;
        apt::unpack(&deb, &root)?;
        let vmlinuz = root
            .join("boot")
            .join(format!("vmlinuz-{}", self.release()));
        fs::rename(&vmlinuz, ready.join("vmlinuz"))
            .with_context(|| format!("{self} has no {}", vmlinuz.display()))?;
        for (number, file) in load_order(&root, self.release())?.iter().enumerate() {
            let from = decompressed(file)?;
            let name = from.file_name().context("a module without a name")?;
            let name = format!("{number:02}-{}", name.display());
            fs::rename(&from, modules.join(name)).with_context(|| from.display().to_string())?;
        }
        if !arch.system_packages().is_empty() {
            let system = ready.join("system");
            apt.unpack_all(arch.system_packages(), &aside, &system)?;
            for place in PLACES {
                fs::create_dir_all(system.join(place))?;
            }
            fs::write(system.join("etc/hosts"), "127.0.0.1 localhost\n")?;
        }
        fs::write(ready.join(ASKED), asked_for(arch))?;
        fs::rename(&ready, dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(fs::remove_dir_all(&aside)?)
    }
}

/// Removes other kernels, and what an interrupted run has left.
fn clear(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with(apt::DIR) {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The files of the modules and of what they depend on, each after those that it needs.
fn load_order(root: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let mut depmod = as_administrator("depmod -b");
    ensure!(done(depmod.arg(root).arg(release)), "depmod failed");
    let mut files = Vec::new();
    for module in [&ALGORITHMS[..], &MODULES].concat() {
        // Without the machine's own settings.
        let output = as_administrator("modprobe --show-depends -C /dev/null -S")
            .arg(release)
            .arg("-d")
            .arg(root)
            .arg(module)
            .output()
            .context("cannot start modprobe")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() || ALGORITHMS.contains(&module),
            "modprobe: {}",
            said.trim()
        );
        for file in insmod_lines(&String::from_utf8_lossy(&output.stdout)) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// A command that a user's `PATH` may not lead to.
fn as_administrator(words: &str) -> Command {
    let mut command = command(words);
    command.env("PATH", path_with_sbin());
    command
}

/// The module as the guest's insmod takes it.
fn decompressed(module: &Path) -> Result<PathBuf> {
    if module.extension().is_none_or(|extension| extension != "xz") {
        return Ok(module.to_owned());
    }
    let mut xz = Command::new("xz");
    ensure!(
        done(xz.arg("--decompress").arg(module)),
        "{} could not be decompressed",
        module.display()
    );
    Ok(module.with_extension(""))
}

/// The files in `modprobe --show-depends`: `insmod /path/of/module.ko option=1`; `builtin name` is in
/// the kernel.
fn insmod_lines(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next())
        .map(PathBuf::from)
}

/// The kernel's package in `apt-cache depends`.
fn dependency(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    lines.find_map(|line| line.strip_prefix("Depends: "))
}

/// A field of `apt-cache show`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_names_the_kernel() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-9-amd64\n";
        assert_eq!(dependency(depends), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(dependency("linux-image-amd64\n"), None);
        let shown = "Package: linux-image-6.1.0-9-amd64\nVersion: 6.1.27-1\nSize: 1\n";
        assert_eq!(field(shown, "Version"), Some("6.1.27-1"));
    }

    #[test]
    fn the_cache_and_the_modules_go_by_name_and_version() {
        let package = Package {
            name: "linux-image-6.1.0-9-amd64".to_owned(),
            version: "6.1.27-1".to_owned(),
        };
        assert_eq!(package.to_string(), "linux-image-6.1.0-9-amd64_6.1.27-1");
        assert_eq!(package.release(), "6.1.0-9-amd64");
    }

    #[test]
    fn what_is_built_in_needs_no_file() {
        let text = "builtin crc32c\ninsmod /m/dummy.ko numdummies=0 \ninsmod /m/veth.ko \n";
        let files: Vec<_> = insmod_lines(text).collect();
        assert_eq!(files, [Path::new("/m/dummy.ko"), Path::new("/m/veth.ko")]);
    }
}
