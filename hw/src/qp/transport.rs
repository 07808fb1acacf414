//! Which transports a queue pair can be made of.

use super::{ConnectAttr, Endpoint, Qp};
use crate::error::Error;
use bellwire_core::qp::{QpAttrMask, QpState, transition};
use bellwire_core::wqe::{
    BindMw, BindMwType1, Rc, Supports, Transport, Uc, Ud, UnbindMw, UnbindMwType1, Xrc,
};
use bellwire_core::wr::QpType;

/// A transport that queue pairs are made of.
pub trait QpTransport: Transport {
    /// Whether its queue pairs receive: an XRC initiator does not.
    const RECEIVES: bool;
}

/// A transport with one peer.
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

/// A transport whose queue pairs bind memory windows.
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

/// The attributes that a change of state requires.
pub(crate) fn required(transport: QpType, from: QpState, to: QpState) -> QpAttrMask {
    // Where there is no such transition modifying says so.
    transition(transport, from, to).map_or(QpAttrMask::STATE, |step| step.required)
}

impl<T: Connected> Qp<T> {
    /// From INIT to RTS, connected with `peer`.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&mut self, peer: &Endpoint, connect: &ConnectAttr) -> Result<(), Error> {
        let psn = self.endpoint().psn;
        self.connect_from(psn, peer, connect)
    }

    /// As [`connect`](Self::connect), with this first packet sequence number of ours.
    pub(crate) fn connect_from(
        &mut self,
        psn: u32,
        peer: &Endpoint,
        connect: &ConnectAttr,
    ) -> Result<(), Error> {
        let mut attr = connect.ready(self.pd().device(), peer, psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)
    }
}
