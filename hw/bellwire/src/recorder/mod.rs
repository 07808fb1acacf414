//! The flight recorder: what a queue pair did last, for finding out why it failed.
//!
//! Nothing is recorded while a program posts and polls: send entries, receives and completion queue
//! entries stay in their rings until they are overwritten, and [`Qp::dump`](crate::Qp::dump) reads them
//! back. (The completions of a libibverbs device are not in a ring of bellwire; 16 bytes are kept of
//! each.) Only what happens on the control path (changes of state, refusals, asynchronous events, the
//! program's [notes](crate::Qp::note)) goes to a separate list of the last 64 entries. Each request is
//! shown with how far it has got and how it completed. Works on every device.
//!
//! ```
//! use bellwire::recorder::DumpOptions;
//! use bellwire::wqe::Nop;
//! use bellwire::wr::SendFlags;
//! use bellwire::{ConnectAttr, Device, QpInit};
//!
//! let pd = Device::open("soft")?.alloc_pd();
//! let mut cq = pd.device().create_cq(512)?;
//! let mut qp = pd.create_qp(&mut cq, &QpInit::default())?;
//! let connect = ConnectAttr::default();
//! qp.init(&connect)?;
//! qp.connect(&qp.endpoint(), &connect)?; // with itself
//! qp.sq().post_empty(7, (), Nop {}, SendFlags::SIGNALED)?;
//! qp.sq().ring();
//! let text = qp.dump(&mut cq, &DumpOptions::default())?.to_string();
//! assert!(text.contains("NOP wr_id 7"), "{text}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading the rings
//! A CQE that was polled belongs to the device again. So the software HCA executes nothing while its
//! CQEs are copied, as while faults are injected, and nothing is fetched from a libibverbs device
//! meanwhile. The queue pair and its completion queues are borrowed exclusively, so nothing is posted
//! or polled.

mod dump;
mod entry;
mod note;
mod record;
mod text;

pub use entry::{Atomic, CompletionEntry, Inline, ReceiveEntry, Segment, SendEntry, Stage, Target};
pub use note::{Note, What};
pub use record::{CqView, DumpOptions, QueueView, Record};

pub(crate) use note::Notes;

mod serialize;
