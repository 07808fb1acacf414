//! To whom a fabric belongs: the user that opened it, and the namespaces in which its name is looked up. A program
//! that changes its user later remains a member.
//!
//! The GIDs of a fabric's nodes have one subnet prefix, which names the fabric, so that a node can tell that an
//! endpoint is of another fabric, and whose it is:
//!
//! ```text
//!  127        118 117            86 85         64 63                 0
//!  1111111010     user that opened  tag of the    random GUID
//!                                   fabric, not 0
//! ```

use crate::process::option;
use bellwire_provider::short::Short;
use rustix::process::{PidfdFlags, geteuid, getpid, pidfd_open};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

/// Link-local addresses (IBTA 4.1.1): the upper 10 bits.
const LINK_LOCAL: u64 = 0xfe80 << 48;
const LINK_LOCAL_BITS: u64 = 0xffc0 << 48;

const TAG_BITS: u32 = 22;

/// The number of the first user namespace (`PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: u64 = 0xefff_fffd;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The effective user.
    uid: u32,
    /// The number of the user namespace in which the user has this number; zero: the first one.
    user_namespace: u32,
    /// The cookie of the network namespace, in which names are looked up; zero before Linux 5.14.
    network: u64,
}

impl Owner {
    /// The user of this process, as it is now, for what only this process reaches.
    pub fn of_process() -> Self {
        Self {
            // Miri has no users.
            uid: if cfg!(miri) { 0 } else { geteuid().as_raw() },
            user_namespace: 0,
            network: 0,
        }
    }

    /// The user and the namespaces of this process, as they are now.
    pub fn now() -> Self {
        Self {
            user_namespace: user_namespace().unwrap_or(0),
            network: network().unwrap_or(0),
            ..Self::of_process()
        }
    }

    /// The effective user. Peers have to have the same.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The beginning of the names of this owner's sockets.
    pub fn scope(&self) -> Short<32> {
        match self.user_namespace {
            0 => Short::new(format_args!("bellwire/{}", self.uid)),
            namespace => Short::new(format_args!("bellwire/{}+{namespace:x}", self.uid)),
        }
    }

    /// The subnet prefix of this owner's fabric of this name.
    pub(crate) fn prefix(&self, name: &str) -> u64 {
        let bytes = (self.user_namespace.to_le_bytes().into_iter())
            .chain(self.network.to_le_bytes())
            .chain(name.bytes());
        // FNV-1a: all nodes have to compute the same.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let tag = (hash ^ hash >> TAG_BITS ^ hash >> (2 * TAG_BITS)) & ((1 << TAG_BITS) - 1);
        LINK_LOCAL | u64::from(self.uid) << TAG_BITS | tag.max(1)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)?;
        match self.user_namespace {
            0 => Ok(()),
            namespace => write!(f, " of user namespace {namespace}"),
        }
    }
}

/// The user whose fabric this GID is of; `None`: it is of no fabric.
pub(crate) fn user_of(gid: [u8; 16]) -> Option<u32> {
    let prefix = prefix_of(gid);
    let is_fabric = prefix & LINK_LOCAL_BITS == LINK_LOCAL && prefix & ((1 << TAG_BITS) - 1) != 0;
    is_fabric.then_some((prefix >> TAG_BITS) as u32)
}

/// The subnet prefix of a GID.
pub(crate) fn prefix_of(gid: [u8; 16]) -> u64 {
    (u128::from_be_bytes(gid) >> 64) as u64
}

/// The number of this process's user namespace; zero: the first one. `None`: unknown.
fn user_namespace() -> Option<u32> {
    /// Linux 6.11, linux/pidfd.h: works without /proc.
    const PIDFD_GET_USER_NAMESPACE: libc::c_ulong = 0xff09;
    let by_pidfd = || {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
        // SAFETY: the request takes no argument, and returns a new descriptor.
        let fd = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_USER_NAMESPACE as _, 0) };
        // SAFETY: the descriptor is new and has no other owner.
        let fd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
        Some(std::fs::File::from(fd).metadata().ok()?.ino())
    };
    let number =
        by_pidfd().or_else(|| Some(std::fs::metadata("/proc/self/ns/user").ok()?.ino()))?;
    match number {
        FIRST_USER_NAMESPACE => Some(0),
        number => u32::try_from(number).ok(),
    }
}

/// The cookie of this process's network namespace. `None`: unknown.
fn network() -> Option<u64> {
    /// Linux 5.14, asm-generic/socket.h.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = UnixDatagram::unbound().ok()?;
    option(socket.as_fd(), SO_NETNS_COOKIE, 0u64).ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_user_and_fabric() {
        let gid = |prefix: u64| (u128::from(prefix) << 64 | 7).to_be_bytes();
        let here = Owner::now();
        assert_eq!(here, Owner::now());
        for uid in [0, 1000, u32::MAX] {
            let owner = Owner { uid, ..here };
            let prefix = owner.prefix("a");
            assert_eq!(user_of(gid(prefix)), Some(uid));
            assert_eq!(prefix_of(gid(prefix)), prefix);
            assert_eq!(prefix, owner.prefix("a"));
            assert_ne!(prefix, owner.prefix("b"));
            let network = here.network ^ 1;
            assert_ne!(prefix, Owner { network, ..owner }.prefix("a"));
            let user_namespace = 4_026_532_000;
            let other = Owner {
                user_namespace,
                ..owner
            };
            assert_ne!(prefix, other.prefix("a"));
            assert_ne!(&*owner.scope(), &*other.scope());
        }
        assert_eq!(user_of(gid(LINK_LOCAL)), None);
        assert_eq!(user_of(gid(0x2001 << 48 | 1)), None);
        assert_eq!(user_of([0; 16]), None);
    }
}
