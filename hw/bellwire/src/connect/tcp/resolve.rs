//! Addresses of hosts, in bounded time.

use super::deadline::Deadline;
use super::error::{TcpError, Waited};
use bellwire_provider::address;
use bellwire_provider::thread;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// [`resolve`] within this time.
pub(in crate::connect) fn resolve_within(
    host: &str,
    port: u16,
    within: std::time::Duration,
) -> Result<Vec<SocketAddr>, TcpError> {
    resolve(host, port, &Deadline::new(within))
}

/// The addresses of a host, at least one, each once, in the resolver's order.
///
/// getaddrinfo(3) has no time limit, so it runs in a thread. A thread that is given up ends when the
/// resolver returns.
pub(super) fn resolve(
    host: &str,
    port: u16,
    deadline: &Deadline,
) -> Result<Vec<SocketAddr>, TcpError> {
    let unknown = |error| TcpError::UnknownHost {
        host: host.to_owned(),
        error,
    };
    if let Some(address) = address::parse(host, port).map_err(unknown)? {
        return Ok(vec![address]);
    }
    let waited = || Waited::Resolve {
        host: host.to_owned(),
    };
    let (sender, answer) = sync_channel(1);
    let query = (host.to_owned(), port);
    let resolve = move || {
        let found = query.to_socket_addrs().map(Vec::from_iter);
        // If the receiver is gone, it has given up.
        let _ = sender.send(found);
    };
    thread::start("bellwire-dns", resolve).map_err(|error| TcpError::Io {
        what: "start a thread",
        error,
    })?;
    let found = match answer.recv_timeout(deadline.left(waited)?) {
        Ok(found) => found.map_err(unknown)?,
        Err(RecvTimeoutError::Timeout) => return Err(deadline.passed(waited())),
        Err(RecvTimeoutError::Disconnected) => {
            return Err(unknown(io::Error::other("the resolver has panicked")));
        }
    };
    if found.is_empty() {
        return Err(unknown(io::ErrorKind::NotFound.into()));
    }
    let mut addresses = Vec::with_capacity(found.len());
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}
