//! Packets between two processes: a ring of cache lines that one process writes and the other reads.
//!
//! ```text
//!  a packet: whole lines of the writer's segment
//!   0  sequence
//!   4  `Size`
//!   8  `Name`
//!  16  acknowledgement of the other direction's requests
//!  20  `Number`
//!  24  length bytes
//! ```
//!
//! A packet is present when its sequence is its position. That word is written last, together with the one behind it.
//! What an earlier lap has left at the place of the next packet would be data, or an old position: so the first word there
//! is overwritten before, and that of the line behind it afterwards. A packet of up to 40 bytes moves only one cache line
//! between processors.

mod line;
mod room;

pub use line::InPlace;
pub use room::Front;

use super::name::{Kind, Name};
use super::number::Number;
use super::segment::{END, HEADER, LINE, LINES, Segments, line, wide, word};
use super::size::Size;
use crate::copy::Fault;
use crate::sync::MODELS;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::turn::{Biased, HeldByAnother, Hold, Thread};
use room::put_pieces;
use std::cell::UnsafeCell;

/// Where they are.
#[cfg(all(test, not(loom)))]
const SIZE: usize = 4;
const NAME: usize = 8;
const ACK: usize = 16;
const NUMBER: usize = 20;

/// Size of a packet's header in bytes.
pub(super) const FRONT: usize = 24;

/// Largest payload of a packet in bytes: a send WQE, a GRH, and one MTU of data.
pub const MAX_PACKET: usize = 1024 + 64 + 4096;

/// Lines behind each packet that the reader has read: they are cleared.
const CLEARED: u32 = 2;

/// Lines that only responses may use, so that requests cannot block them.
const FOR_ANSWERS: u32 = if MODELS { 0 } else { 256 };

/// Header of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Header<A = Option<Number>> {
    pub name: Name,
    pub number: Number,
    /// Acknowledgement, if it carries one: the last request of the other direction that was taken.
    pub ack: A,
    pub flags: u8,
    /// Bytes of data, up to [`MOST_SHORT`](super::MOST_SHORT), of a SEND that says nothing else: it has no immediate data, and its
    /// completion is not solicited. The shortest have no entry. Zero: look at the entry.
    pub short: u8,
}

impl Header {
    /// That of a packet which carries nothing else.
    pub fn of(name: Name, number: Number) -> Self {
        Self {
            name,
            number,
            ack: None,
            flags: 0,
            short: 0,
        }
    }
}

/// An acknowledgement that a packet may carry.
pub trait CarriedAck {
    /// The last request that was taken, if the packet carries that. Called once, if it is sent for certain.
    fn carried(self) -> Option<Number>;
}

impl CarriedAck for Option<Number> {
    fn carried(self) -> Option<Number> {
        self
    }
}

/// A packet that arrived: a copy, of which only length and kind have been checked.
#[derive(Debug)]
pub struct Packet<'a> {
    pub kind: Kind,
    pub header: Header,
    pub bytes: &'a [u8],
}

/// Most bytes of payload in a packet of one line.
pub const IN_LINE: usize = LINE - FRONT;

/// The peer wrote invalid data.
#[derive(Clone, Copy, Debug)]
pub struct Garbage;

/// Where the first packet is. The sequence of a packet is its position, and memory of zeroes has none.
pub(super) const START: u32 = LINES;

#[inline(always)]
const fn lines_of(bytes: usize) -> u32 {
    // A shift, because `div_ceil` would test the remainder.
    ((FRONT + bytes + LINE - 1) >> LINE.ilog2()) as u32
}

const _: () = assert!(MODELS || lines_of(MAX_PACKET) + CLEARED + FOR_ANSWERS <= LINES);

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    segments: Segments,
    turn: Biased,
    /// Written by the thread that has the turn; other threads only read it. No line from here on looks like the first of a
    /// packet that the reader may look at: neither this one nor the next.
    position: AtomicU32,
    /// Owned by the thread that has the turn.
    at: UnsafeCell<At>,
}

#[derive(Clone, Copy, Debug)]
struct At {
    /// The incarnation of the link's peer.
    incarnation: u64,
    /// Behind the last line that there was room for at the last check of how far the reader had read.
    end: u32,
}

/// In place of an incarnation: there is no link. Requesters that wait for one have zero.
const UNLINKED: u64 = u64::MAX;

