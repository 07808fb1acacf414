//! The segments of a link: memory that one node writes and the other reads.
//!
//! ```text
//!     0  how far it has read the peer's
//!   128  whether it wants to be woken
//!   256  how many keys it has taken away
//!   384  whether its port is down
//!  4096  lines of 64 bytes: packets, see `wire`
//!   end  the faces of queue pairs, and their sections
//! ```

use super::window::Windows;
use crate::soft::Section;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Lines of a ring.
pub(super) const LINES: u32 = 4096;

/// Where the lines start; before them is the header's page.
pub(super) const HEADER: usize = 4096;
const READ: usize = 0;
const ATTENTION: usize = 128;
const REVOKED: usize = 256;
const DOWN: usize = 384;

/// Where the lines end, and the faces start: one for each queue pair that a number can fall on.
pub(super) const END: usize = HEADER + LINES as usize * LINE;
const FACES: usize = 1 << 16;

const SECTIONS: usize = END + FACES * size_of::<Face>();

/// Bytes of a segment.
pub(super) const SEGMENT: usize = SECTIONS + FACES * size_of::<Busy>();

pub(super) fn word(segment: NonNull<u8>, offset: usize) -> &'static AtomicU32 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(4));
    // SAFETY: within a window, which stays as long as its node; aligned. Shared memory is touched by
    // atomics, and by copies whose result is checked.
    unsafe { segment.add(offset).cast::<AtomicU32>().as_ref() }
}

/// As [`word`], of eight bytes.
pub(super) fn wide(segment: NonNull<u8>, offset: usize) -> &'static AtomicU64 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(8));
    // SAFETY: as in `word`.
    unsafe { segment.add(offset).cast::<AtomicU64>().as_ref() }
}

pub(super) fn line(position: u32) -> usize {
    HEADER + (position & (LINES - 1)) as usize * LINE
}

/// What a peer may know of a queue pair that is connected to one of its.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Face {
    /// Which life it sends in; zero: none.
    pub life: AtomicU32,
    /// What it takes requests of, as its own side knows it: see `soft::qp::Face`.
    pub accepts: AtomicU64,
    pub pd: AtomicU32,
    pub access: AtomicU32,
}

/// Odd while a queue pair reaches into the peer's memory. In a line of its own: it is written at each
/// request, and the peer looks at the faces at each of its.
#[derive(Debug)]
#[repr(C, align(64))]
struct Busy(Section);

fn busy(segment: NonNull<u8>, qpn: u32) -> &'static Section {
    let at = SECTIONS + (qpn as usize & (FACES - 1)) * size_of::<Busy>();
    // SAFETY: as in `face`.
    &unsafe { segment.add(at).cast::<Busy>().as_ref() }.0
}

fn face(segment: NonNull<u8>, qpn: u32) -> &'static Face {
    let at = END + (qpn as usize & (FACES - 1)) * size_of::<Face>();
    // SAFETY: within a window, as in `word`; any bits are a face.
    unsafe { segment.add(at).cast::<Face>().as_ref() }
}

/// The two segments of a link with one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    pub(super) ours: NonNull<u8>,
    pub(super) theirs: NonNull<u8>,
}

// SAFETY: addresses of windows.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl Segments {
    pub(super) fn new(ours: &Windows, theirs: &Windows, slot: usize) -> Self {
        Self {
            ours: ours.at(slot),
            theirs: theirs.at(slot),
        }
    }

    /// How far the peer has read what we have written.
    #[inline(always)]
    pub(super) fn read_by_peer(&self) -> u32 {
        // Acquire: partner of the release in `tell_read`.
        word(self.theirs, READ).load(Ordering::Acquire)
    }

    /// Tells the peer how far we have read what it has written.
    pub(super) fn tell_read(&self, position: u32) {
        // Release: partner of the acquire in `read_by_peer`; the copies come before.
        word(self.ours, READ).store(position, Ordering::Release);
    }

    /// How many keys the peer has taken away.
    pub fn revoked(&self) -> u32 {
        // Acquire: as in `life`.
        fence(Ordering::Acquire);
        word(self.theirs, REVOKED).load(Ordering::Acquire)
    }

    /// How many keys we have taken away, as the peer is told.
    pub fn own_revoked(&self) -> u32 {
        // Relaxed: under the device's lock.
        word(self.ours, REVOKED).load(Ordering::Relaxed)
    }

    /// A key has been taken away: what is fetched from here on was not its to open.
    pub fn note_revoked(&self) {
        // Relaxed: under the device's lock. SeqCst: the memory is used again after this.
        word(self.ours, REVOKED).fetch_add(1, Ordering::SeqCst);
    }

    /// Which life of its queue pair the peer says to be in; zero: none that sends.
    pub fn life(&self, qpn: u32) -> u32 {
        // Acquire: partner of the release in `set_life`; what was read of the peer's memory before
        // was read before this.
        fence(Ordering::Acquire);
        self.their_face(qpn).life.load(Ordering::Acquire)
    }

    /// Says which life of its our queue pair is in.
    pub fn set_life(&self, qpn: u32, value: u32) {
        // Release: partner of the acquire in `life`; nothing that is told after this is before it.
        self.our_face(qpn).life.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// What the peer says of its queue pair.
    #[inline(always)]
    pub fn their_face(&self, qpn: u32) -> &'static Face {
        face(self.theirs, qpn)
    }

    /// The section of a queue pair of ours that reaches into the peer's memory.
    #[inline(always)]
    pub fn our_section(&self, qpn: u32) -> &'static Section {
        busy(self.ours, qpn)
    }

    /// That of a queue pair of the peer's.
    pub fn their_section(&self, qpn: u32) -> &'static Section {
        busy(self.theirs, qpn)
    }

    /// What the peer is told of ours.
    #[inline(always)]
    pub fn our_face(&self, qpn: u32) -> &'static Face {
        face(self.ours, qpn)
    }

    /// Whether the peer takes no packets.
    #[inline(always)]
    pub fn is_down(&self) -> bool {
        // Relaxed: a flag on its own.
        word(self.theirs, DOWN).load(Ordering::Relaxed) != 0
    }

    /// Says whether we take no packets.
    pub fn set_down(&self, down: bool) {
        // Relaxed: as above.
        word(self.ours, DOWN).store(down.into(), Ordering::Relaxed);
    }

    /// Whether the peer wants to be woken for packets.
    #[inline(always)]
    pub fn wants_attention(&self) -> bool {
        // Relaxed: ordered by the caller's barrier, partner of the heavy one in `Hca::attend`.
        word(self.theirs, ATTENTION).load(Ordering::Relaxed) != 0
    }

    /// Says whether we want to be woken for packets.
    pub fn set_attention(&self, wanted: bool) {
        // Relaxed: ordered by the caller's barrier.
        word(self.ours, ATTENTION).store(wanted.into(), Ordering::Relaxed);
    }
}
