//! State and attributes of a queue pair, in libibverbs.

use super::super::attr;
use super::super::context::Context;
use super::super::sys;
use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wr::QpType;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The highest retry count that rxe counts down. It retries without end if given 7, the maximum: a request to
/// a peer that is gone would never be reported.
const RXE_RETRIES: u8 = 6;

/// A queue pair that is alive.
pub(crate) struct States<'a> {
    pub qp: NonNull<sys::ibv_qp>,
    pub transport: QpType,
    pub context: &'a Context,
}

impl States<'_> {
    /// Queries state and attributes (`ibv_query_qp`).
    pub fn query(&self) -> Result<QpAttr, Error> {
        // SAFETY: the structures consist of numbers and null pointers, for which zeroes are valid.
        let (mut attr, mut init) = unsafe {
            (
                MaybeUninit::<sys::ibv_qp_attr>::zeroed().assume_init(),
                MaybeUninit::<sys::ibv_qp_init_attr>::zeroed().assume_init(),
            )
        };
        let all = (QpAttrMask::all() - QpAttrMask::RATE_LIMIT).bits() as i32;
        // SAFETY: the queue pair is alive, and both structures can be written.
        sys::check(unsafe {
            sys::ibv_query_qp(self.qp.as_ptr(), &raw mut attr, all, &raw mut init)
        })
        .map_err(|error| Error::io("query the queue pair", error))?;
        let attr = attr::qp_from_verbs(&attr);
        // In RESET, devices return attributes of earlier lives.
        Ok(match attr.qp_state {
            QpState::Reset => QpAttr::default(),
            _ => attr,
        })
    }

    fn verbs_modify(&self, attr: &QpAttr, mask: QpAttrMask) -> io::Result<()> {
        let mut attr = attr::qp_to_verbs(attr);
        if self.context.is_rxe {
            attr.retry_cnt = attr.retry_cnt.min(RXE_RETRIES);
        }
        // SAFETY: the queue pair is alive.
        sys::check(unsafe {
            sys::ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask.bits() as i32)
        })
    }

    /// Changes state and attributes (`ibv_modify_qp`), and returns the previous and the new state.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(QpState, QpState), Error> {
        let now = self.query()?;
        let drained = !now.sq_draining;
        let to = check_modify(self.transport, now.qp_state, drained, attr, mask)?;
        if now.qp_state == QpState::Reset && to == QpState::Err {
            // Linux has no such transition, so it goes by INIT. Nothing can be in flight.
            let init = QpAttr {
                qp_state: QpState::Init,
                port_num: 1,
                ..QpAttr::default()
            };
            let required =
                bellwire_provider::limits::required(self.transport, QpState::Reset, QpState::Init);
            self.verbs_modify(&init, required)
                .map_err(|error| Error::io("modify the queue pair", error))?;
        }
        self.check_limits(attr, mask)?;
        if (now.qp_state, to) == (QpState::Sqd, QpState::Reset) {
            // While the send queue drains, rxe of Linux 6.1 allows no other transition.
            self.error()
                .map_err(|error| Error::io("modify the queue pair", error))?;
        }
        self.verbs_modify(attr, mask)
            .map_err(|error| Error::io("modify the queue pair", error))?;
        Ok((now.qp_state, to))
    }

    /// Checks what the device would refuse without naming the attribute.
    fn check_limits(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let device = self.context.attr();
        let (ports, depth) = (device.phys_port_cnt, device.max_qp_rd_atom);
        bellwire_provider::limits::check_limits(attr, mask, ports, depth)
    }

    /// Moves the queue pair to ERR, from any state in which libibverbs has that transition.
    pub fn error(&self) -> io::Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        self.verbs_modify(&attr, QpAttrMask::STATE)
    }
}
