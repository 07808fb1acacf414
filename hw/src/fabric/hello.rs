//! What two nodes say to each other when they meet: who they are, and the descriptors of what each
//! of them writes.

use super::export::EXPORT;
use super::segment::SEGMENT;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::getuid;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Version of everything that two processes share.
const MAGIC: u64 = u64::from_le_bytes(*b"bellwr01");

/// How long a node that has connected to us has to say who it is: our thread does nothing else meanwhile.
pub(super) const TO_SAY: Duration = Duration::from_millis(500);

/// How long a node that we have connected to has to answer: its thread may have to wait for a processor,
/// and for those that have connected before us.
pub(super) const TO_ANSWER: Duration = Duration::from_secs(2);

/// Bytes of a hello.
const BYTES: usize = 8 + 8 + 8 + 16;

/// Who a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Its place.
    pub slot: usize,
    /// A number that no other node of this place has; zero: no link is wanted.
    pub incarnation: u64,
    pub gid: [u8; 16],
    /// Which barriers it uses: those of one sort do not reach processes of the other.
    pub asymmetric: bool,
}

impl Hello {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let slot = self.slot as u64 | u64::from(self.asymmetric) << 63;
        bytes[8..16].copy_from_slice(&slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.gid);
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[24..]);
        let asymmetric = word(8)? >> 63 != 0;
        let slot = usize::try_from(word(8)? & u64::MAX >> 1).ok()?;
        (word(0)? == MAGIC && slot < super::MAX_NODES).then_some(Self {
            slot,
            incarnation: word(16)?,
            gid,
            asymmetric,
        })
    }
}

/// A file that this process alone can write to, once it has it mapped: see [`seal`].
pub(super) fn file(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// Seals: its length is fixed, and nobody writes to it but by mappings that are there already.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

/// What is passed to peers is theirs to read only.
pub(super) fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, SEALS)?)
}

/// Whether a peer's file can be mapped without fear: it stays as long as it is.
fn is_safe(fd: BorrowedFd<'_>, len: usize) -> io::Result<bool> {
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    Ok(fcntl_get_seals(fd)?.contains(fixed) && fstat(fd)?.st_size == len as i64)
}

/// The process at the other end. Of another user: refused.
fn peer(stream: &UnixStream) -> io::Result<i32> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid != getuid() {
        let text = format!("the peer runs as user {}", peer.uid.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(peer.pid.as_raw_nonzero().get())
}

/// Says who we are, and passes what we write to.
pub(super) fn say(stream: &UnixStream, hello: &Hello, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = hello.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    if sent == BYTES {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Who the peer is, its process, and what it writes to; what it has to say within this time.
pub(super) fn hear(
    stream: &UnixStream,
    within: Duration,
) -> io::Result<(Hello, i32, Option<[OwnedFd; 2]>)> {
    let pid = peer(stream)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(within))?;
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(
        stream.as_fd(),
        into,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            files.extend(passed);
        }
    }
    let strange = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer speaks another language",
        )
    };
    if got.bytes != BYTES {
        return Err(strange());
    }
    let hello = Hello::decode(&bytes).ok_or_else(strange)?;
    if files.is_empty() {
        return Ok((hello, pid, None));
    }
    let files = <[OwnedFd; 2]>::try_from(files).map_err(|_| strange())?;
    if !is_safe(files[0].as_fd(), SEGMENT)? || !is_safe(files[1].as_fd(), EXPORT)? {
        return Err(strange());
    }
    Ok((hello, pid, Some(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        slot: 7,
        incarnation: 0x0123_4567_89ab_cdef,
        gid: *b"0123456789abcdef",
        asymmetric: true,
    };

    fn sealed(len: usize) -> OwnedFd {
        let fd = file("bellwire-test", len).unwrap();
        seal(fd.as_fd()).unwrap();
        fd
    }

    #[test]
    fn what_is_said_is_heard() {
        let (a, b) = UnixStream::pair().unwrap();
        let files = [sealed(SEGMENT), sealed(EXPORT)];
        say(&a, &HELLO, &[files[0].as_fd(), files[1].as_fd()]).unwrap();
        let (hello, pid, files) = hear(&b, TO_SAY).unwrap();
        assert_eq!((hello, pid), (HELLO, std::process::id() as i32));
        assert!(files.is_some());
    }

    #[test]
    fn strange_peers_are_refused() {
        let refused = |hello: Hello, files: &[OwnedFd]| {
            let (a, b) = UnixStream::pair().unwrap();
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            say(&a, &hello, &files).unwrap();
            hear(&b, TO_SAY).is_err()
        };
        let good = || [sealed(SEGMENT), sealed(EXPORT)];
        assert!(!refused(HELLO, &good()));
        let open = file("bellwire-test", SEGMENT).unwrap();
        assert!(refused(HELLO, &[open, sealed(EXPORT)]));
        assert!(refused(HELLO, &[sealed(SEGMENT - 4096), sealed(EXPORT)]));
        assert!(refused(HELLO, &[sealed(SEGMENT), sealed(EXPORT - 4096)]));
        assert!(refused(HELLO, &[sealed(SEGMENT)]));
        assert!(refused(Hello { slot: 64, ..HELLO }, &good()));
        let (a, b) = UnixStream::pair().unwrap();
        drop(a);
        assert!(hear(&b, TO_SAY).is_err());
    }
}
