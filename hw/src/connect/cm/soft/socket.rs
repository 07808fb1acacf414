//! Sockets between two connection managers: Unix sockets of the kind that keeps messages apart, at
//! names of the abstract namespace, which go with the process that has them.

use super::super::{Peer, PortSpace};
use super::message::{MAX_BYTES, MAX_NAME, Message};
use crate::error::Error;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, recv, send, socket_with,
};
use rustix::process::getuid;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of an address in the abstract namespace.
const MAX_ADDRESS: usize = 107;

/// Where a socket is found.
#[derive(Clone, Debug)]
pub(super) struct Address(SocketAddrUnix);

impl Address {
    /// Of an end, among those of the devices that can reach each other.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::OutOfRange`]: no end can have this name.
    pub fn new(scope: &str, space: PortSpace, peer: &Peer) -> Result<Self, Error> {
        let (name, port) = match peer {
            Peer::Addr(address) => ("", address.port()),
            // An address in other words.
            Peer::Name { name, port } if name == "localhost" || name.parse::<IpAddr>().is_ok() => {
                ("", *port)
            }
            Peer::Name { name, port } => (name.as_str(), *port),
        };
        let user = getuid().as_raw();
        let front = format!("bellwire/{user}/{scope}/cm/{}/{port}/", space as u32);
        let max = MAX_NAME.min(MAX_ADDRESS.saturating_sub(front.len()));
        if name.len() > max {
            return Err(Error::TooLarge {
                what: "the length of the name, with this fabric's,",
                given: name.len() as u64,
                max: max as u64,
            });
        }
        let bytes = [front.as_bytes(), name.as_bytes()].concat();
        let address = SocketAddrUnix::new_abstract_name(&bytes)
            .map_err(|error| Error::io("name a socket", error.into()))?;
        Ok(Self(address))
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::io(what, error.into())
}

/// A socket that nobody has heard of yet. None of its calls blocks.
pub(super) fn make() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("make a socket for the connection manager"))
}

/// Takes an address; `false`: somebody has it.
pub(super) fn take(socket: &OwnedFd, address: &Address) -> Result<bool, Error> {
    match bind(socket, &address.0) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE) => Ok(false),
        Err(error) => Err(failed("bind a socket of the connection manager")(error)),
    }
}

/// How connecting went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// The peer's program will find us.
    There,
    /// Nobody listens.
    Nobody,
    /// Too many wait: later.
    Crowded,
    /// Whoever listens is another user's.
    Foreign,
}

pub(super) fn meet(socket: &OwnedFd, address: &Address) -> Result<Met, Error> {
    match connect(socket, &address.0) {
        Ok(()) if is_ours(socket) => Ok(Met::There),
        Ok(()) => Ok(Met::Foreign),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Met::Nobody),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Met::Crowded),
        Err(error) => Err(failed("connect a socket of the connection manager")(error)),
    }
}

/// Takes who waits longest; `None`: nobody of this user does.
pub(super) fn take_next(listener: &OwnedFd) -> Result<Option<OwnedFd>, Error> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(is_ours(&socket).then_some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(failed("take in who connects by the connection manager")(
            error,
        )),
    }
}

fn is_ours(socket: &OwnedFd) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == getuid())
}

/// Sends a message. Whoever cannot be told has gone, or reads nothing: its socket tells the one, a
/// time-out the other.
pub(super) fn say(socket: &OwnedFd, message: &Message) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _gone = send(socket, &message.to_bytes(), flags);
}

/// What there is to hear.
#[derive(Debug)]
pub(super) enum Heard {
    Message(Box<Message>),
    /// Not yet anything.
    Silence,
    /// Nothing more will come.
    End,
    /// What no connection manager says.
    Garbage,
}

pub(super) fn hear(socket: impl AsFd) -> Heard {
    let mut bytes = [0; MAX_BYTES + 1];
    loop {
        return match recv(&socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Heard::End,
            Ok((read, whole)) if whole <= read => match Message::from_bytes(&bytes[..read]) {
                Ok(message) => Heard::Message(Box::new(message)),
                Err(_) => Heard::Garbage,
            },
            Ok(_) => Heard::Garbage,
            Err(Errno::AGAIN) => Heard::Silence,
            // The peer closed and had not read all: what it has said comes behind this.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(_) => Heard::End,
        };
    }
}

/// Tells the system that `socket` is listened at.
pub(super) fn listen(socket: &OwnedFd, backlog: u32) -> Result<(), Error> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    rustix::net::listen(socket, backlog)
        .map_err(|error| Error::io("listen by the connection manager", io::Error::from(error)))
}
