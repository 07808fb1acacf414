//! One range of address space that we own: the mmap, madvise and munmap calls.

use super::pages::base_page;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

/// A readable and writable range, unmapped on drop.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
    /// What to unmap: the range and its guard pages, if any.
    outer: NonNull<u8>,
    outer_len: usize,
}

// SAFETY: a region is only an address range. It gives out no references and has no interior state,
// so moving or sharing it moves or shares nothing but numbers.
unsafe impl Send for Region {}
// SAFETY: as for Send: what threads do with the bytes is up to the unsafe code that does it.
unsafe impl Sync for Region {}

/// mmap(2) where the kernel likes.
fn map(len: usize, prot: i32, flags: i32, fd: Option<BorrowedFd<'_>>) -> io::Result<NonNull<u8>> {
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory in use is replaced.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // mmap gives address 0 only to MAP_FIXED; treat it as failure rather than trust that.
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))
}

/// The error of a system call that answers 0 or -1.
pub(super) fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Region {
    /// Maps `len` bytes as `flags` say, of `fd`'s file from its start if there is one.
    pub(super) fn new(len: usize, flags: i32, fd: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let start = map(len, libc::PROT_READ | libc::PROT_WRITE, flags, fd)?;
        Ok(Self {
            start,
            len,
            outer: start,
            outer_len: len,
        })
    }

    /// Maps `len` bytes of private anonymous memory at a multiple of `align` (a power of two, at
    /// least a base page), between two pages that nobody may touch. They keep the kernel from
    /// merging the region with its neighbours, so that what `/proc/self/smaps` says of it is of it
    /// alone, and they catch an overrun.
    pub(super) fn guarded(len: usize, align: usize) -> io::Result<Self> {
        let page = base_page();
        // Room to slide to alignment, and a guard page on each side.
        let outer_len = len
            .checked_add(align - page)
            .and_then(|n| n.checked_add(2 * page))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let outer = map(outer_len, libc::PROT_NONE, flags, None)?;
        let first = outer.addr().get() + page;
        let offset = first.next_multiple_of(align) - outer.addr().get();
        let region = Self {
            // SAFETY: offset <= align, and align + len + page <= outer_len, so this is in the range.
            start: unsafe { outer.add(offset) },
            len,
            outer,
            outer_len,
        };
        // mprotect, not a second mmap over the first: when that fails it may leave a hole into
        // which another thread maps, and our drop would unmap that.
        // SAFETY: the range is inside the reservation made above, which nobody else knows.
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
        // SAFETY: the range is ours, and the advice does not change what it holds.
        check(unsafe { libc::madvise(self.addr(), self.len, libc::MADV_HUGEPAGE) })
    }

    /// Gives every page of the region memory, writable, without changing what it holds.
    ///
    /// `MADV_POPULATE_WRITE` (Linux 5.14) answers with an error where touching would raise SIGBUS:
    /// a hugetlb pool that is short on the bound node or for the cgroup. Before 5.14 the pages are
    /// touched one by one, and that case does raise SIGBUS. `MAP_POPULATE` would be no better: it
    /// swallows the failure, and the SIGBUS comes later.
    pub(super) fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is ours, and populating does not change what it holds.
        match check(unsafe { libc::madvise(self.addr(), self.len, libc::MADV_POPULATE_WRITE) }) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.touch();
                Ok(())
            }
            other => other,
        }
    }

    fn touch(&self) {
        for offset in (0..self.len).step_by(base_page()) {
            // SAFETY: the offset is inside the region, which is mapped readable and writable, and
            // whoever else has the memory now, a peer that shares it, must not rely on Rust's rules.
            let byte = unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) };
            // A write that changes nothing, even beside a peer's. Not fetch_or(0), which compilers
            // turn into a load. Relaxed: it orders nothing and has no partner.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Keeps every page of the region in memory, mlock(2), which also faults them in.
    pub(super) fn lock(&self) -> io::Result<()> {
        // SAFETY: locking does not change what the range holds.
        check(unsafe { libc::mlock(self.addr(), self.len) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us as a whole, nobody else unmaps it, and its owner
        // promised (Mapping::as_ptr) that no pointer into it is used from here on.
        let result = check(unsafe { libc::munmap(self.outer.as_ptr().cast(), self.outer_len) });
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

/// Of tests: counts the page faults of the calling thread while `f` runs.
#[cfg(test)]
pub(super) fn faults_during(f: impl FnOnce()) -> i64 {
    fn faults() -> i64 {
        // SAFETY: rusage is plain numbers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: usage is a valid place for the answer.
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
            // SAFETY: inside the region, which only this thread has.
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

        let touched = Region::guarded(LEN, base_page()).unwrap();
        touched.touch();
        assert!(faults_during(|| scribble(&touched)) < pages / 8);
    }

    #[test]
    fn touching_keeps_what_is_there() {
        let region = Region::guarded(LEN, base_page()).unwrap();
        scribble(&region);
        region.touch();
        region.populate().unwrap();
        for offset in (0..LEN).step_by(base_page()) {
            // SAFETY: inside the region, which only this thread has.
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
        // SAFETY: populating does not change what the range holds.
        if unsafe { libc::madvise(probe.addr(), LEN, libc::MADV_POPULATE_WRITE) } != 0 {
            println!("skipped: this kernel has no MADV_POPULATE_WRITE");
            return;
        }
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: a fresh descriptor that nobody else has.
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
