//! Ids: connections, listeners, members of multicast groups.

use super::channel::{EventChannel, Source};
use super::on_id::OnId;
use super::param::{ConnParam, Membership, Peer, PortSpace, PrivateData};
#[cfg(feature = "cm")]
use super::rdma;
use super::soft;
use crate::device::Device;
use crate::error::Error;
use crate::qp::{ConnectAttr, Qp};
use bellwire_core::access::AccessFlags;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{Rc, Ud};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// An end of a connection, a listener, or a user of datagram services and multicast groups
/// (`rdma_cm_id`). Clones are the same one; the last that goes, an event of it among them, destroys it
/// (rdma_destroy_id(3)): what is connected is disconnected, what was asked for is rejected. Any thread
/// may use it.
///
/// Calls that take a queue pair want one on [`device`](Self::device), made by
/// [`Pd::create_qp`](crate::Pd::create_qp) and its like. Some take `None` for the one that was
/// [put on the id](Self::put_qp).
#[derive(Clone, Debug)]
pub struct Id(pub(super) End);

#[derive(Clone, Debug)]
pub(super) enum End {
    Soft(Arc<soft::Id>),
    #[cfg(feature = "cm")]
    Rdma(Arc<rdma::Id>),
}

/// Calls what both have under one name.
macro_rules! both {
    ($self:ident, $id:ident => $call:expr) => {
        match &$self.0 {
            $crate::connect::cm::id::End::Soft($id) => $call,
            #[cfg(feature = "cm")]
            $crate::connect::cm::id::End::Rdma($id) => $call,
        }
    };
}
pub(super) use both;

