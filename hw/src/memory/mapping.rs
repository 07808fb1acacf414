//! A mapping and its builder.

use super::error::MemoryError;
use super::pages::{PageKind, Pages, Thp};
use super::region::Region;
use super::size::Size;
use super::{lock, numa, shared, smaps};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Memory of our own, zeroed by the kernel, all of it present: anonymous or shared (a memfd).
///
/// It is memory and nothing else: any thread may hold it, and nobody gets a reference into it but
/// through `unsafe` functions, because devices and peers write to it. Dropping it unmaps it.
///
/// **Fork.** A child gets private memory copy-on-write: afterwards the parent's first write to each
/// page faults and may move it, away from what a device was told. Do not fork with anonymous
/// regions registered unless the child execs at once, or see ibv_fork_init(3).
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    kind: PageKind,
    node: Option<u32>,
    locked: bool,
    fd: Option<OwnedFd>,
}

/// How a [`Mapping`] is to be made.
#[derive(Clone, Debug)]
#[must_use = "nothing is mapped before build()"]
pub struct MappingBuilder {
    /// The memfd's name; `None` for anonymous memory.
    name: Option<String>,
    len: usize,
    pages: Pages,
    node: Option<u32>,
    lock: bool,
}

impl MappingBuilder {
    fn new(name: Option<String>, len: usize) -> Self {
        Self {
            name,
            len,
            pages: Pages::Auto,
            node: None,
            lock: false,
        }
    }

    /// The pages to use. Without this, [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Takes the memory from one NUMA node, and from no other: the device's own, as a rule
    /// (`/sys/class/infiniband/<device>/device/numa_node`).
    pub fn numa_node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Locks the memory, mlock(2), so that it is never swapped out. Registered memory is pinned
    /// anyway; this is for memory that a peer or the processor alone uses. Counts against
    /// `RLIMIT_MEMLOCK`, see [`memlock_limit`](super::memlock_limit).
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Maps the region and touches every page of it.
    ///
    /// All memory is taken here, so this lasts as long as the kernel needs to zero it, and asking
    /// for more than the machine has free may wake the OOM killer.
    ///
    /// Of hugetlb pages, mmap(2) already takes a promise for the whole region, or fails; the pages
    /// themselves are taken right after, because the promise is per machine, and a bound node or a
    /// cgroup can still be short.
    ///
    /// # Errors
    ///
    /// With [`Pages::Auto`] those of base pages, the last resort; with other pages also that they
    /// cannot be had. Nothing stays mapped, locked or open.
    pub fn build(self) -> Result<Mapping, MemoryError> {
        if let Some(node) = self.node {
            numa::check_node(node)?;
        }
        let mut result = Err(MemoryError::ZeroLength);
        for kind in self.pages.candidates(self.len) {
            result = self.build_of(kind);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn build_of(&self, kind: PageKind) -> Result<Mapping, MemoryError> {
        let len = kind.round_up(self.len)?;
        if self.lock {
            lock::check_now(len)?;
        }
        let (fd, region) = match &self.name {
            Some(name) => {
                let (fd, region) = shared::create(name, kind, len, self.node)?;
                (Some(fd), region)
            }
            None => (None, anonymous(kind, len, self.node)?),
        };
        if let Some(node) = self.node {
            numa::bind(&region, node)?;
        }
        if let Err(source) = region.populate() {
            // First give back what was had, so that the error counts it as free.
            drop(region);
            drop(fd);
            return Err(if kind.is_hugetlb() {
                kind.shortage(len, self.node, source)
            } else {
                MemoryError::Os {
                    doing: format!("take {} of memory", Size(len as u64)),
                    source,
                }
            });
        }
        if self.lock {
            lock::lock(&region)?;
        }
        Ok(Mapping {
            region,
            kind,
            node: self.node,
            locked: self.lock,
            fd,
        })
    }
}

fn anonymous(kind: PageKind, len: usize, node: Option<u32>) -> Result<Region, MemoryError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let huge = match kind {
        PageKind::Huge1G => libc::MAP_HUGETLB | libc::MAP_HUGE_1GB,
        PageKind::Huge2M => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
        PageKind::Transparent | PageKind::Base => {
            let failed = |source| MemoryError::Os {
                doing: format!("map {} of memory", Size(len as u64)),
                source,
            };
            if kind == PageKind::Transparent {
                Thp::Anonymous.check()?;
            }
            let region = Region::guarded(len, kind.size()).map_err(failed)?;
            if kind == PageKind::Transparent {
                region.advise_huge().map_err(failed)?;
            }
            return Ok(region);
        }
    };
    Region::new(len, flags | huge, None).map_err(|cause| kind.shortage(len, node, cause))
}

impl Mapping {
    /// A private region of at least `len` bytes.
    pub fn anonymous(len: usize) -> MappingBuilder {
        MappingBuilder::new(None, len)
    }

