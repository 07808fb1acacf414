//! The kernel's statistics about a range of this process's address space.

use std::{fs, io};

/// How many bytes of `[start, start + len)` are mapped by huge pages now: transparent ones
/// (anonymous or shmem) and hugetlb ones. Source: proc_pid_smaps(5).
pub(super) fn huge_bytes(start: usize, len: usize) -> io::Result<usize> {
    let text = fs::read_to_string("/proc/self/smaps")?;
    Ok(sum_huge(&text, start, start + len))
}

/// Sums the huge pages of the areas that overlap `[start, end)`. A [`Region`](super::region::Region) never
/// shares an area with other memory, so no area is counted partially.
fn sum_huge(smaps: &str, start: usize, end: usize) -> usize {
    const HUGE: [&str; 4] = [
        "AnonHugePages:",
        "ShmemPmdMapped:",
        "Shared_Hugetlb:",
        "Private_Hugetlb:",
    ];
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((from, to)) = area(first) {
            inside = from < end && start < to;
        } else if inside && HUGE.contains(&first) {
            kib += words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    kib << 10
}

/// The bounds at the start of an area's first line: `7f00-7f80`.
fn area(word: &str) -> Option<(usize, usize)> {
    let (from, to) = word.split_once('-')?;
    let hex = |s| usize::from_str_radix(s, 16).ok();
    Some((hex(from)?, hex(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00200000-00400000 rw-p 00000000 00:00 0
Size:               2048 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr mr
00400000-00800000 rw-s 00000000 00:01 7    /memfd:a-b (deleted)
AnonHugePages:         0 kB
ShmemPmdMapped:     4096 kB
Shared_Hugetlb:        0 kB
00a00000-00c00000 rw-p 00000000 00:0f 9    /anon_hugepage (deleted)
Private_Hugetlb:    2048 kB
";

    #[test]
    fn only_overlapping_areas_count() {
        const M: usize = 1 << 20;
        assert_eq!(sum_huge(SMAPS, 2 * M, 4 * M), 2 * M);
        assert_eq!(sum_huge(SMAPS, 4 * M, 8 * M), 4 * M);
        assert_eq!(sum_huge(SMAPS, 8 * M, 10 * M), 0);
        assert_eq!(sum_huge(SMAPS, 10 * M, 12 * M), 2 * M);
        assert_eq!(sum_huge(SMAPS, 0, 16 * M), 8 * M);
    }

    #[test]
    fn the_stack_is_in_no_huge_page_that_we_asked_for() {
        let here = 0u8;
        let at = (&raw const here).addr();
        // A stack may use transparent huge pages only if they are always enabled.
        let always = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|s| s.contains("[always]"));
        let huge = huge_bytes(at, 1).unwrap();
        assert!(always || huge == 0, "{huge}");
    }
}
