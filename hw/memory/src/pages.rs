//! Page sizes: those that can be requested, those that a region has, and the kernel's pools.

use super::error::MemoryError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

/// The pages to request for a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The largest pages available: 1 GiB hugetlb, 2 MiB hugetlb, transparent huge pages, base pages. A kind
    /// is tried only if the region fills at least one page of it.
    #[default]
    Auto,
    /// 1 GiB hugetlb pages, or an error.
    Huge1G,
    /// 2 MiB hugetlb pages, or an error.
    Huge2M,
    /// Memory aligned to huge pages (2 MiB on x86-64) and advised (`MADV_HUGEPAGE`), or an error if the
    /// kernel's setting forbids it.
    /// For the part that huge pages actually back see [`Mapping::huge_now`](super::Mapping::huge_now).
    Transparent,
    /// The machine's base pages (4 KiB on x86-64).
    Base,
}

impl Pages {
    /// The page kinds to try for a region of `len` bytes, best first. Never empty.
    pub(super) fn candidates(self, len: usize) -> impl Iterator<Item = PageKind> {
        let kinds: &[PageKind] = match self {
            Self::Auto => &[
                PageKind::Huge1G,
                PageKind::Huge2M,
                PageKind::Transparent,
                PageKind::Base,
            ],
            Self::Huge1G => &[PageKind::Huge1G],
            Self::Huge2M => &[PageKind::Huge2M],
            Self::Transparent => &[PageKind::Transparent],
            Self::Base => &[PageKind::Base],
        };
        kinds
            .iter()
            .copied()
            .filter(move |k| self != Self::Auto || *k == PageKind::Base || len >= k.size())
    }
}

/// The pages that a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// 1 GiB hugetlb pages.
    Huge1G,
    /// 2 MiB hugetlb pages.
    Huge2M,
    /// Base pages, with the advice to the kernel to back them by huge pages.
    Transparent,
    /// Base pages.
    Base,
}

impl PageKind {
    /// The page size in bytes. For [`Transparent`](Self::Transparent), the size of the huge pages to which
    /// the region is aligned and its length rounded up: 2 MiB, 32 MiB where base pages have 16 KiB, 512 MiB
    /// where they have 64 KiB.
    pub fn size(self) -> usize {
        match self {
            Self::Huge1G => 1 << 30,
            Self::Huge2M => 2 << 20,
            Self::Transparent => transparent_page(),
            Self::Base => base_page(),
        }
    }

    /// Whether the pages come from the hugetlb pool, which the administrator fills.
    pub fn is_hugetlb(self) -> bool {
        matches!(self, Self::Huge1G | Self::Huge2M)
    }

    /// `len` rounded up to whole pages of this kind.
    pub(super) fn round_up(self, len: usize) -> Result<usize, MemoryError> {
        if len == 0 {
            return Err(MemoryError::ZeroLength);
        }
        let page = self.size();
        len.checked_next_multiple_of(page)
            // Rust objects, and therefore slices of the region, are at most isize::MAX bytes.
            .filter(|&rounded| rounded <= isize::MAX as usize)
            .ok_or(MemoryError::TooLarge { len, page })
    }

    /// The error for hugetlb pages of this kind that are not available, with the counts of the pool.
    pub(super) fn shortage(self, len: usize, node: Option<u32>, cause: io::Error) -> MemoryError {
        let page = self.size();
        let need = len / page;
        match Pool::read(page, node) {
            Err(_) => MemoryError::HugePagesUnsupported { page },
            Ok(pool) if pool.available() < need => MemoryError::NoHugePages {
                page,
                need,
                free: pool.available(),
                wanted: pool.total - pool.available() + need,
                node,
            },
            // The pool has enough pages, so another limit forbids it, such as a cgroup's hugetlb.*.max.
            Ok(_) => MemoryError::Os {
                doing: format!("take {need} hugetlb pages of {} KiB", page >> 10),
                source: cause,
            },
        }
    }
}

/// The size of the machine's base pages, in bytes.
pub(super) fn base_page() -> usize {
    rustix::param::page_size()
}

/// The size of transparent huge pages, in bytes.
fn transparent_page() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only the number matters. Not a `OnceLock`: a child of fork(2) would wait for a thread of its parent
    // that determines the size.
    let known = SIZE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let size = {
        let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
        huge_page(fs::read_to_string(path).ok().as_deref(), base_page())
    };
    SIZE.store(size, Ordering::Relaxed);
    size
}

/// The size of transparent huge pages, from what the kernel says. A kernel before 4.10, or without such
/// pages, says nothing: then, what a middle table of page table entries covers.
fn huge_page(said: Option<&str>, page: usize) -> usize {
    let said = said.and_then(|text| text.trim().parse().ok());
    said.filter(|size: &usize| size.is_power_of_two() && *size >= page)
        .unwrap_or(page / size_of::<u64>() * page)
}

/// The sysfs directory of the hugetlb pool of pages of `page` bytes.
/// Source: Linux Documentation/admin-guide/mm/hugetlbpage.rst.
pub(super) fn pool_dir(page: usize, node: Option<u32>) -> PathBuf {
    let pool = format!("hugepages-{}kB", page >> 10);
    match node {
        None => PathBuf::from("/sys/kernel/mm/hugepages").join(pool),
        Some(n) => PathBuf::from(format!("/sys/devices/system/node/node{n}/hugepages")).join(pool),
    }
}

/// A hugetlb pool's counts, in pages.
pub(super) struct Pool {
    pub total: usize,
    free: usize,
    /// Free pages reserved for mappings that have not populated them yet.
    reserved: usize,
}

