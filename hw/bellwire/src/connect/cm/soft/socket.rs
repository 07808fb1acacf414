//! Sockets between two connection managers: Unix sockets that preserve message boundaries, with names in
//! the abstract namespace, which are released with their process.

use super::message::{MAX_BYTES, Message};
use crate::error::Error;
use crate::memory::fork::Fd;
use crate::pinned::boxed;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, recv, send, socket_with,
};
use std::io;
use std::os::fd::AsFd;

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::io(what, error.into())
}

/// Creates a socket that is not bound yet. None of its calls blocks.
pub(super) fn make() -> Result<Fd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(Fd::new)
        .map_err(failed("make a socket for the connection manager"))
}

/// Binds to an address; `false` if it is in use.
pub(super) fn take(socket: &Fd, address: &SocketAddrUnix) -> Result<bool, Error> {
    match bind(socket, address) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE) => Ok(false),
        Err(error) => Err(failed("bind a socket of the connection manager")(error)),
    }
}

/// Whether an address is in use.
pub(super) fn is_taken(address: &SocketAddrUnix) -> Result<bool, Error> {
    Ok(!take(&make()?, address)?)
}

/// The result of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// Connected: the peer's channel accepts it later.
    There,
    /// Nothing listens there.
    Nobody,
    /// The backlog is full: try again later.
    Crowded,
    /// The listener belongs to another user: to this one.
    Foreign(u32),
}

pub(super) fn meet(socket: &Fd, address: &SocketAddrUnix) -> Result<Met, Error> {
    match connect(socket, address) {
        Ok(()) => Ok(Met::There),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Met::Nobody),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Met::Crowded),
        Err(error) => Err(failed("connect a socket of the connection manager")(error)),
    }
}

/// Peers that the kernel queues at a listener, at least: among many that are silent there is room for others.
const QUEUE: i32 = 4096;

/// The result of accepting.
#[derive(Debug)]
pub(super) enum Waiting {
    Somebody(Fd),
    Nobody,
    /// The system has no descriptor or memory left for the peer that waits.
    NoRoom(Errno),
}

/// Accepts the peer that has waited longest.
pub(super) fn take_next(listener: &Fd) -> Waiting {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Waiting::Somebody(socket.into()),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Waiting::Nobody,
        Err(error) => Waiting::NoRoom(error),
    }
}

/// Sends a message. Errors are ignored: a peer that is gone is noticed by its socket, one that does not
/// read by a timeout.
pub(super) fn say(socket: &Fd, message: &Message) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _gone = send(socket, &message.to_bytes(), flags);
}

/// The result of receiving.
#[derive(Debug)]
pub(super) enum Heard {
    Message(Box<Message>),
    /// No message yet.
    Silence,
    /// Nothing more will come.
    End,
    /// Not a message of a connection manager.
    Garbage,
}

pub(super) fn hear(socket: impl AsFd) -> Heard {
    let mut bytes = [0; MAX_BYTES + 1];
    loop {
        return match recv(&socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Heard::End,
            Ok((read, whole)) if whole <= read => match Message::from_bytes(&bytes[..read]) {
                // Without memory for a message the connection ends.
                Ok(message) => boxed(message).map_or(Heard::End, Heard::Message),
                Err(_) => Heard::Garbage,
            },
            Ok(_) => Heard::Garbage,
            Err(Errno::AGAIN) => Heard::Silence,
            // The peer closed its socket without having read everything: its messages follow this error.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(_) => Heard::End,
        };
    }
}

/// Starts to listen on `socket`. At least [`QUEUE`] peers may wait until the channel accepts them.
pub(super) fn listen(socket: &Fd, backlog: u32) -> Result<(), Error> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).max(QUEUE);
    rustix::net::listen(socket, backlog)
        .map_err(|error| Error::io("listen by the connection manager", io::Error::from(error)))
}
