//! How two [`Link`](super::Link)s reach each other while their queue pairs cannot.

use crate::connect::FormatError;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// Brings messages to the peer and back, each whole, in order, and once; independent of the queue
/// pairs, which are broken when it is needed. [`pair`] is one within the process,
/// [`TcpExchange`](crate::connect::tcp::TcpExchange) one over TCP.
///
/// What it brings is not trusted: the [`Link`](super::Link) checks every message.
pub trait Exchange: Send {
    /// Takes a message of at most [`Message::MAX_BYTES`](crate::connect::Message::MAX_BYTES) to be
    /// brought to the peer. Never blocks.
    ///
    /// # Errors
    /// [`ExchangeError`]: the peer cannot be reached any more.
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError>;

    /// Writes the next message to the start of `into`, and gives its length; `None`: there is none
    /// yet. Never blocks.
    ///
    /// # Errors
    /// [`ExchangeError`]: nothing will come any more.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError>;

    /// A descriptor that is readable when a message comes, if there is one: for poll and epoll.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Why the peer cannot be reached any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The peer, its process or its host is gone.
    Closed,
    /// The peer sent what it may not.
    Format(FormatError),
    /// The peer's message is longer than any can be.
    TooLong,
    /// The operating system refused.
    Io(io::Error),
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str(
                "the peer has closed the exchange, or is gone: see whether it still runs, then make \
                 a new link",
            ),
            Self::Format(error) => error.fmt(f),
            Self::TooLong => f.write_str(
                "the peer's message is longer than any can be: run both ends with the same version \
                 of bellwire",
            ),
            Self::Io(error) => write!(f, "cannot reach the peer: {error}"),
        }
    }
}

// No source: the text has it.
impl std::error::Error for ExchangeError {}

impl From<FormatError> for ExchangeError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    messages: VecDeque<Vec<u8>>,
    /// One of the two ends is gone.
    closed: bool,
}

/// An end of a [`pair`]. Dropping it tells the other.
#[derive(Debug)]
pub struct LocalExchange {
    outgoing: Arc<Mutex<Lane>>,
    incoming: Arc<Mutex<Lane>>,
}

/// Messages that wait for a peer which reads none, at the most.
const MAX_WAITING: usize = 1024;

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    // Each change of a lane is whole.
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two ends of an exchange within the process.
pub fn pair() -> (LocalExchange, LocalExchange) {
    let lanes: [Arc<Mutex<Lane>>; 2] = Default::default();
    let [there, back] = lanes;
    let first = LocalExchange {
        outgoing: there.clone(),
        incoming: back.clone(),
    };
    let second = LocalExchange {
        outgoing: back,
        incoming: there,
    };
    (first, second)
}

impl Exchange for LocalExchange {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let mut lane = lock(&self.outgoing);
        if lane.closed || lane.messages.len() == MAX_WAITING {
            return Err(ExchangeError::Closed);
        }
        lane.messages.push_back(message.to_vec());
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        let mut lane = lock(&self.incoming);
        match lane.messages.pop_front() {
            Some(message) => {
                let whole = into.get_mut(..message.len());
                whole
                    .ok_or(ExchangeError::TooLong)?
                    .copy_from_slice(&message);
                Ok(Some(message.len()))
            }
            None if lane.closed => Err(ExchangeError::Closed),
            None => Ok(None),
        }
    }
}

impl Drop for LocalExchange {
    fn drop(&mut self) {
        // What was sent is still received.
        lock(&self.outgoing).closed = true;
        lock(&self.incoming).closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_and_in_order_and_then_the_end() {
        let (mut a, mut b) = pair();
        let mut bytes = [0; 8];
        assert_eq!(b.receive(&mut bytes).unwrap(), None);
        a.send(b"one").unwrap();
        a.send(b"seven").unwrap();
        drop(a);
        assert_eq!(b.receive(&mut bytes).unwrap(), Some(3));
        assert_eq!(&bytes[..3], b"one");
        assert_eq!(b.receive(&mut bytes).unwrap(), Some(5));
        assert_eq!(&bytes[..5], b"seven");
        let end = b.receive(&mut bytes);
        assert!(matches!(end, Err(ExchangeError::Closed)), "{end:?}");
        assert!(b.send(b"more").is_err());
    }

    #[test]
    fn a_peer_that_floods_or_sends_too_much_is_cut_off() {
        let (mut a, mut b) = pair();
        a.send(&[0; 9]).unwrap();
        assert!(matches!(
            b.receive(&mut [0; 8]),
            Err(ExchangeError::TooLong)
        ));
        let sent = (0..).take_while(|_| a.send(&[]).is_ok()).count();
        assert_eq!(sent, MAX_WAITING);
    }
}
