//! Opens memory of a peer by its descriptor in the peer's process.
//!
//! The peer decides what its descriptor refers to, and can change that at any time. Opening a device file or
//! a FIFO can have side effects or block, and querying a file on some file systems can wait for the process
//! that serves them. So the file is first opened with O_PATH, and identified by what the kernel itself knows:
//! memfds that do not use huge pages are all on one file system, which no user can mount.
//!
//! The process is named by its pid, which is not its identity: /proc may show another PID namespace, and the
//! process may have ended. So the file found there has to be the very one that the peer exports: its inode has the
//! number that the peer gives, which no other memfd of this kernel has.
//!
//! The memory must also be sealed against changes of its length, and of the length that the peer gave. It is mapped
//! without being accessed, and no descriptor stays open. What cannot be opened so is accessed by packets.

use super::export::Memory;
use super::window::Mapped;
use bellwire_provider::short::Short;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, SealFlags, StatxFlags, fcntl_get_seals, fstat, openat,
    statx,
};
use rustix::io::Errno;
use std::io;
use std::num::NonZeroI32;
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

/// Which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// Properties of a peer's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Properties {
    id: FileId,
    kind: FileType,
    length: u64,
}

/// Queries a file, but nothing for which its file system would have to do work.
fn look(fd: BorrowedFd<'_>) -> Result<Properties, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::INO;
    let stat = statx(fd, c"", flags, wanted)?;
    Ok(Properties {
        id: FileId {
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        },
        kind: FileType::from_raw_mode(stat.stx_mode.into()),
        length: stat.stx_size,
    })
}

/// Which file a memfd of this process is.
pub(super) fn file_id(fd: BorrowedFd<'_>) -> io::Result<FileId> {
    let stat = fstat(fd)?;
    Ok(FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Maps a piece of another process's memory, without accessing it. No descriptor stays open. `device`: the
/// file system of memfds.
pub fn open_memory(
    pid: Option<NonZeroI32>,
    device: u64,
    memory: &Memory,
) -> Result<Mapped, Refusal> {
    // A poll may be the first that needs the memory, and closing descriptors is a cancellation point.
    let _whole = bellwire_provider::thread::Uncancelled::new();
    let pid = pid.ok_or(Refusal::Unfit)?;
    let wanted = Properties {
        id: FileId {
            device,
            inode: memory.inode,
        },
        kind: FileType::RegularFile,
        length: memory.length,
    };
    let found = openat(
        CWD,
        &*Short::<64>::new(format_args!("/proc/{pid}/fd/{}", memory.fd)),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if look(found.as_fd())? != wanted {
        return Err(Refusal::Unfit);
    }
    // Non-blocking, because the peer may hold a lease on the file.
    let file = openat(
        CWD,
        &*Short::<64>::new(format_args!("/proc/self/fd/{}", found.as_raw_fd())),
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // The length has to be fixed: memory behind the end of a file cannot be accessed.
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let length = usize::try_from(memory.length).map_err(|_| Refusal::Unfit)?;
    if !fcntl_get_seals(&file)?.contains(fixed) || look(file.as_fd())? != wanted {
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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::hello::file;
    use super::*;
    use rustix::fs::fcntl_add_seals;
    use std::os::fd::OwnedFd;

    const BYTES: usize = 8192;

    fn sealed() -> OwnedFd {
        let fd = file("bellwire-test", BYTES).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        fd
    }

    fn memory_of(fd: &OwnedFd, of: &OwnedFd) -> (u64, Memory) {
        let FileId { device, inode } = file_id(of.as_fd()).unwrap();
        let memory = Memory {
            index: 0,
            generation: 1,
            fd: fd.as_raw_fd() as u32,
            addr: 0x1000,
            length: BYTES as u64,
            inode,
        };
        (device, memory)
    }

    /// /proc shows another process, whose file of the same number differs in nothing else.
    #[test]
    fn only_the_very_file_is_mapped() {
        let (theirs, other) = (sealed(), sealed());
        let here = NonZeroI32::new(std::process::id() as i32);
        let (device, memory) = memory_of(&theirs, &theirs);
        open_memory(here, device, &memory).unwrap();
        let (device, memory) = memory_of(&other, &theirs);
        assert_eq!(
            open_memory(here, device, &memory).unwrap_err(),
            Refusal::Unfit
        );
        assert_eq!(
            open_memory(None, device, &memory).unwrap_err(),
            Refusal::Unfit
        );
    }
}
