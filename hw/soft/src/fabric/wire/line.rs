//! The first line of a packet that has arrived.

use super::super::number::Number;
use super::super::segment::{END, LINE, line, wide, word};
use super::{CARRIES_ACK, FRONT, Kind, NAME, NUMBER, Reader, SHORT_AT, SIZE, TAKEN, lines_of};
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
}

impl InPlace<'_> {
    #[inline(always)]
    fn word(self, at: usize) -> u32 {
        // Relaxed: ordered by the Acquire in `Reader::first`.
        word(self.theirs, self.start + at).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn pair(self, at: usize) -> u64 {
        // Relaxed: ordered by the Acquire in `Reader::first`.
        wide(self.theirs, self.start + at).load(Ordering::Relaxed)
    }

    /// Destination queue pair, and above 24 bits the [`Kind`].
    #[inline(always)]
    pub fn to(self) -> u32 {
        self.word(NAME + 4)
    }

    /// The name of a request's connection without its LID, and the bit of [`Kind::Request`]: see [`Peer::requests`]. The
    /// peer may have written a LID, of which nothing is left.
    ///
    /// [`Peer::requests`]: crate::fabric::Peer::requests
    #[inline(always)]
    pub fn name(self) -> u64 {
        const NUMBERS: u64 = 0x00ff_ffff_00ff_ffff | (Kind::Request as u64) << 56;
        self.pair(NAME) & NUMBERS
    }

    /// Number of the request.
    #[inline(always)]
    pub fn number(self) -> Number {
        Number::of_word(self.word(NUMBER))
    }

    /// Length of the packet's payload, above 16 bits its flags, and [`CARRIES_ACK`].
    #[inline(always)]
    pub fn size(self) -> u32 {
        self.word(SIZE)
    }

    /// [`Header::short`](super::Header::short), of this [`size`](Self::size).
    #[inline(always)]
    pub fn short(size: u32) -> usize {
        (size >> SHORT_AT) as usize
    }

    /// The acknowledgement, as in [`Header::taken`](super::Header::taken), where there is one.
    #[inline(always)]
    pub fn taken(self) -> (u16, u16) {
        let taken = Number::of_word(self.word(TAKEN));
        (taken.life(), taken.msn())
    }

    /// Four bytes of the payload, at a multiple of four, within this line.
    #[inline(always)]
    pub fn at(self, offset: usize) -> u32 {
        debug_assert!(offset < LINE - FRONT);
        self.word(FRONT + offset)
    }

    /// Eight bytes of the payload, at a multiple of eight, within this line.
    #[inline(always)]
    pub fn wide(self, offset: usize) -> u64 {
        debug_assert!(offset < LINE - FRONT);
        self.pair(FRONT + offset)
    }

    /// Like [`wide`](Self::wide), within the packet's second line, if it has one.
    #[inline(always)]
    pub fn wide_behind(self, offset: usize) -> u64 {
        let (second, at) = (self.position.wrapping_add(1), FRONT + offset - LINE);
        debug_assert!(at < LINE);
        // Relaxed: ordered by the Acquire in `Reader::first`.
        wide(self.theirs, line(second) + at).load(Ordering::Relaxed)
    }

    /// Whether a payload of up to `MOST` bytes does not go on at the ring's start, whatever its length is.
    #[inline(always)]
    pub fn is_whole<const MOST: usize>(self) -> bool {
        self.start <= END - FRONT - MOST
    }

    /// Where the bytes of the payload from this offset on are: those of this line, or of all for which the packet
    /// [is whole](Self::is_whole).
    #[inline(always)]
    pub fn bytes(self, offset: usize) -> *const u8 {
        debug_assert!(offset < LINE - FRONT);
        // SAFETY: within the window's lines.
        unsafe { self.theirs.add(self.start + FRONT + offset) }
            .as_ptr()
            .cast_const()
    }

    /// Copies the line.
    #[inline(always)]
    pub fn copy(self) -> Line {
        Line([
            self.pair(0),
            self.pair(8),
            self.pair(16),
            self.pair(24),
            self.pair(32),
            self.pair(40),
            self.pair(48),
            self.pair(56),
        ])
    }

    /// Releases the packet, whose payload has this length, as [`Reader::done`], and returns the position behind it.
    #[inline(always)]
    pub fn done(self, len: u32) -> u32 {
        self.pass(lines_of(len as usize))
    }

    /// Like [`done`](Self::done), of a packet that is this line alone.
    #[inline(always)]
    pub fn done_alone(self) -> u32 {
        self.pass(1)
    }

    #[inline(always)]
    fn pass(self, lines: u32) -> u32 {
        // Relaxed, both: only the owner changes it. Read again, so that one value less is held meanwhile.
        let next = (self.reader.position.load(Ordering::Relaxed)).wrapping_add(lines);
        self.reader.position.store(next, Ordering::Relaxed);
        next
    }
}

/// The first line of a packet: a copy, of which nothing has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Line([u64; LINE / 8]);

impl Line {
    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        (self.0[at / 8] >> (at % 8 * 8)) as u32
    }

    /// Destination queue pair.
    #[inline(always)]
    pub fn dst(&self) -> u32 {
        self.word(NAME + 4) & 0xff_ffff
    }

    #[inline(always)]
    pub fn is(&self, kind: Kind) -> bool {
        self.word(NAME + 4) >> 24 == kind as u32
    }

    #[inline(always)]
    pub fn number(&self) -> Number {
        Number::of_word(self.word(NUMBER))
    }

    #[inline(always)]
    pub fn flags(&self) -> u8 {
        (self.word(SIZE) >> 16) as u8
    }

    /// Bytes of the packet's payload.
    #[inline(always)]
    pub fn len(&self) -> usize {
        (self.word(SIZE) & 0xffff) as usize
    }

    /// Acknowledgement, as in [`Header::taken`](super::Header::taken).
    #[inline(always)]
    pub fn taken(&self) -> Option<(u16, u16)> {
        let taken = Number::of_word(self.word(TAKEN));
        (self.word(SIZE) & CARRIES_ACK != 0).then_some((taken.life(), taken.msn()))
    }

    /// Four bytes of the payload, at a multiple of four.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> u32 {
        self.word(FRONT + offset)
    }

    /// Eight bytes of the payload, at a multiple of eight; zeroes behind the line.
    #[inline(always)]
    pub fn wide(&self, offset: usize) -> u64 {
        self.0.get((FRONT + offset) / 8).copied().unwrap_or(0)
    }
}