impl Default for At {
    fn default() -> Self {
        Self {
            incarnation: UNLINKED,
            end: START + LINES,
        }
    }
}

// SAFETY: the thread that has the turn owns the cell; the rest are addresses of windows.
unsafe impl std::marker::Send for Writer {}
// SAFETY: the thread that has the turn owns the cell; the rest are addresses of windows.
unsafe impl Sync for Writer {}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    /// The reader is behind.
    Full,
    /// The peer is gone, or another one has its place.
    Gone,
    /// Another thread holds the turn: see [`Biased`].
    Held,
    /// The data cannot be read any more.
    Unread,
}

impl From<Fault> for Send {
    fn from(_: Fault) -> Self {
        Self::Unread
    }
}

impl From<HeldByAnother> for Send {
    fn from(_: HeldByAnother) -> Self {
        Self::Held
    }
}

impl Writer {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            turn: Biased::default(),
            position: AtomicU32::new(START),
            at: UnsafeCell::default(),
        }
    }

    /// Who may send.
    pub fn turn(&self) -> &Biased {
        &self.turn
    }

    /// For the thread that has the turn.
    #[inline(always)]
    pub fn with<'w>(&'w self, turn: Hold<'w>) -> Sending<'w> {
        debug_assert!(turn.is_of(&self.turn));
        Sending { writer: self, turn }
    }

    /// The same, if this thread, `me`, holds the turn.
    #[inline(always)]
    pub fn held(&self, me: Thread) -> Option<Sending<'_>> {
        self.turn.held(me).map(|turn| self.with(turn))
    }

    /// How far the reader has read.
    pub fn read_so_far(&self) -> u32 {
        self.segments.read_by_peer()
    }

    /// Whether the reader has read everything that was sent before.
    pub fn all_read(&self) -> bool {
        // Relaxed: what is being sent now is not counted.
        self.read_so_far() == self.position.load(Ordering::Relaxed)
    }
}

/// The turn to send.
#[derive(Debug)]
pub struct Sending<'w> {
    writer: &'w Writer,
    turn: Hold<'w>,
}

