//! How two [`Link`](super::Link)s exchange messages while their queue pairs cannot.

use crate::error::Error;
use crate::log::{Level, log};
use crate::memory::fork::Life;
use bellwire_core::fault::Fault;
use bellwire_core::link::{FormatError, Message};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;
use std::{fmt, io};

/// Carries messages to the peer and back: each whole, in order, and once. It does not depend on the queue
/// pairs, which are broken when it is needed. [`pair`] makes one within the process,
/// [`TcpExchange`](crate::connect::tcp::TcpExchange) is one over TCP. An exchange that panics is not
/// called again: the peer is lost, and the panic is resumed from a poll.
///
/// The messages are not trusted: the [`Link`](super::Link) checks each.
pub trait Exchange: Send {
    /// Takes a message of at most [`Message::MAX_BYTES`](crate::connect::Message::MAX_BYTES) to be sent
    /// to the peer. Never blocks.
    ///
    /// # Errors
    /// [`ExchangeError`]: the peer cannot be reached any more.
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError>;

    /// Writes the next message to the start of `into`, and returns its length; `None` if there is none
    /// yet. Never blocks.
    ///
    /// # Errors
    /// [`ExchangeError`]: no more messages will come.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError>;

    /// A descriptor that is readable when a message has arrived, if there is one: for poll and epoll.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether each connection needs a queue pair number other than the last one's, as with a
    /// communication manager, where the peer's refuses a number for as long as it has a connection with
    /// it. Queue pairs are then destroyed and created rather than reset. Called once, when the link is
    /// made.
    fn needs_new_qp(&self) -> bool {
        false
    }

    /// Sets the waker that the exchange wakes from here on, after a message may have arrived and after it
    /// is clear that no more will come. Returns `false` if the exchange does not support this, and the
    /// link has to wait for [`fd`](Self::fd). An exchange that shares its descriptor with others has to
    /// support it: a link that waited for the descriptor would be woken for all of them, and Linux lets
    /// only a few hundred links do so.
    ///
    /// # Errors
    /// The system refused what the exchange needs for this, as a thread. The link is not made.
    fn set_waker(&mut self, waker: Waker) -> Result<bool, Error> {
        drop(waker);
        Ok(false)
    }

    /// The peer's address, if the exchange has one.
    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// Why the peer has not responded so far, as far as the exchange can tell: for the error of a link that gives up
    /// waiting.
    fn pending(&self) -> Option<String> {
        None
    }

    /// The time by which it has to be asked for a message again, for work of its own.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Why the peer cannot be reached any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The peer, its process or its host is gone.
    Closed,
    /// The peer cannot be connected with.
    Unreachable {
        /// What was seen, and what to do.
        reason: String,
    },
    /// Another process replies in the peer's place.
    Restarted,
    /// The peer sent an invalid message.
    Format(FormatError),
    /// The peer's message is longer than any message may be.
    TooLong,
    /// The operating system returned an error.
    Io(io::Error),
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str(
                "the peer has closed the exchange, or is gone: see whether it still runs, then make \
                 a new link",
            ),
            Self::Unreachable { reason } => write!(f, "cannot connect to the peer: {reason}"),
            Self::Restarted => f.write_str(
                "another process answers in the peer's place: make a new link, and have both sides \
                 compare what they have",
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

// No `source`: the text includes it.
impl std::error::Error for ExchangeError {}

impl From<FormatError> for ExchangeError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

/// Tells the peer that there will be no link, and why, as far as the exchange still carries it.
pub(super) fn refuse(exchange: &mut dyn Exchange, why: Fault) {
    log(
        Level::Warn,
        format_args!("a peer is refused: {why}: {}", why.text()),
    );
    let message = Message::GaveUp(why.without_circumstances());
    let _gone = exchange.send(&message.to_bytes());
}

/// One direction of the exchange.
#[derive(Debug, Default)]
struct Lane {
    messages: VecDeque<Vec<u8>>,
    /// One of the two ends is gone.
    closed: bool,
    /// The waker of the receiving end.
    waker: Option<Waker>,
}

/// Wakes the receiving end of a lane, without holding the lock.
fn wake(lane: &Mutex<Lane>) {
    let waker = lock(lane).waker.clone();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// An end of a [`pair`]. Dropping it closes the exchange for the other end.
#[derive(Debug)]
pub struct LocalExchange {
    outgoing: Arc<Mutex<Lane>>,
    incoming: Arc<Mutex<Lane>>,
    /// Of the process that made it.
    life: Life,
}

/// Unread messages at most; with more the peer counts as gone.
const MAX_WAITING: usize = 1024;

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    // A panic never leaves a lane half changed.
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two ends of an exchange within the process.
pub fn pair() -> (LocalExchange, LocalExchange) {
    let lanes: [Arc<Mutex<Lane>>; 2] = Default::default();
    let [there, back] = lanes;
    let first = LocalExchange {
        outgoing: there.clone(),
        incoming: back.clone(),
        life: Life::current(),
    };
    let second = LocalExchange {
        outgoing: back,
        incoming: there,
        life: Life::current(),
    };
    (first, second)
}

impl Exchange for LocalExchange {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let mut lane = lock(&self.outgoing);
        if lane.closed || lane.messages.len() == MAX_WAITING {
            return Err(ExchangeError::Closed);
        }
        let mut copy = Vec::new();
        let reserved = copy.try_reserve_exact(message.len());
        if reserved.and(lane.messages.try_reserve(1)).is_err() {
            // The other end sees that messages are missing.
            lane.closed = true;
            drop(lane);
            wake(&self.outgoing);
            return Err(ExchangeError::Io(io::ErrorKind::OutOfMemory.into()));
        }
        copy.extend_from_slice(message);
        lane.messages.push_back(copy);
        drop(lane);
        wake(&self.outgoing);
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

    fn set_waker(&mut self, waker: Waker) -> Result<bool, Error> {
        let _replaced = lock(&self.incoming).waker.replace(waker);
        Ok(true)
    }
}

impl Drop for LocalExchange {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        // Messages already sent can still be received.
        lock(&self.outgoing).closed = true;
        lock(&self.incoming).closed = true;
        wake(&self.outgoing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

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
    fn who_receives_is_woken_by_messages_and_by_the_end() {
        #[derive(Default)]
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (mut a, mut b) = pair();
        let count = Arc::new(Count::default());
        assert!(b.set_waker(count.clone().into()).unwrap());
        a.send(b"one").unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        b.send(b"nobody waits for it").unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        drop(a);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
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
