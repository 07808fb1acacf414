//! What a child of fork(2) must not touch: state, objects, memory and descriptors that belong to its parent.
//!
//! A child has a copy of every value, but none of the other threads. A lock that one of these threads held
//! stays locked, and a thread that the value relies on does not exist. So a child starts afresh:
//!
//! - [`Life`] tells a process from its parent. Each child has another one.
//! - [`PerProcess`] is a static value of which each process has its own.
//! - [`Own`] is a value that only its process drops. Elsewhere its destructor never runs.
//! - [`exclude`] keeps a range of addresses out of children.
//! - [`Fd`] is a descriptor that children close before anything else.
//!
//! A child of vfork(2) or posix_spawn(3) shares its parent's memory until it calls exec(2), and counts as the
//! same life.

mod fd;
mod kept;
mod life;
mod own;
mod per_process;

pub use fd::Fd;
pub use kept::keep;
pub use life::Life;
pub use own::Own;
pub use per_process::PerProcess;

use std::io;
use std::ptr::NonNull;

/// Keeps whole pages out of the children of this process (`MADV_DONTFORK`), so that a child can neither write
/// what a peer reads nor keep the memory of its parent alive. A child has a hole there, which its own mappings
/// may fill: it must not unmap the range.
///
/// # Errors
/// Those of madvise(2).
pub fn exclude(start: NonNull<u8>, len: usize) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: the advice changes nothing in this process.
    super::region::check(unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTFORK) })
}