impl Sending<'_> {
    /// Begins a link, or ends it if `incarnation` is zero. A thread may hold the turn from now on if `may_be_held`.
    pub fn restart(self, incarnation: u64, may_be_held: bool) {
        self.turn.may_be_held(may_be_held);
        // Relaxed: this thread has the turn.
        self.writer.position.store(START, Ordering::Relaxed);
        // SAFETY: this thread has the turn.
        let at = unsafe { &mut *self.writer.at.get() };
        *at = At::default();
        if incarnation != 0 {
            at.incarnation = incarnation;
        }
    }

    /// Sends a request's packet of `len` bytes, which fits in one line: `first` writes its payload and returns its header
    /// once there is room, so that few values are held meanwhile. It calls nothing.
    #[inline(always)]
    pub fn send_line<A: CarriedAck>(
        self,
        incarnation: u64,
        len: usize,
        first: impl FnOnce(Front) -> Header<A>,
    ) -> Result<(), Send> {
        debug_assert!(len <= IN_LINE);
        let kept = CLEARED + FOR_ANSWERS;
        self.publish(incarnation, 1, kept, |_, front| Ok((len, first(front))))
    }

    /// Like [`send_line`](Self::send_line), for a response, of which `first` also returns how long it is.
    #[inline(always)]
    pub fn answer_line(
        self,
        incarnation: u64,
        first: impl FnOnce(Front) -> (usize, Header),
    ) -> Result<(), Send> {
        self.publish(incarnation, 1, CLEARED, |_, front| Ok(first(front)))
    }

    /// Like [`send_line`](Self::send_line), for a packet of any length: the pieces of `data` are behind the first `at`
    /// bytes of its payload, of which `first` writes those that are in the first line.
    ///
    /// # Safety
    /// Each piece is readable.
    #[inline(always)]
    pub unsafe fn send<A: CarriedAck>(
        self,
        incarnation: u64,
        len: usize,
        first: impl FnOnce(Front) -> Header<A>,
        at: usize,
        data: &[(*const u8, usize)],
    ) -> Result<(), Send> {
        let lines = lines_of(len);
        debug_assert!(
            at + data.iter().map(|it| it.1).sum::<usize>() <= lines as usize * LINE - FRONT
        );
        let (ours, kept) = (self.writer.segments.ours, CLEARED + FOR_ANSWERS);
        self.publish(
            incarnation,
            lines,
            kept,
            #[inline(always)]
            |_, front| {
                // SAFETY: the caller guarantees that the pieces are readable; there is room for a packet of this length,
                // and this thread has the turn.
                unsafe { put_pieces(ours, front.start + FRONT, at, data) }?;
                // Last, because it returns several values.
                Ok((len, first(front)))
            },
        )
    }

    /// Publishes a packet of so many lines, or nothing after a fault. `fill` writes the bytes at this offset and behind, then those in the first line, and
    /// returns how many it has, and the header. So many lines have to be there behind them.
    #[inline(always)]
    fn publish<A: CarriedAck>(
        self,
        incarnation: u64,
        lines: u32,
        kept: u32,
        fill: impl FnOnce(usize, Front) -> Result<(usize, Header<A>), Fault>,
    ) -> Result<(), Send> {
        let writer = self.writer;
        // SAFETY: this thread has the turn.
        let at = unsafe { &mut *writer.at.get() };
        // Read once: the compiler cannot know that the stores below do not change it.
        let ours = writer.segments.ours;
        // Relaxed: only the thread that has the turn changes it.
        let position = writer.position.load(Ordering::Relaxed);
        if at.incarnation != incarnation {
            return Err(Send::Gone);
        }
        let fits = |end: u32| end.wrapping_sub(position.wrapping_add(lines + kept)) as i32 >= 0;
        if !fits(at.end) {
            let seen = writer.segments.read_by_peer();
            // Whatever the peer says that it has read.
            if position.wrapping_sub(seen) > LINES - (lines + kept) {
                return Err(Send::Full);
            }
            at.end = seen.wrapping_add(LINES);
        }
        let (start, next) = (line(position), position.wrapping_add(lines));
        let clear = |at: u32| {
            // The position of another line. Relaxed: published with this packet, or the next one.
            word(ours, line(at)).store(at.wrapping_sub(1), Ordering::Relaxed);
        };
        // The line behind a packet of one is clear already.
        if lines != 1 {
            clear(next);
        }
        // Already now, so that it is not held meanwhile. Relaxed: as above.
        writer.position.store(next, Ordering::Relaxed);
        let (len, header) = match fill(line(position.wrapping_add(1)), Front { ours, start }) {
            Ok(filled) => filled,
            Err(fault) => {
                // The line behind the next packet's first one has to be clear; what was written may be in it.
                clear(position.wrapping_add(1));
                // Relaxed: as above.
                writer.position.store(position, Ordering::Relaxed);
                return Err(fault.into());
            }
        };
        debug_assert!(len <= MAX_PACKET && lines == lines_of(len));
        // Relaxed, all: published by the sequence word.
        wide(ours, start + NAME).store(header.name.bits(), Ordering::Relaxed);
        word(ours, start + NUMBER).store(header.number.word(), Ordering::Relaxed);
        let mut size = Size::new(len, header.flags, header.short);
        if let Some(ack) = header.ack.carried() {
            word(ours, start + ACK).store(ack.word(), Ordering::Relaxed);
            size = size.with_ack();
        }
        let first = u64::from(position) | u64::from(size.bits()) << 32;
        // Release: pairs with the Acquire in `Reader::next_line`.
        wide(ours, start).store(first, Ordering::Release);
        // Also fetches that line from the reader already now: small packets often follow each other.
        clear(next.wrapping_add(1));
        Ok(())
    }
}

/// The reading end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct Reader {
    segments: Segments,
    /// Written by the owner; other threads only read it.
    position: AtomicU32,
}

