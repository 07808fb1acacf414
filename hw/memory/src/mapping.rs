//! Memory mappings and their builder.

use super::error::MemoryError;
use super::fork::{Fd, Own};
use super::pages::{PageKind, Pages, Thp};
use super::region::Region;
use super::shared::Name;
use super::size::Size;
use super::{available, lock, numa, shared, smaps};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Memory zeroed by the kernel and fully populated: anonymous or shared (a memfd).
///
/// A mapping may be sent to and shared between threads. References into it are available only through
/// `unsafe` functions, because devices and peers write to it. Dropping it unmaps it.
///
/// **Fork.** Shared memory does not exist in a child of fork(2), where its addresses are a hole: the child maps
/// the descriptor again, by [`Mapping::from_fd`]. Of anonymous memory a child has a copy, on write: afterwards
/// the parent's first write to each page faults. The pages that a device has registered stay the parent's:
/// since Linux 5.12 the kernel copies pinned pages for the child when it is forked. Before that, the program
/// calls ibv_fork_init(3), or sets `RDMAV_FORK_SAFE`, before it opens the first device. A child that drops a
/// mapping of its parent leaves it as it is.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    kind: PageKind,
    node: Option<u32>,
    locked: bool,
    /// Of a device's memory: children close the descriptor, so that they do not keep the memory. Dropped before it.
    _closed_in_children: Option<Fd<BorrowedFd<'static>>>,
    fd: Own<Option<OwnedFd>>,
    /// Whether the program may use the descriptor.
    lendable: bool,
}

/// The options of a new [`Mapping`].
#[derive(Clone, Debug)]
#[must_use = "nothing is mapped before build()"]
pub struct MappingBuilder {
    /// The name of the memfd; `None` for anonymous memory.
    name: Option<Name>,
    /// Whether the program may use the descriptor.
    lendable: bool,
    len: usize,
    pages: Pages,
    /// Whether [`Pages::Auto`] tries hugetlb pages.
    auto_hugetlb: bool,
    node: Option<u32>,
    lock: bool,
    in_core_files: bool,
}

impl MappingBuilder {
    fn new(name: Option<Name>, lendable: bool, len: usize) -> Self {
        Self {
            name,
            lendable,
            len,
            pages: Pages::Auto,
            auto_hugetlb: true,
            node: None,
            lock: false,
            in_core_files: false,
        }
    }

    /// The pages to use. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Takes the memory from this NUMA node only. Usually this is the device's node
    /// (`/sys/class/infiniband/<device>/device/numa_node`).
    pub fn numa_node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Locks the memory (mlock(2)), so that it is never swapped out. Registered memory is pinned anyway; this
    /// is for memory that only a peer or the processor uses. It counts against `RLIMIT_MEMLOCK`, see
    /// [`memlock_limit`](super::memlock_limit).
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Whether core files contain the memory. The default is that they do not (`MADV_DONTDUMP`): a core file of a
    /// process with gigabytes of buffers takes long to write, and holds other people's data. coredump_filter, see
    /// core(5), still decides about memory that is kept in.
    pub fn in_core_files(mut self, in_core_files: bool) -> Self {
        self.in_core_files = in_core_files;
        self
    }

