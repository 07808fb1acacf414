//! Faults: what went wrong, how far it reaches, and what to do about it.
//!
//! One table for each family of faults, with a row for each fault: completion statuses
//! ([`WcStatus`]), asynchronous events ([`EventType`]), events of the communication manager
//! ([`CmEvent`]), and the error numbers of verbs calls ([`Errno`]). From a row come the enum, its
//! number and name, its texts, its [`Class`], its part of `docs/faults.md` and its constant in
//! `include/bellwire.h`. [`classify`] answers for every number, also for those that no row has.
//!
//! Nothing here runs unless it is called: the data path tells statuses, and no more.

mod any;
mod class;
mod classify;
mod cm;
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
pub use errno::Errno;
pub use event::EventType;
pub use status::WcStatus;
pub use table::Text;
