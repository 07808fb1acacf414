//! What a channel knows of an id, and what becomes of it when a message comes or a time is over: the
//! states of the InfiniBand CM (IBTA 12.9), without its retries, for no message gets lost here.

use super::super::{EventKind, Peer, PortSpace, PrivateData, UdPeer};
use super::id::Id;
use super::message::{Kind, Message};
use super::params::Params;
use super::socket::{self, Heard};
use crate::device::Device;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How long a peer has for a first sign of life. Whoever looks at its channel gives one.
const ANSWER: Duration = Duration::from_secs(5);

/// How long the program of a peer that lives has for its answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long whoever has connected has to say what it wants.
const GREETING: Duration = Duration::from_secs(1);

/// For how long a queue pair is not to be used again. There are no packets that could still come.
const TIMEWAIT: Duration = Duration::from_millis(50);

/// After which time to try again to reach a peer at which too many wait.
pub(super) const AGAIN: Duration = Duration::from_millis(10);

/// Of a REJ message (IBTA 12.6.7.2), as the events' status.
pub(super) const NO_SERVICE: i32 = 8;
const TIMED_OUT: i32 = 4;
pub(super) const BY_PROGRAM: u16 = 28;

/// Of a SIDR_REP message (IBTA 12.11.2).
pub(super) const SIDR_NO_SERVICE: i32 = 1;
pub(super) const SIDR_REJECTED: u16 = 2;

/// Where an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    New,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// At the peer too many wait. Until then it is tried again.
    Knocking(Instant),
    /// A request was sent: of a connection, or of a lookup.
    Asked,
    /// The peer has accepted.
    Answered,
    /// Somebody has connected, and not said what it wants.
    Greeting,
    /// A request has come.
    Requested,
    /// We have accepted.
    Accepted,
    Established,
    /// We have ended it, and the peer has not yet.
    Ending,
    Timewait,
    /// Nothing comes any more.
    Ended,
}

/// An id.
#[derive(Debug)]
pub(super) struct Entry {
    /// The program's; nobody's while its request has not been got.
    pub handle: Weak<Id>,
    pub space: PortSpace,
    pub stage: Stage,
    /// What is listened at, or leads to the peer.
    pub socket: Option<OwnedFd>,
    pub local: Option<Peer>,
    pub peer: Option<Peer>,
    /// What we have asked for.
    pub ours: Option<Params>,
    /// What the peer has said.
    pub theirs: Option<Params>,
    /// Of an id that knocks: what it wants to say.
    pub request: Option<Box<Message>>,
    /// When something becomes of it although nothing comes.
    pub deadline: Option<Instant>,
    /// The peer has said that its program may think.
    patient: bool,
    pub groups: Vec<SocketAddr>,
    /// Whose request it is, until that has been got.
    pub listener: Option<u64>,
    /// Of a listener: how many requests may wait to be got, and how many do.
    pub backlog: u32,
    pub waiting: u32,
    pub ack_timeout: Option<u8>,
}

/// What becomes of an id.
#[derive(Debug)]
pub(super) enum Outcome {
    Nothing,
    Event(EventKind),
    /// Its request has come, to be told by its listener.
    Request(Box<Message>),
    /// It was never anybody's, and is to go.
    Forget,
}

impl Entry {
    pub fn new(space: PortSpace) -> Self {
        Self {
            handle: Weak::new(),
            space,
            stage: Stage::New,
            socket: None,
            local: None,
            peer: None,
            ours: None,
            theirs: None,
            request: None,
            deadline: None,
            patient: false,
            groups: Vec::new(),
            listener: None,
            backlog: 0,
            waiting: 0,
            ack_timeout: None,
        }
    }

    /// Of somebody who has connected to a listener.
    pub fn greeting(&self, listener: u64, socket: OwnedFd) -> Self {
        Self {
            stage: Stage::Greeting,
            socket: Some(socket),
            local: self.local.clone(),
            deadline: Some(Instant::now() + GREETING),
            listener: Some(listener),
            ack_timeout: self.ack_timeout,
            ..Self::new(self.space)
        }
    }

    /// Says something to the peer, if it is there.
    pub fn say(&self, message: &Message) {
        if let Some(socket) = &self.socket {
            socket::say(socket, message);
        }
    }

    /// Goes on to a stage in which the peer has to answer.
    pub fn await_answer(&mut self, stage: Stage) {
        self.stage = stage;
        self.patient = false;
        self.deadline = Some(Instant::now() + ANSWER);
    }

