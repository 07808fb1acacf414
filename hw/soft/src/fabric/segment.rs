//! The segments of a link: memory that one node writes and the other reads.
//!
//! ```text
//!     0  how far the writer has read the peer's lines
//!   128  whether the writer wants to be woken
//!   256  whether the writer's port is down
//!  4096  lines of 64 bytes: packets, see `wire`
//!   end  the published words of queue pairs, and their sections
//! ```

#[cfg(any(loom, all(test, miri)))]
pub(super) use super::shared::{wide, word};
use super::window::Window;
use crate::sync::MODELS;
use bellwire_provider::quiesce::Section;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a line.
pub const LINE: usize = 64;

/// Lines of a ring; few in a model.
pub(super) const LINES: u32 = if MODELS { 4 } else { 4096 };

/// The largest page of any machine that Linux runs on here. What is mapped is a whole number of those, so
/// that it can be mapped side by side whatever the page size is.
pub(super) const MAX_PAGE: usize = 64 << 10;

/// Where the lines start, behind the header.
pub(super) const HEADER: usize = 4096;
const READ: usize = 0;
const ATTENTION: usize = 128;
const DOWN: usize = 256;

/// Where the lines end and the published words start: one entry for each index of a queue pair.
pub(super) const END: usize = HEADER + LINES as usize * LINE;
const QPS: usize = 1 << 16;

const SECTIONS: usize = END + QPS * size_of::<Published>();

/// Size of a segment in bytes.
pub(super) const SEGMENT: usize = (SECTIONS + QPS * size_of::<Busy>()).next_multiple_of(MAX_PAGE);

#[cfg(not(any(loom, all(test, miri))))]
pub(super) fn word(segment: NonNull<u8>, offset: usize) -> &'static AtomicU32 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(4));
    // SAFETY: within a window, which lives as long as its node; aligned. Shared memory is accessed by
    // atomics, and by copies whose contents are checked.
    unsafe { segment.add(offset).cast::<AtomicU32>().as_ref() }
}

/// Like [`word`], for eight bytes.
#[cfg(not(any(loom, all(test, miri))))]
pub(super) fn wide(segment: NonNull<u8>, offset: usize) -> &'static AtomicU64 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(8));
    // SAFETY: within a window, which lives as long as its node; aligned.
    unsafe { segment.add(offset).cast::<AtomicU64>().as_ref() }
}

pub(super) fn line(position: u32) -> usize {
    HEADER + (position & (LINES - 1)) as usize * LINE
}

/// What a peer may know of a queue pair that is connected to one of its own.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Published {
    /// The life in which it sends, with flags; zero: none.
    pub life: AtomicU32,
    /// How its packets are made: see `soft::packets`.
    pub packets: AtomicU32,
    /// Whose requests it accepts, as on its own side: see `soft::qp::Rights`.
    pub accepts: AtomicU64,
    pub pd: AtomicU32,
    pub access: AtomicU32,
}

/// Odd while a queue pair accesses the peer's memory. It has a cache line of its own, also where lines have
/// 128 bytes, because it is written at each request, and the peer reads the published words at each of its requests.
#[derive(Debug)]
#[repr(C, align(128))]
struct Busy(Section);

fn busy(segment: NonNull<u8>, qpn: u32) -> &'static Section {
    let at = SECTIONS + (qpn as usize & (QPS - 1)) * size_of::<Busy>();
    // SAFETY: within a window, which lives as long as its node; any bits are a section.
    &unsafe { segment.add(at).cast::<Busy>().as_ref() }.0
}

fn published(segment: NonNull<u8>, qpn: u32) -> &'static Published {
    let at = END + (qpn as usize & (QPS - 1)) * size_of::<Published>();
    // SAFETY: within a window, which lives as long as its node; any bits are published words.
    unsafe { segment.add(at).cast::<Published>().as_ref() }
}

/// The two segments of a link with one peer.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    pub(super) ours: NonNull<u8>,
    pub(super) theirs: NonNull<u8>,
}

