//! The inside of a channel: its ids, the queued events, and one descriptor for everything that may raise
//! an event.
//!
//! ```text
//!  epoll ── wake: an event is queued
//!        ├─ timer: a timeout of an id
//!        ├─ sockets: listeners, and one for each connection
//!        └─ processes of the peers
//! ```
//!
//! There is no thread: a call that asks for an event checks what is ready.

use super::super::EventKind;
use super::super::share::Who;
use super::address::{self, At};
use super::entry::{Entry, FOREIGN, GREETINGS, NO_SERVICE, Outcome, SIDR_NO_SERVICE, Stage};
use super::message::{Kind, Message};
use super::peers::{NotMet, PeerProcess, Peers, process_of};
use super::socket::{self, Met, Waiting};
use super::why;
use crate::device::Device;
use crate::error::Error;
use crate::event::{Bell, Timer};
use crate::memory::fork::Fd;
use crate::pinned::{room_in, room_in_queue};
use bellwire_core::fault::CmEvent;
use bellwire_provider::event::epoll_wait;
use bellwire_soft::{Listener, Owner};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Keys of the channel's own descriptors.
const WAKE: u64 = 0;
const TIMER: u64 = 1;

/// Peers that are accepted at a listener before other sockets have their turn.
const AT_ONCE: usize = 32;

/// A key for an id, unique within the process.
pub(super) fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(TIMER + 1);
    // Relaxed: the number orders no other data.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The inside of a channel. It has no reference to a device, so that a device can deliver an event to it
/// at any time.
#[derive(Debug)]
pub(super) struct Hub {
    epoll: Arc<OwnedFd>,
    wake: Bell,
    timer: Timer,
    peers: Peers,
    /// No call blocks while this lock is held, and no other lock is taken except that of the peers.
    state: Mutex<State>,
}

impl State {
    /// Reserves room for one more id, and for the events of all.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn room_for_id(&mut self) -> Result<(), Error> {
        let events = EVENTS_OF_ONE * (self.ids.len() + 1);
        room_in_queue(&mut self.queue, events)?;
        room_in(&mut self.ids)
    }
}

/// Events of an id that may be queued at a time: the end of a step, of the connection and of the device.
const EVENTS_OF_ONE: usize = 3;

/// A queued event of an id.
#[derive(Debug)]
pub(super) enum What {
    Kind(EventKind),
    /// A request, whose id has this key.
    Request(u64, Box<Message>),
}

#[derive(Debug, Default)]
pub(super) struct State {
    queue: VecDeque<(u64, What)>,
    /// Whether the bell rings: as long as an event is queued, whose system calls are saved in between.
    rings: bool,
    pub ids: HashMap<u64, Entry>,
    /// The times of the ids' next timeouts.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Why a peer of a listener could not be accepted, for want of a descriptor or of memory. The peer tries again.
    lack: Option<Error>,
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::io(what, error.into())
}

