//! Events of the communication manager.

use super::id::Id;
use super::param::ConnParam;
use crate::fault::{CmEvent, Fault};
use bellwire_core::qp::AhAttr;

/// The parameters of a connection's peer (`rdma_conn_param`, in an event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conn {
    /// Its private data as received: possibly padded with zeroes, and not to be trusted. Also its
    /// connection parameters: `responder_resources` and `initiator_depth` are from this end's point of
    /// view, to be passed to [`Id::accept`].
    pub param: ConnParam,
    /// The peer's queue pair number.
    pub qp_num: u32,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
}

/// A peer that datagrams can be sent to (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdPeer {
    /// Its private data as received: possibly padded with zeroes, and not to be trusted.
    pub private_data: Vec<u8>,
    /// Its address, for [`Pd::create_ah`](crate::Pd::create_ah).
    pub ah_attr: AhAttr,
    /// The peer's queue pair number.
    pub qp_num: u32,
    /// The Q_Key for sends to it.
    pub qkey: u32,
}

/// A multicast group (`rdma_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Its address, for [`Pd::create_ah`](crate::Pd::create_ah). The destination GID is the group's, and
    /// so is the destination LID, for [`Qp::attach_mcast`](crate::Qp::attach_mcast).
    pub ah_attr: AhAttr,
    /// The queue pair number for sends to it, which stands for all members.
    pub qp_num: u32,
    /// The Q_Key for sends to it, which receivers must have too.
    pub qkey: u32,
}

/// What happened (`rdma_cm_event_type`; rdma_get_cm_event(3)). The table of faults says what each event
/// means, and what to do: [`EventKind::event`].
///
/// A status is zero, a negative error number, or a status of the InfiniBand message.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// [`Id::resolve_addr`] succeeded: the id is bound to a device.
    AddrResolved,
    /// [`Id::resolve_addr`] failed. The id is unchanged, and the call may be repeated.
    AddrError {
        /// The reason, as a negative error number.
        status: i32,
    },
    /// [`Id::resolve_route`] succeeded.
    RouteResolved,
    /// [`Id::resolve_route`] failed. The id is unchanged, and the call may be repeated.
    RouteError {
        /// The reason, as a negative error number.
        status: i32,
    },
    /// A peer requests a connection: [`Id::accept`] or [`Id::reject`] it. Dropping the last handle of the
    /// id rejects the request.
    ConnectRequest {
        /// The id of the new connection.
        id: Id,
        /// Its peer.
        conn: Conn,
    },
    /// A peer looks up a datagram service: [`Id::answer`] or [`Id::reject`] it.
    LookupRequest {
        /// The id to respond with.
        id: Id,
        /// The peer's private data. How to send to the peer is only known from a datagram of it.
        private_data: Vec<u8>,
    },
    /// The peer accepted: [`Id::establish`] the connection.
    ConnectResponse {
        /// The peer.
        conn: Conn,
    },
    /// The connection is made, at the requesting end, whose queue pair is [on the id](Id::put_qp).
    Connected {
        /// The peer.
        conn: Conn,
    },
    /// The connection could not be made: a queue pair [on the id](Id::put_qp) could not be taken to RTS,
    /// for instance.
    ConnectError {
        /// The reason, as a negative error number.
        status: i32,
    },
    /// The peer does not respond.
    Unreachable {
        /// The reason: a negative error number, or the status of a SIDR response.
        status: i32,
    },
    /// The peer rejected the request, or nothing listens there.
    Rejected {
        /// The reason in the InfiniBand message: 28 is a rejection by the program, 8 an unknown service.
        reason: i32,
        /// The private data of the peer's program.
        private_data: Vec<u8>,
    },
    /// The connection is made, at the accepting end.
    Established,
    /// A datagram service was found.
    Found {
        /// How to reach it.
        peer: UdPeer,
    },
    /// The connection is gone: [`Id::disconnect`] this end, too.
    Disconnected,
    /// The id's device is being removed: drop everything on it, and the id.
    DeviceRemoval,
    /// The group was joined.
    MulticastJoin {
        /// The group.
        group: Multicast,
    },
    /// Joining the group failed, or the group was lost.
    MulticastError {
        /// The reason, as a negative error number.
        status: i32,
    },
    /// The hardware address of the id's network interface has changed.
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

    /// Its status; zero if there was no error.
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

    /// The private data of the peer's program.
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

/// An event of an [`EventChannel`](super::EventChannel) (`rdma_cm_event`). It is acknowledged by
/// [`ack`](Self::ack) or when it is dropped (rdma_ack_cm_event(3)).
///
/// It holds its id: dropping the id's other handles meanwhile is allowed, and does not block; the id is
/// then destroyed with the event.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct Event {
    // A request that was not taken is dropped before its listener.
    kind: EventKind,
    id: Id,
}

impl Event {
    pub(super) fn new(id: Id, kind: EventKind) -> Self {
        Self { kind, id }
    }

    /// Changes the state of the queue pair on the event's id as the event requires. `None` if the id tries another
    /// address of its peer, so that the program gets no event.
    pub(super) fn driven(self) -> Option<Self> {
        let kind = self.id.attempted(self.kind)?;
        let kind = self.id.drive(kind);
        Some(Self { kind, id: self.id })
    }

    /// What happened.
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// The id that it concerns; for a request the listener.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Zero if there was no error, otherwise a negative error number, or the reason of a rejection.
    pub fn status(&self) -> i32 {
        self.kind.status()
    }

    /// The private data of the peer's program: not to be trusted.
    pub fn private_data(&self) -> &[u8] {
        self.kind.private_data()
    }

    /// The fault for [`classify`](crate::fault::classify), which says what it means, and what to do.
    pub fn fault(&self) -> Fault {
        Fault::Cm(self.kind.event())
    }

    /// Acknowledges the event, as dropping it does, and returns what happened.
    pub fn ack(self) -> EventKind {
        self.kind
    }
}
