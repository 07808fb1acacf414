//! One link of a listener: what it has said, and what is known of its peer.

use super::inbox::Inbox;
use super::private_data::{PrivateData, Refusal};
use crate::connect::cm::soft::PeerProcess;
use crate::connect::cm::{ConnParam, EventKind, Id};
use crate::connect::{Message, RecoveryInfo};
use bellwire_core::fault::{Fault, FaultCode};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// A link of this end, and what is known of its peer.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The listener's number.
    pub listener: u64,
    /// The last Info of our link.
    pub ours: Option<RecoveryInfo>,
    pub ready: Option<u64>,
    /// Messages for our link.
    pub inbox: Inbox,
    /// The request or connection, and the epoch that the peer requested.
    pub id: Option<(Id, u64)>,
    /// The address of the last id, by which its events find this session.
    pub address: Option<usize>,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The process that the peer is in, where its end can be seen.
    pub process: Option<Arc<PeerProcess>>,
    pub answered: bool,
    /// The id is connected.
    pub established: bool,
    /// The peer is gone: no messages follow.
    pub gone: bool,
    /// Our link has closed: requests for it are refused.
    pub closed: bool,
    /// Why it was given up, if it was.
    pub why: Option<FaultCode>,
    /// It was not connected in time.
    pub late: bool,
    /// When the connection was lost, while there is none.
    pub lost: Option<Instant>,
    /// Wakes a program that sleeps until the next message.
    pub waker: Option<Waker>,
}

impl Session {
    /// Why it was given up, if it was.
    pub fn given_up(&self) -> Option<FaultCode> {
        let late = Fault::Errno(libc::ETIMEDOUT).without_circumstances();
        self.why.or(self.late.then_some(late))
    }

    /// Whether this is its id.
    pub fn has(&self, id: &Id) -> bool {
        self.id.as_ref().is_some_and(|(ours, _)| ours == id)
    }

    /// Whether the peer can still ask for the next connection, if it has none.
    pub fn is_over(&self) -> bool {
        let process = self.process.as_ref();
        self.gone || self.id.is_none() && process.is_some_and(|process| process.is_over())
    }

    /// Responds to the pending request, if there is something to say.
    pub fn answer(&mut self) {
        let (Some((id, asked)), Some(info), false) = (&self.id, self.ours, self.answered) else {
            return;
        };
        let ready = self.ready == Some(info.epoch) && info.epoch == *asked;
        // Without being ready: only a peer whose epoch is behind has to know at once.
        if !ready && info.epoch <= *asked {
            return;
        }
        let said = PrivateData {
            session: self.listener,
            info,
            ready,
            again: false,
        };
        let param = ConnParam {
            private_data: said.to_bytes(),
            ..ConnParam::default()
        };
        self.answered = true;
        if id.accept_alone(info.conn.endpoint.qp_num, &param).is_err() {
            self.lose();
        }
    }

    /// Wakes a sleeping program for a message or a deadline.
    pub fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    pub fn lose(&mut self) {
        self.id = None;
        self.answered = false;
        self.established = false;
        self.lost = Some(Instant::now());
    }

    pub fn hear(&mut self, event: EventKind) {
        match event {
            EventKind::Established => {
                self.established = true;
                if let Some((_, epoch)) = self.id {
                    self.inbox.put(Message::Ready { epoch });
                }
            }
            // A peer that wants to connect again requests that before it closes the connection.
            EventKind::Disconnected if self.established => {
                self.id = None;
                self.gone = true;
            }
            // The neighbour has another hardware address (Linux 6.0 and later). The connection remains: whether its
            // packets still arrive, the queue pair's retries find out.
            EventKind::Unreachable { .. } if self.established => {}
            EventKind::Disconnected
            | EventKind::Rejected { .. }
            | EventKind::Unreachable { .. }
            | EventKind::ConnectError { .. }
            | EventKind::DeviceRemoval => self.lose(),
            _ => {}
        }
        self.wake();
    }

    pub fn say(&mut self, message: Message) {
        match message {
            Message::Info(info) => {
                self.ours = Some(info);
                self.ready = None;
                if self.answered {
                    // The response is out of date: the peer has to request again.
                    self.lose();
                }
            }
            Message::Ready { epoch } => self.ready = Some(epoch),
            Message::Closing => return self.close(None),
            Message::GaveUp(why) => return self.close(Some(why)),
        }
        self.answer();
    }

    fn close(&mut self, why: Option<FaultCode>) {
        self.closed = true;
        self.why = why;
        if let Some((id, _)) = self.id.take()
            && !self.answered
        {
            let listener = self.listener;
            let _gone = id.reject(&Refusal { listener, why }.to_bytes());
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::connect::cm::{EventChannel, PortSpace};

    /// Linux reports it when the neighbour's hardware address changes (`cma_netevent_callback`).
    #[test]
    fn a_connection_survives_a_neighbour_with_another_address() {
        let channel = EventChannel::open("soft").unwrap();
        let mut session = Session {
            id: Some((channel.id(PortSpace::Tcp).unwrap(), 1)),
            established: true,
            ..Session::default()
        };
        let unreachable = EventKind::Unreachable {
            status: -libc::ETIMEDOUT,
        };
        session.hear(unreachable.clone());
        assert!(session.id.is_some() && session.established && session.lost.is_none());
        // Before it is established, the peer has not responded.
        session.established = false;
        session.hear(unreachable);
        assert!(session.id.is_none() && session.lost.is_some());
    }
}
