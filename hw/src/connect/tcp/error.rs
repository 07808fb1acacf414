//! Why an exchange over TCP failed.

use crate::connect::FormatError;
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
        /// What the resolver says.
        error: io::Error,
    },
    /// The port cannot be listened on.
    Listen {
        /// Address and port.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// The peer cannot be connected to.
    Connect {
        /// Host and port.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// The time was up.
    TimedOut {
        /// What was waited for.
        waited: Waited,
        /// How long it was to take at the most.
        within: Duration,
    },
    /// The peer has closed the connection, or its process or host has gone.
    Closed {
        /// Bytes that came before, of those that were due.
        got: usize,
        /// Bytes that were due; zero when it was this end that sent.
        due: usize,
    },
    /// The peer sent what it may not.
    Format(FormatError),
    /// The operating system refused.
    Io {
        /// To do what.
        what: &'static str,
        /// Why.
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
    /// The peer's answer to connecting.
    Connect {
        /// Host and port.
        address: String,
    },
    /// A peer that connects.
    Accept {
        /// The port that it was to connect to.
        port: u16,
    },
    /// The peer's bytes.
    Receive {
        /// Those that came.
        got: usize,
        /// Those that were due.
        due: usize,
    },
    /// The peer taking bytes.
    Send,
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownHost { host, error } => {
                write!(f, "no address of host {host:?}: {error}; check the name")
            }
            Self::Listen { address, error } => {
                let remedy = match error.kind() {
                    io::ErrorKind::AddrInUse => "; end what listens there, or take another port",
                    io::ErrorKind::PermissionDenied => "; take a port from 1024 on",
                    io::ErrorKind::AddrNotAvailable => "; give an address of this host",
                    _ => "",
                };
                write!(f, "cannot listen on {address}: {error}{remedy}")
            }
            Self::Connect { address, error } => {
                let remedy = match error.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        "; nobody listens there: start the other end first, and check the port"
                    }
                    io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                        "; check the host and the routes to it"
                    }
                    _ => "",
                };
                write!(f, "cannot connect to {address}: {error}{remedy}")
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
            Self::Io { what, error } => write!(f, "cannot {what}: {error}"),
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

// No source: the text has it.
impl std::error::Error for TcpError {}

impl From<FormatError> for TcpError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}
