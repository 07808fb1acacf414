//! The exchange over a TCP connection: two programs exchange the information about their queue pairs, and
//! wait for each other.
//!
//! Every call takes a time limit and returns within it, whatever the peer does. Data from the peer is read
//! into a buffer of fixed size and checked; none of it is used as a length or an index. The peer itself is
//! not authenticated: any host that reaches the port can connect, and any host that knows a queue pair and an
//! rkey can use them. Listen on an address that only trusted hosts reach.
//!
//! ```
//! use bellwire::connect::ConnInfo;
//! use bellwire::connect::tcp::{Connection, Listener};
//! use bellwire::{ConnectAttr, Device, QpInit};
//! use std::time::Duration;
//!
//! const SOON: Duration = Duration::from_secs(10);
//!
//! fn end(mut peer: Connection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let pd = Device::open("auto")?.alloc_pd();
//!     let init = QpInit::default();
//!     let (sends, receives) = init.cq_entries();
//!     let mut cq = pd.device().create_cq(sends + receives)?;
//!     let mut qp = pd.create_qp(&mut cq, &init)?;
//!
//!     let ours = ConnInfo {
//!         endpoint: qp.endpoint(),
//!         mtu: pd.device().query_port(1)?.active_mtu,
//!         ..ConnInfo::default() // no memory that the peer may work on
//!     };
//!     let theirs = peer.exchange(&ours, SOON)?;
//!     let connect = ConnectAttr {
//!         path_mtu: ours.mtu.min(theirs.mtu),
//!         ..ConnectAttr::default()
//!     };
//!     qp.init(&connect)?;
//!     qp.connect(&theirs.endpoint, &connect)?;
//!     peer.barrier(SOON)?; // from here on both may send
//!     Ok(())
//! }
//!
//! let listener = Listener::bind(Some("localhost"), 0)?;
//! let port = listener.port();
//! let client = std::thread::spawn(move || end(Connection::connect("localhost", port, SOON)?));
//! end(listener.accept(SOON)?).unwrap();
//! client.join().unwrap().unwrap();
//! # Ok::<(), bellwire::connect::tcp::TcpError>(())
//! ```

mod deadline;
mod error;
mod exchange;
mod listener;
mod resolve;
#[cfg(test)]
mod tests;

pub use error::{TcpError, Waited};
pub use exchange::TcpExchange;
pub use listener::Listener;

use super::ConnInfo;
use crate::memory::fork::Fd;
use bellwire_core::link::wire::{HEADER, Kind};
use bellwire_provider::address::{self, Shown, Tried};
use deadline::Deadline;
use resolve::resolve;
pub(in crate::connect) use resolve::resolve_within;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection with a peer. One owner at a time.
///
/// After an error the two ends may be out of step: drop the connection, and connect again.
#[derive(Debug)]
pub struct Connection(Fd<TcpStream>);

impl Connection {
    fn new(stream: TcpStream) -> Result<Self, TcpError> {
        // The peer waits for each message.
        match stream.set_nodelay(true) {
            Ok(()) => Ok(Self(stream.into())),
            Err(error) => Err(TcpError::Io {
                what: "set TCP_NODELAY",
                error,
            }),
        }
    }

