//! The transports of queue pairs.

use super::{ConnectAttr, Endpoint, Qp};
use crate::error::Error;
use bellwire_core::qp::QpState;
use bellwire_core::wqe::{
    BindMw, BindMwType1, Rc, Supports, Transport, Uc, Ud, UnbindMw, UnbindMwType1, Xrc,
};

/// A transport of queue pairs.
pub trait QpTransport: Transport {
    /// Whether its queue pairs receive: an XRC initiator does not.
    const RECEIVES: bool;
}

/// A transport whose queue pairs are connected with one peer.
pub trait Connected: QpTransport {}

impl QpTransport for Rc {
    const RECEIVES: bool = true;
}

impl QpTransport for Uc {
    const RECEIVES: bool = true;
}

impl QpTransport for Ud {
    const RECEIVES: bool = true;
}

impl QpTransport for Xrc {
    const RECEIVES: bool = false;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Connected for Xrc {}

/// A transport whose queue pairs can bind memory windows.
pub trait Binds:
    QpTransport
    + Supports<BindMw>
    + Supports<UnbindMw>
    + Supports<BindMwType1>
    + Supports<UnbindMwType1>
{
}

impl Binds for Rc {}
impl Binds for Uc {}
impl Binds for Xrc {}

impl<T: Connected> Qp<T> {
    /// Moves the queue pair from INIT to RTS, connected with `peer`.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify); [`Error::OutOfRange`] and [`Error::Unsupported`] for attributes of
    /// `connect` that the device does not support. The UDP source port may be refused last: the queue pair is
    /// then in ERR.
    pub fn connect(&mut self, peer: &Endpoint, connect: &ConnectAttr) -> Result<(), Error> {
        self.connect_from(self.psn, peer, connect)
    }

    /// Connects the queue pair like [`connect`](Self::connect), with this first PSN.
    pub(crate) fn connect_from(
        &mut self,
        psn: u32,
        peer: &Endpoint,
        connect: &ConnectAttr,
    ) -> Result<(), Error> {
        connect.check(self.pd().device(), T::TYPE)?;
        let mut attr = connect.ready(self.pd().device(), peer, psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)?;
        self.set_udp_sport(connect.path.udp_sport)
    }
}
