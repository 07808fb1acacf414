//! The end that accepts connections.
//!
//! Its descriptor is an epoll of the channel's descriptor and of a bell. The bell rings when a link of
//! the listener, or the thread that waits for the channel while links sleep, has taken a request:
//! otherwise nothing would wake the thread that accepts.

use super::Retry;
use super::admission::Admission;
use super::connector::lost;
use super::private_data::{Busy, Notice, PrivateData, Refusal};
use super::session::Session;
use crate::connect::Message;
use crate::connect::cm::{Event, EventChannel, EventKind, Id, Peer, PortSpace};
use crate::device::Device;
use crate::error::Error;
use crate::event::{Bell, Waiters, Watcher};
use crate::link::{Exchange, ExchangeError};
use crate::memory::fork::Life;
use crate::pinned::headroom;
use crate::pinned::room_in;
use crate::pinned::room_in_queue;
use bellwire_core::fault::FaultCode;
use bellwire_provider::backoff::sleep;
use bellwire_provider::entropy;
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long to wait after the system failed to return events.
const PAUSE: Duration = Duration::from_millis(10);

/// Reasons of links that were dropped here that are kept for their peers.
const GIVEN_UP: usize = 64;

/// Accepts the links of many [`Connector`](super::Connector)s. Each [`Incoming`] is the exchange of one
/// [`Link`](crate::link::Link). Polling any of these links, or accepting, handles the events of all.
#[derive(Debug)]
pub struct Listener {
    channel: EventChannel,
    desk: Arc<Mutex<Desk>>,
    listener: Id,
    /// An epoll of the channel's descriptor, and of the bell that rings when a link has taken the events.
    all: OwnedFd,
    waiters: Waiters,
    /// An id at the same port for datagrams, by which connectors say that links are closed.
    _notices: Id,
    /// Of the process that made it.
    life: Life,
}

/// State shared by all links of a listener.
#[derive(Debug)]
struct Desk {
    /// Distinguishes it from every other listener, in this process or another one.
    number: u64,
    /// Keyed by the session number that the connector chose.
    sessions: HashMap<u64, Session>,
    /// The session of the id at this address. An id may have had the address before: the session knows which
    /// id is its own.
    by_id: HashMap<usize, u64>,
    /// Processes of peers that were seen to end when the sessions were last looked through for those without
    /// a peer.
    ended: u64,
    /// How many sessions have a waker.
    sleepers: usize,
    /// Which of them are admitted, and the bell that rings when one can be accepted.
    admission: Admission,
    arrived: Bell,
    rung: bool,
    /// Handles events while links sleep.
    watcher: Option<Watcher>,
    /// The listener is gone: new links are refused.
    closed: bool,
    /// Why the last links that were given up and dropped were given up: their peers ask for them again.
    given_up: VecDeque<(u64, FaultCode)>,
    retry: Retry,
}

