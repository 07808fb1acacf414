//! How two programs bring to each other what their queue pairs need: [`ConnInfo`] says what that is,
//! [`tcp`] brings it over a TCP connection.

mod info;
pub mod tcp;

pub use info::{ConnInfo, FormatError, RemoteMemory};
