//! The software HCA's communication manager.

use super::event::Event;
use super::param::{ConnParam, Membership, Peer, PortSpace};
use crate::device::Device;
use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

const MISSING: Error = Error::Unsupported {
    what: "connect by address and port yet",
    instead: "use bellwire::connect::tcp",
};

/// A channel of a software HCA's.
#[derive(Debug)]
pub(crate) struct Channel {
    device: Device,
}

impl Channel {
    pub fn open(_device: &Device) -> Result<Arc<Self>, Error> {
        Err(MISSING)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.device.async_fd()
    }

    pub fn try_get(&self) -> Result<Option<Event>, Error> {
        Err(MISSING)
    }

    pub fn id(self: &Arc<Self>, _space: PortSpace) -> Result<Arc<Id>, Error> {
        Err(MISSING)
    }
}

/// An id of a software HCA's.
#[derive(Debug)]
pub(crate) struct Id {
    space: PortSpace,
}

impl Id {
    pub fn resolve_addr(
        &self,
        _source: Option<SocketAddr>,
        _peer: &Peer,
        _timeout: Duration,
    ) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn resolve_route(&self, _timeout: Duration) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn bind(&self, _at: &Peer) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn listen(self: &Arc<Self>, _backlog: u32) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn device(&self) -> Result<Option<Device>, Error> {
        Err(MISSING)
    }

    /// What the queue pair has to be given to go to a state (rdma_init_qp_attr). To INIT: port and P_Key,
    /// of datagrams the key.
    pub fn qp_attr(&self, _to: QpState) -> Result<(QpAttr, QpAttrMask), Error> {
        Err(MISSING)
    }

    pub fn connect(&self, _qp_num: u32, _srq: bool, _param: &ConnParam) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn establish(&self) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn accept(&self, _qp_num: u32, _srq: bool, _param: &ConnParam) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn reject(&self, _private_data: &[u8]) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn disconnect(&self) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn lookup(&self, _private_data: &[u8]) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn answer(&self, _qp_num: u32, _private_data: &[u8]) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn join(&self, _group: SocketAddr, _membership: Membership) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn leave(&self, _group: SocketAddr) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn migrate(&self, _to: &Arc<Channel>) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn set_tos(&self, _tos: u8) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn set_ack_timeout(&self, _timeout: u8) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn set_afonly(&self, _on: bool) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn set_reuseaddr(&self, _on: bool) -> Result<(), Error> {
        Err(MISSING)
    }

    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }
}
