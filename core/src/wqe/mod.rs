//! Work queue entries (WQEs) in the ConnectX format: what the poster writes and the device reads.
//!
//! A send queue is a ring of 64-byte basic blocks. A WQE starts at a block, consists of 16-byte
//! segments, and may wrap around the end of the ring:
//!
//! ```text
//!        0        16                              64
//! RC UC  │ ctrl   │ raddr  │ data   │ data   …    │   WRITE, READ: raddr; SEND: none
//! RC     │ ctrl   │ raddr  │ atomic │ data        │   one block
//! XRC    │ ctrl   │ xrc    │ raddr  │ data …      │
//! UD     │ ctrl   │ address vector (48)           │ data …
//! DCI    │ ctrl   │ address vector (48)           │ raddr  │ data …
//! any    │ ctrl   │ umr control (48)              │ mkey context (64) │ klm (64)   LOCAL_INV, BIND_MW
//! ```
//!
//! Data is either a pointer (`byte_count lkey addr`) or inline (`len | 1<<31`, the bytes, padding
//! to 16). The type system allows only the valid combinations: [`Transport`] `:
//! Supports<Operation>`.
//!
//! Sources: the ConnectX programmer's reference manual, `mlx5dv.h`. The bytes are compared with
//! WQEs recorded from rdma-core's provider.

mod build;
mod decode;
mod error;
mod first_block;
mod operation;
mod payload;
mod receive;
mod segment;
#[cfg(test)]
mod tests;
mod transport;
mod umr;
mod view;

pub use crate::op::opcode;
pub use build::{EntryWriter, SendRing, build, fm_ce_se_at};
pub(crate) use build::{Owner, build_at, build_nop, ctrl_at, prefix, rebuild};
pub use decode::{Atomic, Destination, Malformed, Request, data_offset, operation_offset};
pub use error::PostError;
pub use first_block::FirstBlock;
pub use operation::*;
pub use payload::{Inline, InlineList, NoPayload, Payload, PayloadLimits};
pub use receive::{LIST_END_LKEY, RecvRing, SrqRing};
pub use segment::{
    AddressVector, AtomicSegment, BASIC_BLOCK, CtrlSegment, DataSegment, INLINE_FLAG, RaddrSegment,
    SEGMENT, XrcSegment, fm_ce_se,
};
pub use transport::{Address, DcAddress, Dci, Rc, Supports, Transport, Uc, Ud, UdAddress, Xrc};
pub use umr::{BindMw, BindMwInfo, BindMwType1, Umr, UnbindMw, UnbindMwType1};
pub use view::{Data, SendWqe, SgeList};
