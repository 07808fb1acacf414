//! The peer, through the exchange.

use super::exchange::{Exchange, ExchangeError};
use crate::device::Device;
use crate::error::Error;
use crate::panics::Panics;
use bellwire_core::link::{Message, PeerError, PeerLoss, Protocol};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Messages received in one check, at most.
const AT_ONCE: usize = 64;

/// Carries messages between the protocol and the exchange.
pub(super) struct Peer {
    exchange: Box<dyn Exchange>,
    /// Why the peer cannot be reached any more.
    error: Option<ExchangeError>,
    /// The device and its port by which the peer is reached; `None` in tests.
    by: Option<(Device, u8)>,
    /// Panics of the exchange.
    pub panics: Panics,
    /// The last check ended before all messages were received.
    more: bool,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl From<PeerError> for ExchangeError {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Restarted => Self::Restarted,
            PeerError::Format(error) => Self::Format(error),
        }
    }
}

impl Peer {
    pub fn new(exchange: Box<dyn Exchange>, by: Option<(Device, u8)>) -> Self {
        Self {
            exchange,
            by,
            error: None,
            panics: Panics::default(),
            more: false,
        }
    }

    /// Calls the exchange, which may be implemented by the program. One that panics counts as failed.
    fn call<R>(
        &mut self,
        call: impl FnOnce(&mut dyn Exchange) -> Result<R, ExchangeError>,
    ) -> Result<R, ExchangeError> {
        let Self {
            exchange, panics, ..
        } = self;
        let panicked = || Err(ExchangeError::Io(io::Error::other("the exchange panicked")));
        panics
            .catch(|| call(&mut **exchange))
            .unwrap_or_else(panicked)
    }

    /// Why the peer cannot be reached any more.
    pub fn error(&self) -> Option<&ExchangeError> {
        self.error.as_ref()
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.fd()
    }

    /// See [`Exchange::peer_addr`].
    pub fn addr(&self) -> Option<SocketAddr> {
        self.exchange.peer_addr()
    }

    /// See [`Exchange::needs_new_qp`].
    pub fn needs_new_qp(&self) -> bool {
        self.exchange.needs_new_qp()
    }

