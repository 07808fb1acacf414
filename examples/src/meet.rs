//! How two processes meet: a Unix socket with a name that goes with its process, and one line of JSON
//! for each thing that they send each other. Nothing that is measured goes this way.

use super::exchange::UnixExchange;
use super::wait::{Gone, PeerGone};
use anyhow::{Context, Result, bail};
use bellwire::connect::ConnInfo;
use bellwire::memory::Mapping;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// The other process has ended, or has closed its socket.
#[derive(Clone, Copy, Debug)]
pub struct Left;

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other process has left")
    }
}

impl std::error::Error for Left {}

/// What the other process says that went wrong there.
#[derive(Clone, Debug)]
pub struct PeerFailed(String);

impl fmt::Display for PeerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other process: {}", self.0)
    }
}

impl std::error::Error for PeerFailed {}

/// Each user has names of his own.
fn address(program: &str, name: &str) -> Result<SocketAddr> {
    let address = format!("bellwire-examples/{}/{program}/{name}", user());
    SocketAddr::from_abstract_name(address)
        .with_context(|| format!("{name:?} is no name to meet under: give a shorter one"))
}

fn user() -> u32 {
    // SAFETY: getuid(2) takes nothing and always succeeds.
    unsafe { libc::getuid() }
}

/// The user of the process at the other end of a socket.
fn user_behind(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    let (fd, answer) = (stream.as_raw_fd(), std::ptr::from_mut(&mut peer).cast());
    // SAFETY: the answer and its length are valid places, of the size given.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, answer, &mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(peer.uid)
}

/// A secret, by which two sockets are known to be of one process.
type Token = [u8; 16];

fn token() -> Token {
    // The standard library's hasher is seeded by the operating system.
    let [high, low] = [0, 1].map(|part: u64| RandomState::new().hash_one(part));
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// A socket by which descriptors come, too (SCM_RIGHTS).
#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    /// Messages that came, and were not asked for yet.
    files: VecDeque<OwnedFd>,
}

impl Socket {
    /// Sends bytes, and a descriptor with them.
    fn send_with(&mut self, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let bytes_of = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &bytes_of, &mut ancillary, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&bytes[sent..])
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let bytes = &mut [IoSliceMut::new(into)];
        let got = recvmsg(&self.stream, bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        Ok(got.bytes)
    }
}

