//! Which descriptors of the process are ours.

use crate::context::File;
use crate::events::{Channel, Events};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What is behind a descriptor.
#[derive(Clone, Debug)]
pub enum Descriptor {
    /// The device, opened.
    Commands(Arc<File>),
    /// The asynchronous events of a context.
    Async(Arc<Events>),
    /// A completion channel.
    Channel(Arc<Channel>),
    /// Inherited from a process that has the device.
    Disowned,
}

impl Descriptor {
    /// The device, just opened.
    pub fn opened() -> Self {
        Self::Commands(Arc::new(File::default()))
    }
}

/// Descriptors from this number on are never ours.
const MAX: usize = 1 << 16;

/// A bit for each that is ours, so that the others cost one look.
static OURS: [AtomicU64; MAX / 64] = [const { AtomicU64::new(0) }; MAX / 64];

/// This process is a fork of one that has the device: the thread that it needs is not here.
static DISOWNED: AtomicBool = AtomicBool::new(false);

/// None of the descriptors leads anywhere any more. Called in a forked child; touches no lock, for others may
/// have held it.
pub fn disown() {
    // Relaxed: the child has one thread.
    DISOWNED.store(true, Ordering::Relaxed);
}

/// Whether the device cannot be used here.
pub fn disowned() -> bool {
    // Relaxed: it is set in a forked child while that has one thread.
    DISOWNED.load(Ordering::Relaxed)
}

fn table() -> MutexGuard<'static, HashMap<RawFd, Descriptor>> {
    static TABLE: LazyLock<Mutex<HashMap<RawFd, Descriptor>>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_ours(fd: RawFd) -> bool {
    // Relaxed: a thread that uses a descriptor got it from the one that put it here, after that.
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Makes a descriptor ours.
///
/// # Errors
/// `EMFILE` for a number that is too large.
pub fn put(fd: RawFd, descriptor: Descriptor) -> Result<(), Errno> {
    let (word, bit) = bit(fd).ok_or(Errno::MFILE)?;
    let old = table().insert(fd, descriptor);
    // Relaxed: other threads get the descriptor from this one, after this.
    word.fetch_or(bit, Ordering::Relaxed);
    // Not under the lock: it may close descriptors of its own.
    drop(old);
    Ok(())
}

/// What is behind a descriptor, if it is ours.
pub fn get(fd: RawFd) -> Option<Descriptor> {
    match is_ours(fd) {
        false => None,
        true if disowned() => Some(Descriptor::Disowned),
        true => table().get(&fd).cloned(),
    }
}

/// Gives a descriptor up.
pub fn take(fd: RawFd) -> Option<Descriptor> {
    if !is_ours(fd) {
        return None;
    }
    if let Some((word, bit)) = bit(fd) {
        // Relaxed: no other thread uses a descriptor that is being closed.
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    if disowned() {
        return None;
    }
    table().remove(&fd)
}
