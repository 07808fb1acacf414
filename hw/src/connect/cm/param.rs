//! What ids are made with and connected by.

use crate::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// What a connection of an id is (`rdma_port_space`). Ports of one space are not those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Reliable connections: of [`Rc`](crate::wqe::Rc) queue pairs.
    Tcp,
    /// Datagrams, and multicast: of [`Ud`](crate::wqe::Ud) queue pairs.
    Udp,
    /// Reliable connections, of services apart from those of `Tcp`.
    Ib,
    /// Datagrams that share their groups and their key with IP over InfiniBand.
    Ipoib,
}

/// Which call, or which message of the communication manager, private data goes with.
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

    /// Bytes of private data at the most (rdma_connect(3), rdma_accept(3), rdma_reject(3)): those of the
    /// InfiniBand message, of a request less those that name the addresses.
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

/// Where to connect to, or to listen: an address and a port (IPv4, IPv6), or a name and a port.
///
/// The software HCA has names of the programs' choosing: whoever listens by one is found by it. It takes
/// addresses, too, and all of them for its own; a listener at one address, or at the unspecified one,
/// is found by the port. librdmacm resolves a name as a host's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// By address and port.
    Addr(SocketAddr),
    /// By name and port.
    Name {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
}

impl Peer {
    /// The port. Zero, to listen at: one that is free.
    pub fn port(&self) -> u16 {
        match self {
            Self::Addr(addr) => addr.port(),
            Self::Name { port, .. } => *port,
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

/// A name, or an address literal.
impl From<(&str, u16)> for Peer {
    fn from((name, port): (&str, u16)) -> Self {
        match name.parse::<IpAddr>() {
            Ok(addr) => Self::Addr((addr, port).into()),
            Err(_) => Self::Name {
                name: name.to_owned(),
                port,
            },
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Name { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// How to connect (`rdma_conn_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Bytes of the program's for the peer's event; [`PortSpace::max_private_data`] says how many. The
    /// peer may get zeroes behind them.
    pub private_data: Vec<u8>,
    /// READs and atomics in flight that this side answers. At the accepting end at most what the
    /// request's [`Conn`](super::Conn) says; at either what the device has bounds it.
    pub responder_resources: u8,
    /// READs and atomics in flight that this side asks for; bounded likewise.
    pub initiator_depth: u8,
    /// Whether this side has flow control by the hardware.
    pub flow_control: bool,
    /// Retries without an acknowledgement, up to 7. Of the connecting end alone, for both.
    pub retry_count: u8,
    /// Retries without a receive at the peer, up to 6; 7 is for ever.
    pub rnr_retry_count: u8,
}

impl ConnParam {
    /// With so many READs and atomics in flight at the most.
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
}
