//! Packets between two processes: a ring of lines that one writes and the other reads.
//!
//! ```text
//!  segment, written by one side only          a packet: whole lines
//!     0  how far it has read the peer's        0  sequence   4  dst, kind   8  msn, life
//!   128  whether it wants to be woken         12  length, flags
//!   256  how many keys it has taken away       16  what was taken of the other direction
//!   384  whether its port is down
//!  4096  lines of 64 bytes                    24  length bytes
//!   end  the faces of queue pairs, and their sections
//! ```
//!
//! A packet is there when its sequence word says so, which is written last; the word where the next
//! one will start is zeroed before. One line moves from processor to processor for a packet of up to
//! 40 bytes.

use super::window::Windows;
use crate::soft::{Section, Turn};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Lines of a ring.
const LINES: u32 = 4096;

/// Where the lines start; before them is the header's page.
const HEADER: usize = 4096;
const ATTENTION: usize = 128;
const REVOKED: usize = 256;
const DOWN: usize = 384;

/// Where the lines end, and the faces start: one for each queue pair that a number can fall on.
const END: usize = HEADER + LINES as usize * LINE;
const FACES: usize = 1 << 16;

const SECTIONS: usize = END + FACES * size_of::<Face>();

/// Bytes of a segment.
pub(super) const SEGMENT: usize = SECTIONS + FACES * size_of::<Busy>();

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

fn word(segment: NonNull<u8>, offset: usize) -> &'static AtomicU32 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(4));
    // SAFETY: within a window, which stays as long as its node; aligned. Shared memory is touched by
    // atomics, and by copies whose result is checked.
    unsafe { segment.add(offset).cast::<AtomicU32>().as_ref() }
}

/// As [`word`], of eight bytes.
fn wide(segment: NonNull<u8>, offset: usize) -> &'static AtomicU64 {
    debug_assert!(offset < SEGMENT && offset.is_multiple_of(8));
    // SAFETY: as in `word`.
    unsafe { segment.add(offset).cast::<AtomicU64>().as_ref() }
}

