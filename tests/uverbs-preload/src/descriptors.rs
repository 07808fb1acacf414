//! Which descriptors of the process are ours.

use crate::context::File;
use crate::events::{Channel, Events};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
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
}

impl Descriptor {
    /// The device, just opened.
    pub fn opened() -> Self {
        Self::Commands(Arc::new(File::default()))
    }
}

/// Descriptors from here on are nobody's of ours.
const MAX: usize = 1 << 16;

/// A bit for each that is ours, so that the others cost one look.
static OURS: [AtomicU64; MAX / 64] = [const { AtomicU64::new(0) }; MAX / 64];

fn table() -> MutexGuard<'static, HashMap<RawFd, Descriptor>> {
    static TABLE: LazyLock<Mutex<HashMap<RawFd, Descriptor>>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_ours(fd: RawFd) -> bool {
    // Relaxed: who uses a descriptor has got it from whoever put it here.
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Makes a descriptor ours.
///
/// # Errors
/// `EMFILE` for a number that is too large.
pub fn put(fd: RawFd, descriptor: Descriptor) -> Result<(), Errno> {
    let (word, bit) = bit(fd).ok_or(Errno::MFILE)?;
    let old = table().insert(fd, descriptor);
    // Relaxed: as above.
    word.fetch_or(bit, Ordering::Relaxed);
    // Not under the lock: it may close descriptors of its own.
    drop(old);
    Ok(())
}

/// What is behind a descriptor, if it is ours.
pub fn get(fd: RawFd) -> Option<Descriptor> {
    is_ours(fd).then(|| table().get(&fd).cloned()).flatten()
}

/// Gives a descriptor up.
pub fn take(fd: RawFd) -> Option<Descriptor> {
    if !is_ours(fd) {
        return None;
    }
    if let Some((word, bit)) = bit(fd) {
        // Relaxed: as above.
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    table().remove(&fd)
}
