//! Ids: connections, listeners, members of multicast groups.

use super::channel::EventChannel;
use super::on_id::OnId;
use super::param::{ConnParam, Membership, Peer, PortSpace, PrivateData};
use super::rdma;
use super::share::{self, Who};
use super::soft::{self, PeerProcess};
use crate::device::Device;
use crate::error::Error;
use crate::provider::{Provider, each};
use crate::qp::{self, ConnectAttr, PathAttr, Qp};
use bellwire_core::access::AccessFlags;
use bellwire_core::qp::{QpAttrMask, QpState};
use bellwire_core::wqe::{Rc, Ud};
use bellwire_core::wr::QpType;
use bellwire_provider::address;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// An end of a connection, a listener, or a user of datagram services and multicast groups
/// (`rdma_cm_id`). Clones refer to the same id. Dropping the last of them, its events included, destroys
/// it (rdma_destroy_id(3)): a connection is disconnected, a pending request is rejected. Any thread may
/// use it.
///
/// Calls that take a queue pair require one on [`device`](Self::device), made by
/// [`Pd::create_qp`](crate::Pd::create_qp) or its variants. Some take `None` for the queue pair that was
/// [put on the id](Self::put_qp).
#[derive(Clone, Debug)]
pub struct Id(pub(super) Provider<Arc<soft::Id>, Arc<rdma::Id>>);

const NO_ROUTE: Error = Error::Unsupported {
    what: "name a traffic class, a flow label or a hop limit on this path",
    instead: "it has no global route: give its packets a service level",
};

