//! Ids: the calls of the program.

use super::super::on_id::OnId;
use super::super::{EventKind, PortSpace};
use super::address::{self, At};
use super::channel::Channel;
use super::entry::{Entry, Outcome, Stage};
use super::hub::{State, What};
use super::multicast;
use super::peers::PeerProcess;
use super::socket;
use crate::device::Device;
use crate::error::Error;
use crate::memory::fork::{Fd, Life};
use crate::qp::ConnectAttr;
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;
use bellwire_provider::attr::PortState;
use bellwire_provider::backoff::Backoff;
use bellwire_provider::entropy;
use bellwire_provider::limits::required;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

const BIND: &str = "bind to";

/// The address at another port.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Backlog of a listener for which the program gives none.
const BACKLOG: u32 = 1024;

/// Ports for ids that ask for none in particular: from where Linux' range begins by default
/// (net.ipv4.ip_local_port_range), by which rdma_cm chooses. A power of two.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=65535;

/// Attempts at a port that was asked for: the check of another end binds the conflicting address for a moment,
/// during which the port seems to be in use.
const LOOKS: usize = 3;

/// An end of a connection, a listener, or a member of groups. Its state is in its channel.
pub(in crate::connect::cm) struct Id {
    pub(super) key: u64,
    pub(super) space: PortSpace,
    pub(in crate::connect::cm) on_id: OnId,
    /// The channel that delivers its events. Locked while the id is used, because the id may be moved.
    home: Mutex<Arc<Channel>>,
    /// Of the process that made it.
    life: Life,
}

pub(super) fn step<T>(what: &'static str) -> Result<T, Error> {
    Err(Error::CmStep { what })
}

pub(super) fn refused(what: &'static str, errno: i32) -> Error {
    Error::io(what, io::Error::from_raw_os_error(errno))
}

impl Id {
    pub(super) fn new(key: u64, space: PortSpace, home: Arc<Channel>) -> Self {
        Self {
            key,
            space,
            on_id: OnId::default(),
            home: Mutex::new(home),
            life: Life::current(),
        }
    }

