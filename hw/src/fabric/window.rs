//! Places in the address space where memory of peers comes and goes.
//!
//! A window's address never changes: whoever looks into it when the peer goes sees zeroes, and
//! whoever writes into it writes to memory that nobody reads. So the data path needs no reference
//! count to use one.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Windows of one size, side by side.
#[derive(Debug)]
pub(super) struct Windows {
    base: NonNull<u8>,
    size: usize,
    count: usize,
}

// SAFETY: addresses; who touches what is behind them when is its users' contract.
unsafe impl Send for Windows {}
// SAFETY: as above.
unsafe impl Sync for Windows {}

/// A mapping that is to move into a window.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: NonNull<u8>,
    size: usize,
}

// SAFETY: an address.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The whole of a file of `size` bytes that cannot shrink.
    pub fn new(file: BorrowedFd<'_>, size: usize, writable: bool) -> io::Result<Self> {
        let access = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: new memory, at an address of the kernel's choice.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, size })
    }
}

// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub fn start(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it.
        let _unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.size) };
    }
}

impl Windows {
    /// Empty ones. `size` is whole pages.
    pub fn reserve(count: usize, size: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), count * size, access, flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, size, count })
    }

    /// Where a window is.
    pub fn at(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "window {index} of {}", self.count);
        // SAFETY: within the reservation.
        unsafe { self.base.add(index * self.size) }
    }

    /// Shows what was mapped, in place of what was there.
    pub fn show(&self, index: usize, mapped: Mapped) -> io::Result<()> {
        assert_eq!(mapped.size, self.size, "of another size than the window");
        let (from, to) = (mapped.at.as_ptr().cast(), self.at(index).as_ptr().cast());
        // SAFETY: the mapping is ours, and replaces a window of ours, of which nobody holds a
        // reference that is not to shared memory.
        unsafe { mremap_fixed(from, self.size, self.size, MremapFlags::MAYMOVE, to)? };
        // It is not there any more.
        std::mem::forget(mapped);
        Ok(())
    }

    /// Shows zeroes, which may be written to.
    pub fn clear(&self, index: usize) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let at = self.at(index).as_ptr().cast();
        // SAFETY: as in `show`.
        unsafe { mmap_anonymous(at, self.size, access, flags)? };
        Ok(())
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // SAFETY: the reservation, which nobody uses any more.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.count * self.size) };
    }
}
