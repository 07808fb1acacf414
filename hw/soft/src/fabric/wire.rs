//! Packets between two processes: a ring of cache lines that one process writes and the other reads.
//!
//! ```text
//!  a packet: whole lines of the writer's segment
//!   0  sequence
//!   4  length, flags, whether it carries an acknowledgement, length of a short SEND's data
//!   8  src   12  dst, kind
//!  16  acknowledgement of the other direction's requests
//!  20  life, msn
//!  24  length bytes
//! ```
//!
//! A packet is present when its sequence word has the expected value. That word is written last, and the
//! first word of the next packet's place is zeroed before. A packet of up to 40 bytes moves only one cache
//! line between processors.

mod line;
mod room;

pub use line::{InPlace, Line};
pub use room::{Front, Room};

use super::number::Number;
use super::segment::{END, HEADER, LINE, LINES, Segments, line, wide, word};
use crate::sync::MODELS;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::turn::{Taken, Turn};
use room::put_pieces;
use std::cell::UnsafeCell;

/// Where they are, behind the sequence.
const SIZE: usize = 4;
const NAME: usize = 8;
const TAKEN: usize = 16;
const NUMBER: usize = 20;

/// In the word with a packet's length: the packet carries an acknowledgement of the other direction.
pub const CARRIES_ACK: u32 = 1 << 24;

/// The bits of that word with [`Header::short`].
pub const SHORT: u32 = (MOST_SHORT as u32) << SHORT_AT;
const SHORT_AT: u32 = 25;

/// The largest value of [`Header::short`].
pub const MOST_SHORT: usize = 127;

/// Size of a packet's header in bytes.
pub(super) const FRONT: usize = 24;

/// Largest payload of a packet in bytes: a send WQE, a GRH, and one MTU of data.
pub const MAX_PACKET: usize = 1024 + 64 + 4096;

/// Lines that only responses may use, so that requests cannot block them.
const FOR_ANSWERS: u32 = if MODELS { 0 } else { 256 };

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request of a connected queue pair. Names of connections have nothing in this bit.
    Request = 0x40,
    /// A datagram.
    Datagram = 2,
    /// The response to a request.
    Answer = 3,
    /// Requests the responses that are owed, now.
    Probe = 4,
    /// Data of a READ response.
    Data = 5,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Self> {
        [
            Self::Request,
            Self::Datagram,
            Self::Answer,
            Self::Probe,
            Self::Data,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == bits)
    }
}

/// Header of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub kind: Kind,
    /// Destination queue pair: 24 bits.
    pub dst: u32,
    /// The requester's queue pair, of a request: 24 bits. Otherwise zero.
    pub src: u32,
    /// Number of the request in its life.
    pub msn: u16,
    /// Life of the requester's queue pair to which it belongs.
    pub life: u16,
    /// Acknowledgement, if it carries one: life and number of the last request of the other direction that
    /// was taken.
    pub taken: Option<(u16, u16)>,
    pub flags: u8,
    /// Bytes of data, up to [`MOST_SHORT`], of a SEND that says nothing else: it has no immediate data, and its
    /// completion is not solicited. The shortest have no entry. Zero: look at the entry.
    pub short: u8,
}

/// A packet that arrived: a copy, of which only length and kind have been checked.
#[derive(Debug)]
pub struct Packet<'a> {
    pub header: Header,
    pub bytes: &'a [u8],
}

/// Most bytes of payload in a packet of one line.
pub const IN_LINE: usize = LINE - FRONT;

/// The peer wrote invalid data.
#[derive(Clone, Copy, Debug)]
pub struct Garbage;

/// Never zero, and different each time that the ring wraps round.
fn sequence(position: u32) -> u32 {
    position | 1 << 31
}

#[inline(always)]
const fn lines_of(bytes: usize) -> u32 {
    // A shift, because `div_ceil` would test the remainder.
    ((FRONT + bytes + LINE - 1) >> LINE.ilog2()) as u32
}

const _: () = assert!(MODELS || lines_of(MAX_PACKET) + 1 + FOR_ANSWERS <= LINES);

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    segments: Segments,
    turn: Turn,
    /// Owned by the thread that has the turn.
    at: UnsafeCell<At>,
}

#[derive(Clone, Copy, Debug, Default)]
struct At {
    position: u32,
    /// How far the reader had read at the last check.
    seen: u32,
    /// Up to here, no line looks like the first of a packet.
    cleared: u32,
    /// The incarnation of the link's peer; zero while there is none.
    incarnation: u64,
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
}