impl Hub {
    pub fn new(owner: Owner) -> Result<Self, Error> {
        const MAKE: &str = "make an event channel of the connection manager";
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).map_err(failed(MAKE))?);
        let hub = Self {
            peers: Peers::new(epoll.clone(), owner.uid()),
            epoll,
            wake: Bell::new()?,
            timer: Timer::new().map_err(|error| Error::io(MAKE, error))?,
            state: Mutex::default(),
        };
        hub.watch(&hub.wake, WAKE)?;
        hub.watch(&hub.timer, TIMER)?;
        Ok(hub)
    }

    /// How many processes of peers were found to have ended.
    pub fn processes_ended(&self) -> u64 {
        self.peers.ended()
    }

    /// Why a peer could not be accepted, since it was asked last.
    pub fn lack(&self) -> Option<Error> {
        self.state().lack.take()
    }

    /// [`lack`](Self::lack) in words, which stays to be asked for.
    pub fn lack_text(&self) -> Option<String> {
        self.state().lack.as_ref().map(Error::to_string)
    }

    /// Readable while an event may be available.
    pub fn fd(&self) -> &OwnedFd {
        &self.epoll
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // A panic never leaves an id half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a socket from here on. Closing the socket ends that.
    pub fn watch(&self, socket: &impl AsFd, key: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, socket, EventData::new_u64(key), EventFlags::IN)
            .map_err(failed("watch a socket of the connection manager"))
    }

    /// Stops watching a socket.
    pub fn forget(&self, socket: &Fd) {
        let _not_watched = epoll::delete(&self.epoll, socket);
    }

    /// Watches a listener's socket, unless its backlog is full.
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

    /// Queues an event of an id.
    pub fn push(&self, state: &mut State, key: u64, what: What) {
        state.queue.push_back((key, what));
        if !std::mem::replace(&mut state.rings, true) {
            self.wake.ring();
        }
    }

    /// Silences the bell if nothing is queued.
    fn settle(&self, state: &mut State) {
        if state.queue.is_empty() && std::mem::take(&mut state.rings) {
            self.wake.silence();
        }
    }

    /// Delivers an event to all ids that are bound to the device; the loss of a group to its members.
    pub fn notify_all(&self, kind: &EventKind) {
        let mut state = self.state();
        let multicast = matches!(kind, EventKind::MulticastError { .. });
        let keys = state.ids.iter_mut().filter_map(|(key, entry)| {
            // An id whose request was not delivered yet gets no other event.
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

    /// Changes an id, and updates the timer; `None` if there is no such id.
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
        self.timer.set(deadlines.first().map(|(at, _)| *at));
    }

    /// Adds an id, which may come from another channel.
    pub fn insert(&self, state: &mut State, key: u64, entry: Entry) {
        let deadline = entry.deadline;
        state.ids.insert(key, entry);
        if let Some(deadline) = deadline {
            state.deadlines.insert((deadline, key));
            self.set_timer(&state.deadlines);
        }
    }

    /// Removes an id, and returns it with its queued events.
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

    /// Takes the queued events of an id, without the requests of a listener.
    pub fn take_events(&self, state: &mut State, key: u64) -> VecDeque<EventKind> {
        let mut taken = VecDeque::new();
        let mut others = VecDeque::new();
        for (of, what) in state.queue.drain(..) {
            match what {
                What::Kind(kind) if of == key => taken.push_back(kind),
                what => others.push_back((of, what)),
            }
        }
        state.queue = others;
        self.settle(state);
        taken
    }

    /// Takes the oldest queued event.
    pub fn pop(&self, state: &mut State) -> Option<(u64, What)> {
        let next = state.queue.pop_front();
        self.settle(state);
        next
    }

    /// A listener's request was taken, or is gone.
    pub fn request_is_off(&self, state: &mut State, listener: u64) {
        if let Some(entry) = state.ids.get_mut(&listener) {
            entry.waiting = entry.waiting.saturating_sub(1);
            if entry.waiting + 1 == entry.backlog {
                self.set_listening(entry, listener);
            }
        }
    }

    /// Watches a listener again after it was moved from another channel.
    pub fn listen_again(&self, state: &mut State, key: u64) {
        if let Some(entry) = state.ids.get(&key)
            && entry.stage == Stage::Listening
        {
            self.set_listening(entry, key);
        }
    }

    /// Handles everything that is ready. Returns `false` if nothing was.
    pub fn attend(&self, state: &mut State, device: &Device, scope: &str) -> Result<bool, Error> {
        const AT_A_TIME: usize = 32;
        let mut room = [const { MaybeUninit::uninit() }; AT_A_TIME];
        let ready = match epoll_wait(self.epoll.as_fd(), &mut room, Some(Duration::ZERO)) {
            Ok(ready) => ready,
            Err(error) if error.kind() == ErrorKind::Interrupted => &mut [],
            Err(error) => return Err(Error::io("look at an event channel", error)),
        };
        // Requests come before other messages: they were sent earlier.
        let listens = |event: &epoll::Event| {
            (state.ids.get(&event.data.u64())).is_some_and(|entry| entry.stage == Stage::Listening)
        };
        ready.sort_unstable_by_key(|event| !listens(event));
        for event in &*ready {
            match event.data.u64() {
                WAKE => self.settle(state),
                TIMER => {
                    self.timer.silence();
                    self.expire(state, scope);
                }
                key => match process_of(key) {
                    Some(number) => self.ended(state, number, device, scope),
                    None => self.look_at(state, key, device, scope),
                },
            }
        }
        Ok(!ready.is_empty())
    }

    fn look_at(&self, state: &mut State, key: u64, device: &Device, scope: &str) {
        let listens = (state.ids.get(&key)).is_some_and(|entry| entry.stage == Stage::Listening);
        if listens {
            for _ in 0..AT_ONCE {
                let full = (state.ids.get(&key)).is_none_or(|entry| entry.waiting >= entry.backlog);
                if full || !self.receive(state, key, device, scope) {
                    return;
                }
            }
            return;
        }
        loop {
            let outcome = self.change(state, key, |entry| match &entry.socket {
                Some(socket) => {
                    let heard = socket::hear(socket);
                    entry.heard(heard, device, scope)
                }
                None => Outcome::Nothing,
            });
            // The peer may have gone since: the request must not be delivered then.
            let again = matches!(outcome, Some(Outcome::Request(_)));
            self.follow(state, key, outcome);
            if !again {
                return;
            }
        }
    }

    /// Handles the end of the process of this number, and of its connections.
    fn ended(&self, state: &mut State, number: u64, device: &Device, scope: &str) {
        self.peers.report_end(number);
        let with_it = |entry: &Entry| {
            let process = entry.process.as_ref();
            process.is_some_and(|process| process.has_ended(number))
        };
        let ids = state.ids.iter().filter(|(_, entry)| with_it(entry));
        let keys: Vec<u64> = ids.map(|(key, _)| *key).collect();
        for key in keys {
            self.with_peer_gone(state, key, device, scope);
        }
    }

    fn with_peer_gone(&self, state: &mut State, key: u64, device: &Device, scope: &str) {
        let outcome = self.change(state, key, |entry| entry.peer_ended(device, scope));
        self.follow(state, key, outcome);
    }

    /// Watches the peer of an id that was moved from another channel.
    pub fn watch_peer(&self, state: &mut State, key: u64, device: &Device, scope: &str) {
        let gone = self.change(state, key, |entry| {
            let Some(socket) = entry.socket.as_ref().filter(|_| entry.process.is_some()) else {
                return false;
            };
            // A peer that cannot be watched counts as gone, too.
            let process = self.peers.behind(socket);
            let gone = process.is_err();
            entry.process = process.ok().flatten();
            gone
        });
        if gone == Some(true) {
            self.with_peer_gone(state, key, device, scope);
        }
    }

    /// Accepts a peer that has connected to a listener, and its request if that has arrived. Returns whether more of them
    /// may wait.
    fn receive(&self, state: &mut State, listener: u64, device: &Device, scope: &str) -> bool {
        let Some(entry) = state.ids.get_mut(&listener) else {
            return false;
        };
        let waiting = (entry.socket.as_ref()).map_or(Waiting::Nobody, socket::take_next);
        let socket = match waiting {
            Waiting::Somebody(socket) => socket,
            Waiting::Nobody => return false,
            // A peer that cannot be accepted stays in the socket's queue.
            Waiting::NoRoom(error) => return self.pause(state, listener, error),
        };
        // A peer for which there is no room is told so before its socket is closed, and so is the program at the
        // listener.
        let room = state.room_for_id();
        let Some(entry) = state.ids.get_mut(&listener) else {
            return false;
        };
        if let Err(error) = room {
            socket::say(&socket, &entry.no_resources());
            state.lack = Some(error);
            return true;
        }
        let key = new_key();
        let process = match self.peers.behind(&socket) {
            Ok(process) => process,
            Err(NotMet::NoRoom(error)) => {
                socket::say(&socket, &entry.no_resources());
                state.lack = Some(Error::io("watch a peer's process", error));
                return true;
            }
            Err(NotMet::Foreign(_)) => {
                let status = FOREIGN;
                socket::say(
                    &socket,
                    &Message {
                        status,
                        ..Message::new(Kind::Rej)
                    },
                );
                return true;
            }
            Err(NotMet::Gone) => return true,
        };
        if let Err(error) = self.watch(&socket, key) {
            socket::say(&socket, &entry.no_resources());
            state.lack = Some(error);
            return true;
        }
        let who = process.as_deref().map_or(0, PeerProcess::identity);
        let greeting = entry.greeting(listener, socket, process);
        self.insert(state, key, greeting);
        // Usually its request has arrived already. Those who are silent have so many places, of which each has a share.
        self.look_at(state, key, device, scope);
        let is_silent = (state.ids.get(&key)).is_some_and(|entry| entry.stage == Stage::Greeting);
        if is_silent {
            let entry = state.ids.get_mut(&listener);
            let taken = entry.is_some_and(|entry| entry.greetings.take(who, GREETINGS));
            match (taken, state.ids.get_mut(&key)) {
                (true, Some(entry)) => entry.greets = Some(who),
                _ => drop(self.remove(state, key)),
            }
        }
        true
    }

    /// Accepts no peers of a listener for a while. Its socket is not watched meanwhile: otherwise it would be reported as
    /// ready again and again.
    fn pause(&self, state: &mut State, listener: u64, error: Errno) -> bool {
        let socket = (state.ids.get(&listener)).and_then(|entry| entry.socket.as_ref());
        if let Some(socket) = socket {
            let key = EventData::new_u64(listener);
            let _watched = epoll::modify(&self.epoll, socket, key, EventFlags::empty());
        }
        self.change(state, listener, Entry::pause);
        state.lack = Some(Error::io("accept a peer", error.into()));
        false
    }

    /// A peer of a listener has sent its request, or has gone.
    fn greeting_is_over(&self, state: &mut State, listener: u64, who: Option<Who>) {
        if let (Some(who), Some(entry)) = (who, state.ids.get_mut(&listener)) {
            entry.greetings.give(who);
        }
    }

    /// Carries out the result of a change of an id.
    pub fn follow(&self, state: &mut State, key: u64, outcome: Option<Outcome>) {
        let listener = state.ids.get(&key).and_then(|entry| entry.listener);
        match (outcome, listener) {
            (None | Some(Outcome::Nothing), _) => {}
            (Some(Outcome::Event(kind)), None) => self.push(state, key, What::Kind(kind)),
            (Some(Outcome::Request(message)), Some(listener)) => {
                let who = state
                    .ids
                    .get_mut(&key)
                    .and_then(|entry| entry.greets.take());
                self.greeting_is_over(state, listener, who);
                self.push(state, listener, What::Request(key, message));
                if let Some(entry) = state.ids.get_mut(&listener) {
                    entry.waiting += 1;
                    if entry.waiting == entry.backlog {
                        self.set_listening(entry, listener);
                    }
                }
            }
            // The request was not delivered, and never will be.
            (Some(_), Some(listener)) => {
                let removed = self.remove(state, key);
                let who = removed.and_then(|(entry, _)| entry.greets);
                self.greeting_is_over(state, listener, who);
                let before = state.queue.len();
                (state.queue)
                    .retain(|(_, what)| !matches!(what, What::Request(of, _) if *of == key));
                if state.queue.len() != before {
                    self.request_is_off(state, listener);
                }
            }
            (Some(Outcome::Request(_) | Outcome::Forget), None) => {
                self.remove(state, key);
            }
        }
    }

    /// Handles the timeouts that are due.
    fn expire(&self, state: &mut State, scope: &str) {
        let now = Instant::now();
        while let Some(&(at, key)) = state.deadlines.first() {
            if at > now {
                break;
            }
            let outcome = self.change(state, key, |entry| match entry.stage {
                Stage::Knocking(until) if now < until => self.knock(entry, key, scope),
                // The pause of a listener is over.
                Stage::Listening => {
                    entry.deadline = None;
                    self.set_listening(entry, key);
                    Outcome::Nothing
                }
                _ => entry.expired(),
            });
            self.follow(state, key, outcome);
        }
        self.set_timer(&state.deadlines);
    }

    /// Tries to connect to the peer of an id that has a request to send.
    pub fn knock(&self, entry: &mut Entry, key: u64, scope: &str) -> Outcome {
        entry.deadline = Some(entry.next_knock(key));
        let (Some(socket), Some(peer)) = (&entry.socket, entry.peer) else {
            return Outcome::Nothing;
        };
        let mut met = Ok(Met::Nobody);
        for at in At::found_at(peer) {
            if matches!(met, Ok(Met::Nobody)) {
                met = address::socket_of(scope, entry.space, at, peer.port())
                    .and_then(|address| socket::meet(socket, &address));
            }
        }
        let met = match met {
            Ok(Met::There) => match self.peers.behind(socket) {
                Ok(process) => {
                    entry.process = process;
                    self.watch(socket, key).map(|()| Met::There)
                }
                Err(NotMet::Foreign(uid)) => Ok(Met::Foreign(uid)),
                // The listener's process has ended, though its socket still exists.
                Err(NotMet::Gone) => Ok(Met::Nobody),
                Err(NotMet::NoRoom(error)) => Err(Error::io("watch the peer's process", error)),
            },
            met => met,
        };
        match met {
            Ok(Met::There) => {
                let Some(request) = entry.request.take() else {
                    return Outcome::Nothing;
                };
                entry.say(&request);
                entry.await_answer(Stage::Asked);
                Outcome::Nothing
            }
            Ok(Met::Crowded) => Outcome::Nothing,
            Ok(Met::Nobody) => {
                entry.why = Some(why::nobody(scope, entry.space, peer));
                match entry.space.is_datagram() {
                    true => entry.refused(SIDR_NO_SERVICE, Vec::new()),
                    false => entry.refused(NO_SERVICE, Vec::new()),
                }
            }
            Ok(Met::Foreign(uid)) => {
                entry.why = Some(why::foreign_listener(scope, peer, uid));
                let status = -libc::EACCES;
                entry.end(EventKind::ConnectError { status })
            }
            Err(error) => {
                let errno = match &error {
                    Error::Io { error, .. } => error.raw_os_error(),
                    _ => None,
                };
                entry.why = Some(error.to_string());
                let status = -errno.unwrap_or(libc::ECONNABORTED);
                entry.end(EventKind::ConnectError { status })
            }
        }
    }
}

impl Listener for Hub {
    fn befallen(&self, event: CmEvent) {
        let kind = match event {
            CmEvent::AddrChange => EventKind::AddrChange,
            CmEvent::DeviceRemoval => EventKind::DeviceRemoval,
            _ => EventKind::MulticastError {
                status: -libc::ENETRESET,
            },
        };
        self.notify_all(&kind);
    }
}