fn line(position: u32) -> usize {
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

/// Never zero, and another one each time that the ring comes round.
fn sequence(position: u32) -> u32 {
    position | 1 << 31
}

fn lines_of(bytes: usize) -> u32 {
    (FRONT + bytes).div_ceil(LINE) as u32
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Writer {
    ours: NonNull<u8>,
    theirs: NonNull<u8>,
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
    pub fn new(ours: &Windows, theirs: &Windows, slot: usize) -> Self {
        Self {
            ours: ours.at(slot),
            theirs: theirs.at(slot),
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
            // Acquire: partner of the release in `Reader::done`.
            at.seen = word(self.theirs, 0).load(Ordering::Acquire);
            if !fits(at.seen) {
                return Err(Send::Full);
            }
        }
        let (start, next) = (line(at.position), at.position.wrapping_add(lines));
        let mut room = Room {
            first: First([0; LINE]),
            filled: FRONT,
            ours: self.ours,
            offset: line(at.position.wrapping_add(1)),
            left: len,
        };
        fill(&mut room);
        // The line that is read next must not look like a packet. Relaxed: published with this one.
        if next.wrapping_sub(at.cleared) as i32 >= 0 {
            word(self.ours, line(next)).store(0, Ordering::Relaxed);
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
            wide(self.ours, start + at).store(room.pair(at), Ordering::Relaxed);
        }
        word(self.ours, start + 16).store(taken, Ordering::Relaxed);
        word(self.ours, start + 12).store(size, Ordering::Relaxed);
        word(self.ours, start + 8).store(number, Ordering::Relaxed);
        word(self.ours, start + 4).store(to, Ordering::Relaxed);
        // Release: partner of the acquire in `Reader::next`.
        word(self.ours, start).store(sequence(at.position), Ordering::Release);
        at.position = next;
        // For the next one, which need not wait then until the line is ours: small packets follow
        // each other.
        if at.cleared == next.wrapping_add(1) && next.wrapping_add(2).wrapping_sub(at.seen) < LINES
        {
            word(self.ours, line(at.cleared)).store(0, Ordering::Relaxed);
            at.cleared = at.cleared.wrapping_add(1);
        }
        Ok(())
    }

    /// How far the reader is.
    pub fn read_so_far(&self) -> u32 {
        // Acquire: as in `send`.
        word(self.theirs, 0).load(Ordering::Acquire)
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
pub(super) struct Reader {
    ours: NonNull<u8>,
    theirs: NonNull<u8>,
    /// A number that others only look at.
    position: AtomicU32,
}

// SAFETY: addresses of windows.
unsafe impl std::marker::Send for Reader {}
// SAFETY: as above.
unsafe impl Sync for Reader {}

impl Reader {
    pub fn new(ours: &Windows, theirs: &Windows, slot: usize) -> Self {
        Self {
            ours: ours.at(slot),
            theirs: theirs.at(slot),
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
        word(self.theirs, line(position)).load(Ordering::Relaxed) == sequence(position)
    }

    /// Copies the next packet, if there is one.
    pub fn next<'a>(&self, into: &'a mut [u8; MAX_PACKET]) -> Result<Option<Packet<'a>>, Garbage> {
        // Relaxed: the owner's own.
        let position = self.position.load(Ordering::Relaxed);
        let start = line(position);
        // Acquire: partner of the release in `Writer::send`.
        if word(self.theirs, start).load(Ordering::Acquire) != sequence(position) {
            return Ok(None);
        }
        // Relaxed: each word is taken once.
        let [to, number, size, taken] =
            [4, 8, 12, 16].map(|at| word(self.theirs, start + at).load(Ordering::Relaxed));
        let len = (size & 0xffff) as usize;
        let kind = Kind::from_bits((to >> 24) as u8).ok_or(Garbage)?;
        let (mut offset, mut done) = (start + FRONT, 0);
        if let Some(all) = into
            .first_chunk_mut::<{ LINE - FRONT }>()
            .filter(|all| len <= all.len())
        {
            // Of a length that the compiler knows.
            // SAFETY: the rest of the line; any bytes are bytes.
            *all = unsafe { self.theirs.add(offset).cast().read() };
            done = len;
        }
        let bytes = into.get_mut(..len).ok_or(Garbage)?;
        while done != len {
            let now = (len - done).min(END - offset);
            // SAFETY: within the window's lines, and within `bytes`, which nobody else has.
            unsafe {
                let from = self.theirs.add(offset).as_ptr();
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
        let position = self.position.load(Ordering::Relaxed);
        // Release: partner of the acquire in `Writer::send`; the copies come before.
        word(self.ours, 0).store(position, Ordering::Release);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Both ends of a wire, over memory of this process.
    fn wire() -> (Windows, Windows, Writer, Reader) {
        let windows = || Windows::reserve(1, SEGMENT).unwrap();
        let (ours, theirs) = (windows(), windows());
        let writer = Writer::new(&ours, &theirs, 0);
        let reader = Reader::new(&theirs, &ours, 0);
        writer.restart(1);
        (ours, theirs, writer, reader)
    }

    fn header(msn: u16) -> Header {
        Header {
            kind: Kind::Request,
            dst: 0x12_3456,
            msn,
            life: 0x8765,
            taken: (!msn.is_multiple_of(3)).then_some((msn, !msn)),
            flags: msn as u8,
        }
    }

    /// What a packet of this number has.
    fn bytes(msn: u16) -> Vec<u8> {
        let len = match msn % 8 {
            0 => MAX_PACKET - usize::from(msn % 100),
            _ => usize::from(msn % 97),
        };
        (0..len).map(|at| (at as u16 ^ msn) as u8).collect()
    }

    fn send(writer: &Writer, msn: u16) -> Result<(), Send> {
        let bytes = bytes(msn);
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        writer.send(1, header(msn), bytes.len(), |room| {
            for part in [head, tail] {
                // SAFETY: a slice.
                unsafe { room.put(part.as_ptr(), part.len()) };
            }
        })
    }

    fn assert_next(reader: &Reader, msn: u16) -> bool {
        let mut copy = [0; MAX_PACKET];
        let Some(packet) = reader.next(&mut copy).unwrap() else {
            return false;
        };
        let expected = header(msn);
        assert_eq!(packet.bytes, bytes(msn), "{msn}");
        assert_eq!(packet.header.msn, msn);
        assert_eq!(packet.header.dst, expected.dst);
        assert_eq!(packet.header.life, expected.life);
        assert_eq!(packet.header.taken, expected.taken);
        assert_eq!(packet.header.flags, expected.flags);
        let len = packet.bytes.len();
        reader.done(len, msn.is_multiple_of(5));
        true
    }

    #[test]
    fn packets_arrive_whole_and_in_order() {
        let (_ours, _theirs, writer, reader) = wire();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for msn in 0..u16::MAX {
                    while send(&writer, msn) == Err(Send::Full) {
                        std::thread::yield_now();
                    }
                }
            });
            for msn in 0..u16::MAX {
                while !assert_next(&reader, msn) {
                    reader.tell();
                    std::thread::yield_now();
                }
            }
        });
        reader.tell();
        assert!(!reader.ready() && writer.all_read());
    }

    #[test]
    fn requests_leave_room_for_answers() {
        let (_ours, _theirs, writer, reader) = wire();
        let mut sent = 0;
        while send(&writer, 1).is_ok() {
            sent += 1;
        }
        assert!(sent > 1000);
        let answer = Header {
            kind: Kind::Answer,
            ..header(0)
        };
        for _ in 0..FOR_ANSWERS {
            assert_eq!(writer.send(1, answer, 0, |_| {}), Ok(()));
        }
        assert_eq!(writer.send(1, answer, 0, |_| {}), Err(Send::Full));
        assert!(!writer.all_read());
        let mut copy = [0; MAX_PACKET];
        while let Some(packet) = reader.next(&mut copy).unwrap() {
            let len = packet.bytes.len();
            reader.done(len, true);
        }
        assert_eq!(send(&writer, 1), Ok(()));
    }

    #[test]
    fn another_link_gets_nothing() {
        let (_ours, _theirs, writer, reader) = wire();
        assert_eq!(writer.send(2, header(0), 0, |_| {}), Err(Send::Gone));
        writer.restart(0);
        assert_eq!(writer.send(0, header(0), 0, |_| {}), Err(Send::Gone));
        assert!(!reader.ready());
    }

    #[test]
    fn garbage_is_refused() {
        for (at, value) in [
            (4, 0),
            (4, 9 << 24),
            (12, MAX_PACKET as u32 + 1),
            (12, 0xffff),
        ] {
            let (ours, _theirs, writer, reader) = wire();
            send(&writer, 1).unwrap();
            // Relaxed: one thread.
            word(ours.at(0), line(0) + at).store(value, Ordering::Relaxed);
            assert!(
                reader.next(&mut [0; MAX_PACKET]).is_err(),
                "{at} {value:#x}"
            );
        }
    }
}