impl Listener {
    /// Listens on an address, or a name, for connections and for datagrams (of [`PortSpace::Udp`]), by
    /// which connectors say that they close a link. Up to `backlog` links, at least one, wait to be accepted;
    /// further ones are refused, and their connectors ask again after a while. `retry` is how long a link
    /// waits for a peer that is gone. See [`limit_handshakes`](Self::limit_handshakes).
    ///
    /// # Errors
    /// Those of [`EventChannel::on`], [`Id::bind`] and [`Id::listen`].
    pub fn bind(
        device: &Device,
        at: impl Into<Peer>,
        backlog: u32,
        retry: Retry,
    ) -> Result<Self, Error> {
        headroom()?;
        let channel = EventChannel::on(device)?;
        let (listener, notices) = bound(&channel, &at.into())?;
        listener.listen(backlog)?;
        // As many as the system supports.
        notices.listen(0)?;
        let mut given_up = VecDeque::new();
        room_in_queue(&mut given_up, GIVEN_UP)?;
        let desk = Desk {
            number: entropy::draw(),
            sessions: HashMap::new(),
            by_id: HashMap::new(),
            ended: 0,
            sleepers: 0,
            admission: Admission::new(backlog as usize),
            arrived: Bell::new()?,
            rung: false,
            watcher: None,
            closed: false,
            given_up,
            retry,
        };
        let failed = |error: Errno| Error::io("make an epoll descriptor", error.into());
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [channel.as_fd(), desk.arrived.as_fd()] {
            let nothing = epoll::EventData::new_u64(0);
            epoll::add(&all, fd, nothing, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self {
            channel,
            desk: Arc::new(Mutex::new(desk)),
            listener,
            all,
            waiters: Waiters::default(),
            _notices: notices,
            life: Life::current(),
        })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Limits the links that were accepted and are not connected yet to this many, at least one: while there
    /// are as many, further ones wait in the backlog. One that is not connected within this time after it
    /// was accepted, for example because its peer is silent, is given up, and makes room for the next. By
    /// default 256, and 10 s. Links have to be polled to connect.
    pub fn limit_handshakes(&mut self, handshakes: u32, within: Duration) {
        let mut desk = lock(&self.desk);
        desk.admission.handshakes = handshakes.max(1) as usize;
        desk.admission.within = within;
        desk.ring();
    }

    /// Accepts the next link that wants to connect; `None` if there is none yet, or if as many are connecting
    /// as [may](Self::limit_handshakes). Never blocks; the descriptor of [`AsFd`] is readable when a call may
    /// succeed.
    ///
    /// # Errors
    /// Those of [`EventChannel::try_get`]; [`Error::Io`] when a peer waits for which this process has no descriptor or no
    /// memory left: it names the limit, and the peer is accepted by a later call, when there is room again.
    pub fn accept(&mut self) -> Result<Option<Incoming>, Error> {
        let mut desk = see_to(&self.desk, &self.channel)?;
        desk.give_up_late();
        let next = desk.accept(Instant::now());
        desk.ring();
        if next.is_none()
            && let Some(error) = self.channel.lack()
        {
            return Err(error);
        }
        Ok(next.map(|session| Incoming {
            session,
            channel: self.channel.clone(),
            desk: self.desk.clone(),
            life: Life::current(),
        }))
    }

    /// [Accepts](Self::accept) the next link, waiting for one if necessary; `None` if none came within
    /// this time.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept); [`Error::Interrupted`] when a signal handler has interrupted a wait
    /// without a limit ([`Duration::MAX`]); [`Error::Woken`] by [`waiters`](Self::waiters).
    pub fn accept_within(&mut self, timeout: Duration) -> Result<Option<Incoming>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(incoming) = self.accept()? {
                return Ok(Some(incoming));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let due = lock(&self.desk).admission.due();
            let due = due.map(|at| at.saturating_duration_since(Instant::now()));
            let bound = left.into_iter().chain(self.channel.idle()).chain(due).min();
            self.waiters.sleep(&[self.as_fd()], bound, left)?;
        }
    }
}

impl Listener {
    /// The thread that waits in [`accept_within`](Self::accept_within): another thread, or a signal handler, can
    /// end its wait.
    ///
    /// ```
    /// use bellwire::connect::cm::{Listener, Retry};
    /// use bellwire::{Device, Error};
    /// use std::time::Duration;
    ///
    /// let device = Device::open("soft")?;
    /// let mut listener = Listener::bind(&device, ("127.0.0.1", 0), 1, Retry::default())?;
    /// let waiters = listener.waiters().clone();
    /// let accepting = std::thread::spawn(move || listener.accept_within(Duration::MAX).err());
    /// waiters.wake();
    /// assert!(matches!(accepting.join().unwrap(), Some(Error::Woken)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        lock(&self.desk).closed = true;
    }
}

/// Readable while events may have come, also when a link took them. For poll and epoll, not to be read.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

