//! Memory whose neighbourhood is watched: what is beside a registration must stay as it is, and what
//! is beside that must not be touched at all.

use bellwire::{AccessFlags, Mr, Pd};
use std::ptr::NonNull;

/// Bytes of each part.
pub const PART: usize = 1 << 16;
const PAGE: usize = 4096;

/// `no access │ watched │ registered │ watched │ no access`.
pub struct Fence {
    // Goes before the memory.
    mr: Mr,
    _memory: Memory,
    watched: NonNull<u8>,
    secret: u64,
}

struct Memory {
    start: *mut libc::c_void,
}

const BYTES: usize = 2 * PAGE + 3 * PART;

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and not registered any more.
        unsafe { libc::munmap(self.start, BYTES) };
    }
}

impl Fence {
    /// All of it filled with a word that nobody else has; but what peers may read with zeroes.
    pub fn new(pd: &Pd, access: AccessFlags, secret: u64) -> Self {
        // SAFETY: new memory at an address of the kernel's choice; opened but for its ends.
        let (memory, watched) = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let inner = start.add(PAGE);
            let open = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(inner, 3 * PART, open), 0);
            let shown = access.contains(AccessFlags::REMOTE_READ);
            for at in (0..3 * PART).step_by(8) {
                if !(shown && (PART..2 * PART).contains(&at)) {
                    inner.add(at).cast::<u64>().write_volatile(secret);
                }
            }
            (Memory { start }, NonNull::new(inner).expect("mapped"))
        };
        let watched = watched.cast::<u8>();
        // SAFETY: within the memory, which goes after the registration and is accessed by volatile
        // accesses only.
        let mr = unsafe { pd.register(watched.add(PART), PART, access) }.expect("a registration");
        Self {
            mr,
            _memory: memory,
            watched,
            secret,
        }
    }

    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Where words are that are not this one.
    fn others(&self, word: u64, from: usize, to: usize) -> impl Iterator<Item = usize> {
        (from..to).step_by(8).filter(move |at| {
            // SAFETY: within the watched memory, aligned.
            let there = unsafe { self.watched.add(*at).cast::<u64>().read_volatile() };
            there != word
        })
    }

    fn holds_secret(&self, from: usize, to: usize) {
        let written = self.others(self.secret, from, to).next();
        assert_eq!(written, None, "was written to");
    }

    /// Words of this part of a registration that was zeroes.
    pub fn written(&self, from: usize, to: usize) -> usize {
        self.others(0, PART + from, PART + to).count()
    }

    /// Asserts that nothing beside the registration was written to.
    pub fn is_whole(&self) {
        self.holds_secret(0, PART);
        self.holds_secret(2 * PART, 3 * PART);
    }

    /// Asserts that nothing was written to.
    pub fn is_untouched(&self) {
        self.holds_secret(0, 3 * PART);
    }
}
