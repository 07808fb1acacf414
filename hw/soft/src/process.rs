//! The process at the other end of a socket, by its pidfd (pidfd_open(2)), which reports that the process has
//! ended, whatever it leaves behind. The socket alone is not sufficient, because child processes inherit it.
//!
//! The pidfd is that of the socket's peer (SO_PEERPIDFD). Before Linux 6.5 there is no such option: the pidfd
//! is that of the process with the peer's pid, which must have started when the peer says that it started.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, getpid, getuid, pidfd_open};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A process of the same user, which was running when this was made.
#[derive(Debug)]
pub struct Process {
    /// The pidfd; readable once the process has ended.
    handle: OwnedFd,
    pid: Pid,
    /// The handle certainly belongs to the socket's peer. Otherwise it belongs to the process that has its
    /// pid now.
    certain: bool,
}

impl Process {
    /// The process that has connected to us, or that listens where we have connected.
    ///
    /// # Errors
    /// `PermissionDenied`: the process belongs to another user. ESRCH: it has ended. Others: no file
    /// descriptor is left, or the system has no pidfds (before Linux 5.3).
    pub fn behind(socket: impl AsFd) -> io::Result<Self> {
        let peer = socket_peercred(&socket)?;
        if peer.uid != getuid() {
            let text = format!("the peer runs as user {}", peer.uid.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let process = match handle_of_peer(socket.as_fd()) {
            // Before Linux 6.5.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Self::named(peer.pid)?,
            handle => Self {
                handle: handle?,
                pid: peer.pid,
                certain: true,
            },
        };
        if process.has_ended() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(process)
    }

    /// The process that has this pid now.
    fn named(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            handle: pidfd_open(pid, PidfdFlags::empty())?,
            pid,
            certain: false,
        })
    }

    /// Whether it started at time `at`, which the peer got from [`began_here`]. If not, the peer has ended,
    /// and another process has its pid.
    pub fn has_begun(&self, at: u64) -> bool {
        // If it is alive after the start time was read, the pid was its own all the time.
        self.certain || (began(self.pid) == Some(at) && !self.has_ended())
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        let now = Timespec::default();
        // If the call is interrupted, the caller asks again when the handle is readable.
        poll(&mut ended, Some(&now)).is_ok_and(|ready| ready != 0)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Whether it is the calling process.
    pub fn is_us(&self) -> bool {
        self.pid == getpid()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Start time of this process; zero if /proc cannot be read.
pub fn began_here() -> u64 {
    // Without /proc, peers have to identify the process by other means.
    began(getpid()).unwrap_or(0)
}

/// Start time of a process, in clock ticks since boot (`starttime` of proc_pid_stat(5)).
fn began(pid: Pid) -> Option<u64> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    // The fields are parsed after the program's name, which may contain anything.
    let stat = fs::read(path).ok()?;
    let at = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(stat.get(at + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn handle_of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: an integer and its length, both writable.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(match io::Error::last_os_error() {
            // The process has ended and was waited for.
            error if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODATA)) => {
                io::Error::from_raw_os_error(libc::ESRCH)
            }
            error => error,
        });
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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

    fn pid_of(child: &Child) -> Pid {
        Pid::from_raw(child.id() as i32).unwrap()
    }

    #[test]
    fn a_handle_shows_the_end_of_its_process() {
        let mut child = child();
        let process = Process::named(pid_of(&child)).unwrap();
        let at = began(pid_of(&child)).unwrap();
        assert!(process.has_begun(at) && !process.has_ended() && !process.is_us());
        // As if another process had the same pid.
        assert!(!process.has_begun(at + 1));
        child.kill().unwrap();
        let start = std::time::Instant::now();
        // Before the child is waited for.
        while !process.has_ended() {
            assert!(start.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
        assert!(!process.has_begun(at));
        child.wait().unwrap();
        assert!(process.has_ended());
    }

    #[test]
    fn the_process_behind_a_socket_is_found() {
        let (a, _b) = UnixStream::pair().unwrap();
        let process = Process::behind(&a).unwrap();
        assert!(process.is_us() && process.has_begun(began_here()) && !process.has_ended());
        assert_eq!(process.pid(), std::process::id() as i32);
    }
}