    /// The time by which the exchange has to be asked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.exchange.deadline()
    }

    /// Whether there may be more messages than were received.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message, protocol: &mut Protocol) {
        if let Err(error) = self.call(|exchange| exchange.send(&message.to_bytes())) {
            // Messages that it sent before can still be received, such as the closing message.
            self.receive_all(protocol);
            if !protocol.peer_gone() {
                self.fail(error, protocol);
            }
        }
    }

    /// Passes the messages that have come to the protocol.
    pub fn receive_all(&mut self, protocol: &mut Protocol) {
        self.more = false;
        for _ in 0..AT_ONCE {
            if protocol.peer_gone() {
                return;
            }
            match self.receive() {
                Ok(Some(message)) => {
                    self.check(&message);
                    if let Err(error) = protocol.receive(message) {
                        self.error = Some(error.into());
                    }
                }
                Ok(None) => return,
                Err(error) => self.fail(error, protocol),
            }
        }
        self.more = true;
    }

    fn receive(&mut self) -> Result<Option<Message>, ExchangeError> {
        let mut bytes = [0; Message::MAX_BYTES];
        let Some(length) = self.call(|exchange| exchange.receive(&mut bytes))? else {
            return Ok(None);
        };
        let bytes = bytes.get(..length).ok_or(ExchangeError::TooLong)?;
        Ok(Some(Message::from_bytes(bytes)?))
    }

    /// Notes why the peer's queue pair cannot be connected with. The peer finds out by itself, from this end's
    /// message; it may have closed the exchange for that reason before this end connects.
    fn check(&mut self, message: &Message) {
        if let (Message::Info(theirs), Some((device, port_num))) = (message, &self.by)
            && let Err(Error::OtherFabric { reason }) =
                device.check_peer(&theirs.conn.endpoint, *port_num)
        {
            self.error = Some(ExchangeError::Unreachable { reason });
        }
    }

    /// Whether the peer's queue pair cannot be connected with. [`error`](Self::error) has the reason.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.error, Some(ExchangeError::Unreachable { .. }))
    }

    /// The link waits no longer for the peer, which has not responded.
    pub fn give_up(&mut self) {
        if self.error.is_none() {
            let pending = self.call(|exchange| Ok(exchange.pending()));
            let reason = pending.ok().flatten();
            self.error = reason.map(|reason| ExchangeError::Unreachable { reason });
        }
    }

    fn fail(&mut self, error: ExchangeError, protocol: &mut Protocol) {
        protocol.lost(match error {
            ExchangeError::Restarted => PeerLoss::Restarted,
            ExchangeError::Format(_) | ExchangeError::TooLong => PeerLoss::Invalid,
            _ => PeerLoss::Unreachable,
        });
        if !self.is_unreachable() {
            self.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{LocalExchange, pair};
    use super::*;
    use bellwire_core::fault::Fault;
    use bellwire_core::fault::plan::{Limits, Setup};
    use bellwire_core::link::{ConnInfo, Endpoint, RecoveryInfo};

    fn info(epoch: u64) -> Message {
        let endpoint = Endpoint {
            qp_num: 7,
            ..Endpoint::default()
        };
        Message::Info(RecoveryInfo {
            epoch,
            conn: ConnInfo {
                endpoint,
                ..ConnInfo::default()
            },
            exact: true,
            ..RecoveryInfo::default()
        })
    }

    fn end(exchange: LocalExchange) -> (Peer, Protocol) {
        let protocol = Protocol::new(Setup::default(), Limits::default());
        (Peer::new(Box::new(exchange), None), protocol)
    }

    #[test]
    fn what_makes_no_sense_ends_it() {
        let messages = [
            b"bellwire, or so".to_vec(),
            vec![],
            vec![0; Message::MAX_BYTES],
            vec![0; Message::MAX_BYTES + 1],
            info(u64::MAX).to_bytes().to_vec(),
        ];
        for message in messages {
            let (mut there, b) = pair();
            let (mut b, mut protocol) = end(b);
            there.send(&message).unwrap();
            there.send(&info(1).to_bytes()).unwrap();
            b.receive_all(&mut protocol);
            assert!(protocol.peer_gone());
            assert_eq!(protocol.peer_fault(), Some(Fault::PeerLost));
            assert!(b.error().is_some());
        }
    }

    /// A peer that never stops talking, so that nothing else would be done.
    struct Talks {
        left: usize,
    }

    impl Exchange for Talks {
        fn send(&mut self, _message: &[u8]) -> Result<(), ExchangeError> {
            Ok(())
        }

        fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
            let message = info(1).to_bytes();
            self.left = self.left.checked_sub(1).ok_or(ExchangeError::Closed)?;
            into[..message.len()].copy_from_slice(&message);
            Ok(Some(message.len()))
        }
    }

    /// A link handles so many messages of its peer in a poll; the next poll goes on, and the other links have their polls.
    #[test]
    fn a_peer_that_talks_has_its_share_of_a_poll() {
        let talks = Talks { left: 3 * AT_ONCE };
        let mut protocol = Protocol::new(Setup::default(), Limits::default());
        let mut talker = Peer::new(Box::new(talks), None);
        let (mut there, here) = pair();
        let (mut honest, mut of_honest) = end(here);
        let mut polls = 0;
        while !protocol.peer_gone() {
            talker.receive_all(&mut protocol);
            polls += 1;
            there.send(&info(polls).to_bytes()).unwrap();
            honest.receive_all(&mut of_honest);
            assert_eq!(talker.has_more(), !protocol.peer_gone());
            assert!(!honest.has_more() && honest.error().is_none());
        }
        // The last finds that the peer is gone.
        assert_eq!(polls, 4);
        there.send(&Message::Closing.to_bytes()).unwrap();
        honest.receive_all(&mut of_honest);
        assert_eq!(of_honest.peer_fault(), Some(Fault::PeerClosed));
    }

    /// When a peer has closed its end and is gone, its last message is still received, whether this end
    /// sends or receives first.
    #[test]
    fn the_last_word_counts() {
        for speaks in [false, true] {
            let (mut there, b) = pair();
            let (mut b, mut protocol) = end(b);
            there.send(&Message::Closing.to_bytes()).unwrap();
            drop(there);
            match speaks {
                true => b.send(&info(1), &mut protocol),
                false => b.receive_all(&mut protocol),
            }
            assert_eq!(protocol.peer_fault(), Some(Fault::PeerClosed), "{speaks}");
            assert!(b.error().is_none());
        }
        let (there, b) = pair();
        let (mut b, mut protocol) = end(b);
        drop(there);
        b.receive_all(&mut protocol);
        assert_eq!(protocol.peer_fault(), Some(Fault::PeerLost));
    }
}
