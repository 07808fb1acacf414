//! Whether memory of the program can be accessed: what `ibv_reg_mr` finds by pinning the pages.

use super::error::MemoryError;
use super::fault;
use super::pages::base_page;
use super::region::check;
use bellwire_core::guarded::touch;
use std::io;

/// What a device does with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads it only.
    Read,
    /// Writes it too.
    Write,
}

impl Use {
    /// [`Write`](Self::Write) if the device may write.
    pub fn writing(may_write: bool) -> Self {
        if may_write { Self::Write } else { Self::Read }
    }

    fn advice(self) -> i32 {
        match self {
            Self::Read => libc::MADV_POPULATE_READ,
            Self::Write => libc::MADV_POPULATE_WRITE,
        }
    }

    fn advise(self, start: usize, length: usize) -> io::Result<()> {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the advice changes no contents, and the kernel checks the range.
        check(unsafe { libc::madvise(start, length, self.advice()) })
    }

    /// Populates whole pages, without changing their contents.
    ///
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (Linux 5.14) return an error where an access would raise a signal.
    /// Where the kernel does not have them, or does not allow them, the pages are [touched](Use::touch); likewise in
    /// an emulator that ignores the advice.
    pub(super) fn populate(self, start: usize, length: usize) -> io::Result<()> {
        loop {
            let error = match self.advise(start, length) {
                // Nothing is mapped at the second page of an address space.
                Ok(()) if self.advise(base_page(), base_page()).is_err() => return Ok(()),
                Ok(()) => return self.touch(start, length),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // EINVAL is the answer for pages that may not be accessed, too. For no bytes, the answer is about the
                // advice alone.
                Some(libc::EINVAL | libc::EPERM | libc::EACCES | libc::ENOSYS)
                    if self.advise(base_page(), 0).is_err() =>
                {
                    return self.touch(start, length);
                }
                _ => return Err(error),
            }
        }
    }

    /// Accesses each page, and survives what cannot be accessed. Without a handler of faults nothing is accessed.
    fn touch(self, start: usize, length: usize) -> io::Result<()> {
        if fault::install().is_err() {
            return Ok(());
        }
        for page in (start..start + length).step_by(base_page()) {
            let page = std::ptr::with_exposed_provenance_mut(page);
            // SAFETY: installed. What is mapped there is memory that a device is to access.
            let touched = unsafe { touch(page, self == Self::Write) };
            touched.map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        }
        Ok(())
    }
}

/// Populates the pages of `length` bytes at `start`, as registering them with a device does, and finds the first
/// one that cannot be accessed. The contents do not change. Pages that cannot be accessed later, because the
/// program unmaps, protects or truncates the memory, are not found.
///
/// The pages are allocated: sparse memory takes up its whole length afterwards. 1 GiB that is there already takes
/// some milliseconds.
///
/// # Errors
/// [`MemoryError::NoAccess`], with the first page.
pub fn probe(start: usize, length: usize, how: Use) -> Result<(), MemoryError> {
    // Miri has no system calls for memory, and none that cannot be accessed.
    if cfg!(miri) || length == 0 {
        return Ok(());
    }
    let page = base_page();
    let first = start & !(page - 1);
    let end = start
        .checked_add(length)
        .and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end else {
        return Err(no_access(
            first,
            how,
            io::Error::from_raw_os_error(libc::EFAULT),
        ));
    };
    how.populate(first, end - first).map_err(|error| {
        let (bad, error) = first_bad(first, end, error, |at, len| how.populate(at, len));
        no_access(bad, how, error)
    })
}

/// The first page of a range that cannot be accessed as a whole, because of `error`.
fn first_bad(
    first: usize,
    end: usize,
    mut error: io::Error,
    populate: impl Fn(usize, usize) -> io::Result<()>,
) -> (usize, io::Error) {
    let page = base_page();
    // All pages before `good` can be accessed, one of those from there to `bad` cannot.
    let (mut good, mut bad) = (first, end);
    while bad - good > page {
        let middle = good + (bad - good) / page / 2 * page;
        match populate(good, middle - good) {
            Ok(()) => good = middle,
            Err(why) => (bad, error) = (middle, why),
        }
    }
    (good, error)
}

fn no_access(page: usize, how: Use, source: io::Error) -> MemoryError {
    MemoryError::NoAccess {
        page,
        write: how == Use::Write,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    /// Of eight pages, the fifth cannot be accessed, and the seventh cannot be written.
    #[test]
    fn the_first_page_that_cannot_be_accessed_is_found() {
        let page = base_page();
        let region = Region::guarded(8 * page, page).unwrap();
        let start = region.start().as_ptr();
        let protect = |at: usize, how| {
            // SAFETY: within the region, which only this thread uses.
            let done = unsafe { libc::mprotect(start.add(at * page).cast(), page, how) };
            assert_eq!(done, 0);
        };
        let start = start.expose_provenance();
        type Populate = fn(Use, usize, usize) -> io::Result<()>;
        let ways: [Populate; 2] = [Use::populate, Use::touch];
        let find = |how: Use, first: usize, count: usize| {
            let (first, end) = (start + first * page, start + (first + count) * page);
            let found = ways.map(|populate| {
                let error = populate(how, first, end - first).err()?;
                let (bad, _) = first_bad(first, end, error, |at, len| populate(how, at, len));
                Some((bad - start) / page)
            });
            assert_eq!(found[0], found[1]);
            let probed = probe(first + 1, end - first - 1, how);
            let bad = found[0].map(|bad| start + bad * page);
            match probed {
                Ok(()) => assert_eq!(bad, None),
                Err(MemoryError::NoAccess { page, write, .. }) => {
                    assert_eq!((Some(page), write), (bad, how == Use::Write));
                }
                Err(other) => panic!("{other}"),
            }
            found[0]
        };
        assert_eq!(find(Use::Write, 0, 8), None);
        protect(5, libc::PROT_NONE);
        protect(7, libc::PROT_READ);
        assert_eq!(find(Use::Write, 0, 8), Some(5));
        assert_eq!(find(Use::Write, 0, 5), None);
        assert_eq!(find(Use::Write, 5, 1), Some(5));
        assert_eq!(find(Use::Write, 6, 2), Some(7));
        assert_eq!(find(Use::Read, 6, 2), None);
        assert_eq!(find(Use::Read, 0, 8), Some(5));
        protect(5, libc::PROT_READ | libc::PROT_WRITE);
        protect(7, libc::PROT_READ | libc::PROT_WRITE);
    }

    #[test]
    fn what_was_there_is_there_still() {
        let page = base_page();
        let region = Region::guarded(4 * page, page).unwrap();
        let start = region.start().as_ptr();
        for at in 0..4 * page {
            // SAFETY: within the region, which only this thread uses.
            unsafe { start.add(at).write(at as u8) };
        }
        let first = start.expose_provenance();
        probe(first, 4 * page, Use::Write).unwrap();
        Use::Write.touch(first, 4 * page).unwrap();
        for at in 0..4 * page {
            // SAFETY: as above.
            assert_eq!(unsafe { start.add(at).read() }, at as u8);
        }
    }

    #[test]
    fn a_range_that_wraps_is_refused() {
        let refused = probe(usize::MAX - 4, 5, Use::Read);
        assert!(
            matches!(refused, Err(MemoryError::NoAccess { .. })),
            "{refused:?}"
        );
    }
}
