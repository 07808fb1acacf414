use anyhow::{Context, Result};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Starts a thread of the scope, as [`Scope::spawn`] does.
///
/// # Errors
/// The system has no thread left: `Scope::spawn` panics then.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let started = Builder::new().spawn_scoped(scope, run);
    started.context("cannot start a thread: raise `ulimit -u` and the cgroup's pids.max")
}