    /// Connects to a listening peer. If the host has several addresses, each is tried in turn: one that does
    /// not respond leaves the others their share of the time. A link-local address names its interface, as in
    /// `fe80::1%eth0`.
    ///
    /// # Errors
    /// [`TcpError::Connect`] when nothing listens there, [`TcpError::UnknownHost`],
    /// [`TcpError::TimedOut`] when no address responds.
    pub fn connect(host: &str, port: u16, within: Duration) -> Result<Self, TcpError> {
        let deadline = Deadline::new(within);
        let addresses = resolve(host, port, &deadline)?;
        let mut tried = Vec::with_capacity(addresses.len());
        let mut timed_out = 0;
        for (at, &address) in addresses.iter().enumerate() {
            let waited = || Waited::Connect {
                address: shown(&addresses[at..]),
            };
            let share = match deadline.left(waited) {
                Ok(left) => left / (addresses.len() - at) as u32,
                Err(late) if timed_out == tried.len() => return Err(late),
                Err(_) => {
                    tried.push(Tried::because(address, "there was no time left for it"));
                    continue;
                }
            };
            let connected = address::check(address).and_then(|()| {
                TcpStream::connect_timeout(&address, share.max(Duration::from_micros(1)))
            });
            match connected {
                Ok(stream) => return Self::new(stream),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    timed_out += 1;
                    tried.push(Tried::because(address, "no answer"));
                }
                Err(error) => tried.push(TcpError::tried(address, &error)),
            }
        }
        if timed_out == tried.len() {
            return Err(deadline.passed(Waited::Connect {
                address: shown(&addresses),
            }));
        }
        let tried = tried.into();
        Err(TcpError::Connect { tried })
    }

    /// Sends this end's information, and returns the peer's. For each further queue pair or memory
    /// region, exchange once more.
    ///
    /// # Errors
    /// [`TcpError::Closed`] when the peer is gone, [`TcpError::TimedOut`] when it is late,
    /// [`TcpError::Format`] when it uses another version or sends an invalid message.
    pub fn exchange(&mut self, ours: &ConnInfo, within: Duration) -> Result<ConnInfo, TcpError> {
        let deadline = Deadline::new(within);
        self.send_by(&ours.to_bytes(), &deadline)?;
        let mut theirs = [0; ConnInfo::BYTES];
        let (header, body) = theirs.split_at_mut(HEADER);
        self.expect(Kind::Info, header, ConnInfo::BYTES, &deadline)?;
        self.receive_by(body, HEADER, ConnInfo::BYTES, &deadline)?;
        Ok(ConnInfo::from_bytes(&theirs)?)
    }

    /// Waits until the peer has reached its barrier too: before an end sends, it has to know that the
    /// other end's queue pair is connected.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange).
    pub fn barrier(&mut self, within: Duration) -> Result<(), TcpError> {
        let deadline = Deadline::new(within);
        self.send_by(&Kind::Barrier.header(), &deadline)?;
        self.expect(Kind::Barrier, &mut [0; HEADER], HEADER, &deadline)
    }

    /// Reads a header, and checks it before reading what follows.
    fn expect(
        &mut self,
        kind: Kind,
        into: &mut [u8],
        due: usize,
        deadline: &Deadline,
    ) -> Result<(), TcpError> {
        self.receive_by(into, 0, due, deadline)?;
        let header = <&[u8; HEADER]>::try_from(&*into).expect("a header's bytes");
        Ok(kind.check(header)?)
    }

    /// Sends bytes, for the program's own protocol.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::TimedOut`].
    pub fn send(&mut self, bytes: &[u8], within: Duration) -> Result<(), TcpError> {
        self.send_by(bytes, &Deadline::new(within))
    }

    /// Fills `into`, for the program's own protocol.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::TimedOut`].
    pub fn receive(&mut self, into: &mut [u8], within: Duration) -> Result<(), TcpError> {
        let due = into.len();
        self.receive_by(into, 0, due, &Deadline::new(within))
    }

    fn send_by(&mut self, mut bytes: &[u8], deadline: &Deadline) -> Result<(), TcpError> {
        while !bytes.is_empty() {
            let left = deadline.left(|| Waited::Send)?;
            let sent = match self.0.set_write_timeout(Some(left)) {
                Ok(()) => self.0.write(bytes),
                Err(error) => Err(error),
            };
            let sent = moved(sent, 0, 0, "send to the peer")?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Fills `into`; `before` bytes of `due` in all were received earlier.
    fn receive_by(
        &mut self,
        into: &mut [u8],
        before: usize,
        due: usize,
        deadline: &Deadline,
    ) -> Result<(), TcpError> {
        let mut filled = 0;
        while filled < into.len() {
            let got = before + filled;
            let left = deadline.left(|| Waited::Receive { got, due })?;
            let read = match self.0.set_read_timeout(Some(left)) {
                Ok(()) => self.0.read(&mut into[filled..]),
                Err(error) => Err(error),
            };
            if read.as_ref().is_ok_and(|&read| read == 0) {
                return Err(TcpError::Closed { got, due });
            }
            filled += moved(read, got, due, "receive from the peer")?;
        }
        Ok(())
    }
}

/// The text of addresses.
fn shown(addresses: &[SocketAddr]) -> String {
    let each: Vec<String> = (addresses.iter())
        .map(|&address| Shown(address).to_string())
        .collect();
    each.join(", ")
}

/// Number of bytes moved; zero if the system call only waited.
fn moved(
    result: io::Result<usize>,
    got: usize,
    due: usize,
    what: &'static str,
) -> Result<usize, TcpError> {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, WouldBlock,
    };
    match result {
        Ok(moved) => Ok(moved),
        // The deadline checks whether the time is up.
        Err(error) if matches!(error.kind(), Interrupted | WouldBlock) => Ok(0),
        Err(error) => match error.kind() {
            // `TimedOut`: the peer's host no longer responds to the system.
            BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut => {
                Err(TcpError::Closed { got, due })
            }
            _ => Err(TcpError::Io { what, error }),
        },
    }
}
