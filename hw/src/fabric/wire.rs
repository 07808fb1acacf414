//! Packets between two processes: a ring of lines that one writes and the other reads.
//!
//! ```text
//!  a packet: whole lines of the writer's segment
//!   0  sequence   4  dst, kind   8  msn, life
//!  12  length, flags, whether it tells what was taken
//!  16  what was taken of the other direction
//!  24  length bytes
//! ```
//!
//! A packet is there when its sequence word says so, which is written last; the word where the next
//! one will start is zeroed before. One line moves from processor to processor for a packet of up to
//! 40 bytes.

use super::segment::{END, HEADER, LINE, LINES, Segments, line, wide, word};
use crate::soft::Turn;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// In a packet's last word of the header: it tells of the other direction too.
const TOLD: u32 = 1 << 24;

/// Bytes of a packet's own header.
const FRONT: usize = 24;

/// Bytes that a packet can carry: a send entry, a route header, and the largest packet's data.
pub(crate) const MAX_PACKET: usize = 1024 + 64 + 4096;

/// Lines that are left to answers, so that requests cannot keep them out.
const FOR_ANSWERS: u32 = 256;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A request of a connection.
    Request = 1,
    /// A datagram.
    Datagram = 2,
    /// An answer to a request.
    Answer = 3,
    /// Answers that are owed are wanted now.
    Probe = 4,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Self> {
        [Self::Request, Self::Datagram, Self::Answer, Self::Probe]
            .into_iter()
            .find(|kind| *kind as u8 == bits)
    }
}

/// What goes before a packet's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub kind: Kind,
    /// Queue pair that it goes to.
    pub dst: u32,
    /// Number of the request in its life.
    pub msn: u16,
    /// Which life of the requester's queue pair it belongs to.
    pub life: u16,
    /// Life and number of the last request of the other direction that was taken, should it be told.
    pub taken: Option<(u16, u16)>,
    pub flags: u8,
}

/// A packet that arrived: a copy, of which nothing was checked but its length and kind.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    pub header: Header,
    pub bytes: &'a [u8],
}

/// What a peer wrote makes no sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Garbage;

/// Never zero, and another one each time that the ring comes round.
fn sequence(position: u32) -> u32 {
    position | 1 << 31
}

fn lines_of(bytes: usize) -> u32 {
    (FRONT + bytes).div_ceil(LINE) as u32
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Writer {
    segments: Segments,
    turn: Turn,
    /// Of whoever has the turn.
    at: UnsafeCell<At>,
}

#[derive(Clone, Copy, Debug, Default)]
struct At {
    position: u32,
    /// How far the reader was when last looked at.
    seen: u32,
    /// Up to where no line looks like a packet's first.
    cleared: u32,
    /// Which link this is; zero while there is none.
    incarnation: u64,
}

// SAFETY: the cell is its turn's, the rest addresses of windows.
unsafe impl std::marker::Send for Writer {}
// SAFETY: as above.
unsafe impl Sync for Writer {}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    /// The reader is behind.
    Full,
    /// The peer is gone, or is another one by now.
    Gone,
}

/// Room for a packet's bytes. Its first line is put together elsewhere: the reader looks at that line
/// all the time, so that it has to be written at one go.
pub(crate) struct Room {
    first: First,
    /// Bytes of it that are put.
    filled: usize,
    ours: NonNull<u8>,
    offset: usize,
    left: usize,
}

/// A packet's first line.
#[repr(C, align(64))]
struct First([u8; LINE]);

impl Room {
    /// Puts the next bytes; what is too much is left out.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline(always)]
    pub unsafe fn put(&mut self, mut from: *const u8, len: usize) {
        let mut len = len.min(self.left);
        self.left -= len;
        let now = len.min(LINE - self.filled);
        // SAFETY: within the line; the caller's promise.
        unsafe {
            let to = self.first.0.as_mut_ptr().add(self.filled);
            to.copy_from_nonoverlapping(from, now);
            from = from.add(now);
        }
        self.filled += now;
        len -= now;
        if len != 0 {
            // SAFETY: what is left of the caller's string.
            unsafe { self.put_behind(from, len) };
        }
    }