/// Waits under a name for another process.
#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// Takes the name; each program has names of its own.
    ///
    /// # Errors
    /// When somebody has it.
    pub fn bind(program: &str, name: &str) -> Result<Self> {
        match UnixListener::bind_addr(&address(program, name)?) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!("a `{program} --listen {name}` is there already: choose another name")
            }
            Err(error) => Err(error).with_context(|| format!("listening as {name}")),
        }
    }

    /// The first process of this user that comes. The name is free then.
    ///
    /// # Errors
    /// What accept(2) answers.
    pub fn accept(self) -> Result<Peer> {
        self.next()
    }

    fn next(&self) -> Result<Peer> {
        loop {
            let (stream, _) = self.0.accept().context("waiting for the other process")?;
            if user_behind(&stream)? == user() {
                return Ok(Peer::new(stream));
            }
        }
    }

    /// As [`accept`](Self::accept), of one that [links](Peer::connect_with_exchange).
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept); [`Left`].
    pub fn accept_with_exchange(self) -> Result<(Peer, UnixExchange)> {
        let mut peer = self.next()?;
        let token: Token = peer.receive()?;
        self.0.set_nonblocking(true)?;
        loop {
            // Looked at before: it says nothing more until it has come twice.
            let gone = peer.is_gone();
            match self.0.accept() {
                // Otherwise another process has come too late.
                Ok((stream, _)) => {
                    if says(&stream, token)? {
                        return Ok((peer, UnixExchange::new(stream)?));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if gone {
                        return Err(Left.into());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error).context("waiting for the other process"),
            }
        }
    }
}

/// Whether this token comes by a socket, soon.
fn says(stream: &UnixStream, token: Token) -> io::Result<bool> {
    // Inherited from the listener by some systems.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut said = Token::default();
    let mut from = stream;
    let is_it = from.read_exact(&mut said).is_ok() && said == token;
    stream.set_read_timeout(None)?;
    Ok(is_it)
}

/// The other process.
#[derive(Debug)]
pub struct Peer {
    lines: BufReader<Socket>,
}

impl Peer {
    fn new(stream: UnixStream) -> Self {
        let files = VecDeque::new();
        let lines = BufReader::new(Socket { stream, files });
        Self { lines }
    }

    /// Goes to the process that listens.
    ///
    /// # Errors
    /// When there is none, or one of another user.
    pub fn connect(program: &str, name: &str) -> Result<Self> {
        Ok(Self::new(Self::stream(program, name)?))
    }

    /// As [`connect`](Self::connect), with an exchange for a link.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with_exchange(program: &str, name: &str) -> Result<(Self, UnixExchange)> {
        let mut peer = Self::connect(program, name)?;
        let token = token();
        peer.send(&token)?;
        let mut stream = Self::stream(program, name)?;
        stream.write_all(&token).map_err(left_or)?;
        Ok((peer, UnixExchange::new(stream)?))
    }

    fn stream(program: &str, name: &str) -> Result<UnixStream> {
        let stream = match UnixStream::connect_addr(&address(program, name)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                bail!("nobody listens as {name}: start `{program} --listen {name}` first")
            }
            Err(error) => return Err(error).with_context(|| format!("going to {name}")),
        };
        let uid = user_behind(&stream)?;
        if uid != user() {
            bail!(
                "the process that listens as {name} is of user {uid}, not you: choose another name"
            );
        }
        Ok(stream)
    }

    /// Sends something.
    ///
    /// # Errors
    /// [`Left`].
    pub fn send<T: Serialize>(&mut self, what: &T) -> Result<()> {
        self.line(Ok(what))
    }

    /// Reports that something went wrong. That it cannot be sent does not matter any more then.
    pub fn send_error(&mut self, error: &anyhow::Error) {
        let _ = self.line::<()>(Err(format!("{error:#}")));
    }

    fn line<T: Serialize>(&mut self, what: Result<T, String>) -> Result<()> {
        let mut line = serde_json::to_vec(&what)?;
        line.push(b'\n');
        let sent = self.lines.get_mut().stream.write_all(&line);
        sent.map_err(|error| left_or(error).context("sending to the other process"))
    }

    /// What the peer sends next; `None`: it has left instead.
    ///
    /// # Errors
    /// [`PeerFailed`] when it is that something went wrong.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(left_or(error).context("listening to the other process")),
        }
        match serde_json::from_str::<Result<T, String>>(&line) {
            Ok(Ok(what)) => Ok(Some(what)),
            Ok(Err(wrong)) => Err(PeerFailed(wrong).into()),
            Err(error) => Err(error)
                .context("the other process makes no sense: are both of the same version?"),
        }
    }

    /// What the peer sends next.
    ///
    /// # Errors
    /// [`Left`]; [`PeerFailed`] when it is that something went wrong.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        Ok(self.hear()?.ok_or(Left)?)
    }

    /// Sends something and receives the same of the peer. When this returns, both have come here.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, what: &T) -> Result<T> {
        self.send(what)?;
        self.receive()
    }

    /// Sends what the peer has to know of a queue pair, and receives the same, in the form of
    /// [`bellwire::connect`].
    ///
    /// # Errors
    /// As [`receive`](Self::receive); a peer that makes no sense.
    pub fn exchange_info(&mut self, ours: &ConnInfo) -> Result<ConnInfo> {
        let theirs = self.exchange(&ours.to_bytes().to_vec())?;
        Ok(ConnInfo::from_bytes(&theirs)?)
    }

    /// Passes shared memory to the peer, which [`shared`](Self::shared) gives it.
    ///
    /// # Errors
    /// Memory that is not shared, [`Left`].
    pub fn share(&mut self, memory: &Mapping) -> Result<()> {
        let fd = memory.fd().context("memory that is not shared")?;
        let mut line = serde_json::to_vec(&Ok::<_, String>(memory.len()))?;
        line.push(b'\n');
        let sent = self.lines.get_mut().send_with(&line, fd.as_fd());
        sent.map_err(|error| left_or(error).context("passing memory to the other process"))
    }

    /// The memory that the peer shows.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and those of mapping it; a peer that passes none.
    pub fn shared(&mut self) -> Result<Mapping> {
        let length: usize = self.receive()?;
        let file = self.lines.get_mut().files.pop_front();
        let file = file.context("the other process passes no memory: is a descriptor left?")?;
        Ok(Mapping::from_fd(file, length)?)
    }

    /// Reports how one's part went. For the end that follows.
    ///
    /// # Errors
    /// The cause, if it failed: one's own, unless that is only that the other end has gone.
    pub fn report<T>(&mut self, ours: Result<T>) -> Result<T> {
        let done = ours.map_err(|error| self.cause(error))?;
        self.send(&())?;
        Ok(done)
    }

    /// Waits until the other end has reported how its part went. For the end that leads.
    ///
    /// # Errors
    /// The cause, if either failed, as in [`report`](Self::report).
    pub fn conclude<T>(&mut self, ours: Result<T>) -> Result<T> {
        let done = ours.map_err(|error| self.cause(error))?;
        self.receive::<()>()?;
        Ok(done)
    }

    /// Notifies the peer, which may wait, of an error, and finds out whether the peer is the cause.
    fn cause(&mut self, ours: anyhow::Error) -> anyhow::Error {
        let gone = self.is_gone();
        self.send_error(&ours);
        let waited = ours.is::<PeerGone>();
        if !gone && !waited {
            return ours;
        }
        match self.receive::<()>() {
            // A request that failed because its peer is no more is its consequence, as is a wait.
            Err(theirs) if waited || theirs.is::<Left>() => theirs,
            _ => ours,
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.lines.get_ref().stream.as_fd()
    }
}