/// Binds ids of both port spaces to the same port.
fn bound(channel: &EventChannel, at: &Peer) -> Result<(Id, Id), Error> {
    /// Free ports to try: a port that is free in one space may be in use in the other.
    const PORTS: u32 = 16;
    let mut tries = if at.port() == 0 { PORTS } else { 1 };
    loop {
        let listener = channel.id(PortSpace::Tcp)?;
        listener.bind(at.clone())?;
        let notices = channel.id(PortSpace::Udp)?;
        tries -= 1;
        match notices.bind(at.with_port(listener.port())) {
            Ok(()) => return Ok((listener, notices)),
            Err(error) if tries == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    // A panic never leaves a session half changed.
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles the events that have come, for all links.
fn see_to<'a>(
    desk: &'a Mutex<Desk>,
    channel: &EventChannel,
) -> Result<MutexGuard<'a, Desk>, Error> {
    /// Events that are handled at a time: peers may send more meanwhile, and then the descriptor stays readable.
    const AT_ONCE: usize = 256;
    let mut desk = lock(desk);
    for _ in 0..AT_ONCE {
        let Some(event) = channel.next()? else {
            break;
        };
        desk.handle(event);
    }
    let ended = channel.processes_ended();
    if std::mem::replace(&mut desk.ended, ended) != ended {
        desk.give_up_dead();
    }
    Ok(desk)
}

/// Nothing is known of this session any more.
fn forget(
    sessions: &mut HashMap<u64, Session>,
    by_id: &mut HashMap<usize, u64>,
    number: u64,
) -> Option<Session> {
    let session = sessions.remove(&number)?;
    unname(by_id, session.address, number);
    Some(session)
}

/// The id at this address is not this session's any more.
fn unname(by_id: &mut HashMap<usize, u64>, address: Option<usize>, session: u64) {
    if let Some(address) = address
        && by_id.get(&address) == Some(&session)
    {
        by_id.remove(&address);
    }
}

impl Desk {
    /// Rings the bell while a link can be accepted.
    fn ring(&mut self) {
        let ready = self.admission.is_ready();
        if ready != self.rung {
            self.rung = ready;
            match ready {
                true => self.arrived.ring(),
                false => self.arrived.silence(),
            }
        }
    }

    /// The next link to be accepted. One whose request is not pending any more makes room for the others: if
    /// its peer is still there it asks again.
    fn accept(&mut self, now: Instant) -> Option<u64> {
        loop {
            let number = self.admission.accept(now)?;
            let session = self.sessions.get(&number);
            if session.is_some_and(|session| session.id.is_some()) {
                return Some(number);
            }
            self.admission.done(number);
            forget(&mut self.sessions, &mut self.by_id, number);
        }
    }

    /// Gives up the links whose peers' processes have ended while they were not connected: none of them asks
    /// again.
    fn give_up_dead(&mut self) {
        for (number, session) in &mut self.sessions {
            if session.is_over() && !std::mem::replace(&mut session.gone, true) {
                self.admission.done(*number);
                session.wake();
            }
        }
        self.ring();
    }

    /// Gives up the links that were not connected in time.
    fn give_up_late(&mut self) {
        while let Some(number) = self.admission.late(Instant::now()) {
            if let Some(session) = self.sessions.get_mut(&number) {
                session.late = true;
                session.id = None;
                session.wake();
            }
        }
    }

    fn handle(&mut self, event: Event) {
        if let EventKind::LookupRequest { private_data, .. } = event.kind() {
            // Dropping its id rejects the lookup; the sender does not wait for a response.
            if let Some(Notice { session, why }) = Notice::from_bytes(private_data)
                && let Some(session) = self.sessions.get_mut(&session)
            {
                let parting = why.map_or(Message::Closing, Message::GaveUp);
                session.inbox.put(parting);
                session.gone = true;
                session.wake();
            }
            return;
        }
        if !matches!(event.kind(), EventKind::ConnectRequest { .. }) {
            let found = self.by_id.get(&event.id().address()).copied();
            let Some(number) = found else { return };
            let session = self.sessions.get_mut(&number);
            if let Some(session) = session.filter(|session| session.has(event.id())) {
                session.hear(event.ack());
                session.gone = session.is_over();
                if session.established || session.gone {
                    self.admission.done(number);
                    self.ring();
                }
            }
            return;
        }
        if let EventKind::ConnectRequest { id, conn } = event.ack() {
            self.request(id, &conn.param.private_data);
        }
    }

    /// Rejects a request for which there is no room: its connector asks again.
    fn put_off(&mut self, id: &Id, no_memory: bool) {
        let wait = self.admission.refuse(Instant::now()).as_micros();
        let busy = Busy {
            micros: u32::try_from(wait).unwrap_or(u32::MAX),
            no_memory,
        };
        let _gone = id.reject(&busy.to_bytes());
    }

    /// Handles a connection request. Returning drops the id, which rejects the request: so for invalid
    /// ones.
    fn request(&mut self, id: Id, private_data: &[u8]) {
        let Ok((lid, gid)) = id.peer_port() else {
            return;
        };
        let Ok(said) = PrivateData::from_bytes(private_data, lid, gid) else {
            return;
        };
        let listener = self.number;
        let refused = |why| Refusal { listener, why }.to_bytes();
        if !self.sessions.contains_key(&said.session) {
            // A link that was connected once, and was dropped here, cannot start over.
            if self.closed || said.again {
                let mut given_up = self.given_up.iter();
                let this = given_up.find(|(session, _)| *session == said.session);
                let _gone = id.reject(&refused(this.map(|(_, why)| *why)));
                return;
            }
            let (sessions, by_id) = (&mut self.sessions, &mut self.by_id);
            let is_there = |number| {
                let session: Option<&Session> = sessions.get(&number);
                let is_there = session.is_some_and(|session| session.id.is_some());
                if !is_there {
                    // Should it ask again, it waits anew.
                    forget(sessions, by_id, number);
                }
                is_there
            };
            if !self.admission.ask(said.session, id.peer_share(), is_there) {
                return self.put_off(&id, false);
            }
            self.ring();
        }
        if room_in(&mut self.sessions).is_err() || room_in(&mut self.by_id).is_err() {
            return self.put_off(&id, true);
        }
        let session = self.sessions.entry(said.session).or_default();
        if session.closed || session.late {
            let _gone = id.reject(&refused(session.given_up()));
            return;
        }
        session.listener = listener;
        session.inbox.put(Message::Info(said.info));
        let before = session.address.replace(id.address());
        unname(&mut self.by_id, before, said.session);
        self.by_id.insert(id.address(), said.session);
        session.process = id.peer_process();
        session.peer = id.peer_addr();
        session.id = Some((id, said.info.epoch));
        session.answered = false;
        session.established = false;
        session.gone = false;
        session.lost = None;
        session.answer();
        session.wake();
    }
}

/// The exchange of a link that accepts its connections.
#[derive(Debug)]
pub struct Incoming {
    session: u64,
    channel: EventChannel,
    desk: Arc<Mutex<Desk>>,
    /// Of the process that made it.
    life: Life,
}

impl Incoming {
    /// Handles the events that have come, and then calls `act` for our session.
    fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Session) -> Result<R, ExchangeError>,
    ) -> Result<R, ExchangeError> {
        let mut desk = see_to(&self.desk, &self.channel).map_err(lost)?;
        desk.give_up_late();
        desk.ring();
        let patience = desk.retry.all();
        let session = desk.sessions.get_mut(&self.session);
        let session = session.ok_or(ExchangeError::Closed)?;
        if session.late || session.lost.is_some_and(|since| since.elapsed() > patience) {
            return Err(ExchangeError::Closed);
        }
        act(session)
    }
}

