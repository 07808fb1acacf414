//! The limit on the size of files, which applies to shared memory, too. Source: getrlimit(2), `RLIMIT_FSIZE`.

use super::error::MemoryError;
use super::limits::soft;
use super::region::check;
use super::size::Size;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Gives a file that was just created its length. Beyond `RLIMIT_FSIZE` (`ulimit -f`) ftruncate(2) raises SIGXFSZ,
/// which ends the process; so the limit is compared first.
///
/// # Errors
/// [`MemoryError::FileLimit`]; [`MemoryError::Os`] if the file cannot have the length.
pub fn set_length(file: BorrowedFd<'_>, length: usize) -> Result<(), MemoryError> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // Where it cannot be asked for, there is none to compare.
    // SAFETY: `limit` is writable and has the type that getrlimit fills in.
    let _infinite = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    let need = length as u64;
    if let Some(limit) = soft(&limit).filter(|limit| need > *limit) {
        return Err(MemoryError::FileLimit { limit, need });
    }
    let set = libc::off_t::try_from(length)
        .map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
        // SAFETY: a plain system call.
        .and_then(|length| check(unsafe { libc::ftruncate(file.as_raw_fd(), length) }));
    set.map_err(|source| MemoryError::Os {
        doing: format!("make {} of shared memory", Size(need)),
        source,
    })
}
