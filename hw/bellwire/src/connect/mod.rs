//! How two programs exchange what their queue pairs need to connect: [`ConnInfo`] is that information,
//! and [`tcp`] carries it over a TCP connection. [`cm`] is the communication manager, which exchanges it
//! by itself.

pub mod cm;
pub mod tcp;

use crate::pd::{Mr, Region};
pub use bellwire_core::link::{ConnInfo, FormatError, Message, RecoveryInfo, RemoteMemory};

impl From<&Mr> for RemoteMemory {
    fn from(mr: &Mr) -> Self {
        Self {
            addr: mr.addr(),
            length: mr.length(),
            rkey: mr.rkey(),
        }
    }
}

impl From<&Region> for RemoteMemory {
    fn from(region: &Region) -> Self {
        region.mr().into()
    }
}
