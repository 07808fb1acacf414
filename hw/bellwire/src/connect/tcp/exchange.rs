//! A TCP connection as the exchange by which two [`Link`](crate::link::Link)s recover.

use super::{Connection, TcpError};
use crate::connect::Message;
use crate::link::{Exchange, ExchangeError};
use crate::memory::fork::Fd;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A [`Connection`] that never blocks, for a [`Link`](crate::link::Link).
///
/// A host that vanishes silently is noticed within 10 s, whether or not data was sent to it: the system
/// probes it (SO_KEEPALIVE, TCP_USER_TIMEOUT).
#[derive(Debug)]
pub struct TcpExchange {
    stream: Fd<TcpStream>,
    /// Bytes that the system has not accepted yet.
    unsent: Vec<u8>,
    /// The message being received.
    incoming: [u8; Message::MAX_BYTES],
    filled: usize,
}

/// When to offer the system the unsent bytes again.
const OFFERED_AGAIN: Duration = Duration::from_millis(20);

/// Unsent bytes at most; a peer this far behind has been sent hundreds of messages.
const MAX_UNSENT: usize = 1 << 16;

/// When the system gives up a peer that acknowledges nothing.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// Idle time before the first probe, and the time between probes.
    idle: Duration,
    again: Duration,
    /// Probes that may go unanswered.
    asked: u32,
    /// How long sent data may stay unacknowledged.
    sent: Duration,
}

/// Less than a recovery may take: a link finds its peer lost while it still tries to recover.
const SILENCE: Silence = Silence {
    idle: Duration::from_secs(5),
    again: Duration::from_secs(1),
    asked: 5,
    sent: Duration::from_secs(10),
};

impl Silence {
    fn set(&self, stream: &TcpStream) -> rustix::io::Result<()> {
        sockopt::set_tcp_keepidle(stream, self.idle)?;
        sockopt::set_tcp_keepintvl(stream, self.again)?;
        sockopt::set_tcp_keepcnt(stream, self.asked)?;
        sockopt::set_tcp_user_timeout(stream, self.sent.as_millis() as u32)?;
        sockopt::set_socket_keepalive(stream, true)
    }
}

impl Connection {
    /// The peer's address. `None` if the connection has ended.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()
    }

    /// Turns the connection into the exchange of a [`Link`](crate::link::Link). Both ends have to be
    /// at the same step.
    ///
    /// # Errors
    /// [`TcpError::Io`] when a system call fails.
    pub fn into_exchange(self) -> Result<TcpExchange, TcpError> {
        self.0.set_nonblocking(true).map_err(|error| TcpError::Io {
            what: "set O_NONBLOCK",
            error,
        })?;
        SILENCE.set(&self.0).map_err(|error| TcpError::Io {
            what: "set SO_KEEPALIVE and TCP_USER_TIMEOUT",
            error: error.into(),
        })?;
        Ok(TcpExchange {
            stream: self.0,
            unsent: Vec::new(),
            incoming: [0; Message::MAX_BYTES],
            filled: 0,
        })
    }
}

/// Number of bytes moved; `None` if the call would block.
fn moved(result: io::Result<usize>) -> Result<Option<usize>, ExchangeError> {
    match result {
        Ok(0) => Err(ExchangeError::Closed),
        Ok(moved) => Ok(Some(moved)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::Interrupted => Ok(Some(0)),
            _ => Err(ExchangeError::Io(error)),
        },
    }
}

impl TcpExchange {
    fn flush(&mut self) -> Result<(), ExchangeError> {
        while !self.unsent.is_empty() {
            let Some(sent) = moved(self.stream.write(&self.unsent))? else {
                break;
            };
            self.unsent.drain(..sent);
        }
        Ok(())
    }
}

