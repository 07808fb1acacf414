//! Which of our ids each of librdmacm's is, and the lock around its calls.

use super::id::Id;
use rdma_sys::rdma_cm_id;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Ids by their address. One that is being destroyed is in it no more.
#[derive(Default)]
pub(super) struct Ids(HashMap<usize, Weak<Id>>);

/// Takes the lock. No [`Id`] may be dropped under it: the last takes it again.
pub(super) fn lock() -> MutexGuard<'static, Ids> {
    static IDS: LazyLock<Mutex<Ids>> = LazyLock::new(Mutex::default);
    // Each change is whole.
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ids {
    pub fn insert(&mut self, id: &Arc<Id>) {
        self.0.insert(id.handle().addr().get(), Arc::downgrade(id));
    }

    pub fn remove(&mut self, handle: NonNull<rdma_cm_id>) {
        self.0.remove(&handle.addr().get());
    }

    /// The id of this address, unless its last handle has gone.
    pub fn get(&self, handle: *mut rdma_cm_id) -> Option<Arc<Id>> {
        self.0.get(&handle.addr())?.upgrade()
    }
}
