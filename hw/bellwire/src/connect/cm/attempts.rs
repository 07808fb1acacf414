//! The addresses of a name, which an id tries in turn.
//!
//! Each attempt is a connection of its own: rdma_cm's ids cannot be given another address. So the provider's id
//! starts afresh for each address, and does again what the program has done: it resolves the address, then the
//! route, then sends the request. The program sees the events of these steps once.
//!
//! An attempt fails when the address or the route cannot be resolved, when nothing listens at the address, or when
//! the peer does not respond. A rejection by the peer's program is a response, which ends the attempts.

use super::event::EventKind;
use super::id::Id;
use super::param::{ConnParam, Peer};
use crate::device::Device;
use crate::error::Error;
use crate::provider::each;
use bellwire_provider::address::{self, Tried};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const RESOLVE: &str = "resolve the address";

/// Reasons of a REJ message by which no program of the peer has responded (IBTA 12.6.7.2): the request timed out,
/// or its service, and so the port, is not known.
const TIMED_OUT: i32 = 4;
const NO_SERVICE: i32 = 8;

/// Another reason: the peer's system has no resources for the connection.
const NO_RESOURCES: i32 = 3;

/// Statuses of a SIDR_REP message: there is no such service, its program refuses, or its system has no queue pair for it
/// (IBTA 12.11.2).
const SIDR_NO_SERVICE: i32 = 1;
const SIDR_REJECTED: i32 = 2;
const SIDR_NO_QP: i32 = 3;

const LACKING: &str = "the peer's system has no resources left for the connection";
const NOBODY: &str = "nothing listens there: start the peer first, and check the port";

/// What the program was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    #[default]
    Nothing,
    /// The address is resolved.
    Addr,
    /// The route is resolved.
    Route,
}

/// The program's request, which each attempt repeats.
#[derive(Debug)]
enum Request {
    Connect {
        qp_num: u32,
        srq: bool,
        param: ConnParam,
    },
    Lookup(Vec<u8>),
}

/// The attempts of an id.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Where the program has bound the id.
    bound: Option<SocketAddr>,
    source: Option<SocketAddr>,
    /// Addresses that were not tried yet, and the one that is tried now.
    left: VecDeque<SocketAddr>,
    current: Option<SocketAddr>,
    tried: Vec<Tried>,
    told: Told,
    /// The device that the program knows.
    device: Option<Device>,
    request: Option<Request>,
    /// The time limits that the program gave, and when they end.
    addr: Limit,
    route: Limit,
}

/// The time limit of a call.
#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    given: Duration,
    /// `None`: never.
    at: Option<Instant>,
}

impl Limit {
    fn new(given: Duration) -> Self {
        Self {
            given,
            at: Instant::now().checked_add(given),
        }
    }

    /// The time that remains.
    fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }
}

impl Attempts {
    /// The time limit of the current address: its share of the time that the program gave. A program that waits
    /// for the response to its request gave none for these steps, so that each has the whole of its limit.
    fn share(&self, limit: &Limit, of: Told) -> Duration {
        match self.told <= of {
            true => limit.left() / (self.left.len() as u32 + 1),
            false => limit.given,
        }
    }

    /// No further address is tried.
    fn end(&mut self) {
        self.left.clear();
        self.current = None;
        self.request = None;
    }

    /// The current address failed.
    fn fail(&mut self, reason: impl FnOnce(SocketAddr) -> Tried) {
        if let Some(address) = self.current.take() {
            self.tried.push(reason(address));
        }
    }

    /// Keeps a request that another attempt may repeat.
    fn keep(&mut self, request: impl FnOnce() -> Request) {
        self.request = (!self.left.is_empty()).then(request);
    }
}

/// Why an event ends the attempt with this address; `None` if it does not.
pub(super) fn failure(kind: &EventKind, address: SocketAddr, datagram: bool) -> Option<Tried> {
    let status = kind.status();
    let reason = match kind {
        EventKind::AddrError { .. }
        | EventKind::RouteError { .. }
        | EventKind::ConnectError { .. }
        | EventKind::Unreachable { .. }
            if status < 0 =>
        {
            return Some(Tried::with_errno(address, -status));
        }
        EventKind::Unreachable { .. } if datagram && status == SIDR_REJECTED => return None,
        EventKind::Unreachable { .. } if datagram && status == SIDR_NO_SERVICE => NOBODY,
        EventKind::Unreachable { .. } if datagram && status == SIDR_NO_QP => LACKING,
        EventKind::Unreachable { .. } => "no answer",
        EventKind::Rejected { reason, .. } if *reason == NO_SERVICE => NOBODY,
        EventKind::Rejected { reason, .. } if *reason == TIMED_OUT => "no answer",
        EventKind::Rejected { reason, .. } if *reason == NO_RESOURCES => LACKING,
        _ => return None,
    };
    Some(Tried::because(address, reason))
}

