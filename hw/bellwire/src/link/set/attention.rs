//! Which links of a set have messages of their peers to receive.

use super::super::exchange::Exchange;
use super::super::wake::watch;
use crate::error::Error;
use crate::event::Bell;
use crate::pinned::{defaults, with_room};
use bellwire_provider::event::epoll_wait;
use rustix::event::epoll;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

/// Descriptors asked about in one check, at most: the rest is found by the next.
const AT_ONCE: usize = 64;

/// Slots whose exchanges have woken the set.
#[derive(Debug, Default)]
struct Woken {
    slots: Vec<u32>,
    /// Whether a slot is in the list, for each slot.
    listed: Box<[bool]>,
}

#[derive(Debug)]
struct List {
    woken: Mutex<Woken>,
    /// Wakes a program that sleeps on the set.
    bell: Option<Arc<Bell>>,
}

impl List {
    fn woken(&self) -> MutexGuard<'_, Woken> {
        // A panic never leaves the list half changed.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the set for the link in one slot. When the slot has another link by then, the set looks at that link
/// for nothing.
struct SlotWaker {
    slot: u32,
    list: Arc<List>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = self.list.woken();
        let Woken { slots, listed } = &mut *woken;
        if let Some(listed) = listed.get_mut(self.slot as usize)
            && !std::mem::replace(listed, true)
        {
            slots.push(self.slot);
        }
        drop(woken);
        self.list.bell.iter().for_each(|bell| bell.ring());
    }
}

/// Finds the links whose exchanges have something, at a cost that grows with these, not with all links:
/// exchanges that wake add their slot to a list, the others' descriptors are in one epoll.
pub(super) struct Attention {
    list: Arc<List>,
    descriptors: OwnedFd,
    /// Descriptors in it.
    watched: usize,
}

impl fmt::Debug for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attention")
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

/// How a set hears of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    ByWaker,
    ByDescriptor,
    /// It has neither: it has to be asked.
    Not,
}

impl Attention {
    pub fn new(slots: u32, bell: Option<Arc<Bell>>) -> Result<Self, Error> {
        let descriptors = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::io("make an epoll descriptor", error.into()))?;
        let woken = Mutex::new(Woken {
            // With room for all: a waker cannot report that there is no memory.
            slots: with_room(slots as usize)?,
            listed: defaults(slots as usize)?,
        });
        Ok(Self {
            list: Arc::new(List { woken, bell }),
            descriptors,
            watched: 0,
        })
    }

    /// Listens to the exchange of the link in a slot.
    pub fn listen(&mut self, slot: u32, exchange: &mut dyn Exchange) -> Result<Heard, Error> {
        let list = self.list.clone();
        if exchange.set_waker(Waker::from(Arc::new(SlotWaker { slot, list })))? {
            return Ok(Heard::ByWaker);
        }
        let Some(fd) = exchange.fd() else {
            return Ok(Heard::Not);
        };
        watch(&self.descriptors, fd, slot.into())?;
        self.watched += 1;
        Ok(Heard::ByDescriptor)
    }

    /// Stops listening to a descriptor.
    pub fn forget(&mut self, fd: Option<BorrowedFd<'_>>) {
        // A descriptor that was closed is not in the epoll any more.
        if let Some(fd) = fd {
            let _ = epoll::delete(&self.descriptors, fd);
        }
        self.watched = self.watched.saturating_sub(1);
    }

    /// Passes the slots of the links that have something to receive to `each`. Makes a system call if there
    /// are descriptors to ask about.
    pub fn take(&mut self, mut each: impl FnMut(u32)) {
        let mut woken = self.list.woken();
        let Woken { slots, listed } = &mut *woken;
        for slot in slots.drain(..) {
            listed[slot as usize] = false;
            each(slot);
        }
        drop(woken);
        if self.watched == 0 {
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; AT_ONCE];
        // What an interrupted call would have found is found by the next.
        if let Ok(events) = epoll_wait(self.fd(), &mut events, Some(Duration::ZERO)) {
            for event in events {
                each(event.data.u64() as u32);
            }
        }
    }

    /// The descriptor that is readable while one of the exchanges' is.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptors.as_fd()
    }
}
