//! The software HCA: a verbs device with neither NIC nor kernel module, within a process and between
//! those of a host.
//!
//! It reads and writes the very entries that ConnectX devices do, from memory that core's queues
//! write and read.
//!
//! ```text
//!            data path: no lock, no system call                 control path: one lock
//!  ring ──► hca::execute ──► run ──► respond ──┐                lifecycle: create, modify, destroy
//!               │             │                ├─► receive      slow: wait, retry   fail: flush
//!               │             └────► datagram ─┘      │         under_lock: window, multicast
//!            quiesce         mr     qp, turn      srq, cq, copy inject, clock
//!               └────────────── when it cannot go on ──────────► slow
//! ```
//!
//! Execution is synchronous: a request that reaches its peer has been executed there, and is
//! acknowledged, when `run` goes on to the next. What is taken from under it (a key, a
//! connection) is taken by `quiesce`.
//!
//! What goes to another process leaves `run` by `remote`, and comes in there.

mod arm;
mod attempt;
mod clock;
mod control;
mod copy;
mod cq;
mod datagram;
mod doorbell;
mod engine;
mod fail;
mod fault;
mod hca;
mod inject;
mod journal;
mod lifecycle;
mod mr;
mod multicast;
mod numbers;
mod port;
mod qp;
mod quiesce;
pub(crate) mod random;
mod receive;
mod record;
mod remote;
mod respond;
mod run;
mod slow;
mod srq;
mod turn;
mod under_lock;
mod window;
mod xrcd;

pub use clock::ClockKind;
pub(crate) use cq::CqCtx;
pub use doorbell::{RecvDoorbell, SendDoorbell};
pub use fault::{Fault, Script, Trigger};
pub(crate) use hca::Running;
pub use hca::{HcaConfig, Mode};
pub use journal::{JournalEntry, ReceiveTold, RequestId};
pub(crate) use mr::{KEYS_BYTES, Scramble};
#[cfg(feature = "verbs")]
pub(crate) use numbers::Numbers;
pub(crate) use port::address_vector;
pub(crate) use quiesce::{Barriers, Section};
pub(crate) use record::{Life, QpParts, RecvParts};
pub(crate) use remote::ShownMemory;
pub(crate) use srq::{SrqCtx, XrcSrq};
pub(crate) use turn::Turn;
pub(crate) use xrcd::XrcDomain;

use crate::device::DeviceAttr;

/// Ports of a software HCA.
pub(crate) const PORTS: u8 = 1;

/// What a software HCA can do.
pub(crate) fn limits() -> DeviceAttr {
    DeviceAttr {
        max_qp: qp::MAX_QP as u32 - 1,
        max_qp_wr: 1 << 14,
        max_sge: 30,
        max_inline_data: 512,
        max_cqe: 1 << 22,
        max_mr: mr::MAX_MR as u32,
        max_mw: window::MAX_MW as u32,
        max_mr_size: u64::MAX,
        max_msg_sz: run::MAX_MESSAGE,
        max_qp_rd_atom: 16,
        max_mcast_qp_attach: multicast::MAX_MEMBERS as u32,
        max_pkeys: 1,
        phys_port_cnt: port::NUMBER,
        max_srq: srq::MAX_SRQ as u32 - 1,
        // A ring of 32768 entries, of which one is never posted.
        max_srq_wr: (1 << 15) - 1,
        // Behind the link they fill an entry of 512 bytes.
        max_srq_sge: 31,
    }
}
