//! What the communication manager tells.

use super::id::Id;
use super::param::ConnParam;
use crate::fault::{CmEvent, Fault};
use bellwire_core::qp::AhAttr;

/// What the peer of a connection said of itself (`rdma_conn_param`, in an event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conn {
    /// Its private data, as it came: perhaps with zeroes behind what the peer gave, and not to be
    /// trusted. With it what the peer has and wants; `responder_resources` and `initiator_depth` are
    /// from this end's side: what to answer [`Id::accept`] with.
    pub param: ConnParam,
    /// Its queue pair.
    pub qp_num: u32,
    /// Whether that receives from a shared receive queue.
    pub srq: bool,
}

/// A peer that datagrams can be sent to (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdPeer {
    /// Its private data, as it came: perhaps with zeroes behind what the peer gave, and not to be
    /// trusted.
    pub private_data: Vec<u8>,
    /// The way to it, for [`Pd::create_ah`](crate::Pd::create_ah).
    pub ah_attr: AhAttr,
    /// Its queue pair.
    pub qp_num: u32,
    /// The key that requests have to name.
    pub qkey: u32,
}

/// A multicast group (`rdma_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// The way to it, for [`Pd::create_ah`](crate::Pd::create_ah). Its destination GID is the group's,
    /// and its destination LID too, for [`Qp::attach_mcast`](crate::Qp::attach_mcast).
    pub ah_attr: AhAttr,
    /// The queue pair that requests have to name: all of them.
    pub qp_num: u32,
    /// The key that requests have to name, and receivers to have.
    pub qkey: u32,
}

/// What happened (`rdma_cm_event_type`; rdma_get_cm_event(3)). What each means, and what to do, is in
/// the table of faults: [`EventKind::event`].
///
/// A status is zero, a negative error number, or what the InfiniBand message said.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// [`Id::resolve_addr`] is done: the id is bound to a device.
    AddrResolved,
    /// [`Id::resolve_addr`] has failed. The id is as before: it may be tried again.
    AddrError {
        /// Why, as a negative error number.
        status: i32,
    },
    /// [`Id::resolve_route`] is done.
    RouteResolved,
    /// [`Id::resolve_route`] has failed. The id is as before: it may be tried again.
    RouteError {
        /// Why, as a negative error number.
        status: i32,
    },
    /// A peer wants to connect: [`Id::accept`] or [`Id::reject`] it. Dropped with its last handle, the
    /// request is rejected.
    ConnectRequest {
        /// The connection to come.
        id: Id,
        /// Its peer.
        conn: Conn,
    },
    /// A peer looks for a datagram service: [`Id::answer`] or [`Id::reject`] it.
    LookupRequest {
        /// The answer to come.
        id: Id,
        /// What the peer sent along. How it can be sent to, it says by a datagram.
        private_data: Vec<u8>,
    },
    /// The peer has accepted: [`Id::establish`] the connection.
    ConnectResponse {
        /// The peer.
        conn: Conn,
    },
    /// The connection is made, at the end that asked, whose queue pair is
    /// [on the id](Id::put_qp).
    Connected {
        /// The peer.
        conn: Conn,
    },
    /// The connection could not be made: of a queue pair [on the id](Id::put_qp), that could not be
    /// taken to RTS.
    ConnectError {
        /// Why, as a negative error number.
        status: i32,
    },
    /// The peer does not answer.
    Unreachable {
        /// Why, as a negative error number.
        status: i32,
    },
    /// The peer refused, or nobody listens there.
    Rejected {
        /// The reason that the InfiniBand message gives: 28 is the program's own, 8 a service that
        /// nobody has.
        reason: i32,
        /// The program's private data.
        private_data: Vec<u8>,
    },
    /// The connection is made, at the end that accepted.
    Established,
    /// A datagram service was found.
    Found {
        /// Where.
        peer: UdPeer,
    },
    /// The connection is gone: [`Id::disconnect`] this end, too.
    Disconnected,
    /// The id's device is going: drop what is on it, and the id.
    DeviceRemoval,
    /// The group was joined.
    MulticastJoin {
        /// The group.
        group: Multicast,
    },
    /// The group was not joined, or is lost.
    MulticastError {
        /// Why, as a negative error number.
        status: i32,
    },
    /// The id's network interface has another hardware address.
    AddrChange,
    /// The queue pair may be used for another connection.
    TimewaitExit,
}

