//! The end that requests connections.

use super::Retry;
use super::inbox::Inbox;
use super::peers::Peers;
use super::private_data::{Busy, Notice, PrivateData, Refusal};
use crate::connect::cm::attempts::failure;
use crate::connect::cm::{ConnParam, Event, EventChannel, EventKind, Id, Peer, PortSpace};
use crate::connect::{Message, RecoveryInfo};
use crate::device::Device;
use crate::error::Error;
use crate::link::{Exchange, ExchangeError};
use bellwire_provider::address::{self, Tried};
use bellwire_provider::entropy;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Reason of a REJ message: the queue pair number has a connection already (IBTA 12.6.7.2).
const STALE_CONN: i32 = 10;

/// Makes exchanges for [`Link`](crate::link::Link)s with those of a
/// [`Listener`](super::Listener). Any thread may use it.
///
/// ```
/// use bellwire::connect::cm::{Connector, Listener, Retry};
/// use bellwire::link::{Link, LinkInit, LinkState};
///
/// let device = bellwire::Device::open("soft")?;
/// let pd = device.alloc_pd();
/// let mut listener = Listener::bind(&device, ("127.0.0.1", 7471), 16, Retry::default())?;
/// let connector = Connector::new(&device, ("127.0.0.1", 7471), Retry::default());
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
    /// A connector for links on this device, to the listener at this address.
    pub fn new(device: &Device, peer: impl Into<Peer>, retry: Retry) -> Self {
        Self {
            device: device.clone(),
            peer: peer.into(),
            retry,
        }
    }

    /// Makes the exchange of one link, which connects as the link is polled. A name is resolved here,
    /// once. If it has several addresses, they are tried in turn until the listener responds at one of them, where
    /// the link stays.
    ///
    /// # Errors
    /// Those of [`EventChannel::on`]; [`Error::Io`] when a name is not resolved within [`Retry::step`].
    pub fn exchange(&self) -> Result<Outgoing, Error> {
        Ok(Outgoing {
            channel: EventChannel::on(&self.device)?,
            peers: Peers::new(self.peer.resolve(self.retry.step)?),
            retry: self.retry,
            // The operating system seeds the standard library's hasher.
            session: entropy::draw(),
            ours: None,
            ready: None,
            inbox: Inbox::default(),
            step: Step::Idle,
            id: None,
            held: None,
            notice: None,
            listener: None,
            at: Instant::now(),
            failed: 0,
            over: None,
            until: None,
            brief: false,
            again: false,
        })
    }
}

/// The exchange of a link that requests its connections.
#[derive(Debug)]
pub struct Outgoing {
    channel: EventChannel,
    peers: Peers,
    retry: Retry,
    session: u64,
    /// The last Info of our link.
    ours: Option<RecoveryInfo>,
    ready: Option<u64>,
    /// Messages for our link.
    inbox: Inbox,
    step: Step,
    id: Option<Id>,
    /// The last connection, while the next one is requested: closing it first would mean that this end is
    /// gone.
    held: Option<Id>,
    /// The id that notifies the peer when the link is closed, and whether its route is resolved.
    notice: Option<(Id, bool)>,
    /// The number of the listener that responded.
    listener: Option<u64>,
    /// When to start the next attempt, or to give up this step.
    at: Instant,
    /// Failed attempts since the peer last responded, and when to stop trying.
    failed: u32,
    over: Option<Instant>,
    /// When to stop trying the present address.
    until: Option<Instant>,
    /// The present attempt began when no time was left.
    brief: bool,
    /// The two links have been connected before.
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    Addr,
    Route,
    Asked,
    /// The peer has responded; with the epoch in which it is connected, if it is.
    Answered(Option<u64>),
    Established,
}

/// The instant after this time.
fn after(time: Duration) -> Instant {
    const FOR_EVER: Duration = Duration::from_secs(1 << 32);
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + FOR_EVER)
}