fn left_or(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Left.into(),
        _ => error.into(),
    }
}

/// The other end sends nothing during a wait, unless it has failed or left. So once there is something
/// to receive, waiting any longer is in vain.
impl Gone for Peer {
    fn is_gone(&self) -> bool {
        let mut byte = 0u8;
        let (fd, at) = (self.socket().as_raw_fd(), std::ptr::from_mut(&mut byte));
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the byte is a valid place for one byte.
        let heard = unsafe { libc::recv(fd, at.cast(), 1, flags) };
        let nothing = heard < 0 && io::Error::last_os_error().kind() == ErrorKind::WouldBlock;
        !self.lines.buffer().is_empty() || !nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str) -> String {
        format!("meet-test-{of}-{}", std::process::id())
    }

    /// Two that have met, and the name under which they did.
    fn met(of: &str) -> (Peer, Peer) {
        let name = name(of);
        let listener = Listener::bind("test", &name).unwrap();
        let leader = Peer::connect("test", &name).unwrap();
        (leader, listener.accept().unwrap())
    }

    #[test]
    fn a_name_is_taken_once_and_free_again() {
        let name = name("taken");
        let nobody = Peer::connect("test", &name).unwrap_err().to_string();
        assert!(nobody.contains(&format!("start `test --listen {name}` first")));
        let listener = Listener::bind("test", &name).unwrap();
        let taken = Listener::bind("test", &name).unwrap_err().to_string();
        assert!(taken.contains("choose another name"), "{taken}");
        drop(listener);
        Listener::bind("test", &name).unwrap();
        assert!(Listener::bind("test", &"x".repeat(200)).is_err());
    }

    #[test]
    fn what_is_sent_is_received() {
        let (mut a, mut b) = met("sent");
        a.send(&"first").unwrap();
        a.send(&(1u64, 2u8)).unwrap();
        assert_eq!(b.receive::<String>().unwrap(), "first");
        assert!(b.is_gone(), "there is more to hear");
        assert_eq!(b.receive::<(u64, u8)>().unwrap(), (1, 2));
        assert!(!b.is_gone());
        a.send(&"no number").unwrap();
        assert!(b.receive::<u32>().is_err());
        drop(a);
        assert!(b.is_gone());
        assert!(b.hear::<()>().unwrap().is_none());
        assert!(b.receive::<()>().unwrap_err().is::<Left>());
        assert!(b.send(&()).unwrap_err().is::<Left>());
    }

    #[test]
    fn memory_is_shared() {
        let (mut a, mut b) = met("memory");
        let memory = Mapping::shared("test", 4096).build().unwrap();
        // SAFETY: nobody else has it yet.
        unsafe { memory.as_ptr().write(7) };
        a.share(&memory).unwrap();
        let theirs = b.shared().unwrap();
        // SAFETY: written before it was shown, and not since.
        assert_eq!(unsafe { theirs.as_ptr().read() }, 7);
    }

    #[test]
    fn both_ends_report_the_cause() {
        let (mut leader, mut follower) = met("cause");
        let cause = || Err::<(), _>(anyhow::anyhow!("the cause"));
        let consequence = || Err::<(), _>(anyhow::Error::from(PeerGone));
        let mut both = |led: Result<()>, followed: Result<()>| {
            std::thread::scope(|scope| {
                let led = scope.spawn(|| leader.conclude(led));
                let followed = follower.report(followed);
                [led.join().unwrap(), followed].map(|part| part.map_err(|e| e.to_string()))
            })
        };
        let theirs = || Err("the other process: the cause".to_owned());
        let ours = || Err("the cause".to_owned());
        assert_eq!(both(Ok(()), Ok(())), [Ok(()), Ok(())]);
        assert_eq!(both(cause(), consequence()), [ours(), theirs()]);
    }

    #[test]
    fn what_failed_here_is_reported_there() {
        let (mut leader, mut follower) = met("failed");
        let failed = follower.report(Err::<(), _>(anyhow::anyhow!("the cause")));
        assert_eq!(failed.unwrap_err().to_string(), "the cause");
        let concluded = leader.conclude::<()>(Err(PeerGone.into()));
        assert!(concluded.unwrap_err().is::<PeerFailed>());
        drop(leader);
        let left = follower.report(Err::<(), _>(anyhow::anyhow!("a request failed")));
        assert!(left.is_err());
    }
}