impl EventKind {
    /// Its row in the table of faults.
    pub const fn event(&self) -> CmEvent {
        match self {
            Self::AddrResolved => CmEvent::AddrResolved,
            Self::AddrError { .. } => CmEvent::AddrError,
            Self::RouteResolved => CmEvent::RouteResolved,
            Self::RouteError { .. } => CmEvent::RouteError,
            Self::ConnectRequest { .. } | Self::LookupRequest { .. } => CmEvent::ConnectRequest,
            Self::ConnectResponse { .. } => CmEvent::ConnectResponse,
            Self::ConnectError { .. } => CmEvent::ConnectError,
            Self::Unreachable { .. } => CmEvent::Unreachable,
            Self::Rejected { .. } => CmEvent::Rejected,
            Self::Established | Self::Connected { .. } | Self::Found { .. } => CmEvent::Established,
            Self::Disconnected => CmEvent::Disconnected,
            Self::DeviceRemoval => CmEvent::DeviceRemoval,
            Self::MulticastJoin { .. } => CmEvent::MulticastJoin,
            Self::MulticastError { .. } => CmEvent::MulticastError,
            Self::AddrChange => CmEvent::AddrChange,
            Self::TimewaitExit => CmEvent::TimewaitExit,
        }
    }

    /// Its status; zero where nothing went wrong.
    pub const fn status(&self) -> i32 {
        match self {
            Self::AddrError { status }
            | Self::RouteError { status }
            | Self::ConnectError { status }
            | Self::Unreachable { status }
            | Self::MulticastError { status } => *status,
            Self::Rejected { reason, .. } => *reason,
            _ => 0,
        }
    }

    /// What the peer's program sent along.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::ConnectRequest { conn, .. }
            | Self::ConnectResponse { conn }
            | Self::Connected { conn } => &conn.param.private_data,
            Self::LookupRequest { private_data, .. } | Self::Rejected { private_data, .. } => {
                private_data
            }
            Self::Found { peer } => &peer.private_data,
            _ => &[],
        }
    }
}

/// An event of an [`EventChannel`](super::EventChannel) (`rdma_cm_event`). Acknowledged by
/// [`ack`](Self::ack) or when it is dropped (rdma_ack_cm_event(3)).
///
/// It holds its id: dropping the id's other handles meanwhile is well, and waits for nothing; the id
/// is destroyed with the event then.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct Event {
    // A request that nobody took goes before its listener.
    kind: EventKind,
    id: Id,
}

impl Event {
    pub(super) fn new(id: Id, kind: EventKind) -> Self {
        Self { kind, id }
    }

    /// With the queue pair that is on its id taken to where it leaves that.
    pub(super) fn driven(self) -> Self {
        let kind = self.id.drive(self.kind);
        Self { kind, id: self.id }
    }

    /// What happened.
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// To whom. Of a request: the listener.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Zero where nothing went wrong, else a negative error number, or the reason of a rejection.
    pub fn status(&self) -> i32 {
        self.kind.status()
    }

    /// What the peer's program sent along: not to be trusted.
    pub fn private_data(&self) -> &[u8] {
        self.kind.private_data()
    }

    /// For [`classify`](crate::fault::classify): what it means, and what to do.
    pub fn fault(&self) -> Fault {
        Fault::Cm(self.kind.event())
    }

    /// Acknowledges it, as dropping it does, and gives what happened.
    pub fn ack(self) -> EventKind {
        self.kind
    }
}
