//! The software HCA: reliable connections within a process, with neither NIC nor kernel module.
//!
//! It reads and writes the very entries that ConnectX devices do, from memory that core's queues
//! write and read.
//!
//! ```text
//!            data path: no lock, no system call              control path: one lock
//!  ring ──► hca::execute ──► run ──► respond                 control: create, modify, destroy
//!               │             │         │                    slow: wait, retry, fail, flush
//!            quiesce         mr     qp, cq, copy             clock
//!               └────────────── when it cannot go on ──────────► slow
//! ```
//!
//! Execution is synchronous: a request that reaches its peer has been executed there, and is
//! acknowledged, when `run` goes on to the next. What is taken from under it (a key, a
//! connection) is taken by `quiesce`.

mod clock;
mod control;
mod copy;
mod cq;
mod doorbell;
mod engine;
mod hca;
mod mr;
mod qp;
mod quiesce;
mod respond;
mod run;
mod slow;
mod srq;

pub use clock::ClockKind;
pub(crate) use control::{Life, QpParts};
pub(crate) use cq::CqCtx;
pub use doorbell::{RecvDoorbell, SendDoorbell};
pub(crate) use hca::Running;
pub use hca::{HcaConfig, Mode};
pub(crate) use srq::{SrqCtx, XrcSrq};

use crate::device::DeviceAttr;

/// What a software HCA can do.
pub(crate) fn limits() -> DeviceAttr {
    DeviceAttr {
        max_qp: qp::MAX_QP as u32 - 1,
        max_qp_wr: 1 << 14,
        max_sge: 30,
        max_inline_data: 512,
        max_cqe: 1 << 22,
        max_mr: mr::MAX_MR as u32,
        max_mr_size: u64::MAX,
        max_msg_sz: run::MAX_MESSAGE,
        max_qp_rd_atom: 16,
        max_srq: srq::MAX_SRQ as u32 - 1,
        // A ring of 32768 entries, of which one is never posted.
        max_srq_wr: (1 << 15) - 1,
        // Behind the link they fill an entry of 512 bytes.
        max_srq_sge: 31,
    }
}
