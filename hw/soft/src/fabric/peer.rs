//! What a node knows of one of its peers.
//!
//! A peer wakes a node by bytes in the socket of their link. One read discards them, so that the other links have their
//! turn. A peer that wakes the node 64 times in 10 ms without a packet is not listened to for 1 ms at a time.

use super::export::{EXPORT, Shown};
use super::name::{Kind, Name};
use super::node::{Turns, lid};
use super::reading::Reading;
use super::segment::{SEGMENT, Segments};
use super::window::{Mapped, Window};
use super::wire::{Reader, Sending, Writer};
use crate::connection::connection_with;
use crate::generation::Generation;
use crate::process::Process;
use bellwire_memory::fork::Fd;
use bellwire_provider::quiesce::Between;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io;
use std::num::NonZeroI32;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a peer may leave packets unread before it is woken, and how often it is woken again.
const PATIENCE: Duration = Duration::from_micros(20);
const AGAIN: Duration = Duration::from_millis(1);

/// Bytes that woke the node's thread, of one peer, that are discarded at once: more than a peer's socket has room for, if
/// each is sent by itself.
const KICKS_AT_ONCE: usize = 4096;

/// How often a peer may wake the node's thread for nothing in such a while. Beyond that it is not listened to for a
/// shorter one; its packets are then read at the node's intervals.
pub(super) const IDLE_KICKS: u32 = 64;
const WHILE: Duration = Duration::from_millis(10);
pub(super) const DEAF: Duration = Duration::from_millis(1);

/// A place of the fabric, as another node sees it.
#[derive(Debug)]
pub struct Peer {
    /// The place.
    pub slot: usize,
    /// The LID of the node there.
    pub lid: u16,
    /// By exclusive or, turns what a request's packet says of its connection into the connection's name: takes the kind of
    /// packet out, and puts the LID in.
    requests: u64,
    /// The incarnation of the node there; zero: there is no link with any.
    incarnation: AtomicU64,
    /// The GID of the node there, in two words.
    gid: [AtomicU64; 2],
    /// How threads of this process synchronize with the peer's.
    pub barriers: Between,
    shown: Shown,
    /// The shared words and packets of both directions.
    pub segments: Segments,
    pub writer: Writer,
    /// Only the thread that has the turn reads packets; any thread may check whether there are any.
    pub reader: Reader,
    pub reading: Reading,
    link: Mutex<Option<Arc<Link>>>,
    /// The peer's process may access our memory: it has left its sections in time so far.
    trusted: AtomicBool,
    /// Time at which the peer left packets unread, or until which it need not be woken again; zero: nothing
    /// is unread.
    unread_since: AtomicU64,
    /// How far the peer had read at the last check.
    seen: AtomicU32,
    windows: Windows,
    /// Counts what is no longer mapped here of the peer's memory, and the links that have ended.
    pub unmapped: Generation,
}

/// Where the memory of a link is.
#[derive(Debug)]
struct Windows {
    ours: Window,
    theirs: Window,
    shown: Window,
}

/// The memory of a link: the segments that we write and that the peer writes, and the peer's export.
#[derive(Debug)]
pub(super) struct Memory {
    pub ours: Mapped,
    pub theirs: Mapped,
    pub shown: Mapped,
}

/// What a link has besides its shared memory.
#[derive(Debug)]
pub struct Link {
    pub stream: Fd<UnixStream>,
    /// Reports when the peer's process has ended: its end of the socket may be kept open by other processes.
    pub process: Process,
    /// Where /proc shows its descriptors; `None`: nowhere.
    pub pid: Option<NonZeroI32>,
    pub gid: [u8; 16],
    pub incarnation: u64,
    /// As in [`Hello`](super::hello::Hello).
    pub reaches: bool,
    pub(super) idle: Mutex<Idle>,
}

