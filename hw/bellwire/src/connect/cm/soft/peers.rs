//! The processes at the other ends of a channel's connections. A connection ends with its process; its
//! socket does not show that if children of the process hold it, too.

use crate::memory::fork::Life;
use bellwire_soft::process::{Credentials, Process};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Marks the key of a process in a channel's epoll; the rest of the key is the number of the process here.
const PROCESS: u64 = 1 << 63;

/// The peers of a channel. Each process has one handle, however many connections it has.
#[derive(Debug)]
pub(super) struct Peers {
    epoll: Arc<OwnedFd>,
    /// The user whose processes are accepted: that of the program when it opened the device.
    owner: u32,
    /// By a number that no two processes have, unlike a pid. No other lock is taken while this one is held.
    known: Mutex<HashMap<u64, Weak<PeerProcess>>>,
    /// The next number.
    next: AtomicU64,
    /// How many of them were found to have ended.
    ended: AtomicU64,
}

/// A process whose end the channel's epoll reports, once.
#[derive(Debug)]
pub(in crate::connect::cm) struct PeerProcess {
    process: Process,
    number: u64,
    identity: u64,
    epoll: Arc<OwnedFd>,
    /// The channel has seen that it ended.
    ended: AtomicBool,
    /// Of the process that made it.
    life: Life,
}

/// Why there is no process behind a socket that this one talks to.
#[derive(Debug)]
pub(super) enum NotMet {
    /// It is another user's: of this one.
    Foreign(u32),
    /// It has ended.
    Gone,
    /// It cannot be watched, for example because no descriptors are left.
    NoRoom(io::Error),
}

impl From<io::Error> for NotMet {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone,
            _ => Self::NoRoom(error),
        }
    }
}

/// The number of the process in this key.
pub(super) fn process_of(key: u64) -> Option<u64> {
    (key & PROCESS != 0).then_some(key & !PROCESS)
}

impl Peers {
    pub fn new(epoll: Arc<OwnedFd>, owner: u32) -> Self {
        Self {
            epoll,
            owner,
            known: Mutex::default(),
            next: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// The process at the other end of a socket; `None` for this process, and for one whose end only its socket
    /// shows.
    ///
    /// The user of the process has to be that of this program: when it opened the device, or now. The kernel
    /// reports the user that the peer had when it connected, or began to listen.
    ///
    /// # Errors
    /// See [`NotMet`].
    pub fn behind(&self, socket: impl AsFd) -> Result<Option<Arc<PeerProcess>>, NotMet> {
        let peer = Credentials::of_peer(&socket)?;
        if peer.uid != self.owner && peer.uid != geteuid().as_raw() {
            return Err(NotMet::Foreign(peer.uid));
        }
        let process = Process::behind(&socket, peer)?;
        if process.is_us() {
            return Ok(None);
        }
        let Some(handle) = process.handle() else {
            return Ok(None);
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, process| process.strong_count() != 0);
        // Two living processes never have the same pid; one of another PID namespace may have none here.
        let same = (known.values().filter_map(Weak::upgrade)).find(|known| {
            process.pid().is_some()
                && known.process.pid() == process.pid()
                && !known.process.has_ended()
        });
        if same.is_some() {
            return Ok(same);
        }
        // Relaxed: the number orders no other data.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = EventData::new_u64(PROCESS | number);
        epoll::add(&self.epoll, handle, key, EventFlags::IN)
            .map_err(|error| NotMet::NoRoom(error.into()))?;
        let process = Arc::new(PeerProcess {
            identity: process.number(),
            process,
            number,
            epoll: self.epoll.clone(),
            ended: AtomicBool::new(false),
            life: Life::current(),
        });
        known.insert(number, Arc::downgrade(&process));
        Ok(Some(process))
    }

    /// The epoll has reported the end of the process of this number.
    pub fn report_end(&self, number: u64) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let process = known.get(&number).and_then(Weak::upgrade);
        drop(known);
        if let Some(process) = process.filter(|process| process.process.has_ended()) {
            self.note_end(&process);
        }
    }

    /// Who still holds it learns that it has ended, and the epoll reports it no more.
    fn note_end(&self, process: &PeerProcess) {
        // Relaxed, both: numbers on their own, of which a caller that sees an old one asks again.
        if !process.ended.swap(true, Ordering::Relaxed) {
            process.unwatch();
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were found to have ended.
    pub fn ended(&self) -> u64 {
        // Relaxed: see `note_end`.
        self.ended.load(Ordering::Relaxed)
    }
}

impl PeerProcess {
    /// A number that no other process has while this one runs, whatever the channel: see [`Process::number`].
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Whether the channel has seen that it ended.
    pub fn is_over(&self) -> bool {
        // Relaxed: see `Peers::note_end`.
        self.ended.load(Ordering::Relaxed)
    }

    fn unwatch(&self) {
        // Closing is not enough if a child of this process holds the descriptor, too.
        if let Some(handle) = self.process.handle() {
            let _watched = epoll::delete(&self.epoll, handle);
        }
    }

    /// Whether it has this number, and has ended.
    pub fn has_ended(&self, number: u64) -> bool {
        self.number == number && self.process.has_ended()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        self.unwatch();
    }
}
