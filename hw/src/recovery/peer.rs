//! What is known of the peer: what it said, and what it was told.

use super::exchange::{Exchange, ExchangeError};
use crate::connect::{Message, RecoveryInfo};
use bellwire_core::fault::Fault;
use bellwire_core::fault::plan::StepResult;
use std::fmt;
use std::os::fd::BorrowedFd;

/// How far ahead of ours a peer's epoch may be: it has failed so many times at the most while we did
/// not listen.
const MAX_AHEAD: u64 = 1 << 20;

/// Messages that are listened to at once.
const AT_ONCE: usize = 64;

/// The peer, as the exchange shows it.
pub(super) struct Peer {
    exchange: Box<dyn Exchange>,
    /// The connection that both look for, or have.
    epoch: u64,
    /// The last epoch that our Info was sent for.
    told: u64,
    /// The peer's Info of this epoch.
    info: Option<RecoveryInfo>,
    told_ready: bool,
    ready: bool,
    /// How many of our requests on `of` consumed a receive: an Info may tell it.
    count: Option<(u64, bool)>,
    of: u64,
    gone: Option<Gone>,
}

/// Why the peer will say nothing any more.
#[derive(Debug)]
pub(super) enum Gone {
    /// It has ended its link.
    Closed,
    /// It cannot be reached.
    Lost(ExchangeError),
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("epoch", &self.epoch)
            .field("told", &self.told)
            .field("info", &self.info)
            .field("told_ready", &self.told_ready)
            .field("ready", &self.ready)
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}

impl Peer {
    pub fn new(exchange: Box<dyn Exchange>) -> Self {
        Self {
            exchange,
            epoch: 1,
            told: 0,
            info: None,
            told_ready: false,
            ready: false,
            count: None,
            of: 0,
            gone: None,
        }
    }

    /// The connection that both look for, or have.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    #[cfg(test)]
    fn gone(&self) -> Option<&Gone> {
        self.gone.as_ref()
    }

    /// What it is to the link that [`listen`](Self::listen) has heard something.
    pub fn says(&self) -> Fault {
        match self.gone {
            None => Fault::Peer,
            Some(Gone::Closed) => Fault::PeerClosed,
            Some(Gone::Lost(_)) => Fault::PeerLost,
        }
    }

    /// What it is to a step that waits for the peer, that it says nothing any more.
    pub fn ends(&self) -> Option<StepResult> {
        match self.gone {
            None => None,
            Some(Gone::Closed) => Some(StepResult::PeerClosed),
            Some(Gone::Lost(_)) => Some(StepResult::PeerLost),
        }
    }

    /// Why it cannot be reached.
    pub fn error(&self) -> Option<&ExchangeError> {
        match self.gone.as_ref()? {
            Gone::Lost(error) => Some(error),
            Gone::Closed => None,
        }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.exchange.fd()
    }

    /// What the peer said of our requests, as far as it has.
    pub fn count(&self) -> Option<(u64, bool)> {
        self.count
    }

    /// The connection that our requests are on.
    pub fn sent_on(&self) -> u64 {
        self.of
    }

    /// Our requests are on this connection from here on; what it says of earlier ones is not asked for
    /// any more.
    pub fn sends_on(&mut self, connection: u64) {
        self.of = connection;
        self.count = None;
    }

    /// What the peer was told of this end's queue pair is not true any more: the next connection is
    /// another.
    pub fn renew(&mut self) {
        if self.told >= self.epoch {
            self.seek(self.told + 1);
        }
    }

    fn seek(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.info = None;
        self.told_ready = false;
        self.ready = false;
    }

    /// Tells the peer of this end, once in an epoch, and gives what it told of itself.
    pub fn exchange(&mut self, ours: impl FnOnce(u64) -> RecoveryInfo) -> Option<RecoveryInfo> {
        if self.told < self.epoch {
            self.told = self.epoch;
            self.say(&Message::Info(ours(self.epoch)));
        }
        self.info
    }