impl Writer {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            turn: Turn::default(),
            at: UnsafeCell::default(),
        }
    }

    /// Begins a link, or ends it if `incarnation` is zero.
    pub fn restart(&self, incarnation: u64) {
        let _turn = self.turn.take();
        // SAFETY: this thread has the turn.
        unsafe {
            *self.at.get() = At {
                incarnation,
                ..At::default()
            };
        }
    }

    /// Sends a packet of `len` bytes, which `fill` writes.
    #[inline(always)]
    pub fn send(
        &self,
        incarnation: u64,
        header: Header,
        len: usize,
        fill: impl FnOnce(&mut Room),
    ) -> Result<(), Send> {
        let turn = self.turn.take();
        let lines = lines_of(len);
        self.publish(
            turn,
            incarnation,
            header.kind,
            len,
            lines,
            |offset, front| {
                let mut room = Room::new(self.segments.ours, offset, len);
                fill(&mut room);
                room.write_first(front);
                header
            },
        )
    }

    /// Publishes a packet of `len` bytes, which take so many lines. `fill` writes those at this offset and behind, then
    /// those in the first line, and returns the header.
    #[inline(always)]
    fn publish(
        &self,
        _turn: Taken<'_>,
        incarnation: u64,
        kind: Kind,
        len: usize,
        lines: u32,
        fill: impl FnOnce(usize, Front) -> Header,
    ) -> Result<(), Send> {
        debug_assert!(len <= MAX_PACKET && lines == lines_of(len));
        // SAFETY: this thread has the turn.
        let at = unsafe { &mut *self.at.get() };
        // Read once: the compiler cannot know that the stores below do not change it.
        let (ours, position) = (self.segments.ours, at.position);
        if at.incarnation != incarnation || incarnation == 0 {
            return Err(Send::Gone);
        }
        let kept = match kind {
            Kind::Answer => 1,
            Kind::Request | Kind::Datagram | Kind::Probe | Kind::Data => 1 + FOR_ANSWERS,
        };
        // Whatever the peer says that it has read.
        let fits = |seen: u32| position.wrapping_sub(seen) <= LINES - (lines + kept);
        if !fits(at.seen) {
            at.seen = self.segments.read_by_peer();
            if !fits(at.seen) {
                return Err(Send::Full);
            }
        }
        let (start, next) = (line(position), position.wrapping_add(lines));
        // The line that is read next must not look like a packet. Relaxed: published with this packet.
        if next.wrapping_sub(at.cleared) as i32 >= 0 {
            word(ours, line(next)).store(0, Ordering::Relaxed);
            at.cleared = next.wrapping_add(1);
        }
        // Already now, so that it is not held meanwhile.
        at.position = next;
        let header = fill(line(position.wrapping_add(1)), Front { ours, start });
        debug_assert!((header.dst | header.src) >> 24 == 0);
        let to = header.dst | u32::from(kind as u8) << 24;
        let name = u64::from(to) << 32 | u64::from(header.src);
        let number = Number::new(header.life, header.msn).word();
        // Relaxed, all: published by the sequence word.
        wide(ours, start + NAME).store(name, Ordering::Relaxed);
        word(ours, start + NUMBER).store(number, Ordering::Relaxed);
        let mut ack = 0;
        if let Some((life, msn)) = header.taken {
            let taken = Number::new(life, msn);
            word(ours, start + TAKEN).store(taken.word(), Ordering::Relaxed);
            ack = CARRIES_ACK;
        }
        let short = u32::from(header.short) << SHORT_AT;
        let size = len as u32 | u32::from(header.flags) << 16 | ack | short;
        word(ours, start + SIZE).store(size, Ordering::Relaxed);
        // Release: pairs with the Acquire in `Reader::next`.
        word(ours, start).store(sequence(position), Ordering::Release);
        // Clears the line after the next already now, so that the next packet need not wait for it: small
        // packets often follow each other.
        // There is room for it where as much is kept.
        let room = kept > 2 || next.wrapping_add(2).wrapping_sub(at.seen) < LINES;
        if at.cleared == next.wrapping_add(1) && room {
            word(ours, line(at.cleared)).store(0, Ordering::Relaxed);
            at.cleared = at.cleared.wrapping_add(1);
        }
        Ok(())
    }

    /// Like [`send`](Self::send), for a request's packet of `len` bytes, which fits in one line: `first` writes its
    /// payload and returns its header once there is room, so that few values are held meanwhile. It calls nothing:
    /// `false`, there is no room, or the peer is gone, or another thread is sending, which `send` would wait for.
    #[inline(always)]
    pub fn send_line(
        &self,
        incarnation: u64,
        len: usize,
        first: impl FnOnce(Front) -> Header,
    ) -> bool {
        // SAFETY: there is no data.
        unsafe { self.send_data::<false>(incarnation, len, first, 0, &[]) }
    }

    /// Like [`send_line`](Self::send_line), for a packet of any length: the pieces of `data` are behind the first `at`
    /// bytes of its payload, of which `first` writes those that are in the first line.
    ///
    /// # Safety
    /// Each piece is readable.
    #[inline(always)]
    pub unsafe fn send_data<const ANY: bool>(
        &self,
        incarnation: u64,
        len: usize,
        first: impl FnOnce(Front) -> Header,
        at: usize,
        data: &[(*const u8, usize)],
    ) -> bool {
        debug_assert!(
            !ANY || at + data.iter().map(|it| it.1).sum::<usize>()
                <= lines_of(len) as usize * LINE - FRONT
        );
        let Some(turn) = self.turn.try_take() else {
            return false;
        };
        let ours = self.segments.ours;
        let sent = self.publish(
            turn,
            incarnation,
            Kind::Request,
            len,
            if ANY { lines_of(len) } else { 1 },
            #[inline(always)]
            |_, front| {
                if ANY {
                    // SAFETY: the caller guarantees that the pieces are readable; there is room for a packet of this
                    // length, and this thread has the turn.
                    unsafe { put_pieces(ours, front.start + FRONT, at, data) };
                }
                // Last, because it returns several values.
                first(front)
            },
        );
        sent.is_ok()
    }

    /// How far the reader has read.
    pub fn read_so_far(&self) -> u32 {
        self.segments.read_by_peer()
    }

    /// Whether the reader has read everything.
    pub fn all_read(&self) -> bool {
        let _turn = self.turn.take();
        // SAFETY: this thread has the turn.
        let position = unsafe { (*self.at.get()).position };
        self.read_so_far() == position
    }
}

