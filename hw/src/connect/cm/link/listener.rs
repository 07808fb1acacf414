//! The end that is asked.

use super::Retry;
use super::connector::{CLOSED, give, lost};
use super::private_data::PrivateData;
use crate::connect::cm::{ConnParam, Event, EventChannel, EventKind, Id, Peer, PortSpace};
use crate::connect::{Message, RecoveryInfo};
use crate::device::Device;
use crate::error::Error;
use crate::recovery::{Exchange, ExchangeError};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Takes the links of many [`Connector`](super::Connector)s. Each [`Incoming`] goes to a
/// [`Link`](crate::recovery::Link) of its own; whoever polls one of them, or accepts, sees to what comes
/// for all.
#[derive(Debug)]
pub struct Listener {
    channel: EventChannel,
    desk: Arc<Mutex<Desk>>,
    listener: Id,
}

/// What all links of a listener share.
#[derive(Debug)]
struct Desk {
    /// By the number that the connector gave.
    sessions: HashMap<u64, Session>,
    /// Those that nobody has accepted.
    new: VecDeque<u64>,
    backlog: usize,
    /// Nobody accepts any more.
    closed: bool,
    retry: Retry,
}

/// A link, as the other end sees it.
#[derive(Debug, Default)]
struct Session {
    /// What it said last.
    ours: Option<RecoveryInfo>,
    ready: Option<u64>,
    /// What it has to hear.
    inbox: VecDeque<Message>,
    /// The request, or the connection, and the epoch that the peer asked with.
    id: Option<(Id, u64)>,
    answered: bool,
    /// It has ended in good order: who asks for it is told.
    closed: bool,
    /// Since when there is none.
    lost: Option<Instant>,
}

impl Listener {
    /// Listens at an address, or a name. Up to `backlog` links wait to be accepted; those who come then
    /// are told to try again. `retry` is how long a link waits for a peer that has gone.
    ///
    /// # Errors
    /// Those of [`EventChannel::on`], [`Id::bind`] and [`Id::listen`].
    pub fn bind(
        device: &Device,
        at: impl Into<Peer>,
        backlog: u32,
        retry: Retry,
    ) -> Result<Self, Error> {
        let channel = EventChannel::on(device)?;
        let listener = channel.id(PortSpace::Tcp)?;
        listener.bind(at)?;
        listener.listen(backlog)?;
        let desk = Desk {
            sessions: HashMap::new(),
            new: VecDeque::new(),
            backlog: backlog.max(1) as usize,
            closed: false,
            retry,
        };
        Ok(Self {
            channel,
            desk: Arc::new(Mutex::new(desk)),
            listener,
        })
    }

    /// The port that it listens at.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The next link that wants to be connected; `None`: there is none yet. Never blocks;
    /// [`AsFd`] is readable when it is worth asking.
    ///
    /// # Errors
    /// Those of [`EventChannel::try_get`].
    pub fn accept(&mut self) -> Result<Option<Incoming>, Error> {
        let mut desk = see_to(&self.desk, &self.channel)?;
        Ok(desk.new.pop_front().map(|session| Incoming {
            session,
            channel: self.channel.clone(),
            desk: self.desk.clone(),
        }))
    }

    /// As [`accept`](Self::accept), and waits for one if need be; `None`: none came within this time.
    ///
    /// # Errors
    /// As there.
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
            let event = self.channel.get(left.unwrap_or(Duration::MAX))?;
            if let Some(event) = event {
                lock(&self.desk).handle(event);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.desk).closed = true;
    }
}

/// Readable while something may have come. For poll and epoll, not to be read.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    // Each change of a session is whole.
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees to what has come, for all.
fn see_to<'a>(
    desk: &'a Mutex<Desk>,
    channel: &EventChannel,
) -> Result<MutexGuard<'a, Desk>, Error> {
    let mut desk = lock(desk);
    while let Some(event) = channel.try_get()? {
        desk.handle(event);
    }
    Ok(desk)
}

