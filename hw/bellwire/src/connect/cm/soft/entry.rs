//! The state of an id within its channel, and how messages and timeouts change it: the states of the
//! InfiniBand CM (IBTA 12.9), without its retries, because no message is lost here.

use super::super::share::{Shares, Who};
use super::super::{EventKind, PortSpace, PrivateData, UdPeer};
use super::id::Id;
use super::message::{Kind, Message};
use super::params::Params;
use super::peers::PeerProcess;
use super::remote_qp::RemoteQp;
use super::socket::{self, Heard};
use super::why;
use crate::device::Device;
use crate::memory::fork::Fd;
use bellwire_provider::psn::random_psn;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time limit for a peer's first message. Its channel sends one when it is polled.
const ANSWER: Duration = Duration::from_secs(5);

/// Time limit for the response of the program, once the peer has sent that first message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit for the request of a peer that has connected.
const GREETING: Duration = Duration::from_secs(1);

/// Peers of a listener that have connected and sent no request yet, which the peers' processes share. They take nothing
/// from the backlog.
pub(super) const GREETINGS: usize = 64;

/// How long a queue pair must not be reused. No late packets can arrive here.
const TIMEWAIT: Duration = Duration::from_millis(50);

/// Time after which a peer whose backlog is full is tried again, the first time.
const AGAIN: Duration = Duration::from_millis(10);

/// How long a listener accepts no peers after the system ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Reasons of a REJ message (IBTA 12.6.7.2), as the status of events.
pub(super) const NO_SERVICE: i32 = 8;
const TIMED_OUT: i32 = 4;
const STALE_CONN: u16 = 10;
/// The listener's process has no descriptor or memory left for the connection.
pub(super) const NO_RESOURCES: u16 = 3;
pub(super) const BY_PROGRAM: u16 = 28;
/// Between these managers only: the listener does not accept the connector's user.
pub(super) const FOREIGN: u16 = 0x4001;

/// Statuses of a SIDR_REP message (IBTA 12.11.2).
pub(super) const SIDR_NO_SERVICE: i32 = 1;
pub(super) const SIDR_REJECTED: u16 = 2;
/// As [`NO_RESOURCES`]: no queue pair is available.
pub(super) const SIDR_NO_QP: u16 = 3;

/// State of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    New,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// The peer's backlog is full. The request is tried again until this time.
    Knocking(Instant),
    /// A request was sent: for a connection, or a lookup.
    Asked,
    /// The peer accepted.
    Answered,
    /// A peer has connected its socket, and not sent its request yet.
    Greeting,
    /// A request was received.
    Requested,
    /// This end accepted.
    Accepted,
    Established,
    /// This end has disconnected, and the peer has not yet.
    Ending,
    Timewait,
    /// The final state.
    Ended,
}

/// An id's entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// The program's handle; dangling until its request is taken.
    pub handle: Weak<Id>,
    pub space: PortSpace,
    pub stage: Stage,
    /// The socket that listens, or leads to the peer.
    pub socket: Option<Fd>,
    /// The process of the peer; `None` for this process, or if there is no peer.
    pub process: Option<Arc<PeerProcess>>,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The parameters that this end requested.
    pub ours: Option<Params>,
    /// The parameters that the peer sent.
    pub theirs: Option<Params>,
    /// The peer's queue pair, reserved until it may have another connection.
    pub remote_qp: Option<RemoteQp>,
    /// The program has disconnected, or knows that the connection has ended.
    pub let_go: bool,
    /// The request to send once the peer can be reached.
    pub request: Option<Box<Message>>,
    /// The time of the next timeout.
    pub deadline: Option<Instant>,
    /// The peer has sent MRA: its program may take longer.
    patient: bool,
    pub groups: Vec<SocketAddr>,
    /// The listener that the request is for, until the request is taken.
    pub listener: Option<u64>,
    /// For a listener: how many requests may be waiting, and how many are.
    pub backlog: u32,
    pub waiting: u32,
    /// For a listener: peers that have connected and sent no request yet.
    pub greetings: Shares,
    /// Who has one of those places for this entry.
    pub greets: Option<Who>,
    /// Why the id was refused, in words.
    pub why: Option<String>,
    pub ack_timeout: Option<u8>,
    /// Of the first packet that this end's queue pair sends: an id has one connection.
    pub psn: u32,
    /// The unspecified IPv6 address does not include IPv4.
    pub afonly: bool,
}

