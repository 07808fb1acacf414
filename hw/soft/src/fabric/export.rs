//! The memory through which a node lets its peers access its registered memory directly: the memory keys, and
//! the files that back the memory.
//!
//! ```text
//!  0          the table of keys (`soft::Keys`), and its generation
//!  MEMORIES   a line for each piece of shared memory: address, length, descriptor, file, generation
//!  SCRAMBLE   parameters that find a key in the table
//! ```

use super::hello;
use super::open::{FileId, file_id};
use super::segment::MAX_PAGE;
use super::window::Mapped;
use crate::generation::Generation;
use crate::mr::{AT_GENERATION, KEYS_BYTES, Scramble};
use bellwire_memory::fork::Fd;
use bellwire_provider::pinned::defaults;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Maximum number of pieces of shared memory that a node can export. Each peer may map all of them.
pub const MEMORIES: usize = 512;

const AT_MEMORIES: usize = KEYS_BYTES;
const AT_SCRAMBLE: usize = AT_MEMORIES + MEMORIES * size_of::<Words>();

/// Size of an export in bytes: whole pages.
pub(super) const EXPORT: usize = (AT_SCRAMBLE + size_of::<AtomicU64>()).next_multiple_of(MAX_PAGE);

/// A piece of memory, in the form that peers read.
#[derive(Debug)]
#[repr(C, align(32))]
struct Words {
    /// Incremented whenever a piece is exported or removed: odd while there is one.
    generation: AtomicU32,
    fd: AtomicU32,
    addr: AtomicU64,
    length: AtomicU64,
    inode: AtomicU64,
}

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub index: usize,
    pub generation: u32,
    pub fd: u32,
    /// Its address in the peer's address space.
    pub addr: u64,
    pub length: u64,
    /// The number of its file, which no other memfd has. A peer that opens the descriptor by a pid may find
    /// another file there.
    pub inode: u64,
}

fn words(export: NonNull<u8>, index: usize) -> &'static Words {
    debug_assert!(index < MEMORIES);
    let at = AT_MEMORIES + index * size_of::<Words>();
    // SAFETY: within an export, whose window lives as long as its node; any bits are valid words.
    unsafe { export.add(at).cast::<Words>().as_ref() }
}

/// A peer's export. What is read from it has been checked for consistency.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub(super) NonNull<u8>);

// SAFETY: the address of a window, which is read by atomics.
unsafe impl Send for Shown {}
// SAFETY: the address of a window, which is read by atomics.
unsafe impl Sync for Shown {}

impl Shown {
    /// The table of memory keys.
    #[inline(always)]
    pub fn keys(self) -> NonNull<u8> {
        self.0
    }

    /// See [`Keys::generation`](crate::mr::Keys::generation).
    #[inline(always)]
    pub fn keys_generation(self) -> &'static Generation {
        // SAFETY: within the export; any bits are a count.
        unsafe { self.0.add(AT_GENERATION).cast().as_ref() }
    }

    pub fn scramble(self) -> Scramble {
        // SAFETY: within the export.
        let word = unsafe { self.0.add(AT_SCRAMBLE).cast::<AtomicU64>().as_ref() };
        // Relaxed: written before the peer joined.
        Scramble::from_bits(word.load(Ordering::Relaxed))
    }

    /// The current generation of a piece.
    pub fn generation(self, index: usize) -> u32 {
        // Acquire: pairs with the Release in `Export::show`.
        self.generation_word(index).load(Ordering::Acquire)
    }

    /// The word that contains the generation.
    pub fn generation_word(self, index: usize) -> &'static AtomicU32 {
        &words(self.0, index % MEMORIES).generation
    }

    /// The piece that contains all of these addresses.
    pub fn find(self, addr: u64, length: u64) -> Option<Memory> {
        (0..MEMORIES).find_map(|index| {
            let words = words(self.0, index);
            // Acquire: pairs with the Release in `Export::show`.
            let generation = words.generation.load(Ordering::Acquire);
            let memory = Memory {
                index,
                generation,
                fd: words.fd.load(Ordering::Relaxed),
                addr: words.addr.load(Ordering::Relaxed),
                length: words.length.load(Ordering::Relaxed),
                inode: words.inode.load(Ordering::Relaxed),
            };
            // Orders the loads above before the one of the generation below. Pairs with the fence in
            // `Export::show`.
            fence(Ordering::Acquire);
            let whole = !generation.is_multiple_of(2)
                && memory.addr.checked_add(memory.length).is_some()
                && self.generation(index) == generation;
            (whole && memory.holds(addr, length)).then_some(memory)
        })
    }
}

impl Memory {
    /// Whether it contains all of these addresses.
    #[inline(always)]
    pub fn holds(&self, addr: u64, length: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr);
        offset <= self.length && length <= self.length - offset
    }
}

/// What this node exports.
#[derive(Debug)]
pub struct Export {
    file: Fd,
    /// The file system of memfds.
    device: u64,
    memory: Mapped,
    /// Which pieces are in use.
    used: Mutex<Box<[bool]>>,
}

impl Export {
    pub fn new() -> io::Result<Self> {
        let file = hello::file("bellwire-keys", EXPORT)?;
        let memory = Mapped::new(file.as_fd(), EXPORT, true)?;
        hello::seal(file.as_fd())?;
        Ok(Self {
            device: file_id(file.as_fd())?.device,
            file: file.into(),
            memory,
            used: Mutex::new(defaults(MEMORIES).map_err(|_| io::ErrorKind::OutOfMemory)?),
        })
    }

    /// The file system of memfds: only files on it are mapped for peers' memory.
    pub fn device(&self) -> u64 {
        self.device
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The table of memory keys, which lives as long as the export.
    pub fn keys(&self) -> NonNull<u8> {
        self.memory.start()
    }

    pub fn set_scramble(&self, scramble: Scramble) {
        // SAFETY: within the export.
        let word = unsafe { self.keys().add(AT_SCRAMBLE).cast::<AtomicU64>().as_ref() };
        // Relaxed: the export has not been passed to any peer yet.
        word.store(scramble.to_bits(), Ordering::Relaxed);
    }

    /// Exports a piece of memory. `None`: there is no room, so peers cannot access it directly.
    pub fn show(&self, fd: BorrowedFd<'_>, addr: u64, length: u64) -> Option<usize> {
        // Peers map no other files.
        let FileId { device, inode } = file_id(fd).ok()?;
        if device != self.device {
            return None;
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let index = used.iter().position(|used| !used)?;
        used[index] = true;
        let words = words(self.keys(), index);
        // Orders the change in `hide` before the stores below. Pairs with the fence in `Shown::find`.
        fence(Ordering::Release);
        words.fd.store(fd.as_raw_fd() as u32, Ordering::Relaxed);
        words.addr.store(addr, Ordering::Relaxed);
        words.length.store(length, Ordering::Relaxed);
        words.inode.store(inode, Ordering::Relaxed);
        // Release: pairs with the Acquire in `Shown::find`.
        words.generation.fetch_add(1, Ordering::Release);
        Some(index)
    }

    /// Removes a piece. The caller waits for peers that may be accessing it before another piece [takes its
    /// place](Self::free).
    pub fn hide(&self, index: usize) {
        // SeqCst: before the barrier that the caller issues.
        words(self.keys(), index)
            .generation
            .fetch_add(1, Ordering::SeqCst);
    }

    pub fn free(&self, index: usize) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)[index] = false;
    }
}