impl Desk {
    fn handle(&mut self, event: Event) {
        if !matches!(event.kind(), EventKind::ConnectRequest { .. }) {
            let found = (self.sessions.values_mut())
                .find(|session| (session.id.as_ref()).is_some_and(|(id, _)| id == event.id()));
            if let Some(session) = found {
                session.hear(event.ack());
            }
            return;
        }
        if let EventKind::ConnectRequest { id, conn } = event.ack() {
            self.request(id, &conn.param.private_data);
        }
    }

    /// Somebody asks. Who makes no sense is rejected, as everybody whose id is dropped.
    fn request(&mut self, id: Id, private_data: &[u8]) {
        let Ok((lid, gid)) = id.peer_port() else {
            return;
        };
        let Ok(said) = PrivateData::from_bytes(private_data, lid, gid) else {
            return;
        };
        if !self.sessions.contains_key(&said.session) {
            // A link that was connected once, and is let go of, does not begin anew by itself.
            if self.closed || said.again {
                let _gone = id.reject(CLOSED);
                return;
            }
            if self.new.len() >= self.backlog {
                return;
            }
            self.new.push_back(said.session);
        }
        let session = self.sessions.entry(said.session).or_default();
        if session.closed {
            let _gone = id.reject(CLOSED);
            return;
        }
        session.inbox.push_back(Message::Info(said.info));
        session.id = Some((id, said.info.epoch));
        session.answered = false;
        session.lost = None;
        session.answer();
    }
}

impl Session {
    /// Answers the request that waits, if there is something to say.
    fn answer(&mut self) {
        let (Some((id, asked)), Some(info), false) = (&self.id, self.ours, self.answered) else {
            return;
        };
        let ready = self.ready == Some(info.epoch) && info.epoch == *asked;
        // A peer that is behind has to know at once.
        if !ready && info.epoch <= *asked {
            return;
        }
        let said = PrivateData {
            session: 0,
            info,
            ready,
            again: false,
        };
        let param = ConnParam {
            private_data: said.to_bytes(),
            ..ConnParam::default()
        };
        self.answered = true;
        if id.accept_alone(info.conn.endpoint.qp_num, &param).is_err() {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.id = None;
        self.answered = false;
        self.lost = Some(Instant::now());
    }

    fn hear(&mut self, event: EventKind) {
        match event {
            EventKind::Established => {
                if let Some((_, epoch)) = self.id {
                    self.inbox.push_back(Message::Ready { epoch });
                }
            }
            EventKind::Disconnected
            | EventKind::Rejected { .. }
            | EventKind::Unreachable { .. }
            | EventKind::ConnectError { .. }
            | EventKind::DeviceRemoval => self.lose(),
            _ => {}
        }
    }

    fn say(&mut self, message: Message) {
        match message {
            Message::Info(info) => {
                self.ours = Some(info);
                self.ready = None;
                if self.answered {
                    // What was answered is out of date: the peer is to ask again.
                    self.lose();
                }
            }
            Message::Ready { epoch } => self.ready = Some(epoch),
            Message::Closing => {
                self.closed = true;
                if let Some((id, _)) = self.id.take()
                    && !self.answered
                {
                    let _gone = id.reject(CLOSED);
                }
                return;
            }
        }
        self.answer();
    }
}

/// The exchange of a link that is asked for its connections.
#[derive(Debug)]
pub struct Incoming {
    session: u64,
    channel: EventChannel,
    desk: Arc<Mutex<Desk>>,
}

impl Incoming {
    /// Sees to what has come, and then to our own.
    fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Session) -> Result<R, ExchangeError>,
    ) -> Result<R, ExchangeError> {
        let mut desk = see_to(&self.desk, &self.channel).map_err(lost)?;
        let patience = desk.retry.all();
        let session = desk.sessions.get_mut(&self.session);
        let session = session.ok_or(ExchangeError::Closed)?;
        if session.lost.is_some_and(|since| since.elapsed() > patience) {
            return Err(ExchangeError::Closed);
        }
        act(session)
    }
}

impl Exchange for Incoming {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let message = Message::from_bytes(message)?;
        self.with(|session| {
            session.say(message);
            Ok(())
        })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.with(|session| give(&mut session.inbox, into))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        lock(&self.desk).sessions.remove(&self.session);
    }
}
