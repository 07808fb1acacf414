//! The process at the other end of a socket: its user, and a handle that reports that it has ended, whatever it
//! leaves behind. The socket alone is not sufficient, because child processes inherit it.
//!
//! The handle is the pidfd of the socket's peer (SO_PEERPIDFD). Before Linux 6.5 there is no such option: the
//! handle is that of the process with the peer's pid, which must have started when the peer says that it started.
//! A process of another PID namespace may have no pid here (SO_PEERCRED reports 0), and then has no handle before
//! Linux 6.5: the end of its socket is the only sign of its end.
//!
//! A pid identifies no process to another one: it belongs to a PID namespace, is reused, and /proc may show those
//! of another namespace. Here it serves to find what is then compared.

use bellwire_provider::short::Short;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, fstatfs, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::io;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What the kernel says of a socket's peer (SO_PEERCRED): of the process that connected, at that time; or of the
/// process that listens, when it began to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The effective user, as the user namespace of this process has it.
    pub uid: u32,
    /// The pid in this process's PID namespace; `None`: it has none there.
    pid: Option<NonZeroI32>,
}

impl Credentials {
    /// Those of the peer of a Unix socket.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let none = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let peer = option(socket.as_fd(), libc::SO_PEERCRED, none)?;
        Ok(Self {
            uid: peer.uid,
            pid: NonZeroI32::new(peer.pid),
        })
    }
}

/// A process which was running when this was made.
#[derive(Debug)]
pub struct Process {
    /// The pidfd; readable once the process has ended.
    handle: Option<OwnedFd>,
    pid: Option<NonZeroI32>,
    /// The handle certainly belongs to the socket's peer. Otherwise it belongs to the process that has its
    /// pid now.
    certain: bool,
}

impl Process {
    /// The process that has connected to us, or that listens where we have connected.
    ///
    /// # Errors
    /// ESRCH: it has ended. Others: no file descriptor is left.
    pub fn behind(socket: impl AsFd, peer: Credentials) -> io::Result<Self> {
        let process = match handle_of_peer(socket.as_fd()) {
            Ok(handle) => Self {
                handle: Some(handle),
                pid: peer.pid,
                certain: true,
            },
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ESRCH | libc::EMFILE | libc::ENFILE | libc::ENOMEM)
                ) =>
            {
                return Err(error);
            }
            // Before Linux 6.5, or forbidden.
            Err(_) => Self::named(peer.pid)?,
        };
        if process.has_ended() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(process)
    }

    /// The process that has this pid now.
    fn named(pid: Option<NonZeroI32>) -> io::Result<Self> {
        let handle = match pid.and_then(|pid| Pid::from_raw(pid.get())) {
            Some(pid) => match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => Some(handle),
                // Before Linux 5.3, or forbidden.
                Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        Ok(Self {
            handle,
            pid,
            certain: false,
        })
    }

    /// Keeps a handle only if it certainly belongs to the peer. `at` is when the peer started, which it got from
    /// [`began_here`].
    #[must_use]
    pub fn begun(mut self, at: u64) -> Self {
        // If it is alive after the start time was read, the pid was its own all the time.
        let is_it = self.certain
            || self.pid.and_then(|pid| began(pid.get())) == Some(at) && !self.has_ended();
        if !is_it {
            self.handle = None;
        }
        self
    }

    /// Whether it is known to have ended.
    pub fn has_ended(&self) -> bool {
        let Some(handle) = &self.handle else {
            return false;
        };
        let mut ended = [PollFd::new(handle, PollFlags::IN)];
        let now = Timespec::default();
        // If the call is interrupted, the caller asks again when the handle is readable.
        poll(&mut ended, Some(&now)).is_ok_and(|ready| ready != 0)
    }

    /// The handle, which is readable once the process has ended.
    pub fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.handle.as_ref().map(AsFd::as_fd)
    }

    /// Its pid here. No two processes have the same while both run.
    pub fn pid(&self) -> Option<NonZeroI32> {
        self.pid
    }

    /// The pid by which /proc shows the process: /proc may have been mounted in another PID namespace. What is
    /// found there still has to be compared, because a pid is reused.
    pub fn pid_in_proc(&self) -> Option<NonZeroI32> {
        let Some(handle) = &self.handle else {
            return self.pid;
        };
        let path = Short::<64>::new(format_args!("/proc/self/fdinfo/{}", handle.as_raw_fd()));
        let mut room = [0; 1024];
        let info = read(&path, &mut room).and_then(|info| str::from_utf8(info).ok());
        let Some(info) = info else {
            return self.pid;
        };
        let mut lines = info.lines();
        let pid = lines.find_map(|line| line.strip_prefix("Pid:"));
        // 0: it has none there; -1: it has ended.
        let pid = pid.and_then(|pid| pid.trim().parse().ok());
        pid.filter(|pid| *pid > 0).and_then(NonZeroI32::new)
    }

    /// A number that no other process has while this one runs: of its pidfd if that is certain and the kernel numbers
    /// those (Linux 6.9), else its pid. Processes without either have one number together, zero.
    pub fn number(&self) -> u64 {
        /// `PID_FS_MAGIC` of linux/magic.h.
        const PID_FS: u32 = 0x5049_4446;
        /// Keeps the two kinds apart.
        const OF_PIDFD: u64 = 1 << 63;
        let of_pidfd = self
            .handle
            .as_ref()
            .filter(|_| self.certain)
            .and_then(|handle| {
                let is_numbered = fstatfs(handle).is_ok_and(|fs| fs.f_type as u32 == PID_FS);
                is_numbered.then(|| fstat(handle).ok()).flatten()
            });
        match (of_pidfd, self.pid) {
            (Some(stat), _) => OF_PIDFD | stat.st_ino,
            (None, Some(pid)) => pid.get() as u64,
            (None, None) => 0,
        }
    }

    /// Whether another handle is of the same process. `None`: this cannot be told here, because a process of another PID
    /// namespace has no pid in this one, and the kernel does not number its pidfds.
    pub fn is_same(&self, other: &Self) -> Option<bool> {
        let [ours, theirs] = [self, other].map(Self::number);
        // Numbers of two kinds say nothing about each other.
        let comparable = ours != 0 && theirs != 0 && ours >> 63 == theirs >> 63;
        // A pid is reused after its process has ended.
        comparable.then(|| ours == theirs && !self.has_ended() && !other.has_ended())
    }

    /// Whether it is the calling process.
    pub fn is_us(&self) -> bool {
        self.pid == Some(getpid().as_raw_nonzero())
    }
}

