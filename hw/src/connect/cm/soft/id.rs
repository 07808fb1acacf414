//! Ids: what the program calls.

use super::super::on_id::OnId;
use super::super::{EventKind, Peer, PortSpace};
use super::channel::Channel;
use super::entry::{Entry, Outcome, Stage};
use super::hub::State;
use super::multicast;
use super::socket::{self, Address};
use crate::device::{Device, PortState};
use crate::error::Error;
use crate::qp::{ConnectAttr, required};
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

/// Requests that wait at a listener where the program does not say how many.
const BACKLOG: u32 = 1024;

/// Ports for those who name none (RFC 6335).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// An end of a connection, a listener, or a member of groups. What it is stands in its channel.
pub(in crate::connect::cm) struct Id {
    pub(super) key: u64,
    pub(super) space: PortSpace,
    pub(in crate::connect::cm) on_id: OnId,
    /// Where its events come. Held while something is done with the id: it may move.
    home: Mutex<Arc<Channel>>,
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
        }
    }

    pub(super) fn home(&self) -> MutexGuard<'_, Arc<Channel>> {
        // An assignment.
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and sees to what follows.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut Entry, &Channel) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let home = self.home();
        let mut state = home.hub.state();
        let changed = (home.hub).change(&mut state, self.key, |entry| change(entry, &home));
        changed.unwrap_or_else(|| step("use an id that is gone"))
    }

    /// As [`change`](Self::change), to something that is told.
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

    /// Looks at it.
    fn see<R>(&self, see: impl FnOnce(&Entry) -> R) -> Option<R> {
        let home = self.home();
        let state = home.hub.state();
        state.ids.get(&self.key).map(see)
    }

    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: &Peer,
        _timeout: Duration,
    ) -> Result<(), Error> {
        const WHAT: &str = "resolve an address";
        if !matches!(self.stage()?, Stage::New | Stage::Bound) {
            return step(WHAT);
        }
        // Before anything has changed: whether there can be a peer of this name.
        self.change(|entry, home| Address::new(home.scope(), entry.space, peer).map(drop))?;
        if self.stage()? == Stage::New {
            let any = match peer {
                Peer::Addr(peer) if peer.is_ipv6() => (Ipv6Addr::LOCALHOST, 0).into(),
                _ => (Ipv4Addr::LOCALHOST, 0).into(),
            };
            self.bind(&Peer::Addr(source.unwrap_or(any)))?;
        }
        let status = self.out_of_reach(CmEvent::AddrError, -libc::EHOSTUNREACH)?;
        self.become_of(|entry, _| {
            if entry.stage != Stage::Bound {
                return step(WHAT);
            }
            if let Some(status) = status {
                return Ok(Outcome::Event(EventKind::AddrError { status }));
            }
            entry.peer = Some(peer.clone());
            entry.stage = Stage::AddrResolved;
            Ok(Outcome::Event(EventKind::AddrResolved))
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

    /// Why nobody can be reached: the device is broken, its port down, or it is to be so.
    fn out_of_reach(&self, event: CmEvent, status: i32) -> Result<Option<i32>, Error> {
        let home = self.home().clone();
        if home.device().hca.check_alive().is_err() {
            return Ok(Some(-libc::ENODEV));
        }
        let down = home.device().query_port(1)?.state == PortState::Down;
        Ok((down || home.hca()?.managers.take(event)).then_some(status))
    }

    pub(super) fn stage(&self) -> Result<Stage, Error> {
        self.see(|entry| entry.stage)
            .map_or_else(|| step("use an id that is gone"), Ok)
    }

    pub fn bind(&self, at: &Peer) -> Result<(), Error> {
        const WHAT: &str = "bind an id to an address";
        self.change(|entry, home| {
            if entry.stage != Stage::New {
                return step(WHAT);
            }
            let socket = socket::make()?;
            let take = |at: &Peer| {
                let address = Address::new(home.scope(), entry.space, at)?;
                socket::take(&socket, &address)
            };
            let local = if at.port() != 0 {
                take(at)?.then(|| at.clone())
            } else {
                let count = EPHEMERAL.len() as u64;
                // From another one each time, so that those that were given back come late.
                // In each process.
                let first = self.key.wrapping_add(home.hca()?.managers.id());
                let mut ports = (0..count)
                    .map(|nth| EPHEMERAL.start() + (first.wrapping_add(nth) % count) as u16);
                loop {
                    let Some(port) = ports.next() else { break None };
                    let free = with_port(at, port);
                    if take(&free)? {
                        break Some(free);
                    }
                }
            };
            entry.local = Some(local.ok_or_else(|| refused(WHAT, libc::EADDRINUSE))?);
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
        if to == QpState::Init {
            let connect = ConnectAttr {
                qkey: multicast::qkey(self.space),
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
            let connect = theirs.connect_attr(entry.ours.as_ref(), entry.ack_timeout);
            let mut attr = connect.ready(home.device(), &theirs.endpoint, 0)?;
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
        // One after the other: nobody else finds it meanwhile, for its home is locked. Those who knock
        // at a listener wait in its socket.
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
            for event in events {
                to.hub.push(&mut state, key, event);
            }
        }
        to.hub.listen_again(&mut state, self.key);
        *home = to.clone();
        watched
    }

    pub fn set_tos(&self, _tos: u8) -> Result<(), Error> {
        // There are no routers.
        Ok(())
    }

    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), Error> {
        self.change(|entry, _| {
            entry.ack_timeout = Some(timeout);
            Ok(())
        })
    }

    pub fn set_afonly(&self, _on: bool) -> Result<(), Error> {
        // Addresses of both families are this machine's.
        Ok(())
    }

    pub fn set_reuseaddr(&self, _on: bool) -> Result<(), Error> {
        // A port is free as soon as nobody has it.
        Ok(())
    }

    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.see(|entry| entry.local.as_ref().map(socket_addr))?
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.see(|entry| entry.peer.as_ref().map(socket_addr))?
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let home = self.home();
        let mut state = home.hub.state();
        // Closing the sockets tells the peers.
        for request in requests_of(&state, self.key) {
            home.hub.remove(&mut state, request);
        }
        home.hub.remove(&mut state, self.key);
    }
}

/// The requests of a listener that have not been got.
fn requests_of(state: &State, listener: u64) -> Vec<u64> {
    let of_it = |(key, entry): (&u64, &Entry)| (entry.listener == Some(listener)).then_some(*key);
    state.ids.iter().filter_map(of_it).collect()
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the channel, which has them all, and the whole device.
        let Self {
            key,
            space,
            on_id: _,
            home: _,
        } = self;
        let mut id = f.debug_struct("Id");
        id.field("key", key).field("space", space);
        id.finish_non_exhaustive()
    }
}

fn with_port(at: &Peer, port: u16) -> Peer {
    match at {
        Peer::Addr(address) => Peer::Addr(SocketAddr::new(address.ip(), port)),
        Peer::Name { name, .. } => Peer::Name {
            name: name.clone(),
            port,
        },
    }
}

/// A name is one of this machine's.
fn socket_addr(peer: &Peer) -> SocketAddr {
    match peer {
        Peer::Addr(address) => *address,
        Peer::Name { port, .. } => (IpAddr::from(Ipv4Addr::LOCALHOST), *port).into(),
    }
}