impl Reader {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            position: AtomicU32::new(START),
        }
    }

    /// Begins a link, whose memory is there.
    pub fn restart(&self) {
        // Relaxed: a hint for other threads; only the owner changes it.
        self.position.store(START, Ordering::Relaxed);
    }

    /// How far it has read. A hint, which any thread may take.
    pub fn position(&self) -> u32 {
        // Relaxed: a hint.
        self.position.load(Ordering::Relaxed)
    }

    /// Whether there is something to read. A hint, which any thread may take.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        // Relaxed: a hint.
        let position = self.position.load(Ordering::Relaxed);
        // Relaxed: `next` checks again.
        word(self.segments.theirs, line(position)).load(Ordering::Relaxed) == position
    }

    /// The first line of the next packet, if there is one. For the owner.
    #[inline(always)]
    pub fn next_line(&self) -> Option<InPlace<'_>> {
        // Relaxed: only the owner changes it.
        let position = self.position.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `Sending::publish`.
        let first = wide(self.segments.theirs, line(position)).load(Ordering::Acquire);
        let size = Size::of_bits((first >> 32) as u32);
        (first as u32 == position).then(|| self.line_of(size))
    }

    /// The line that [`next_line`](Self::next_line) has returned, whose size is not read again: the peer may have changed it.
    #[inline(always)]
    pub fn line_of(&self, size: Size) -> InPlace<'_> {
        // Relaxed: only the owner changes it.
        let position = self.position.load(Ordering::Relaxed);
        InPlace {
            reader: self,
            theirs: self.segments.theirs,
            start: line(position),
            position,
            size,
        }
    }

    /// Where `len` bytes of the next packet's payload are, from offset `at` on: the second part is not empty
    /// if they wrap round the end of the ring. `None`: the packet cannot be that long.
    #[inline(always)]
    pub fn place(&self, at: usize, len: usize) -> Option<[(*const u8, usize); 2]> {
        // Relaxed: only the owner changes it.
        let start = line(self.position.load(Ordering::Relaxed));
        if at + len > MAX_PACKET {
            return None;
        }
        let mut from = start + FRONT + at;
        if from >= END {
            from -= END - HEADER;
        }
        let first = len.min(END - from);
        let pointer = |offset: usize| {
            // SAFETY: within the window's lines.
            unsafe { self.segments.theirs.add(offset) }
                .as_ptr()
                .cast_const()
        };
        Some([(pointer(from), first), (pointer(HEADER), len - first)])
    }

    /// Copies the next packet, if there is one.
    pub fn next<'a>(&self, into: &'a mut [u8; MAX_PACKET]) -> Result<Option<Packet<'a>>, Garbage> {
        let Some(line) = self.next_line() else {
            return Ok(None);
        };
        let (size, theirs) = (line.size(), self.segments.theirs);
        let len = size.len();
        let name = line.name();
        let kind = name.kind().ok_or(Garbage)?;
        let (mut offset, mut done) = (line.start + FRONT, 0);
        if let Some(all) = into
            .first_chunk_mut::<{ LINE - FRONT }>()
            .filter(|all| len <= all.len())
        {
            // A length that is known at compile time.
            // SAFETY: the rest of the line; any bits are valid bytes.
            *all = unsafe { theirs.add(offset).cast().read() };
            done = len;
        }
        let bytes = into.get_mut(..len).ok_or(Garbage)?;
        while done != len {
            let now = (len - done).min(END - offset);
            // SAFETY: within the window's lines, and within `bytes`, which is borrowed exclusively.
            unsafe {
                let from = theirs.add(offset).as_ptr();
                from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(done), now);
            }
            done += now;
            offset = HEADER;
        }
        let header = Header {
            name,
            number: line.number(),
            ack: line.ack(),
            flags: size.flags(),
            short: size.short() as u8,
        };
        Ok(Some(Packet {
            kind,
            header,
            bytes,
        }))
    }

    /// Releases the packet of `len` bytes that `next` returned. `publish`: also publishes the position to the
    /// writer, which moves a cache line to it; doing so now and then is sufficient.
    pub fn done(&self, len: usize, publish: bool) {
        // Relaxed: only the owner changes it.
        let next = (self.position.load(Ordering::Relaxed)).wrapping_add(lines_of(len));
        self.position.store(next, Ordering::Relaxed);
        if publish {
            self.publish();
        }
    }

    /// Publishes our position to the writer.
    #[inline(always)]
    pub fn publish(&self) {
        // Relaxed: only the owner changes it.
        self.publish_at(self.position.load(Ordering::Relaxed));
    }

    /// Like [`publish`](Self::publish), where the caller knows the position.
    #[inline(always)]
    pub fn publish_at(&self, position: u32) {
        self.segments.publish_read(position);
    }

    /// Whether there is a packet at the position behind the last one. For the owner.
    #[inline(always)]
    pub fn is_at(&self, position: u32) -> bool {
        // Relaxed: `next_line` looks again.
        word(self.segments.theirs, line(position)).load(Ordering::Relaxed) == position
    }
}

#[cfg(all(test, any(loom, miri)))]
pub(super) mod models;
#[cfg(all(test, not(loom)))]
mod tests;
