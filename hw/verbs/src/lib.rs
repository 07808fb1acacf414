//! Devices of libibverbs: rxe, siw, EFA, Broadcom, Intel, ConnectX.
//!
//! ```text
//!   core: SendQueue, RecvQueue, SharedRecvQueue           core: CompletionQueue
//!     │ entries in the ConnectX format, in our memory        ▲ the same format, singly or in our memory
//!     ▼ ring                                                 │ poll
//!   request ──► extended: ibv_wr_*                         wc ◄── ibv_start_poll, ibv_end_poll
//!          └──► chain: ibv_post_send                         ◄── ibv_poll_cq
//!   recv, srq: ibv_post_recv, ibv_post_srq_recv
//!     └───────────────────────── the device ─────────────────┘
//! ```
//!
//! A device stands behind core's rings, as the software HCA does: the ledger, the credits, the blocks and the
//! outcomes are the same code for all of them. The `wr_id` that libibverbs is given consists of the queue's
//! user index and the request's counter (`tag`); it is never a pointer.
//!
//! - **Posting.** The doorbell is given what core knows of the last entry
//!   ([`LastEntry`](bellwire_core::port::LastEntry)). Of a SEND, WRITE or READ with its data in one piece,
//!   only that data and the remote address are then read back from the ring, and where posting and ringing
//!   are inlined together the compiler knows the operation. Receives are posted as lists. The entries of a
//!   shared receive queue are taken from its ring by core's `SrqConsumer`, as by the software HCA.
//! - **Binding** finds windows and regions by their keys, under a lock: it is not for the data path.
//! - **Registering.** Memory can be registered at an address of the program's choice (`Pd::register_at`), or
//!   as another device's (`Pd::register_dmabuf`), and changed in place (`Mr::reregister`), where the driver
//!   supports it.
//! - **Ending.** Before a queue pair is destroyed, it goes to ERR, and a last entry is posted to each of its
//!   queues. Everything has been reported when both complete, or after 1 s. On a completion queue that failed, the
//!   wait ends once the queue has written nothing for 20 ms.
//! - **Overruns.** `reserve_cq` rules them out. Without it, the queue pairs of a completion queue go to ERR when
//!   the program gets the event `CQ_ERR`: rxe does not move senders there. A reset reports what the queue lost.
//! - **The local GID.** Unless `ConnectAttr::gid_index` names an entry, each connection chooses a RoCE v2 entry
//!   anew (see `gid`). The port and the device bound `path_mtu` and the depths of READs.
//! - **rxe of Linux 6.1.** It panics on a bind of length zero, so such a bind is refused with `MW_BIND_ERR`. It
//!   never gives up with 7 retries, so it gets 6.
//! - **Diagnosis.** `BELLWIRE_VERBS_PLAIN=1` opens devices as if they had neither `ibv_wr_*` nor `ibv_start_poll`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ah;
mod attr;
mod calls;
mod chain;
mod context;
mod counters;
mod cq;
mod event;
mod extended;
mod gid;
mod kernel;
mod library;
mod list;
mod memory;
pub mod mlx5dv;
mod operation;
mod poll;
mod qp;
mod recv;
mod register;
mod reported;
mod request;
mod send;
mod srq;
mod tag;
mod wc;
mod xrc;

pub use bellwire_sys::ibverbs as sys;

pub use ah::Ah;
pub use attr::{ah_from_verbs, qp_from_verbs};
pub use context::{Context, open_contexts};
pub use cq::CqObject;
pub use cq::{Cq, CqChannel};
pub use event::{Channel, Source};
pub use library::{missing, not_loaded};
pub use list::{auto, describe, open};
pub use memory::Pd;
pub use poll::Extended;
pub use qp::{Qp, QpConfig, Way};
pub use recv::RecvDoorbell;
pub use register::Registers;
pub use send::SendDoorbell;
pub use srq::{Srq, SrqDoorbell, XrcSrq};
pub use xrc::{Target, Xrcd};

use bellwire_provider::{error, pinned};
