//! Functions of datagram queue pairs only: starting without a peer, and multicast.

use super::{ConnectAttr, Endpoint, Qp};
use crate::error::Error;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::Ud;
use bellwire_core::wr::QpType;
use std::net::Ipv6Addr;

impl Qp<Ud> {
    /// Moves the queue pair from INIT to RTS: each request names its destination.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify).
    pub fn start(&mut self, connect: &ConnectAttr) -> Result<(), Error> {
        connect.check(self.pd().device(), QpType::Ud)?;
        let mut attr = connect.ready(self.pd().device(), &Endpoint::default(), self.psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)
    }

    /// Attaches the queue pair to a multicast group (`ibv_attach_mcast`): it receives datagrams to this MGID
    /// and MLID, in one copy even if it is attached twice. Groups of RoCE v2 may be IPv4 addresses, mapped to
    /// IPv6; the interface below the device must be a member, too, which rdma_cm ensures, or `ip addr add
    /// GROUP/32 dev INTERFACE autojoin`.
    ///
    /// # Errors
    /// The address is not a multicast address, or the group is full.
    pub fn attach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        let address = Ipv6Addr::from(gid);
        let by_ipv4 = address
            .to_ipv4_mapped()
            .is_some_and(|ipv4| ipv4.is_multicast());
        if !address.is_multicast() && !by_ipv4 {
            return Err(Error::NotMulticast { gid });
        }
        self.pd().device().hca.attach_mcast(self.qpn, gid, lid)
    }

    /// Detaches the queue pair from a group (`ibv_detach_mcast`). Dropping it detaches it from all groups.
    ///
    /// # Errors
    /// [`Error::NotAttached`].
    pub fn detach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.pd().device().hca.detach_mcast(self.qpn, gid, lid)
    }
}
