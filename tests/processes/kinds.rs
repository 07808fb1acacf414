//! Descriptors that are not the memory that they are said to be, or not quite.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Bytes that are said to be there.
pub const BYTES: usize = 1 << 16;

/// Bytes of memory that nobody has touched: more than a victim should ever take.
const SPARSE: usize = 2 << 30;

/// A hugetlb page.
const HUGE: usize = 2 << 20;

/// What makes a descriptor, and how long it is said to be.
type Make = fn() -> io::Result<(Held, usize)>;

/// A descriptor, and what has to stay for it to be what it is.
pub struct Held {
    fd: OwnedFd,
    /// Its number is sent, and it is closed before anybody looks.
    pub closed: bool,
    _other: Option<OwnedFd>,
}

impl Held {
    fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            closed: false,
            _other: None,
        }
    }

    pub fn number(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }
}

const FIXED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn own(result: i32) -> io::Result<OwnedFd> {
    // SAFETY: new, and nobody else's.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A memfd.
pub fn memory(bytes: usize, flags: u32, seals: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string.
    let fd = own(unsafe { libc::memfd_create(c"attack".as_ptr(), flags) })?;
    File::from(fd.try_clone()?).set_len(bytes as u64)?;
    // SAFETY: takes an integer.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// All of a file, to be read and written.
pub fn map(fd: &OwnedFd, bytes: usize) -> io::Result<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            null_mut(),
            bytes,
            access,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at.cast())
}

/// Withholds the pages of memory that nobody has touched: who touches them waits for as long as the
/// descriptor is open.
pub fn withhold(at: *mut u8, bytes: usize) -> io::Result<OwnedFd> {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const MISSING: u64 = 1;
    // SAFETY: takes flags.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let fd = own(fd as i32)?;
    let mut api = [0xaau64, 0, 0];
    let mut register = [at.expose_provenance() as u64, bytes as u64, MISSING, 0];
    // SAFETY: structs of these sizes; the memory is the caller's.
    unsafe {
        check(libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()))?;
        check(libc::ioctl(
            fd.as_raw_fd(),
            UFFDIO_REGISTER,
            register.as_mut_ptr(),
        ))?;
    }
    Ok(fd)
}

fn sealed(seals: i32) -> io::Result<(Held, usize)> {
    Ok((Held::new(memory(BYTES, 0, seals)?), BYTES))
}

fn said(real: usize, said: usize) -> io::Result<(Held, usize)> {
    Ok((Held::new(memory(real, 0, FIXED)?), said))
}

fn opened(path: &str, write: bool) -> io::Result<(Held, usize)> {
    let file = OpenOptions::new().read(true).write(write).open(path)?;
    Ok((Held::new(file.into()), BYTES))
}

fn file_in(dir: &str) -> io::Result<(Held, usize)> {
    let path = format!("{dir}/bellwire-attack-{}", std::process::id());
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(BYTES as u64)?;
    Ok((Held::new(file.into()), BYTES))
}

fn closed() -> io::Result<(Held, usize)> {
    let (held, bytes) = sealed(FIXED)?;
    Ok((
        Held {
            closed: true,
            ..held
        },
        bytes,
    ))
}

fn pair(make: impl Fn(&mut [i32; 2]) -> i32) -> io::Result<(Held, usize)> {
    let mut fds = [0; 2];
    check(make(&mut fds))?;
    let [fd, other] = fds.map(own);
    Ok((
        Held {
            fd: fd?,
            closed: false,
            _other: Some(other?),
        },
        BYTES,
    ))
}

fn fifo() -> io::Result<(Held, usize)> {
    let path = format!("fifo-{}\0", std::process::id());
    // SAFETY: a string.
    check(unsafe { libc::mkfifo(path.as_ptr().cast(), 0o600) })?;
    let path = path.trim_end_matches('\0');
    let opened = opened(path, true);
    std::fs::remove_file(path)?;
    opened
}

/// A process that opens it for writing breaks the lease, and waits until the lease is given up.
fn leased() -> io::Result<(Held, usize)> {
    let memory = memory(BYTES, 0, FIXED)?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let reader: OwnedFd = File::open(path)?.into();
    drop(memory);
    // SAFETY: takes integers.
    check(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) })?;
    // SAFETY: takes integers. The signal that asks for the lease would otherwise kill this process.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    Ok((Held::new(reader), BYTES))
}

