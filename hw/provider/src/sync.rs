//! Atomics, replaced by those whose orderings can be taken away where models of lock-free code are run: for loom,
//! and for Miri. Models are written once for both.

#[cfg(all(test, any(loom, miri)))]
#[path = "../../../core/src/sync/model.rs"]
pub(crate) mod model;

#[cfg(any(loom, all(test, miri)))]
#[path = "../../../core/src/sync/weaken.rs"]
pub(crate) mod weaken;

#[cfg(any(loom, all(test, miri)))]
pub(crate) use weaken as atomic;

#[cfg(all(loom, test))]
pub(crate) use weaken::needs_orderings;

#[cfg(not(any(loom, all(test, miri))))]
pub(crate) use std::sync::atomic;
