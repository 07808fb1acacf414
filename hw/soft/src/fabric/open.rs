//! Opens memory of a peer by its descriptor in the peer's process.
//!
//! The peer decides what its descriptor refers to, and can change that at any time. Opening a device file or
//! a FIFO can have side effects or block, and querying a file on some file systems can wait for the process
//! that serves them. So the file is first opened with O_PATH, and identified by what the kernel itself knows:
//! memfds that do not use huge pages are all on one file system, which no user can mount.
//!
//! The memory must be on that file system, sealed against changes of its length, and of the length that the
//! peer gave. It is mapped without being accessed, and no descriptor stays open.

use super::export::Memory;
use super::window::Mapped;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, SealFlags, StatxFlags, fcntl_get_seals, openat, statx,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Why memory was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not a file that may be mapped.
    Unfit,
    /// No descriptors or no address space are left: it may succeed later.
    NotNow,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Self::NotNow,
            _ => Self::Unfit,
        }
    }
}

/// Queries a file, but nothing for which its file system would have to do work.
fn look(fd: BorrowedFd<'_>) -> Result<(u64, FileType, u64), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE;
    let stat = statx(fd, c"", flags, wanted)?;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    let kind = FileType::from_raw_mode(stat.stx_mode.into());
    Ok((device, kind, stat.stx_size))
}

/// The file system of a memfd of ours.
pub(super) fn device_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(look(fd)?.0)
}

/// Maps a piece of another process's memory, without accessing it. No descriptor stays open. `device`: the
/// file system of memfds.
pub fn open_memory(pid: i32, device: u64, memory: &Memory) -> Result<Mapped, Refusal> {
    let found = openat(
        CWD,
        format!("/proc/{pid}/fd/{}", memory.fd),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if look(found.as_fd())? != (device, FileType::RegularFile, memory.length) {
        return Err(Refusal::Unfit);
    }
    // Non-blocking, because the peer may hold a lease on the file.
    let file = openat(
        CWD,
        format!("/proc/self/fd/{}", found.as_raw_fd()),
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // The length has to be fixed: memory behind the end of a file cannot be accessed.
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let length = usize::try_from(memory.length).map_err(|_| Refusal::Unfit)?;
    if !fcntl_get_seals(&file)?.contains(fixed) || look(file.as_fd())?.2 != memory.length {
        return Err(Refusal::Unfit);
    }
    // A file that cannot be written can still be read.
    let mapped = match Mapped::new(file.as_fd(), length, true) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Mapped::new(file.as_fd(), length, false)
        }
        mapped => mapped,
    };
    let mapped = mapped.map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => Refusal::NotNow,
        _ => Refusal::Unfit,
    })?;
    mapped.keep_out_of_core_files();
    Ok(mapped)
}