impl Link {
    /// Whether its other end is closed, or the peer's process has ended. Unlike [`is_gone`](Self::is_gone), this
    /// leaves the bytes that wake the node's thread.
    pub fn is_closed(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let closed = poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready != 0);
        closed || self.process.has_ended()
    }

    /// Discards bytes that woke us: as many as are read at once, because a peer may write faster than they are read. The
    /// socket stays readable if there are more. Returns whether the peer, or this link, has ended.
    pub fn is_gone(&self) -> bool {
        let mut kicks = [0; KICKS_AT_ONCE];
        match rustix::io::read(&self.stream, &mut kicks) {
            Ok(0) => true,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => self.process.has_ended(),
            Err(_) => true,
        }
    }

    /// The peer has woken the node's thread, and there were packets to read or not. `true`: it has done so too often for
    /// nothing, and is not listened to for [`DEAF`].
    pub(super) fn is_restless(&self, now: Instant, for_packets: bool) -> bool {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.count(now, for_packets)
    }
}

/// How often a peer has woken the node's thread for nothing.
#[derive(Debug, Default)]
pub(super) struct Idle {
    since: Option<Instant>,
    count: u32,
}

impl Idle {
    /// Counts one of them. `true`: there were too many in the present while.
    fn count(&mut self, now: Instant, for_packets: bool) -> bool {
        if self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= WHILE)
        {
            *self = Self {
                since: Some(now),
                count: 0,
            };
        }
        self.count += u32::from(!for_packets);
        !for_packets && self.count > IDLE_KICKS
    }
}

impl Peer {
    /// Reserves addresses for the memory of its links.
    pub(super) fn new(slot: usize) -> io::Result<Self> {
        let windows = Windows {
            ours: Window::reserve(SEGMENT)?,
            theirs: Window::reserve(SEGMENT)?,
            shown: Window::reserve(EXPORT)?,
        };
        let segments = Segments::new(&windows.ours, &windows.theirs);
        Ok(Self {
            slot,
            lid: lid(slot),
            requests: u64::from(Kind::Request as u8) << 56 ^ connection_with(0, 0, lid(slot)),
            incarnation: AtomicU64::new(0),
            gid: Default::default(),
            barriers: Between::default(),
            shown: Shown(windows.shown.start()),
            segments,
            writer: Writer::new(segments),
            reader: Reader::new(segments),
            reading: Reading::default(),
            link: Mutex::new(None),
            trusted: AtomicBool::new(true),
            unread_since: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            windows,
            unmapped: Generation::default(),
        })
    }

    /// Whether what a queue pair accepts is the connection that a request's packet names.
    #[inline(always)]
    pub fn is_accepted(&self, accepts: u64, request: Name) -> bool {
        accepts ^ request.bits() == self.requests
    }

    fn show(&self, memory: Memory) -> io::Result<()> {
        self.windows.ours.show(memory.ours)?;
        self.windows.theirs.show(memory.theirs)?;
        self.windows.shown.show(memory.shown)
    }

    /// If a window cannot be cleared, it keeps the peer's memory, which is no longer used.
    fn hide(&self) {
        let _cleared = self.windows.ours.clear();
        let _cleared = self.windows.theirs.clear();
        let _cleared = self.windows.shown.clear();
    }

    /// The incarnation of the node there; zero: none. While a thread has the turn to read, it stays the same.
    #[inline(always)]
    pub fn incarnation(&self) -> u64 {
        // Relaxed: sending fails if it is another one by then.
        self.incarnation.load(Ordering::Relaxed)
    }

    /// The incarnation of the node there (zero: none), and its GID.
    #[inline(always)]
    pub fn identity(&self) -> (u64, [u8; 16]) {
        // Acquire: pairs with the Release in `set_link`. The GID is that of this incarnation, or of a later one, whose
        // place does not take what is sent to this one.
        let incarnation = self.incarnation.load(Ordering::Acquire);
        (incarnation, self.gid())
    }

