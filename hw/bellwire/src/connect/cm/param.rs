//! Parameters of ids and their connections.

use crate::connect::tcp;
use crate::error::Error;
use crate::pinned::collected;
use bellwire_provider::address::{self, Shown};
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use std::{fmt, io};

/// The type of an id's connections (`rdma_port_space`). Each space has its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Reliable connections, by [`Rc`](crate::wqe::Rc) queue pairs.
    Tcp,
    /// Datagrams and multicast, by [`Ud`](crate::wqe::Ud) queue pairs.
    Udp,
    /// Reliable connections, of services separate from those of `Tcp`.
    Ib,
    /// Datagrams that share groups and Q_Key with IP over InfiniBand.
    Ipoib,
}

/// The call, or message of the communication manager, that private data is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateData {
    /// [`Id::connect`](super::Id::connect), [`Id::lookup`](super::Id::lookup).
    Connect,
    /// [`Id::accept`](super::Id::accept), [`Id::answer`](super::Id::answer).
    Accept,
    /// [`Id::reject`](super::Id::reject).
    Reject,
}

impl PortSpace {
    /// Whether its ids are for datagrams.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib)
    }

    /// Bytes of private data, at most (rdma_connect(3), rdma_accept(3), rdma_reject(3)): those of the
    /// InfiniBand message; in a request, less the bytes that contain the addresses.
    pub const fn max_private_data(self, of: PrivateData) -> usize {
        /// `struct cma_hdr` of Linux.
        const ADDRESSES: usize = 36;
        match (self.is_datagram(), of) {
            // SIDR_REQ, SIDR_REP.
            (true, PrivateData::Connect) => 216 - ADDRESSES,
            (true, _) => 136,
            // REQ, REP, REJ.
            (false, PrivateData::Connect) => 92 - ADDRESSES,
            (false, PrivateData::Accept) => 196,
            (false, PrivateData::Reject) => 148,
        }
    }

    /// # Errors
    /// [`Error::PrivateData`].
    pub(super) fn check_private_data(self, of: PrivateData, given: &[u8]) -> Result<(), Error> {
        let (given, max) = (given.len(), self.max_private_data(of));
        if given > max {
            return Err(Error::PrivateData { given, max });
        }
        Ok(())
    }
}

/// An address to connect to, or to listen on: an IPv4 or IPv6 address and a port, or a host name and a
/// port. A link-local address names its interface, as in `fe80::1%eth0`. The system's resolver turns a name
/// into its addresses (getaddrinfo(3)), of which each is tried in turn.
///
/// The software HCA has the addresses of this host, and reaches no others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// An address and a port.
    Addr(SocketAddr),
    /// A host name and a port.
    Name {
        /// The host's name.
        name: String,
        /// The port.
        port: u16,
    },
}

impl Peer {
    /// Returns the addresses, at least one, resolving a name within this time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn resolve(&self, within: Duration) -> Result<Vec<SocketAddr>, Error> {
        match self {
            Self::Addr(addr) => collected(iter::once(*addr)),
            Self::Name { name, port } => tcp::resolve_within(name, *port, within)
                .map_err(|error| Error::io("resolve the name", io::Error::other(error))),
        }
    }

    /// The port. Zero stands for a free port to listen on.
    pub fn port(&self) -> u16 {
        match self {
            Self::Addr(addr) => addr.port(),
            Self::Name { port, .. } => *port,
        }
    }

    /// The same address or name, at another port.
    pub(super) fn with_port(&self, port: u16) -> Self {
        match self {
            Self::Addr(addr) => {
                // With the interface of a link-local address.
                let mut addr = *addr;
                addr.set_port(port);
                Self::Addr(addr)
            }
            Self::Name { name, .. } => Self::Name {
                name: name.clone(),
                port,
            },
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(addr: SocketAddr) -> Self {
        Self::Addr(addr)
    }
}

impl From<(IpAddr, u16)> for Peer {
    fn from(addr: (IpAddr, u16)) -> Self {
        Self::Addr(addr.into())
    }
}

/// A name, or an address. An address of an interface that this host does not have is kept as a name, and
/// fails when it is used.
impl From<(&str, u16)> for Peer {
    fn from((name, port): (&str, u16)) -> Self {
        match address::parse(name, port) {
            Ok(Some(addr)) => Self::Addr(addr),
            Ok(None) | Err(_) => Self::Name {
                name: name.to_owned(),
                port,
            },
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => Shown(*addr).fmt(f),
            Self::Name { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Private data for the peer's event; [`PortSpace::max_private_data`] is its largest length. The peer
    /// may get it padded with zeroes.
    pub private_data: Vec<u8>,
    /// READs and atomics in flight that this side responds to. At the accepting end at most the value in
    /// the request's [`Conn`](super::Conn); at either end limited to what the device supports.
    pub responder_resources: u8,
    /// READs and atomics in flight that this side requests; limited in the same way.
    pub initiator_depth: u8,
    /// Whether this side has hardware flow control.
    pub flow_control: bool,
    /// Retries without an acknowledgement, up to 7. The connecting end sets it for both.
    pub retry_count: u8,
    /// RNR retries, up to 6; 7 is infinite.
    pub rnr_retry_count: u8,
}

impl ConnParam {
    /// Limits the READs and atomics in flight to these numbers.
    pub(super) fn bounded(&self, responder: u8, initiator: u8) -> Self {
        Self {
            responder_resources: self.responder_resources.min(responder),
            initiator_depth: self.initiator_depth.min(initiator),
            ..self.clone()
        }
    }
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
        }
    }
}

/// How a multicast group is joined (`rdma_cm_mc_join_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// To send and to receive.
    Full,
    /// Only to send.
    SendOnly,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv6Addr};

    #[test]
    fn private_data_is_as_long_as_the_man_pages_have_it() {
        use PrivateData::{Accept, Connect, Reject};
        let lengths =
            |space: PortSpace| [Connect, Accept, Reject].map(|of| space.max_private_data(of));
        assert_eq!(lengths(PortSpace::Tcp), [56, 196, 148]);
        assert_eq!(lengths(PortSpace::Udp), [180, 136, 136]);
        let long = PortSpace::Tcp.check_private_data(Connect, &[0; 57]);
        assert!(matches!(
            long,
            Err(Error::PrivateData { given: 57, max: 56 })
        ));
        assert!(PortSpace::Tcp.check_private_data(Connect, &[0; 56]).is_ok());
    }

    #[test]
    fn an_address_literal_is_an_address() {
        assert_eq!(
            Peer::from(("::1", 7)),
            Peer::from((IpAddr::from(Ipv6Addr::LOCALHOST), 7))
        );
        assert_eq!(Peer::from(("10.1.2.3", 7)).to_string(), "10.1.2.3:7");
        assert_eq!(Peer::from(("here", 7)).to_string(), "here:7");
        assert_eq!(Peer::from(("here", 7)).port(), 7);
    }

    #[cfg(not(miri))]
    #[test]
    fn an_address_keeps_its_interface() {
        let scoped = Peer::from(("fe80::1%lo", 7));
        let Peer::Addr(SocketAddr::V6(addr)) = &scoped else {
            panic!("{scoped:?}");
        };
        assert_eq!(addr.scope_id(), 1);
        assert_eq!(scoped.to_string(), "[fe80::1%lo]:7");
        assert_eq!(scoped.with_port(8), Peer::from(("fe80::1%lo", 8)));
        let error = Peer::from(("fe80::1%none", 7))
            .resolve(Duration::from_secs(1))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no interface \"none\""), "{error}");
    }
}
