//! Locking memory, and the limit on it. Source: mlock(2), getrlimit(2), capabilities(7).

use super::error::MemoryError;
use super::limits::soft;
use super::region::{self, Region};
use super::size::Size;
use std::{fs, io};

/// How many bytes this process may lock, or `None` if there is no limit: `RLIMIT_MEMLOCK` is infinite, or the
/// calling thread has `CAP_IPC_LOCK`. Memory registered with a device counts against the same limit, but
/// separately from locked memory.
pub fn memlock_limit() -> Option<u64> {
    if Status::read().is_ok_and(|s| s.may_lock_all) {
        None
    } else {
        rlimit()
    }
}

/// The soft `RLIMIT_MEMLOCK`, `None` if infinite.
fn rlimit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable and has the type that getrlimit fills in.
    region::check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) })
        .expect("getrlimit fails only for an unknown resource or a bad address");
    soft(&limit)
}

/// The kernel's rule: whether a process that has `locked` bytes locked may lock `need` more bytes under
/// `limit` (`None`: no limit).
fn check(limit: Option<u64>, locked: u64, need: u64) -> Result<(), MemoryError> {
    match limit {
        Some(limit) if locked.saturating_add(need) > limit => Err(MemoryError::MemlockLimit {
            limit,
            locked,
            need,
        }),
        _ => Ok(()),
    }
}

/// Whether this thread may lock `need` more bytes. Called before they are mapped.
pub(super) fn check_now(need: usize) -> Result<(), MemoryError> {
    match Status::read() {
        Ok(s) if s.may_lock_all => Ok(()),
        Ok(s) => check(rlimit(), s.locked, need as u64),
        // Without /proc the capabilities are unknown; mlock itself returns the error.
        Err(_) => Ok(()),
    }
}

/// The error of registering `need` bytes with a device if the limit prevents it: pinned memory counts against
/// the limit separately from locked memory.
pub fn pin_limit(need: u64) -> Option<MemoryError> {
    let status = Status::read().ok()?;
    let limit = rlimit().filter(|_| !status.may_lock_all);
    check(limit, status.pinned, need).err()
}

/// Locks the region.
pub(super) fn lock(region: &Region) -> Result<(), MemoryError> {
    let Err(source) = region.lock() else {
        return Ok(());
    };
    // The limit can still be the cause: another thread locked memory meanwhile, or the kernel does not honour
    // the capability (root of a user namespace).
    let locked = Status::read().map_or(0, |s| s.locked);
    check(rlimit(), locked, region.len() as u64)?;
    Err(MemoryError::Os {
        doing: format!("lock {} of memory", Size(region.len() as u64)),
        source,
    })
}

/// The fields of `/proc/thread-self/status` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// The thread has `CAP_IPC_LOCK`.
    may_lock_all: bool,
    /// Bytes that the process has locked.
    locked: u64,
    /// Bytes of the process that devices have pinned.
    pinned: u64,
}

impl Status {
    fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/status")?;
        Self::parse(&text).ok_or_else(|| io::Error::other("no CapEff or VmLck in /proc status"))
    }

    fn parse(text: &str) -> Option<Self> {
        const CAP_IPC_LOCK: u32 = 14; // linux/capability.h
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
        let effective = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        let bytes = |name| {
            let kib = field(name)?.trim().strip_suffix(" kB")?;
            Some(kib.trim().parse::<u64>().ok()? << 10)
        };
        Some(Self {
            may_lock_all: effective >> CAP_IPC_LOCK & 1 == 1,
            locked: bytes("VmLck:")?,
            pinned: bytes("VmPin:").unwrap_or(0),
        })
    }
}

// tests/memlock.rs tests that the limit takes effect, in a process without the capability.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_inclusive_and_counts_what_is_locked() {
        assert!(check(None, u64::MAX, u64::MAX).is_ok());
        assert!(check(Some(65536), 0, 65536).is_ok());
        assert!(check(Some(65536), 4096, 61440).is_ok());
        assert!(check(Some(65536), 4096, 65536).is_err());
        assert!(check(Some(u64::MAX - 1), u64::MAX, 1).is_err());
        assert!(check(Some(0), 0, 1).is_err());
    }

    #[test]
    fn the_texts_give_the_numbers() {
        assert_eq!(
            check(Some(64 << 10), 0, 128 << 20).unwrap_err().to_string(),
            "RLIMIT_MEMLOCK is 64 KiB, the region needs 128 MiB: raise it with `ulimit -l` or in \
             /etc/security/limits.conf"
        );
        assert_eq!(
            check(Some(8 << 20), 5 << 20, 4 << 20)
                .unwrap_err()
                .to_string(),
            "RLIMIT_MEMLOCK is 8 MiB (5 MiB of it in use), the region needs 4 MiB: raise it with \
             `ulimit -l` or in /etc/security/limits.conf"
        );
    }

    #[test]
    fn capability_and_count_come_from_status() {
        let status = |caps: &str| format!("Name:\tx\nVmLck:\t     12 kB\nCapEff:\t{caps}\n");
        let parsed = |caps: &str| Status::parse(&status(caps)).unwrap();
        assert!(parsed("000001ffffffffff").may_lock_all);
        assert!(parsed("0000000000004000").may_lock_all);
        assert!(!parsed("000001ffffffbfff").may_lock_all);
        assert_eq!(parsed("0000000000000000").locked, 12 << 10);
        assert_eq!(Status::parse("CapEff:\t0\n"), None);
        assert_eq!(Status::parse(&status("x")), None);
    }

    #[test]
    fn the_kernel_says_the_same_of_this_process() {
        let status = Status::read().unwrap();
        match memlock_limit() {
            None => assert!(status.may_lock_all || rlimit().is_none()),
            Some(limit) => assert_eq!((status.may_lock_all, rlimit()), (false, Some(limit))),
        }
    }
}