impl Exchange for TcpExchange {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        if self.unsent.len() > MAX_UNSENT {
            return Err(ExchangeError::Closed);
        }
        if self.unsent.try_reserve(message.len()).is_err() {
            // The other end sees that messages are missing.
            let _ = self.stream.shutdown(Shutdown::Both);
            return Err(ExchangeError::Io(io::ErrorKind::OutOfMemory.into()));
        }
        self.unsent.extend_from_slice(message);
        self.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.flush()?;
        loop {
            let due = if self.filled < Message::HEADER_BYTES {
                Message::HEADER_BYTES
            } else {
                // Checked before waiting for what follows.
                Message::length(&self.incoming)?
            };
            if self.filled >= Message::HEADER_BYTES && self.filled == due {
                let whole = into.get_mut(..due).ok_or(ExchangeError::TooLong)?;
                whole.copy_from_slice(&self.incoming[..due]);
                self.filled = 0;
                return Ok(Some(due));
            }
            let room = &mut self.incoming[self.filled..due];
            match moved(self.stream.read(room))? {
                Some(got) => self.filled += got,
                None => return Ok(None),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Unsent bytes are offered again soon: the descriptor reports only incoming data.
    fn deadline(&self) -> Option<Instant> {
        (!self.unsent.is_empty()).then(|| Instant::now() + OFFERED_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Listener;
    use super::*;
    use std::thread;

    const SOON: Duration = Duration::from_secs(60);

    /// Both ends of a connection.
    fn connected() -> (Connection, Connection) {
        let listener = Listener::bind(Some("127.0.0.1"), 0).unwrap();
        let a = TcpStream::connect(("127.0.0.1", listener.port())).unwrap();
        (Connection::new(a).unwrap(), listener.accept(SOON).unwrap())
    }

    fn exchanges() -> (TcpExchange, TcpExchange) {
        let (a, b) = connected();
        (a.into_exchange().unwrap(), b.into_exchange().unwrap())
    }

    /// Waits for a message, or for the end.
    fn heard(exchange: &mut TcpExchange) -> Result<Vec<u8>, ExchangeError> {
        let mut bytes = [0; Message::MAX_BYTES];
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(length) = exchange.receive(&mut bytes)? {
                return Ok(bytes[..length].to_vec());
            }
            assert!(Instant::now() < deadline, "nothing came");
            thread::yield_now();
        }
    }

    #[test]
    fn an_exchange_brings_messages_whole_and_never_blocks() {
        let (mut a, mut b) = exchanges();
        assert_eq!(b.receive(&mut [0; Message::MAX_BYTES]).unwrap(), None);
        let ready = Message::Ready { epoch: 3 }.to_bytes().to_vec();
        let closing = Message::Closing.to_bytes().to_vec();
        a.send(&ready).unwrap();
        a.send(&closing).unwrap();
        assert_eq!(heard(&mut b).unwrap(), ready);
        assert_eq!(heard(&mut b).unwrap(), closing);
        drop(a);
        let end = heard(&mut b);
        assert!(matches!(end, Err(ExchangeError::Closed)), "{end:?}");
        assert!(b.fd().is_some());
    }

    #[test]
    fn an_exchange_takes_messages_that_come_in_pieces() {
        let (a, b) = connected();
        let (mut a, mut b) = (a, b.into_exchange().unwrap());
        let ready = Message::Ready { epoch: 3 }.to_bytes().to_vec();
        for _ in 0..3 {
            for byte in &ready {
                assert_eq!(b.receive(&mut [0; Message::MAX_BYTES]).unwrap(), None);
                a.send(std::slice::from_ref(byte), SOON).unwrap();
            }
            assert_eq!(heard(&mut b).unwrap(), ready);
        }
    }

    #[test]
    fn an_exchange_ends_with_what_makes_no_sense() {
        let (mut a, b) = connected();
        let mut b = b.into_exchange().unwrap();
        // The header alone is enough, whatever follows.
        a.send(b"HTTP/1.1 400 Bad Request", SOON).unwrap();
        let error = heard(&mut b);
        assert!(matches!(error, Err(ExchangeError::Format(_))), "{error:?}");
    }

    /// A host that does not respond looks the same as one whose programs read nothing until its buffers
    /// are full: sent data is not acknowledged.
    #[test]
    fn an_exchange_ends_when_the_peers_host_is_gone() {
        let (a, _b) = connected();
        let mut a = a.into_exchange().unwrap();
        let (limit, set) = (SILENCE, &a.stream);
        assert!(sockopt::socket_keepalive(set).unwrap());
        assert_eq!(sockopt::tcp_keepidle(set).unwrap(), limit.idle);
        assert_eq!(sockopt::tcp_keepintvl(set).unwrap(), limit.again);
        assert_eq!(sockopt::tcp_keepcnt(set).unwrap(), limit.asked);
        assert_eq!(sockopt::tcp_user_timeout(set).unwrap(), 10_000);
        // Ten seconds are too long for a test.
        let sent = Duration::from_millis(500);
        Silence { sent, ..limit }.set(set).unwrap();
        while moved(a.stream.write(&[0; 4096])).unwrap().is_some() {}
        let end = heard(&mut a);
        let Err(ExchangeError::Io(error)) = end else {
            panic!("{end:?}");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// A peer that reads nothing is given up when more is unsent than a link ever has to send.
    #[test]
    fn an_exchange_does_not_wait_for_a_peer_that_reads_nothing() {
        let (mut a, _b) = exchanges();
        let message = Message::Ready { epoch: 3 }.to_bytes().to_vec();
        let limit = 64 << 20;
        assert_eq!(a.deadline(), None);
        let sent = (0..limit / message.len()).take_while(|_| a.send(&message).is_ok());
        assert!(sent.count() < limit / message.len());
        assert!(a.deadline().is_some(), "the rest is offered again");
    }
}