// SAFETY: addresses of windows.
unsafe impl Send for Segments {}
// SAFETY: addresses of windows.
unsafe impl Sync for Segments {}

impl Segments {
    pub(super) fn new(ours: &Window, theirs: &Window) -> Self {
        Self {
            ours: ours.start(),
            theirs: theirs.start(),
        }
    }

    /// How far the peer has read the lines that we have written.
    #[inline(always)]
    pub(super) fn read_by_peer(&self) -> u32 {
        // Acquire: pairs with the Release in `publish_read`.
        word(self.theirs, READ).load(Ordering::Acquire)
    }

    /// Publishes how far we have read the lines that the peer has written.
    pub(super) fn publish_read(&self, position: u32) {
        // Release: pairs with the Acquire in `read_by_peer`; the copies come before it.
        word(self.ours, READ).store(position, Ordering::Release);
    }

    /// The life of a peer's queue pair, as the peer publishes it; zero: none that sends.
    pub fn life(&self, qpn: u32) -> u32 {
        // Acquire: pairs with the Release in `set_life`. The fence orders earlier reads of the peer's memory
        // before this load.
        fence(Ordering::Acquire);
        self.published_by_peer(qpn).life.load(Ordering::Acquire)
    }

    /// Publishes the life of our queue pair.
    pub fn set_life(&self, qpn: u32, value: u32) {
        // Release: pairs with the Acquire in `life`. The fence orders the store before the completions that
        // follow.
        self.published_here(qpn)
            .life
            .store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// How the packets of a peer's queue pair are made, behind [`life`](Self::life).
    pub fn packets(&self, qpn: u32) -> u32 {
        // Relaxed: written before the life.
        self.published_by_peer(qpn).packets.load(Ordering::Relaxed)
    }

    /// Publishes how the packets of our queue pair are made, before [its life](Self::set_life).
    pub fn set_packets(&self, qpn: u32, word: u32) {
        // Relaxed: published by the life.
        self.published_here(qpn)
            .packets
            .store(word, Ordering::Relaxed);
    }

    /// What the peer publishes of its queue pair.
    #[inline(always)]
    pub fn published_by_peer(&self, qpn: u32) -> &'static Published {
        published(self.theirs, qpn)
    }

    /// The section of one of our queue pairs that accesses the peer's memory.
    #[inline(always)]
    pub fn our_section(&self, qpn: u32) -> &'static Section {
        busy(self.ours, qpn)
    }

    /// The section of one of the peer's queue pairs.
    pub fn their_section(&self, qpn: u32) -> &'static Section {
        busy(self.theirs, qpn)
    }

    /// What we publish of our queue pair to the peer.
    #[inline(always)]
    pub fn published_here(&self, qpn: u32) -> &'static Published {
        published(self.ours, qpn)
    }

    /// Whether the peer accepts no packets because its port is down.
    #[inline(always)]
    pub fn is_down(&self) -> bool {
        // Relaxed: the flag orders no other data.
        word(self.theirs, DOWN).load(Ordering::Relaxed) != 0
    }

    /// Publishes whether our port is down, so that we accept no packets.
    pub fn set_down(&self, down: bool) {
        // Relaxed: the flag orders no other data.
        word(self.ours, DOWN).store(down.into(), Ordering::Relaxed);
    }

    /// Whether the peer wants to be woken for packets.
    #[inline(always)]
    pub fn wants_attention(&self) -> bool {
        // Relaxed: ordered by the caller's barrier, which pairs with the heavy one in `Hca::attend`.
        word(self.theirs, ATTENTION).load(Ordering::Relaxed) != 0
    }

    /// Publishes whether we want to be woken for packets.
    pub fn set_attention(&self, wanted: bool) {
        // Relaxed: ordered by the caller's barrier.
        word(self.ours, ATTENTION).store(wanted.into(), Ordering::Relaxed);
    }
}