    /// Goes on to a stage that has no end.
    pub fn settle(&mut self, stage: Stage) {
        self.stage = stage;
        self.deadline = None;
    }

    /// Ends it, before it was a connection.
    pub fn end(&mut self, event: EventKind) -> Outcome {
        self.settle(Stage::Ended);
        self.socket = None;
        Outcome::Event(event)
    }

    fn disconnected(&mut self) -> Outcome {
        self.socket = None;
        self.stage = Stage::Timewait;
        self.deadline = Some(Instant::now() + TIMEWAIT);
        Outcome::Event(EventKind::Disconnected)
    }

    /// Ends it because of what the peer did, or did not do.
    pub fn refused(&mut self, reason: i32, private_data: Vec<u8>) -> Outcome {
        let event = match self.space.is_datagram() {
            // As rdma_cm has it.
            true => EventKind::Unreachable { status: reason },
            false => EventKind::Rejected {
                reason,
                private_data,
            },
        };
        self.end(event)
    }

    /// The peer has gone without a word.
    fn left(&mut self) -> Outcome {
        match self.stage {
            Stage::Greeting => Outcome::Forget,
            Stage::Requested => self.refused(TIMED_OUT, Vec::new()),
            Stage::Established | Stage::Ending => self.disconnected(),
            // The system says so for a program that ended.
            _ if self.space.is_datagram() => self.refused(SIDR_REJECTED.into(), Vec::new()),
            _ => self.refused(BY_PROGRAM.into(), Vec::new()),
        }
    }

    /// The peer makes no sense.
    fn garbled(&mut self) -> Outcome {
        match self.stage {
            Stage::Asked | Stage::Answered | Stage::Requested | Stage::Accepted => {
                let status = -libc::EPROTO;
                self.end(EventKind::ConnectError { status })
            }
            _ => self.left(),
        }
    }

    /// What becomes of it by what there is to hear.
    pub fn heard(&mut self, heard: Heard, device: &Device) -> Outcome {
        let message = match heard {
            Heard::Silence => return Outcome::Nothing,
            Heard::End => return self.left(),
            Heard::Garbage => return self.garbled(),
            Heard::Message(message) => message,
        };
        let datagram = self.space.is_datagram();
        match (self.stage, message.kind) {
            (Stage::Greeting, Kind::Req) if !datagram => self.requested(message),
            (Stage::Greeting, Kind::SidrReq) if datagram => self.requested(message),
            (Stage::Asked | Stage::Accepted, Kind::Mra) if !self.patient => {
                self.patient = true;
                self.deadline = Some(Instant::now() + PATIENCE);
                Outcome::Nothing
            }
            (Stage::Asked, Kind::Rep) if !datagram => {
                self.settle(Stage::Answered);
                self.theirs = Some(message.params);
                self.say(&Message::new(Kind::Mra));
                let private = (message.private).received(PrivateData::Accept, self.space);
                Outcome::Event(EventKind::ConnectResponse {
                    conn: message.params.told(private),
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
                self.refused(message.status.into(), Vec::new())
            }
            (Stage::Asked | Stage::Answered | Stage::Accepted, Kind::Rej) if !datagram => {
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
            // They have crossed ours.
            (Stage::Ending, Kind::Mra | Kind::Rtu) => Outcome::Nothing,
            _ => self.garbled(),
        }
    }

    fn requested(&mut self, message: Box<Message>) -> Outcome {
        self.settle(Stage::Requested);
        self.theirs = Some(message.params);
        self.peer.clone_from(&message.source);
        if let Some(Peer::Addr(target)) = &message.target {
            self.local = Some(Peer::Addr(*target));
        }
        self.say(&Message::new(Kind::Mra));
        Outcome::Request(message)
    }

    /// What becomes of it because its time is over.
    pub fn expired(&mut self) -> Outcome {
        match self.stage {
            Stage::Timewait => {
                self.settle(Stage::Ended);
                Outcome::Event(EventKind::TimewaitExit)
            }
            Stage::Ending => self.disconnected(),
            Stage::Greeting => Outcome::Forget,
            Stage::Knocking(_) | Stage::Asked | Stage::Accepted => {
                let status = -libc::ETIMEDOUT;
                self.end(EventKind::Unreachable { status })
            }
            _ => {
                self.deadline = None;
                Outcome::Nothing
            }
        }
    }

    /// Begins to ask the peer, from now until its time is over.
    pub fn knock(&mut self, message: Message) {
        self.request = Some(Box::new(message));
        let now = Instant::now();
        self.stage = Stage::Knocking(now + ANSWER);
        self.deadline = Some(now);
    }
}
