//! A connection as the way by which two [`Link`](crate::recovery::Link)s find each other again.

use super::{Connection, TcpError};
use crate::connect::Message;
use crate::recovery::{Exchange, ExchangeError};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A [`Connection`] that never blocks, for a [`Link`](crate::recovery::Link).
#[derive(Debug)]
pub struct TcpExchange {
    stream: TcpStream,
    /// What the system has not taken yet.
    unsent: Vec<u8>,
    /// The message that comes in.
    incoming: [u8; Message::MAX_BYTES],
    filled: usize,
}

/// Bytes that wait for a peer which takes none, at the most: it has had hundreds of messages.
const MAX_UNSENT: usize = 1 << 16;

impl Connection {
    /// As the exchange of a [`Link`](crate::recovery::Link). Both ends have to be at the same step.
    ///
    /// # Errors
    /// [`TcpError::Io`] when the system refuses.
    pub fn into_exchange(self) -> Result<TcpExchange, TcpError> {
        self.0.set_nonblocking(true).map_err(|error| TcpError::Io {
            what: "set O_NONBLOCK",
            error,
        })?;
        Ok(TcpExchange {
            stream: self.0,
            unsent: Vec::new(),
            incoming: [0; Message::MAX_BYTES],
            filled: 0,
        })
    }
}

/// How many bytes were moved; `None`: none can be now.
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
        self.unsent.extend_from_slice(message);
        self.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.flush()?;
        loop {
            let due = if self.filled < Message::HEADER_BYTES {
                Message::HEADER_BYTES
            } else {
                // Checked before anything behind it is waited for.
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
}

#[cfg(test)]
mod tests {
    use super::super::Listener;
    use super::*;
    use std::thread;
    use std::time::{Duration, Instant};

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

    /// Until something comes, or the end.
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
        let ready = Message::Ready { epoch: 3 }.to_bytes();
        let closing = Message::Closing.to_bytes();
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
        let ready = Message::Ready { epoch: 3 }.to_bytes();
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
        // Of the header alone, whatever may come behind it.
        a.send(b"HTTP/1.1 400 Bad Request", SOON).unwrap();
        let error = heard(&mut b);
        assert!(matches!(error, Err(ExchangeError::Format(_))), "{error:?}");
    }

    /// A peer that reads nothing is given up when more waits for it than a link has to say.
    #[test]
    fn an_exchange_does_not_wait_for_a_peer_that_reads_nothing() {
        let (mut a, _b) = exchanges();
        let message = Message::Ready { epoch: 3 }.to_bytes();
        let limit = 64 << 20;
        let sent = (0..limit / message.len()).take_while(|_| a.send(&message).is_ok());
        assert!(sent.count() < limit / message.len());
    }
}
