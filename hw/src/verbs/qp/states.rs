//! States and attributes of a queue pair, whoever has its queues.

use super::super::attr;
use super::super::context::Context;
use super::super::sys;
use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wr::QpType;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Retries that rxe counts. It takes 7, the most that there are, for no end: a request to a peer that is
/// gone would never be told.
const RXE_RETRIES: u8 = 6;

/// A queue pair, which is alive.
pub(in crate::verbs) struct States<'a> {
    pub qp: NonNull<sys::ibv_qp>,
    pub transport: QpType,
    pub context: &'a Context,
}

impl States<'_> {
    /// State and attributes (`ibv_query_qp`).
    pub fn query(&self) -> Result<QpAttr, Error> {
        // SAFETY: numbers and null pointers, which zeroes are values of.
        let (mut attr, mut init) = unsafe {
            (
                MaybeUninit::<sys::ibv_qp_attr>::zeroed().assume_init(),
                MaybeUninit::<sys::ibv_qp_init_attr>::zeroed().assume_init(),
            )
        };
        let all = (QpAttrMask::all() - QpAttrMask::RATE_LIMIT).bits() as i32;
        // SAFETY: alive; both can be written.
        sys::check(unsafe {
            sys::ibv_query_qp(self.qp.as_ptr(), &raw mut attr, all, &raw mut init)
        })
        .map_err(|error| Error::io("query the queue pair", error))?;
        let attr = attr::qp_from_verbs(&attr);
        // Devices leave there what earlier lives had.
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
        // SAFETY: alive.
        sys::check(unsafe {
            sys::ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask.bits() as i32)
        })
    }

    /// Changes state and attributes (`ibv_modify_qp`), and gives the state before and the new one.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(QpState, QpState), Error> {
        let now = self.query()?;
        let drained = !now.sq_draining;
        let to = check_modify(self.transport, now.qp_state, drained, attr, mask)?;
        if now.qp_state == QpState::Reset && to == QpState::Err {
            // Linux has no such way. Nothing can be in flight.
            let init = QpAttr {
                qp_state: QpState::Init,
                port_num: 1,
                ..QpAttr::default()
            };
            let required = crate::qp::required(self.transport, QpState::Reset, QpState::Init);
            self.verbs_modify(&init, required)
                .map_err(|error| Error::io("modify the queue pair", error))?;
        }
        self.check_limits(attr, mask)?;
        if (now.qp_state, to) == (QpState::Sqd, QpState::Reset) {
            // While sends drain, rxe of Linux 6.1 lets a queue pair go nowhere else.
            self.error()
                .map_err(|error| Error::io("modify the queue pair", error))?;
        }
        self.verbs_modify(attr, mask)
            .map_err(|error| Error::io("modify the queue pair", error))?;
        Ok((now.qp_state, to))
    }

    /// What the device would refuse without saying what is wrong.
    fn check_limits(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let device = self.context.attr();
        let (ports, depth) = (device.phys_port_cnt, device.max_qp_rd_atom);
        crate::qp::check_limits(attr, mask, ports, depth)
    }

    /// To ERR, from any state that libibverbs has a way from.
    pub fn error(&self) -> io::Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        self.verbs_modify(&attr, QpAttrMask::STATE)
    }
}
