//! What the peer was sent, and what it sent.

use super::message::{Message, RecoveryInfo};
use super::wire::FormatError;
use crate::fault::outcome::Consumed;
use crate::fault::plan::StepResult;
use crate::fault::{Fault, FaultCode};

/// How far a peer's epoch may be ahead of ours: the most often that it can have failed while this end did
/// not receive.
const MAX_AHEAD: u64 = 1 << 20;

/// Why a message of the peer ends the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// Another process replies in the peer's place.
    Restarted,
    /// The message is invalid.
    Format(FormatError),
}

/// Why the peer will send nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Gone {
    /// It has closed its end.
    Closed,
    /// It has given up, for this reason.
    GaveUp(FaultCode),
    /// It cannot be reached.
    Lost,
    /// Its messages are invalid.
    Invalid,
    /// Another process replies in its place.
    Restarted,
}

impl Gone {
    const fn fault(self) -> Fault {
        match self {
            Self::Closed => Fault::PeerClosed,
            Self::GaveUp(why) => Fault::PeerGaveUp(why),
            Self::Lost | Self::Invalid => Fault::PeerLost,
            Self::Restarted => Fault::PeerRestarted,
        }
    }

    /// Whether a message can still reach the peer, or the process in its place, and tells it something.
    pub const fn listens(self) -> bool {
        matches!(self, Self::Invalid | Self::Restarted)
    }

    /// The result of a step that waits for the peer.
    pub const fn result(self) -> StepResult {
        match self {
            Self::Closed => StepResult::PeerClosed,
            Self::GaveUp(why) => StepResult::PeerGaveUp(why),
            Self::Lost | Self::Invalid => StepResult::PeerLost,
            Self::Restarted => StepResult::PeerRestarted,
        }
    }
}

