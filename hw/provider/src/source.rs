//! The sources of devices, and why a source has no usable device.

use std::fmt;

/// The provider that executes a device's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// The software HCA.
    Soft,
    /// A device of libibverbs, driven by `ibv_wr_*` and `ibv_start_poll`, or by `ibv_post_send` and
    /// `ibv_poll_cq`.
    Verbs,
    /// A ConnectX device whose rings are accessed directly, without libibverbs.
    Mlx5,
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Soft => "soft",
            Self::Verbs => "verbs",
            Self::Mlx5 => "mlx5",
        })
    }
}

/// A source that has no device, or a device that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent {
    /// The provider of the device.
    pub source: ProviderKind,
    /// The device. `None`: the cause applies to all devices of the source.
    pub device: Option<String>,
    /// Why it cannot be used.
    pub cause: Cause,
}

/// Why a source has no device, or a device cannot be used. The text also says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// This build does not include the provider.
    NotBuilt,
    /// The library of the provider is not installed on this host.
    LibraryNotFound {
        /// The library, and the packages that contain it.
        reason: String,
    },
    /// The dynamic linker cannot load the library.
    LibraryRefused {
        /// The library, and the message of the dynamic linker.
        reason: String,
    },
    /// The library lacks a required symbol: its version is too old.
    LibraryTooOld {
        /// The library, and the symbol that it lacks.
        reason: String,
    },
    /// The kernel provides no RDMA to programs: there is no `/sys/class/infiniband_verbs`.
    NoKernelSupport,
    /// What the kernel provides is not visible: there is no `/sys/class`.
    NoSysfs {
        /// The folder that could not be read, and the error.
        reason: String,
    },
    /// The kernel has no RDMA device.
    NoDevice,
    /// There is no `/dev/infiniband`, although the kernel has devices.
    NoNodes,
    /// The device has no node in `/dev/infiniband`.
    NoNode {
        /// The path that the node would have.
        path: String,
    },
    /// This process may not open the device's node.
    NoPermission {
        /// The path of the node.
        path: String,
    },
    /// The device's node cannot be opened, although its mode may allow it (EPERM).
    Forbidden {
        /// The path of the node, and the error.
        reason: String,
    },
    /// The device is in another network namespace.
    OtherNamespace,
    /// libibverbs has no provider for the device, or cannot load it.
    NoProvider {
        /// The kernel's driver of the device, if sysfs names it.
        driver: Option<String>,
    },
    /// libibverbs cannot list devices.
    CannotList {
        /// The error of libibverbs.
        reason: String,
    },
    /// The device exists but cannot be opened.
    CannotOpen {
        /// What failed, and why.
        reason: String,
    },
    /// The device can be used but has no active port, which is why `"auto"` did not choose it.
    NoActivePort {
        /// The number of its ports.
        ports: u8,
    },
}

/// Why `"auto"` chose this device: `Device::choice`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The device is the first one with an active port.
    ActivePort {
        /// The first active port.
        port: u8,
        /// The devices before it, and why they were not chosen.
        before: Vec<Absent>,
    },
    /// The software HCA: no other device has an active port.
    Fallback {
        /// The other devices, and why they were not chosen.
        before: Vec<Absent>,
    },
}

impl Absent {
    /// This cause, for a device of this provider or for all of its devices.
    pub fn new(source: ProviderKind, device: Option<String>, cause: Cause) -> Self {
        Self {
            source,
            device,
            cause,
        }
    }

    /// This cause, for all devices of libibverbs.
    pub fn verbs(cause: Cause) -> Self {
        Self {
            source: ProviderKind::Verbs,
            device: None,
            cause,
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            device,
            cause,
        } = self;
        match device {
            Some(device) => write!(f, "{source}: {device}: {cause}"),
            None => write!(f, "{source}: {cause}"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => f.write_str(
                "this build has no devices of libibverbs: build with the feature \"hardware\"",
            ),
            Self::LibraryNotFound { reason }
            | Self::LibraryRefused { reason }
            | Self::LibraryTooOld { reason }
            | Self::CannotOpen { reason } => f.write_str(reason),
            Self::NoKernelSupport => f.write_str(
                "this kernel has no RDMA for programs, for there is no /sys/class/infiniband_verbs: load \
                 ib_uverbs (`modprobe ib_uverbs`), and the device's driver",
            ),
            Self::NoDevice => f.write_str(
                "the kernel has no RDMA device: load the device's driver (`rdma link` shows devices)",
            ),
            Self::NoNodes => f.write_str(
                "there is no /dev/infiniband: hand it into the container (`--device /dev/infiniband`), or \
                 have udev make it",
            ),
            Self::NoNode { path } => write!(
                f,
                "there is no {path}: hand it into the container (`--device {path}`), or have udev make it"
            ),
            Self::NoPermission { path } => write!(
                f,
                "no permission to open {path}: run as a user or in a group that may (`ls -l {path}`), or \
                 hand it into the container (`--device {path}`)"
            ),
            Self::NoSysfs { reason } => write!(
                f,
                "whether the kernel has RDMA devices is not visible: {reason}: mount /sys where this program \
                 runs"
            ),
            Self::Forbidden { reason } => write!(
                f,
                "{reason}: this is not the node's mode; check the device rules of the container \
                 (`--device`), and the seccomp filter or security module that the process runs under"
            ),
            Self::OtherNamespace => f.write_str(
                "it is in another network namespace: run there, or bring it here (`rdma dev set`)",
            ),
            Self::NoProvider { driver } => {
                f.write_str("libibverbs has no provider for it that can be loaded")?;
                if let Some(driver) = driver {
                    write!(f, " (the kernel's driver is {driver})")?;
                }
                f.write_str(
                    ": install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL); \
                     libibverbs warns on standard error, and says more with IBV_SHOW_WARNINGS=1",
                )
            }
            Self::CannotList { reason } => write!(
                f,
                "libibverbs cannot list devices: {reason}; it warns on standard error"
            ),
            Self::NoActivePort { ports } => {
                match ports {
                    1 => f.write_str("its port is not active")?,
                    _ => write!(f, "none of its {ports} ports is active")?,
                }
                f.write_str(
                    ": take the link up (`ip link set`, `rdma link` shows it); on InfiniBand a subnet \
                     manager has to run",
                )
            }
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = match self {
            Self::ActivePort { port, before } => {
                write!(
                    f,
                    "the first device with an active port, which is port {port}"
                )?;
                before
            }
            Self::Fallback { before } => {
                f.write_str("there is no other device with an active port")?;
                before
            }
        };
        list(f, before)
    }
}

/// Appends each entry after a semicolon.
pub(crate) fn list(f: &mut fmt::Formatter<'_>, absent: &[Absent]) -> fmt::Result {
    absent.iter().try_for_each(|absent| write!(f, "; {absent}"))
}

#[cfg(test)]
mod tests;