    /// # Safety
    /// As [`put`](Self::put), and no more than is left.
    #[inline(never)]
    unsafe fn put_behind(&mut self, mut from: *const u8, mut len: usize) {
        while len != 0 {
            let now = len.min(END - self.offset);
            // SAFETY: within the window's lines; the caller's promise.
            unsafe {
                let to = self.ours.add(self.offset).as_ptr();
                to.copy_from_nonoverlapping(from, now);
                from = from.add(now);
            }
            self.offset += now;
            if self.offset == END {
                self.offset = HEADER;
            }
            len -= now;
        }
    }

    /// The words of the first line, two by two.
    fn pair(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.first.0[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
}

impl Writer {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            turn: Turn::default(),
            at: UnsafeCell::default(),
        }
    }

    /// Begins, or ends with zero, a link.
    pub fn restart(&self, incarnation: u64) {
        let _turn = self.turn.take();
        // SAFETY: it is our turn.
        unsafe {
            *self.at.get() = At {
                incarnation,
                ..At::default()
            };
        }
    }

    /// Sends a packet of `len` bytes, which `fill` puts.
    #[inline(always)]
    pub fn send(
        &self,
        incarnation: u64,
        header: Header,
        len: usize,
        fill: impl FnOnce(&mut Room),
    ) -> Result<(), Send> {
        debug_assert!(len <= MAX_PACKET);
        let _turn = self.turn.take();
        // SAFETY: it is our turn.
        let at = unsafe { &mut *self.at.get() };
        if at.incarnation != incarnation || incarnation == 0 {
            return Err(Send::Gone);
        }
        let lines = lines_of(len);
        let kept = match header.kind {
            Kind::Answer => 1,
            Kind::Request | Kind::Datagram | Kind::Probe => 1 + FOR_ANSWERS,
        };
        let fits = |seen: u32| at.position.wrapping_sub(seen).saturating_add(lines + kept) <= LINES;
        if !fits(at.seen) {
            at.seen = self.segments.read_by_peer();
            if !fits(at.seen) {
                return Err(Send::Full);
            }
        }
        let (start, next) = (line(at.position), at.position.wrapping_add(lines));
        let mut room = Room {
            first: First([0; LINE]),
            filled: FRONT,
            ours: self.segments.ours,
            offset: line(at.position.wrapping_add(1)),
            left: len,
        };
        fill(&mut room);
        // The line that is read next must not look like a packet. Relaxed: published with this one.
        if next.wrapping_sub(at.cleared) as i32 >= 0 {
            word(self.segments.ours, line(next)).store(0, Ordering::Relaxed);
            at.cleared = next.wrapping_add(1);
        }
        let (taken, told) = match header.taken {
            Some((life, msn)) => (u32::from(life) << 16 | u32::from(msn), TOLD),
            None => (0, 0),
        };
        let size = len as u32 | u32::from(header.flags) << 16 | told;
        let number = u32::from(header.msn) | u32::from(header.life) << 16;
        let to = header.dst & 0xff_ffff | u32::from(header.kind as u8) << 24;
        // Relaxed: published by the sequence.
        for at in (FRONT..LINE).step_by(8) {
            wide(self.segments.ours, start + at).store(room.pair(at), Ordering::Relaxed);
        }
        word(self.segments.ours, start + 16).store(taken, Ordering::Relaxed);
        word(self.segments.ours, start + 12).store(size, Ordering::Relaxed);
        word(self.segments.ours, start + 8).store(number, Ordering::Relaxed);
        word(self.segments.ours, start + 4).store(to, Ordering::Relaxed);
        // Release: partner of the acquire in `Reader::next`.
        word(self.segments.ours, start).store(sequence(at.position), Ordering::Release);
        at.position = next;
        // For the next one, which need not wait then until the line is ours: small packets follow
        // each other.
        if at.cleared == next.wrapping_add(1) && next.wrapping_add(2).wrapping_sub(at.seen) < LINES
        {
            word(self.segments.ours, line(at.cleared)).store(0, Ordering::Relaxed);
            at.cleared = at.cleared.wrapping_add(1);
        }
        Ok(())
    }

