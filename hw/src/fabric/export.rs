//! What a node lets its peers read so that they can reach its memory by themselves: which keys open
//! what, and where the memory is that stands behind them.
//!
//! ```text
//!  0          the table of keys (`soft::Keys`)
//!  MEMORIES   a line for each piece of shared memory: address, length, descriptor, generation
//!  SCRAMBLE   what finds a key in the table
//! ```

use super::hello;
use super::window::Mapped;
use crate::soft::{KEYS_BYTES, Scramble};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces of shared memory that a node can show.
const MEMORIES: usize = 1024;

const AT_MEMORIES: usize = KEYS_BYTES;
const AT_SCRAMBLE: usize = AT_MEMORIES + MEMORIES * size_of::<Words>();

/// Bytes of an export: whole pages.
pub(super) const EXPORT: usize = (AT_SCRAMBLE + size_of::<AtomicU64>()).next_multiple_of(4096);

/// A piece of memory as peers read it.
#[derive(Debug)]
#[repr(C, align(32))]
struct Words {
    /// Counts up whenever something is shown or taken away: odd while there is something.
    generation: AtomicU32,
    fd: AtomicU32,
    addr: AtomicU64,
    length: AtomicU64,
}

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub index: usize,
    pub generation: u32,
    pub fd: u32,
    /// Where it is in the peer's address space.
    pub addr: u64,
    pub length: u64,
}

fn words(export: NonNull<u8>, index: usize) -> &'static Words {
    debug_assert!(index < MEMORIES);
    let at = AT_MEMORIES + index * size_of::<Words>();
    // SAFETY: within an export, whose window stays as long as its node; any bits are such words.
    unsafe { export.add(at).cast::<Words>().as_ref() }
}

/// What a peer shows, as far as it makes sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown(pub(super) NonNull<u8>);

// SAFETY: a window, which is read by atomics.
unsafe impl Send for Shown {}
// SAFETY: as above.
unsafe impl Sync for Shown {}

impl Shown {
    /// The table of keys.
    #[inline(always)]
    pub fn keys(self) -> NonNull<u8> {
        self.0
    }

    pub fn scramble(self) -> Scramble {
        // SAFETY: within the export.
        let word = unsafe { self.0.add(AT_SCRAMBLE).cast::<AtomicU64>().as_ref() };
        // Relaxed: written before the peer joined.
        Scramble::from_bits(word.load(Ordering::Relaxed))
    }

    /// Which generation of a piece is there now.
    pub fn generation(self, index: usize) -> u32 {
        // Acquire: partner of the release in `show`.
        self.generation_word(index).load(Ordering::Acquire)
    }

    /// Where that stands.
    pub fn generation_word(self, index: usize) -> &'static AtomicU32 {
        &words(self.0, index % MEMORIES).generation
    }

    /// The piece that all of these addresses are in.
    pub fn find(self, addr: u64, length: u64) -> Option<Memory> {
        (0..MEMORIES).find_map(|index| {
            let words = words(self.0, index);
            // Acquire: as above.
            let generation = words.generation.load(Ordering::Acquire);
            let memory = Memory {
                index,
                generation,
                fd: words.fd.load(Ordering::Relaxed),
                addr: words.addr.load(Ordering::Relaxed),
                length: words.length.load(Ordering::Relaxed),
            };
            let whole = !generation.is_multiple_of(2)
                && memory.addr.checked_add(memory.length).is_some()
                && self.generation(index) == generation;
            (whole && memory.holds(addr, length)).then_some(memory)
        })
    }
}

impl Memory {
    /// Whether all of these addresses are in it.
    #[inline(always)]
    pub fn holds(&self, addr: u64, length: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr);
        offset <= self.length && length <= self.length - offset
    }
}

/// What this node shows.
#[derive(Debug)]
pub(crate) struct Export {
    file: OwnedFd,
    memory: Mapped,
    /// Which pieces are in use.
    used: Mutex<Vec<bool>>,
}

impl Export {
    pub fn new() -> io::Result<Self> {
        let file = hello::file("bellwire-keys", EXPORT)?;
        let memory = Mapped::new(file.as_fd(), EXPORT, true)?;
        hello::seal(file.as_fd())?;
        Ok(Self {
            file,
            memory,
            used: Mutex::new(vec![false; MEMORIES]),
        })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the table of keys is: as long as this is.
    pub fn keys(&self) -> NonNull<u8> {
        self.memory.start()
    }

    pub fn set_scramble(&self, scramble: Scramble) {
        // SAFETY: within the export.
        let word = unsafe { self.keys().add(AT_SCRAMBLE).cast::<AtomicU64>().as_ref() };
        // Relaxed: before anybody has it.
        word.store(scramble.to_bits(), Ordering::Relaxed);
    }

    /// Shows a piece of memory; `None`: there is no room. Peers cannot reach it by themselves then.
    pub fn show(&self, fd: BorrowedFd<'_>, addr: u64, length: u64) -> Option<usize> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let index = used.iter().position(|used| !used)?;
        used[index] = true;
        let words = words(self.keys(), index);
        words.fd.store(fd.as_raw_fd() as u32, Ordering::Relaxed);
        words.addr.store(addr, Ordering::Relaxed);
        words.length.store(length, Ordering::Relaxed);
        // Release: partner of the acquire in `Shown::find`.
        words.generation.fetch_add(1, Ordering::Release);
        Some(index)
    }

    /// Takes it away. Peers that are about to reach it have to be waited for before another piece
    /// [takes its place](Self::free).
    pub fn hide(&self, index: usize) {
        // SeqCst: before the barrier that the caller raises.
        words(self.keys(), index)
            .generation
            .fetch_add(1, Ordering::SeqCst);
    }

    pub fn free(&self, index: usize) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)[index] = false;
    }
}