/// The peer, as far as its messages show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// The epoch that both ends connect for, or are connected in.
    epoch: u64,
    /// The last epoch for which our Info was sent.
    info_sent: u64,
    /// The peer's Info of this epoch.
    info: Option<RecoveryInfo>,
    /// The last Info received.
    last: Option<RecoveryInfo>,
    ready_sent: bool,
    /// The peer is ready in this epoch.
    pub ready: bool,
    /// How many of our requests on connection `sent_on` consumed a receive, and whether that is exact, if an
    /// Info has said so.
    consumed: Option<(u64, bool)>,
    /// The connection that the requests are on whose outcome is not settled; zero if there are none.
    sent_on: u64,
    pub gone: Option<Gone>,
    /// The peer has left the epoch, or is gone, since [`fault`](Self::fault) was last called.
    news: bool,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            epoch: 1,
            info_sent: 0,
            info: None,
            last: None,
            ready_sent: false,
            ready: false,
            consumed: None,
            sent_on: 0,
            gone: None,
            news: false,
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The fault that its messages since the last call amount to.
    pub fn fault(&mut self) -> Option<Fault> {
        core::mem::take(&mut self.news).then(|| self.gone.map_or(Fault::PeerRecovery, Gone::fault))
    }

    /// How many of our unsettled requests consumed a receive.
    pub fn consumed(&self) -> Consumed {
        match self.consumed {
            Some((count, true)) => Consumed::Exactly(count),
            Some((count, false)) => Consumed::AtLeast(count),
            None => Consumed::Unknown,
        }
    }

    /// The connection that our unsettled requests are on.
    pub fn sent_on(&self) -> u64 {
        self.sent_on
    }

    /// Our requests are on this connection from here on; counts for earlier ones are ignored.
    pub fn sends_on(&mut self, connection: u64) {
        self.sent_on = connection;
        self.consumed = None;
    }

    /// The queue pair that the peer was sent is gone: the next connection has a new epoch.
    pub fn renew(&mut self) {
        if self.info_sent >= self.epoch {
            self.seek(self.info_sent + 1);
        }
    }

    fn seek(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.info = None;
        self.ready_sent = false;
        self.ready = false;
    }

    /// Whether our Info of this epoch is still to be sent.
    pub fn needs_info(&self) -> bool {
        self.info_sent < self.epoch
    }

    /// Our Info of this epoch is sent.
    pub fn info_sent(&mut self) {
        self.info_sent = self.epoch;
    }

    /// The peer's Info of this epoch.
    pub fn info(&self) -> Option<RecoveryInfo> {
        self.info
    }

    /// Whether our Ready of this epoch is still to be sent; it counts as sent from here on.
    pub fn needs_ready(&mut self) -> bool {
        !core::mem::replace(&mut self.ready_sent, true)
    }

    /// No more messages will come.
    pub fn lost(&mut self, why: Gone) {
        if self.gone.is_none() {
            self.gone = Some(why);
            self.news = true;
        }
    }

    /// Takes in a message.
    pub fn receive(&mut self, message: Message) -> Result<(), PeerError> {
        if self.gone.is_some() {
            return Ok(());
        }
        match message {
            Message::Info(info) => return self.receive_info(info),
            Message::Ready { epoch } => self.ready |= epoch == self.epoch && self.info.is_some(),
            Message::Closing => self.lost(Gone::Closed),
            Message::GaveUp(why) => self.lost(Gone::GaveUp(why)),
        }
        Ok(())
    }

    fn receive_info(&mut self, info: RecoveryInfo) -> Result<(), PeerError> {
        if info.epoch > self.epoch.saturating_add(MAX_AHEAD) {
            self.lost(Gone::Invalid);
            return Err(PeerError::Format(FormatError::Field {
                field: "epoch",
                given: info.epoch,
            }));
        }
        // The epochs of an end only grow, and it sends one Info for each. An end that starts over is
        // another process.
        let starts_over = |last: RecoveryInfo| {
            info.epoch < last.epoch || info.epoch == last.epoch && info != last
        };
        if self.last.is_some_and(starts_over) {
            self.lost(Gone::Restarted);
            return Err(PeerError::Restarted);
        }
        self.last = Some(info);
        // Also in an Info of an epoch that was left: it counts our requests. The first count is final.
        if info.connection == self.sent_on && self.sent_on != 0 {
            self.consumed.get_or_insert((info.consumed, info.exact));
        }
        if info.epoch > self.epoch {
            self.seek(info.epoch);
            self.news = true;
        }
        if info.epoch == self.epoch {
            self.info.get_or_insert(info);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::{ConnInfo, Endpoint};
    use super::*;

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

    /// Sends the Info of `from` to `to`, unless that was done.
    fn exchange(from: &mut Peer, to: &mut Peer) {
        if from.needs_info() {
            from.info_sent();
            to.receive(Message::Info(info(from.epoch(), 0, 0))).unwrap();
        }
    }

    /// The end that fails first asks for the next epoch; if both fail at once, both ask for the same one.
    #[test]
    fn a_higher_epoch_wins() {
        let (mut a, mut b) = (Peer::new(), Peer::new());
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        assert_eq!(
            (a.info(), b.info()),
            (Some(info(1, 0, 0)), Some(info(1, 0, 0)))
        );
        assert_eq!((a.fault(), b.fault()), (None, None));
        a.renew();
        assert_eq!(a.epoch(), 2);
        exchange(&mut a, &mut b);
        assert_eq!((b.fault(), b.fault()), (Some(Fault::PeerRecovery), None));
        assert_eq!(b.epoch(), 2);
        b.renew();
        assert_eq!(b.epoch(), 2, "no Info of it was sent yet");
        assert_eq!(b.info(), Some(info(2, 0, 0)));
    }

    /// The first count after the requests' connection applies, whatever epoch it came in.
    #[test]
    fn the_count_is_kept_from_an_epoch_that_was_left() {
        let mut b = Peer::new();
        b.sends_on(3);
        b.seek(5);
        for info in [info(4, 3, 17), info(6, 3, 18), info(7, 4, 0)] {
            b.receive(Message::Info(info)).unwrap();
        }
        assert_eq!(b.fault(), Some(Fault::PeerRecovery));
        assert_eq!((b.epoch(), b.consumed()), (7, Consumed::Exactly(17)));
        b.sends_on(7);
        assert_eq!(b.consumed(), Consumed::Unknown);
    }

    #[test]
    fn an_epoch_far_ahead_ends_it() {
        let mut b = Peer::new();
        let error = b.receive(Message::Info(info(u64::MAX, 0, 0)));
        assert!(matches!(error, Err(PeerError::Format(_))), "{error:?}");
        assert_eq!(b.receive(Message::Info(info(1, 0, 0))), Ok(()));
        assert_eq!((b.gone, b.info()), (Some(Gone::Invalid), None));
    }

    /// An end that starts over is another process, whatever carries its messages.
    #[test]
    fn a_peer_that_begins_anew_was_restarted() {
        let psn = |psn| {
            let mut info = info(1, 0, 0);
            info.conn.endpoint.psn = psn;
            Message::Info(info)
        };
        for first in [psn(1), Message::Info(info(2, 1, 0))] {
            let mut b = Peer::new();
            // A repeated Info changes nothing.
            b.receive(first).unwrap();
            b.receive(first).unwrap();
            b.fault();
            assert_eq!(b.gone, None);
            assert_eq!(b.receive(psn(2)), Err(PeerError::Restarted));
            assert_eq!(b.fault(), Some(Fault::PeerRestarted));
            assert_eq!(b.gone.map(Gone::result), Some(StepResult::PeerRestarted));
        }
    }

    /// A Ready of another epoch, or before an Info, is ignored.
    #[test]
    fn ready_is_of_its_epoch() {
        let mut b = Peer::new();
        let messages = [
            (Message::Ready { epoch: 1 }, false),
            (Message::Info(info(2, 0, 0)), false),
            (Message::Ready { epoch: 1 }, false),
            (Message::Ready { epoch: 2 }, true),
        ];
        for (message, ready) in messages {
            b.receive(message).unwrap();
            assert_eq!(b.ready, ready, "{message:?}");
        }
        b.receive(Message::Closing).unwrap();
        assert_eq!(b.gone, Some(Gone::Closed));
    }
}
