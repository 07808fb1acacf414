//! One range of address space that this crate owns: the mmap, madvise and munmap calls.

use super::fork::{self, Life};
use super::pages::base_page;
use super::probe::Use;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// A readable and writable range, unmapped on drop.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
    /// What to unmap: the range and its guard pages, if any.
    outer: NonNull<u8>,
    outer_len: usize,
    /// Of the process that mapped it.
    life: Life,
}

// SAFETY: a region is only an address range. It gives out no references and has no interior state, so it may
// move to another thread.
unsafe impl Send for Region {}
// SAFETY: like Send: the unsafe code that accesses the bytes is responsible for synchronization.
unsafe impl Sync for Region {}

/// mmap(2) at an address that the kernel chooses.
fn map(len: usize, prot: i32, flags: i32, fd: Option<BorrowedFd<'_>>) -> io::Result<NonNull<u8>> {
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory in use is replaced.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // mmap returns address 0 only with MAP_FIXED; treat it as a failure rather than rely on that.
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))
}

/// The result of a system call that returns 0 or -1.
pub(super) fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Region {
    /// Maps `len` bytes with `flags`; of `fd`'s file from its start, if `fd` is given.
    pub(super) fn new(len: usize, flags: i32, fd: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let start = map(len, libc::PROT_READ | libc::PROT_WRITE, flags, fd)?;
        Ok(Self {
            start,
            len,
            outer: start,
            outer_len: len,
            life: Life::current(),
        })
    }

    /// Maps `len` bytes of private anonymous memory at a multiple of `align` (a power of two, at least a base
    /// page), between two inaccessible guard pages. The guard pages keep the kernel from merging the region
    /// with its neighbours, so that its entry in `/proc/self/smaps` describes it alone, and they catch an
    /// overrun.
    pub(super) fn guarded(len: usize, align: usize) -> io::Result<Self> {
        let page = base_page();
        // Room to move the start to the alignment, and a guard page on each side.
        let outer_len = len
            .checked_add(align - page)
            .and_then(|n| n.checked_add(2 * page))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let outer = map(outer_len, libc::PROT_NONE, flags, None)?;
        let first = outer.addr().get() + page;
        let offset = first.next_multiple_of(align) - outer.addr().get();
        let region = Self {
            // SAFETY: offset <= align, and align + len + page <= outer_len, so the result is within the
            // range.
            start: unsafe { outer.add(offset) },
            len,
            outer,
            outer_len,
            life: Life::current(),
        };
        // mprotect and not a second mmap over the first: a failed mmap may leave a hole into which another
        // thread maps, and Drop would unmap that.
        // SAFETY: the range is inside the reservation made above, which no other code knows yet.
        check(unsafe { libc::mprotect(region.addr(), len, libc::PROT_READ | libc::PROT_WRITE) })?;
        Ok(region)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn addr(&self) -> *mut libc::c_void {
        self.start.as_ptr().cast()
    }

    /// Advises transparent huge pages (`MADV_HUGEPAGE`).
    pub(super) fn advise_huge(&self) -> io::Result<()> {
        // SAFETY: the region owns the range, and the advice does not change its contents.
        check(unsafe { libc::madvise(self.addr(), self.len, libc::MADV_HUGEPAGE) })
    }

    /// Keeps the region out of children of this process, so that only this process writes to peers. If the
    /// kernel refuses that, children have a copy of the mapping, which they do not use.
    pub(super) fn exclude(&self) {
        let _refused = fork::exclude(self.outer, self.outer_len);
    }

    /// Populates every page of the region for writing, without changing its contents. Where no memory is left, for
    /// example because the hugetlb pool is short on the bound node or for the cgroup, that is an error here, and would
    /// be SIGBUS at an access. `MAP_POPULATE` would be no better: it ignores the failure.
    pub(super) fn populate(&self) -> io::Result<()> {
        Use::Write.populate(self.start.as_ptr().expose_provenance(), self.len)
    }

    /// Leaves the region out of core files (`MADV_DONTDUMP`). Where the kernel does not allow that, it is in them.
    pub(super) fn keep_out_of_core_files(&self) {
        // SAFETY: the region owns the range, and the advice does not change its contents.
        let _in_core = unsafe { libc::madvise(self.addr(), self.len, libc::MADV_DONTDUMP) };
    }

    /// Locks every page of the region in memory (mlock(2)), which also populates them.
    pub(super) fn lock(&self) -> io::Result<()> {
        // SAFETY: locking does not change the contents of the range.
        check(unsafe { libc::mlock(self.addr(), self.len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a child, another mapping may be at its place.
        if !self.life.is_current() {
            return;
        }
        // SAFETY: this region mapped the range as a whole and is the only one to unmap it, and its owner
        // guarantees (`Mapping::as_ptr`) that no pointer into it is used from here on.
        // It fails where the kernel has to split a mapping and the process may not have another
        // (vm.max_map_count): the range stays mapped, and is lost to the process.
        let _lost = check(unsafe { libc::munmap(self.outer.as_ptr().cast(), self.outer_len) });
    }
}

/// For tests: counts the page faults of the calling thread while `f` runs.
#[cfg(test)]
pub(super) fn faults_during(f: impl FnOnce()) -> i64 {
    fn faults() -> i64 {
        // SAFETY: rusage consists of integers, for which zero is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable and has the type that getrusage fills in.
        check(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }).unwrap();
        usage.ru_minflt + usage.ru_majflt
    }
    let before = faults();
    f();
    faults() - before
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::{FromRawFd, OwnedFd};

    const LEN: usize = 1 << 20;

    /// Writes to every page.
    fn scribble(region: &Region) {
        for offset in (0..region.len()).step_by(base_page()) {
            // SAFETY: the offset is inside the region, which only this thread uses.
            unsafe { region.start().add(offset).write_volatile(1) };
        }
    }

    #[test]
    fn populated_pages_take_no_fault() {
        let pages = (LEN / base_page()) as i64;
        let bare = Region::guarded(LEN, base_page()).unwrap();
        assert!(
            faults_during(|| scribble(&bare)) >= pages,
            "the count counts"
        );

        let populated = Region::guarded(LEN, base_page()).unwrap();
        populated.populate().unwrap();
        assert!(faults_during(|| scribble(&populated)) < pages / 8);
    }

    #[test]
    fn populating_keeps_what_is_there() {
        let region = Region::guarded(LEN, base_page()).unwrap();
        scribble(&region);
        region.populate().unwrap();
        for offset in (0..LEN).step_by(base_page()) {
            // SAFETY: the offset is inside the region, which only this thread uses.
            assert_eq!(unsafe { region.start().add(offset).read_volatile() }, 1);
        }
    }

    #[test]
    fn guards_stand_on_both_sides_and_go_with_the_region() {
        let align = 2 << 20;
        let region = Region::guarded(align, align).unwrap();
        let (start, end) = (
            region.start().addr().get(),
            region.start().addr().get() + align,
        );
        assert!(start.is_multiple_of(align));
        let perms = |at: usize| -> Option<String> {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (from, to) = range.split_once('-')?;
                let hex = |s| usize::from_str_radix(s, 16).unwrap();
                (hex(from) <= at && at < hex(to)).then(|| rest[..4].to_owned())
            })
        };
        assert_eq!(perms(start).as_deref(), Some("rw-p"));
        assert_eq!(perms(end - 1).as_deref(), Some("rw-p"));
        assert_eq!(perms(start - 1).as_deref(), Some("---p"));
        assert_eq!(perms(end).as_deref(), Some("---p"));
    }

    #[test]
    fn populate_answers_where_touching_would_kill() {
        let probe = Region::guarded(LEN, base_page()).unwrap();
        // SAFETY: populating does not change the contents of the range.
        if unsafe { libc::madvise(probe.addr(), LEN, libc::MADV_POPULATE_WRITE) } != 0 {
            println!("skipped: this kernel has no MADV_POPULATE_WRITE");
            return;
        }
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        use std::os::fd::AsFd;
        // The file is empty, so no page of the mapping can have memory.
        let region = Region::new(LEN, libc::MAP_SHARED, Some(fd.as_fd())).unwrap();
        match region.populate() {
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EFAULT), "{e}"),
            Ok(()) => panic!("populated a mapping past the end of its file"),
        }
    }

    #[test]
    fn a_length_that_cannot_be_reserved_is_an_error() {
        let error = Region::guarded(usize::MAX - base_page() + 1, base_page()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        let error = Region::guarded(1 << 62, 2 << 20).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }
}
