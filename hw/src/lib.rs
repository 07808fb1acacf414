//! bellwire is an RDMA data plane: memory, devices and connections for the queues and entries of
//! `bellwire-core`. This is the crate that Rust programs depend on.

pub mod memory;

mod cq;
mod device;
mod error;
mod pd;
mod pinned;
mod qp;
mod slab;
pub mod soft;

pub use bellwire_core::qp as state;
pub use bellwire_core::slab::{self as blocks, Block, ClassLayout, TakeError};
pub use bellwire_core::{access::AccessFlags, be, cqe, port, queue, ring, wqe, wr};
pub use cq::{Cq, Cqs};
pub use device::{Device, DeviceAttr, DeviceInfo};
pub use error::Error;
pub use pd::{Mr, Pd, Region};
pub use qp::{ConnectAttr, Endpoint, Qp, QpInit, RcRecvQueue, RcSendQueue};
pub use slab::{Slab, SlabCache};
