//! RDMA devices of the kernel that libibverbs does not list, and the reason why it does not.
//!
//! libibverbs silently leaves out a device whose device node it cannot reach, and at most prints a warning to
//! standard error if it has no provider for a device. This module looks where libibverbs does: at
//! the class in sysfs and the nodes in `/dev/infiniband`. For a device that is listed and cannot be opened,
//! it checks whether the node can be opened.
//!
//! The text of each cause says what to do. It is in `Device::list` and in `Error::UnknownDevice`; in C
//! `bw_last_error` returns it once `bw_device_at` has reached the end of the list.

use bellwire_provider::source::Cause;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The sysfs class of the device nodes that programs open.
const CLASS: &str = "class/infiniband_verbs";

/// The directory of the device nodes.
const NODES: &str = "/dev/infiniband";

/// A device of the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The name that [`Device::open`](crate::Device::open) takes.
    pub name: String,
    /// The name of its device node.
    node: OsString,
}

/// Where sysfs is mounted. Like libibverbs, this follows the variable SYSFS_PATH, unless the program runs
/// with the rights of another user (set-user-ID).
fn sysfs() -> PathBuf {
    let own = rustix::process::getuid() == rustix::process::geteuid();
    let named = std::env::var_os("SYSFS_PATH").filter(|_| own);
    named.map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

/// The kernel's devices that programs can open, by name; `None`: the kernel has no such class.
pub(super) fn devices() -> Option<Vec<Kernel>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir(sysfs().join(CLASS)).ok()?.flatten() {
        // Entries that are not devices, such as the version of the interface, have no such file.
        if let Ok(name) = fs::read_to_string(entry.path().join("ibdev")) {
            devices.push(Kernel {
                name: name.trim_end().to_owned(),
                node: entry.file_name(),
            });
        }
    }
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    Some(devices)
}

/// Why no devices are visible, where [`devices`] returns `None`.
pub(super) fn why_none() -> Cause {
    let class = sysfs().join("class");
    match fs::read_dir(&class) {
        Ok(_) => Cause::NoKernelSupport,
        Err(error) => Cause::NoSysfs {
            reason: format!("{}: {error}", class.display()),
        },
    }
}

impl Kernel {
    fn path(&self) -> PathBuf {
        Path::new(NODES).join(&self.node)
    }

    fn ibdev(&self) -> PathBuf {
        sysfs().join("class/infiniband").join(&self.name)
    }

    /// The kernel driver of the underlying device. Devices without hardware have none.
    pub fn driver(&self) -> Option<String> {
        let driver = fs::read_link(self.ibdev().join("device/driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Why libibverbs does not list it.
    pub fn why_unlisted(&self) -> Cause {
        let is_missing = |error: io::Error| error.kind() == ErrorKind::NotFound;
        if fs::metadata(self.ibdev()).is_err_and(is_missing) {
            return Cause::OtherNamespace;
        }
        let path = || self.path().display().to_string();
        match fs::metadata(self.path()).map_err(|error| error.kind()) {
            Err(ErrorKind::PermissionDenied) => Cause::NoPermission { path: path() },
            Err(_) if !Path::new(NODES).exists() => Cause::NoNodes,
            Err(_) => Cause::NoNode { path: path() },
            Ok(_) => Cause::NoProvider {
                driver: self.driver(),
            },
        }
    }

    /// The reason, if the device is listed and cannot be opened because of its node: providers do not always
    /// report that.
    pub fn why_closed(&self) -> Option<Cause> {
        let node = fs::File::options().read(true).write(true).open(self.path());
        let (error, path) = (node.err()?, self.path().display().to_string());
        match error.raw_os_error()? {
            libc::EACCES => Some(Cause::NoPermission { path }),
            libc::EPERM => Some(Cause::Forbidden {
                reason: format!("open {path}: {error}"),
            }),
            _ => None,
        }
    }
}