/// Turns a failure into the event that the program waits for.
fn as_awaited(kind: EventKind, told: Told) -> EventKind {
    let status = kind.status();
    match (kind, told) {
        (EventKind::AddrError { .. }, Told::Addr) => EventKind::RouteError { status },
        (EventKind::AddrError { .. } | EventKind::RouteError { .. }, Told::Route) => {
            EventKind::Unreachable { status }
        }
        (kind, _) => kind,
    }
}

impl Id {
    /// The addresses of the peer that were tried in vain, each with its reason: by the calls and events since
    /// [`resolve_addr`](Self::resolve_addr), which tries the addresses of a name in turn.
    pub fn tried(&self) -> Vec<Tried> {
        self.on_id().attempts().tried.clone()
    }

    /// The program has bound the id.
    pub(super) fn note_bound(&self) {
        self.on_id().attempts().bound = self.local_addr();
    }

    pub(super) fn try_addresses(
        &self,
        source: Option<SocketAddr>,
        peer: &Peer,
        timeout: Duration,
    ) -> Result<(), Error> {
        let addr = Limit::new(timeout);
        let left = peer.resolve(timeout)?;
        let mut attempts = self.on_id().attempts();
        let failed_before = attempts.told == Told::Nothing && !attempts.tried.is_empty();
        if failed_before {
            self.restart(attempts.bound)?;
        }
        *attempts = Attempts {
            bound: attempts.bound,
            source,
            left: left.into(),
            addr,
            ..Attempts::default()
        };
        self.try_next(&mut attempts)
    }

    pub(super) fn try_route(&self, timeout: Duration) -> Result<(), Error> {
        let mut attempts = self.on_id().attempts();
        attempts.route = Limit::new(timeout);
        let share = attempts.share(&attempts.route, Told::Addr);
        each!(&self.0, id => id.resolve_route(share))
    }

    /// Sends a request, and keeps it for the addresses that were not tried yet.
    pub(super) fn try_connect(
        &self,
        qp_num: u32,
        srq: bool,
        param: &ConnParam,
    ) -> Result<(), Error> {
        let mut attempts = self.on_id().attempts();
        attempts.keep(|| Request::Connect {
            qp_num,
            srq,
            param: param.clone(),
        });
        each!(&self.0, id => id.connect(qp_num, srq, param))?;
        self.at_once(&mut attempts);
        Ok(())
    }

    /// [`try_connect`](Self::try_connect) for a lookup.
    pub(super) fn try_lookup(&self, private_data: &[u8]) -> Result<(), Error> {
        let mut attempts = self.on_id().attempts();
        attempts.keep(|| Request::Lookup(private_data.to_vec()));
        each!(&self.0, id => id.lookup(private_data))?;
        self.at_once(&mut attempts);
        Ok(())
    }

    /// Goes on with the attempts as far as the events that the software HCA has queued already allow: a thread that
    /// serves both ends may wait for the peer's event next.
    fn at_once(&self, attempts: &mut Attempts) {
        let Some(id) = self.0.soft().filter(|_| !attempts.left.is_empty()) else {
            return;
        };
        let mut events = id.take_events();
        while let Some(kind) = events.pop_front() {
            match self.attempt(attempts, kind) {
                None => events.extend(id.take_events()),
                Some(kind) => id.put_event(kind),
            }
            if attempts.current.is_none() {
                break;
            }
        }
        for kind in events {
            id.put_event(kind);
        }
    }

    /// Makes the provider's id afresh, bound as the program has bound it.
    fn restart(&self, bound: Option<SocketAddr>) -> Result<(), Error> {
        each!(&self.0, id => id.restart())?;
        match bound {
            Some(at) => each!(&self.0, id => id.bind(at)).map_err(|error| error.at("bind to", at)),
            None => Ok(()),
        }
    }

