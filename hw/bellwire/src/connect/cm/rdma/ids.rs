//! Maps librdmacm's ids to ours, and holds the lock around librdmacm's calls.

use super::id::Id;
use crate::memory::fork::PerProcess;
use bellwire_sys::rdmacm::rdma_cm_id;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Ids by their address, without ids that are being destroyed.
#[derive(Default)]
pub(super) struct Ids(HashMap<usize, Weak<Id>>);

/// Takes the lock. No [`Id`] may be dropped while it is held: dropping the last handle takes it again.
pub(super) fn lock() -> MutexGuard<'static, Ids> {
    static IDS: PerProcess<Mutex<Ids>> = PerProcess::new(Mutex::default);
    // A panic never leaves the map half changed.
    IDS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ids {
    pub fn insert(&mut self, id: &Arc<Id>) {
        self.0.insert(id.handle().addr().get(), Arc::downgrade(id));
    }

    /// An id has another handle.
    pub fn replace(&mut self, old: NonNull<rdma_cm_id>, new: NonNull<rdma_cm_id>) {
        if let Some(id) = self.0.remove(&old.addr().get()) {
            self.0.insert(new.addr().get(), id);
        }
    }

    pub fn remove(&mut self, handle: NonNull<rdma_cm_id>) {
        self.0.remove(&handle.addr().get());
    }

    /// The id at this address, unless its last handle has been dropped.
    pub fn get(&self, handle: *mut rdma_cm_id) -> Option<Arc<Id>> {
        self.0.get(&handle.addr())?.upgrade()
    }
}
