//! The flight recorder: what a queue pair did last, for whoever has to find out why it failed.
//!
//! Nothing is recorded while a program posts and polls: send entries, receives and completion entries
//! stay in their rings until they are written over, and [`Qp::dump`](crate::Qp::dump) reads them back.
//! (Completions of a device of libibverbs stand in no ring of ours; 16 bytes are kept of each.)
//! Only what happens on the control path (states, events, what the program [notes](crate::Qp::note))
//! goes to a list of its own, of the last 64. Works on every device.
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

mod dump;
mod entry;
mod note;
mod record;
mod text;

pub use entry::{Atomic, CompletionEntry, Inline, ReceiveEntry, Segment, SendEntry, Stage, Target};
pub use note::{Note, What};
pub use record::{CqView, DumpOptions, QueueView, Record};

pub(crate) use note::Notes;

/// Serializes by what it is called.
#[cfg(feature = "serde")]
fn as_text<T: std::fmt::Display, S: serde::Serializer>(of: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(of)
}

/// As [`as_text`], of what may be missing.
#[cfg(feature = "serde")]
fn as_text_if<T: std::fmt::Display, S: serde::Serializer>(
    of: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match of {
        Some(of) => to.collect_str(of),
        None => to.serialize_none(),
    }
}