    /// How far the reader is.
    pub fn read_so_far(&self) -> u32 {
        self.segments.read_by_peer()
    }

    /// Whether the reader has read all of it.
    pub fn all_read(&self) -> bool {
        let _turn = self.turn.take();
        // SAFETY: it is our turn.
        let position = unsafe { (*self.at.get()).position };
        self.read_so_far() == position
    }
}

/// The reading end. One at a time uses it.
#[derive(Debug)]
pub(crate) struct Reader {
    segments: Segments,
    /// A number that others only look at.
    position: AtomicU32,
}

impl Reader {
    pub fn new(segments: Segments) -> Self {
        Self {
            segments,
            position: AtomicU32::new(0),
        }
    }

    pub fn restart(&self) {
        // Relaxed: a hint to others; the owner changes it.
        self.position.store(0, Ordering::Relaxed);
    }

    /// Whether there is something to read. A hint: anybody may look.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        // Relaxed: as above.
        let position = self.position.load(Ordering::Relaxed);
        // Relaxed: `next` looks again.
        word(self.segments.theirs, line(position)).load(Ordering::Relaxed) == sequence(position)
    }

    /// Copies the next packet, if there is one.
    pub fn next<'a>(&self, into: &'a mut [u8; MAX_PACKET]) -> Result<Option<Packet<'a>>, Garbage> {
        // Relaxed: the owner's own.
        let position = self.position.load(Ordering::Relaxed);
        let start = line(position);
        // Acquire: partner of the release in `Writer::send`.
        if word(self.segments.theirs, start).load(Ordering::Acquire) != sequence(position) {
            return Ok(None);
        }
        // Relaxed: each word is taken once.
        let [to, number, size, taken] =
            [4, 8, 12, 16].map(|at| word(self.segments.theirs, start + at).load(Ordering::Relaxed));
        let len = (size & 0xffff) as usize;
        let kind = Kind::from_bits((to >> 24) as u8).ok_or(Garbage)?;
        let (mut offset, mut done) = (start + FRONT, 0);
        if let Some(all) = into
            .first_chunk_mut::<{ LINE - FRONT }>()
            .filter(|all| len <= all.len())
        {
            // Of a length that the compiler knows.
            // SAFETY: the rest of the line; any bytes are bytes.
            *all = unsafe { self.segments.theirs.add(offset).cast().read() };
            done = len;
        }
        let bytes = into.get_mut(..len).ok_or(Garbage)?;
        while done != len {
            let now = (len - done).min(END - offset);
            // SAFETY: within the window's lines, and within `bytes`, which nobody else has.
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
            msn: number as u16,
            life: (number >> 16) as u16,
            taken: (size & TOLD != 0).then_some(((taken >> 16) as u16, taken as u16)),
            flags: (size >> 16) as u8,
        };
        Ok(Some(Packet { header, bytes }))
    }

    /// The packet of `len` bytes that `next` gave is done with. `told`: the writer is told so, which
    /// costs it a line; now and then is enough.
    pub fn done(&self, len: usize, told: bool) {
        // Relaxed: the owner's own.
        let next = (self.position.load(Ordering::Relaxed)).wrapping_add(lines_of(len));
        self.position.store(next, Ordering::Relaxed);
        if told {
            self.tell();
        }
    }

    /// Tells the writer how far we are.
    pub fn tell(&self) {
        // Relaxed: the owner's own.
        (self.segments).tell_read(self.position.load(Ordering::Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