fn without_rights() -> io::Result<(Held, usize)> {
    let memory = memory(BYTES, 0, FIXED)?;
    // SAFETY: takes integers.
    check(unsafe { libc::fchmod(memory.as_raw_fd(), 0) })?;
    Ok((Held::new(memory), BYTES))
}

fn withheld() -> io::Result<(Held, usize)> {
    let memory = memory(BYTES, 0, FIXED)?;
    let other = withhold(map(&memory, BYTES)?, BYTES)?;
    Ok((
        Held {
            fd: memory,
            closed: false,
            _other: Some(other),
        },
        BYTES,
    ))
}

/// Has pages, and loses them again and again.
fn punched() -> io::Result<(Held, usize)> {
    let memory = memory(BYTES, 0, FIXED)?;
    let fd = memory.try_clone()?;
    std::thread::spawn(move || {
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes integers.
        while unsafe { libc::fallocate(fd.as_raw_fd(), flags, 0, BYTES as i64) } == 0 {
            std::thread::yield_now();
        }
    });
    Ok((Held::new(memory), BYTES))
}

/// A page that is there, to be lost when somebody has mapped it; and nobody else gets one then.
fn huge() -> io::Result<(Held, usize)> {
    Ok((Held::new(memory(HUGE, libc::MFD_HUGETLB, FIXED)?), HUGE))
}

/// The number of a descriptor's file, as a node shows it; 0 if there is no such descriptor.
pub fn file_number(fd: u32) -> u64 {
    // SAFETY: zeroes are a result, which is written.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    match unsafe { libc::fstat(fd as i32, &raw mut stat) } {
        0 => stat.st_ino,
        _ => 0,
    }
}

/// All kinds, by name.
pub const KINDS: &[(&str, Make)] = &[
    ("memory as it should be", || sealed(FIXED)),
    ("memory without seals", || sealed(0)),
    ("memory that may grow", || sealed(libc::F_SEAL_SHRINK)),
    ("memory that may shrink", || sealed(libc::F_SEAL_GROW)),
    ("memory that nobody may write to", || {
        sealed(FIXED | libc::F_SEAL_WRITE)
    }),
    ("memory that nobody else may write to", || {
        sealed(FIXED | libc::F_SEAL_FUTURE_WRITE)
    }),
    ("memory that is shorter than said", || {
        said(BYTES / 2, BYTES)
    }),
    ("memory that is longer than said", || said(2 * BYTES, BYTES)),
    ("memory of a part of a page", || said(5000, 5000)),
    ("much memory that nobody has touched", || {
        said(SPARSE, SPARSE)
    }),
    ("memory under userfaultfd", withheld),
    ("memory whose pages go again and again", punched),
    ("memory with a lease on it", leased),
    ("memory that nobody may open", without_rights),
    ("huge pages", huge),
    ("a closed descriptor", closed),
    ("a file", || file_in(".")),
    ("a file in memory", || file_in("/dev/shm")),
    ("a directory", || opened("/", false)),
    ("a FIFO", fifo),
    ("a pipe", || {
        // SAFETY: there is room for two.
        pair(|fds| unsafe { libc::pipe(fds.as_mut_ptr()) })
    }),
    ("a socket", || {
        let (family, kind) = (libc::AF_UNIX, libc::SOCK_STREAM);
        // SAFETY: there is room for two.
        pair(|fds| unsafe { libc::socketpair(family, kind, 0, fds.as_mut_ptr()) })
    }),
    ("an eventfd", || {
        // SAFETY: takes integers.
        let fd = own(unsafe { libc::eventfd(0, 0) })?;
        Ok((Held::new(fd), BYTES))
    }),
    ("an epoll", || {
        // SAFETY: takes an integer.
        let fd = own(unsafe { libc::epoll_create1(0) })?;
        Ok((Held::new(fd), BYTES))
    }),
    ("/dev/zero", || opened("/dev/zero", true)),
    ("/dev/null", || opened("/dev/null", true)),
    ("/dev/full", || opened("/dev/full", true)),
    ("/dev/ptmx", || opened("/dev/ptmx", true)),
    ("the process's memory", || opened("/proc/self/mem", true)),
    ("the process's maps", || opened("/proc/self/maps", false)),
];