impl Id {
    /// Finds the device by which the peer is reached, and binds the id to it (rdma_resolve_addr(3)):
    /// `AddrResolved` or `AddrError` tells, within `timeout`.
    ///
    /// # Errors
    /// [`Error::CmStep`] when it was bound to a device before; [`Error::Io`] when there is no route.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: impl Into<Peer>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let peer = peer.into();
        both!(self, id => id.resolve_addr(source, &peer, timeout))
    }

    /// Finds the path to the peer (rdma_resolve_route(3)): `RouteResolved` or `RouteError` tells, within
    /// `timeout`.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the address has not been resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        both!(self, id => id.resolve_route(timeout))
    }

    /// Gives it an address of this side (rdma_bind_addr(3)). The unspecified address is all there are,
    /// port 0 one that is free.
    ///
    /// # Errors
    /// [`Error::Io`]: the port is in use, or the address none of this host's.
    pub fn bind(&self, at: impl Into<Peer>) -> Result<(), Error> {
        let at = at.into();
        both!(self, id => id.bind(&at))
    }

    /// Waits for peers (rdma_listen(3)): each is a `ConnectRequest`. Those beyond `backlog` have to wait
    /// until others were got; when that takes too long, to them this end is `Unreachable`.
    ///
    /// # Errors
    /// [`Error::CmStep`] when it is not bound to an address.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        both!(self, id => id.listen(backlog))
    }

    /// The device that it is bound to, if it is yet. Of one channel all ids that are bound to one device
    /// give the same context.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::Io`] when it cannot be opened.
    pub fn device(&self) -> Result<Option<Device>, Error> {
        both!(self, id => id.device())
    }

    /// Takes a queue pair from RESET to INIT, for this connection: receives may be posted from here on,
    /// and should be before [`connect`](Self::connect) or [`accept`](Self::accept). `access` is what the
    /// peer may do.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the address has not been resolved; those of
    /// [`Qp::modify`](crate::Qp::modify).
    pub fn init_qp(&self, qp: &mut Qp<Rc>, access: AccessFlags) -> Result<(), Error> {
        self.check(qp.pd().device(), false)?;
        let (mut attr, mask) = both!(self, id => id.qp_attr(QpState::Init))?;
        attr.qp_access_flags = access;
        qp.modify(&attr, mask)
    }

    /// Takes a queue pair from RESET to RTS, with the id's port and key: it receives what is sent to its
    /// number, and may send to whomever [`lookup`](Self::lookup) or [`join`](Self::join) finds.
    ///
    /// # Errors
    /// As [`init_qp`](Self::init_qp).
    pub fn start_qp(&self, qp: &mut Qp<Ud>) -> Result<(), Error> {
        self.check(qp.pd().device(), true)?;
        let (attr, _) = both!(self, id => id.qp_attr(QpState::Init))?;
        let connect = ConnectAttr {
            port_num: attr.port_num,
            qkey: attr.qkey,
            ..ConnectAttr::default()
        };
        qp.init(&connect)?;
        qp.start(&connect)
    }

    /// Asks the peer to connect (rdma_connect(3)). `ConnectResponse`, `Rejected`, `Unreachable` or
    /// `ConnectError` tells. The queue pair stays in INIT until [`establish`](Self::establish).
    ///
    /// With `None` it is the one on the id, and `Connected` tells: see [`put_qp`](Self::put_qp).
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when the route has not been resolved;
    /// [`Error::CmNoQp`].
    pub fn connect<'a>(
        &self,
        qp: impl Into<Option<&'a Qp<Rc>>>,
        param: &ConnParam,
    ) -> Result<(), Error> {
        if let Some(qp) = qp.into() {
            return self.connect_with(qp, param);
        }
        let mut slot = self.on_id().slot();
        self.connect_with(slot.qp("connect")?, param)?;
        slot.used = true;
        Ok(())
    }

    fn connect_with(&self, qp: &Qp<Rc>, param: &ConnParam) -> Result<(), Error> {
        let device = qp.pd().device();
        self.check(device, false)?;
        self.check_private_data(PrivateData::Connect, &param.private_data)?;
        let depth = device.attr().max_qp_rd_atom;
        let param = param.bounded(depth, depth);
        let (qp_num, srq) = (qp.qp_num(), qp.receives_from_srq());
        both!(self, id => id.connect(qp_num, srq, &param))
    }

    /// After `ConnectResponse`: takes the queue pair to RTS, and tells the peer, whose `Established` it
    /// is (rdma_establish(3)).
    ///
    /// # Errors
    /// [`Error::CmStep`] when there was no response, or it came too late; those of
    /// [`Qp::modify`](crate::Qp::modify).
    pub fn establish(&self, qp: &mut Qp<Rc>) -> Result<(), Error> {
        self.check(qp.pd().device(), false)?;
        self.ready(qp, u8::MAX, u8::MAX)?;
        both!(self, id => id.establish())
    }

    /// Accepts the request that the id came with (rdma_accept(3)), and takes the queue pair from INIT to
    /// RTS. `Established` tells that the peer is ready, too; `ConnectError`, `Unreachable` or
    /// `Disconnected` that it is not. Send nothing before.
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when it was accepted or rejected before, or the peer
    /// has gone; [`Error::CmNoQp`] when there is none on the id, and none given; those of
    /// [`Qp::modify`](crate::Qp::modify).
    pub fn accept<'a>(
        &self,
        qp: impl Into<Option<&'a mut Qp<Rc>>>,
        param: &ConnParam,
    ) -> Result<(), Error> {
        if let Some(qp) = qp.into() {
            return self.accept_with(qp, param);
        }
        let mut slot = self.on_id().slot();
        self.accept_with(slot.qp("accept")?, param)?;
        slot.used = true;
        Ok(())
    }

    fn accept_with(&self, qp: &mut Qp<Rc>, param: &ConnParam) -> Result<(), Error> {
        self.check(qp.pd().device(), false)?;
        self.check_private_data(PrivateData::Accept, &param.private_data)?;
        let (responder, initiator) =
            self.ready(qp, param.responder_resources, param.initiator_depth)?;
        let param = param.bounded(responder, initiator);
        let (qp_num, srq) = (qp.qp_num(), qp.receives_from_srq());
        both!(self, id => id.accept(qp_num, srq, &param))
    }

    /// As [`connect`](Self::connect), for a queue pair that others move: its number is all that is told.
    pub(super) fn connect_alone(&self, qp_num: u32, param: &ConnParam) -> Result<(), Error> {
        both!(self, id => id.connect(qp_num, false, param))
    }

    /// As [`accept`](Self::accept), likewise.
    pub(super) fn accept_alone(&self, qp_num: u32, param: &ConnParam) -> Result<(), Error> {
        both!(self, id => id.accept(qp_num, false, param))
    }

    /// As [`establish`](Self::establish), likewise.
    pub(super) fn establish_alone(&self) -> Result<(), Error> {
        both!(self, id => id.establish())
    }

    /// The LID and the GID of the peer's port, of a request or an answer.
    pub(super) fn peer_port(&self) -> Result<(u16, [u8; 16]), Error> {
        let (attr, _) = both!(self, id => id.qp_attr(QpState::Rtr))?;
        Ok((attr.ah_attr.dlid, attr.ah_attr.grh.dgid))
    }

    /// From INIT to RTS, with so many READs and atomics in flight at the most, which this end answers
    /// and asks for. Gives how many they are.
    fn ready(&self, qp: &mut Qp<Rc>, responder: u8, initiator: u8) -> Result<(u8, u8), Error> {
        let depth = qp.pd().device().attr().max_qp_rd_atom;
        let step = |qp: &mut Qp<Rc>, state| {
            let (mut attr, mask) = both!(self, id => id.qp_attr(state))?;
            // The peer says how many it has.
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(responder).min(depth);
            attr.max_rd_atomic = attr.max_rd_atomic.min(initiator).min(depth);
            qp.modify(&attr, mask)?;
            Ok::<_, Error>(attr)
        };
        let responder = step(qp, QpState::Rtr)?.max_dest_rd_atomic;
        let initiator = step(qp, QpState::Rts)?.max_rd_atomic;
        Ok((responder, initiator))
    }

    /// Refuses the request that the id came with, and says why by private data (rdma_reject(3)).
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when it was accepted or rejected before.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.check_private_data(PrivateData::Reject, private_data)?;
        both!(self, id => id.reject(private_data))
    }

    /// Ends the connection, or this end of one whose peer has ended it (rdma_disconnect(3)): the queue
    /// pair goes to ERR, where everything in flight is flushed and told. `Disconnected` tells when the
    /// peer has ended it, too; `TimewaitExit` when the queue pair can be connected again.
    ///
    /// # Errors
    /// [`Error::CmStep`] when it is not connected; the queue pair is in ERR all the same.
    /// [`Error::CmNoQp`] when there is none on the id, and none given.
    pub fn disconnect<'a>(&self, qp: impl Into<Option<&'a mut Qp<Rc>>>) -> Result<(), Error> {
        match qp.into() {
            Some(qp) => qp.to_error()?,
            None => self.on_id().slot().qp("disconnect")?.to_error()?,
        }
        both!(self, id => id.disconnect())
    }

    /// Looks for a datagram service (SIDR; rdma_connect(3) of an id of datagrams): `Found` tells where it
    /// is. That there is none, or that it refuses, is told by `Rejected`, or by `Unreachable` with the
    /// answer's status, as Linux has it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn lookup(&self, private_data: &[u8]) -> Result<(), Error> {
        self.check_private_data(PrivateData::Connect, private_data)?;
        both!(self, id => id.lookup(private_data))
    }

    /// Answers a lookup: the service is this queue pair's (rdma_accept(3) of an id of datagrams).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn answer(&self, qp: &Qp<Ud>, private_data: &[u8]) -> Result<(), Error> {
        self.check(qp.pd().device(), true)?;
        self.check_private_data(PrivateData::Accept, private_data)?;
        both!(self, id => id.answer(qp.qp_num(), private_data))
    }

    /// Joins a multicast group (rdma_join_multicast(3)): `MulticastJoin` or `MulticastError` tells.
    /// The queue pair is attached by [`Qp::attach_mcast`](crate::Qp::attach_mcast) then.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the id is not bound to a device, by [`bind`](Self::bind) or
    /// [`resolve_addr`](Self::resolve_addr); [`Error::Io`].
    pub fn join(&self, group: SocketAddr, membership: Membership) -> Result<(), Error> {
        both!(self, id => id.join(group, membership))
    }

    /// Leaves a group (rdma_leave_multicast(3)).
    ///
    /// # Errors
    /// [`Error::Io`] when it was not joined.
    pub fn leave(&self, group: SocketAddr) -> Result<(), Error> {
        both!(self, id => id.leave(group))
    }

    /// Has its events come by another channel of the same provider (rdma_migrate_id(3)), those that were
    /// not got yet among them. Those that were got stay good.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a channel of another provider; [`Error::Io`].
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        match (&self.0, &to.0) {
            (End::Soft(id), Source::Soft(channel)) => id.migrate(channel),
            #[cfg(feature = "cm")]
            (End::Rdma(id), Source::Rdma(channel)) => id.migrate(channel),
            #[cfg(feature = "cm")]
            _ => Err(Error::Foreign {
                what: "event channel",
            }),
        }
    }

    /// Type of service of its packets (`RDMA_OPTION_ID_TOS`), before the address is resolved.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        both!(self, id => id.set_tos(tos))
    }

    /// Acknowledgement timeout of its connection, a 5-bit code: 4.096 µs · 2^t, 0 is for ever
    /// (`RDMA_OPTION_ID_ACK_TIMEOUT`), before it is connected.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Io`].
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), Error> {
        const MAX: u8 = 31;
        if timeout > MAX {
            return Err(Error::OutOfRange {
                what: "ack timeout",
                given: timeout.into(),
                min: 0,
                max: MAX.into(),
            });
        }
        both!(self, id => id.set_ack_timeout(timeout))
    }

    /// Whether a listener of IPv6 leaves IPv4 to others (`RDMA_OPTION_ID_AFONLY`), before it is bound. To
    /// the software HCA both are the same.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_afonly(&self, on: bool) -> Result<(), Error> {
        both!(self, id => id.set_afonly(on))
    }

    /// Whether others may be bound to the same port (`RDMA_OPTION_ID_REUSEADDR`), before it is bound. Of
    /// the software HCA a port is free as soon as nobody has it, and never shared.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_reuseaddr(&self, on: bool) -> Result<(), Error> {
        both!(self, id => id.set_reuseaddr(on))
    }

    /// What its connections are.
    pub fn port_space(&self) -> PortSpace {
        both!(self, id => id.port_space())
    }

    /// Its address on this side, once it is bound to one (rdma_get_local_addr(3)).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        both!(self, id => id.local_addr())
    }

    /// Its peer's address, once it has one (rdma_get_peer_addr(3)).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        both!(self, id => id.peer_addr())
    }

    /// Its port on this side; zero: none yet (rdma_get_src_port(3)).
    pub fn port(&self) -> u16 {
        self.local_addr().map_or(0, |addr| addr.port())
    }

    /// Where its queue pair is, if it has one.
    pub(super) fn on_id(&self) -> &OnId {
        both!(self, id => &id.on_id)
    }

    fn check_private_data(&self, of: PrivateData, given: &[u8]) -> Result<(), Error> {
        self.port_space().check_private_data(of, given)
    }

    /// Whether a queue pair of this device, and of datagrams or not, is one for this id.
    fn check(&self, of: &Device, datagrams: bool) -> Result<(), Error> {
        if self.port_space().is_datagram() != datagrams {
            return Err(Error::CmSpace);
        }
        match self.device()? {
            Some(device) if device.hca.is_alike(&of.hca) => Ok(()),
            Some(_) => Err(Error::Foreign { what: "queue pair" }),
            None => Err(Error::CmStep {
                what: "use a queue pair",
            }),
        }
    }
}

/// Whether both are the same id.
impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (End::Soft(id), End::Soft(other)) => Arc::ptr_eq(id, other),
            #[cfg(feature = "cm")]
            (End::Rdma(id), End::Rdma(other)) => Arc::ptr_eq(id, other),
            #[cfg(feature = "cm")]
            _ => false,
        }
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        both!(self, id => Arc::as_ptr(id).addr()).hash(state);
    }
}

impl From<Arc<soft::Id>> for Id {
    fn from(id: Arc<soft::Id>) -> Self {
        Self(End::Soft(id))
    }
}

#[cfg(feature = "cm")]
impl From<Arc<rdma::Id>> for Id {
    fn from(id: Arc<rdma::Id>) -> Self {
        Self(End::Rdma(id))
    }
}