    /// Tells the peer that this end is connected, once in an epoch; whether it is as well.
    pub fn meet(&mut self) -> bool {
        if !self.told_ready {
            self.told_ready = true;
            self.say(&Message::Ready { epoch: self.epoch });
        }
        self.ready
    }

    /// Tells the peer that nothing follows.
    pub fn close(&mut self) {
        if self.gone.is_none() {
            self.say(&Message::Closing);
        }
    }

    fn say(&mut self, message: &Message) {
        if let Err(error) = self.exchange.send(&message.to_bytes()) {
            // What it said before it went can still be heard: that it closes, for one.
            self.hear_all();
            self.gone.get_or_insert(Gone::Lost(error));
        }
    }

    /// Listens to what there is; whether the peer has left the epoch that was looked for, or the
    /// exchange.
    pub fn listen(&mut self) -> bool {
        let (epoch, there) = (self.epoch, self.gone.is_none());
        self.hear_all();
        epoch != self.epoch || there != self.gone.is_none()
    }

    fn hear_all(&mut self) {
        for _ in 0..AT_ONCE {
            if self.gone.is_some() {
                break;
            }
            match self.hear() {
                Ok(Some(message)) => self.take(message),
                Ok(None) => break,
                Err(error) => self.gone = Some(Gone::Lost(error)),
            }
        }
    }