    /// Starts with the next address.
    ///
    /// # Errors
    /// [`Error::Address`] when none is left; others if the id's state does not allow the call.
    fn try_next(&self, attempts: &mut Attempts) -> Result<(), Error> {
        while let Some(next) = attempts.left.pop_front() {
            if !attempts.tried.is_empty() {
                self.restart(attempts.bound)?;
            }
            attempts.current = Some(next);
            match self.try_one(attempts, next) {
                Ok(()) => return Ok(()),
                Err(Error::Io { error, .. }) => {
                    attempts.fail(|address| Tried::new(address, &error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Address {
            what: RESOLVE,
            tried: attempts.tried.as_slice().into(),
        })
    }

    fn try_one(&self, attempts: &Attempts, next: SocketAddr) -> Result<(), Error> {
        let failed = |error| Error::io(RESOLVE, error);
        address::check(next).map_err(failed)?;
        // Of one address alone the provider says what is wrong with the source.
        let several = !attempts.left.is_empty() || !attempts.tried.is_empty();
        let sources = attempts.source.iter().chain(&attempts.bound);
        for from in sources.filter(|_| several) {
            let any = from.ip().is_unspecified() && from.is_ipv6();
            if from.is_ipv4() != next.is_ipv4() && !any {
                let text = format!("the source is {}", address::host_text(*from));
                return Err(failed(std::io::Error::other(text)));
            }
        }
        let share = attempts.share(&attempts.addr, Told::Nothing);
        each!(&self.0, id => id.resolve_addr(attempts.source, next, share))
    }

    /// Handles an event of an attempt. Returns the event that the program gets, or `None` if the attempts go on.
    pub(super) fn attempted(&self, kind: EventKind) -> Option<EventKind> {
        let mut attempts = self.on_id().attempts();
        self.attempt(&mut attempts, kind)
    }

    fn attempt(&self, attempts: &mut Attempts, kind: EventKind) -> Option<EventKind> {
        let Some(address) = attempts.current else {
            return Some(kind);
        };
        let goes_on = match (&kind, attempts.told) {
            (EventKind::AddrResolved, Told::Nothing) => {
                attempts.told = Told::Addr;
                // Which device it is matters only if another address may lead to another one.
                if !attempts.left.is_empty() {
                    attempts.device = self.device().ok().flatten();
                }
                return Some(kind);
            }
            (EventKind::AddrResolved, _) => self.repeat_route(attempts),
            (EventKind::RouteResolved, Told::Route) => self.repeat_request(attempts),
            (EventKind::RouteResolved, _) => {
                attempts.told = Told::Route;
                return Some(kind);
            }
            _ => match failure(&kind, address, self.port_space().is_datagram()) {
                Some(tried) => {
                    // The software HCA says more than the event's number.
                    attempts.fail(|_| match self.why_refused() {
                        Some(reason) => Tried::because(address, reason),
                        None => tried,
                    });
                    false
                }
                None => {
                    // The peer has responded, or the event is not about the attempt.
                    if !matches!(kind, EventKind::AddrChange) {
                        attempts.end();
                    }
                    return Some(kind);
                }
            },
        };
        if goes_on || self.try_next(attempts).is_ok() {
            return None;
        }
        attempts.end();
        Some(as_awaited(kind, attempts.told))
    }

    /// Resolves the route to another address than the one that the program knows.
    fn repeat_route(&self, attempts: &mut Attempts) -> bool {
        let device = self.device().ok().flatten();
        let same = match (&device, &attempts.device) {
            (Some(found), Some(known)) => known.hca.is_alike(&found.hca),
            _ => false,
        };
        if !same {
            let name = device.map_or_else(|| "none".to_owned(), |device| device.name().to_owned());
            attempts.fail(|address| {
                Tried::because(address, format!("it leads to another device ({name})"))
            });
            return false;
        }
        let share = attempts.share(&attempts.route, Told::Addr);
        match each!(&self.0, id => id.resolve_route(share)) {
            Ok(()) => true,
            Err(error) => {
                attempts.fail(|address| Tried::because(address, error.to_string()));
                false
            }
        }
    }

    /// Sends the program's request to another address than the one that it was sent to first.
    fn repeat_request(&self, attempts: &mut Attempts) -> bool {
        let sent = match &attempts.request {
            Some(Request::Connect { qp_num, srq, param }) => {
                each!(&self.0, id => id.connect(*qp_num, *srq, param))
            }
            Some(Request::Lookup(private_data)) => each!(&self.0, id => id.lookup(private_data)),
            None => return false,
        };
        match sent {
            Ok(()) => true,
            Err(error) => {
                attempts.fail(|address| Tried::because(address, error.to_string()));
                false
            }
        }
    }
}
