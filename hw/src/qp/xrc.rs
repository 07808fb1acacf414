//! The target of extended reliable connections.

use super::{ConnectAttr, Endpoint, transport::required};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::soft::{Life, QpParts, RecvParts};
#[cfg(feature = "verbs")]
use crate::verbs;
use crate::xrcd::{Xrcd, XrcdSide};
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;
use std::sync::Arc;

/// The receiving end of an extended reliable connection. It has no queues: each request names a
/// shared receive queue of its domain, and completes where that does.
///
/// The device's target goes when who created it, and all who [opened](Xrcd::open_target) it, have
/// dropped theirs.
#[derive(Debug)]
pub struct XrcTarget {
    // Before the domain that it is in.
    side: Side,
    qpn: u32,
    opened: bool,
    xrcd: Xrcd,
}

/// The device's target, by who stands behind it.
#[derive(Debug)]
enum Side {
    Soft(Arc<SoftTarget>),
    #[cfg(feature = "verbs")]
    Verbs(verbs::Target),
}

/// A software HCA's target. Goes with the last who has it.
#[derive(Debug)]
pub(crate) struct SoftTarget {
    qpn: u32,
    device: Device,
}

impl SoftTarget {
    fn create(xrcd: &Xrcd) -> Result<Arc<Self>, Error> {
        let device = xrcd.device();
        let domain = xrcd.soft()?;
        let parts = QpParts {
            transport: QpType::XrcRecv,
            pd: 0,
            send: None,
            recv: RecvParts::Xrc {
                domain: domain.id(),
            },
            events: device.events.clone(),
        };
        let life = Life {
            send_start: 0,
            send_user_index: 0,
            recv_user_index: 0,
        };
        let (qpn, _) = (device.hca.soft("XRC")?).create_qp(|_| Ok((parts, life)))?;
        device.events.admit(Element::Qp(qpn));
        let target = Arc::new(Self {
            qpn,
            device: device.clone(),
        });
        domain.admit(&target);
        Ok(target)
    }

    pub(crate) fn qp_num(&self) -> u32 {
        self.qpn
    }
}

impl Drop for SoftTarget {
    fn drop(&mut self) {
        self.device.hca.destroy_qp(self.qpn);
        self.device.events.retire(Element::Qp(self.qpn));
    }
}

impl Xrcd {
    /// Creates a target in RESET (`ibv_create_qp_ex` with `IBV_QPT_XRC_RECV`).
    ///
    /// # Errors
    /// No number left; [`Error::Io`] when the device refuses.
    pub fn create_target(&self) -> Result<XrcTarget, Error> {
        let side = match self.side() {
            XrcdSide::Soft(_) => Side::Soft(SoftTarget::create(self)?),
            #[cfg(feature = "verbs")]
            XrcdSide::Verbs(xrcd) => Side::Verbs(verbs::Target::create(xrcd)?),
        };
        Ok(self.target(side, false))
    }

    /// Opens a target of the domain that somebody else created (`ibv_open_qp`): by who has opened the
    /// domain of the same [file](Device::open_xrcd_of), in this process or another. Both have the same
    /// target then, which is taken to RESET by who created it only. Asynchronous events of it come to
    /// who created it, and on devices of libibverbs to all.
    ///
    /// # Errors
    /// [`Error::UnknownQp`]: the domain has no target of this number.
    pub fn open_target(&self, qp_num: u32) -> Result<XrcTarget, Error> {
        let side = match self.side() {
            XrcdSide::Soft(domain) => Side::Soft(domain.target(qp_num)?),
            #[cfg(feature = "verbs")]
            XrcdSide::Verbs(xrcd) => Side::Verbs(verbs::Target::open(xrcd, qp_num)?),
        };
        Ok(self.target(side, true))
    }

    fn target(&self, side: Side, opened: bool) -> XrcTarget {
        let qpn = match &side {
            Side::Soft(target) => target.qpn,
            #[cfg(feature = "verbs")]
            Side::Verbs(target) => {
                let qpn = target.qp_num();
                self.device().events.admit(Element::Qp(qpn));
                qpn
            }
        };
        XrcTarget {
            side,
            qpn,
            opened,
            xrcd: self.clone(),
        }
    }
}

impl XrcTarget {
    /// Its number, which the initiator connects to.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// What to bring to the initiator.
    pub fn endpoint(&self) -> Endpoint {
        self.device().endpoint(self.qpn, 1, None)
    }

    /// The domain.
    pub fn xrcd(&self) -> &Xrcd {
        &self.xrcd
    }

    fn device(&self) -> &Device {
        self.xrcd.device()
    }

    /// State and attributes, as the device has them (of old `ibv_query_xrc_rcv_qp`).
    pub fn query(&self) -> QpAttr {
        let attr = match &self.side {
            Side::Soft(_) => self.device().hca.query_qp(self.qpn),
            #[cfg(feature = "verbs")]
            Side::Verbs(target) => target.query(),
        };
        attr.unwrap_or_default()
    }

    /// The device's state of it.
    pub fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes state and attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`Error::Modify`] names what is missing, not allowed or out of range;
    /// [`Error::ResetOfOpened`].
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        // libmlx5 writes to queues then that an opened one does not have.
        if self.opened && mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset {
            return Err(Error::ResetOfOpened { qpn: self.qpn });
        }
        match &self.side {
            Side::Soft(_) => {
                self.device().hca.modify_qp(self.qpn, attr, mask)?;
            }
            #[cfg(feature = "verbs")]
            Side::Verbs(target) => target.modify(attr, mask)?,
        }
        Ok(())
    }

    /// From RESET to INIT.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn init(&self, connect: &ConnectAttr) -> Result<(), Error> {
        self.step(QpState::Reset, &connect.init())
    }

    /// From INIT to RTS, connected with the initiator `peer`.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&self, peer: &Endpoint, connect: &ConnectAttr) -> Result<(), Error> {
        let mut attr = connect.ready(self.device(), peer, self.endpoint().psn)?;
        self.step(QpState::Init, &attr)?;
        attr.qp_state = QpState::Rts;
        self.step(QpState::Rtr, &attr)
    }

    fn step(&self, from: QpState, attr: &QpAttr) -> Result<(), Error> {
        self.modify(attr, required(QpType::XrcRecv, from, attr.qp_state))
    }
}

#[cfg(feature = "verbs")]
impl Drop for XrcTarget {
    fn drop(&mut self) {
        if let Side::Verbs(target) = &self.side
            && target.is_last()
        {
            self.device().events.retire(Element::Qp(self.qpn));
        }
    }
}
