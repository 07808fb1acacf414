//! The target of extended reliable connections.

use super::{ConnectAttr, Endpoint, transport::required};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::soft::{Life, QpParts, RecvParts};
use crate::xrcd::Xrcd;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;

/// The receiving end of an extended reliable connection. It has no queues: each request names a
/// shared receive queue of its domain, and completes where that does.
#[derive(Debug)]
pub struct XrcTarget {
    qpn: u32,
    xrcd: Xrcd,
}

impl Xrcd {
    /// Creates a target in RESET.
    ///
    /// # Errors
    /// No number left.
    pub fn create_target(&self) -> Result<XrcTarget, Error> {
        let parts = QpParts {
            transport: QpType::XrcRecv,
            pd: 0,
            send: None,
            recv: RecvParts::Xrc { domain: self.id() },
            events: self.device().events.clone(),
        };
        let life = Life {
            send_start: 0,
            send_user_index: 0,
            recv_user_index: 0,
        };
        let hca = self.device().hca.soft("XRC")?;
        let (qpn, _) = hca.create_qp(|_| Ok((parts, life)))?;
        self.device().events.admit(Element::Qp(qpn));
        Ok(XrcTarget {
            qpn,
            xrcd: self.clone(),
        })
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
        self.device().hca.query_qp(self.qpn).unwrap_or_default()
    }

    /// The device's state of it.
    pub fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes state and attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`Error::Modify`] names what is missing, not allowed or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.device().hca.modify_qp(self.qpn, attr, mask)?;
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

impl Drop for XrcTarget {
    fn drop(&mut self) {
        self.device().hca.destroy_qp(self.qpn);
        self.device().events.retire(Element::Qp(self.qpn));
    }
}
