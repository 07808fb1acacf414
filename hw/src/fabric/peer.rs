//! What a node knows of one of its peers.

use super::export::Shown;
use super::segment::Segments;
use super::window::Windows;
use super::wire::{Reader, Writer};
use rustix::net::{SendFlags, send};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a peer has to read by itself before it is woken, and how often it is.
const PATIENCE: Duration = Duration::from_micros(20);
const AGAIN: Duration = Duration::from_millis(1);

/// A place of the fabric, as another node sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Which node is there; zero: none that we have a link to.
    incarnation: AtomicU64,
    shown: Shown,
    /// What each of us tells the other by single words.
    pub segments: Segments,
    pub writer: Writer,
    /// The lock's holder reads; anybody may look whether it is ready.
    pub reader: Reader,
    link: Mutex<Option<Arc<Link>>>,
    /// Since when, or from when on, it counts that something is not read; zero: nothing is.
    unread_since: AtomicU64,
    /// How far the peer had read at the last look.
    seen: AtomicU32,
}

/// What there is of a link beside its shared memory.
#[derive(Debug)]
pub(crate) struct Link {
    pub stream: UnixStream,
    pub pid: i32,
    pub gid: [u8; 16],
    pub incarnation: u64,
}

impl Peer {
    pub(super) fn new(ours: &Windows, theirs: &Windows, shown: &Windows, slot: usize) -> Self {
        let segments = Segments::new(ours, theirs, slot);
        Self {
            incarnation: AtomicU64::new(0),
            shown: Shown(shown.at(slot)),
            segments,
            writer: Writer::new(segments),
            reader: Reader::new(segments),
            link: Mutex::new(None),
            unread_since: AtomicU64::new(0),
            seen: AtomicU32::new(0),
        }
    }

    /// Which node is there; zero: none.
    pub fn incarnation(&self) -> u64 {
        // Relaxed: whoever sends is told if it is another one.
        self.incarnation.load(Ordering::Relaxed)
    }

    pub fn link(&self) -> Option<Arc<Link>> {
        self.link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Begins a link, whose windows are shown, or ends one. By the lock's holder.
    pub(super) fn set_link(&self, link: Option<Link>) {
        let incarnation = link.as_ref().map_or(0, |link| link.incarnation);
        self.reader.restart();
        self.writer.restart(incarnation);
        self.incarnation.store(incarnation, Ordering::Relaxed);
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = link.map(Arc::new);
    }

    /// What the peer shows of its memory; nothing while there is no link.
    #[inline(always)]
    pub fn shown(&self) -> Shown {
        self.shown
    }

    /// Looks whether the peer reads what it is sent; one that has not for some time is woken. `true`: it
    /// has read it all. By the lock's holder.
    pub fn see_to_it(&self, now: u64) -> bool {
        // Relaxed: the lock's holder's own.
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

    /// Wakes the peer's thread. A system call. A peer that has enough to wake it already need not be
    /// told again, and one that is gone is found out by its end of the socket.
    #[cold]
    pub fn kick(&self) {
        if let Some(link) = self.link() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _full_or_gone = send(&link.stream, &[0], flags);
        }
    }
}
