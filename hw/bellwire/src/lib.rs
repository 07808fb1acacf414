//! bellwire is an RDMA data plane: memory, devices and connections for the queues and entries of
//! `bellwire-core`. This is the crate that Rust programs depend on.
//!
//! | to | use |
//! |---|---|
//! | open a device, query its attributes | [`Device`] |
//! | find out why a device is missing | [`Device::list`], [`Device::choice`]: [`sources`] |
//! | register memory | [`memory::Mapping`], [`Region`], [`Slab`]; [`Pd::register`] for memory of the program's own; [`Mw`] for temporary access to a part of a region |
//! | connect | [`Pd::create_qp`], [`Qp::init`], [`Qp::connect`], or [`Qp::modify`] step by step; [`Pd::create_qp_of`] for UC, UD and XRC |
//! | exchange connection parameters with the peer | [`connect::tcp`] |
//! | send datagrams | [`Qp<Ud>`](Qp), [`Ah`]; [`Qp::attach_mcast`] for multicast groups |
//! | share receives between queue pairs | [`Srq`]; [`Xrcd`], [`XrcTarget`] |
//! | post requests | [`Qp::sq`], [`Qp::rq`]: [`queue::SendQueue`], [`queue::RecvQueue`], with an operation of [`wqe`] |
//! | poll for completions | [`Cq::poll_one`]: [`queue::Completion`] |
//! | sleep until there are completions | [`event::CompChannel`], [`Cq::req_notify`] |
//! | get asynchronous events | [`Device::get_async_event`]: [`event::EventType`] |
//! | find out what a failure means, and what to do | [`fault::classify`]: [`fault::Class`] |
//! | have another thread read counters | [`monitor`] |
//! | have set-up, recoveries and failures in a log | [`log`] |
//! | find out why a queue pair failed | [`Qp::dump`]: [`recorder`] |
//! | have a connection that recovers | [`link::Link`] |
//! | inject faults in a test | [`soft::SoftDevice::inject`]: [`soft::Script`] |
//!
//! Set-up calls return an [`Error`] that says what to do. Posting, ringing the doorbell and polling allocate
//! no memory, make no system calls and take no locks. A queue has one owner at a time.
//!
//! ```
//! use bellwire::memory::Mapping;
//! use bellwire::wqe::Send;
//! use bellwire::wr::SendFlags;
//! use bellwire::{AccessFlags, ClassLayout, ConnectAttr, Device, QpInit, Region, Slab};
//!
//! let pd = Device::open("auto")?.alloc_pd();
//! let layout = [ClassLayout { size: 4096, count: 16 }];
//! let mapping = Mapping::anonymous(Slab::bytes(&layout)?).build()?;
//! let slab = Slab::new(Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?, &layout)?;
//!
//! let init = QpInit::default();
//! let (sends, receives) = init.cq_entries();
//! let mut cq = pd.device().create_cq(sends + receives)?;
//! let mut qp = pd.create_qp(&mut cq, &init)?;
//! let connect = ConnectAttr::default();
//! qp.init(&connect)?;
//! qp.connect(&qp.endpoint(), &connect)?; // with itself
//!
//! // Blocks move into requests, and come back with the completions.
//! qp.rq().post_block(1, slab.take(4096)?)?;
//! qp.rq().ring();
//! let mut block = slab.take(4096)?;
//! block.as_mut_slice()[..5].copy_from_slice(b"hello");
//! qp.sq().post_block(2, (), Send {}, block, 5, SendFlags::SIGNALED)?;
//! qp.sq().ring();
//!
//! let mut polled = 0;
//! while polled < 2 {
//!     let Some(completion) = cq.poll_one() else { continue };
//!     let done = completion.result?;
//!     let block = completion.block.expect("posted with one");
//!     if done.opcode.is_recv() {
//!         assert_eq!(&block.as_slice()[..done.byte_len().unwrap_or(0) as usize], b"hello");
//!     }
//!     polled += 1;
//! }
//! assert_eq!(slab.outstanding(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! When a request fails, its class says what happened and what to do:
//!
//! ```
//! use bellwire::fault::{Fault, Recovery, Retry, WorkQueue, classify};
//! use bellwire::wqe::RdmaWrite;
//! use bellwire::wr::{QpType, Remote, SendFlags, WrOpcode};
//! # use bellwire::{ConnectAttr, Device, QpInit};
//! # let pd = Device::open("soft")?.alloc_pd();
//! # let init = QpInit::default();
//! # let (sends, receives) = init.cq_entries();
//! # let mut cq = pd.device().create_cq(sends + receives)?;
//! # let mut qp = pd.create_qp(&mut cq, &init)?;
//! # let connect = ConnectAttr::default();
//! # qp.init(&connect)?;
//! # qp.connect(&qp.endpoint(), &connect)?;
//!
//! // A key that the peer never gave.
//! let remote = Remote { addr: 0x1000, rkey: 77 };
//! qp.sq().post_inline(1, (), RdmaWrite { remote }, b"data", SendFlags::SIGNALED)?;
//! qp.sq().ring();
//! let completion = loop {
//!     if let Some(completion) = cq.poll_one() { break completion }
//! };
//! if let Err(failure) = completion.result {
//!     let queue = WorkQueue::Send(Some(WrOpcode::RdmaWrite));
//!     let fault = Fault::completion(&failure, QpType::Rc, queue);
//!     let class = classify(fault);
//!     eprintln!("request {}: {fault}: {}", completion.wr_id, fault.text());
//!     eprintln!("cause: {}", class.cause);
//!     eprintln!("at the peer: {}", class.execution.text());
//!     eprintln!("to recover: {}", class.recovery.text());
//!     eprintln!("the request: {}", class.retry.text());
//!     eprintln!("look at: {}", class.advice);
//! #   assert_eq!(fault.to_string(), "REM_ACCESS_ERR");
//!     assert_eq!(class.recovery, Recovery::ResetQp);
//!     assert_eq!(class.retry, Retry::AfterRepair);
//! }
//! # else { panic!("it was executed") }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ah;
pub mod connect;
mod cq;
mod device;
pub mod event;
#[cfg(fuzzing)]
pub mod fuzzing;
mod grh;
pub mod link;
pub mod log;
pub mod monitor;
mod mw;
mod panics;
mod pd;
mod provider;
mod qp;
pub mod recorder;
mod resources;
pub mod rings;
mod slab;
pub mod soft;
pub mod sources;
mod srq;
mod xrcd;

