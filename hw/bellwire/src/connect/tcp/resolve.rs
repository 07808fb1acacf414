//! Addresses of hosts, in bounded time.

use super::deadline::Deadline;
use super::error::{TcpError, Waited};
use bellwire_provider::address;
use bellwire_provider::thread;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::catch_unwind;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What the resolver has found. Not a channel, whose waiting receivers have memory that Memcheck reports when the
/// process ends.
#[derive(Default)]
struct Answer {
    found: Mutex<Option<io::Result<Vec<SocketAddr>>>>,
    came: Condvar,
}

impl Answer {
    fn give(&self, found: io::Result<Vec<SocketAddr>>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        self.came.notify_one();
    }

    /// Waits for the answer. `None`: it has not come in this time.
    fn within(&self, time: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |found: &mut Option<_>| found.is_none();
        let waited = self.came.wait_timeout_while(found, time, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// [`resolve`] within this time.
pub(in crate::connect) fn resolve_within(
    host: &str,
    port: u16,
    within: Duration,
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
    let answer = Arc::new(Answer::default());
    let (to, query) = (answer.clone(), (host.to_owned(), port));
    let resolve = move || {
        let found = catch_unwind(|| query.to_socket_addrs().map(Vec::from_iter));
        let panicked = |_| Err(io::Error::other("the resolver has panicked"));
        to.give(found.unwrap_or_else(panicked));
    };
    thread::start("bellwire-dns", resolve).map_err(|error| TcpError::Io {
        what: "start a thread",
        error,
    })?;
    let found = match answer.within(deadline.left(waited)?) {
        Some(found) => found.map_err(unknown)?,
        None => return Err(deadline.passed(waited())),
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