/// The reading end. Only one thread at a time may use it.
#[derive(Debug)]
pub struct Reader {
    segments: Segments,
    /// Written by the owner; other threads only read it.
    position: AtomicU32,
    /// The position that was published last, for the owner.
    published: AtomicU32,
}

impl Reader {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            position: AtomicU32::new(0),
            published: AtomicU32::new(0),
        }
    }

    pub fn restart(&self) {
        // Relaxed, both: a hint for other threads; only the owner changes them.
        self.position.store(0, Ordering::Relaxed);
        self.published.store(0, Ordering::Relaxed);
    }

    /// Whether there is something to read. A hint, which any thread may take.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        // Relaxed: a hint.
        let position = self.position.load(Ordering::Relaxed);
        // Relaxed: `next` checks again.
        word(self.segments.theirs, line(position)).load(Ordering::Relaxed) == sequence(position)
    }

    /// The first line of the next packet, if there is one. For the owner.
    #[inline(always)]
    pub fn next_line(&self) -> Option<InPlace<'_>> {
        let line = self.first();
        // Acquire: pairs with the Release in `Writer::send`.
        let found = word(line.theirs, line.start).load(Ordering::Acquire);
        (found == sequence(line.position)).then_some(line)
    }

    /// The first line of the next packet, which [is there](Self::next_line).
    #[inline(always)]
    pub fn first(&self) -> InPlace<'_> {
        // Relaxed: only the owner changes it.
        let position = self.position.load(Ordering::Relaxed);
        InPlace {
            reader: self,
            theirs: self.segments.theirs,
            start: line(position),
            position,
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
        // Relaxed: only the owner changes it.
        let position = self.position.load(Ordering::Relaxed);
        let start = line(position);
        // Acquire: pairs with the Release in `Writer::send`.
        if word(self.segments.theirs, start).load(Ordering::Acquire) != sequence(position) {
            return Ok(None);
        }
        // Relaxed: ordered by the Acquire. Each word is read only once.
        let [size, src, to, taken, number] = [SIZE, NAME, NAME + 4, TAKEN, NUMBER]
            .map(|at| word(self.segments.theirs, start + at).load(Ordering::Relaxed));
        let [number, taken] = [number, taken].map(Number::of_word);
        let len = (size & 0xffff) as usize;
        let kind = Kind::from_bits((to >> 24) as u8).ok_or(Garbage)?;
        let (mut offset, mut done) = (start + FRONT, 0);
        if let Some(all) = into
            .first_chunk_mut::<{ LINE - FRONT }>()
            .filter(|all| len <= all.len())
        {
            // A length that is known at compile time.
            // SAFETY: the rest of the line; any bits are valid bytes.
            *all = unsafe { self.segments.theirs.add(offset).cast().read() };
            done = len;
        }
        let bytes = into.get_mut(..len).ok_or(Garbage)?;
        while done != len {
            let now = (len - done).min(END - offset);
            // SAFETY: within the window's lines, and within `bytes`, which is borrowed exclusively.
            unsafe {
                let from = self.segments.theirs.add(offset).as_ptr();
                from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(done), now);
            }
            done += now;
            offset = HEADER;
        }
        let header = Header {
            kind,
            dst: to & 0xff_ffff,
            src: src & 0xff_ffff,
            msn: number.msn(),
            life: number.life(),
            taken: (size & CARRIES_ACK != 0).then_some((taken.life(), taken.msn())),
            flags: (size >> 16) as u8,
            short: (size >> SHORT_AT) as u8,
        };
        Ok(Some(Packet { header, bytes }))
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
        // Relaxed: only the owner changes it.
        self.published.store(position, Ordering::Relaxed);
        self.segments.publish_read(position);
    }

    /// Whether there is a packet at the position behind the last one. For the owner.
    #[inline(always)]
    pub fn is_at(&self, position: u32) -> bool {
        // Relaxed: `next_line` looks again.
        word(self.segments.theirs, line(position)).load(Ordering::Relaxed) == sequence(position)
    }

    /// Lines that were read since.
    #[inline(always)]
    pub fn unpublished(&self) -> u32 {
        // Relaxed, both: only the owner changes them.
        let position = self.position.load(Ordering::Relaxed);
        position.wrapping_sub(self.published.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, any(loom, miri)))]
pub(super) mod models;
#[cfg(all(test, not(loom)))]
mod tests;
