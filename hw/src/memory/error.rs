//! What can go wrong while memory is set up.

use super::pages::pool_dir;
use super::size::Size;
use std::path::PathBuf;
use std::{fmt, io};

/// Why a region could not be had. The text (`Display`) says what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of no bytes was asked for.
    ZeroLength,
    /// The length, rounded up to whole pages, is more than an address space can hold.
    TooLarge {
        /// The length asked for, in bytes.
        len: usize,
        /// The page size to which it was rounded, in bytes.
        page: usize,
    },
    /// The pool of hugetlb pages is too small.
    NoHugePages {
        /// The page size, in bytes.
        page: usize,
        /// Pages that the region needs.
        need: usize,
        /// Pages that are free and not promised to anyone.
        free: usize,
        /// The pool's size that would be enough, in pages.
        wanted: usize,
        /// The NUMA node to which the region was to be bound.
        node: Option<u32>,
    },
    /// The kernel has no hugetlb pages of this size at all.
    HugePagesUnsupported {
        /// The page size, in bytes.
        page: usize,
    },
    /// Transparent huge pages are switched off.
    TransparentOff {
        /// The file of the setting.
        setting: &'static str,
        /// The value to write there.
        wanted: &'static str,
    },
    /// The NUMA node does not exist, or is not online.
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// The nodes that are online.
        online: Vec<u32>,
    },
    /// `RLIMIT_MEMLOCK` is too low to lock the region.
    MemlockLimit {
        /// The limit, in bytes.
        limit: u64,
        /// What the process has locked already, in bytes.
        locked: u64,
        /// What the region needs, in bytes.
        need: u64,
    },
    /// The name of a shared region holds a NUL byte or is longer than 249 bytes.
    BadName,
    /// The descriptor is not a memfd with the seals `F_SEAL_SHRINK` and `F_SEAL_GROW`.
    NotSealed,
    /// The file behind the descriptor is not as long as it was said to be.
    WrongLength {
        /// The length that was said, in bytes.
        expected: usize,
        /// The file's length, in bytes.
        actual: u64,
    },
    /// A file could not be opened or mapped.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A system call failed for a reason that has no case of its own.
    Os {
        /// What was being done, as the end of the sentence "cannot …".
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroLength => f.write_str("a region of 0 bytes: ask for at least 1"),
            Self::TooLarge { len, page } => write!(
                f,
                "{len} bytes in whole pages of {} is more than an address space holds: ask for less",
                Size(*page as u64)
            ),
            Self::NoHugePages {
                page,
                need,
                free,
                wanted,
                node,
            } => {
                write!(f, "no free {} hugepages", Size(*page as u64))?;
                if let Some(node) = node {
                    write!(f, " on NUMA node {node}")?;
                }
                let pool = pool_dir(*page, *node).join("nr_hugepages");
                write!(
                    f,
                    " (need {need}, {free} free): echo {wanted} > {}, or use Pages::Auto",
                    pool.display()
                )
            }
            Self::HugePagesUnsupported { page } => write!(
                f,
                "this kernel has no {} hugepages: use another size, or Pages::Auto",
                Size(*page as u64)
            ),
            Self::TransparentOff { setting, wanted } => write!(
                f,
                "transparent hugepages are off: echo {wanted} > {setting}, or use Pages::Auto"
            ),
            Self::NoSuchNode { node, online } => {
                write!(f, "there is no NUMA node {node}: use one of")?;
                for (i, n) in online.iter().enumerate() {
                    write!(f, "{}{n}", if i == 0 { " " } else { ", " })?;
                }
                Ok(())
            }
            Self::MemlockLimit {
                limit,
                locked,
                need,
            } => {
                write!(f, "RLIMIT_MEMLOCK is {}", Size(*limit))?;
                if *locked > 0 {
                    write!(f, " ({} of it in use)", Size(*locked))?;
                }
                write!(
                    f,
                    ", the region needs {}: raise it with `ulimit -l` or in \
                     /etc/security/limits.conf",
                    Size(*need)
                )
            }
            Self::BadName => f.write_str(
                "the name of a shared region must be at most 249 bytes and hold no NUL byte",
            ),
            Self::NotSealed => f.write_str(
                "the descriptor is not a memfd sealed with F_SEAL_SHRINK and F_SEAL_GROW, so its \
                 owner could cut it short under us: have it made by Mapping::shared, or seal it",
            ),
            Self::WrongLength { expected, actual } => write!(
                f,
                "the descriptor's file is {actual} bytes long, not {expected}: pass the length \
                 (Mapping::len) that its creator sees"
            ),
            Self::File { path, source } => write!(f, "cannot map {}: {source}", path.display()),
            Self::Os { doing, source } => {
                write!(f, "cannot {doing}: {source}")?;
                if source.raw_os_error() == Some(libc::ENOMEM) {
                    f.write_str(
                        " (ask for less, or look at free memory, `ulimit -v` and the cgroup's \
                         memory.max)",
                    )?;
                }
                Ok(())
            }
        }
    }
}

// No source: the text has it.
impl std::error::Error for MemoryError {}

#[cfg(test)]
mod tests {
    use super::MemoryError;

    #[test]
    fn texts_say_what_to_do() {
        let huge = |node| MemoryError::NoHugePages {
            page: 2 << 20,
            need: 64,
            free: 12,
            wanted: 70,
            node,
        };
        for (error, text) in [
            (
                huge(None),
                "no free 2 MiB hugepages (need 64, 12 free): echo 70 > \
                 /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or use Pages::Auto",
            ),
            (
                huge(Some(1)),
                "no free 2 MiB hugepages on NUMA node 1 (need 64, 12 free): echo 70 > \
                 /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages, \
                 or use Pages::Auto",
            ),
            (
                MemoryError::MemlockLimit {
                    limit: 64 << 10,
                    locked: 0,
                    need: 128 << 20,
                },
                "RLIMIT_MEMLOCK is 64 KiB, the region needs 128 MiB: raise it with `ulimit -l` or \
                 in /etc/security/limits.conf",
            ),
            (
                MemoryError::NoSuchNode {
                    node: 7,
                    online: vec![0, 1],
                },
                "there is no NUMA node 7: use one of 0, 1",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