    pub(super) fn home(&self) -> MutexGuard<'_, Arc<Channel>> {
        // A panic cannot interrupt the assignment.
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the id's entry, and updates the channel.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut Entry, &Channel) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let home = self.home();
        let mut state = home.hub.state();
        let changed = (home.hub).change(&mut state, self.key, |entry| change(entry, &home));
        changed.unwrap_or_else(|| step("use an id that is gone"))
    }

    /// [`change`](Self::change) with a result that is delivered as an event.
    pub(super) fn become_of(
        &self,
        change: impl FnOnce(&mut Entry, &Channel) -> Result<Outcome, Error>,
    ) -> Result<(), Error> {
        let home = self.home();
        let mut state = home.hub.state();
        let changed = (home.hub).change(&mut state, self.key, |entry| change(entry, &home));
        let outcome = changed.unwrap_or_else(|| step("use an id that is gone"))?;
        home.hub.follow(&mut state, self.key, Some(outcome));
        Ok(())
    }

    /// Reads the id's entry.
    fn see<R>(&self, see: impl FnOnce(&Entry) -> R) -> Option<R> {
        let home = self.home();
        let state = home.hub.state();
        state.ids.get(&self.key).map(see)
    }

    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        _timeout: Duration,
    ) -> Result<(), Error> {
        const WHAT: &str = "resolve an address";
        if !matches!(self.stage()?, Stage::New | Stage::Bound) {
            return step(WHAT);
        }
        let here = address::is_here(peer).map_err(|error| Error::io(WHAT, error))?;
        if self.stage()? == Stage::New {
            // The source of the route to the peer: for a peer on this host, the peer's own address.
            let source = source.unwrap_or_else(|| match peer.ip() {
                ip if here && !ip.is_unspecified() => with_port(peer, 0),
                IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
                IpAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
            });
            self.bind(source)?;
        }
        let mut status = self.out_of_reach(CmEvent::AddrError, -libc::EHOSTUNREACH)?;
        if !here && !peer.ip().is_multicast() {
            status = status.or(Some(-libc::EHOSTUNREACH));
        }
        self.become_of(|entry, _| {
            if entry.stage != Stage::Bound {
                return step(WHAT);
            }
            if let Some(status) = status {
                return Ok(Outcome::Event(EventKind::AddrError { status }));
            }
            entry.peer = Some(peer);
            entry.stage = Stage::AddrResolved;
            Ok(Outcome::Event(EventKind::AddrResolved))
        })
    }

    /// Takes the id's queued events, without the requests of a listener.
    pub fn take_events(&self) -> VecDeque<EventKind> {
        let home = self.home();
        let mut state = home.hub.state();
        home.hub.take_events(&mut state, self.key)
    }

    /// Queues an event.
    pub fn put_event(&self, kind: EventKind) {
        let home = self.home();
        let mut state = home.hub.state();
        home.hub.push(&mut state, self.key, What::Kind(kind));
    }

    /// Starts afresh, with the same options and groups.
    pub fn restart(&self) -> Result<(), Error> {
        self.change(|entry, _| {
            *entry = entry.afresh();
            Ok(())
        })
    }

    pub fn resolve_route(&self, _timeout: Duration) -> Result<(), Error> {
        let status = self.out_of_reach(CmEvent::RouteError, -libc::ENETUNREACH)?;
        self.become_of(|entry, _| {
            if entry.stage != Stage::AddrResolved {
                return step("resolve a route");
            }
            if let Some(status) = status {
                return Ok(Outcome::Event(EventKind::RouteError { status }));
            }
            entry.stage = Stage::RouteResolved;
            Ok(Outcome::Event(EventKind::RouteResolved))
        })
    }

    /// Why no peer can be reached: the device is broken, its port is down, or a fault was injected.
    fn out_of_reach(&self, event: CmEvent, status: i32) -> Result<Option<i32>, Error> {
        let home = self.home().clone();
        if home.device().hca.check_alive().is_err() {
            return Ok(Some(-libc::ENODEV));
        }
        let down = home.device().query_port(1)?.state == PortState::Down;
        Ok((down || home.hca().managers.take(event)).then_some(status))
    }

    pub(super) fn stage(&self) -> Result<Stage, Error> {
        self.see(|entry| entry.stage)
            .map_or_else(|| step("use an id that is gone"), Ok)
    }

    pub fn bind(&self, at: SocketAddr) -> Result<(), Error> {
        if !address::is_here(at).map_err(|error| Error::io(BIND, error))? {
            return Err(refused(BIND, libc::EADDRNOTAVAIL));
        }
        self.change(|entry, home| {
            if entry.stage != Stage::New {
                return step(BIND);
            }
            let here = At::new(at, entry.afonly);
            let rivals = here.rivals().map_err(|error| Error::io(BIND, error))?;
            let take = |port, looks| {
                let socket = take(home.scope(), entry.space, here, &rivals, port, looks)?;
                Ok::<_, Error>(socket.map(|socket| (socket, port)))
            };
            let taken = if at.port() != 0 {
                take(at.port(), LOOKS)?
            } else {
                let count = EPHEMERAL.len() as u64;
                // Each id starts from another port, in each process, so that released ports are reused
                // late. Those in use follow each other, so the next attempts are far away.
                let first = self.key.wrapping_add(home.hca().managers.id());
                let stride = entropy::draw() | 1;
                let mut ports = (0..count).map(|nth| {
                    let at = first.wrapping_add(nth.wrapping_mul(stride));
                    EPHEMERAL.start() + (at % count) as u16
                });
                loop {
                    let Some(port) = ports.next() else { break None };
                    if let Some(taken) = take(port, 1)? {
                        break Some(taken);
                    }
                }
            };
            let (socket, port) = taken.ok_or_else(|| refused(BIND, libc::EADDRINUSE))?;
            entry.local = Some(with_port(at, port));
            entry.socket = Some(socket);
            entry.stage = Stage::Bound;
            Ok(())
        })
    }

    pub fn listen(self: &Arc<Self>, backlog: u32) -> Result<(), Error> {
        let key = self.key;
        self.change(|entry, home| {
            let (Stage::Bound, Some(socket)) = (entry.stage, &entry.socket) else {
                return step("listen");
            };
            let backlog = match backlog {
                0 => BACKLOG,
                backlog => backlog.min(BACKLOG),
            };
            socket::listen(socket, backlog)?;
            home.hub.watch(socket, key)?;
            entry.backlog = backlog;
            entry.stage = Stage::Listening;
            Ok(())
        })
    }

    pub fn device(&self) -> Result<Option<Device>, Error> {
        let home = self.home().clone();
        let bound = self.see(|entry| entry.local.is_some());
        Ok((bound == Some(true)).then(|| home.device().clone()))
    }

    pub fn qp_attr(&self, to: QpState) -> Result<(QpAttr, QpAttrMask), Error> {
        let datagram = self.space.is_datagram();
        let kind = if datagram { QpType::Ud } else { QpType::Rc };
        let path = *self.on_id.path();
        if to == QpState::Init {
            let connect = ConnectAttr {
                qkey: multicast::qkey(self.space),
                path,
                ..ConnectAttr::default()
            };
            return match self.stage()? {
                Stage::New => step("prepare a queue pair"),
                _ => Ok((connect.init(), required(kind, QpState::Reset, to))),
            };
        }
        let home = self.home().clone();
        self.change(|entry, _| {
            let known = matches!(entry.stage, Stage::Requested | Stage::Answered);
            let (true, Some(theirs)) = (known, entry.theirs) else {
                return step("connect a queue pair");
            };
            let connect = ConnectAttr {
                path,
                ..theirs.connect_attr(entry.ours.as_ref(), entry.ack_timeout)
            };
            let mut attr = connect.ready(home.device(), &theirs.endpoint, entry.psn)?;
            attr.max_dest_rd_atomic = theirs.answered(entry.ours.as_ref());
            attr.qp_state = to;
            let from = if to == QpState::Rtr {
                QpState::Init
            } else {
                QpState::Rtr
            };
            Ok((attr, required(kind, from, to)))
        })
    }

    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        let mut home = self.home();
        if Arc::ptr_eq(&home, to) {
            return Ok(());
        }
        if !home.device().hca.is_same(&to.device().hca) {
            return Err(Error::Foreign {
                what: "event channel",
            });
        }
        let from = home.clone();
        // First removed, then inserted: no other thread looks for the id meanwhile, because its home is
        // locked. Peers that connect to a listener wait in its socket.
        let moving = {
            let mut state = from.hub.state();
            let mut keys = requests_of(&state, self.key);
            keys.push(self.key);
            let taken = keys.into_iter().filter_map(|key| {
                let (entry, events) = from.hub.remove(&mut state, key)?;
                Some((key, entry, events))
            });
            taken.collect::<Vec<_>>()
        };
        let mut state = to.hub.state();
        let mut watched = Ok(());
        for (key, entry, events) in moving {
            let watches = !matches!(
                entry.stage,
                Stage::New
                    | Stage::Bound
                    | Stage::AddrResolved
                    | Stage::RouteResolved
                    | Stage::Knocking(_)
            );
            if let (true, Some(socket)) = (watches, &entry.socket) {
                from.hub.forget(socket);
                watched = watched.and(to.hub.watch(socket, key));
            }
            to.hub.insert(&mut state, key, entry);
            to.hub.watch_peer(&mut state, key, to.device(), to.scope());
            for event in events {
                to.hub.push(&mut state, key, event);
            }
        }
        to.hub.listen_again(&mut state, self.key);
        *home = to.clone();
        watched
    }

    pub fn set_tos(&self, _tos: u8) -> Result<(), Error> {
        // The path attributes carry it.
        Ok(())
    }

    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), Error> {
        self.change(|entry, _| {
            entry.ack_timeout = Some(timeout);
            Ok(())
        })
    }

    pub fn set_afonly(&self, on: bool) -> Result<(), Error> {
        self.change(|entry, _| {
            if entry.stage != Stage::New {
                return step("choose an address family");
            }
            entry.afonly = on;
            Ok(())
        })
    }

    pub fn set_reuseaddr(&self, _on: bool) -> Result<(), Error> {
        // A port is free as soon as it is unbound.
        Ok(())
    }

    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.see(|entry| entry.local)?
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.see(|entry| entry.peer)?
    }

    pub fn why_refused(&self) -> Option<String> {
        self.see(|entry| entry.why.clone())?
    }

    pub fn why_silent(&self) -> Option<&'static str> {
        self.see(Entry::why_silent)?
    }

    pub fn peer_process(&self) -> Option<Arc<PeerProcess>> {
        self.see(|entry| entry.process.clone())?
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        let home = self.home();
        let mut state = home.hub.state();
        let entry = state.ids.get(&self.key);
        if entry.is_some_and(|entry| entry.backlog != 0) {
            // The peers notice when the sockets are closed.
            for request in requests_of(&state, self.key) {
                home.hub.remove(&mut state, request);
            }
        }
        home.hub.remove(&mut state, self.key);
    }
}

