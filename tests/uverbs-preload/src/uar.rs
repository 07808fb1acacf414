//! Register pages (UAR): memory that the program writes as a device's registers, and the device's
//! thread watches.
//!
//! ```text
//! page   0x20   arm doorbell of completion queues
//!        0x800  register 0, first and second half     0x900
//!        0xa00  register 1 …                          two that requests use, two that none does
//! ```
//!
//! A register is memory here, and what one ring wrote the next may write over before it was seen. So
//! that it changed only says that some queue of the page was rung: their records say which, and how
//! far. It changes with each ring, for the entry's counter stands in it. Where counters begin anew the
//! registers are set to zero, which no ring says.

use crate::context::File;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page, as libmlx5 gets them (`log_uar_size`), and as the machine has it.
pub const PAGE: usize = 1 << LOG_PAGE;
/// Its logarithm.
pub const LOG_PAGE: u32 = 12;

/// Bytes of a register, both halves (`bf_reg_size`).
pub const REGISTER: u32 = 0x200;

/// Registers of a page that requests use; libmlx5 counts as many again that none does.
pub const USED: u32 = 2;
/// Registers of a page, as libmlx5 counts them.
pub const COUNTED: u32 = 4;

/// Pages that a program can map beside those that it is given at the start.
pub const DYNAMIC: u32 = 32;

/// Pages at the start, at the most (`MLX5_MAX_UARS` of libmlx5 is larger).
pub const MAX_STATIC: u32 = 64;

const ARM: usize = 0x20;
const REGISTERS: usize = 0x800;

/// What of a page is watched for requests.
const SPOTS: usize = (COUNTED * 2) as usize;

/// The register pages of a context.
#[derive(Debug)]
pub struct Uars {
    memfd: OwnedFd,
    start: *mut u8,
    fixed: u32,
    /// Of each page, what was last seen: at the registers, and at the arm doorbell.
    seen: Box<[[AtomicU64; SPOTS + 1]]>,
}

// SAFETY: the memory is reached as atomics only, and stays until this is dropped.
unsafe impl Send for Uars {}
// SAFETY: the memory is reached as atomics only, and stays until this is dropped.
unsafe impl Sync for Uars {}

impl Uars {
    /// As many pages, and those that can be mapped later.
    pub fn new(fixed: u32) -> Result<Self, Errno> {
        let pages = (fixed + DYNAMIC) as usize;
        let memfd = memfd_create("uverbs-preload-uar", MemfdFlags::CLOEXEC)?;
        ftruncate(&memfd, (pages * PAGE) as u64)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping of its own, at an address of the kernel's choice.
        let start = unsafe {
            let null = std::ptr::null_mut();
            mmap(null, pages * PAGE, rights, MapFlags::SHARED, &memfd, 0)?
        };
        Ok(Self {
            memfd,
            start: start.cast(),
            fixed,
            seen: (0..pages).map(|_| Default::default()).collect(),
        })
    }

    /// The page of a register of those given at the start, by libmlx5's index (`bfreg_index`).
    pub fn page_of(&self, register: u32) -> u32 {
        register / COUNTED
    }

    /// The page of a register mapped later, by libmlx5's index.
    pub fn dynamic_page_of(&self, register: u32) -> Option<u32> {
        let page = register / USED;
        (page < DYNAMIC).then_some(self.fixed + page)
    }

    /// A page, as this side sees it.
    pub fn at(&self, page: u32) -> *mut u8 {
        debug_assert!((page as usize) < self.seen.len());
        // SAFETY: within the mapping.
        unsafe { self.start.add(page as usize * PAGE) }
    }

    fn register(&self, page: u32, offset: usize) -> &AtomicU64 {
        let place = page as usize * PAGE + offset;
        debug_assert!(place < self.seen.len() * PAGE);
        // SAFETY: within the mapping, aligned; the program's side is a register's, written by whole
        // words. What was read torn is another value than what was there, which is all that counts.
        unsafe { AtomicU64::from_ptr(self.start.add(place).cast()) }
    }

    fn changed(&self, page: u32, spot: usize, offset: usize) -> bool {
        // Acquire: partner of the barrier between records and register; the records come before.
        let now = self.register(page, offset).load(Ordering::Acquire);
        let seen = &self.seen[page as usize][spot];
        // Relaxed: the watching thread's own.
        seen.load(Ordering::Relaxed) != now && {
            seen.store(now, Ordering::Relaxed);
            true
        }
    }

    /// Whether a register or the arm doorbell of the page was written since this was last asked.
    pub fn rung(&self, page: u32) -> bool {
        let offsets = (0..SPOTS).map(spot_offset).chain([ARM]);
        (offsets.enumerate()).fold(false, |rung, (spot, offset)| {
            self.changed(page, spot, offset) | rung
        })
    }

    /// Makes what is rung on a page from here on differ from what was seen, whatever it is: counters
    /// on it start anew. Who calls this looks at everything on the page, for a ring may be lost by it.
    pub fn forget(&self, page: u32) {
        let offsets = (0..SPOTS).map(spot_offset).chain([ARM]);
        for (seen, offset) in self.seen[page as usize].iter().zip(offsets) {
            // No ring says this: an entry's size and a completion queue's number are in it.
            // Relaxed: a queue rings for the first time only once the caller of this has said that it may.
            self.register(page, offset).store(0, Ordering::Relaxed);
            seen.store(0, Ordering::Relaxed);
        }
    }
}

fn spot_offset(spot: usize) -> usize {
    REGISTERS + spot * (REGISTER as usize / 2)
}

impl Drop for Uars {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has it any more.
        let _ = unsafe { munmap(self.start.cast(), self.seen.len() * PAGE) };
    }
}

/// What an offset of mmap(2) asks for (`mlx5_ib_mmap_cmd` of the driver).
const COMMAND_SHIFT: u32 = 8;
const BYTE: u64 = 0xff;
const REGULAR: u64 = 0;
const WRITE_COMBINING: u64 = 2;
const NOT_CACHED: u64 = 3;
const ALLOCATE: u64 = 6;

/// The memory of ours that is mapped in the place of the device's: a descriptor and an offset.
pub fn place(
    file: &File,
    length: usize,
    offset: libc::off_t,
) -> Result<(RawFd, libc::off_t), Errno> {
    let context = file.context().ok_or(Errno::INVAL)?;
    let uars = context.uars();
    let asked = u64::try_from(offset).map_err(|_| Errno::INVAL)? / PAGE as u64;
    let index = asked & BYTE | asked >> (2 * COMMAND_SHIFT) << COMMAND_SHIFT;
    let (index, pages, first) = match asked >> COMMAND_SHIFT & BYTE {
        REGULAR | WRITE_COMBINING | NOT_CACHED => (index, uars.fixed, 0),
        ALLOCATE => (index, DYNAMIC, uars.fixed),
        _ => return Err(Errno::INVAL),
    };
    if index >= u64::from(pages) || length != PAGE {
        return Err(Errno::INVAL);
    }
    let page = u64::from(first) + index;
    Ok((uars.memfd.as_raw_fd(), (page * PAGE as u64) as libc::off_t))
}
