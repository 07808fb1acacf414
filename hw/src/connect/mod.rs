//! How two programs bring to each other what their queue pairs need: [`ConnInfo`] says what that is,
//! [`tcp`] brings it over a TCP connection. [`cm`] is the communication manager, which has its own way.

pub mod cm;
mod format;
mod info;
mod message;
pub mod tcp;

pub use format::FormatError;
pub use info::{ConnInfo, RemoteMemory};
pub use message::{Message, RecoveryInfo};