    fn hear(&mut self) -> Result<Option<Message>, ExchangeError> {
        let mut bytes = [0; Message::MAX_BYTES];
        let Some(length) = self.exchange.receive(&mut bytes)? else {
            return Ok(None);
        };
        let bytes = bytes.get(..length).ok_or(ExchangeError::TooLong)?;
        Ok(Some(Message::from_bytes(bytes)?))
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Info(info) => self.take_info(info),
            Message::Ready { epoch } => self.ready |= epoch == self.epoch && self.info.is_some(),
            Message::Closing => self.gone = Some(Gone::Closed),
        }
    }

    fn take_info(&mut self, info: RecoveryInfo) {
        if info.epoch > self.epoch.saturating_add(MAX_AHEAD) {
            let error = crate::connect::FormatError::Field {
                field: "epoch",
                given: info.epoch,
            };
            self.gone = Some(Gone::Lost(error.into()));
            return;
        }
        // Of an epoch that was left as well: it is what became of our requests. The first is final.
        if info.connection == self.of && self.of != 0 {
            self.count.get_or_insert((info.consumed, info.exact));
        }
        if info.epoch > self.epoch {
            self.seek(info.epoch);
        }
        if info.epoch == self.epoch {
            self.info.get_or_insert(info);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{LocalExchange, pair};
    use super::*;
    use crate::connect::ConnInfo;
    use crate::qp::Endpoint;

    fn info(epoch: u64, connection: u64, consumed: u64) -> RecoveryInfo {
        let endpoint = Endpoint {
            qp_num: 7,
            ..Endpoint::default()
        };
        RecoveryInfo {
            epoch,
            conn: ConnInfo {
                endpoint,
                ..ConnInfo::default()
            },
            connection,
            consumed,
            exact: true,
        }
    }

    fn ends() -> (Peer, Peer) {
        let (a, b) = pair();
        (Peer::new(Box::new(a)), Peer::new(Box::new(b)))
    }

    fn say(exchange: &mut LocalExchange, message: Message) {
        exchange.send(&message.to_bytes()).unwrap();
    }

    #[test]
    fn two_ends_meet() {
        let (mut a, mut b) = ends();
        assert_eq!(a.exchange(|epoch| info(epoch, 0, 0)), None);
        assert!(!b.listen());
        assert_eq!(b.exchange(|epoch| info(epoch, 0, 0)), Some(info(1, 0, 0)));
        assert!(!a.listen());
        assert_eq!(a.exchange(|_| unreachable!()), Some(info(1, 0, 0)));
        assert!(!a.meet());
        b.listen();
        assert!(b.meet());
        a.listen();
        assert!(a.meet());
        assert_eq!((a.epoch(), b.epoch()), (1, 1));
    }

    /// Whoever fails first asks for the next epoch; both at once ask for the same.
    #[test]
    fn a_higher_epoch_wins() {
        let (mut a, mut b) = ends();
        a.exchange(|epoch| info(epoch, 0, 0));
        b.exchange(|epoch| info(epoch, 0, 0));
        a.listen();
        b.listen();
        a.renew();
        assert_eq!(a.epoch(), 2);
        a.exchange(|epoch| info(epoch, 0, 0));
        assert!(b.listen());
        assert_eq!(b.epoch(), 2);
        b.renew();
        assert_eq!(b.epoch(), 2, "nothing was told of it yet");
        assert_eq!(b.exchange(|epoch| info(epoch, 0, 0)), Some(info(2, 0, 0)));
    }

    /// The first count after the requests' connection is theirs, whatever epoch it came in.
    #[test]
    fn the_count_is_kept_from_an_epoch_that_was_left() {
        let (mut there, b) = pair();
        let mut b = Peer::new(Box::new(b));
        b.sends_on(3);
        b.seek(5);
        say(&mut there, Message::Info(info(4, 3, 17)));
        say(&mut there, Message::Info(info(6, 3, 18)));
        say(&mut there, Message::Info(info(7, 4, 0)));
        assert!(b.listen());
        assert_eq!((b.epoch(), b.count()), (7, Some((17, true))));
        b.sends_on(7);
        assert_eq!(b.count(), None);
    }

    #[test]
    fn what_makes_no_sense_ends_it() {
        let messages = [
            b"bellwire, or so".to_vec(),
            vec![],
            vec![0; Message::MAX_BYTES],
            vec![0; Message::MAX_BYTES + 1],
            Message::Info(info(u64::MAX, 0, 0)).to_bytes(),
        ];
        for message in messages {
            let (mut there, b) = pair();
            let mut b = Peer::new(Box::new(b));
            there.send(&message).unwrap();
            say(&mut there, Message::Info(info(1, 0, 0)));
            assert!(b.listen());
            assert!(matches!(b.gone(), Some(Gone::Lost(_))), "{:?}", b.gone());
            assert_eq!(b.info, None);
        }
    }

    /// Ready of another epoch, or before an Info, is none.
    #[test]
    fn ready_is_of_its_epoch() {
        let (mut there, b) = pair();
        let mut b = Peer::new(Box::new(b));
        say(&mut there, Message::Ready { epoch: 1 });
        b.listen();
        assert!(!b.meet());
        say(&mut there, Message::Info(info(2, 0, 0)));
        say(&mut there, Message::Ready { epoch: 1 });
        b.listen();
        assert!(!b.meet());
        say(&mut there, Message::Ready { epoch: 2 });
        b.listen();
        assert!(b.meet());
        say(&mut there, Message::Closing);
        assert!(b.listen());
        assert!(matches!(b.gone(), Some(Gone::Closed)));
    }
    /// A peer that has closed its end and is gone: what it said last is heard, whichever way its end is
    /// met first.
    #[test]
    fn the_last_word_counts() {
        for speaks in [false, true] {
            let (mut there, b) = pair();
            let mut b = Peer::new(Box::new(b));
            say(&mut there, Message::Closing);
            drop(there);
            if speaks {
                b.exchange(|epoch| info(epoch, 0, 0));
            } else {
                assert!(b.listen());
            }
            assert_eq!(b.says(), Fault::PeerClosed, "{speaks}");
            assert_eq!(b.ends(), Some(StepResult::PeerClosed));
        }
        let (there, b) = pair();
        let mut b = Peer::new(Box::new(b));
        drop(there);
        assert!(b.listen());
        assert_eq!(b.says(), Fault::PeerLost);
        assert_eq!(b.ends(), Some(StepResult::PeerLost));
    }
}