impl Id {
    /// Finds the device by which the peer is reached, and binds the id to it (rdma_resolve_addr(3)):
    /// raises `AddrResolved` or `AddrError` within `timeout`.
    ///
    /// If the peer's name has several addresses, they are tried in turn, in the resolver's order: the next one
    /// when an address or its route cannot be resolved, when nothing listens at it, or when no peer responds.
    /// Addresses share `timeout`. The program sees the events of one attempt only, and the failure of the last;
    /// [`tried`](Self::tried) has all. The id's addresses change meanwhile. An address that leads to another
    /// device than the first one that was resolved is not used, because queue pairs may exist there.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the id was bound to a device before; [`Error::Address`] when there is no route,
    /// or the source is not an address of this host; [`Error::Io`] when a name cannot be resolved.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: impl Into<Peer>,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.try_addresses(source, &peer.into(), timeout)
    }

    /// Finds the path to the peer (rdma_resolve_route(3)): raises `RouteResolved` or `RouteError` within
    /// `timeout`.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the address has not been resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        self.try_route(timeout)
    }

    /// Binds the id to a local address (rdma_bind_addr(3)): of a name's addresses, to the first that it can be
    /// bound to. The unspecified address stands for all addresses, port 0 for a free port.
    ///
    /// # Errors
    /// [`Error::Address`]: the port is in use, or the address is not one of this host; [`Error::Io`]: the
    /// name is not resolved within ten seconds.
    pub fn bind(&self, at: impl Into<Peer>) -> Result<(), Error> {
        const RESOLVE: Duration = Duration::from_secs(10);
        const BIND: &str = "bind to";
        let mut tried = Vec::new();
        for at in at.into().resolve(RESOLVE)? {
            let bound = match address::check(at) {
                Ok(()) => each!(&self.0, id => id.bind(at)),
                Err(error) => Err(Error::io(BIND, error)),
            };
            match bound.map_err(|error| error.at(BIND, at)) {
                Ok(()) => {
                    self.note_bound();
                    return Ok(());
                }
                Err(Error::Address { tried: one, .. }) => tried.extend(one),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Address {
            what: BIND,
            tried: tried.into(),
        })
    }

    /// Listens for peers (rdma_listen(3)): each connection request raises `ConnectRequest`. Requests
    /// beyond `backlog` wait until the program has taken others. A peer that waits too long gets
    /// `Unreachable`.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the id is not bound to an address.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        each!(&self.0, id => id.listen(backlog))
    }

    /// The device that the id is bound to, if any. All ids of a channel that are bound to the same device
    /// return the same context.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::Io`] when the device cannot be opened.
    pub fn device(&self) -> Result<Option<Device>, Error> {
        each!(&self.0, id => id.device())
    }

    /// Takes a queue pair from RESET to INIT for this connection. From here on receives may be posted,
    /// and should be before [`connect`](Self::connect) or [`accept`](Self::accept). `access` is what the
    /// peer may do.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the address has not been resolved; those of
    /// [`Qp::modify`](crate::Qp::modify).
    pub fn init_qp(&self, qp: &mut Qp<Rc>, access: AccessFlags) -> Result<(), Error> {
        self.check(qp.pd().device(), false)?;
        let (mut attr, mask) = each!(&self.0, id => id.qp_attr(QpState::Init))?;
        let path = self.path();
        qp::check_path(&path, qp.pd().device(), attr.port_num, QpType::Rc)?;
        if path.pkey_index != 0 {
            attr.pkey_index = path.pkey_index;
        }
        attr.qp_access_flags = access;
        qp.modify(&attr, mask)
    }

    /// Takes a queue pair from RESET to RTS, with the id's port and Q_Key: it receives datagrams sent to
    /// its number, and may send to the peers and groups that [`lookup`](Self::lookup) and
    /// [`join`](Self::join) find.
    ///
    /// # Errors
    /// Those of [`init_qp`](Self::init_qp).
    pub fn start_qp(&self, qp: &mut Qp<Ud>) -> Result<(), Error> {
        self.check(qp.pd().device(), true)?;
        let (attr, _) = each!(&self.0, id => id.qp_attr(QpState::Init))?;
        let path = self.path();
        qp::check_path(&path, qp.pd().device(), attr.port_num, QpType::Ud)?;
        let connect = ConnectAttr {
            port_num: attr.port_num,
            qkey: attr.qkey,
            path: PathAttr {
                pkey_index: match path.pkey_index {
                    0 => attr.pkey_index,
                    index => index,
                },
                ..PathAttr::default()
            },
            ..ConnectAttr::default()
        };
        qp.init(&connect)?;
        qp.start(&connect)
    }

    /// Sends the peer a connection request (rdma_connect(3)). Raises `ConnectResponse`, `Rejected`,
    /// `Unreachable` or `ConnectError`. The queue pair stays in INIT until
    /// [`establish`](Self::establish).
    ///
    /// With `None` the queue pair on the id is connected, and `Connected` is raised: see
    /// [`put_qp`](Self::put_qp).
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when the route has not been resolved; [`Error::CmNoQp`].
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
        self.try_connect(qp.qp_num(), qp.receives_from_srq(), &param)
    }

    /// After `ConnectResponse`: takes the queue pair to RTS, and notifies the peer, which raises
    /// `Established` there (rdma_establish(3)).
    ///
    /// # Errors
    /// [`Error::CmStep`] when there was no response, or it came too late; those of
    /// [`Qp::modify`](crate::Qp::modify).
    pub fn establish(&self, qp: &mut Qp<Rc>) -> Result<(), Error> {
        self.check(qp.pd().device(), false)?;
        self.ready(qp, u8::MAX, u8::MAX)?;
        each!(&self.0, id => id.establish())
    }

    /// Accepts the request that the id came with (rdma_accept(3)), and takes the queue pair from INIT to
    /// RTS. `Established` is raised when the peer is ready, too; `ConnectError`, `Unreachable` or
    /// `Disconnected` when the connection failed. Send nothing before.
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when the request was accepted or rejected before, or the
    /// peer is gone; [`Error::CmNoQp`] when there is no queue pair on the id, and none given; those of
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
        each!(&self.0, id => id.accept(qp_num, srq, &param))
    }

    /// [`connect`](Self::connect) for a queue pair whose state is changed elsewhere: only its number is
    /// sent.
    pub(super) fn connect_alone(&self, qp_num: u32, param: &ConnParam) -> Result<(), Error> {
        each!(&self.0, id => id.connect(qp_num, false, param))
    }

    /// [`accept`](Self::accept) for a queue pair whose state is changed elsewhere.
    pub(super) fn accept_alone(&self, qp_num: u32, param: &ConnParam) -> Result<(), Error> {
        each!(&self.0, id => id.accept(qp_num, false, param))
    }

    /// [`establish`](Self::establish) for a queue pair whose state is changed elsewhere.
    pub(super) fn establish_alone(&self) -> Result<(), Error> {
        each!(&self.0, id => id.establish())
    }

    /// The LID and the GID of the peer's port, from its request or response.
    pub(super) fn peer_port(&self) -> Result<(u16, [u8; 16]), Error> {
        let (attr, _) = each!(&self.0, id => id.qp_attr(QpState::Rtr))?;
        Ok((attr.ah_attr.dlid, attr.ah_attr.grh.dgid))
    }

    /// The process at the other end: says when that has ended. `None`: it is this one, or cannot be known.
    pub(super) fn peer_process(&self) -> Option<Arc<PeerProcess>> {
        self.0.soft()?.peer_process()
    }

    /// Whose share of a listener's places it takes: its process's, or its address's where the process cannot be known.
    pub(super) fn peer_share(&self) -> Who {
        match self.0.soft() {
            Some(id) => id.peer_process().map_or(0, |process| process.identity()),
            None => self
                .peer_addr()
                .map_or(0, |peer| share::of_address(peer.ip())),
        }
    }

    /// Takes the queue pair from INIT to RTS, with at most `responder` incoming and `initiator` outgoing
    /// READs and atomics in flight. Returns the numbers that were set.
    fn ready(&self, qp: &mut Qp<Rc>, responder: u8, initiator: u8) -> Result<(u8, u8), Error> {
        let depth = qp.pd().device().attr().max_qp_rd_atom;
        let path = qp::path_on(&self.path(), qp.pd().device());
        let step = |qp: &mut Qp<Rc>, state| {
            let (mut attr, mask) = each!(&self.0, id => id.qp_attr(state))?;
            if mask.contains(QpAttrMask::AV) && path.is_routed() && !attr.ah_attr.is_global {
                return Err(NO_ROUTE);
            }
            path.apply(&mut attr.ah_attr);
            // The values in the attributes are the peer's.
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(responder).min(depth);
            attr.max_rd_atomic = attr.max_rd_atomic.min(initiator).min(depth);
            qp.modify(&attr, mask)?;
            Ok::<_, Error>(attr)
        };
        let responder = step(qp, QpState::Rtr)?.max_dest_rd_atomic;
        let initiator = step(qp, QpState::Rts)?.max_rd_atomic;
        qp.set_udp_sport(path.udp_sport)?;
        Ok((responder, initiator))
    }

    /// Rejects the request that the id came with, with private data as the reason (rdma_reject(3)).
    ///
    /// # Errors
    /// [`Error::PrivateData`]; [`Error::CmStep`] when the request was accepted or rejected before.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.check_private_data(PrivateData::Reject, private_data)?;
        each!(&self.0, id => id.reject(private_data))
    }

    /// Disconnects, or ends this side of a connection that the peer has disconnected
    /// (rdma_disconnect(3)): the queue pair goes to ERR, where everything in flight is flushed and
    /// reported. `Disconnected` is raised when the peer has disconnected, too; `TimewaitExit` when the
    /// queue pair can be connected again.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the id is not connected; the queue pair is taken to ERR nevertheless.
    /// [`Error::CmNoQp`] when there is no queue pair on the id, and none given.
    pub fn disconnect<'a>(&self, qp: impl Into<Option<&'a mut Qp<Rc>>>) -> Result<(), Error> {
        match qp.into() {
            Some(qp) => qp.to_error()?,
            None => self.on_id().slot().qp("disconnect")?.to_error()?,
        }
        each!(&self.0, id => id.disconnect())
    }

    /// Looks up a datagram service (SIDR; rdma_connect(3) of a datagram id). `Found` says how to reach
    /// it. If there is none, or it refuses, `Rejected` is raised, or `Unreachable` with the status of the
    /// response, as on Linux.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn lookup(&self, private_data: &[u8]) -> Result<(), Error> {
        self.check_private_data(PrivateData::Connect, private_data)?;
        self.try_lookup(private_data)
    }

    /// Responds to a lookup with this queue pair as the service (rdma_accept(3) of a datagram id).
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn answer(&self, qp: &Qp<Ud>, private_data: &[u8]) -> Result<(), Error> {
        self.check(qp.pd().device(), true)?;
        self.check_private_data(PrivateData::Accept, private_data)?;
        each!(&self.0, id => id.answer(qp.qp_num(), private_data))
    }

    /// Joins a multicast group (rdma_join_multicast(3)): raises `MulticastJoin` or `MulticastError`.
    /// Attach the queue pair by [`Qp::attach_mcast`](crate::Qp::attach_mcast) then.
    ///
    /// # Errors
    /// [`Error::CmStep`] when the id is not bound to a device, by [`bind`](Self::bind) or
    /// [`resolve_addr`](Self::resolve_addr); [`Error::Address`].
    pub fn join(&self, group: SocketAddr, membership: Membership) -> Result<(), Error> {
        const JOIN: &str = "join the multicast group";
        address::check(group).map_err(|error| Error::io(JOIN, error).at(JOIN, group))?;
        each!(&self.0, id => id.join(group, membership)).map_err(|error| error.at(JOIN, group))
    }

    /// Leaves a multicast group (rdma_leave_multicast(3)).
    ///
    /// # Errors
    /// [`Error::Address`] when it was not joined.
    pub fn leave(&self, group: SocketAddr) -> Result<(), Error> {
        const LEAVE: &str = "leave the multicast group";
        each!(&self.0, id => id.leave(group)).map_err(|error| error.at(LEAVE, group))
    }

    /// Moves the id to another channel of the same provider (rdma_migrate_id(3)), together with its
    /// events that are still queued. Events that were taken before stay valid.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a channel of another provider; [`Error::Io`].
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        let both = self.0.as_ref().with(to.0.as_ref());
        let both = both.ok_or(Error::Foreign {
            what: "event channel",
        })?;
        each!(both, (id, channel) => id.migrate(channel))
    }

    /// Sets the acknowledgement timeout of the connection, before it is made: a 5-bit code for 4.096 µs ·
    /// 2^t; 0 is infinite (`RDMA_OPTION_ID_ACK_TIMEOUT`).
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
        each!(&self.0, id => id.set_ack_timeout(timeout))
    }

    /// Sets whether an IPv6 listener leaves IPv4 to others, before the id is bound
    /// (`RDMA_OPTION_ID_AFONLY`). It makes no difference for the software HCA.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_afonly(&self, on: bool) -> Result<(), Error> {
        each!(&self.0, id => id.set_afonly(on))
    }

    /// Sets whether others may be bound to the same port, before the id is bound
    /// (`RDMA_OPTION_ID_REUSEADDR`). With the software HCA a port is free as soon as it is unbound, and
    /// never shared.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_reuseaddr(&self, on: bool) -> Result<(), Error> {
        each!(&self.0, id => id.set_reuseaddr(on))
    }

    /// The port space of its connections.
    pub fn port_space(&self) -> PortSpace {
        each!(&self.0, id => id.port_space())
    }

    /// The local address, once the id is bound to one (rdma_get_local_addr(3)).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        each!(&self.0, id => id.local_addr())
    }

    /// The peer's address, once it is known (rdma_get_peer_addr(3)).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        each!(&self.0, id => id.peer_addr())
    }

    /// Why this id could not connect, in words: what was seen, where the number of the event says less. `None`
    /// where the event says everything that is known.
    pub fn why_refused(&self) -> Option<String> {
        self.0.soft()?.why_refused()
    }

    /// Why the peer has not responded yet, as far as this end can tell.
    pub(super) fn why_silent(&self) -> Option<&'static str> {
        self.0.soft()?.why_silent()
    }

    /// The local port; zero if there is none yet (rdma_get_src_port(3)).
    pub fn port(&self) -> u16 {
        self.local_addr().map_or(0, |addr| addr.port())
    }

    /// The slot for its queue pair.
    pub(super) fn on_id(&self) -> &OnId {
        each!(&self.0, id => &id.on_id)
    }

    fn check_private_data(&self, of: PrivateData, given: &[u8]) -> Result<(), Error> {
        self.port_space().check_private_data(of, given)
    }

    /// Checks that a queue pair on this device, for datagrams or not, can be used with this id.
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

/// Whether both refer to the same id.
impl Id {
    /// Distinguishes it from all other ids that exist.
    pub(super) fn address(&self) -> usize {
        each!(&self.0, id => Arc::as_ptr(id).addr())
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl From<Arc<soft::Id>> for Id {
    fn from(id: Arc<soft::Id>) -> Self {
        Self(Provider::Soft(id))
    }
}

impl From<Arc<rdma::Id>> for Id {
    fn from(id: Arc<rdma::Id>) -> Self {
        Self(Provider::Verbs(id))
    }
}
