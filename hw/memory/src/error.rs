//! Errors of setting up memory.

use super::limits::Advice;
use super::pages::pool_dir;
use super::size::Size;
use std::path::PathBuf;
use std::{fmt, io};

/// Why memory could not be set up. The text (`Display`) says what to do about it, and includes that of the
/// cause: there is no `Error::source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of no bytes was asked for.
    #[error("a region of 0 bytes: ask for at least 1")]
    ZeroLength,
    /// The length, rounded up to whole pages, is more than an address space can hold.
    #[error(
        "{len} bytes in whole pages of {} is more than an address space holds: ask for less",
        Size(*.page as u64)
    )]
    TooLarge {
        /// The length asked for, in bytes.
        len: usize,
        /// The page size to which it was rounded, in bytes.
        page: usize,
    },
    /// The pool of hugetlb pages is too small.
    #[error(fmt = no_huge_pages)]
    NoHugePages {
        /// The page size, in bytes.
        page: usize,
        /// Pages that the region needs.
        need: usize,
        /// Pages that are free and not reserved for other mappings.
        free: usize,
        /// The pool size that would suffice, in pages.
        wanted: usize,
        /// The NUMA node to which the region was to be bound.
        node: Option<u32>,
    },
    /// The kernel has no hugetlb pages of this size at all.
    #[error(
        "no {} hugepages: there is no {}, so the kernel has none of this size, or /sys is not mounted \
         here: use another size, or AUTO pages",
        Size(*.page as u64),
        pool_dir(*.page, None).display()
    )]
    HugePagesUnsupported {
        /// The page size, in bytes.
        page: usize,
    },
    /// Transparent huge pages are switched off.
    #[error("transparent hugepages are off: echo {wanted} > {setting}, or use AUTO pages")]
    TransparentOff {
        /// The file of the setting.
        setting: &'static str,
        /// The value to write there.
        wanted: &'static str,
    },
    /// The NUMA node does not exist, or is not online.
    #[error("there is no NUMA node {node}: use one of {}", list(.online))]
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// The nodes that are online.
        online: Vec<u32>,
    },
    /// `RLIMIT_MEMLOCK` is too low to lock the region.
    #[error(fmt = memlock_limit)]
    MemlockLimit {
        /// The limit, in bytes.
        limit: u64,
        /// What the process has already locked, in bytes.
        locked: u64,
        /// What the region needs, in bytes.
        need: u64,
    },
    /// `RLIMIT_FSIZE` is too low for shared memory, which is a file.
    #[error(
        "RLIMIT_FSIZE is {}, and shared memory of {} is a file: raise it with `ulimit -f` or in \
         /etc/security/limits.conf",
        Size(*.limit), Size(*.need)
    )]
    FileLimit {
        /// The limit, in bytes.
        limit: u64,
        /// What the memory needs, in bytes.
        need: u64,
    },
    /// Memory to be registered cannot be accessed.
    #[error(fmt = no_access)]
    NoAccess {
        /// The address of the first page that cannot be accessed.
        page: usize,
        /// Whether it was to be written, or only read.
        write: bool,
        /// The error of the call that looked.
        r#source: io::Error,
    },
    /// The name of a shared region contains a NUL byte or is longer than 249 bytes.
    #[error("the name of a shared region must be at most 249 bytes and hold no NUL byte")]
    BadName,
    /// The descriptor is not a memfd with the seals `F_SEAL_SHRINK` and `F_SEAL_GROW`.
    #[error(
        "the descriptor is not a memfd sealed with F_SEAL_SHRINK and F_SEAL_GROW, so its owner \
         could shorten it: use that of a shared mapping of bellwire, or seal it"
    )]
    NotSealed,
    /// The file behind the descriptor does not have the expected length.
    #[error(
        "the descriptor's file is {actual} bytes long, not {expected}: pass the length of its \
         creator's mapping"
    )]
    WrongLength {
        /// The expected length, in bytes.
        expected: usize,
        /// The file's length, in bytes.
        actual: u64,
    },
    /// A file could not be opened or mapped.
    #[error("cannot map {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        r#source: io::Error,
    },
    /// A system call failed for a reason that has no variant of its own.
    #[error("cannot {doing}: {source}{}", Advice::of(.source))]
    Os {
        /// What the call was to do; completes the sentence "cannot …".
        doing: String,
        /// The cause.
        r#source: io::Error,
    },
}

fn no_huge_pages(
    page: &usize,
    need: &usize,
    free: &usize,
    wanted: &usize,
    node: &Option<u32>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "no free {} hugepages", Size(*page as u64))?;
    if let Some(node) = node {
        write!(f, " on NUMA node {node}")?;
    }
    let pool = pool_dir(*page, *node).join("nr_hugepages");
    let pool = pool.display();
    write!(
        f,
        " (need {need}, {free} free): echo {wanted} > {pool}, or use AUTO pages"
    )
}

fn memlock_limit(limit: &u64, locked: &u64, need: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "RLIMIT_MEMLOCK is {}", Size(*limit))?;
    if *locked > 0 {
        write!(f, " ({} of it in use)", Size(*locked))?;
    }
    write!(
        f,
        ", the region needs {}: raise it with `ulimit -l` or in /etc/security/limits.conf",
        Size(*need)
    )
}

fn no_access(
    page: &usize,
    write: &bool,
    source: &io::Error,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (done, advice) = match write {
        true => (
            "written",
            "register memory that is mapped and writable, or ask for no right to write",
        ),
        false => ("read", "register memory that is mapped and readable"),
    };
    write!(
        f,
        "the page at {page:#x} of the memory cannot be {done}: {source} ({advice})"
    )
}

fn list(nodes: &[u32]) -> String {
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    nodes.join(", ")
}

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
                 /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or use AUTO pages",
            ),
            (
                huge(Some(1)),
                "no free 2 MiB hugepages on NUMA node 1 (need 64, 12 free): echo 70 > \
                 /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages, \
                 or use AUTO pages",
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
                MemoryError::FileLimit {
                    limit: 4 << 20,
                    need: 6 << 20,
                },
                "RLIMIT_FSIZE is 4 MiB, and shared memory of 6 MiB is a file: raise it with \
                 `ulimit -f` or in /etc/security/limits.conf",
            ),
            (
                MemoryError::NoAccess {
                    page: 0x7000,
                    write: true,
                    source: std::io::Error::from_raw_os_error(libc::EFAULT),
                },
                "the page at 0x7000 of the memory cannot be written: Bad address (os error 14) \
                 (register memory that is mapped and writable, or ask for no right to write)",
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
