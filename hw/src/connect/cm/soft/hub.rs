//! What stands behind a channel: its ids, the events that wait to be got, and one descriptor for all
//! that something may come by.
//!
//! ```text
//!  epoll ── wake: an event is queued
//!        ├─ timer: some id's time is over
//!        └─ sockets: listeners, and one for each connection
//! ```
//!
//! There is no thread: whoever asks for an event looks at what is ready.

use super::super::EventKind;
use super::entry::{AGAIN, Entry, NO_SERVICE, Outcome, SIDR_NO_SERVICE, Stage};
use super::message::Message;
use super::socket::{self, Address, Met};
use crate::device::Device;
use crate::error::Error;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the descriptors of a channel's own have for a key.
const WAKE: u64 = 0;
const TIMER: u64 = 1;

/// Of an id, for as long as the process runs.
pub(super) fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(TIMER + 1);
    // Relaxed: a number on its own.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The inside of a channel. It knows no device, so that a device can tell it something at any time.
#[derive(Debug)]
pub(super) struct Hub {
    epoll: OwnedFd,
    wake: OwnedFd,
    timer: OwnedFd,
    /// A leaf: nothing is waited for under it, and no other lock taken.
    state: Mutex<State>,
}

/// What is told of an id.
#[derive(Debug)]
pub(super) enum What {
    Kind(EventKind),
    /// A request, whose id has this key.
    Request(u64, Box<Message>),
}

#[derive(Debug, Default)]
pub(super) struct State {
    queue: VecDeque<(u64, What)>,
    pub ids: HashMap<u64, Entry>,
    /// When ids' times are over.
    deadlines: BTreeSet<(Instant, u64)>,
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::io(what, error.into())
}

