//! Queue pairs of peers that have a connection with this process. As in Linux
//! (drivers/infiniband/core/cm.c) such a queue pair cannot have another connection until the program has
//! ended the first: packets of the first could be taken for those of the second.
//!
//! The endpoint that a message names is a claim of its sender. So a queue pair is reserved among those of the process that
//! has sent the message: one that names the endpoint of another process takes nothing from that process.

use super::peers::PeerProcess;
use crate::memory::fork::PerProcess;
use crate::qp::Endpoint;
use bellwire_provider::short::Short;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The scope, the process that names the queue pair (zero: this one), the port's LID and GID, and the queue pair number.
type Key = (Short<128>, u64, u16, [u8; 16], u32);

/// The queue pair of a peer, reserved for as long as no other connection may be made with it.
#[derive(Debug)]
pub(super) struct RemoteQp(Key);

/// Taken after the channels' locks; no other lock is taken while it is held.
fn connected() -> MutexGuard<'static, BTreeSet<Key>> {
    static CONNECTED: PerProcess<Mutex<BTreeSet<Key>>> = PerProcess::new(Mutex::default);
    // A panic never leaves the set half changed.
    CONNECTED
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl RemoteQp {
    /// `None` if the queue pair that this process names has a connection.
    pub fn new(scope: &str, process: Option<&PeerProcess>, endpoint: &Endpoint) -> Option<Self> {
        let key = (
            Short::new(format_args!("{scope}")),
            process.map_or(0, PeerProcess::identity),
            endpoint.lid,
            endpoint.gid,
            endpoint.qp_num,
        );
        let free = connected().insert(key);
        free.then(|| Self(key))
    }
}

impl Drop for RemoteQp {
    fn drop(&mut self) {
        connected().remove(&self.0);
    }
}
