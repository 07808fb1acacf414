//! Whether the requested memory is available. It is populated at once; if the kernel detects too late that
//! there is not enough, it kills the process.

use super::error::MemoryError;
use super::size::Size;
use std::path::Path;
use std::{fs, io};

/// What is not looked for: no process runs where there is less, and looking takes longer than mapping it.
const SMALL: usize = 1 << 20;

/// Checks that `len` bytes are available.
///
/// # Errors
/// [`MemoryError::Os`] (ENOMEM) where `len` bytes of base pages are more than there are.
pub(super) fn check(len: usize) -> Result<(), MemoryError> {
    if len <= SMALL {
        return Ok(());
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit(&groups, |path| fs::read_to_string(path).ok());
    // An unknown limit is not checked here: the kernel checks it.
    let most = (free(&meminfo).into_iter()).chain(limit).min();
    match most {
        Some(most) if len as u64 > most => Err(MemoryError::Os {
            doing: format!(
                "take {} of memory: there are {} at the most",
                Size(len as u64),
                Size(most)
            ),
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        }),
        _ => Ok(()),
    }
}

/// The memory available without taking it from other processes, as proc_meminfo(5) estimates it, plus free
/// swap.
fn free(meminfo: &str) -> Option<u64> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib = line.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
        kib.checked_mul(1024)
    };
    bytes("MemAvailable:")?.checked_add(bytes("SwapFree:").unwrap_or(0))
}

/// The lowest limit of the cgroups that the process is in (cgroup v2, `memory.max`).
fn limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    (root.join(own).ancestors())
        .take_while(|group| group.starts_with(root))
        .filter_map(|group| read(&group.join("memory.max"))?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_what_is_available_and_swap() {
        let meminfo = "MemTotal:  9 kB\nMemAvailable:    5 kB\nSwapFree: 2 kB\n";
        assert_eq!(free(meminfo), Some(7 * 1024));
        assert_eq!(free("MemAvailable: 5 kB\n"), Some(5 * 1024));
        assert_eq!(free("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn the_lowest_limit_of_the_groups_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("4096\n".to_owned()),
            "/sys/fs/cgroup/memory.max" => Some("8192\n".to_owned()),
            _ => None,
        };
        assert_eq!(limit("1:cpu:/x\n0::/a/b\n", read), Some(4096));
        assert_eq!(limit("0::/\n", read), Some(8192));
        assert_eq!(limit("1:cpu:/x\n", read), None);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let error = check(1 << 50).unwrap_err();
        let MemoryError::Os { source, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOMEM), "{error}");
        check(1 << 20).unwrap();
    }
}