    /// The GID of the node there. For the thread that has the turn to read: it stays the same meanwhile.
    pub fn gid(&self) -> [u8; 16] {
        // Relaxed: changed by who has the turn.
        let [high, low] = [0, 1].map(|at: usize| self.gid[at].load(Ordering::Relaxed));
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    pub fn link(&self) -> Option<Arc<Link>> {
        self.link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether the peer's process may access our memory by itself.
    pub fn is_trusted(&self) -> bool {
        // Relaxed: changed under the device's lock, before there is a link.
        self.trusted.load(Ordering::Relaxed)
    }

    pub(super) fn set_trusted(&self, trusted: bool) {
        // Relaxed: see `is_trusted`.
        self.trusted.store(trusted, Ordering::Relaxed);
    }

    /// Maps the memory of a link, and begins it. Under the device's lock.
    pub(super) fn begin_link(
        &self,
        link: Link,
        memory: Memory,
        (reads, sending): Turns<'_>,
    ) -> io::Result<()> {
        // With the turn to read: who reads the peer's packets next is where the first one in this memory will be.
        if let Err(error) = self.show(memory) {
            self.hide();
            return Err(error);
        }
        self.reader.restart();
        // Before the barriers may be other ones.
        self.unmapped.pass();
        self.barriers.set(link.reaches);
        let gid = u128::from_be_bytes(link.gid);
        // Relaxed: this thread has the turn.
        self.gid[0].store((gid >> 64) as u64, Ordering::Relaxed);
        self.gid[1].store(gid as u64, Ordering::Relaxed);
        self.reader.publish();
        self.set_link(Some(link), sending);
        drop(reads);
        Ok(())
    }

    /// Ends a link, and unmaps its memory. Under the device's lock.
    pub(super) fn end_link(&self, (reads, sending): Turns<'_>) {
        self.unmapped.pass();
        self.set_link(None, sending);
        // The reader stays where it is: what was sent before has been read, even if the memory cannot be unmapped.
        self.hide();
        drop(reads);
    }

    fn set_link(&self, link: Option<Link>, sending: Sending<'_>) {
        let incarnation = link.as_ref().map_or(0, |link| link.incarnation);
        // Who holds the turn does not look which barrier orders a packet before what is looked at next: that of the
        // compiler has to be enough.
        sending.restart(incarnation, self.barriers.is_unfenced());
        // Release: pairs with the Acquire in `identity`.
        self.incarnation.store(incarnation, Ordering::Release);
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = link.map(Arc::new);
    }

    /// The peer's export; empty while there is no link.
    #[inline(always)]
    pub fn shown(&self) -> Shown {
        self.shown
    }

    /// Checks whether the peer has read its packets, and wakes it if it has not for some time. `true`: it has
    /// read everything. Under the device's lock.
    pub fn see_to_it(&self, now: u64) -> bool {
        // Relaxed: changed only under the device's lock, which is held.
        if self.writer.all_read() {
            self.unread_since.store(0, Ordering::Relaxed);
            return true;
        }
        let read = self.writer.read_so_far();
        let goes_on = self.seen.swap(read, Ordering::Relaxed) != read;
        let since = self.unread_since.load(Ordering::Relaxed);
        if since == 0 || goes_on {
            self.unread_since.store(now.max(1), Ordering::Relaxed);
        } else if now >= since.saturating_add(PATIENCE.as_nanos() as u64) {
            self.kick();
            let again = AGAIN.saturating_sub(PATIENCE).as_nanos() as u64;
            self.unread_since.store(now + again, Ordering::Relaxed);
        }
        false
    }

    /// Wakes the peer's thread. A system call. Errors are ignored: if the socket is full, the peer is being
    /// woken already; if the peer is gone, its end of the socket shows it.
    #[cold]
    pub fn kick(&self) {
        if let Some(link) = self.link() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _full_or_gone = send(&link.stream, &[0], flags);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_wakes_for_nothing_is_not_listened_to_for_a_while() {
        let (mut idle, now) = (Idle::default(), Instant::now());
        assert!((0..10 * IDLE_KICKS).all(|_| !idle.count(now, true)));
        assert!((0..IDLE_KICKS).all(|_| !idle.count(now, false)));
        assert!(idle.count(now, false));
        // Packets are always read.
        assert!(!idle.count(now, true));
        assert!(idle.count(now + WHILE / 2, false));
        assert!(!idle.count(now + WHILE, false));
    }
}
