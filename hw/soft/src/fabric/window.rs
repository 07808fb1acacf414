//! A place in the address space at which a peer's memory is mapped and unmapped.
//!
//! A window's address never changes. When the peer is gone, reads of the window return zeroes, and writes go
//! to memory that is never read. So the data path needs no reference count to use a window.

use bellwire_memory::fork::{self, Life};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    at: NonNull<u8>,
    size: usize,
    /// Of the process that reserved it.
    life: Life,
}

// SAFETY: an address; its users decide when the memory is accessed.
unsafe impl Send for Window {}
// SAFETY: an address; its users decide when the memory is accessed.
unsafe impl Sync for Window {}

/// A mapping of a file: one to be moved into a window, or of a peer's memory.
#[derive(Debug)]
pub struct Mapped {
    at: NonNull<u8>,
    size: usize,
    writable: bool,
    /// Of the process that mapped it.
    life: Life,
}

// SAFETY: an address.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the whole of a file of `size` bytes that cannot shrink. The memory is not accessed.
    pub fn new(file: BorrowedFd<'_>, size: usize, writable: bool) -> io::Result<Self> {
        let access = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: new memory, at an address that the kernel chooses.
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
        // Children must neither write what peers read nor keep the memory. If the kernel refuses that, they have a
        // mapping that they do not use.
        let _refused = fork::exclude(at, size);
        let life = Life::current();
        Ok(Self {
            at,
            size,
            writable,
            life,
        })
    }
}

// SAFETY: an address.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub fn start(&self) -> NonNull<u8> {
        self.at
    }

    /// Leaves the memory out of core files of this process: the data is the peer's, and may be gigabytes. Where the
    /// kernel does not allow that, it is in them.
    pub fn keep_out_of_core_files(&self) {
        // SAFETY: the mapping belongs to this object, and the advice does not change its contents.
        let _in_core =
            unsafe { madvise(self.at.as_ptr().cast(), self.size, Advice::LinuxDontDump) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // In a child, another mapping may be at its place.
        if !self.life.is_current() {
            return;
        }
        // SAFETY: the mapping belongs to this object and is no longer used.
        let _unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.size) };
    }
}

impl Window {
    /// Reserves an empty window. `size` is a whole number of pages.
    pub fn reserve(size: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address that the kernel chooses.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, flags)? };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let life = Life::current();
        Ok(Self { at, size, life })
    }

    /// Its address.
    pub fn start(&self) -> NonNull<u8> {
        self.at
    }

    /// Moves a mapping into the window, in place of what was there.
    pub fn show(&self, mapped: Mapped) -> io::Result<()> {
        assert_eq!(mapped.size, self.size, "of another size than the window");
        let (from, to) = (mapped.at.as_ptr().cast(), self.at.as_ptr().cast());
        // SAFETY: the mapping belongs to the caller and replaces a window of ours, to which there are only
        // references to shared memory.
        unsafe { mremap_fixed(from, self.size, self.size, MremapFlags::MAYMOVE, to)? };
        // It has moved, so it must not be unmapped.
        std::mem::forget(mapped);
        Ok(())
    }

    /// Replaces what is in the window by writable zeroes.
    pub fn clear(&self) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces a window of ours, to which there are only references to shared memory.
        unsafe { mmap_anonymous(self.at.as_ptr().cast(), self.size, access, flags)? };
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // In a child, another mapping may be at its place.
        if !self.life.is_current() {
            return;
        }
        // SAFETY: the reservation is no longer used.
        let _unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.size) };
    }
}