/// Between half of a pause and all of it.
fn jittered(pause: Duration, random: u32) -> Duration {
    let half = pause / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Turns an error of this end into the link's error.
pub(super) fn lost(error: Error) -> ExchangeError {
    match error {
        Error::Io { error, .. } => ExchangeError::Io(error),
        error => ExchangeError::Io(io::Error::other(error.to_string())),
    }
}

impl Outgoing {
    /// Handles the events that have come, and carries on as far as possible without waiting.
    fn go_on(&mut self) -> Result<(), ExchangeError> {
        while let Some(event) = self.channel.next().map_err(lost)? {
            let is = |id: &Option<Id>| id.as_ref().is_some_and(|id| id == event.id());
            if is(&self.id) {
                let done = self.hear(event.ack())?;
                done.or_else(|why| self.fail(why))?;
            } else if is(&self.held) {
                if let EventKind::Disconnected = event.ack() {
                    self.held = None;
                }
            } else {
                self.prepare_notice(&event);
            }
        }
        let due = Instant::now() >= self.at;
        match self.step {
            Step::Idle if due && self.ours.is_some() => self.begin().or_else(|error| {
                let why = self.because(&error);
                self.fail(why)
            }),
            Step::Addr | Step::Route | Step::Asked if due => {
                let why = self.silence();
                self.fail(why)
            }
            Step::Answered(theirs)
                if theirs.is_some() && theirs == self.ready && self.can_close() =>
            {
                let established = self.id.as_ref().map_or(Ok(()), Id::establish_alone);
                if let Err(error) = established {
                    let why = self.because(&error);
                    return self.fail(why);
                }
                self.step = Step::Established;
                self.again = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Facts about a peer that does not answer. An attempt that had no time says less than the one before.
    fn silence(&self) -> Tried {
        if let Some(before) = self.peers.last_failure().filter(|_| self.brief) {
            return before.clone();
        }
        let why = self.id.as_ref().and_then(Id::why_silent);
        let why = why.map_or("no answer".to_owned(), |why| format!("no answer: {why}"));
        Tried::because(self.peers.current(), why)
    }

    /// The present address, and why this call with it failed.
    fn because(&self, error: &Error) -> Tried {
        let address = self.peers.current();
        if let Error::Address { tried, .. } = error
            && let [one] = &**tried
        {
            return one.clone();
        }
        Tried::because(address, error.to_string())
    }

    fn begin(&mut self) -> Result<(), Error> {
        let left = self.over().saturating_duration_since(Instant::now());
        let share = match self.listener {
            None => left / self.peers.left(),
            Some(_) => left,
        };
        self.until = Some(after(share));
        self.brief = share.is_zero();
        let resolve = |space| {
            let id = self.channel.id(space)?;
            id.resolve_addr(None, self.peers.current(), self.retry.step)?;
            Ok::<_, Error>(id)
        };
        let id = resolve(PortSpace::Tcp)?;
        if self.notice.is_none() {
            self.notice = Some((resolve(PortSpace::Udp)?, false));
        }
        self.id = Some(id);
        self.goes(Step::Addr);
        Ok(())
    }

    /// Resolves the route of the notice in advance: nothing waits for it when the link is closed.
    fn prepare_notice(&mut self, event: &Event) {
        let Some((id, ready)) = &mut self.notice else {
            return;
        };
        if id != event.id() {
            return;
        }
        let found = match event.kind() {
            EventKind::AddrResolved => id.resolve_route(self.retry.step).is_ok(),
            EventKind::RouteResolved => {
                *ready = true;
                true
            }
            EventKind::AddrChange => true,
            _ => false,
        };
        if !found {
            self.notice = None;
        }
    }

    /// Whether the notice can be sent to the peer, or is known to be impossible.
    fn can_close(&self) -> bool {
        self.notice.as_ref().is_none_or(|(_, ready)| *ready)
    }

    fn goes(&mut self, step: Step) {
        self.step = step;
        let until = self.until.unwrap_or_else(|| self.over());
        self.at = after(self.retry.step).min(until);
    }

    /// The time at which all attempts end.
    fn over(&mut self) -> Instant {
        *self.over.get_or_insert_with(|| after(self.retry.all()))
    }

    /// Takes in a failed attempt: another follows, with the next address, or after a pause when all addresses have
    /// failed, unless the time of all attempts is over. Attempts that fail at once leave their time to others.
    fn fail(&mut self, why: Tried) -> Result<(), ExchangeError> {
        self.fail_here(why)?;
        // Another listener at another address would be another peer.
        if self.listener.is_none() && self.peers.are_several() {
            // It goes to the address of the connection.
            self.notice = None;
            if self.peers.go_on() {
                self.failed -= 1;
                self.at = Instant::now();
            }
        }
        Ok(())
    }

    /// Takes in a failed attempt, after which another one follows with the same address.
    fn fail_here(&mut self, why: Tried) -> Result<(), ExchangeError> {
        self.peers.failed(why);
        let over = self.over();
        if Instant::now() >= over {
            let reason = address::list(&self.peers.tried());
            return Err(ExchangeError::Unreachable { reason });
        }
        self.leave();
        self.failed += 1;
        self.at = after(self.retry.pause_after(self.failed)).min(over);
        Ok(())
    }

    /// The listener has no room at present, and will have some after this time. Many connectors may be told so
    /// at once: each waits for another time.
    fn back_off(&mut self, busy: Busy) -> Result<(), ExchangeError> {
        let why = match busy.no_memory {
            true => "the listener's process has no memory left for the link",
            false => "the listener is busy",
        };
        self.fail_here(Tried::because(self.peers.current(), why))?;
        let wait = Duration::from_micros(busy.micros.into());
        let pause = self.retry.pause_after(self.failed);
        let random = entropy::draw();
        let pause = match wait > self.retry.longest {
            true => jittered(self.retry.longest, random as u32),
            // The listener gives each another time.
            false => jittered(pause, random as u32).max(wait),
        };
        self.at = after(pause).min(self.over());
        Ok(())
    }

    /// The listener has closed the link that this one belonged to.
    fn refused(&mut self, refusal: Refusal) -> Result<(), ExchangeError> {
        let Refusal { listener, why } = refusal;
        if self.listener.is_some_and(|known| known != listener) {
            return Err(ExchangeError::Restarted);
        }
        self.inbox
            .put(why.map_or(Message::Closing, Message::GaveUp));
        // There is no peer left to ask.
        self.ours = None;
        self.leave();
        Ok(())
    }

    /// The peer, or its system, has responded.
    fn answers(&mut self) {
        self.failed = 0;
        self.peers.responded();
        self.over = None;
    }

    /// Closes the connection.
    fn leave(&mut self) {
        self.id = None;
        self.step = Step::Idle;
        self.at = Instant::now();
    }

    /// Handles an event of the connection. The inner result says whether the attempt has failed.
    fn hear(&mut self, event: EventKind) -> Result<Result<(), Tried>, ExchangeError> {
        let address = self.peers.current();
        let because = |done: Result<(), Error>| {
            done.map_err(|error| Tried::because(address, error.to_string()))
        };
        let (Some(id), Some(info)) = (&self.id, self.ours) else {
            return Ok(Ok(()));
        };
        if let EventKind::Rejected { private_data, .. } = &event {
            if let Some(refusal) = Refusal::from_bytes(private_data) {
                return self.refused(refusal).map(Ok);
            }
            if let Some(busy) = Busy::from_bytes(private_data) {
                return self.back_off(busy).map(Ok);
            }
        }
        match event {
            EventKind::AddrResolved => {
                let asked = id.resolve_route(self.retry.step);
                self.goes(Step::Route);
                Ok(because(asked))
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
                Ok(because(asked))
            }
            EventKind::ConnectResponse { conn } => {
                let (lid, gid) = id.peer_port().map_err(lost)?;
                let said = PrivateData::from_bytes(&conn.param.private_data, lid, gid)?;
                if self.again && self.listener != Some(said.session) {
                    return Err(ExchangeError::Restarted);
                }
                self.listener = Some(said.session);
                self.held = None;
                self.answers();
                self.step = Step::Answered(said.ready.then_some(said.info.epoch));
                self.inbox.put(Message::Info(said.info));
                if said.ready {
                    let epoch = said.info.epoch;
                    self.inbox.put(Message::Ready { epoch });
                }
                Ok(Ok(()))
            }
            EventKind::Rejected {
                reason: STALE_CONN, ..
            } => {
                // The peer's system has not ended the last connection yet, because the peer's program has
                // not.
                self.answers();
                let text = "the peer's program has not closed the last connection";
                Ok(Err(Tried::because(address, text)))
            }
            EventKind::Disconnected => {
                // The peer has a new message, or is gone: the next request finds out.
                self.leave();
                Ok(Ok(()))
            }
            // The neighbour has another hardware address (Linux 6.0 and later). The connection remains: whether its
            // packets still arrive, the queue pair's retries find out.
            EventKind::Unreachable { .. } if self.step == Step::Established => Ok(Ok(())),
            EventKind::AddrError { .. }
            | EventKind::RouteError { .. }
            | EventKind::Unreachable { .. }
            | EventKind::ConnectError { .. }
            | EventKind::Rejected { .. }
            | EventKind::DeviceRemoval => {
                let seen = || {
                    let (name, status) = (event.event().name(), event.status());
                    Tried::because(address, format!("it ended with {name}, status {status}"))
                };
                Ok(Err(match id.why_refused() {
                    Some(reason) => Tried::because(address, reason),
                    None => failure(&event, address, false).unwrap_or_else(seen),
                }))
            }
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
                // A request made with an older Info is out of date.
                if self.step == Step::Established {
                    self.held = self.id.take();
                }
                self.leave();
            }
            Message::Ready { epoch } => self.ready = Some(epoch),
            parting @ (Message::Closing | Message::GaveUp(_)) => {
                self.ours = None;
                let why = match parting {
                    Message::GaveUp(why) => Some(why),
                    _ => None,
                };
                if let Some((id, true)) = self.notice.take() {
                    let session = self.session;
                    let _lost = id.lookup(&Notice { session, why }.to_bytes());
                }
                self.leave();
                self.held = None;
            }
        }
        self.go_on()
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        if self.inbox.is_empty() {
            self.go_on()?;
        }
        self.inbox.give(into)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn needs_new_qp(&self) -> bool {
        true
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.peers.current())
    }

    fn pending(&self) -> Option<String> {
        let mut tried = self.peers.tried().into_vec();
        if matches!(self.step, Step::Addr | Step::Route | Step::Asked) {
            // Of an attempt that has just begun, the one before says more.
            if self.peers.last_failure().is_none() {
                tried.push(self.silence());
            }
        }
        (!tried.is_empty()).then(|| address::list(&tried))
    }

    fn deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Idle => self.ours.map(|_| self.at),
            Step::Addr | Step::Route | Step::Asked => Some(self.at),
            Step::Answered(_) | Step::Established => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux reports it when the neighbour's hardware address changes (`cma_netevent_callback`).
    #[cfg(not(miri))]
    #[test]
    fn a_connection_survives_a_neighbour_with_another_address() {
        let device = Device::open("soft").unwrap();
        let connector = Connector::new(&device, ("127.0.0.1", 7471), Retry::default());
        let mut outgoing = connector.exchange().unwrap();
        outgoing.ours = Some(RecoveryInfo::default());
        outgoing.id = Some(outgoing.channel.id(PortSpace::Tcp).unwrap());
        let unreachable = EventKind::Unreachable {
            status: -libc::ETIMEDOUT,
        };
        outgoing.step = Step::Established;
        let heard = outgoing.hear(unreachable.clone());
        assert!(matches!(heard, Ok(Ok(()))), "{heard:?}");
        assert!(outgoing.id.is_some() && outgoing.step == Step::Established);
        outgoing.step = Step::Asked;
        let heard = outgoing.hear(unreachable);
        assert!(matches!(heard, Ok(Err(_))), "{heard:?}");
    }

    #[test]
    fn a_pause_is_shortened_by_half_at_most() {
        let pause = Duration::from_millis(640);
        let at = |random| jittered(pause, random);
        assert_eq!((at(0), at(u32::MAX)), (pause / 2, pause));
        assert!(at(1 << 31) > pause * 7 / 10 && at(1 << 31) < pause * 8 / 10);
        assert_eq!(jittered(Duration::ZERO, 7), Duration::ZERO);
    }
}
