//! The end that asks.

use super::Retry;
use super::private_data::PrivateData;
use crate::connect::cm::{ConnParam, EventChannel, EventKind, Id, Peer, PortSpace};
use crate::connect::{Message, RecoveryInfo};
use crate::device::Device;
use crate::error::Error;
use crate::recovery::{Exchange, ExchangeError};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// What a listener says that has let go of a link.
pub(super) const CLOSED: &[u8] = b"closed";

/// Makes exchanges for [`Link`](crate::recovery::Link)s with those of a
/// [`Listener`](super::Listener). Any thread may use it.
///
/// ```
/// use bellwire::connect::cm::{Connector, Listener, Retry};
/// use bellwire::recovery::{Link, LinkInit, LinkState};
///
/// let device = bellwire::Device::open("soft")?;
/// let pd = device.alloc_pd();
/// let mut listener = Listener::bind(&device, ("storage", 7471), 16, Retry::default())?;
/// let connector = Connector::new(&device, ("storage", 7471), Retry::default());
/// let mut client = Link::new(&pd, LinkInit::default(), connector.exchange()?)?;
/// let mut server = None;
/// while client.state() != LinkState::Ready {
///     client.poll(16, |_| ());
///     match &mut server {
///         Some(server) => _ = Link::poll(server, 16, |_| ()),
///         None => {
///             if let Some(incoming) = listener.accept()? {
///                 server = Some(Link::new(&pd, LinkInit::default(), incoming)?);
///             }
///         }
///     }
/// }
/// # Ok::<(), bellwire::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    device: Device,
    peer: Peer,
    retry: Retry,
}

impl Connector {
    /// For links on this device, with those who listen there.
    pub fn new(device: &Device, peer: impl Into<Peer>, retry: Retry) -> Self {
        Self {
            device: device.clone(),
            peer: peer.into(),
            retry,
        }
    }

    /// For one link. It is connected as the link is polled.
    ///
    /// # Errors
    /// Those of [`EventChannel::on`].
    pub fn exchange(&self) -> Result<Outgoing, Error> {
        Ok(Outgoing {
            channel: EventChannel::on(&self.device)?,
            peer: self.peer.clone(),
            retry: self.retry,
            // The standard library's hasher is seeded by the operating system.
            session: std::hash::RandomState::new().build_hasher().finish(),
            ours: None,
            ready: None,
            inbox: VecDeque::new(),
            step: Step::Idle,
            id: None,
            at: Instant::now(),
            failed: 0,
            again: false,
        })
    }
}

/// The exchange of a link that asks for its connections.
#[derive(Debug)]
pub struct Outgoing {
    channel: EventChannel,
    peer: Peer,
    retry: Retry,
    session: u64,
    /// What our link said last.
    ours: Option<RecoveryInfo>,
    ready: Option<u64>,
    /// What it has to hear.
    inbox: VecDeque<Message>,
    step: Step,
    id: Option<Id>,
    /// When to begin, or to give this step up.
    at: Instant,
    /// Attempts that failed since one went well.
    failed: u32,
    /// The two have been connected.
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    Addr,
    Route,
    Asked,
    /// The peer has answered, and is connected in this epoch if it said so.
    Answered(Option<u64>),
    Established,
}

/// What an error of ours is to a link.
pub(super) fn lost(error: Error) -> ExchangeError {
    match error {
        Error::Io { error, .. } => ExchangeError::Io(error),
        error => ExchangeError::Io(io::Error::other(error.to_string())),
    }
}

