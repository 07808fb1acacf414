//! Why an exchange over TCP failed.

use crate::connect::FormatError;
use crate::error::{Error, remedy};
use bellwire_provider::address::{self, Tried};
use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

/// Why an exchange over TCP failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TcpError {
    /// The host's name has no address.
    UnknownHost {
        /// The name.
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// Listening on the port failed.
    Listen {
        /// Address and port.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// Connecting to the peer failed.
    Connect {
        /// Each address of the peer, and why it failed.
        tried: Box<[Tried]>,
    },
    /// The time limit has passed.
    TimedOut {
        /// The awaited step.
        waited: Waited,
        /// The time limit.
        within: Duration,
    },
    /// The peer has closed the connection, or its process or host has gone.
    Closed {
        /// Bytes received, of those expected.
        got: usize,
        /// Bytes expected; zero when this end was sending.
        due: usize,
    },
    /// The peer sent an invalid message.
    Format(FormatError),
    /// A signal handler has interrupted a wait that has no limit.
    Interrupted,
    /// The waits of the listener were ended.
    Woken,
    /// A system call failed.
    Io {
        /// What the call was for.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// What was waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The address of a host's name.
    Resolve {
        /// The name.
        host: String,
    },
    /// The peer's response to a connection request.
    Connect {
        /// The addresses, with the port.
        address: String,
    },
    /// A peer to connect.
    Accept {
        /// The port that it should connect to.
        port: u16,
    },
    /// Bytes of the peer.
    Receive {
        /// Bytes received.
        got: usize,
        /// Bytes expected.
        due: usize,
    },
    /// The peer to take bytes.
    Send,
}

impl TcpError {
    /// An address that could not be connected to, with what to do.
    pub(super) fn tried(address: SocketAddr, error: &io::Error) -> Tried {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "nobody listens there: start the other end first, and check the port"
            }
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                "check the host and the routes to it"
            }
            _ => return Tried::new(address, error),
        };
        let reason = format!("{error} ({advice})");
        let mut tried = Tried::because(address, reason);
        tried.errno = error.raw_os_error();
        tried
    }
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownHost { host, error } => {
                write!(f, "no address of host {host:?}: {error}; check the name")
            }
            Self::Listen { address, error } => {
                let advice = match error.kind() {
                    io::ErrorKind::AddrInUse => "; end what listens there, or take another port",
                    io::ErrorKind::PermissionDenied => "; take a port from 1024 on",
                    io::ErrorKind::AddrNotAvailable => "; give an address of this host",
                    _ => "",
                };
                write!(f, "cannot listen on {address}: {error}{advice}")?;
                match advice {
                    "" => write!(f, "{}", remedy(error)),
                    _ => Ok(()),
                }
            }
            Self::Connect { tried } => {
                write!(f, "cannot connect to {}", address::list(tried))
            }
            Self::TimedOut { waited, within } => write!(f, "{waited}, within {within:?}"),
            Self::Closed { due: 0, .. } => f.write_str(
                "the peer has closed the connection, or has gone: see what it says, and start both \
                 again",
            ),
            Self::Closed { got, due } => write!(
                f,
                "the peer has closed the connection, or has gone, after {got} of {due} bytes: see \
                 what it says, and start both again"
            ),
            Self::Format(error) => error.fmt(f),
            Self::Interrupted => Error::Interrupted.fmt(f),
            Self::Woken => Error::Woken.fmt(f),
            Self::Io { what, error } => write!(f, "cannot {what}: {error}{}", remedy(error)),
        }
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { host } => write!(
                f,
                "no address of host {host:?} (check the resolver, or give an address)"
            ),
            Self::Connect { address } => write!(
                f,
                "no answer from {address} (check the host, the port and firewalls between)"
            ),
            Self::Accept { port } => write!(
                f,
                "nobody has connected to port {port} (start the other end, or wait longer)"
            ),
            Self::Receive { got, due } => write!(
                f,
                "the peer has sent {got} of {due} bytes (see whether it still runs, and is the \
                 program that it should be)"
            ),
            Self::Send => f.write_str("the peer takes no more bytes (see whether it still runs)"),
        }
    }
}

// No `source`: the text includes it.
impl std::error::Error for TcpError {}

impl From<FormatError> for TcpError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}
