//! The architectures that a guest can have, and what is different between them.

use std::path::PathBuf;

/// The guest's processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// This machine's: its own programs run there.
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// Programs that were built across; the rest comes from Debian's packages.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// As Debian calls it.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Depends on the package of the newest kernel. Not the cloud kernel: that has no rdma_rxe.
    pub fn kernel_package(self) -> String {
        format!("linux-image-{}", self.debian())
    }

    /// The folder in the cache that keeps the kernel.
    pub fn kept_in(self) -> &'static str {
        match self {
            Self::X86_64 => "bellwire/vm",
            Self::Aarch64 => "bellwire/vm-aarch64",
        }
    }

    /// The packages that the guest's programs come from; none where it has this machine's.
    pub fn system_packages(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &[],
            Self::Aarch64 => &SYSTEM,
        }
    }

    /// QEMU with the machine.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64 -machine virt",
        }
    }

    /// The processor that QEMU emulates: with all that it can.
    pub fn processor(self) -> &'static str {
        match self {
            Self::X86_64 => "max",
            // The architecture's own way to sign addresses takes most of the time where it is emulated.
            Self::Aarch64 => "max,pauth-impdef=on",
        }
    }

    /// The first serial port.
    pub fn console(self) -> &'static str {
        match self {
            Self::X86_64 => "ttyS0",
            Self::Aarch64 => "ttyAMA0",
        }
    }

    /// Debian's busybox-static: of this machine, or of a system that was unpacked.
    pub fn busybox(self, system: Option<PathBuf>) -> PathBuf {
        system.unwrap_or_else(|| "/".into()).join("bin/busybox")
    }
}

/// What runs in a guest that cannot run this machine's programs.
const SYSTEM: [&str; 15] = [
    "busybox-static",
    "coreutils",
    "dash",
    "grep",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "perftest",
    "procps",
    "rdmacm-utils",
    "sed",
    "util-linux",
];
