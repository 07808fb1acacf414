//! What only datagrams have: starting without a peer, and multicast.

use super::{ConnectAttr, Endpoint, Qp};
use crate::error::Error;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::Ud;
use std::net::Ipv6Addr;

impl Qp<Ud> {
    /// From INIT to RTS: datagrams go to whom each request names.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn start(&mut self, connect: &ConnectAttr) -> Result<(), Error> {
        let psn = self.endpoint().psn;
        let mut attr = connect.ready(self.pd().device(), &Endpoint::default(), psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)
    }

    /// Attaches it to a multicast group (`ibv_attach_mcast`): it gets what is sent to this MGID and
    /// MLID. Attached twice, it still gets one copy. Groups of RoCE v2 may be IPv4 addresses, mapped
    /// to IPv6; the interface under the device has to be a member as well, which rdma_cm sees to, or
    /// `ip addr add GROUP/32 dev INTERFACE autojoin`.
    ///
    /// # Errors
    /// Not a multicast address, or a group that is full.
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

    /// Detaches it (`ibv_detach_mcast`). A queue pair that is dropped leaves its groups by itself.
    ///
    /// # Errors
    /// [`Error::NotAttached`].
    pub fn detach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.pd().device().hca.detach_mcast(self.qpn, gid, lid)
    }
}