impl Hub {
    pub fn new() -> Result<Self, Error> {
        const MAKE: &str = "make an event channel of the connection manager";
        let hub = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(failed(MAKE))?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(failed(MAKE))?,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )
            .map_err(failed(MAKE))?,
            state: Mutex::default(),
        };
        hub.watch(&hub.wake, WAKE)?;
        hub.watch(&hub.timer, TIMER)?;
        Ok(hub)
    }

    /// Readable while something may have happened.
    pub fn fd(&self) -> &OwnedFd {
        &self.epoll
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // Each change of an id is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a socket from here on. It is not looked at any more when it is closed.
    pub fn watch(&self, socket: &OwnedFd, key: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, socket, EventData::new_u64(key), EventFlags::IN)
            .map_err(failed("watch a socket of the connection manager"))
    }

    /// Looks at a socket no more.
    pub fn forget(&self, socket: &OwnedFd) {
        let _not_watched = epoll::delete(&self.epoll, socket);
    }

    /// Looks at a listener, or leaves those alone who knock.
    fn set_listening(&self, entry: &Entry, key: u64) {
        let flags = if entry.waiting < entry.backlog {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        if let Some(socket) = &entry.socket {
            let _watched = epoll::modify(&self.epoll, socket, EventData::new_u64(key), flags);
        }
    }

    /// Queues what is to be told of an id.
    pub fn push(&self, state: &mut State, key: u64, what: What) {
        state.queue.push_back((key, what));
        self.set_readable();
    }

    fn set_readable(&self) {
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Tells all ids that are bound to the device; of a group that is lost, its members.
    pub fn tell_all(&self, kind: &EventKind) {
        let mut state = self.state();
        let multicast = matches!(kind, EventKind::MulticastError { .. });
        let keys = state.ids.iter_mut().filter_map(|(key, entry)| {
            // Who has not been told of yet hears nothing.
            let concerned = match multicast {
                true => !std::mem::take(&mut entry.groups).is_empty(),
                false => entry.local.is_some() && entry.listener.is_none(),
            };
            concerned.then_some(*key)
        });
        let keys: Vec<u64> = keys.collect();
        for key in keys {
            self.push(&mut state, key, What::Kind(kind.clone()));
        }
    }

    /// Changes an id, and sees to what follows of it; `None`: there is none.
    pub fn change<R>(
        &self,
        state: &mut State,
        key: u64,
        change: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        let State { ids, deadlines, .. } = state;
        let entry = ids.get_mut(&key)?;
        let before = entry.deadline;
        let answer = change(entry);
        let after = entry.deadline;
        if before != after {
            let first = deadlines.first().copied();
            before.map(|at| deadlines.remove(&(at, key)));
            after.map(|at| deadlines.insert((at, key)));
            if first != deadlines.first().copied() {
                self.set_timer(deadlines);
            }
        }
        Some(answer)
    }

    fn set_timer(&self, deadlines: &BTreeSet<(Instant, u64)>) {
        let it_value = match deadlines.first() {
            // Zero would be never.
            Some((at, _)) => {
                let left = at.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: i64::from(left.subsec_nanos()).max(1),
                }
            }
            None => Timespec::default(),
        };
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        let _set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// Takes an id in, from another channel perhaps.
    pub fn insert(&self, state: &mut State, key: u64, entry: Entry) {
        let deadline = entry.deadline;
        state.ids.insert(key, entry);
        if let Some(deadline) = deadline {
            state.deadlines.insert((deadline, key));
            self.set_timer(&state.deadlines);
        }
    }

    /// Takes an id out, with what was to be told of it.
    pub fn remove(&self, state: &mut State, key: u64) -> Option<(Entry, Vec<What>)> {
        let entry = state.ids.remove(&key)?;
        if let Some(deadline) = entry.deadline {
            state.deadlines.remove(&(deadline, key));
        }
        let (of_it, others) = std::mem::take(&mut state.queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(of, _)| *of == key);
        state.queue = others;
        Some((entry, of_it.into_iter().map(|(_, what)| what).collect()))
    }

    /// Takes the oldest of what is to be told.
    pub fn pop(&self, state: &mut State) -> Option<(u64, What)> {
        let next = state.queue.pop_front();
        if state.queue.is_empty() {
            let _nothing = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        next
    }

    /// A listener's request is got, or gone.
    pub fn request_is_off(&self, state: &mut State, listener: u64) {
        if let Some(entry) = state.ids.get_mut(&listener) {
            entry.waiting = entry.waiting.saturating_sub(1);
            if entry.waiting + 1 == entry.backlog {
                self.set_listening(entry, listener);
            }
        }
    }

    /// Looks at a listener again that has come from another channel.
    pub fn listen_again(&self, state: &mut State, key: u64) {
        if let Some(entry) = state.ids.get(&key)
            && entry.stage == Stage::Listening
        {
            self.set_listening(entry, key);
        }
    }

    /// Looks at what is ready. `false`: nothing was.
    pub fn attend(&self, state: &mut State, device: &Device, scope: &str) -> Result<bool, Error> {
        const AT_A_TIME: usize = 32;
        let mut ready = Vec::with_capacity(AT_A_TIME);
        let at_once = Timespec::default();
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("look at an event channel")(error)),
        }
        for event in &ready {
            match event.data.u64() {
                WAKE => {
                    if state.queue.is_empty() {
                        let _nothing = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                }
                TIMER => {
                    let _counted = rustix::io::read(&self.timer, &mut [0; 8]);
                    self.expire(state, scope);
                }
                key => self.look_at(state, key, device)?,
            }
        }
        Ok(!ready.is_empty())
    }

    fn look_at(&self, state: &mut State, key: u64, device: &Device) -> Result<(), Error> {
        let listens = (state.ids.get(&key)).is_some_and(|entry| entry.stage == Stage::Listening);
        if listens {
            return self.receive(state, key);
        }
        loop {
            let outcome = self.change(state, key, |entry| match &entry.socket {
                Some(socket) => {
                    let heard = socket::hear(socket);
                    entry.heard(heard, device)
                }
                None => Outcome::Nothing,
            });
            // Whoever has asked may have gone since: then nobody has to hear of it.
            let again = matches!(outcome, Some(Outcome::Request(_)));
            self.follow(state, key, outcome);
            if !again {
                return Ok(());
            }
        }
    }

    /// Takes in somebody who has connected to a listener.
    fn receive(&self, state: &mut State, listener: u64) -> Result<(), Error> {
        let Some(entry) = state.ids.get_mut(&listener) else {
            return Ok(());
        };
        // Who cannot be taken in for want of descriptors goes on waiting, and the program is told.
        let Some(socket) = entry
            .socket
            .as_ref()
            .map(socket::take_next)
            .transpose()?
            .flatten()
        else {
            return Ok(());
        };
        let key = new_key();
        self.watch(&socket, key)?;
        entry.waiting += 1;
        if entry.waiting == entry.backlog {
            self.set_listening(entry, listener);
        }
        let greeting = entry.greeting(listener, socket);
        self.insert(state, key, greeting);
        Ok(())
    }

    /// What is to be done because something became of an id.
    pub fn follow(&self, state: &mut State, key: u64, outcome: Option<Outcome>) {
        let listener = state.ids.get(&key).and_then(|entry| entry.listener);
        match (outcome, listener) {
            (None | Some(Outcome::Nothing), _) => {}
            (Some(Outcome::Event(kind)), None) => self.push(state, key, What::Kind(kind)),
            (Some(Outcome::Request(message)), Some(listener)) => {
                self.push(state, listener, What::Request(key, message));
            }
            // Nobody has heard of it, and nobody will.
            (Some(_), Some(listener)) => {
                self.remove(state, key);
                (state.queue)
                    .retain(|(_, what)| !matches!(what, What::Request(of, _) if *of == key));
                self.request_is_off(state, listener);
            }
            (Some(Outcome::Request(_) | Outcome::Forget), None) => {
                self.remove(state, key);
            }
        }
    }

    /// Sees to the ids whose time is over.
    fn expire(&self, state: &mut State, scope: &str) {
        let now = Instant::now();
        while let Some(&(at, key)) = state.deadlines.first() {
            if at > now {
                break;
            }
            let outcome = self.change(state, key, |entry| match entry.stage {
                Stage::Knocking(until) if now < until => self.knock(entry, key, scope),
                _ => entry.expired(),
            });
            self.follow(state, key, outcome);
        }
        self.set_timer(&state.deadlines);
    }

    /// Tries to reach the peer of an id that has something to ask.
    pub fn knock(&self, entry: &mut Entry, key: u64, scope: &str) -> Outcome {
        entry.deadline = Some(Instant::now() + AGAIN);
        let (Some(socket), Some(peer)) = (&entry.socket, &entry.peer) else {
            return Outcome::Nothing;
        };
        let met = Address::new(scope, entry.space, peer)
            .and_then(|address| socket::meet(socket, &address));
        match met {
            Ok(Met::There) => {
                let Some(request) = entry.request.take() else {
                    return Outcome::Nothing;
                };
                if self.watch(socket, key).is_err() {
                    let status = -libc::ENOMEM;
                    return entry.end(EventKind::ConnectError { status });
                }
                entry.say(&request);
                entry.await_answer(Stage::Asked);
                Outcome::Nothing
            }
            Ok(Met::Crowded) => Outcome::Nothing,
            Ok(Met::Nobody) if entry.space.is_datagram() => {
                entry.refused(SIDR_NO_SERVICE, Vec::new())
            }
            Ok(Met::Nobody) => entry.refused(NO_SERVICE, Vec::new()),
            Ok(Met::Foreign) => {
                let status = -libc::EACCES;
                entry.end(EventKind::ConnectError { status })
            }
            Err(_) => {
                let status = -libc::ECONNABORTED;
                entry.end(EventKind::ConnectError { status })
            }
        }
    }
}