impl Exchange for Incoming {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let message = Message::from_bytes(message)?;
        self.with(|session| {
            if session.gone {
                return Err(ExchangeError::Closed);
            }
            session.say(message);
            Ok(())
        })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.with(|session| match session.inbox.give(into)? {
            None if session.gone => Err(ExchangeError::Closed),
            message => Ok(message),
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn needs_new_qp(&self) -> bool {
        true
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        lock(&self.desk).sessions.get(&self.session)?.peer
    }

    fn pending(&self) -> Option<String> {
        // The peer may have asked again, and this process had no descriptor or memory to accept it.
        let lack = self.channel.lack_text();
        let asked = (lock(&self.desk).sessions.get(&self.session)?).id.is_some();
        lack.or_else(|| (!asked).then(|| "it has not asked for the next connection".to_owned()))
    }

    /// The descriptor is the listener's: a thread waits for it, for all links of the listener that sleep.
    fn set_waker(&mut self, waker: Waker) -> Result<bool, Error> {
        let mut desk = lock(&self.desk);
        if desk.watcher.is_none() {
            let (channel, of_all) = (self.channel.clone(), Arc::downgrade(&self.desk));
            let source = channel.clone();
            let watcher = Watcher::start("bellwire-links", source, move || {
                let Some(desk) = of_all.upgrade() else {
                    return false;
                };
                if see_to(&desk, &channel).is_err() {
                    // Each link gets the error from a poll. The system may recover from it later.
                    lock(&desk).sessions.values().for_each(Session::wake);
                    sleep(PAUSE);
                }
                true
            });
            desk.watcher = Some(watcher?);
        }
        if let Some(session) = desk.sessions.get_mut(&self.session)
            && session.waker.replace(waker).is_none()
        {
            desk.sleepers += 1;
        }
        Ok(true)
    }

    fn deadline(&self) -> Option<Instant> {
        let desk = lock(&self.desk);
        let lost = desk.sessions.get(&self.session)?.lost;
        let lost = lost.and_then(|since| since.checked_add(desk.retry.all()));
        let late = desk.admission.due_of(self.session);
        lost.into_iter().chain(late).min()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        let mut desk = lock(&self.desk);
        let Desk {
            sessions, by_id, ..
        } = &mut *desk;
        let ours = forget(sessions, by_id, self.session);
        if let Some(ours) = &ours {
            if let Some(why) = ours.given_up() {
                if desk.given_up.len() == GIVEN_UP {
                    desk.given_up.pop_front();
                }
                desk.given_up.push_back((self.session, why));
            }
            desk.sleepers -= usize::from(ours.waker.is_some());
        }
        desk.admission.done(self.session);
        desk.ring();
        let some_sleep = desk.sleepers != 0;
        let over = desk.watcher.take_if(|_| !some_sleep);
        drop(desk);
        // Waits until the thread has handled the current event, and no longer.
        drop(over);
        drop(ours);
    }
}