/// The result of a change of an id.
#[derive(Debug)]
pub(super) enum Outcome {
    Nothing,
    Event(EventKind),
    /// Its request was received, to be delivered by its listener.
    Request(Box<Message>),
    /// It was never seen by the program, and is removed.
    Forget,
}

impl Entry {
    pub fn new(space: PortSpace) -> Self {
        Self {
            handle: Weak::new(),
            space,
            stage: Stage::New,
            socket: None,
            process: None,
            local: None,
            peer: None,
            ours: None,
            theirs: None,
            remote_qp: None,
            let_go: false,
            request: None,
            deadline: None,
            patient: false,
            groups: Vec::new(),
            listener: None,
            backlog: 0,
            waiting: 0,
            greetings: Shares::default(),
            greets: None,
            why: None,
            ack_timeout: None,
            psn: random_psn(),
            afonly: false,
        }
    }

    /// The entry of the same id that has neither an address nor a peer.
    pub fn afresh(&mut self) -> Self {
        Self {
            handle: self.handle.clone(),
            groups: std::mem::take(&mut self.groups),
            ack_timeout: self.ack_timeout,
            afonly: self.afonly,
            ..Self::new(self.space)
        }
    }

    /// The entry of a peer that has connected to this listener.
    pub fn greeting(&self, listener: u64, socket: Fd, process: Option<Arc<PeerProcess>>) -> Self {
        Self {
            stage: Stage::Greeting,
            socket: Some(socket),
            process,
            local: self.local,
            deadline: Some(Instant::now() + GREETING),
            listener: Some(listener),
            ack_timeout: self.ack_timeout,
            ..Self::new(self.space)
        }
    }

    /// Sends a message to the peer, if there is one.
    pub fn say(&self, message: &Message) {
        if let Some(socket) = &self.socket {
            socket::say(socket, message);
        }
    }

    /// Enters a stage in which the peer has to respond.
    pub fn await_answer(&mut self, stage: Stage) {
        self.stage = stage;
        self.patient = false;
        self.deadline = Some(Instant::now() + ANSWER);
    }

    /// Enters a stage without a timeout.
    pub fn settle(&mut self, stage: Stage) {
        self.stage = stage;
        self.deadline = None;
    }

    /// Ends an id that was not connected.
    pub fn end(&mut self, event: EventKind) -> Outcome {
        self.settle(Stage::Ended);
        self.hang_up();
        self.remote_qp = None;
        Outcome::Event(event)
    }

    /// Closes the socket to the peer.
    pub fn hang_up(&mut self) {
        self.socket = None;
        self.process = None;
    }

    /// The peer's process has ended, though other processes may hold its end of the socket.
    pub fn peer_ended(&mut self, device: &Device, scope: &str) -> Outcome {
        let heard = self.socket.as_ref().map(socket::hear);
        match heard {
            // Messages that it sent before come first.
            Some(heard @ Heard::Message(_)) => self.heard(heard, device, scope),
            Some(_) => {
                self.process = None;
                self.left()
            }
            None => {
                self.process = None;
                Outcome::Nothing
            }
        }
    }

    fn disconnected(&mut self) -> Outcome {
        self.hang_up();
        self.stage = Stage::Timewait;
        self.deadline = Some(Instant::now() + TIMEWAIT);
        Outcome::Event(EventKind::Disconnected)
    }

