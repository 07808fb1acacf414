//! What the library has to say of set-up, recoveries and failures: for a log of the program's own.
//!
//! ```
//! use bellwire::log::{Level, set_hook};
//!
//! set_hook(Level::Info, |record| eprintln!("bellwire: {}: {}", record.level, record.text));
//! let device = bellwire::Device::soft(Default::default());
//! # bellwire::log::clear_hook();
//! ```
//!
//! There is one hook for the process. With the feature `tracing`, every record is also an event of the crate tracing,
//! with the target `bellwire`.
//!
//! | level | records |
//! |---|---|
//! | [`Error`](Level::Error) | a link that could not be recovered |
//! | [`Warn`](Level::Warn) | each fault of a link; a link that works again, but not as before; a peer that is refused |
//! | [`Info`](Level::Info) | a device that is opened, a connection that is made, a link that recovered or was closed |
//! | [`Debug`](Level::Debug) | set-up calls that fail, which return the same text to their caller |
//!
//! - **Off the data path.** Posting, ringing and polling a link that works log nothing.
//! - **Threads.** The thread calls the hook on which the record arises: that of a set-up call or a poll, or the
//!   recovery thread of a link. Several threads may call it at once.
//! - **Locks.** The hook is called under no lock. It may call the library, also on other links and sets, and may set
//!   another hook. A record that arises in the hook itself is dropped.
//! - **Panics** of the hook are dropped.
//! - **fork.** A child has no hook until it sets one.

use crate::memory::fork::PerProcess;
use bellwire_provider::backoff::Backoff;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How urgent a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something has ended that the program has to replace.
    Error = 1,
    /// Something failed, and the library deals with it.
    Warn = 2,
    /// Something was set up, has recovered, or was closed.
    Info = 3,
    /// Details for a search.
    Debug = 4,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Record<'a> {
    /// How urgent it is.
    pub level: Level,
    /// What happened, and to what: one line, without the level.
    pub text: &'a str,
}

type Hook = dyn Fn(&Record<'_>) + Send + Sync;

static HOOK: PerProcess<Mutex<Option<Arc<Hook>>>> = PerProcess::new(Mutex::default);

/// The least urgent level of the hook; 0 without one. A parent's stays in a child of fork, where no hook is found.
static LEVEL: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// This thread is in the hook.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the function that is called with each record of this level, and of more urgent ones. It replaces the function
/// that was set before.
///
/// When this returns, no thread is in the function that was replaced, unless the hook itself called this. So do not
/// call it with a lock held that the hook takes.
pub fn set_hook(least: Level, hook: impl Fn(&Record<'_>) + Send + Sync + 'static) {
    replace(Some(Arc::new(hook)), least as u8);
}

/// Removes the hook; waits as [`set_hook`] does.
pub fn clear_hook() {
    replace(None, 0);
}

fn replace(hook: Option<Arc<Hook>>, level: u8) {
    let before = {
        let mut place = HOOK.get().lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: a record that arises meanwhile may still find the old level.
        LEVEL.store(level, Ordering::Relaxed);
        std::mem::replace(&mut *place, hook)
    };
    let Some(before) = before else {
        return;
    };
    let mut backoff = Backoff::between_polls();
    while Arc::strong_count(&before) > 1 && !INSIDE.get() {
        backoff.wait();
    }
    // What the hook owns may panic when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(before)));
}

/// Whether somebody wants records of this level.
#[inline]
pub(crate) fn wants(level: Level) -> bool {
    // Relaxed: see `replace`.
    LEVEL.load(Ordering::Relaxed) >= level as u8 || traced(level)
}

/// Logs a record. Call it under no lock.
pub(crate) fn log(level: Level, text: fmt::Arguments<'_>) {
    if wants(level) {
        write(level, text);
    }
}

/// Logs the failure of a set-up call.
pub(crate) fn failed<T, E: fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, E> {
    if let Err(error) = &result {
        log(Level::Debug, format_args!("{what}: {error}"));
    }
    result
}

#[cold]
#[inline(never)]
fn write(level: Level, text: fmt::Arguments<'_>) {
    if INSIDE.replace(true) {
        return;
    }
    let text = text.to_string();
    trace(level, &text);
    let hook = {
        let place = HOOK.get().lock().unwrap_or_else(PoisonError::into_inner);
        place.clone()
    };
    // Relaxed: see `replace`.
    if let Some(hook) = hook
        && LEVEL.load(Ordering::Relaxed) >= level as u8
    {
        let text = &text;
        let called = catch_unwind(AssertUnwindSafe(|| hook(&Record { level, text })));
        // The payload of a panic may panic when it is dropped.
        std::mem::forget(called);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(hook)));
    }
    INSIDE.set(false);
}

#[cfg(not(feature = "tracing"))]
fn traced(_: Level) -> bool {
    false
}

#[cfg(not(feature = "tracing"))]
fn trace(_: Level, _: &str) {}

#[cfg(feature = "tracing")]
fn traced(level: Level) -> bool {
    use tracing::level_filters::LevelFilter;
    let least = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    LevelFilter::current() >= least
}

#[cfg(feature = "tracing")]
fn trace(level: Level, text: &str) {
    // A subscriber may panic, as a hook may.
    let traced = catch_unwind(AssertUnwindSafe(|| match level {
        Level::Error => tracing::error!(target: "bellwire", "{text}"),
        Level::Warn => tracing::warn!(target: "bellwire", "{text}"),
        Level::Info => tracing::info!(target: "bellwire", "{text}"),
        Level::Debug => tracing::debug!(target: "bellwire", "{text}"),
    }));
    std::mem::forget(traced);
}
