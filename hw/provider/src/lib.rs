//! The common base of bellwire's providers: errors, events, the sources of devices, memory whose size the
//! program chooses, and waiting for the data path.
//!
//! Programs depend on `bellwire`, which re-exports the public parts. Providers are built on this crate, which
//! does not depend on any of them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod address;
pub mod attr;
pub mod backoff;
pub mod entropy;
pub mod error;
pub mod event;
pub mod history;
pub mod life;
pub mod limits;
pub mod numbers;
pub mod path;
pub mod pinned;
pub mod psn;
pub mod quiesce;
pub mod short;
pub mod source;
mod sync;
pub mod thread;