impl Pool {
    pub(super) fn read(page: usize, node: Option<u32>) -> io::Result<Self> {
        let dir = pool_dir(page, node);
        let count = |name: &str| -> io::Result<usize> {
            let text = fs::read_to_string(dir.join(name))?;
            text.trim().parse().map_err(io::Error::other)
        };
        Ok(Self {
            total: count("nr_hugepages")?,
            free: count("free_hugepages")?,
            // The kernel counts reservations per machine, not per node.
            reserved: if node.is_none() {
                count("resv_hugepages")?
            } else {
                0
            },
        })
    }

    /// The number of pages that a new mapping could take. Never more than `total`, although the three counts
    /// are not read atomically.
    pub(super) fn available(&self) -> usize {
        self.free.saturating_sub(self.reserved).min(self.total)
    }
}

/// The kind of memory that a setting of transparent huge pages applies to.
/// Source: Linux Documentation/admin-guide/mm/transhuge.rst.
#[derive(Clone, Copy)]
pub(super) enum Thp {
    /// Anonymous memory.
    Anonymous,
    /// memfd and tmpfs.
    Shmem,
}

/// The setting for the size that transparent huge pages have.
macro_rules! setting {
    ($name:literal) => {
        match transparent_page() >> 20 {
            2 => concat!(
                "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/",
                $name
            ),
            32 => concat!(
                "/sys/kernel/mm/transparent_hugepage/hugepages-32768kB/",
                $name
            ),
            _ => concat!(
                "/sys/kernel/mm/transparent_hugepage/hugepages-524288kB/",
                $name
            ),
        }
    };
}

impl Thp {
    /// `Ok` if the kernel honours `MADV_HUGEPAGE` for such memory.
    pub(super) fn check(self) -> Result<(), MemoryError> {
        let (by_size, global, wanted) = match self {
            Self::Anonymous => (
                setting!("enabled"),
                "/sys/kernel/mm/transparent_hugepage/enabled",
                "madvise",
            ),
            Self::Shmem => (
                setting!("shmem_enabled"),
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "advise",
            ),
        };
        // The setting for one page size, if the kernel has it, takes precedence over the global one. A kernel
        // built without transparent huge pages has neither file.
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (setting, text) = match read(by_size) {
            text if text.is_empty() || chosen(&text) == Some("inherit") => (global, read(global)),
            text => (by_size, text),
        };
        match chosen(&text) {
            None | Some("never" | "deny") => Err(MemoryError::TransparentOff { setting, wanted }),
            Some(_) => Ok(()),
        }
    }
}

/// The word in brackets: `always [madvise] never` chooses `madvise`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?
        .1
        .split_once(']')
        .map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_tries_only_pages_that_the_region_fills() {
        use PageKind::*;
        let tried = |len| Pages::Auto.candidates(len).collect::<Vec<_>>();
        assert_eq!(tried(1), [Base]);
        assert_eq!(tried((2 << 20) - 1), [Base]);
        assert_eq!(tried(2 << 20), [Huge2M, Transparent, Base]);
        assert_eq!(tried((1 << 30) - 1), [Huge2M, Transparent, Base]);
        assert_eq!(tried(1 << 30), [Huge1G, Huge2M, Transparent, Base]);
        let explicit = |pages: Pages| pages.candidates(1).collect::<Vec<_>>();
        assert_eq!(explicit(Pages::Huge1G), [Huge1G]);
        assert_eq!(explicit(Pages::Huge2M), [Huge2M]);
        assert_eq!(explicit(Pages::Transparent), [Transparent]);
        assert_eq!(explicit(Pages::Base), [Base]);
    }

    #[test]
    fn huge_pages_follow_from_base_pages() {
        const MIB: usize = 1 << 20;
        for (page, huge) in [
            (4 << 10, 2 * MIB),
            (16 << 10, 32 * MIB),
            (64 << 10, 512 * MIB),
        ] {
            assert_eq!(huge_page(None, page), huge);
            assert_eq!(huge_page(Some(&format!("{huge}\n")), page), huge);
            for said in ["", "0", "-1", "1000", "2M"] {
                assert_eq!(huge_page(Some(said), page), huge, "{said}");
            }
        }
        assert_eq!(huge_page(Some("1048576\n"), 4 << 10), MIB);
    }

    #[test]
    fn rounding_up_has_limits() {
        let huge = PageKind::Huge2M;
        assert!(matches!(huge.round_up(0), Err(MemoryError::ZeroLength)));
        assert_eq!(huge.round_up(1).unwrap(), 2 << 20);
        assert_eq!(huge.round_up(2 << 20).unwrap(), 2 << 20);
        assert_eq!(huge.round_up((2 << 20) + 1).unwrap(), 4 << 20);
        let last = (isize::MAX as usize) & !((2 << 20) - 1);
        assert_eq!(huge.round_up(last).unwrap(), last);
        for len in [last + 1, isize::MAX as usize, usize::MAX] {
            let error = huge.round_up(len).unwrap_err();
            assert!(matches!(error, MemoryError::TooLarge { .. }), "{error}");
            assert!(error.to_string().contains("2 MiB"), "{error}");
        }
    }

    #[test]
    fn the_bracketed_word_is_the_setting() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("always inherit madvise [never]"), Some("never"));
        assert_eq!(chosen(""), None);
        assert_eq!(chosen("[broken"), None);
    }

    #[test]
    fn a_pool_that_is_all_promised_has_nothing() {
        let pool = |free, reserved| Pool {
            total: 10,
            free,
            reserved,
        };
        assert_eq!(pool(8, 3).available(), 5);
        assert_eq!(pool(3, 8).available(), 0);
        assert_eq!(pool(12, 0).available(), 10);
    }

    #[test]
    fn a_size_that_no_kernel_has_is_unsupported() {
        assert!(Pool::read(12345 << 10, None).is_err());
    }
}
