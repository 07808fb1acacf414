//! Accepting connections of peers.

use super::Connection;
use super::deadline::Deadline;
use super::error::{TcpError, Waited};
use super::resolve::resolve;
use super::shown;
use crate::error::Error;
use crate::event::Waiters;
use crate::memory::fork::Fd;
use bellwire_provider::address;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A port on which peers are accepted. Any thread may use it.
#[derive(Debug)]
pub struct Listener {
    socket: Fd<TcpListener>,
    port: u16,
    waiters: Waiters,
}

/// Time limit for resolving the name of the address, which belongs to this host.
const RESOLVE: Duration = Duration::from_secs(10);

impl Listener {
    /// Listens on a port of the host's address, or of all addresses of this host when it is `None`. Port
    /// 0 selects a free port.
    ///
    /// # Errors
    /// [`TcpError::Listen`] when the port is in use, or not permitted; [`TcpError::UnknownHost`].
    pub fn bind(host: Option<&str>, port: u16) -> Result<Self, TcpError> {
        let addresses = match host {
            Some(host) => resolve(host, port, &Deadline::new(RESOLVE))?,
            None => any(port),
        };
        let failed = |error| {
            let host = match host {
                Some(host) => format!("{host:?} ({})", shown(&addresses)),
                None => "all addresses".to_owned(),
            };
            TcpError::Listen {
                address: format!("port {port} of {host}"),
                error,
            }
        };
        let incomplete = addresses.iter().find_map(|&of| address::check(of).err());
        let socket = TcpListener::bind(addresses.as_slice())
            .map_err(|error| failed(incomplete.unwrap_or(error)))?;
        // Accept must not block if the peer has left after the poll.
        socket.set_nonblocking(true).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        Ok(Self {
            socket: socket.into(),
            port,
            waiters: Waiters::default(),
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts the next peer that connects. Without time it does not wait, and takes one that has connected.
    ///
    /// # Errors
    /// [`TcpError::TimedOut`]; [`TcpError::Io`] when the system has no descriptor left; [`TcpError::Interrupted`]
    /// when a signal handler has interrupted a wait without a limit ([`Duration::MAX`]); [`TcpError::Woken`] by
    /// [`waiters`](Self::waiters).
    pub fn accept(&self, within: Duration) -> Result<Connection, TcpError> {
        let deadline = Deadline::new(within);
        let failed = |error| TcpError::Io {
            what: "wait for a peer",
            error,
        };
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => return Connection::new(stream),
                // No peer yet, or one that has left again.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::Interrupted
                            | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => return Err(failed(error)),
            }
            let left = deadline.left(|| Waited::Accept { port: self.port })?;
            let slept = (self.waiters).sleep(&[self.as_fd()], Some(left), deadline.limit());
            slept.map_err(|error| match error {
                Error::Interrupted => TcpError::Interrupted,
                Error::Woken => TcpError::Woken,
                Error::Io { error, .. } => failed(error),
                other => failed(io::Error::other(other)),
            })?;
        }
    }

    /// The threads that wait in [`accept`](Self::accept): another thread, or a signal handler, can end their
    /// waits.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

/// For poll(2) and epoll(7): readable when a peer can be accepted. It may have left again, so give
/// [`accept`](Listener::accept) no time.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The IPv6 address covers both families; the IPv4 address is for hosts without IPv6.
fn any(port: u16) -> Vec<SocketAddr> {
    vec![
        (Ipv6Addr::UNSPECIFIED, port).into(),
        (Ipv4Addr::UNSPECIFIED, port).into(),
    ]
}
