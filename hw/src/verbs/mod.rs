//! Devices of libibverbs: rxe, siw, EFA, Broadcom, Intel, ConnectX.
//!
//! ```text
//!   core: SendQueue, RecvQueue, SharedRecvQueue           core: CompletionQueue
//!     │ entries in the ConnectX format, in our memory        ▲ the same, by themselves or in our memory
//!     ▼ ring                                                 │ poll
//!   request ──► extended: ibv_wr_*                         wc ◄── ibv_start_poll, ibv_end_poll
//!          └──► chain: ibv_post_send                         ◄── ibv_poll_cq
//!   recv, srq: ibv_post_recv, ibv_post_srq_recv
//!     └───────────────────────── the device ─────────────────┘
//! ```
//!
//! A device stands behind core's rings, as the software HCA does: ledger, credits, blocks and outcomes
//! are one code for all. What is given to libibverbs to know a request by is its queue's user index
//! and its counter (`tag`), never a pointer.

mod ah;
mod attr;
mod calls;
mod chain;
mod context;
mod cq;
mod event;
mod extended;
#[cfg(test)]
mod layouts;
mod list;
mod memory;
mod poll;
mod qp;
mod recv;
mod request;
mod send;
mod srq;
pub(crate) mod sys;
mod tag;
mod told;
mod wc;
mod xrc;

pub(crate) use ah::Ah;
#[cfg(feature = "cm")]
pub(crate) use attr::{ah_from_verbs, qp_from_verbs};
pub(crate) use context::Context;
#[cfg(feature = "mlx5")]
pub(crate) use cq::CqObject;
pub(crate) use cq::{Cq, CqChannel};
pub(crate) use event::{Channel, Source};
#[cfg(all(test, feature = "mlx5"))]
pub(crate) use layouts::{compare_layouts, layouts};
pub(crate) use list::{describe, first_active, open};
pub(crate) use memory::Pd;
pub(crate) use poll::Extended;
pub(crate) use qp::{Qp, QpConfig, Way};
pub use recv::RecvDoorbell;
pub use send::SendDoorbell;
pub(crate) use srq::{Srq, SrqDoorbell, XrcSrq};
pub(crate) use xrc::{Target, Xrcd};