    /// Ends the id because of what the peer did, or failed to do.
    pub fn refused(&mut self, reason: i32, private_data: Vec<u8>) -> Outcome {
        let event = match self.space.is_datagram() {
            // As in rdma_cm.
            true => EventKind::Unreachable { status: reason },
            false => EventKind::Rejected {
                reason,
                private_data,
            },
        };
        self.end(event)
    }

    /// The peer closed its socket without a message.
    fn left(&mut self) -> Outcome {
        match self.stage {
            Stage::Greeting => Outcome::Forget,
            // As on Linux the request is still delivered: a lookup cannot be withdrawn.
            Stage::Requested if self.space.is_datagram() => {
                self.socket = None;
                Outcome::Nothing
            }
            Stage::Requested => self.refused(TIMED_OUT, Vec::new()),
            Stage::Established | Stage::Ending => self.disconnected(),
            // Linux reports this for a program that ended.
            _ if self.space.is_datagram() => self.refused(SIDR_REJECTED.into(), Vec::new()),
            _ => self.refused(BY_PROGRAM.into(), Vec::new()),
        }
    }

    /// The peer sent an invalid message.
    fn garbled(&mut self) -> Outcome {
        match self.stage {
            Stage::Asked | Stage::Answered | Stage::Requested | Stage::Accepted => {
                let status = -libc::EPROTO;
                self.end(EventKind::ConnectError { status })
            }
            _ => self.left(),
        }
    }

    /// Handles the messages that the peer sent.
    pub fn heard(&mut self, heard: Heard, device: &Device, scope: &str) -> Outcome {
        let message = match heard {
            Heard::Silence => return Outcome::Nothing,
            Heard::End => return self.left(),
            Heard::Garbage => return self.garbled(),
            Heard::Message(message) => message,
        };
        let datagram = self.space.is_datagram();
        match (self.stage, message.kind) {
            (Stage::Greeting, Kind::Req) if !datagram => match self.meet(&message, scope) {
                true => self.requested(message),
                false => Outcome::Forget,
            },
            (Stage::Greeting, Kind::SidrReq) if datagram => self.requested(message),
            (Stage::Asked | Stage::Accepted, Kind::Mra) if !self.patient => {
                self.patient = true;
                self.deadline = Some(Instant::now() + PATIENCE);
                Outcome::Nothing
            }
            (Stage::Asked, Kind::Rep) if !datagram => {
                if !self.meet(&message, scope) {
                    return self.refused(STALE_CONN.into(), Vec::new());
                }
                self.settle(Stage::Answered);
                self.theirs = Some(message.params);
                self.say(&Message::new(Kind::Mra));
                let private = (message.private).received(PrivateData::Accept, self.space);
                Outcome::Event(EventKind::ConnectResponse {
                    conn: message.params.as_received(private),
                })
            }
            (Stage::Asked, Kind::SidrRep) if datagram && message.status == 0 => {
                let params = message.params;
                let peer = UdPeer {
                    private_data: (message.private).received(PrivateData::Accept, self.space),
                    ah_attr: device.way_to(&params.endpoint, 1, None),
                    qp_num: params.endpoint.qp_num,
                    qkey: params.qkey,
                };
                self.end(EventKind::Found { peer })
            }
            (Stage::Asked, Kind::SidrRep) if datagram => {
                if message.status == SIDR_NO_QP {
                    self.why = Some(why::NO_RESOURCES.to_owned());
                }
                self.refused(message.status.into(), Vec::new())
            }
            (Stage::Asked, Kind::Rej) if message.status == FOREIGN => {
                self.why = Some(why::foreign_connector(scope));
                let status = -libc::EACCES;
                self.end(EventKind::ConnectError { status })
            }
            (Stage::Asked | Stage::Answered | Stage::Accepted, Kind::Rej) if !datagram => {
                if message.status == NO_RESOURCES {
                    self.why = Some(why::NO_RESOURCES.to_owned());
                }
                let private = (message.private).received(PrivateData::Reject, self.space);
                self.refused(message.status.into(), private)
            }
            (Stage::Accepted, Kind::Rtu) => {
                self.settle(Stage::Established);
                Outcome::Event(EventKind::Established)
            }
            (Stage::Answered | Stage::Established, Kind::Dreq) => {
                self.say(&Message::new(Kind::Drep));
                self.disconnected()
            }
            (Stage::Ending, Kind::Drep | Kind::Dreq) => {
                self.say(&Message::new(Kind::Drep));
                self.disconnected()
            }
            // They crossed this end's message.
            (Stage::Ending, Kind::Mra | Kind::Rtu) => Outcome::Nothing,
            _ => self.garbled(),
        }
    }