    /// A region of at least `len` bytes that other processes can map: they get its descriptor,
    /// [`fd`](Self::fd), and call [`Mapping::from_fd`]. `name` is only for people, who see it as
    /// `/memfd:name` in `/proc/<pid>/maps`. The length is sealed: nobody can change it any more.
    pub fn shared(name: &str, len: usize) -> MappingBuilder {
        MappingBuilder::new(Some(name.to_owned()), len)
    }

    /// A region that someone else made.
    pub(super) fn of_descriptor(region: Region, kind: PageKind, fd: OwnedFd) -> Self {
        Self {
            region,
            kind,
            node: None,
            locked: false,
            fd: Some(fd),
        }
    }

    /// The first byte: aligned to the page size, readable and writable for [`len`](Self::len)
    /// bytes, as long as `self` lives. Whoever keeps the pointer, a device that has the region
    /// registered included, must be done with it before `self` is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.start().as_ptr()
    }

    /// The length in bytes: what was asked for, in whole pages. Never 0.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a region of 0 bytes cannot be made"
    )]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The pages that the region got.
    pub fn page_kind(&self) -> PageKind {
        self.kind
    }

    /// How many bytes of the region are mapped by huge pages now. For hugetlb pages that is all of
    /// it; for [`PageKind::Transparent`] it is what the kernel could find, and may grow (khugepaged)
    /// or shrink. Reads `/proc/self/smaps`: for set-up and for people.
    ///
    /// # Errors
    ///
    /// [`MemoryError::File`] if that file cannot be read.
    pub fn huge_now(&self) -> Result<usize, MemoryError> {
        smaps::huge_bytes(self.as_ptr().addr(), self.len()).map_err(|source| MemoryError::File {
            path: "/proc/self/smaps".into(),
            source,
        })
    }

    /// The NUMA node to which the region was bound when it was made, if any. Where a page really
    /// is: [`numa_node_of`](super::numa_node_of).
    pub fn numa_node(&self) -> Option<u32> {
        self.node
    }

    /// Whether the region was locked when it was made.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// The memfd of a shared region, to pass to [`Mapping::from_fd`] elsewhere; `None` for an
    /// anonymous one. It is closed when this process execs another program.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The region's bytes.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, nobody may write to the region: no thread, no process that
    /// shares it, no device.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is mapped and readable for len bytes, at most isize::MAX, as long as
        // self lives; that nobody writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The region's bytes, to change.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, nobody else may read or write the region: no thread, no process
    /// that shares it, no device.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the region is mapped and writable for len bytes, at most isize::MAX, as long as
        // self lives; that nobody else uses it is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

/// A line for people: `128 MiB in 64 hugetlb pages of 2 MiB, on NUMA node 0, locked`. Reads
/// `/proc/self/smaps` for transparent huge pages.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = self.kind.size();
        let pages = self.len().div_ceil(page);
        let s = if pages == 1 { "" } else { "s" };
        let page = Size(page as u64);
        write!(f, "{}", Size(self.len() as u64))?;
        match self.kind {
            PageKind::Huge1G | PageKind::Huge2M => {
                write!(f, " in {pages} hugetlb page{s} of {page}")?;
            }
            PageKind::Transparent => match self.huge_now() {
                Ok(bytes) => {
                    let bytes = Size(bytes as u64);
                    write!(
                        f,
                        " with transparent hugepages ({bytes} backed by them now)"
                    )?;
                }
                Err(_) => f.write_str(" with transparent hugepages (how much is not known)")?,
            },
            PageKind::Base => write!(f, " in {pages} base page{s} of {page}")?,
        }
        if let Some(node) = self.node {
            write!(f, ", on NUMA node {node}")?;
        }
        if self.fd.is_some() {
            f.write_str(", shared")?;
        }
        if self.locked {
            f.write_str(", locked")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
