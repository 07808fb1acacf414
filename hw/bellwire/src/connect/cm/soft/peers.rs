//! The processes at the other ends of a channel's connections. A connection ends with its process; its
//! socket does not show that if children of the process hold it, too.

use bellwire_soft::process::Process;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Marks the key of a process in a channel's epoll; the rest of the key is the process number.
const PROCESS: u64 = 1 << 63;

/// The peers of a channel. Each process has one handle, however many connections it has.
#[derive(Debug)]
pub(super) struct Peers {
    epoll: Arc<OwnedFd>,
    /// By process number. No other lock is taken while this one is held.
    known: Mutex<HashMap<i32, Weak<PeerProcess>>>,
}

/// A process whose end the channel's epoll reports.
#[derive(Debug)]
pub(super) struct PeerProcess {
    process: Process,
    epoll: Arc<OwnedFd>,
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
        if let Some(same) = same.filter(|same| !same.process.has_ended()) {
            return Ok(Some(same));
        }
        let key = EventData::new_u64(PROCESS | pid as u64);
        epoll::add(&self.epoll, &process, key, EventFlags::IN)?;
        let process = Arc::new(PeerProcess {
            process,
            epoll: self.epoll.clone(),
        });
        known.retain(|_, process| process.strong_count() != 0);
        known.insert(pid, Arc::downgrade(&process));
        Ok(Some(process))
    }
}

impl PeerProcess {
    /// Whether it has this number, and has ended.
    pub fn has_ended(&self, pid: i32) -> bool {
        self.process.pid() == pid && self.process.has_ended()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // Closing is not enough if a child of this process holds the descriptor, too.
        let _watched = epoll::delete(&self.epoll, &self.process);
    }
}
