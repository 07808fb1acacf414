//! The first line of a packet that has arrived.

use super::super::name::Name;
use super::super::number::Number;
use super::super::segment::{LINE, wide, word};
use super::super::size::Size;
use super::room::behind;
use super::{ACK, FRONT, MAX_PACKET, NAME, NUMBER, Reader, lines_of};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The first line of the next packet, in its place, before its reader has released it. The peer may change it at
/// any time: whoever reads a word reads it once, and checks what was read.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'r> {
    pub(super) reader: &'r Reader,
    pub(super) theirs: NonNull<u8>,
    pub(super) start: usize,
    pub(super) position: u32,
    /// Was read together with the sequence.
    pub(super) size: Size,
}

impl InPlace<'_> {
    #[inline(always)]
    fn word(self, at: usize) -> u32 {
        // Relaxed: ordered by the Acquire in `Reader::next_line`.
        word(self.theirs, self.start + at).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn pair(self, at: usize) -> u64 {
        // Relaxed: ordered by the Acquire in `Reader::next_line`.
        wide(self.theirs, self.start + at).load(Ordering::Relaxed)
    }

    /// What the packet is, and the queue pairs that it names. The peer may have written more beside the numbers, of which
    /// nothing is left: it could stand for another node.
    #[inline(always)]
    pub fn name(self) -> Name {
        self.whole_name().without_more()
    }

    /// All of the [`name`](Self::name), as the peer has written it.
    #[inline(always)]
    pub fn whole_name(self) -> Name {
        Name::of_bits(self.pair(NAME))
    }

    /// Number of the request.
    #[inline(always)]
    pub fn number(self) -> Number {
        Number::of_word(self.word(NUMBER))
    }

    /// The packet's size, as the peer has written it.
    #[inline(always)]
    pub fn size(self) -> Size {
        self.size
    }

    /// The acknowledgement, as in [`Header::ack`](super::Header::ack).
    #[inline(always)]
    pub fn ack(self) -> Option<Number> {
        self.size
            .carries_ack()
            .then(|| Number::of_word(self.word(ACK)))
    }

    /// Eight bytes of the payload, at a multiple of eight, within this line.
    #[inline(always)]
    pub fn wide(self, offset: usize) -> u64 {
        debug_assert!(offset < LINE - FRONT);
        self.pair(FRONT + offset)
    }

    /// Like [`wide`](Self::wide), within any of the packet's lines.
    #[inline(always)]
    pub fn wide_in(self, offset: usize) -> u64 {
        debug_assert!(offset < MAX_PACKET);
        // Relaxed: ordered by the Acquire in `Reader::next_line`.
        wide(self.theirs, behind(self.start + FRONT + offset)).load(Ordering::Relaxed)
    }

    /// Where the bytes of the payload in this line are, from this offset on.
    #[inline(always)]
    pub fn bytes(self, offset: usize) -> *const u8 {
        debug_assert!(offset < LINE - FRONT);
        // SAFETY: within the window's lines.
        unsafe { self.theirs.add(self.start + FRONT + offset) }
            .as_ptr()
            .cast_const()
    }

    /// Releases the packet, whose payload has this length, as [`Reader::done`], and returns the position behind it.
    #[inline(always)]
    pub fn done(self, len: usize) -> u32 {
        // Relaxed: only the owner changes it.
        let next = self.position.wrapping_add(lines_of(len));
        self.reader.position.store(next, Ordering::Relaxed);
        next
    }
}
