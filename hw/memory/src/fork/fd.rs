//! Descriptors that children close.
//!
//! A child that lives on keeps each descriptor of its parent open: a listener keeps its address, a socket never
//! ends for its peer, a context of a device keeps its queue pairs. Linux has no flag against that. So a set of
//! descriptors is closed by the first handler that runs in a child of fork(3), before any code of the program
//! could reuse their numbers.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::{Life, keep};

/// Descriptors of a chunk.
const CHUNK: usize = 4096;

/// Chunks: enough for the largest `fs.nr_open` that is usual, 1,048,576. Descriptors beyond stay open in
/// children.
const CHUNKS: usize = 256;

type Chunk = [AtomicU64; CHUNK / 64];

/// The set: a bit for each descriptor. Chunks are made when they are needed, and stay.
/// The first has memory from the beginning. Without memory for another, its descriptors stay open in children.
static CHUNKS_OF_SET: [AtomicPtr<Chunk>; CHUNKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// The chunk of the descriptors that most processes have.
static FIRST: Chunk = [const { AtomicU64::new(0) }; CHUNK / 64];

fn word(fd: RawFd, make: bool) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    let chunk = CHUNKS_OF_SET.get(at / CHUNK)?;
    // Acquire: pairs with the Release below.
    let mut there = chunk.load(Ordering::Acquire);
    if there.is_null() {
        if !make {
            return None;
        }
        let mut room: Vec<Chunk> = Vec::new();
        let new = match at / CHUNK {
            0 => ptr::from_ref(&FIRST).cast_mut(),
            _ => {
                room.try_reserve_exact(1).ok()?;
                room.push([const { AtomicU64::new(0) }; CHUNK / 64]);
                room.as_mut_ptr()
            }
        };
        // Release: pairs with the Acquire above, and in `close_inherited`.
        match chunk.compare_exchange(there, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // It stays.
                room.leak();
                there = new;
            }
            Err(first) => there = first,
        }
    }
    // SAFETY: made above, never freed, and only read through.
    let words = unsafe { &*there };
    Some((&words[at % CHUNK / 64], 1 << (at % 64)))
}

/// Has children close a descriptor. [`keep_open`] comes before it is closed here.
fn close_in_children(fd: RawFd) {
    super::life::at_fork();
    if let Some((word, bit)) = word(fd, true) {
        // Relaxed: read in a child of fork(3) only, which has what was stored.
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

fn keep_open(fd: RawFd) {
    if let Some((word, bit)) = word(fd, false) {
        // Relaxed: as in `close_in_children`.
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Closes all descriptors of the set. Called in a child before its program goes on: async-signal-safe.
pub(super) fn close_inherited() {
    for (at, chunk) in CHUNKS_OF_SET.iter().enumerate() {
        // Acquire: pairs with the Release in `word`.
        let chunk = chunk.load(Ordering::Acquire);
        // SAFETY: null, or made in `word` and never freed.
        let Some(words) = (unsafe { chunk.as_ref() }) else {
            continue;
        };
        for (nth, word) in words.iter().enumerate() {
            // Relaxed: the child has one thread.
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let fd = at * CHUNK + nth * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // SAFETY: it belongs to an `Fd` of the parent, which the child does not use.
                unsafe { libc::close(fd as RawFd) };
            }
        }
    }
}

/// A descriptor that the children of this process close before anything else. It may be used as any other
/// descriptor, by this process only.
pub struct Fd<T: AsFd = OwnedFd> {
    of: ManuallyDrop<T>,
    life: Life,
}

impl<T: AsFd> Fd<T> {
    /// Has children close the descriptor of `of`.
    pub fn new(of: T) -> Self {
        close_in_children(of.as_fd().as_raw_fd());
        Self {
            of: ManuallyDrop::new(of),
            life: Life::current(),
        }
    }
}

impl<T: AsFd> From<T> for Fd<T> {
    fn from(of: T) -> Self {
        Self::new(of)
    }
}

impl<T: AsFd> std::ops::Deref for Fd<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

impl<T: AsFd> std::ops::DerefMut for Fd<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.of
    }
}

impl<T: AsFd> AsFd for Fd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.of.as_fd()
    }
}

impl<T: AsFd> AsRawFd for Fd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Fd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.fmt(f)
    }
}

impl<T: AsFd> Drop for Fd<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, as it is not used behind this.
        let of = unsafe { ManuallyDrop::take(&mut self.of) };
        if self.life.is_current() {
            // Before it is closed: a child must not close another descriptor that gets its number.
            keep_open(of.as_fd().as_raw_fd());
            drop(of);
        } else {
            // It was closed when this process was forked: its number may be another descriptor's.
            keep(of);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: takes numbers.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    fn opened() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn children_close_what_is_in_the_set_and_nothing_else() {
        let (ours, other) = (Fd::new(opened()), opened());
        let was = Fd::new(opened());
        let number = was.as_raw_fd();
        drop(was);
        // The lowest free number. Another test may take it meanwhile, which changes nothing here.
        // SAFETY: the descriptor is new.
        let again = unsafe { OwnedFd::from_raw_fd(libc::dup(other.as_raw_fd())) };
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let closed = !is_open(ours.as_raw_fd());
            let kept = is_open(other.as_raw_fd()) && is_open(again.as_raw_fd());
            // SAFETY: the child owns a new descriptor, of the lowest number.
            let mine = unsafe { libc::dup(other.as_raw_fd()) };
            drop(ours);
            let right = closed && kept && is_open(mine);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert!(is_open(ours.as_raw_fd()) && number >= 0);
    }
}