    /// Maps the region and populates every page of it.
    ///
    /// All memory is allocated here, so the call takes as long as the kernel needs to zero it. A length
    /// greater than the machine's free memory, or than a cgroup's limit, is refused before anything is
    /// allocated; if other processes allocate at the same time, the OOM killer may still run.
    ///
    /// For hugetlb pages, mmap(2) reserves the whole region or fails. The pages themselves are allocated
    /// right after that, because the reservation is per machine, and a bound node or a cgroup can still be
    /// short of pages.
    ///
    /// # Errors
    ///
    /// With [`Pages::Auto`] the errors of base pages, which are tried last; with other pages also an error if
    /// those pages are not available. Nothing stays mapped, locked or open.
    pub fn build(self) -> Result<Mapping, MemoryError> {
        if let Some(node) = self.node {
            numa::check_node(node)?;
        }
        let mut result = Err(MemoryError::ZeroLength);
        let hugetlb = self.auto_hugetlb || self.pages != Pages::Auto;
        let candidates = self.pages.candidates(self.len);
        for kind in candidates.filter(|kind| hugetlb || !kind.is_hugetlb()) {
            result = self.build_of(kind);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn build_of(&self, kind: PageKind) -> Result<Mapping, MemoryError> {
        let len = kind.round_up(self.len)?;
        // Hugetlb pages come from a pool, which mmap(2) checks.
        if !kind.is_hugetlb() {
            available::check(len)?;
        }
        if self.lock {
            lock::check_now(len)?;
        }
        let (fd, region) = match &self.name {
            Some(name) => {
                let (fd, region) = shared::create(name.get()?, kind, len, self.node)?;
                (Some(fd), region)
            }
            None => (None, anonymous(kind, len, self.node)?),
        };
        if !self.in_core_files {
            region.keep_out_of_core_files();
        }
        if let Some(node) = self.node {
            numa::bind(&region, node)?;
        }
        if let Err(source) = region.populate() {
            // First release what was allocated, so that the error counts it as free.
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
            _closed_in_children: (fd.as_ref().filter(|_| !self.lendable)).map(|fd| {
                // SAFETY: the mapping has the descriptor, and drops it last.
                Fd::new(unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) })
            }),
            fd: fd.into(),
            lendable: self.lendable,
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
        MappingBuilder::new(None, false, len)
    }

    /// A region of at least `len` bytes that other processes can map: they receive its descriptor,
    /// [`fd`](Self::fd), and call [`Mapping::from_fd`]. `name` is only informative and appears as
    /// `/memfd:name` in `/proc/<pid>/maps`. The length is sealed: it cannot change any more.
    pub fn shared(name: &str, len: usize) -> MappingBuilder {
        MappingBuilder::new(Some(Name::new(name)), true, len)
    }

    /// Like [`shared`](Self::shared), for a device that shares the memory with its peers: the program does
    /// not get the descriptor. Peers do not map hugetlb pages, so [`Pages::Auto`] does not use them here.
    /// Programs call `Device::mapping`.
    pub fn of_device(len: usize) -> MappingBuilder {
        MappingBuilder {
            auto_hugetlb: false,
            ..MappingBuilder::new(Some(Name::new("bellwire")), false, len)
        }
    }

    /// A region that another process created.
    pub(super) fn of_descriptor(region: Region, kind: PageKind, fd: OwnedFd) -> Self {
        Self {
            region,
            kind,
            node: None,
            locked: false,
            _closed_in_children: None,
            fd: Some(fd).into(),
            lendable: true,
        }
    }

    /// The address of the first byte: aligned to the page size, readable and writable for [`len`](Self::len)
    /// bytes as long as `self` lives. Every user of the pointer, including a device that has the region
    /// registered, must be done with it before `self` is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.start().as_ptr()
    }

    /// The length in bytes: the requested length, rounded up to whole pages. Never 0.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a region of 0 bytes cannot be made"
    )]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The kind of pages that the region has.
    pub fn page_kind(&self) -> PageKind {
        self.kind
    }

    /// How many bytes of the region are mapped by huge pages now. For hugetlb pages that is all of it; for
    /// [`PageKind::Transparent`] it is what the kernel could find, and may grow (khugepaged) or shrink. Reads
    /// `/proc/self/smaps`, so it is not for the data path.
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

    /// The NUMA node to which the region was bound when it was created, if any. For the actual node of a page
    /// see [`numa_node_of`](super::numa_node_of).
    pub fn numa_node(&self) -> Option<u32> {
        self.node
    }

    /// Whether the region was locked when it was created.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// The memfd of a [`shared`](Self::shared) region, to pass to [`Mapping::from_fd`] in another process;
    /// `None` for an anonymous region, and for one created by [`of_device`](Self::of_device). It is closed on
    /// exec.
    ///
    /// Every process that has the descriptor can write the memory: such a region cannot be divided into
    /// blocks, each of which belongs to one owner alone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor().filter(|_| self.lendable)
    }

    /// The memfd, also of a region created by [`of_device`](Self::of_device).
    ///
    /// # Safety
    ///
    /// The descriptor of a region created by [`of_device`](Self::of_device) is for the device only: no other
    /// code may write the memory through it, because each block of it may belong to another owner alone.
    pub unsafe fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Prevents other processes from mapping the memory for writing from now on, provided that the descriptor
    /// was not passed on and the kernel supports it (Linux 5.1).
    pub fn refuse_writers(&self) {
        if let (false, Some(fd)) = (self.lendable, self.descriptor()) {
            let _not_known = fcntl_add_seals(fd, SealFlags::FUTURE_WRITE);
        }
    }

    /// The region's bytes.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, the region must not be written: by no thread, no process that shares it,
    /// no device.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is mapped and readable for len bytes, at most isize::MAX, as long as `self`
        // lives; the caller guarantees that the region is not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The region's bytes, mutable.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, the region must not be read or written by others: by no thread, no process
    /// that shares it, no device.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the region is mapped and writable for len bytes, at most isize::MAX, as long as `self`
        // lives; the caller guarantees that no other thread, process or device uses the region meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

/// Prints one line: `128 MiB in 64 hugetlb pages of 2 MiB, on NUMA node 0, locked`. Reads `/proc/self/smaps`
/// for transparent huge pages.
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