    /// Reserves the peer's queue pair for this connection. Returns `false` if it has another connection;
    /// the peer is sent a rejection then.
    fn meet(&mut self, message: &Message, scope: &str) -> bool {
        let process = self.process.as_deref();
        self.remote_qp = RemoteQp::new(scope, process, &message.params.endpoint);
        if self.remote_qp.is_none() {
            self.say(&Message {
                status: STALE_CONN,
                ..Message::new(Kind::Rej)
            });
        }
        self.remote_qp.is_some()
    }

    fn requested(&mut self, message: Box<Message>) -> Outcome {
        self.settle(Stage::Requested);
        self.theirs = Some(message.params);
        self.peer = message.source;
        self.local = message.target.or(self.local);
        self.say(&Message::new(Kind::Mra));
        Outcome::Request(message)
    }

    /// Handles a timeout.
    pub fn expired(&mut self) -> Outcome {
        match self.stage {
            Stage::Timewait => {
                self.settle(Stage::Ended);
                self.forget_peer();
                Outcome::Event(EventKind::TimewaitExit)
            }
            Stage::Ending => self.disconnected(),
            Stage::Greeting => Outcome::Forget,
            Stage::Knocking(_) | Stage::Asked | Stage::Accepted => {
                self.why = self.why_silent().map(str::to_owned);
                let status = -libc::ETIMEDOUT;
                self.end(EventKind::Unreachable { status })
            }
            _ => {
                self.deadline = None;
                Outcome::Nothing
            }
        }
    }

    /// Why the peer has not responded, as far as this end can tell.
    pub fn why_silent(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Knocking(_) => Some(why::CROWDED),
            // Its channel responds to the request before its program does.
            Stage::Asked if !self.patient => Some(why::UNREAD),
            _ => None,
        }
    }

    /// The message that turns a peer of this listener away for want of descriptors or memory.
    pub fn no_resources(&self) -> Message {
        let (kind, status) = match self.space.is_datagram() {
            true => (Kind::SidrRep, SIDR_NO_QP),
            false => (Kind::Rej, NO_RESOURCES),
        };
        Message {
            status,
            ..Message::new(kind)
        }
    }

    /// Frees the peer's queue pair for another connection, once this one is over and the program knows
    /// it.
    pub fn forget_peer(&mut self) {
        if self.let_go && self.stage == Stage::Ended {
            self.remote_qp = None;
        }
    }

    /// Makes a listener accept no peers for a while.
    pub fn pause(&mut self) {
        self.deadline = Some(Instant::now() + PAUSE);
    }

    /// When to try to connect again, if the peer's backlog is full now. Of very many, those that have waited for
    /// longer try less often, and no two at the same time: the peer needs the processor to accept them.
    pub fn next_knock(&self, key: u64) -> Instant {
        let now = Instant::now();
        let Stage::Knocking(until) = self.stage else {
            return now + AGAIN;
        };
        let waited = ANSWER.saturating_sub(until.saturating_duration_since(now));
        let pause = AGAIN.max(waited / 2);
        (now + pause + pause * (key % 64) as u32 / 64).min(until)
    }

    /// Starts to send a request to the peer, until its time limit.
    pub fn knock(&mut self, message: Box<Message>) {
        self.request = Some(message);
        let now = Instant::now();
        self.stage = Stage::Knocking(now + ANSWER);
        self.deadline = Some(now);
    }
}