use bellwire_mlx5 as mlx5;
use bellwire_provider::{error, pinned};
use bellwire_verbs as verbs;

pub use ah::{Ah, GRH_BYTES, ah_attr_from_source, ah_attr_from_wc};
pub use bellwire_core::qp as state;
pub use bellwire_core::slab::{self as blocks, Block, ClassLayout, TakeError};
pub use bellwire_core::{access::AccessFlags, be, cqe, fault, op, port, queue, wqe, wr};
pub use bellwire_memory as memory;
pub use bellwire_provider::address;
pub use bellwire_provider::attr::{
    DeviceAttr, DeviceCounters, DeviceInfo, PortAttr, PortState, Resources, XrcdMode,
};
pub use bellwire_provider::error::Error;
pub use bellwire_provider::source::ProviderKind;
pub use cq::{Cq, CqInit, Cqs};
pub use device::Device;
pub use mw::Mw;
pub use pd::{Mr, Pd, Region, Rereg};
pub use qp::{
    Binds, ConnectAttr, Connected, Endpoint, PathAttr, Qp, QpInit, QpRecvQueue, QpSendQueue,
    QpTransport, RcSendQueue, XrcTarget,
};
pub use slab::{Slab, SlabCache};
pub use srq::{Srq, SrqAttr, SrqInit};
pub use xrcd::Xrcd;

/// Compiles and runs the README's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