impl Outgoing {
    /// Goes on as far as it can be gone.
    fn go_on(&mut self) -> Result<(), ExchangeError> {
        while let Some(event) = self.channel.try_get().map_err(lost)? {
            let ours = (self.id.as_ref()).is_some_and(|id| id == event.id());
            if ours {
                let done = self.hear(event.ack())?;
                done.or_else(|_| self.fail())?;
            }
        }
        let due = Instant::now() >= self.at;
        match self.step {
            Step::Idle if due && self.ours.is_some() => self.begin().or_else(|_| self.fail()),
            Step::Addr | Step::Route | Step::Asked if due => self.fail(),
            Step::Answered(theirs) if theirs.is_some() && theirs == self.ready => {
                let id = self.id.as_ref().map_or(Ok(()), Id::establish_alone);
                if id.is_err() {
                    return self.fail();
                }
                self.failed = 0;
                self.step = Step::Established;
                self.again = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<(), Error> {
        let id = self.channel.id(PortSpace::Tcp)?;
        id.resolve_addr(None, self.peer.clone(), self.retry.step)?;
        self.id = Some(id);
        self.goes(Step::Addr);
        Ok(())
    }

    fn goes(&mut self, step: Step) {
        self.step = step;
        self.at = Instant::now() + self.retry.step;
    }

    /// An attempt has failed: another, after a while.
    fn fail(&mut self) -> Result<(), ExchangeError> {
        self.failed += 1;
        if self.failed > self.retry.attempts {
            return Err(ExchangeError::Closed);
        }
        self.leave();
        self.at = Instant::now() + self.retry.pause_after(self.failed);
        Ok(())
    }

    /// Lets the connection go.
    fn leave(&mut self) {
        self.id = None;
        self.step = Step::Idle;
        self.at = Instant::now();
    }

    /// What becomes of it; inside, whether the attempt has failed.
    fn hear(&mut self, event: EventKind) -> Result<Result<(), Error>, ExchangeError> {
        let (Some(id), Some(info)) = (&self.id, self.ours) else {
            return Ok(Ok(()));
        };
        match event {
            EventKind::AddrResolved => {
                let asked = id.resolve_route(self.retry.step);
                self.goes(Step::Route);
                Ok(asked)
            }
            EventKind::RouteResolved => {
                let said = PrivateData {
                    session: self.session,
                    info,
                    ready: false,
                    again: self.again,
                };
                let param = ConnParam {
                    private_data: said.to_bytes(),
                    ..ConnParam::default()
                };
                let asked = id.connect_alone(info.conn.endpoint.qp_num, &param);
                self.goes(Step::Asked);
                Ok(asked)
            }
            EventKind::ConnectResponse { conn } => {
                let (lid, gid) = id.peer_port().map_err(lost)?;
                let said = PrivateData::from_bytes(&conn.param.private_data, lid, gid)?;
                self.step = Step::Answered(said.ready.then_some(said.info.epoch));
                self.inbox.push_back(Message::Info(said.info));
                if said.ready {
                    let epoch = said.info.epoch;
                    self.inbox.push_back(Message::Ready { epoch });
                }
                Ok(Ok(()))
            }
            EventKind::Rejected { private_data, .. } if private_data.starts_with(CLOSED) => {
                self.inbox.push_back(Message::Closing);
                // There is nobody to ask any more.
                self.ours = None;
                self.leave();
                Ok(Ok(()))
            }
            EventKind::Disconnected => {
                // The peer has something new to say, or is gone: asking tells.
                self.leave();
                Ok(Ok(()))
            }
            EventKind::AddrError { .. }
            | EventKind::RouteError { .. }
            | EventKind::Unreachable { .. }
            | EventKind::ConnectError { .. }
            | EventKind::Rejected { .. }
            | EventKind::DeviceRemoval => Ok(Err(Error::WouldBlock)),
            _ => Ok(Ok(())),
        }
    }
}

impl Exchange for Outgoing {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        match Message::from_bytes(message)? {
            Message::Info(info) => {
                self.ours = Some(info);
                self.ready = None;
                // What was asked with an older one is out of date.
                self.leave();
            }
            Message::Ready { epoch } => self.ready = Some(epoch),
            Message::Closing => {
                self.ours = None;
                self.leave();
            }
        }
        self.go_on()
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        if self.inbox.is_empty() {
            self.go_on()?;
        }
        give(&mut self.inbox, into)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }
}

/// Gives the next message to a link.
pub(super) fn give(
    inbox: &mut VecDeque<Message>,
    into: &mut [u8],
) -> Result<Option<usize>, ExchangeError> {
    let Some(message) = inbox.pop_front() else {
        return Ok(None);
    };
    let bytes = message.to_bytes();
    let room = into.get_mut(..bytes.len()).ok_or(ExchangeError::TooLong)?;
    room.copy_from_slice(&bytes);
    Ok(Some(bytes.len()))
}
