//! Faults: what went wrong, how far it reaches, and how to recover from it.
//!
//! Each family of faults has a table with one row per fault: completion statuses ([`WcStatus`]), asynchronous
//! events ([`EventType`]), events of the communication manager ([`CmEvent`]) and error numbers of verbs calls
//! ([`Errno`]). The row defines the enum variant, its number and name, its texts, its [`Class`], its part of
//! `docs/faults.md` and its constant in `include/bellwire.h`. [`classify`] returns a class for every number,
//! including numbers that have no row.
//!
//! Nothing here runs unless the program calls it: the data path reports statuses only.

// Miri leaves these tests out: there is nothing for it to find.
#![forbid(unsafe_code)]

mod any;
mod class;
mod classify;
mod cm;
mod code;
mod errno;
mod event;
pub mod outcome;
pub mod plan;
mod status;
mod table;
#[cfg(test)]
mod tests;

pub use any::{Fault, Vendor, WorkQueue};
pub use class::{Blame, Class, Execution, Recovery, Retry, Scope};
pub use classify::classify;
pub use cm::CmEvent;
pub use code::{FaultCode, FaultFamily};
pub use errno::Errno;
pub use event::EventType;
pub use status::WcStatus;
pub use table::Text;
