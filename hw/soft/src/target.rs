//! XRC targets: queue pairs that only receive, into the shared receive queues of their domain.

use super::hca::Running;
use super::record::{QpParts, RecvParts};
use super::xrcd::XrcDomain;
use bellwire_core::qp::{QpAttr, QpAttrMask};
use bellwire_core::wr::QpType;
use bellwire_provider::error::Error;
use bellwire_provider::event::{AsyncQueue, Element};
use bellwire_provider::life::Life;
use std::sync::Arc;

/// An XRC target. It is destroyed when its last owner drops it.
#[derive(Debug)]
pub struct XrcTarget {
    qpn: u32,
    hca: Arc<Running>,
    /// The event queue of the context that it was created in.
    events: Arc<AsyncQueue>,
}

impl XrcTarget {
    /// Creates a target of this domain, in RESET. Its events are delivered to this queue.
    ///
    /// # Errors
    /// No queue pair number is left, or there is no memory to register it.
    pub fn create(
        hca: &Arc<Running>,
        events: &Arc<AsyncQueue>,
        domain: &XrcDomain,
    ) -> Result<Arc<Self>, Error> {
        let parts = QpParts {
            transport: QpType::XrcRecv,
            pd: 0,
            send: None,
            recv: RecvParts::Xrc {
                domain: domain.id(),
            },
            events: events.clone(),
        };
        let life = Life {
            send_start: 0,
            send_user_index: 0,
            recv_user_index: 0,
        };
        let (qpn, _) = hca.create_qp(|_| Ok((parts, life)))?;
        let target = Arc::new(Self {
            qpn,
            hca: hca.clone(),
            events: events.clone(),
        });
        events.admit(Element::Qp(qpn))?;
        domain.admit(&target)?;
        Ok(target)
    }

    /// Its queue pair number.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// Queries state and attributes.
    ///
    /// # Errors
    /// Those of the queue pair's number.
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.hca.query_qp(self.qpn)
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// [`Error::Modify`] says which attribute is missing, not allowed, or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.hca.modify_qp(self.qpn, attr, mask).map(|_| ())
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.hca.is_inherited() {
            return;
        }
        self.hca.destroy_qp(self.qpn);
        self.events.retire(Element::Qp(self.qpn));
    }
}
