//! XRC targets.

use super::{ConnectAttr, Endpoint};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::provider::TargetSide;
use crate::xrcd::Xrcd;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;
use bellwire_provider::limits::required;

/// An XRC target queue pair: the receiving end of an extended reliable connection. It has no queues: each
/// request names a shared receive queue of the XRC domain, and its receive completes on that queue's
/// completion queue.
///
/// The device's target is destroyed when its creator, and all that [opened](Xrcd::open_target) it, have
/// dropped theirs.
#[derive(Debug)]
pub struct XrcTarget {
    // Dropped before the domain that it belongs to.
    side: TargetSide,
    qpn: u32,
    opened: bool,
    xrcd: Xrcd,
}

impl Xrcd {
    /// Creates a target in RESET (`ibv_create_qp_ex` with `IBV_QPT_XRC_RECV`).
    ///
    /// # Errors
    /// No number is left; [`Error::Io`]: the device refuses.
    pub fn create_target(&self) -> Result<XrcTarget, Error> {
        let device = self.device();
        let side = self.side().create_target(&device.hca, &device.events)?;
        self.target(side, false)
    }

    /// Opens a target of the domain that was created elsewhere (`ibv_open_qp`), in this process or in another
    /// that has opened the domain of the same [file](Device::open_xrcd_of). Both then have the same target,
    /// which only its creator can move to RESET. Its asynchronous events are delivered to its creator, and on
    /// devices of libibverbs to all that opened it.
    ///
    /// # Errors
    /// [`Error::UnknownQp`]: the domain has no target with this number.
    pub fn open_target(&self, qp_num: u32) -> Result<XrcTarget, Error> {
        let side = self.side().open_target(qp_num)?;
        self.target(side, true)
    }

    fn target(&self, side: TargetSide, opened: bool) -> Result<XrcTarget, Error> {
        let qpn = side.qp_num();
        // The software HCA's target is admitted by itself.
        if side.libibverbs().is_some() {
            self.device().events.admit(Element::Qp(qpn))?;
        }
        Ok(XrcTarget {
            side,
            qpn,
            opened,
            xrcd: self.clone(),
        })
    }
}

impl XrcTarget {
    /// The queue pair number, which the initiator connects to.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// The endpoint to pass to the initiator. Its PSN is zero: a target sends no requests.
    pub fn endpoint(&self) -> Endpoint {
        self.device().endpoint(self.qpn, 1, None)
    }

    /// The XRC domain.
    pub fn xrcd(&self) -> &Xrcd {
        &self.xrcd
    }

    fn device(&self) -> &Device {
        self.xrcd.device()
    }

    /// Queries state and attributes (`ibv_query_qp`; formerly `ibv_query_xrc_rcv_qp`).
    pub fn query(&self) -> QpAttr {
        self.side.query().unwrap_or_default()
    }

    /// The state in the device.
    pub fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes state and attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`Error::Modify`] says which attribute is missing, not allowed, or out of range;
    /// [`Error::ResetOfOpened`].
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        // libmlx5 would write to queues that an opened target does not have.
        if self.opened && mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset {
            return Err(Error::ResetOfOpened { qpn: self.qpn });
        }
        self.side.modify(attr, mask)
    }

    /// Moves the target from RESET to INIT.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify).
    pub fn init(&self, connect: &ConnectAttr) -> Result<(), Error> {
        connect.check(self.device(), QpType::XrcRecv)?;
        self.step(QpState::Reset, &connect.init())
    }

    /// Moves the target from INIT to RTS, connected with the initiator `peer`.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify).
    pub fn connect(&self, peer: &Endpoint, connect: &ConnectAttr) -> Result<(), Error> {
        connect.check(self.device(), QpType::XrcRecv)?;
        let mut attr = connect.ready(self.device(), peer, self.endpoint().psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)
    }

    fn step(&self, from: QpState, attr: &QpAttr) -> Result<(), Error> {
        self.modify(attr, required(QpType::XrcRecv, from, attr.qp_state))
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.device().is_inherited() {
            return;
        }
        if let Some(target) = self.side.libibverbs()
            && target.is_last()
        {
            self.device().events.retire(Element::Qp(self.qpn));
        }
    }
}