/// The requests of a listener that were not taken.
fn requests_of(state: &State, listener: u64) -> Vec<u64> {
    let of_it = |(key, entry): (&u64, &Entry)| (entry.listener == Some(listener)).then_some(*key);
    state.ids.iter().filter_map(of_it).collect()
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the channel, which contains all ids, and the device.
        let Self {
            key,
            space,
            on_id: _,
            home: _,
            life: _,
        } = self;
        let mut id = f.debug_struct("Id");
        id.field("key", key).field("space", space);
        id.finish_non_exhaustive()
    }
}

/// Takes a port at these addresses, and returns its socket; `None` if the port is in use there or at
/// conflicting addresses, whenever this looks.
fn take(
    scope: &str,
    space: PortSpace,
    at: At,
    rivals: &[At],
    port: u16,
    looks: usize,
) -> Result<Option<Fd>, Error> {
    let address = address::socket_of(scope, space, at, port)?;
    let is_taken = |rival: &At| {
        let address = address::socket_of(scope, space, *rival, port)?;
        socket::is_taken(&address)
    };
    let mut backoff = Backoff::between_polls();
    for look in 1..=looks {
        // Bind first, then check: of two conflicting ends at least one sees the other.
        let socket = socket::make()?;
        let mut taken = !socket::take(&socket, &address)?;
        for rival in rivals {
            taken = taken || is_taken(rival)?;
        }
        if !taken {
            return Ok(Some(socket));
        }
        drop(socket);
        if look != looks {
            backoff.wait();
        }
    }
    Ok(None)
}