/// The beginning of a file, without memory of its own.
fn read<'r>(path: &str, room: &'r mut [u8]) -> Option<&'r [u8]> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).ok()?;
    let got = rustix::io::read(&file, &mut *room).ok()?;
    room.get(..got)
}

/// Start time of this process; zero if /proc cannot be read.
pub fn began_here() -> u64 {
    // Without /proc, peers have to identify the process by other means.
    began(getpid().as_raw_nonzero().get()).unwrap_or(0)
}

/// Start time of a process, in clock ticks since boot (`starttime` of proc_pid_stat(5)).
fn began(pid: i32) -> Option<u64> {
    let path = Short::<64>::new(format_args!("/proc/{pid}/stat"));
    let mut room = [0; 1024];
    // The fields are parsed after the program's name, which may contain anything.
    let stat = read(&path, &mut room)?;
    let at = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(stat.get(at + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn handle_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let none: libc::c_int = -1;
    let fd =
        option(socket, libc::SO_PEERPIDFD, none).map_err(|error| match error.raw_os_error() {
            // The process has ended and was waited for.
            Some(libc::EINVAL | libc::ENODATA) => io::Error::from_raw_os_error(libc::ESRCH),
            _ => error,
        })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An option of a socket: integers, of which any bits are valid.
pub(crate) fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: a value and its length, both writable.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match got {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command, Stdio};

    /// A child that runs until its input ends.
    fn child() -> Child {
        let mut child = Command::new("cat");
        let child = child.stdin(Stdio::piped()).stdout(Stdio::null());
        child.spawn().unwrap()
    }

    fn pid_of(child: &Child) -> Option<NonZeroI32> {
        NonZeroI32::new(child.id() as i32)
    }

    #[test]
    fn a_handle_shows_the_end_of_its_process() {
        let mut child = child();
        let at = began(child.id() as i32).unwrap();
        let process = Process::named(pid_of(&child)).unwrap().begun(at);
        assert!(process.handle().is_some() && !process.has_ended() && !process.is_us());
        assert_eq!(process.pid_in_proc(), pid_of(&child));
        // As if another process had the same pid.
        let other = Process::named(pid_of(&child)).unwrap().begun(at + 1);
        assert!(other.handle().is_none() && !other.has_ended());
        let later = Process::named(pid_of(&child)).unwrap();
        child.kill().unwrap();
        let start = std::time::Instant::now();
        // Before the child is waited for.
        while !process.has_ended() {
            assert!(start.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
        assert!(later.begun(at).handle().is_none());
        child.wait().unwrap();
        assert!(process.has_ended());
        assert_eq!(process.pid_in_proc(), None);
    }

    /// As SO_PEERCRED reports a peer of another PID namespace, before Linux 6.5.
    #[test]
    fn a_process_without_a_pid_has_no_handle() {
        let process = Process::named(None).unwrap().begun(0);
        assert!(process.handle().is_none() && !process.has_ended() && !process.is_us());
        assert_eq!((process.pid(), process.pid_in_proc()), (None, None));
    }

    #[test]
    fn two_handles_of_a_process_are_known_as_such() {
        let (a, b) = UnixStream::pair().unwrap();
        let behind = |socket: &UnixStream| {
            Process::behind(socket, Credentials::of_peer(socket).unwrap()).unwrap()
        };
        assert_eq!(behind(&a).is_same(&behind(&b)), Some(true));
        let (mut first, mut second) = (child(), child());
        let named = |child: &Child| Process::named(pid_of(child)).unwrap();
        assert_eq!(named(&first).is_same(&named(&second)), Some(false));
        let (one, other) = (named(&first), named(&first));
        assert_eq!(one.is_same(&other), Some(true));
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Another process may have its pid by now.
        assert_eq!(one.is_same(&other), Some(false));
        let nameless = Process::named(None).unwrap();
        assert_eq!(nameless.is_same(&nameless), None);
    }

    #[test]
    fn the_process_behind_a_socket_is_found() {
        let (a, _b) = UnixStream::pair().unwrap();
        let credentials = Credentials::of_peer(&a).unwrap();
        assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
        let process = Process::behind(&a, credentials)
            .unwrap()
            .begun(began_here());
        assert!(process.is_us() && process.handle().is_some() && !process.has_ended());
        let us = NonZeroI32::new(std::process::id() as i32);
        assert_eq!((process.pid(), process.pid_in_proc()), (us, us));
    }
}
