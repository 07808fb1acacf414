//! The processes at the other ends of a channel's connections. A connection ends with its process; its
//! socket does not show that if children of the process hold it, too.

use crate::memory::fork::Life;
use bellwire_soft::process::Process;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Marks the key of a process in a channel's epoll; the rest of the key is the process number.
const PROCESS: u64 = 1 << 63;

/// The peers of a channel. Each process has one handle, however many connections it has.
#[derive(Debug)]
pub(super) struct Peers {
    epoll: Arc<OwnedFd>,
    /// By process number. No other lock is taken while this one is held.
    known: Mutex<HashMap<i32, Weak<PeerProcess>>>,
    /// How many of them were found to have ended.
    ended: AtomicU64,
}

/// A process whose end the channel's epoll reports, once.
#[derive(Debug)]
pub(in crate::connect::cm) struct PeerProcess {
    process: Process,
    epoll: Arc<OwnedFd>,
    /// The channel has seen that it ended.
    ended: AtomicBool,
    /// Of the process that made it.
    life: Life,
}

/// The process number in this key.
pub(super) fn process_of(key: u64) -> Option<i32> {
    (key & PROCESS != 0).then_some((key & !PROCESS) as i32)
}

impl Peers {
    pub fn new(epoll: Arc<OwnedFd>) -> Self {
        Self {
            epoll,
            known: Mutex::default(),
            ended: AtomicU64::new(0),
        }
    }

    /// The process at the other end of a socket; `None` for this process.
    ///
    /// # Errors
    /// Those of [`Process::behind`].
    pub fn behind(&self, socket: impl AsFd) -> io::Result<Option<Arc<PeerProcess>>> {
        let process = Process::behind(socket)?;
        if process.is_us() {
            return Ok(None);
        }
        let pid = process.pid();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.get(&pid).and_then(Weak::upgrade);
        // Two living processes never have the same number.
        match same {
            Some(same) if !same.process.has_ended() => return Ok(Some(same)),
            // Its number is taken over: its end is not looked for any more.
            Some(ended) => self.note_end(&ended),
            None => {}
        }
        let key = EventData::new_u64(PROCESS | pid as u64);
        epoll::add(&self.epoll, &process, key, EventFlags::IN)?;
        let process = Arc::new(PeerProcess {
            process,
            epoll: self.epoll.clone(),
            ended: AtomicBool::new(false),
            life: Life::current(),
        });
        known.retain(|_, process| process.strong_count() != 0);
        known.insert(pid, Arc::downgrade(&process));
        Ok(Some(process))
    }

    /// The epoll has reported the end of the process of this number.
    pub fn report_end(&self, pid: i32) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let process = known.get(&pid).and_then(Weak::upgrade);
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
    /// Whether the channel has seen that it ended.
    pub fn is_over(&self) -> bool {
        // Relaxed: see `Peers::note_end`.
        self.ended.load(Ordering::Relaxed)
    }

    fn unwatch(&self) {
        // Closing is not enough if a child of this process holds the descriptor, too.
        let _watched = epoll::delete(&self.epoll, &self.process);
    }

    /// Whether it has this number, and has ended.
    pub fn has_ended(&self, pid: i32) -> bool {
        self.process.pid() == pid && self.process.has_ended()
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
